//! Log lines on stderr, from events of `tracing`.

use std::fmt::{Debug, Write};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use crate::console::Console;
use crate::stderr::{Level, is_json};

/// The environment variable that sets the level: `error`, `warn` (the default), `info`, `debug` or `trace`.
const VARIABLE: &str = "GNNFLOW_LOG";

/// Installs a subscriber that writes events of gnnflow's crates as lines of `console`. The existing subscriber of an embedding program
/// stays.
///
/// # Errors
/// If the environment variable does not name a level.
pub(crate) fn install(console: Console) -> Result<(), String> {
    let level = match std::env::var(VARIABLE) {
        Ok(text) => text.parse::<LevelFilter>().map_err(|_| {
            format!(
                "environment variable {VARIABLE} = `{text}` is not a log level; use error, warn, info, debug or trace"
            )
        })?,
        Err(_) => LevelFilter::WARN,
    };
    let own = Targets::new().with_target("gnnflow", level);
    // Fails only if the embedding program has a subscriber.
    let _ = Registry::default().with(Lines(console).with_filter(own)).try_init();
    Ok(())
}

/// Writes one line for each event.
struct Lines(Console);

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = match *event.metadata().level() {
            tracing::Level::ERROR => Level::Error,
            tracing::Level::WARN => Level::Warning,
            tracing::Level::INFO => Level::Info,
            tracing::Level::DEBUG => Level::Debug,
            tracing::Level::TRACE => Level::Trace,
        };
        let mut line = Line::default();
        event.record(&mut line);
        self.0.log(level, &line.message, line.fields);
    }
}

/// Collects an event's message and its fields. In lines as text, the message has the fields as `name=value`.
#[derive(Default)]
struct Line {
    message: String,
    fields: Map<String, Value>,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name if is_json() => return drop(self.fields.insert(name.into(), format!("{value:?}").into())),
            name => write!(self.message, " {name}={value:?}"),
        };
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.record_number(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.record_number(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.record_number(field, value);
    }
}

impl Line {
    fn record_number(&mut self, field: &Field, value: impl Debug + Into<Value>) {
        match is_json() {
            true => drop(self.fields.insert(field.name().into(), value.into())),
            false => self.record_debug(field, &value),
        }
    }
}
