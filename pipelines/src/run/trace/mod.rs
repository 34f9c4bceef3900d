//! `train.trace`: what the threads of a process do.

mod chrome;
mod compute;
mod table;
mod work;

use std::cell::RefCell;
use std::io::BufWriter;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gnnflow_dataflow::graph::placement::Placement;
use gnnflow_dataflow::trace::causes::{self, Causes};
use gnnflow_dataflow::trace::counter::Counter;
use gnnflow_dataflow::trace::pool::PoolTrace;
use gnnflow_dataflow::trace::spans::Spans;
use gnnflow_dataflow::trace::thread_group::ThreadGroup;
use gnnflow_dataflow::trace::{permits, worker};
use gnnflow_dataflow::wire::meter::Meter;
use timely::worker::Worker;

use self::chrome::ChromeTrace;
pub(super) use self::compute::ComputeTrace;
use self::table::Records;
use crate::error::Error;
use crate::outputs::trace_table::{SentTo, TraceTable};
use crate::outputs::work_log::Round;

/// The records of one process.
pub(super) struct Trace {
    dataflow: Rc<RefCell<Spans>>,
    causes: Rc<RefCell<Causes>>,
    permits: Rc<RefCell<Counter>>,
    /// The worker thread.
    worker: ThreadGroup,
    compute: ComputeTrace,
    sampling: Arc<PoolTrace>,
    rounds: Vec<Round>,
    /// Maximum number of steps in flight.
    window: usize,
    /// Number of jobs that may run at the same time.
    at_once: usize,
    /// Whether features of other processes are read from their files.
    shares_features: bool,
    zero: Instant,
    started: Instant,
    rank: usize,
}

impl Trace {
    /// Begins to record the calling thread, which is that of `worker`, and dataflows that are built later.
    ///
    /// # Errors
    /// [`Error::Bug`] if the worker was started without timely's logging.
    pub(super) fn start(worker: &Worker) -> Result<Self, Error> {
        let logging = || Error::Bug("train.trace: the worker was started without timely's logging".into());
        let zero = worker.timer().ok_or_else(logging)?;
        let group = ThreadGroup::default();
        group.enter();
        Ok(Self {
            dataflow: worker::record(worker).ok_or_else(logging)?,
            causes: causes::record(worker).ok_or_else(logging)?,
            permits: permits::record(worker).ok_or_else(logging)?,
            worker: group,
            compute: ComputeTrace::new(zero),
            sampling: Arc::new(PoolTrace::new(zero)),
            rounds: Vec::new(),
            window: 0,
            at_once: 1,
            shares_features: false,
            zero,
            started: Instant::now(),
            rank: worker.index(),
        })
    }

    /// Sets the maximum number of steps in flight, and of jobs at the same time, and whether features of other processes are read from
    /// their files.
    pub(super) fn set_work(&mut self, window: usize, at_once: usize, shares_features: bool) {
        (self.window, self.at_once, self.shares_features) = (window, at_once, shares_features);
    }

    pub(super) fn of_compute_thread(&self) -> ComputeTrace {
        self.compute.clone()
    }

    pub(super) fn of_sampling_threads(&self) -> Arc<PoolTrace> {
        Arc::clone(&self.sampling)
    }

    /// Writes `trace/worker-N.json`, and beside it the table of times and the work by step. `sent` is what this process has sent, by rank;
    /// `meter` is that of training.
    pub(super) fn write(
        &self,
        timely: &Worker,
        placement: Placement,
        run_dir: &Path,
        sent: Vec<SentTo>,
        meter: &Meter,
    ) -> Result<(), Error> {
        worker::flush(timely);
        let folder = TraceTable::folder(run_dir);
        std::fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        self.work(meter).write(run_dir, self.rank)?;
        let (dataflow, causes, permits) = (self.dataflow.borrow(), self.causes.borrow(), self.permits.borrow());
        let (compute, sampling) = (self.compute.jobs(), self.sampling.threads());
        let records = Records {
            seconds: self.started.elapsed().as_secs_f64(),
            dataflow: &dataflow,
            causes: &causes,
            placement,
            compute: &compute.spans,
            sampling: &sampling,
            jobs_waiting: &compute.waiting,
            permits: &permits,
        };
        let groups = [&self.worker, self.compute.group(), self.sampling.group()];
        records.table(groups, sent).write(run_dir, self.rank)?;
        let path = folder.join(format!("worker-{}.json", self.rank));
        let file = BufWriter::new(std::fs::File::create(&path).map_err(Error::io("create", &path))?);
        ChromeTrace::begin(file, self.rank, self.since_epoch())
            .and_then(|file| records.write_events(file))
            .map_err(Error::io("write", &path))
    }

    /// Returns the zero of all times, since the Unix epoch.
    fn since_epoch(&self) -> Duration {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.saturating_sub(self.zero.elapsed())
    }
}
