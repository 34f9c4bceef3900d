//! Lost processes of an elastic run: they are started again, for as long as rank 0 runs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use super::start::{Started, Starter};
use crate::cluster::{ChildGroup, ClusterError, Ending, Failure, Losses, print_line};

/// Time between the first end of a process and its next start. If rank 0 ends as well, which the run needs, there is none. It doubles until the process takes part
/// in the run.
const FIRST_DELAY: Duration = Duration::from_secs(2);
/// Maximum time between an end and the next start.
const LONGEST_DELAY: Duration = Duration::from_secs(60);
/// Maximum number of lines about one loss, which have different causes.
const MAX_LINES: usize = 8;

/// Starts lost processes again.
pub(super) struct Replacing {
    starter: Arc<Starter>,
    /// The other ranks, from 1.
    ranks: Vec<Rank>,
    /// Whether the run has begun. Until then, every failure ends all processes.
    begun: bool,
    /// The exit code of rank 0, if it has ended.
    first: Option<u8>,
}

struct Rank {
    rank: usize,
    state: State,
    /// Whether the run has begun with the process.
    joined: Arc<AtomicBool>,
    /// How often the process has ended, or could not be started, since it took part.
    failures: u32,
    /// The lines about that.
    printed: BTreeSet<String>,
    /// Whether the last try to connect with the host has failed.
    unreachable: bool,
}

enum State {
    /// The process runs, or has ended and is not started again.
    Started,
    /// The next start is at this time. With the end of the process, and without one if it could not be started.
    Waits(Instant, Option<Ending>),
    /// A thread connects with the host.
    Connects(Receiver<Result<(), Failure>>),
}

impl Replacing {
    /// Replaces the processes of all ranks above 0. `joined` has the flags of all ranks.
    pub(super) fn new(starter: Arc<Starter>, joined: Vec<Arc<AtomicBool>>) -> Self {
        let rank = |(rank, joined)| Rank {
            rank,
            state: State::Started,
            joined,
            failures: 0,
            printed: BTreeSet::new(),
            unreachable: false,
        };
        let ranks = joined.into_iter().enumerate().skip(1).map(rank).collect();
        Self { starter, ranks, begun: false, first: None }
    }

    fn has_begun(&mut self) -> bool {
        self.begun |= self.ranks.iter().any(|rank| rank.joined.load(Ordering::Relaxed));
        self.begun
    }
}

impl Losses for Replacing {
    fn ends_others(&mut self, ending: &Ending, interrupted: bool) -> bool {
        let has_begun = self.has_begun();
        let Some(rank) = ending.rank.checked_sub(1).and_then(|index| self.ranks.get_mut(index)) else {
            self.first = Some(ending.code);
            return true;
        };
        match ending.code {
            0 => false,
            // The results are complete.
            _ if self.first == Some(0) => false,
            // Rank 0 decides when the run ends, possibly after a checkpoint.
            _ if interrupted => false,
            _ if has_begun && ending.is_loss() => {
                if self.first.is_none() {
                    rank.wait(Some(*ending));
                }
                false
            }
            _ => true,
        }
    }

    fn mend(&mut self, group: &mut ChildGroup) {
        self.has_begun();
        for rank in &mut self.ranks {
            rank.mend(&self.starter, group);
        }
    }
}

impl Rank {
    /// Lets the process wait for its next start.
    fn wait(&mut self, ending: Option<Ending>) {
        self.state = State::Waits(Instant::now() + delay(self.failures), ending);
        self.failures += 1;
    }

    /// Prints a line about a loss, unless it is printed already.
    fn print(&mut self, line: String) {
        if self.printed.len() < MAX_LINES && !self.printed.contains(&line) {
            print_line(&line);
            self.printed.insert(line);
        } else {
            tracing::info!("{line}");
        }
    }

    fn mend(&mut self, starter: &Arc<Starter>, group: &mut ChildGroup) {
        let rank = self.rank;
        match &mut self.state {
            State::Started => {
                if self.failures > 0 && self.joined.load(Ordering::Relaxed) {
                    (self.failures, self.printed) = (0, BTreeSet::new());
                }
            }
            State::Waits(until, _) if Instant::now() < *until => {}
            State::Waits(_, ending) => {
                if let Some(ending) = ending.take() {
                    self.print(format!("{}; starting the process again", group.sentence(&ending)));
                }
                match connect(rank, starter) {
                    Ok(receiver) => self.state = State::Connects(receiver),
                    Err(error) => self.failed(&error.to_string()),
                }
            }
            State::Connects(receiver) => match receiver.try_recv() {
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => self.failed("the thread that connects with its host panicked"),
                Ok(Err(failure)) => self.failed(&failure.message),
                Ok(Ok(())) => match starter.start(rank) {
                    Ok(started) => self.started(started, group, &starter.hosts[rank]),
                    Err(error) => self.failed(&error.to_string()),
                },
            },
        }
    }

    fn failed(&mut self, problem: &str) {
        self.print(format!("rank {}: {problem}; trying again while rank 0 runs", self.rank));
        self.unreachable = true;
        self.wait(None);
    }

    fn started(&mut self, Started { child, remote, joined }: Started, group: &mut ChildGroup, host: &str) {
        if std::mem::take(&mut self.unreachable) {
            self.print(format!("rank {}: connected with {host} again", self.rank));
        }
        (group.children[self.rank], group.remotes[self.rank]) = (Some(child), remote);
        (self.state, self.joined) = (State::Started, joined);
    }
}

/// Returns the time before the next start of a process that has failed `failures` times before.
fn delay(failures: u32) -> Duration {
    FIRST_DELAY.saturating_mul(2_u32.saturating_pow(failures)).min(LONGEST_DELAY)
}

/// Connects with the host of a rank, and copies this program there if it is missing. A host that does not answer holds up a thread only.
fn connect(rank: usize, starter: &Arc<Starter>) -> Result<Receiver<Result<(), Failure>>, ClusterError> {
    let (sender, receiver) = channel();
    let starter = Arc::clone(starter);
    let thread = std::thread::Builder::new().name(format!("launch:connect-{rank}"));
    thread.spawn(move || drop(sender.send(starter.install(rank)))).map_err(ClusterError::no_thread)?;
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::program::Program;
    use super::*;

    fn replacing() -> Replacing {
        let starter = Starter {
            ssh: "ssh".parse().unwrap(),
            program: Program::this().unwrap(),
            folder: "work".into(),
            files: Vec::new(),
            environment: BTreeMap::new(),
            hosts: vec!["alpha".into(), "beta".into(), "gamma".into()],
            arguments: vec![Vec::new(); 3],
            is_elastic: true,
        };
        Replacing::new(starter.into(), (0..3).map(|_| Arc::default()).collect())
    }

    #[test]
    fn processes_are_replaced_after_the_begin_if_a_restart_may_mend_their_failure() {
        let ends_others = |rank, code, begun, interrupted| {
            let mut all = replacing();
            all.ranks[1].joined.store(begun, Ordering::Relaxed);
            let ends = all.ends_others(&Ending::with_code(rank, code), interrupted);
            let waits = all.ranks.iter().any(|rank| matches!(rank.state, State::Waits(..)));
            (ends, waits)
        };
        for code in [4, 5] {
            assert_eq!(ends_others(1, code, true, false), (false, true), "{code}");
            assert_eq!(ends_others(1, code, false, false), (true, false), "{code}");
            assert_eq!(ends_others(0, code, true, false), (true, false), "{code}");
        }
        for code in [2, 3, 70, 130] {
            assert_eq!(ends_others(1, code, true, false), (true, false), "{code}");
            assert_eq!(ends_others(1, code, true, true), (false, false), "{code}");
        }
        assert_eq!(ends_others(0, 0, true, false), (true, false));
        assert_eq!(ends_others(1, 0, true, false), (false, false));
        assert_eq!(ends_others(0, 130, true, true), (true, false));
    }

    #[test]
    fn after_the_end_of_rank_0_nothing_is_started() {
        for (first, ends) in [(0, false), (5, true)] {
            let mut all = replacing();
            all.ranks[0].joined.store(true, Ordering::Relaxed);
            assert!(all.ends_others(&Ending::with_code(0, first), false));
            assert_eq!(all.ends_others(&Ending::with_code(1, 3), false), ends);
            assert!(!all.ends_others(&Ending::with_code(2, 5), false));
            assert!(all.ranks.iter().all(|rank| matches!(rank.state, State::Started)));
        }
    }

    #[test]
    fn delays_grow_up_to_a_bound() {
        assert_eq!([0, 1, 2, 4, 5, 40].map(|failures| delay(failures).as_secs()), [2, 4, 8, 32, 60, 60]);
    }
}
