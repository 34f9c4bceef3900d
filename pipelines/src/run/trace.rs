//! `train.trace`: what the worker thread and the compute thread of a process do, in Chrome's trace format.

use std::cell::RefCell;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gnnflow_dataflow::flow::compute_thread::Ran;
use gnnflow_dataflow::trace::spans::{Spans, Total, WAITING};
use gnnflow_dataflow::trace::worker;
use serde_json::{Value, json};
use timely::worker::Worker;

use crate::error::Error;
use crate::outputs::trace_table::{ThreadTime, TraceTable};

/// The records of one process.
pub(super) struct Trace {
    worker: Rc<RefCell<Spans>>,
    compute: ComputeTrace,
    /// The zero of all times, since the Unix epoch.
    zero: Duration,
    rank: usize,
}

/// Records the jobs of the compute thread.
#[derive(Clone)]
pub(super) struct ComputeTrace {
    spans: Arc<Mutex<Spans>>,
    zero: Instant,
}

impl ComputeTrace {
    pub(super) fn add(&self, ran: &Ran<'_>) {
        let [start, end] = [ran.start, ran.end].map(|time| time.saturating_duration_since(self.zero));
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        spans.add(ran.name, start, end, end.saturating_sub(start));
    }
}

impl Trace {
    /// Begins to record dataflows that are built later.
    ///
    /// # Errors
    /// [`Error::Bug`] if the worker was started without timely's logging.
    pub(super) fn start(worker: &Worker) -> Result<Self, Error> {
        let (zero, spans) = worker
            .timer()
            .zip(worker::record(worker))
            .ok_or_else(|| Error::Bug("train.trace: the worker was started without timely's logging".into()))?;
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self {
            worker: spans,
            compute: ComputeTrace { spans: Arc::default(), zero },
            zero: since_epoch.saturating_sub(zero.elapsed()),
            rank: worker.index(),
        })
    }

    pub(super) fn of_compute_thread(&self) -> ComputeTrace {
        self.compute.clone()
    }

    /// Writes `trace/worker-N.json` and the table of times beside it.
    pub(super) fn write(&self, timely: &Worker, run_dir: &Path) -> Result<(), Error> {
        worker::flush(timely);
        let (spans, compute) =
            (self.worker.borrow(), self.compute.spans.lock().unwrap_or_else(PoisonError::into_inner));
        let folder = TraceTable::folder(run_dir);
        std::fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        let path = folder.join(format!("worker-{}.json", self.rank));
        let mut file = BufWriter::new(std::fs::File::create(&path).map_err(Error::io("create", &path))?);
        self.write_events(&mut file, &[&spans, &compute]).map_err(Error::io("write", &path))?;
        self.table(&spans, &compute).write(run_dir, self.rank)
    }

    fn write_events(&self, file: &mut impl Write, threads: &[&Spans; 2]) -> std::io::Result<()> {
        writeln!(file, "[")?;
        writeln!(file, "{},", metadata("process_name", self.rank, 0, &format!("worker {}", self.rank)))?;
        for (thread, (name, spans)) in ["dataflow", "compute"].into_iter().zip(threads).enumerate() {
            for span in spans.kept() {
                let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
                let event = json!({
                    "name": span.name, "ph": "X", "pid": self.rank, "tid": thread,
                    "ts": micros(self.zero + span.start), "dur": micros(span.end.saturating_sub(span.start)),
                });
                writeln!(file, "{event},")?;
            }
            let end = if thread == 0 { "," } else { "\n]" };
            writeln!(file, "{}{end}", metadata("thread_name", self.rank, thread, name))?;
        }
        file.flush()
    }

    fn table(&self, spans: &Spans, compute: &Spans) -> TraceTable {
        let seconds = |time: Duration| time.as_secs_f64();
        let times = |spans: &Spans| {
            let total = |total: &Total| ThreadTime {
                name: total.name.to_string(),
                count: total.count,
                seconds: seconds(total.time),
            };
            let mut times: Vec<ThreadTime> = spans.totals().iter().map(total).collect();
            times.sort_by(|a, b| b.seconds.total_cmp(&a.seconds).then_with(|| a.name.cmp(&b.name)));
            times
        };
        TraceTable {
            dataflow: times(spans),
            compute: times(compute),
            waiting_for_compute: seconds(spans.overlap(WAITING, compute)),
            dropped: spans.dropped() + compute.dropped(),
        }
    }
}

/// Returns an event that names a process or a thread.
fn metadata(what: &str, process: usize, thread: usize, name: &str) -> Value {
    json!({ "name": what, "ph": "M", "pid": process, "tid": thread, "args": { "name": name } })
}
