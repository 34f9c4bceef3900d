//! The texts that are shown of a run.

use gnnflow_data::format::{bytes, plural};
use gnnflow_pipelines::Stage;
use gnnflow_pipelines::summary::EpochRecord;

use crate::status::{Cache, ProcessStatus, ReceivedStatus, RunStatus, State};

/// Seconds after which a status is old: it is written every second.
const STALE: f64 = 5.0;

/// What is shown of a run.
#[derive(Debug, PartialEq)]
pub(super) struct View {
    pub(super) lines: Vec<Line>,
    /// A row for each process.
    pub(super) rows: Vec<Row>,
}

/// A line above the table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) text: String,
    /// Whether it says that something is wrong.
    pub(super) is_alarm: bool,
}

/// A row of the table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) cells: [String; COLUMNS.len()],
    /// Whether the status is old.
    pub(super) is_stale: bool,
}

/// The columns of the table.
pub(super) const COLUMNS: [&str; 11] =
    ["rank", "host", "state", "memory", "peak", "CPU", "sent", "received", "cache hits", "steps", "idle"];

impl View {
    /// Returns what is shown of a run whose status was written `age` seconds ago.
    pub(super) fn of(run: &RunStatus, age: f64) -> Self {
        let age = if run.state == State::Running { age } else { 0.0 };
        let alarm = |text: String| Line { text, is_alarm: true };
        let line = |text: String| Line { text, is_alarm: false };
        let mut lines = vec![line(headline(run))];
        if age > STALE {
            let why = "the run was killed, its host cannot write, or clocks differ";
            lines.push(alarm(format!("no news for {}: {why}", duration(age))));
        }
        lines.extend(run.error.iter().map(|error| alarm(format!("error: {error}"))));
        lines.extend(run.last_epoch.as_ref().map(|epoch| line(epoch_line(epoch))));
        if run.statuses.len() < run.processes && run.state == State::Running {
            let of = plural(run.processes, "process");
            lines.push(line(format!("{} of {of} have reported so far", run.statuses.len())));
        }
        let row = |of: &ReceivedStatus| Row::of(&of.status, run.state, age + of.age_seconds);
        Self { lines, rows: run.statuses.iter().map(row).collect() }
    }
}

impl Row {
    fn of(of: &ProcessStatus, run: State, age: f64) -> Self {
        let is_stale = run == State::Running && age > STALE;
        let state = match run {
            State::Running if is_stale => format!("no news for {}", duration(age)),
            State::Running => doing(of),
            State::Finished => "finished".to_owned(),
            State::Failed => "ended".to_owned(),
        };
        // The last rates of a run that has ended say nothing.
        let now = |text: String| if run == State::Running && !is_stale { text } else { "–".to_owned() };
        let cells = [
            of.rank.to_string(),
            of.host.clone(),
            state,
            bytes(of.memory),
            bytes(of.memory_peak),
            now(format!("{:.0} %", 100.0 * of.rates.cpu)),
            now(per_second(bytes(of.rates.bytes_sent as u64))),
            now(per_second(bytes(of.rates.bytes_received as u64))),
            of.cache.map_or_else(|| "–".to_owned(), |cache| format!("{:.1} %", 100.0 * Cache::hit_rate(cache))),
            now(per_second(format!("{:.1}", of.rates.steps))),
            now(duration(of.idle_seconds)),
        ];
        Self { cells, is_stale }
    }
}

fn per_second(amount: String) -> String {
    format!("{amount}/s")
}

/// Returns the stage and the work of a process.
fn doing(of: &ProcessStatus) -> String {
    match (&of.work, of.stage) {
        (Some(work), _) => match work.total {
            Some(total) if total > 0 => format!("{}: {} of {total} {}", work.name, work.done, work.unit),
            _ => work.name.clone(),
        },
        (None, Stage::Opening) if !of.label.is_empty() => of.label.clone(),
        (None, stage) => stage.to_string(),
    }
}

/// Returns the line of the run's state.
fn headline(run: &RunStatus) -> String {
    let RunStatus { name, stage, epochs, .. } = run;
    let lasted = duration(run.updated - run.began);
    match run.state {
        State::Finished => format!("{name}: finished after {lasted}"),
        State::Failed => format!("{name}: failed after {lasted}, while {stage}"),
        State::Running => {
            let epoch = stage.epoch().map_or_else(String::new, |epoch| format!(", epoch {epoch} of {epochs}"));
            let left = run.remaining_seconds.map_or_else(String::new, |left| match stage.epoch() {
                // Training may stop early.
                Some(_) => format!(", at most about {} of training left", duration(left)),
                None => format!(", about {} of this left", duration(left)),
            });
            format!("{name}: {stage}{epoch}; for {lasted} so far{left}")
        }
    }
}

/// Returns the loss and the metric of an epoch.
fn epoch_line(of: &EpochRecord) -> String {
    let value = |scores: &Option<_>| {
        let scores: &gnnflow_pipelines::summary::Scores = scores.as_ref()?;
        let name = of.metric.as_deref()?;
        Some(format!(", val {name} {:.4}", scores.value(name)?))
    };
    let best = if of.best { ", the best so far" } else { "" };
    format!("epoch {}: loss {:.4}{}{best}", of.epoch, of.loss, value(&of.val).unwrap_or_default())
}

/// Returns a time in its two largest units.
pub(super) fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match (whole / 86_400, whole / 3600 % 24, whole / 60 % 60, whole % 60) {
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, m, s) => format!("{m} min {s} s"),
        (0, h, m, _) => format!("{h} h {m} min"),
        (d, h, ..) => format!("{d} d {h} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> RunStatus {
        let status = |rank| ProcessStatus {
            rank,
            host: "alpha".into(),
            stage: Stage::Training { epoch: 3 },
            memory: 3 << 20,
            cache: Some(Cache { hits: 1, misses: 3 }),
            ..ProcessStatus::default()
        };
        RunStatus {
            name: "friends".into(),
            began: 100.0,
            updated: 190.0,
            stage: Stage::Training { epoch: 3 },
            epochs: 10,
            remaining_seconds: Some(7500.0),
            processes: 2,
            statuses: [(0.0, 0), (3.0, 1)]
                .map(|(age_seconds, rank)| ReceivedStatus { age_seconds, status: status(rank) })
                .into(),
            ..RunStatus::default()
        }
    }

    #[test]
    fn headline_has_stage_epoch_and_times() {
        let view = View::of(&run(), 1.0);
        let expected =
            "friends: training, epoch 3 of 10; for 1 min 30 s so far, at most about 2 h 5 min of training left";
        assert_eq!(view.lines, [Line { text: expected.into(), is_alarm: false }]);
        assert_eq!(view.rows[1].cells[8], "25.0 %");
        assert!(view.rows.iter().all(|row| !row.is_stale));
    }

    #[test]
    fn old_statuses_are_stale_while_the_run_is_not_over() {
        let view = View::of(&run(), 4.0);
        assert_eq!(view.rows.iter().map(|row| row.is_stale).collect::<Vec<_>>(), [false, true]);
        assert_eq!(view.rows[1].cells[2], "no news for 7 s");
        let view = View::of(&run(), 12.0);
        assert!(view.lines[1].is_alarm && view.lines[1].text.starts_with("no news for 12 s"), "{view:?}");
        let view = View::of(&RunStatus { state: State::Finished, ..run() }, 1000.0);
        assert_eq!(view.lines[0].text, "friends: finished after 1 min 30 s");
        assert!(view.rows.iter().all(|row| !row.is_stale && row.cells[2] == "finished"));
    }

    #[test]
    fn durations_have_two_units() {
        let texts = [0.4, 59.6, 3599.0, 7500.0, 200_000.0].map(duration);
        assert_eq!(texts, ["0 s", "1 min 0 s", "59 min 59 s", "2 h 5 min", "2 d 7 h"]);
    }
}
