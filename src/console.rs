//! Progress and messages on stderr: bars on a terminal, lines elsewhere, nothing if silent.

use gnnflow_data::progress::Progress;
use gnnflow_pipelines::summary::{EpochRecord, Scores};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Minimum time between two epoch lines. The first and the last epoch are always printed.
const EPOCH_LINE_INTERVAL: Duration = Duration::from_secs(1);

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
    start: Instant,
    done: u64,
}

impl Console {
    /// Bars if stderr is a terminal, lines if not.
    pub fn new() -> Self {
        Self::with(if std::io::stderr().is_terminal() { Style::Bars } else { Style::Lines })
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
        if self.style != Style::Silent {
            self.line(&self.lock(), line);
        }
    }

    /// Prints loss, metrics and time of an epoch, of at most `epochs`.
    pub fn epoch(&self, record: &EpochRecord, epochs: usize) {
        if self.style == Style::Silent {
            return;
        }
        let mut state = self.lock();
        let soon = state.last_epoch.is_some_and(|last| last.elapsed() < EPOCH_LINE_INTERVAL);
        if soon && record.epoch < epochs {
            return;
        }
        state.last_epoch = Some(Instant::now());
        let score = |name: &str, scores: &Option<Scores>| {
            let accuracy =
                scores.as_ref().and_then(|scores| scores.accuracy().or(scores.metrics.values().next().copied()));
            accuracy.map_or_else(String::new, |accuracy| format!(", {name} {accuracy:.4}"))
        };
        let (val, test) = (score("val", &record.val), score("test", &record.test));
        let best = if record.best { " *" } else { "" };
        let EpochRecord { epoch, loss, seconds, .. } = record;
        self.line(&state, &format!("epoch {epoch:>4}/{epochs}: loss {loss:.4}{val}{test}, {seconds:.2} s{best}"));
    }

    fn line(&self, state: &State, line: &str) {
        match &state.bar {
            Some(bar) => bar.suspend(|| write(line)),
            None => write(line),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // The state is valid after any panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes a line to stderr. Ignores a closed stderr.
fn write(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

impl Default for Console {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress for Console {
    fn stage(&self, name: &str, total: Option<u64>, unit: &str) {
        let mut state = self.lock();
        state.finish(self.style);
        state.stage = Some(Stage { name: name.into(), unit: unit.into(), start: Instant::now(), done: 0 });
        if self.style == Style::Bars {
            let template = match total {
                Some(_) => "{msg:<24} {bar:30} {human_pos}/{human_len} {prefix} {eta}",
                None => "{msg:<24} {spinner} {human_pos} {prefix} {elapsed}",
            };
            let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
            let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            bar.set_style(style);
            bar.set_message(name.to_owned());
            bar.set_prefix(unit.to_owned());
            bar.enable_steady_tick(Duration::from_millis(200));
            state.bar = Some(bar);
        }
    }

    fn advance(&self, by: u64) {
        let mut state = self.lock();
        if let Some(stage) = &mut state.stage {
            stage.done += by;
        }
        if let Some(bar) = &state.bar {
            bar.inc(by);
        }
    }

    fn done(&self) {
        self.lock().finish(self.style);
    }
}

impl State {
    /// Ends the current stage and prints its amount and time.
    fn finish(&mut self, style: Style) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        let Some(stage) = self.stage.take() else { return };
        if style != Style::Silent {
            let amount = if stage.done > 0 { format!("{} {}, ", stage.done, stage.unit) } else { String::new() };
            write(&format!("{}: {amount}{:.1} s", stage.name, stage.start.elapsed().as_secs_f64()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stage_ends_with_the_next_stage_or_done() {
        for style in [Style::Silent, Style::Lines, Style::Bars] {
            let console = Console::with(style);
            console.stage("one", None, "rows");
            console.advance(3);
            console.stage("two", Some(5), "rows");
            console.clone().advance(5);
            console.say("in between");
            console.done();
            console.done();
            console.advance(1);
            assert!(console.lock().stage.is_none() && console.lock().bar.is_none());
        }
    }
}
