//! All lines on stderr, as text or as JSON.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Map, Value, json};

/// The environment variable that sets the form of lines: `text` (the default) or `json`.
const VARIABLE: &str = "GNNFLOW_LOG_FORMAT";

/// The form of all lines of this process.
static FORMAT: OnceLock<Format> = OnceLock::new();
/// The rank of this process, in lines as JSON.
static RANK: AtomicUsize = AtomicUsize::new(0);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Format {
    #[default]
    Text,
    Json,
}

/// How important a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Error,
    Warning,
    Info,
    Debug,
    Trace,
}

impl Level {
    /// Returns the begin of a line as text.
    fn prefix(self) -> &'static str {
        match self {
            Self::Error => "error: ",
            Self::Warning => "warning: ",
            Self::Info | Self::Debug | Self::Trace => "",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// Takes the form of lines from the environment, from where child processes take it, too.
///
/// # Errors
/// If the variable names no form.
pub(crate) fn set_format() -> Result<(), String> {
    let format = match std::env::var(VARIABLE).as_deref() {
        Ok("json") => Format::Json,
        Ok("text") | Err(_) => Format::Text,
        Ok(other) => {
            return Err(format!(
                "environment variable {VARIABLE} = `{other}` is not a form of lines; use text or json"
            ));
        }
    };
    // An embedding program that runs several commands has one stderr.
    let _ = FORMAT.set(format);
    Ok(())
}

/// Returns the variable and its value, for processes on other hosts, if lines are JSON.
pub(crate) fn format_variable() -> Option<(String, String)> {
    is_json().then(|| (VARIABLE.to_owned(), "json".to_owned()))
}

/// Sets the rank of this process.
pub(crate) fn set_rank(rank: usize) {
    RANK.store(rank, Ordering::Relaxed);
}

/// Returns whether lines are JSON.
pub(crate) fn is_json() -> bool {
    FORMAT.get() == Some(&Format::Json)
}

/// Prints a line. Ignores a closed stderr.
pub(crate) fn print(level: Level, message: &str) {
    print_with(level, message, Map::new());
}

/// Prints a line. `fields` are the numbers and names in `message`, for lines as JSON.
pub(crate) fn print_with(level: Level, message: &str, fields: Map<String, Value>) {
    let line = match is_json() {
        false => format!("{}{message}\n", level.prefix()),
        true => json_line(level, RANK.load(Ordering::Relaxed), message, fields),
    };
    print_raw(line.as_bytes());
}

/// Prints a line that a child process of this rank has printed, without its end. In lines as text, it begins with `prefix`.
pub(crate) fn print_of_child(rank: usize, prefix: &str, line: &[u8]) {
    let text = String::from_utf8_lossy(line);
    match is_json() {
        false => print_raw(&[prefix.as_bytes(), line, b"\n"].concat()),
        true if serde_json::from_str::<Map<String, Value>>(&text).is_ok() => print_raw(&[line, b"\n"].concat()),
        // A library or the system has printed it.
        true => print_raw(json_line(Level::Info, rank, &text, Map::new()).as_bytes()),
    }
}

fn print_raw(line: &[u8]) {
    let _ = std::io::stderr().lock().write_all(line);
}

fn json_line(level: Level, rank: usize, message: &str, fields: Map<String, Value>) -> String {
    let time = DateTime::<Utc>::from(SystemTime::now()).to_rfc3339_opts(SecondsFormat::Millis, true);
    let mut line = json!({ "time": time, "level": level.name(), "rank": rank, "message": message });
    if !fields.is_empty() {
        line["fields"] = Value::Object(fields);
    }
    format!("{line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_lines_have_time_level_rank_message_and_fields() {
        let fields = Map::from_iter([("loss".to_owned(), json!(0.5))]);
        let line = json_line(Level::Warning, 3, "two\nlines", fields);
        assert_eq!(line.matches('\n').count(), 1);
        let mut line: Value = serde_json::from_str(&line).unwrap();
        let time = line["time"].take();
        assert!(DateTime::parse_from_rfc3339(time.as_str().unwrap()).is_ok(), "{time}");
        let expected =
            json!({ "level": "warning", "rank": 3, "message": "two\nlines", "fields": { "loss": 0.5 }, "time": null });
        assert_eq!(line, expected);
    }
}
