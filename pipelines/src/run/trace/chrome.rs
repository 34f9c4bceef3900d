//! Chrome's trace format: a list of events. Perfetto shows it, too.

use std::io::{Result, Write};
use std::time::Duration;

use gnnflow_dataflow::trace::counter::Counter;
use gnnflow_dataflow::trace::spans::{Span, Spans};
use serde_json::{Value, json};

/// A trace that is being written.
pub(super) struct ChromeTrace<W> {
    file: W,
    process: usize,
    /// The zero of all times, since the Unix epoch.
    zero: Duration,
    /// Number of threads so far.
    threads: usize,
}

impl<W: Write> ChromeTrace<W> {
    /// Begins the trace of the process of rank `process`.
    pub(super) fn begin(mut file: W, process: usize, zero: Duration) -> Result<Self> {
        let name = metadata("process_name", process, 0, &format!("worker {process}"));
        write!(file, "[\n{name}")?;
        Ok(Self { file, process, zero, threads: 0 })
    }

    /// Adds a thread. Threads have the numbers 0, 1, and so on.
    pub(super) fn thread(&mut self, name: &str, spans: &Spans) -> Result<()> {
        let thread = self.threads;
        self.threads += 1;
        self.event(&metadata("thread_name", self.process, thread, name))?;
        for Span { name, start, end, cpu } in spans.kept() {
            let mut event = json!({
                "name": name, "ph": "X", "pid": self.process, "tid": thread,
                "ts": micros(self.zero + start), "dur": micros(end.saturating_sub(start)),
            });
            if let Some(cpu) = cpu {
                event["args"] = json!({ "cpu_us": micros(cpu) });
            }
            self.event(&event)?;
        }
        Ok(())
    }

    /// Adds a number that changes over time.
    pub(super) fn counter(&mut self, name: &str, counter: &Counter) -> Result<()> {
        for value in counter.kept() {
            self.event(&json!({
                "name": name, "ph": "C", "pid": self.process, "ts": micros(self.zero + value.time),
                "args": { "count": value.value },
            }))?;
        }
        Ok(())
    }

    pub(super) fn end(mut self) -> Result<()> {
        writeln!(self.file, "\n]")?;
        self.file.flush()
    }

    fn event(&mut self, event: &Value) -> Result<()> {
        write!(self.file, ",\n{event}")
    }
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// Returns an event that names a process or a thread.
fn metadata(what: &str, process: usize, thread: usize, name: &str) -> Value {
    json!({ "name": what, "ph": "M", "pid": process, "tid": thread, "args": { "name": name } })
}
