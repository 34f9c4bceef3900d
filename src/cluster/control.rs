//! The control connections: heartbeats between all pairs of processes, and the first cause of failure, sent to all.
//!
//! One thread per peer reads frames. One thread, the monitor, sends heartbeats, checks the peers' timeouts, and sends the first cause to
//! all peers. Rank 0 also gets the status of each process. A connection that closes without a goodbye is a lost peer. Processes may finish at different times, each with a goodbye.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use timely::communication::allocator::zero_copy::stream::Stream;

use super::busy_watch::BusyWatch;
use super::config::short_hash;
use super::duration::seconds;
use super::error::{Cause, CauseKind};
use super::first_failure::FirstFailure;
use super::liveness::{Phase, ProgressClock};
use super::signals::{self, Signals};
use super::statuses::Statuses;
use super::wire::{read_frame, write_frame};
use super::{ClusterError, Failure, Liveness};
use crate::encryption::{CHANGED, Link};
use crate::status::ProcessStatus;
use crate::stderr::{Level, print};

/// Maximum time for the caller to receive a cause. After it, the monitor ends the process.
const CALLER_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum bytes of a value that is compared directly, not by its hash.
const MAX_VALUE_BYTES: usize = 1024;
/// Maximum wait for this process's own signal after another process was interrupted.
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Time between two statuses that a process sends to rank 0.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum wait of a finished process for the goodbyes of the others.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(2);

/// A message on a control connection.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Frame {
    Heartbeat {
        turns: u64,
        completed: u64,
        phase: Phase,
        label: String,
    },
    Failing(Cause),
    Agree {
        what: String,
        value: String,
    },
    Goodbye,
    /// To rank 0 only.
    Status(Box<ProcessStatus>),
}

/// The state of one peer.
#[derive(Debug)]
struct Peer {
    writer: Option<Link>,
    attached: bool,
    goodbye: bool,
    /// Time of its last frame, and of its worker's last turn.
    last_frame: Instant,
    last_turn: Instant,
    progress: ProgressClock,
    turns: u64,
    phase: Phase,
    label: String,
    values: HashMap<String, String>,
}

impl Peer {
    fn record_heartbeat(&mut self, turns: u64, completed: u64, phase: Phase, label: String) {
        self.last_frame = Instant::now();
        if turns != self.turns || phase != Phase::Running {
            self.last_turn = self.last_frame;
        }
        self.progress.update(completed, phase);
        (self.turns, self.phase, self.label) = (turns, phase, label);
    }

    /// Sends a frame. Drops a connection that fails; its reader and the timeouts report the loss.
    fn send(&mut self, frame: &Frame) {
        if let Some(writer) = &mut self.writer
            && write_frame(writer, frame).is_err()
        {
            self.writer = None;
        }
    }

    /// Restarts all timeouts.
    fn restart_timeouts(&mut self) {
        let now = Instant::now();
        (self.last_frame, self.last_turn) = (now, now);
        self.progress.restart();
    }
}

/// This process's end of the control connections.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) own_rank: usize,
    pub(super) addresses: Vec<String>,
    pub(super) first_failure: Arc<FirstFailure>,
    pub(super) liveness: Liveness,
    pub(super) statuses: Arc<Statuses>,
    heartbeat_timeout: Duration,
    stall_timeout: Duration,
    peers: Mutex<Vec<Peer>>,
    changed: Condvar,
    /// Whether all workers have finished. Lost connections are then not failures.
    closing: AtomicBool,
    /// Whether the cause has been sent to all peers.
    cause_sent: AtomicBool,
}

impl Control {
    /// Makes an end without connections and without a monitor.
    pub(super) fn new(
        own_rank: usize,
        addresses: Vec<String>,
        heartbeat_timeout: Duration,
        stall_timeout: Duration,
    ) -> Self {
        let now = Instant::now();
        let peer = |_| Peer {
            writer: None,
            attached: false,
            goodbye: false,
            last_frame: now,
            last_turn: now,
            progress: ProgressClock::start(),
            turns: 0,
            phase: Phase::Idle,
            label: String::new(),
            values: HashMap::new(),
        };
        Control {
            own_rank,
            peers: Mutex::new((0..addresses.len()).map(peer).collect()),
            addresses,
            first_failure: Arc::default(),
            liveness: Liveness::default(),
            statuses: Arc::default(),
            heartbeat_timeout,
            stall_timeout,
            changed: Condvar::new(),
            closing: AtomicBool::new(false),
            cause_sent: AtomicBool::new(false),
        }
    }

    /// Starts the monitor. There are no connections yet.
    pub(super) fn start(
        own_rank: usize,
        addresses: Vec<String>,
        heartbeat_timeout: Duration,
        stall_timeout: Duration,
    ) -> Result<Arc<Self>, ClusterError> {
        let control = Arc::new(Self::new(own_rank, addresses, heartbeat_timeout, stall_timeout));
        let watched = control.clone();
        let signals = Signals::catch();
        std::thread::Builder::new()
            .name("cluster:monitor".into())
            .spawn(move || watched.monitor(&signals))
            .map_err(ClusterError::no_thread)?;
        Ok(control)
    }

    fn peers(&self) -> MutexGuard<'_, Vec<Peer>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether this peer has, or had, a control connection.
    pub(super) fn is_attached(&self, rank: usize) -> bool {
        self.peers()[rank].attached
    }

    /// Adds a connection after its handshake. Returns false if the rank has one already.
    pub(super) fn attach(self: &Arc<Self>, rank: usize, link: Link) -> Result<bool, ClusterError> {
        let second_handle = || {
            link.socket().set_read_timeout(None)?;
            // A heartbeat has a few dozen bytes and a status about a thousand, so the buffers fill only if the peer has not read for long.
            link.socket().set_write_timeout(Some(
                (self.heartbeat_timeout / 4).clamp(Duration::from_millis(10), Duration::from_secs(1)),
            ))?;
            link.try_clone()
        };
        let mut reader = second_handle().map_err(|e| ClusterError::system("configure a connection", &e))?;
        let mut peers = self.peers();
        let peer = &mut peers[rank];
        if peer.attached {
            return Ok(false);
        }
        let control = self.clone();
        std::thread::Builder::new()
            .name(format!("cluster:peer-{rank}"))
            .spawn(move || control.read(rank, &mut reader))
            .map_err(ClusterError::no_thread)?;
        (peer.writer, peer.attached) = (Some(link), true);
        peer.restart_timeouts();
        self.changed.notify_all();
        Ok(true)
    }

    /// Returns the time between two heartbeats: at most a second, less if a timeout is short.
    fn interval(&self) -> Duration {
        let timeout = self.heartbeat_timeout.min(self.stall_timeout);
        (timeout / 4).clamp(Duration::from_millis(10), Duration::from_secs(1))
    }

    fn post_lost(&self, rank: usize, why: String) {
        self.post_unless_interrupted(ClusterError::Lost { rank, address: self.addresses[rank].clone(), why });
    }

    /// Posts a cause that concerns another process. If this process has caught a signal, and does not defer it, posts that instead.
    fn post_unless_interrupted(&self, cause: ClusterError) {
        let deferring = self.liveness.is_deferring();
        self.first_failure.post(match (signals::caught(), cause) {
            (Some(signal), _) if !deferring => ClusterError::Interrupted(signals::name(signal)),
            // The run has stopped because of the signal, and the message says where.
            (Some(_), ClusterError::Peer { code: 130, message, .. }) => ClusterError::Own(Failure::new(130, message)),
            (_, cause) => cause,
        });
        self.changed.notify_all();
    }

    /// Waits for a signal, at most [`SIGNAL_TIMEOUT`]. Batch systems signal all processes of a run, and a peer's message may arrive
    /// before this process's signal.
    fn await_own_signal(&self) {
        let (since, limit) = (Instant::now(), SIGNAL_TIMEOUT.min(self.heartbeat_timeout / 2));
        while signals::caught().is_none() && since.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Reads one peer's frames until its connection ends.
    pub(super) fn read(&self, rank: usize, link: &mut Link) {
        loop {
            let frame = read_frame::<Frame>(link);
            let mut peers = self.peers();
            let peer = &mut peers[rank];
            peer.last_frame = Instant::now();
            match frame {
                Ok(Frame::Heartbeat { turns, completed, phase, label }) => {
                    peer.record_heartbeat(turns, completed, phase, label)
                }
                Ok(Frame::Agree { what, value }) => {
                    peer.values.insert(what, value);
                    self.changed.notify_all();
                }
                Ok(Frame::Status(status)) => {
                    drop(peers);
                    // A process cannot report for another one.
                    self.statuses.record(ProcessStatus { rank, ..*status });
                }
                Ok(Frame::Goodbye) => {
                    peer.goodbye = true;
                    self.changed.notify_all();
                }
                Ok(Frame::Failing(cause)) if cause.culprit < self.addresses.len() => {
                    drop(peers);
                    let stands_still = cause.kind == CauseKind::Lost && cause.culprit == self.own_rank;
                    if stands_still || cause.kind == CauseKind::Stalled {
                        self.liveness.print_waits(self.own_rank);
                    }
                    let cause = ClusterError::from_cause(cause, self.own_rank);
                    if matches!(cause, ClusterError::Peer { code: 130, .. }) {
                        self.await_own_signal();
                    }
                    self.post_unless_interrupted(cause);
                }
                Ok(Frame::Failing(_)) => {
                    drop(peers);
                    self.post_lost(rank, "it reported a rank that does not exist".into());
                }
                Err(error) => {
                    let expected = peer.goodbye || self.closing.load(Ordering::Relaxed);
                    peer.goodbye = true;
                    drop(peers);
                    self.changed.notify_all();
                    if !expected {
                        self.post_lost(rank, why_closed(&error));
                    }
                    return;
                }
            }
        }
    }

    /// Sends a frame to all peers.
    fn broadcast(&self, frame: &Frame) {
        self.peers().iter_mut().for_each(|peer| peer.send(frame));
    }

    /// Sends a frame to one peer.
    fn send(&self, rank: usize, frame: &Frame) {
        self.peers()[rank].send(frame);
    }

    fn monitor(&self, signals: &Signals) {
        let step = (self.interval() / 2).min(Duration::from_millis(100));
        let (mut last_check, mut last_heartbeat) = (Instant::now(), None::<Instant>);
        let (mut last_status, mut busy) = (None::<Instant>, BusyWatch::start());
        loop {
            if let Some(cause) = self.first_failure.wait(step) {
                return self.broadcast_cause(&cause);
            }
            if self.closing.load(Ordering::Relaxed) {
                return;
            }
            // If this process was stopped, the peers' frames may wait in the sockets.
            if last_check.elapsed() > step + self.heartbeat_timeout / 2 {
                self.peers().iter_mut().for_each(Peer::restart_timeouts);
            }
            last_check = Instant::now();
            if let Some(signal) =
                signals.caught().filter(|&signal| !self.liveness.defers(signals::name(signal), self.own_rank))
            {
                self.first_failure.post(ClusterError::Interrupted(signals::name(signal)));
            } else if let Some(suspicion) =
                self.first_failure.stale_suspicion(self.heartbeat_timeout + Duration::from_secs(1))
            {
                self.post_suspicion(suspicion);
            } else if let Some((rank, why)) = self.first_overdue() {
                self.post_lost(rank, why);
            } else if self.is_stalled() {
                self.liveness.print_waits(self.own_rank);
                self.first_failure.post(ClusterError::Stalled { after: seconds(self.stall_timeout) });
            } else if let Some(stuck) = busy.check(&self.liveness, self.stall_timeout) {
                self.first_failure.post(stuck);
            }
            if last_heartbeat.is_none_or(|at| at.elapsed() >= self.interval()) {
                last_heartbeat = Some(Instant::now());
                let (turns, completed) = (self.liveness.turns(), self.liveness.completed());
                let (phase, label) = (self.liveness.phase(), self.liveness.label());
                self.broadcast(&Frame::Heartbeat { turns, completed, phase, label: label.clone() });
                // This process's entry has the same form as the others'.
                self.peers()[self.own_rank].record_heartbeat(turns, completed, phase, label);
            }
            if self.own_rank > 0 && last_status.is_none_or(|at| at.elapsed() >= STATUS_INTERVAL) {
                last_status = Some(Instant::now());
                if let Some(status) = self.statuses.own() {
                    self.send(0, &Frame::Status(Box::new(status)));
                }
            }
        }
    }

    /// Returns a peer that is silent, or whose worker's loop does not turn, for longer than its timeout.
    fn first_overdue(&self) -> Option<(usize, String)> {
        self.peers().iter().enumerate().filter(|(_, peer)| peer.attached && !peer.goodbye).find_map(|(rank, peer)| {
            let (silent, still) = (peer.last_frame.elapsed(), peer.last_turn.elapsed());
            if silent > self.heartbeat_timeout {
                let limit = seconds(self.heartbeat_timeout);
                Some((
                    rank,
                    format!("silent for {} (heartbeat_timeout {limit}): stopped or unreachable", seconds(silent)),
                ))
            } else if peer.phase == Phase::Running && still > self.stall_timeout {
                let last = if peer.label.is_empty() { String::new() } else { format!(", after \"{}\"", peer.label) };
                let limit = seconds(self.stall_timeout);
                Some((rank, format!("its worker stands still for {} (stall_timeout {limit}){last}", seconds(still))))
            } else {
                None
            }
        })
    }

    /// Returns whether the loops of all workers turn, but no worker has completed anything for the stall timeout.
    fn is_stalled(&self) -> bool {
        // If a worker's loop does not turn, it is the cause, and `first_overdue` finds it.
        let turns = |peer: &Peer| peer.phase == Phase::Done || peer.last_turn.elapsed() < self.stall_timeout / 2;
        self.peers().iter().all(|peer| peer.progress.idle() > self.stall_timeout && turns(peer))
    }

    /// Posts a lost data connection as the cause, because no heartbeat has given another one.
    fn post_suspicion(&self, (rank, message): (Option<usize>, String)) {
        let other = (self.addresses.len() == 2).then_some(1 - self.own_rank.min(1));
        match rank.or(other).filter(|rank| *rank < self.addresses.len()) {
            Some(rank) => self.post_lost(rank, format!("its data connection failed: {message}")),
            None => {
                let failure = super::Failure::new(5, format!("lost a data connection: {message}"));
                self.first_failure.post(ClusterError::Own(failure));
            }
        }
    }

    /// Sends the cause to all peers. If the caller does not receive it within [`CALLER_TIMEOUT`], ends the process.
    fn broadcast_cause(&self, cause: &ClusterError) {
        if self.closing.load(Ordering::Relaxed) {
            return;
        }
        self.broadcast(&Frame::Failing(cause.to_cause(self.own_rank, &self.addresses[self.own_rank])));
        self.cause_sent.store(true, Ordering::Relaxed);
        self.changed.notify_all();
        let since = Instant::now();
        while since.elapsed() < CALLER_TIMEOUT {
            if self.first_failure.is_reported() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        print(Level::Error, &cause.to_string());
        std::process::exit(i32::from(cause.exit_code()));
    }

    /// Waits until every peer has sent its value for `what`, at most `limit`.
    pub(super) fn agree(&self, what: &str, value: &str, limit: Duration) -> Result<(), ClusterError> {
        // Frames have a maximum length, so long values are compared by their hashes.
        let hashed = (value.len() > MAX_VALUE_BYTES).then(|| short_hash(value.as_bytes()));
        let value = hashed.as_deref().unwrap_or(value);
        let deadline = Instant::now() + limit;
        self.broadcast(&Frame::Agree { what: what.to_string(), value: value.to_string() });
        let mut peers = self.peers();
        loop {
            if let Some(cause) = self.first_failure.report() {
                return Err(cause);
            }
            let others = || peers.iter().enumerate().filter(|(rank, _)| *rank != self.own_rank);
            let found = others().find_map(|(rank, peer)| Some((rank, peer.values.get(what).filter(|v| *v != value)?)));
            let problem = if let Some((rank, theirs)) = found {
                let (ours, theirs) = (value.to_string(), theirs.clone());
                ClusterError::Mismatch { what: what.into(), rank, address: self.addresses[rank].clone(), ours, theirs }
            } else if let Some((rank, _)) = others().find(|(_, peer)| !peer.values.contains_key(what)) {
                let now = Instant::now();
                if now < deadline {
                    let step = (deadline - now).min(Duration::from_millis(100));
                    peers = self.changed.wait_timeout(peers, step).unwrap_or_else(PoisonError::into_inner).0;
                    continue;
                }
                let why = format!("did not reach \"{what}\" within {}", seconds(limit));
                ClusterError::Lost { rank, address: self.addresses[rank].clone(), why }
            } else {
                // Removes the values, so that the same `what` can be used again.
                let own_rank = self.own_rank;
                peers.iter_mut().enumerate().filter(|(rank, _)| *rank != own_rank).for_each(|(_, peer)| {
                    peer.values.remove(what);
                });
                return Ok(());
            };
            drop(peers);
            return Err(self.fail(problem));
        }
    }

    /// Posts a cause, waits until the first one has been sent to the peers, and returns that.
    pub(super) fn fail(&self, cause: ClusterError) -> ClusterError {
        self.first_failure.post(cause.clone());
        self.changed.notify_all();
        let first = self.first_failure.report().unwrap_or(cause);
        self.wait_until_sent();
        first
    }

    /// Waits until the cause has been sent to the peers, at most a second.
    pub(super) fn wait_until_sent(&self) {
        let since = Instant::now();
        while !self.cause_sent.load(Ordering::Relaxed) && since.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends a successful run: sends a goodbye to all peers and waits for theirs, at most [`GOODBYE_TIMEOUT`].
    pub(super) fn send_goodbye(&self) {
        self.broadcast(&Frame::Goodbye);
        self.closing.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + GOODBYE_TIMEOUT;
        let mut peers = self.peers();
        while peers.iter().any(|peer| peer.attached && !peer.goodbye) {
            let Some(rest) = deadline.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero()) else {
                break;
            };
            peers = self.changed.wait_timeout(peers, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
        for peer in peers.iter_mut() {
            if let Some(writer) = peer.writer.take() {
                // Also wakes the reader, which has the other handle. The connection may be closed already.
                let _ = writer.shutdown(Shutdown::Both);
            }
        }
    }
}

fn why_closed(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            "its connection closed without a goodbye: it was killed or crashed".to_string()
        }
        ErrorKind::InvalidData if error.to_string() == CHANGED => format!("its control connection {CHANGED}"),
        ErrorKind::InvalidData => format!("its control connection sent a malformed message: {error}"),
        _ => format!("its control connection failed: {error}"),
    }
}
