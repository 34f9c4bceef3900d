//! CPU time of threads, and their waiting for disks.

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
    disk: Disk,
}

/// Waiting of a thread for disks.
#[derive(Clone, Copy, Debug, Default)]
struct Disk {
    page_faults: u64,
    /// Stays 0 where the system does not measure it.
    waiting: Duration,
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
        members.ended.disk.page_faults
            + members.running.iter().map(|member| member.since_entry().disk.page_faults).sum::<u64>()
    }

    /// Returns how long threads waited for disks; `None` where the system does not measure it (`sysctl kernel.task_delayacct`).
    pub fn disk_waiting(&self) -> Option<Duration> {
        let measured = std::fs::read("/proc/sys/kernel/task_delayacct").is_ok_and(|on| on.starts_with(b"1"));
        let members = self.members();
        let running = members.running.iter().map(|member| member.since_entry().disk.waiting);
        measured.then(|| members.ended.disk.waiting + running.sum::<Duration>())
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut members = self.group.members();
        if let Some(at) = members.running.iter().position(|member| member.clock == self.clock) {
            let Usage { cpu, disk: Disk { page_faults, waiting } } = members.running.swap_remove(at).since_entry();
            members.ended.cpu += cpu;
            members.ended.disk.page_faults += page_faults;
            members.ended.disk.waiting += waiting;
        }
    }
}

impl Member {
    fn usage(&self) -> Usage {
        Usage { cpu: read_clock(self.clock), disk: disk(&self.folder) }
    }

    fn since_entry(&self) -> Usage {
        let (Usage { cpu, disk }, before) = (self.usage(), self.before);
        Usage {
            cpu: cpu.saturating_sub(before.cpu),
            disk: Disk {
                page_faults: disk.page_faults.saturating_sub(before.disk.page_faults),
                waiting: disk.waiting.saturating_sub(before.disk.waiting),
            },
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

/// Returns the waiting of the thread with this folder.
fn disk(folder: &Path) -> Disk {
    let stat = std::fs::read_to_string(folder.join("stat")).unwrap_or_default();
    // The name of the thread, in parentheses, may have spaces. Numbers are those after it: see `man 5 proc_pid_stat`.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let field = |number: usize| fields.split_whitespace().nth(number - 3).and_then(|text| text.parse::<u64>().ok());
    let ticks = field(42).unwrap_or(0);
    Disk { page_faults: field(12).unwrap_or(0), waiting: Duration::from_millis(10 * ticks) }
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
