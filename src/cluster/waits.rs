//! What a worker waits for, printed when its run is stalled.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gnnflow_dataflow::time;

use super::duration::seconds;
use crate::stderr::{Level, print};

/// Maximum time for the worker's thread to describe what its operators wait for.
const LIMIT: Duration = Duration::from_millis(500);
/// Maximum lines about operators.
const MAX_LINES: usize = 20;

/// What the operators of a worker wait for, and the jobs of its other threads.
#[derive(Debug, Default)]
pub(super) struct Waits {
    wanted: AtomicBool,
    of_operators: Mutex<Option<Vec<String>>>,
    described: Condvar,
    printed: Mutex<bool>,
    /// The jobs that run now, by the number of their thread. Thread 0 is the compute thread.
    jobs: Mutex<BTreeMap<usize, Job>>,
}

#[derive(Debug)]
struct Job {
    name: Arc<str>,
    time: Option<u64>,
    since: Instant,
}

impl Waits {
    /// Returns whether [`Waits::set`] is to be called.
    pub(super) fn wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Sets what the operators wait for, one line for each operator and time.
    pub(super) fn set(&self, lines: Vec<String>) {
        self.wanted.store(false, Ordering::Relaxed);
        *lock(&self.of_operators) = Some(lines);
        self.described.notify_all();
    }

    pub(super) fn begin_job(&self, thread: usize, name: &Arc<str>, time: Option<u64>) {
        lock(&self.jobs).insert(thread, Job { name: Arc::clone(name), time, since: Instant::now() });
    }

    pub(super) fn end_job(&self, thread: usize) {
        lock(&self.jobs).remove(&thread);
    }

    /// Prints once, before the error and also with --quiet, what the worker of rank `rank` waits for. Other callers wait until it is printed.
    pub(super) fn print_once(&self, rank: usize, label: &str) {
        let mut printed = lock(&self.printed);
        if !std::mem::replace(&mut *printed, true) {
            for line in self.describe(label) {
                print(Level::Warning, &format!("rank {rank}: {line}"));
            }
        }
    }

    /// Describes what the worker waits for. Waits a moment for the worker's thread, whose last long work was `label`.
    fn describe(&self, label: &str) -> Vec<String> {
        self.wanted.store(true, Ordering::Relaxed);
        let lines = lock(&self.of_operators);
        let (mut lines, _) = self
            .described
            .wait_timeout_while(lines, LIMIT, |lines| lines.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        let mut all = match lines.take() {
            Some(lines) if lines.is_empty() => vec!["nothing is known to hold items".to_owned()],
            Some(lines) if lines.len() > MAX_LINES => {
                let more = format!("{} more operators and times", lines.len() - MAX_LINES);
                lines.into_iter().take(MAX_LINES).chain([more]).collect()
            }
            Some(lines) => lines,
            None if label.is_empty() => vec!["the loop of its worker stands still".to_owned()],
            None => vec![format!("the loop of its worker stands still, after \"{label}\"")],
        };
        all.extend(lock(&self.jobs).iter().map(|(thread, Job { name, time, since })| {
            let thread = if *thread == 0 { "the compute thread".to_owned() } else { format!("job thread {thread}") };
            let at = time.map_or(String::new(), |time| format!(" at time {}", time::text(time)));
            format!("{thread} has been in \"{name}\"{at} for {}", seconds(since.elapsed()))
        }));
        all
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_has_operators_and_jobs() {
        let waits = Arc::new(Waits::default());
        assert_eq!(waits.describe(""), ["the loop of its worker stands still"]);
        assert_eq!(waits.describe("inference"), ["the loop of its worker stands still, after \"inference\""]);
        let worker = Arc::clone(&waits);
        let thread = std::thread::spawn(move || {
            for lines in [vec![], vec!["gate".to_owned()], vec!["gate".to_owned(); 25]] {
                while !worker.wanted() {
                    std::thread::yield_now();
                }
                worker.set(lines);
            }
        });
        assert_eq!(waits.describe(""), ["nothing is known to hold items"]);
        waits.begin_job(0, &"forward".into(), Some(time::at(3, 17)));
        waits.begin_job(2, &"stage".into(), None);
        waits.end_job(2);
        let lines = waits.describe("");
        assert_eq!((lines.len(), lines[0].as_str()), (2, "gate"));
        assert!(
            lines[1].starts_with("the compute thread has been in \"forward\" at time (3, 17) for "),
            "{}",
            lines[1]
        );
        let lines = waits.describe("");
        assert_eq!((lines.len(), lines[20].as_str()), (22, "5 more operators and times"));
        thread.join().unwrap();
    }
}
