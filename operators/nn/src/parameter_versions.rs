//! The parameter service: parameters by version, at every worker (weight stashing, Dorylus, section 5.1).
//!
//! A version is the parameters after the optimizer step of an epoch. Every worker is a server with the latest version.
//! The ordered gradient sum at the end of an epoch is equal everywhere, and so is the step, which replaces a broadcast.
//! In its forward pass, an interval takes the latest version for each task. It uses the same version in the backward
//! pass of the task, however many steps were applied in between. At the interval's first task, the least loaded server
//! is chosen for tensor workers to read from, and kept until the interval finishes the epoch.
//!
//! The stash is small. If no interval is more than S epochs ahead of another, only the last S + 1 versions can be
//! requested, since a gradient sum needs every interval. These are kept, and all that this worker's intervals use.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The source of an interval's parameters in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParameterVersion {
    /// The number, counted from the first version of the run. Equal numbers mean equal parameters at every worker.
    pub version: u64,
    /// The worker that tensor workers request the version from.
    pub server: usize,
}

/// One worker's part of the service. All methods may be called from any thread.
pub struct ParameterVersions {
    me: usize,
    /// The number of latest versions that are kept even without users.
    window: u64,
    state: Mutex<State>,
    published: Condvar,
}

#[derive(Default)]
struct State {
    versions: BTreeMap<u64, Stash>,
    latest: u64,
    /// By interval and epoch.
    chosen: HashMap<(u32, u32), IntervalChoice>,
    /// Calls in flight, by server.
    loads: Vec<u64>,
}

/// The choices of an interval in an epoch.
struct IntervalChoice {
    server: usize,
    /// By task.
    versions: BTreeMap<usize, u64>,
}

struct Stash {
    flat: Arc<Vec<f32>>,
    /// The number of tasks of this worker's intervals that use the version.
    users: usize,
}

impl ParameterVersions {
    /// The service of worker `me` of `workers`, where intervals may be `staleness` epochs ahead of one another.
    pub fn new(me: usize, workers: usize, staleness: usize) -> Self {
        let state = State { loads: vec![0; workers], ..State::default() };
        Self { me, window: staleness as u64 + 1, state: Mutex::new(state), published: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes `flat` as the latest version and returns its number.
    pub fn publish(&self, flat: &[f32]) -> u64 {
        let mut state = self.state();
        state.latest += 1;
        let latest = state.latest;
        state.versions.insert(latest, Stash { flat: Arc::new(flat.to_vec()), users: 0 });
        state.drop_unreachable(self.window);
        self.published.notify_all();
        latest
    }

    /// Returns the latest version, served by this worker.
    pub fn latest(&self) -> ParameterVersion {
        ParameterVersion { version: self.state().latest, server: self.me }
    }

    /// Returns an interval's version for a task of an epoch: the latest one at the first call for this task. The first
    /// call of the epoch chooses the server: the one with the fewest calls; among equals, the next one from this worker
    /// on.
    pub fn choose(&self, interval: u32, epoch: u32, task: usize) -> ParameterVersion {
        let mut guard = self.state();
        let State { versions, latest, chosen, loads } = &mut *guard;
        let workers = loads.len();
        let lightest = || {
            let from_here = (0..workers).map(|step| (self.me + step) % workers);
            from_here.min_by_key(|&server| loads[server]).unwrap_or(self.me)
        };
        let chosen = chosen.entry((interval, epoch));
        let chosen = chosen.or_insert_with(|| IntervalChoice { server: lightest(), versions: BTreeMap::new() });
        let version = *chosen.versions.entry(task).or_insert_with(|| {
            if let Some(stash) = versions.get_mut(latest) {
                stash.users += 1;
            }
            *latest
        });
        ParameterVersion { version, server: chosen.server }
    }

    /// Releases the versions of an interval that has finished an epoch.
    pub fn release(&self, interval: u32, epoch: u32) {
        let mut state = self.state();
        let Some(chosen) = state.chosen.remove(&(interval, epoch)) else { return };
        for version in chosen.versions.values() {
            if let Some(stash) = state.versions.get_mut(version) {
                stash.users -= 1;
            }
        }
        state.drop_unreachable(self.window);
    }

    /// Returns the parameters of a version. Waits up to `limit` until the version is published. Returns `None` if it is
    /// not published in time or was dropped.
    pub fn get(&self, version: u64, limit: Duration) -> Option<Arc<Vec<f32>>> {
        let deadline = Instant::now() + limit;
        let mut state = self.state();
        while state.latest < version {
            let left = deadline.checked_duration_since(Instant::now())?;
            state = self.published.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.versions.get(&version).map(|stash| Arc::clone(&stash.flat))
    }

    /// Counts a call to `server` as begun.
    pub fn call_begins(&self, server: usize) {
        self.state().loads[server] += 1;
    }

    /// Counts a call to `server` as ended.
    pub fn call_ends(&self, server: usize) {
        self.state().loads[server] -= 1;
    }
}

impl State {
    /// Drops the versions that can no longer be requested.
    fn drop_unreachable(&mut self, window: u64) {
        let latest = self.latest;
        self.versions.retain(|&version, stash| stash.users > 0 || version + window > latest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn choose_keeps_the_version_of_an_interval_until_release() {
        let service = ParameterVersions::new(0, 1, 1);
        service.publish(&[1.0]);
        let first = service.choose(7, 0, 0);
        service.publish(&[2.0]);
        service.publish(&[3.0]);
        service.publish(&[4.0]);
        assert_eq!(service.choose(7, 0, 0), first);
        assert_eq!(*service.get(first.version, NOW).unwrap(), [1.0]);
        assert_eq!(service.choose(7, 1, 0).version, 4);
        assert_eq!(service.choose(7, 0, 1).version, 4, "another task takes the latest version");
        // No interval uses version 2, and it is outside the window. Version 3 is inside the window.
        assert!(service.get(2, NOW).is_none() && service.get(3, NOW).is_some());
        service.release(7, 0);
        assert!(service.get(first.version, NOW).is_none());
    }

    #[test]
    fn choose_takes_the_least_loaded_server_and_keeps_it() {
        let service = ParameterVersions::new(1, 3, 0);
        service.publish(&[0.0]);
        assert_eq!(service.choose(0, 0, 0).server, 1);
        service.call_begins(1);
        assert_eq!(service.choose(0, 0, 0).server, 1, "the server is kept");
        assert_eq!(service.choose(1, 0, 0).server, 2);
        service.call_begins(2);
        assert_eq!(service.choose(2, 0, 0).server, 0);
        service.call_begins(0);
        service.call_ends(1);
        assert_eq!(service.choose(3, 0, 0).server, 1);
        assert_eq!(service.latest().server, 1);
    }

    #[test]
    fn get_waits_for_a_version_up_to_the_limit() {
        let service = Arc::new(ParameterVersions::new(0, 1, 0));
        assert!(service.get(1, Duration::from_millis(5)).is_none());
        let late = Arc::clone(&service);
        let thread = std::thread::spawn(move || late.get(1, Duration::from_secs(30)));
        service.publish(&[0.5]);
        assert_eq!(*thread.join().unwrap().unwrap(), [0.5]);
    }
}
