//! The roll call of an elastic run (`cluster.elastic`): before the processes connect, rank 0 finds out which of them are there.
//!
//! At the first start all must be there. After a lost process, rank 0 waits for [`Elastic::wait`], and the run goes on with those that are there. Their ranks
//! are counted anew, and the attempt gets a name, so that no process of an earlier attempt can join. A process that comes back later waits until the run
//! pauses at a checkpoint ([`Absent::has_returned`]), after which there is another roll call.
//!
//! ```text
//! others → rank 0   handshake, as for a connection of the run
//! rank 0 → others   Wait, every second       the roll call, or the run without this process, goes on
//! rank 0 → others   Begin                    the name of the attempt, and its ranks
//! rank 0 → others   Finished                 the run has ended without this process
//! ```

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::child::{Notice, notify, notify_joined, notify_supervisor};
use super::duration::seconds;
use super::handshake::{Claim, Kind, Party, ROLL_CALL, Refusal, VERSION, accept, connect};
use super::launcher::print_line;
use super::refusals::Refusals;
use super::secret::random_hex;
use super::unproven::Unproven;
use super::wire::{read_frame, write_frame};
use super::{ClusterConfig, ClusterError, Elastic};
use crate::encryption::Link;

/// Time limit of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(4);
/// Time between two messages of rank 0 to a process that waits.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time between two log lines of a process that waits.
const REPORT: Duration = Duration::from_secs(5);
/// Time between two looks for connections.
const POLL: Duration = Duration::from_millis(5);

/// A message of rank 0.
#[derive(Debug, Serialize, Deserialize)]
enum Message {
    Wait {
        /// Whether the run has begun without this process.
        running: bool,
    },
    Begin(Attempt),
    /// Another process has come with the same rank.
    Taken,
    Finished,
}

/// An attempt of a run: its name, and the lines of the hosts file whose processes take part, ascending.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Attempt {
    run: String,
    ranks: Vec<usize>,
}

/// The processes of a hosts file that do not take part in an attempt.
#[derive(Debug)]
pub(super) struct Missing {
    ranks: Vec<usize>,
    /// The line in the hosts file of each rank of the attempt.
    pub(super) lines: Vec<usize>,
    /// The addresses of all lines.
    pub(super) hosts: Vec<String>,
    /// This side of their handshakes if they return. Only rank 0 has it.
    party: Option<Arc<Party>>,
}

/// Calls the roll, and makes `config` that of the attempt: its ranks, addresses and name.
///
/// # Errors
/// [`ClusterError::Lost`] for processes that do not come in time; errors of the handshake; [`ClusterError::Finished`] if the run has ended without this process.
pub(super) fn call(
    config: &mut ClusterConfig,
    elastic: Elastic,
    listener: TcpListener,
) -> Result<Missing, ClusterError> {
    let claim = Claim::new(config.rank, config.size(), Kind::Control, ROLL_CALL, &config.fingerprints);
    let party = Arc::new(Party {
        version: VERSION,
        secret: config.secret.clone(),
        encrypt: config.encrypts(),
        claim: Claim { process: random_hex(8)?, ..claim },
    });
    // It is chosen for the addresses of all processes, not of those that are left.
    config.encrypt = Some(party.encrypt);
    let (attempt, listener) = match config.rank {
        0 => ask(config, elastic, &party, listener)?,
        // It listens already: only a process that can take part answers.
        _ => (answer(config, &party)?, listener),
    };
    notify_joined();
    let Attempt { run, ranks: lines } = attempt;
    let hosts = std::mem::take(&mut config.addresses);
    let missing = (0..hosts.len()).filter(|rank| !lines.contains(rank)).collect();
    config.addresses = lines.iter().filter_map(|&line| hosts.get(line).cloned()).collect();
    config.rank = lines.iter().position(|&line| line == config.rank).unwrap_or(0);
    (config.run, config.listener) = (run, Some(listener));
    Ok(Missing { ranks: missing, lines, hosts, party: (config.rank == 0).then_some(party) })
}

/// Waits at rank 0 for the others, and tells them the attempt.
fn ask(
    config: &ClusterConfig,
    elastic: Elastic,
    party: &Arc<Party>,
    listener: TcpListener,
) -> Result<(Attempt, TcpListener), ClusterError> {
    let reception = Reception::open(listener, Arc::clone(party), config.addresses.clone(), Vec::new())?;
    let (since, limit) = (Instant::now(), elastic.wait.unwrap_or(config.start_timeout));
    let report = (limit / 4).clamp(Duration::from_millis(200), REPORT);
    let (mut next_message, mut next_report) = (since, since + report);
    let name = |rank: usize| format!("rank {rank} ({})", config.addresses[rank]);
    let ranks = loop {
        std::thread::sleep(POLL);
        match reception.fatal() {
            None => {}
            // The run has gone well without this process.
            Some(error) if elastic.wait.is_some() => tracing::warn!("a process cannot take part: {error}"),
            Some(error) => {
                notify_supervisor(&error);
                return Err(error);
            }
        }
        let ranks = reception.ranks();
        let late = since.elapsed() >= limit;
        let goes_on = late && elastic.wait.is_some();
        if ranks.len() + 1 == config.size() || goes_on {
            let left = reception.living_ranks();
            if left.len() == ranks.len() || goes_on {
                break left;
            }
            continue;
        }
        let missing = || (1..config.size()).filter(|rank| !ranks.contains(rank));
        if late && let Some(rank) = missing().next() {
            let others: Vec<String> = missing().skip(1).map(name).collect();
            let others =
                if others.is_empty() { String::new() } else { format!("; also missing: {}", others.join(", ")) };
            let why = format!(
                "did not join within {}{}{others}; start all processes within this time, and check hosts file, ranks, secret and firewalls",
                seconds(limit),
                reception.state.refused.hint()
            );
            return Err(ClusterError::Lost { rank, address: config.addresses[rank].clone(), why });
        }
        let now = Instant::now();
        if now >= next_message {
            next_message = now + INTERVAL;
            reception.state.tell_to_wait();
        }
        if now >= next_report {
            next_report = now + report;
            let names: Vec<String> = missing().map(name).collect();
            let left = seconds(limit.saturating_sub(since.elapsed()));
            tracing::warn!(
                "rank 0 waits for {} of {} processes ({left} left): {}",
                names.len(),
                config.size(),
                names.join(", ")
            );
        }
    };
    let attempt =
        Attempt { run: format!("attempt {}", random_hex(8)?), ranks: std::iter::once(0).chain(ranks).collect() };
    let missing = (0..config.size()).filter(|rank| !attempt.ranks.contains(rank)).map(name);
    let missing: Vec<String> = missing.collect();
    if !missing.is_empty() {
        let (left, all) = (attempt.ranks.len(), config.size());
        print_line(&format!("the run goes on with {left} of {all} processes, without {}", missing.join(", ")));
    }
    reception.send(&Message::Begin(attempt.clone()));
    Ok((attempt, reception.close()?))
}

/// Waits at another rank for the attempt.
fn answer(config: &ClusterConfig, party: &Party) -> Result<Attempt, ClusterError> {
    let mut deadline = Instant::now() + config.start_timeout;
    let mut next_report = Instant::now() + REPORT;
    let mut told = false;
    loop {
        let problem = match connect(party, 0, &config.addresses[0], None, HANDSHAKE_TIMEOUT) {
            Err(Refusal::Fatal(error)) => {
                notify_supervisor(&error);
                return Err(error);
            }
            Err(Refusal::NonFatal(why)) => why,
            Ok((_, mut link)) => {
                let limit = config.heartbeat_timeout.max(3 * INTERVAL);
                let timed = link.socket().set_read_timeout(Some(limit));
                timed.map_err(|error| ClusterError::system("configure a connection", &error))?;
                let ended = loop {
                    match read_frame::<Message>(&mut link) {
                        Ok(Message::Begin(attempt)) if attempt.ranks.contains(&config.rank) => return Ok(attempt),
                        Ok(Message::Begin(_)) => break "the run began without this process".into(),
                        Ok(Message::Finished) => return Err(ClusterError::Finished),
                        Ok(Message::Taken) => {
                            notify(Notice::NoRestart);
                            let address = config.addresses[0].clone();
                            return Err(ClusterError::RankTaken { rank: config.rank, address });
                        }
                        Ok(Message::Wait { running }) => {
                            if running && !told {
                                told = true;
                                print_line(&format!(
                                    "rank {} waits: the run goes on without it, and takes it back at the next checkpoint",
                                    config.rank
                                ));
                            }
                        }
                        Err(error) => break format!("its connection ended: {error}"),
                    }
                };
                // Rank 0 has been there until now.
                deadline = Instant::now() + config.start_timeout;
                ended
            }
        };
        if Instant::now() >= deadline {
            let why = format!(
                "did not answer within {}: {problem}; it must run, because it has the run folder",
                seconds(config.start_timeout)
            );
            return Err(ClusterError::Lost { rank: 0, address: config.addresses[0].clone(), why });
        }
        if Instant::now() >= next_report {
            next_report = Instant::now() + REPORT;
            tracing::warn!("rank {} waits for rank 0 ({}): {problem}", config.rank, config.addresses[0]);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A listener of rank 0, and the processes that have come, by rank.
#[derive(Debug)]
struct Reception {
    state: Arc<State>,
    listening: JoinHandle<TcpListener>,
}

#[derive(Debug)]
struct State {
    party: Arc<Party>,
    addresses: Vec<String>,
    /// In a run without some processes: their ranks.
    missing: Vec<usize>,
    /// By rank, with the random number of the process.
    present: Mutex<BTreeMap<usize, (String, Link)>>,
    refused: Refusals,
    fatal: Mutex<Option<ClusterError>>,
    unproven: Unproven,
    done: AtomicBool,
}

impl Reception {
    fn open(
        listener: TcpListener,
        party: Arc<Party>,
        addresses: Vec<String>,
        missing: Vec<usize>,
    ) -> Result<Self, ClusterError> {
        listener.set_nonblocking(true).map_err(|e| ClusterError::system("use the listener", &e))?;
        let state = Arc::new(State {
            party,
            addresses,
            missing,
            present: Mutex::default(),
            refused: Refusals::default(),
            fatal: Mutex::default(),
            unproven: Unproven::default(),
            done: AtomicBool::new(false),
        });
        let listens = Arc::clone(&state);
        let thread = std::thread::Builder::new().name("cluster:roll-call".into());
        let listening = thread.spawn(move || listens.listen(listener)).map_err(ClusterError::no_thread)?;
        Ok(Self { state, listening })
    }

    /// Returns the ranks that are there, ascending.
    fn ranks(&self) -> Vec<usize> {
        self.state.present().keys().copied().collect()
    }

    /// Returns the first error that ends the run: a process that cannot take part.
    fn fatal(&self) -> Option<ClusterError> {
        self.state.fatal.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Sends a message to all. Forgets those that are gone.
    fn send(&self, message: &Message) {
        self.state.present().retain(|_, (_, link)| write_frame(link, message).is_ok());
    }

    /// Forgets those whose connection is closed, and returns the other ranks, ascending.
    fn living_ranks(&self) -> Vec<usize> {
        let mut present = self.state.present();
        present.retain(|_, (_, link)| {
            let socket = link.socket();
            // It sends nothing, so an open connection has nothing to read.
            let closed = socket.set_nonblocking(true).is_err() || matches!(socket.peek(&mut [0]), Ok(0));
            socket.set_nonblocking(false).is_ok() && !closed
        });
        present.keys().copied().collect()
    }

    /// Closes the connections, and returns the listener.
    fn close(self) -> Result<TcpListener, ClusterError> {
        self.state.done.store(true, Ordering::Relaxed);
        self.listening.join().map_err(|_| ClusterError::System {
            what: "find out which processes are there".into(),
            problem: "the listening thread has panicked".into(),
        })
    }
}

impl State {
    fn present(&self) -> MutexGuard<'_, BTreeMap<usize, (String, Link)>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells all to wait. Forgets those that are gone.
    fn tell_to_wait(&self) {
        self.present().retain(|&rank, (_, link)| write_frame(link, &self.wait(rank)).is_ok());
    }

    /// Returns the message for a process that waits. One that is not missing was started again before its attempt has ended here.
    fn wait(&self, rank: usize) -> Message {
        Message::Wait { running: self.missing.contains(&rank) }
    }

    /// Accepts connections. Each handshake has a thread, so that none delays another.
    fn listen(self: Arc<Self>, listener: TcpListener) -> TcpListener {
        while !self.done.load(Ordering::Relaxed) {
            let Ok((stream, from)) = listener.accept() else {
                std::thread::sleep(POLL);
                continue;
            };
            let stream = Arc::new(stream);
            let Ok(number) = self.unproven.add(&stream) else { continue };
            let state = Arc::clone(&self);
            let thread = std::thread::Builder::new().name("cluster:roll-call".into()).stack_size(256 << 10);
            let spawned = thread.spawn(move || {
                state.handshake(&stream, from, number);
                state.unproven.remove(number);
            });
            if spawned.is_err() {
                // Others hold the threads; their handshakes have a deadline.
                self.unproven.remove(number);
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        listener
    }

    fn handshake(&self, stream: &TcpStream, from: SocketAddr, number: u64) {
        let proven = |_: &Claim| {
            self.unproven.remove(number);
            // A process that was started again replaces its predecessor.
            false
        };
        match accept(stream, &self.party, &self.addresses, proven, HANDSHAKE_TIMEOUT) {
            Ok((claim, mut link)) => {
                // A process that reads nothing for this long is gone.
                let limited = link.socket().set_write_timeout(Some(INTERVAL));
                if limited.is_ok() && write_frame(&mut link, &self.wait(claim.rank)).is_ok() {
                    let former = self.present().insert(claim.rank, (claim.process.clone(), link));
                    // A former process of this rank that lives was started by mistake.
                    if let Some((process, mut link)) = former
                        && process != claim.process
                    {
                        let _ = write_frame(&mut link, &Message::Taken);
                    }
                }
            }
            Err(Refusal::NonFatal(why)) => self.refused.add(from, &why),
            Err(Refusal::Fatal(error)) => {
                self.fatal.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        }
    }
}

impl Missing {
    /// Whether any process is missing. Equal in all processes of the attempt.
    pub(super) fn any(&self) -> bool {
        !self.ranks.is_empty()
    }

    /// Lets missing processes return. At rank 0 of an attempt with missing processes; otherwise returns `None`.
    ///
    /// # Errors
    /// If the address of rank 0 cannot be used.
    pub(super) fn wait_for(
        self,
        listen: impl FnOnce(&[String]) -> Result<TcpListener, ClusterError>,
    ) -> Result<Option<Absent>, ClusterError> {
        let Some(party) = self.party.filter(|_| !self.ranks.is_empty()) else { return Ok(None) };
        let reception = Reception::open(listen(&self.hosts)?, party, self.hosts, self.ranks)?;
        let state = Arc::clone(&reception.state);
        let messages = std::thread::Builder::new().name("cluster:missing".into());
        let tell = move || {
            while !state.done.load(Ordering::Relaxed) {
                state.tell_to_wait();
                std::thread::sleep(INTERVAL);
            }
        };
        messages.spawn(tell).map_err(ClusterError::no_thread)?;
        Ok(Some(Absent(reception)))
    }
}

/// The missing processes of a run, at rank 0.
#[derive(Debug)]
pub(crate) struct Absent(Reception);

impl Absent {
    /// Whether one of them has come back and waits.
    pub(crate) fn has_returned(&self) -> bool {
        // One that cannot take part ends at its side; the run goes on.
        if let Some(error) = self.0.fatal() {
            tracing::warn!("a process that came back cannot take part: {error}");
        }
        self.0.living_ranks().iter().any(|rank| self.0.state.missing.contains(rank))
    }

    /// Tells those that wait that the run has ended well.
    pub(crate) fn finished(&self) {
        let state = &self.0.state;
        state.present().retain(|rank, _| state.missing.contains(rank));
        self.0.send(&Message::Finished);
    }
}

impl Drop for Absent {
    fn drop(&mut self) {
        self.0.state.done.store(true, Ordering::Relaxed);
    }
}
