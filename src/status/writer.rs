//! Writes `status.json` while a run goes on, in the process that has the run folder.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gnnflow_data::fs::{remove, replace};
use gnnflow_pipelines::Error as PipelineError;

use super::activity::{Activity, Now};
use super::memory::MemorySampler;
use super::reporter::Reporter;
use super::run_status::{ReceivedStatus, RunStatus, SCHEMA, State, since_1970};
use crate::cluster::{ClusterError, Statuses};
use crate::error::Error;

/// Time between two writes.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time after which the end of a run no longer waits for the thread that writes.
const END: Duration = Duration::from_secs(5);
/// Maximum characters of an error in the file.
const ERROR: usize = 4096;

/// Writes the status of a run every second, and its end.
pub(crate) struct StatusWriter {
    shared: Arc<Shared>,
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

/// How a run has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End<'a> {
    /// With results.
    Finished,
    /// The child processes, of which one wrote the status, have ended with this code.
    Children(u8),
    /// With an error.
    Failed(&'a Error),
}

struct Shared {
    run_dir: PathBuf,
    name: String,
    began: f64,
    activity: Activity,
    source: Mutex<Source>,
    /// Held while the file is written.
    written: Mutex<Written>,
    /// The last status, for metrics.
    last: Mutex<Option<RunStatus>>,
    /// Whether child processes run, of which one writes the status.
    left_to_children: AtomicBool,
    has_warned: AtomicBool,
}

/// Where statuses of processes come from.
struct Source {
    own: Arc<Reporter>,
    others: Arc<Statuses>,
    processes: usize,
}

#[derive(Default)]
struct Written {
    /// The file before this run: `None` until this run has written it, then its content, if it existed.
    earlier: Option<Option<Vec<u8>>>,
    memory: MemorySampler,
}

impl StatusWriter {
    /// Starts to write the status of the run `name` in `run_dir`, which exists. `own` reports for this process until it is connected.
    ///
    /// # Errors
    /// If the system has no threads left.
    pub(crate) fn start(run_dir: &Path, name: &str, activity: &Activity, own: Reporter) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            run_dir: run_dir.to_owned(),
            name: name.to_owned(),
            began: since_1970(),
            activity: activity.clone(),
            source: Mutex::new(Source { own: Arc::new(own), others: Arc::default(), processes: 1 }),
            written: Mutex::default(),
            last: Mutex::default(),
            left_to_children: AtomicBool::new(false),
            has_warned: AtomicBool::new(false),
        });
        let (stop, stopped) = channel();
        let writer = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("status".into())
            .spawn(move || {
                while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(INTERVAL) {
                    writer.write(State::Running, None);
                }
            })
            .map_err(ClusterError::no_thread)?;
        Ok(Self { shared, stop, thread })
    }

    /// Takes the statuses of all `processes` from here on.
    pub(crate) fn connected(&self, own: Arc<Reporter>, others: Arc<Statuses>, processes: usize) {
        *self.shared.source.lock().unwrap_or_else(PoisonError::into_inner) = Source { own, others, processes };
    }

    /// Returns a function that returns the last status, or makes the first one.
    pub(crate) fn last(&self) -> impl Fn() -> RunStatus + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move || {
            let last = shared.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
            last.unwrap_or_else(|| shared.status(State::Running, None))
        }
    }

    /// Writes no more: a child process does.
    pub(crate) fn leave_to_children(&self) {
        let mut written = self.shared.written.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.keep_earlier(&mut written);
        self.shared.left_to_children.store(true, Ordering::Relaxed);
    }

    /// Writes the end of the run. A run that was refused before its work began leaves the file as it was before. Waits at most [`END`] for the thread that
    /// writes.
    pub(crate) fn end(self, end: End<'_>) {
        let Self { shared, stop, thread } = self;
        drop(stop);
        let begin = Instant::now();
        while !thread.is_finished() {
            if begin.elapsed() > END {
                // It may hold the lock of the file.
                tracing::warn!(
                    "the last status is not written: the thread that writes it stands still; check the file system of {}, whose status.json is older \
                     than the run",
                    shared.run_dir.display()
                );
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // A panic of the thread is reported by its hook.
        let _ = thread.join();
        match end {
            End::Finished => shared.write(State::Finished, None),
            End::Failed(error) if shared.activity.now().is_under_way => {
                shared.write(State::Failed, Some(error.to_string()));
            }
            End::Failed(_) => shared.restore(),
            End::Children(code) => shared.children_ended(code),
        }
    }
}

impl Shared {
    fn write(&self, state: State, error: Option<String>) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if self.left_to_children.load(Ordering::Relaxed) {
            return;
        }
        self.keep_earlier(&mut written);
        let mut status = self.status(state, error);
        let memory = status.statuses.iter().map(|of| (of.status.rank, of.status.memory));
        written.memory.add(status.updated - status.began, memory);
        status.memory = (state != State::Running).then(|| written.memory.samples().clone());
        self.warn_of(status.write(&self.run_dir));
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
    }

    /// Keeps the file before this run, the first time.
    fn keep_earlier(&self, written: &mut Written) {
        written.earlier.get_or_insert_with(|| std::fs::read(self.run_dir.join(RunStatus::FILE)).ok());
    }

    /// Warns of the first error. The run goes on without a status.
    fn warn_of(&self, result: Result<(), PipelineError>) {
        if let Err(error) = result
            && !self.has_warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!("{error}; `gnnflow top` does not show the run");
        }
    }

    fn status(&self, state: State, error: Option<String>) -> RunStatus {
        let source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        let own = ReceivedStatus { age_seconds: 0.0, status: source.own.status() };
        let others = source.others.others().into_iter();
        let others = others.map(|(age, status)| ReceivedStatus { age_seconds: age.as_secs_f64(), status });
        let now = self.activity.now();
        let remaining_seconds = now.remaining().filter(|_| state == State::Running);
        let Now { stage, last_epoch, training, .. } = now;
        RunStatus {
            schema: SCHEMA,
            name: self.name.clone(),
            state,
            error: error.map(|error| error.chars().take(ERROR).collect()),
            began: self.began,
            updated: since_1970(),
            stage,
            epochs: training.epochs,
            last_epoch,
            remaining_seconds,
            processes: source.processes,
            statuses: std::iter::once(own).chain(others).collect(),
            memory: None,
        }
    }

    /// Writes the content that the file had before the run, or removes it.
    fn restore(&self) {
        let Some(earlier) = self.written.lock().unwrap_or_else(PoisonError::into_inner).earlier.take() else { return };
        let path = self.run_dir.join(RunStatus::FILE);
        let restored = match earlier {
            Some(text) => replace(&path, &text),
            None => remove(&path),
        };
        self.warn_of(restored.map_err(PipelineError::io("restore", &path)));
    }

    /// Completes the status that a child process has written, if it was killed.
    fn children_ended(&self, code: u8) {
        let Ok(left) = RunStatus::read(&self.run_dir) else { return };
        if code == 0 || left.state != State::Running || left.began < self.began {
            return;
        }
        if left.stage.is_before_work() {
            return self.restore();
        }
        let error = Some(format!("the processes have ended with exit code {code}"));
        self.warn_of(RunStatus { state: State::Failed, error, updated: since_1970(), ..left }.write(&self.run_dir));
    }
}
