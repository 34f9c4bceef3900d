//! CPU time and page faults of threads.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Threads whose CPU time and page faults count together. Clones are the same group.
///
/// ```
/// use gnnflow_dataflow::trace::thread_group::ThreadGroup;
///
/// let group = ThreadGroup::default();
/// group.enter();
/// let before = group.cpu();
/// assert!((0..1_000_000u64).map(std::hint::black_box).sum::<u64>() > 0);
/// assert!(group.cpu() > before);
/// assert_eq!(group.threads(), 1);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ThreadGroup(Arc<Mutex<Members>>);

#[derive(Debug, Default)]
struct Members {
    running: Vec<Member>,
    /// Of members that have ended.
    ended: Usage,
}

#[derive(Debug)]
struct Member {
    clock: libc::clockid_t,
    /// The folder of the thread in `/proc`.
    folder: PathBuf,
    /// Before the thread entered the group.
    before: Usage,
}

#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    cpu: Duration,
    page_faults: u64,
}

/// The membership of a thread, which ends with the thread.
struct Membership {
    group: ThreadGroup,
    clock: libc::clockid_t,
}

thread_local! {
    static MEMBERSHIPS: RefCell<Vec<Membership>> = const { RefCell::new(Vec::new()) };
}

impl ThreadGroup {
    /// Adds the calling thread. Its use counts from now on until it ends.
    pub fn enter(&self) {
        let Some(clock) = clock_of_this_thread() else { return };
        let link = std::fs::read_link("/proc/thread-self").unwrap_or_default();
        let mut member = Member { clock, folder: Path::new("/proc").join(link), before: Usage::default() };
        member.before = member.usage();
        self.members().running.push(member);
        MEMBERSHIPS.with_borrow_mut(|memberships| memberships.push(Membership { group: self.clone(), clock }));
    }

    /// Returns the number of threads that are running.
    pub fn threads(&self) -> usize {
        self.members().running.len()
    }

    /// Returns the CPU time of all threads.
    pub fn cpu(&self) -> Duration {
        let members = self.members();
        let running = members.running.iter().map(|member| read_clock(member.clock).saturating_sub(member.before.cpu));
        members.ended.cpu + running.sum::<Duration>()
    }

    /// Returns how often a thread waited for a page from disk ("major faults"); 0 where the system does not report it.
    pub fn page_faults(&self) -> u64 {
        let members = self.members();
        members.ended.page_faults + members.running.iter().map(|member| member.since_entry().page_faults).sum::<u64>()
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut members = self.group.members();
        if let Some(at) = members.running.iter().position(|member| member.clock == self.clock) {
            let Usage { cpu, page_faults } = members.running.swap_remove(at).since_entry();
            members.ended.cpu += cpu;
            members.ended.page_faults += page_faults;
        }
    }
}

impl Member {
    fn usage(&self) -> Usage {
        Usage { cpu: read_clock(self.clock), page_faults: page_faults(&self.folder) }
    }

    fn since_entry(&self) -> Usage {
        let Usage { cpu, page_faults } = self.usage();
        Usage {
            cpu: cpu.saturating_sub(self.before.cpu),
            page_faults: page_faults.saturating_sub(self.before.page_faults),
        }
    }
}

/// Returns the CPU time of the calling thread.
pub fn cpu_of_this_thread() -> Duration {
    read_clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the number of the clock of the calling thread. Other threads can read it.
fn clock_of_this_thread() -> Option<libc::clockid_t> {
    let mut clock = MaybeUninit::uninit();
    // SAFETY: the calling thread exists, and the clock's number is written if and only if the result is 0.
    unsafe { (libc::pthread_getcpuclockid(libc::pthread_self(), clock.as_mut_ptr()) == 0).then(|| clock.assume_init()) }
}

/// Returns the time of a clock; 0 if its thread has ended.
fn read_clock(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable. A clock that no longer exists is an error, which leaves the zeros.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the major faults of the thread with this folder.
fn page_faults(folder: &Path) -> u64 {
    let stat = std::fs::read_to_string(folder.join("stat")).unwrap_or_default();
    // The name of the thread, in parentheses, may have spaces. The number is the tenth after it: see `man 5 proc_pid_stat`.
    let faults = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().nth(9));
    faults.and_then(|faults| faults.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_have_ended_count() {
        let (group, spent) = (ThreadGroup::default(), Duration::from_millis(5));
        for _ in 0..2 {
            let group = group.clone();
            let work = move || {
                group.enter();
                let start = cpu_of_this_thread();
                while cpu_of_this_thread() < start + spent {}
            };
            std::thread::spawn(work).join().unwrap();
        }
        assert_eq!(group.threads(), 0);
        assert!((2 * spent..40 * spent).contains(&group.cpu()), "{:?}", group.cpu());
    }
}
