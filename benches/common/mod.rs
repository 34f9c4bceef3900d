//! Common code of the benches: repeated timing, and a result file with machine, commit and date.
//!
//! `cargo bench --bench NAME [-- --threads 1,2 --repeats 20 --out FILE]`. Without cargo's `--bench` flag, as in `cargo
//! test --benches`, a bench is a smoke test: sizes are tiny and no file is written.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

/// One run of one bench.
pub(crate) struct Session {
    what: &'static str,
    /// Whether this is a smoke test.
    pub(crate) smoke: bool,
    arguments: Vec<String>,
    about: Map<String, Value>,
    results: Vec<Value>,
}

/// Seconds of all repetitions, ascending.
#[derive(Clone, Debug)]
pub(crate) struct Seconds(Vec<f64>);

impl Seconds {
    /// Takes the seconds in any order.
    pub(crate) fn new(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        Self(seconds)
    }

    /// The quantile `q` from 0 to 1.
    pub(crate) fn quantile(&self, q: f64) -> f64 {
        self.0[((self.0.len() - 1) as f64 * q).round() as usize]
    }

    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    fn json(&self) -> Value {
        let [median, min, p99, max] = [0.5, 0.0, 0.99, 1.0].map(|q| self.quantile(q));
        json!({ "median": median, "min": min, "p99": p99, "max": max, "n": self.0.len() })
    }
}

impl Session {
    /// Reads the command line and the properties of the machine.
    pub(crate) fn new(what: &'static str) -> Self {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let smoke = !arguments.iter().any(|argument| argument == "--bench");
        let mut session = Self { what, smoke, arguments, about: machine(), results: Vec::new() };
        session.about("bench", what);
        session
    }

    /// The numbers after `--name`, or `default`.
    pub(crate) fn numbers(&self, name: &str, default: &[usize]) -> Vec<usize> {
        match self.argument(name) {
            Some(list) => list.split(',').map(|n| n.parse().expect("a comma list of numbers")).collect(),
            None => default.to_vec(),
        }
    }

    fn argument(&self, name: &str) -> Option<&String> {
        let at = self.arguments.iter().position(|argument| argument.strip_prefix("--") == Some(name))?;
        self.arguments.get(at + 1)
    }

    /// Number of repetitions: 2 in a smoke test, else `--repeats` or `usual`.
    pub(crate) fn repeats(&self, usual: usize) -> usize {
        if self.smoke { 2 } else { self.numbers("repeats", &[usual])[0] }
    }

    /// Adds a property of the whole run.
    pub(crate) fn about(&mut self, name: &str, value: impl Into<Value>) {
        self.about.insert(name.to_string(), value.into());
    }

    /// Adds and prints a result. A repetition processes `amount` of `unit`.
    pub(crate) fn result(&mut self, case: &str, details: Value, seconds: &Seconds, amount: f64, unit: &str) {
        let rate = amount / seconds.median();
        let mut row = json!({ "case": case, "seconds": seconds.json(), "rate": rate, "unit": format!("{unit}/s") });
        let (row_fields, Value::Object(details)) = (row.as_object_mut().expect("an object"), details) else {
            panic!("details are an object")
        };
        let shown: Vec<String> = details.iter().map(|(name, value)| format!("{name}={value}")).collect();
        println!(
            "{case:<28} {:>10} (min {}, max {})  {}{unit}/s  {}",
            pretty(seconds.median()),
            pretty(seconds.quantile(0.0)),
            pretty(seconds.quantile(1.0)),
            scaled(rate),
            shown.join(" ")
        );
        row_fields.extend(details);
        self.results.push(row);
    }

    /// Writes the result file to `--out`, or to `benches/runs/<date>-<what>.json`.
    pub(crate) fn finish(mut self) {
        if self.smoke {
            return println!("{}: smoke test passed, no result written", self.what);
        }
        self.about("load_after", load());
        self.about("peak_rss_bytes", peak_rss());
        let path = match self.argument("out") {
            Some(path) => PathBuf::from(path),
            None => {
                let date = self.about["date"].as_str().expect("a text")[..10].to_string();
                PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("benches/runs/{date}-{}.json", self.what))
            }
        };
        self.about.insert("results".into(), self.results.into());
        let text = serde_json::to_string_pretty(&self.about).expect("it is plain JSON") + "\n";
        path.parent().map_or(Ok(()), fs::create_dir_all).expect("the result folder can be created");
        fs::write(&path, text).expect("the result can be written");
        println!("wrote {}", path.display());
    }
}

fn pretty(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} µs", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.3} s"),
    }
}

fn scaled(rate: f64) -> String {
    match rate {
        r if r >= 1e9 => format!("{:.2} G", r / 1e9),
        r if r >= 1e6 => format!("{:.2} M", r / 1e6),
        r => format!("{r:.1} "),
    }
}

/// Properties of the machine, the commit and the date.
fn machine() -> Map<String, Value> {
    let cpu = field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.into());
    let memory = field("/proc/meminfo", "MemTotal").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let clean = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|changes| changes.is_empty());
    let commit = git(&["rev-parse", "HEAD"]).map_or("unknown".into(), |c| if clean { c } else { c + " and changes" });
    let facts = [
        ("date", json!(date(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)))),
        ("commit", json!(commit)),
        ("cpu", json!(cpu)),
        ("cores", json!(cores)),
        ("memory", json!(memory)),
        ("load_before", json!(load())),
    ];
    facts.into_iter().map(|(name, fact)| (name.to_string(), fact)).collect()
}

/// The first value of `name` in a `name : value` file of the kernel.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let value = text.lines().find(|line| line.starts_with(name))?.split_once(':')?.1;
    Some(value.trim().to_string())
}

fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(f64::NAN)
}

fn peak_rss() -> u64 {
    let text = field("/proc/self/status", "VmHWM").unwrap_or_default();
    text.split(' ').next().and_then(|kib| kib.parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

/// Formats a time since 1970 as `2026-11-20T06:45:00Z`. Years start on 1 March in the calculation.
fn date(since_1970: Duration) -> String {
    let (days, seconds) = (since_1970.as_secs() / 86_400, since_1970.as_secs() % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}
