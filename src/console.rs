//! Progress and messages on stderr: bars on a terminal, lines elsewhere, nothing if silent.

use gnnflow_data::heartbeat::beat;
use gnnflow_data::progress::Progress;
use gnnflow_pipelines::summary::{EpochRecord, Scores};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use serde_json::{Map, Value, json};
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::stderr::{self, Level};

/// Minimum time between two epoch lines on a terminal. The first and the last epoch are always printed.
const EPOCH_LINE_INTERVAL: Duration = Duration::from_secs(1);

/// Time below which a stage without an amount has no line.
const EMPTY: Duration = Duration::from_millis(50);

/// Time until a brief stage has a bar.
const BRIEF: Duration = Duration::from_millis(500);
/// Time between two lines of a stage, without a terminal.
const STAGE_LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Prints progress and messages. Clones share one state.
#[derive(Clone, Debug)]
pub struct Console {
    style: Style,
    state: Arc<Mutex<State>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Silent,
    Lines,
    Bars,
}

#[derive(Debug, Default)]
struct State {
    bar: Option<ProgressBar>,
    stage: Option<Stage>,
    last_epoch: Option<Instant>,
}

#[derive(Debug)]
struct Stage {
    name: String,
    unit: String,
    total: Option<u64>,
    /// Whether it is shown only while it takes long.
    brief: bool,
    start: Instant,
    last_line: Instant,
    done: u64,
}

impl Stage {
    /// Returns the line of an unfinished stage: its amount, rate and remaining time.
    fn line(&self, elapsed: Duration) -> String {
        let rate = self.done as f64 / elapsed.as_secs_f64().max(1e-3);
        let amount = match self.total {
            Some(total) => format!("{} of {total}", self.done),
            None => self.done.to_string(),
        };
        let left = self.total.filter(|_| self.done > 0).map(|total| total.saturating_sub(self.done) as f64 / rate);
        let left = left.map_or_else(String::new, |seconds| format!(", {seconds:.0} s left"));
        format!("{}: {amount} {}, {} per second{left}", self.name, self.unit, rate_text(rate))
    }

    /// Returns the numbers of a line.
    fn fields(&self) -> Map<String, Value> {
        let Self { name, unit, total, start, done, .. } = self;
        let seconds = start.elapsed().as_secs_f64();
        let pairs = [
            ("stage", json!(name)),
            ("done", json!(done)),
            ("total", json!(total)),
            ("unit", json!(unit)),
            ("seconds", json!(seconds)),
        ];
        pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    fn bar(&self) -> ProgressBar {
        let template = match self.total {
            Some(_) => "{msg:<24} {bar:30} {human_pos}/{human_len} {prefix}  {rate}/s  {left} left",
            None => "{msg:<24} {spinner} {human_pos} {prefix}  {rate}/s  {elapsed}",
        };
        let bar = self.total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        // The mean rate from the start, as in the lines. The crate's own estimate starts with the bar, which may be late.
        let rate = |state: &ProgressState| state.pos() as f64 / state.elapsed().as_secs_f64().max(1e-3);
        let rate_key = move |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let _ = out.write_str(&rate_text(rate(state)));
        };
        let left_key = move |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let left = state.len().unwrap_or(0).saturating_sub(state.pos()) as f64 / rate(state).max(1e-9);
            let _ = match state.pos() {
                0 => out.write_str("?"),
                _ => write!(out, "{left:.0} s"),
            };
        };
        bar.set_style(style.with_key("rate", rate_key).with_key("left", left_key));
        bar.set_message(self.name.clone());
        bar.set_prefix(self.unit.clone());
        bar.set_position(self.done);
        bar.set_elapsed(self.start.elapsed());
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }
}

/// Formats a rate with one decimal if it is small.
fn rate_text(rate: f64) -> String {
    if rate < 10.0 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

impl Console {
    /// Bars if stderr is a terminal and lines are text, lines if not.
    pub fn new() -> Self {
        let bars = std::io::stderr().is_terminal() && !stderr::is_json();
        Self::with(if bars { Style::Bars } else { Style::Lines })
    }

    /// Prints nothing.
    pub fn silent() -> Self {
        Self::with(Style::Silent)
    }

    fn with(style: Style) -> Self {
        Self { style, state: Arc::default() }
    }

    /// Whether this console prints nothing.
    pub fn is_silent(&self) -> bool {
        self.style == Style::Silent
    }

    /// Prints one line.
    pub fn say(&self, line: &str) {
        self.log(Level::Info, line, Map::new());
    }

    /// Prints a warning.
    pub(crate) fn warn(&self, line: &str) {
        self.log(Level::Warning, line, Map::new());
    }

    /// Prints one line. `fields` are for lines as JSON.
    pub(crate) fn log(&self, level: Level, line: &str, fields: Map<String, Value>) {
        if self.style != Style::Silent {
            self.line(&self.lock(), level, line, fields);
        }
    }

    /// Prints loss, metrics and time of an epoch, of at most `epochs`.
    pub fn epoch(&self, record: &EpochRecord, epochs: usize) {
        if self.style == Style::Silent {
            return;
        }
        let mut state = self.lock();
        let soon = state.last_epoch.is_some_and(|last| last.elapsed() < EPOCH_LINE_INTERVAL);
        if self.style == Style::Bars && soon && record.epoch < epochs {
            return;
        }
        state.last_epoch = Some(Instant::now());
        self.line(&state, Level::Info, &epoch_line(record, epochs), epoch_fields(record, epochs));
    }

    fn begin(&self, name: &str, total: Option<u64>, unit: &str, brief: bool) {
        let mut state = self.lock();
        state.finish(self.style);
        let start = Instant::now();
        let stage = Stage { name: name.into(), unit: unit.into(), total, brief, start, last_line: start, done: 0 };
        state.bar = (self.style == Style::Bars && !brief).then(|| stage.bar());
        state.stage = Some(stage);
    }

    fn line(&self, state: &State, level: Level, line: &str, fields: Map<String, Value>) {
        let print = || stderr::print_with(level, line, fields);
        match &state.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // The state is valid after any panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the line of an epoch: its loss, the metric that selects the best epoch, and the time. `*` marks the best so far.
fn epoch_line(record: &EpochRecord, epochs: usize) -> String {
    let score = |split: &str, scores: &Option<Scores>| {
        let Some(name) = &record.metric else { return String::new() };
        let value = scores.as_ref().and_then(|scores| scores.value(name));
        value.map_or_else(String::new, |value| format!(", {split} {name} {}", number(value)))
    };
    let (val, test) = (score("val", &record.val), score("test", &record.test));
    let best = if record.best { " *" } else { "" };
    let EpochRecord { epoch, loss, seconds, .. } = record;
    format!("epoch {epoch:>4}/{epochs}: loss {}{val}{test}, {seconds:.2} s{best}", number(*loss))
}

/// Formats a loss or a metric with four decimals, or as a power of ten if it is large.
fn number(value: f64) -> String {
    if value.abs() < 1e6 { format!("{value:.4}") } else { format!("{value:.4e}") }
}

/// Returns the numbers of an epoch: the keys of `metrics.jsonl`, and the epochs of the run.
fn epoch_fields(record: &EpochRecord, epochs: usize) -> Map<String, Value> {
    let Ok(Value::Object(mut fields)) = serde_json::to_value(record) else { return Map::new() };
    fields.insert("epochs".into(), epochs.into());
    fields
}

impl Default for Console {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress for Console {
    fn stage(&self, name: &str, total: Option<u64>, unit: &str) {
        self.begin(name, total, unit, false);
    }

    fn brief_stage(&self, name: &str, total: u64, unit: &str) {
        self.begin(name, Some(total), unit, true);
    }

    fn advance(&self, by: u64) {
        beat();
        let mut state = self.lock();
        let State { bar, stage, .. } = &mut *state;
        let Some(stage) = stage else { return };
        stage.done += by;
        match (self.style, &bar) {
            (Style::Bars, Some(bar)) => bar.inc(by),
            (Style::Bars, None) if stage.start.elapsed() > BRIEF => *bar = Some(stage.bar()),
            (Style::Lines, _) if stage.last_line.elapsed() > STAGE_LINE_INTERVAL => {
                stage.last_line = Instant::now();
                let fields = stage.fields();
                stderr::print_with(Level::Info, &stage.line(stage.start.elapsed()), fields);
            }
            _ => {}
        }
    }

    fn done(&self) {
        self.lock().finish(self.style);
    }

    fn note(&self, text: &str) {
        self.say(&format!("note: {text}"));
    }
}

impl State {
    /// Ends the current stage and prints its amount and time.
    fn finish(&mut self, style: Style) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        let Some(stage) = self.stage.take() else { return };
        // It has no work of its own: another stage began at once, within it.
        let empty = stage.done == 0 && stage.start.elapsed() < EMPTY;
        if style != Style::Silent && !stage.brief && !empty {
            let amount = match stage.done {
                0 => String::new(),
                1 => format!("1 {}, ", stage.unit.trim_end_matches('s')),
                done => format!("{done} {}, ", stage.unit),
            };
            let line = format!("{}: {amount}{:.1} s", stage.name, stage.start.elapsed().as_secs_f64());
            stderr::print_with(Level::Info, &line, stage.fields());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epoch_line_names_the_metric_that_selects_the_best_epoch() {
        let metrics = [("hits_at_1".to_owned(), 0.124), ("mrr".to_owned(), 0.517)].into();
        let val = Some(Scores { nodes: 9, loss: 0.5, metrics });
        let record = EpochRecord { epoch: 2, loss: 0.25, seconds: 1.5, val, best: true, ..EpochRecord::default() };
        let line = |metric: Option<&str>, loss: f64| {
            epoch_line(&EpochRecord { metric: metric.map(str::to_owned), loss, ..record.clone() }, 10)
        };
        assert_eq!(line(Some("mrr"), 0.25), "epoch    2/10: loss 0.2500, val mrr 0.5170, 1.50 s *");
        assert_eq!(line(Some("loss"), 0.25), "epoch    2/10: loss 0.2500, val loss 0.5000, 1.50 s *");
        assert_eq!(line(None, 1.945e18), "epoch    2/10: loss 1.9450e18, 1.50 s *");
    }

    #[test]
    fn line_of_a_long_stage_has_rate_and_remaining_time() {
        let now = Instant::now();
        let stage = |total| Stage {
            name: "rank".into(),
            unit: "edges".into(),
            total,
            brief: true,
            start: now,
            last_line: now,
            done: 120,
        };
        let line = |total| stage(total).line(Duration::from_secs(60));
        assert_eq!(line(Some(300)), "rank: 120 of 300 edges, 2.0 per second, 90 s left");
        assert_eq!(line(None), "rank: 120 edges, 2.0 per second");
    }

    #[test]
    fn stage_ends_with_the_next_stage_or_done() {
        for style in [Style::Silent, Style::Lines, Style::Bars] {
            let console = Console::with(style);
            console.stage("one", None, "rows");
            console.advance(3);
            console.stage("two", Some(5), "rows");
            console.clone().advance(5);
            console.brief_stage("three", 7, "rows");
            console.advance(7);
            console.say("in between");
            console.done();
            console.done();
            console.advance(1);
            assert!(console.lock().stage.is_none() && console.lock().bar.is_none());
        }
    }
}
