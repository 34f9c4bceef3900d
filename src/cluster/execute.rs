//! Runs one timely worker per process. A failure ends with its first cause, not with timely's subsequent panics.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use gnnflow_data::error::FEWER_THREADS;
use timely::WorkerConfig;
use timely::communication::allocator::zero_copy::initialize::initialize_networking_from_sockets;
use timely::communication::allocator::{AllocatorBuilder, ProcessBuilder};
use timely::communication::initialize::WorkerGuards;
use timely::communication::{Config, Hooks};
use timely::worker::Worker;

use super::busy_watch::BusyWatch;
use super::duration::seconds;
use super::liveness::ProgressClock;
use super::signals::{self, Signals};
use super::{ClusterError, Failure, Membership, hook};
use crate::stderr::{Level, print};

/// Time between two checks for a cause.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// After a longer time between two checks, this process was stopped meanwhile, and progress is waited for anew.
const MOST_BETWEEN_CHECKS: Duration = Duration::from_secs(1);
/// Maximum time for the worker of a single process to end after a failure.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum time for a failed process of several to exit after [`execute`] has returned. It is ended then.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs `f` on this process's timely worker, together with all other members, and returns its result.
///
/// `f` returns when its part of the work is done. `execute` returns when all dataflows are complete in all processes. In `f`, call
/// [`Liveness::turned`](super::Liveness::turned) at every turn of the loop and [`Liveness::progressed`](super::Liveness::progressed) for
/// completed work, and call `step_or_park` always with a timeout.
///
/// After an error in a run of several processes, threads of timely may hang forever. The caller prints `error: {the error}` and exits
/// with [`ClusterError::exit_code`]; otherwise, the process is ended after ten seconds.
///
/// # Errors
/// The first cause, in all processes: [`ClusterError::Own`] where `f` failed, and [`ClusterError::Peer`] elsewhere;
/// [`ClusterError::Bug`] for a panic; [`ClusterError::Lost`] for a lost peer; [`ClusterError::Interrupted`] for SIGINT and SIGTERM.
pub fn execute<T, E, F>(mut membership: Membership, f: F) -> Result<T, ClusterError>
where
    T: Send + 'static,
    E: Into<Failure>,
    F: Fn(&mut Worker) -> Result<T, E> + Send + Sync + 'static,
{
    let first_failure = membership.first_failure.clone();
    hook::post_panics_to(&first_failure);
    // With several processes the monitor watches the signals.
    let signals = membership.control.is_none().then(Signals::catch);
    let guards = start(&mut membership, f)?;
    let (liveness, mut progress, mut busy) = (membership.liveness(), ProgressClock::start(), BusyWatch::start());
    let mut last_check = Instant::now();

    let (sender, results) = channel();
    let joiner = std::thread::Builder::new().name("cluster:join".into()).spawn(move || {
        // The drop of the network threads' guard panics if one of them has panicked. The hook ignores that.
        let joined = catch_unwind(AssertUnwindSafe(|| guards.join()));
        let _ = sender.send(joined.ok().and_then(|mut results| results.pop()));
    });
    joiner.map_err(|e| fail(&membership, ClusterError::no_thread(e)))?;

    let mut failed_at = None;
    loop {
        match results.recv_timeout(POLL_INTERVAL) {
            Ok(Some(Ok(Some(value)))) => {
                // The work was done before the signal could end it.
                if let (None, Some(cause @ ClusterError::Interrupted(_))) = (&membership.control, first_failure.cause())
                {
                    return Err(fail(&membership, cause));
                }
                if let Some(control) = membership.control.take() {
                    control.send_goodbye();
                }
                return Ok(value);
            }
            Ok(other) => return Err(ended_without_result(&membership, other.and_then(Result::err))),
            Err(RecvTimeoutError::Disconnected) => return Err(ended_without_result(&membership, None)),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Some(signal) =
            signals.as_ref().and_then(Signals::caught).filter(|&signal| !liveness.defers(signals::name(signal), 0))
        {
            first_failure.post(ClusterError::Interrupted(signals::name(signal)));
        }
        // With several processes the monitor watches their progress together.
        if membership.control.is_none() {
            // This process may have been stopped.
            if last_check.elapsed() > MOST_BETWEEN_CHECKS {
                progress.restart();
            }
            last_check = Instant::now();
            progress.update(liveness.completed(), liveness.phase());
            if progress.idle() > membership.stall_timeout {
                liveness.print_waits(0);
                first_failure.post(ClusterError::Stalled { after: seconds(membership.stall_timeout) });
            } else if let Some(stuck) = busy.check(&liveness, membership.stall_timeout) {
                first_failure.post(stuck);
            }
        }
        if let Some(cause) = first_failure.cause() {
            // The worker of a single process can end after its failure. Any other worker may hang forever.
            let since = *failed_at.get_or_insert_with(Instant::now);
            if membership.control.is_some() || since.elapsed() > SHUTDOWN_TIMEOUT {
                return Err(fail(&membership, cause));
            }
        }
    }
}

/// Starts timely on the membership's sockets.
fn start<T, E, F>(membership: &mut Membership, f: F) -> Result<WorkerGuards<Option<T>>, ClusterError>
where
    T: Send + 'static,
    E: Into<Failure>,
    F: Fn(&mut Worker) -> Result<T, E> + Send + Sync + 'static,
{
    let single = membership.control.is_none();
    let failed = |problem: String| ClusterError::System {
        what: "start the dataflow".into(),
        problem: format!("{problem}; {FEWER_THREADS}"),
    };
    let (builders, guard) = if single {
        Config::Thread.try_build().map_err(failed)?
    } else {
        let hooks = Hooks::default();
        let local = ProcessBuilder::new_typed_vector(1, hooks.refill.clone(), None);
        let links = std::mem::take(&mut membership.links);
        let (builders, guard) = initialize_networking_from_sockets(local, links, membership.rank(), 1, hooks)
            .map_err(|e| fail(membership, ClusterError::no_thread(e)))?;
        (builders.into_iter().map(AllocatorBuilder::Tcp).collect(), Box::new(guard) as Box<dyn Any + Send>)
    };
    let (first_failure, liveness) = (membership.first_failure.clone(), membership.liveness());
    let work = move |worker: &mut Worker| {
        liveness.begin();
        let result = f(worker);
        liveness.finish();
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                first_failure.post(ClusterError::Own(error.into()));
                abandon(worker, single)
            }
        }
    };
    let started = Arc::new(AtomicBool::new(false));
    let guard = Box::new(NetworkGuard { guard: Some(guard), started: started.clone() });
    let guards = timely::execute::execute_from(builders, guard, WorkerConfig::default(), work)
        .map_err(|problem| fail(membership, failed(problem)))?;
    started.store(true, Ordering::Relaxed);
    Ok(guards)
}

/// The guard of timely's network threads, which timely joins after the worker.
struct NetworkGuard {
    guard: Option<Box<dyn Any + Send>>,
    /// Whether the worker has been started. Without one, the network threads wait forever and must not be joined.
    started: Arc<AtomicBool>,
}

impl Drop for NetworkGuard {
    fn drop(&mut self) {
        if !self.started.load(Ordering::Relaxed) {
            std::mem::forget(self.guard.take());
        }
    }
}

/// Keeps a failed worker from completing its dataflows.
fn abandon<T>(worker: &mut Worker, single: bool) -> Option<T> {
    if single {
        for dataflow in worker.installed_dataflows() {
            worker.drop_dataflow(dataflow);
        }
        return None;
    }
    // A return would complete this worker's dataflows for its peers. The waiting thread ends the process.
    loop {
        std::thread::park();
    }
}

/// Returns the cause after the worker has ended without a result. Waits for it if there is only a suspicion.
fn ended_without_result(membership: &Membership, panic: Option<String>) -> ClusterError {
    if let Some(control) = &membership.control {
        // The monitor turns a suspicion into a cause after a timeout.
        while membership.first_failure.is_failing() {
            if let Some(cause) = membership.first_failure.wait(Duration::from_millis(100)) {
                let first = control.fail(cause);
                return exit_later(first);
            }
        }
    }
    let unknown = ClusterError::Bug {
        message: panic.unwrap_or_else(|| "the worker ended without a result".into()),
        thread: "timely:work-0".into(),
        location: "unknown location".into(),
    };
    fail(membership, unknown)
}

/// Posts a cause, waits until the first one has been sent to the peers, and returns that.
fn fail(membership: &Membership, cause: ClusterError) -> ClusterError {
    match &membership.control {
        Some(control) => exit_later(control.fail(cause)),
        None => {
            membership.first_failure.post(cause.clone());
            membership.first_failure.report().unwrap_or(cause)
        }
    }
}

/// Starts a thread that ends the process after [`EXIT_TIMEOUT`], even if the caller hangs. Returns the cause.
fn exit_later(cause: ClusterError) -> ClusterError {
    let code = i32::from(cause.exit_code());
    let thread = std::thread::Builder::new().name("cluster:exit".into()).spawn(move || {
        std::thread::sleep(EXIT_TIMEOUT);
        std::process::exit(code);
    });
    if thread.is_err() {
        // Without the thread, this ends the process immediately, as the caller would.
        print(Level::Error, &cause.to_string());
        std::process::exit(code);
    }
    cause
}

#[cfg(test)]
mod tests {
    use super::*;
    use timely::dataflow::operators::{Inspect, ToStream};

    #[test]
    fn one_process_returns_its_result() {
        let sum = execute(Membership::single(Duration::from_secs(60)), |worker| {
            let sum = std::rc::Rc::new(std::cell::Cell::new(0));
            let inner = sum.clone();
            worker.dataflow::<u64, _, _>(|scope| {
                (0..10u64).to_stream(scope).container::<Vec<_>>().inspect(move |x| inner.set(inner.get() + x));
            });
            while worker.step() {}
            Ok::<_, Failure>(sum.get())
        });
        assert_eq!(sum, Ok(45));
    }

    #[test]
    fn one_process_returns_its_error_even_with_an_open_dataflow() {
        let result = execute(Membership::single(Duration::from_secs(60)), |worker| {
            let mut input =
                timely::dataflow::InputHandle::<u64, timely::container::CapacityContainerBuilder<Vec<u64>>>::new();
            worker.dataflow(|scope| {
                use timely::dataflow::operators::Input;
                scope.input_from(&mut input).inspect(|_| ());
            });
            // The input remains open.
            std::mem::forget(input);
            Err::<(), _>(Failure::new(3, "label out of range"))
        });
        assert_eq!(result, Err(ClusterError::Own(Failure::new(3, "label out of range"))));
    }
}
