//! Connects all processes of a run before a deadline: one listener, and one dialing thread per lower rank.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};

use super::control::Control;
use super::duration::seconds;
use super::handshake::{Claim, Kind, Party, Refusal, VERSION, accept, connect};
use super::refusals::Refusals;
use super::secret::random_hex;
use super::unproven::Unproven;
use super::{ClusterConfig, ClusterError};
use crate::encryption::Link;

/// Time limit of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(4);
/// The state while processes connect, from the first socket to the last handshake.
pub(super) struct Rendezvous {
    party: Party,
    control: Arc<Control>,
    user_timeout: Duration,
    /// By rank: the process at the other end, and the data connection.
    data: Mutex<Vec<Option<(String, Link)>>>,
    /// By rank: the process at the other end of the control connection. This process is the member.
    members: Mutex<Vec<Option<String>>>,
    /// The announcement of rank 0.
    announced: Mutex<String>,
    /// By rank: the last problem of its connection, for log lines and errors.
    problems: Mutex<Vec<String>>,
    done: AtomicBool,
    unproven: Unproven,
    refused: Refusals,
}

impl Rendezvous {
    /// Makes the state for `config`. `control` gets the control connections.
    pub(super) fn new(config: &ClusterConfig, control: Arc<Control>) -> Result<Arc<Self>, ClusterError> {
        let announced = if config.rank == 0 { config.announced.clone() } else { String::new() };
        let claim = Claim::new(config.rank, config.size(), Kind::Control, &config.run, &config.fingerprints);
        Ok(Arc::new(Rendezvous {
            party: Party {
                version: VERSION,
                secret: config.secret.clone(),
                encrypt: config.encrypts(),
                claim: Claim { process: random_hex(8)?, announced: announced.clone(), ..claim },
            },
            control,
            user_timeout: config.heartbeat_timeout,
            data: Mutex::new((0..config.size()).map(|_| None).collect()),
            members: Mutex::new(vec![None; config.size()]),
            announced: Mutex::new(announced),
            problems: Mutex::new(vec![String::new(); config.size()]),
            done: AtomicBool::new(false),
            unproven: Unproven::default(),
            refused: Refusals::default(),
        }))
    }

    /// Connects to all ranks. Returns the data connections by rank, and the announcement of rank 0.
    pub(super) fn run(
        self: Arc<Self>,
        listener: TcpListener,
        deadline: Instant,
        limit: Duration,
    ) -> Result<(Vec<Option<Link>>, String), ClusterError> {
        let result = self.wait_for_all(listener, deadline, limit);
        self.done.store(true, Ordering::Relaxed);
        result?;
        // The slots remain, because a late handshake may read them.
        let links = self.data().iter_mut().map(|slot| slot.take().map(|(_, link)| link)).collect();
        let announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok((links, announced))
    }

    fn data(&self) -> MutexGuard<'_, Vec<Option<(String, Link)>>> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the process that has joined as `rank`, if its control connection exists.
    fn member(&self, rank: usize) -> Option<String> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)[rank].clone()
    }

    fn set_problem(&self, rank: usize, text: String) {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner)[rank] = text;
    }

    /// Returns whether the process has a data connection as `rank`.
    fn has_data(&self, rank: usize, process: &str) -> bool {
        self.data()[rank].as_ref().is_some_and(|(known, _)| known == process)
    }

    /// Returns whether the rank of a claim has joined already. A data connection of a process that died before it joined does not count.
    fn is_taken(&self, claim: &Claim) -> bool {
        let (rank, process) = (claim.rank, &claim.process);
        if rank >= self.control.addresses.len() {
            return false;
        }
        match claim.kind {
            Kind::Control => self.control.is_attached(rank),
            Kind::Data => self.member(rank).is_some_and(|member| member != *process) || self.has_data(rank, process),
        }
    }

    /// Returns the ranks without two connections to the same process.
    fn missing(&self) -> Vec<usize> {
        let own_rank = self.control.own_rank;
        let is_connected = |rank: usize| self.member(rank).is_some_and(|member| self.has_data(rank, &member));
        (0..self.control.addresses.len()).filter(|rank| *rank != own_rank && !is_connected(*rank)).collect()
    }

    fn describe(&self, rank: usize) -> String {
        let problem = self.problems.lock().unwrap_or_else(PoisonError::into_inner)[rank].clone();
        let problem = if problem.is_empty() { "no connection yet".to_string() } else { problem };
        format!("rank {rank} ({}): {problem}", self.control.addresses[rank])
    }

    fn wait_for_all(
        self: &Arc<Self>,
        listener: TcpListener,
        deadline: Instant,
        limit: Duration,
    ) -> Result<(), ClusterError> {
        let own_rank = self.control.own_rank;
        let no_thread = |e: std::io::Error| self.control.fail(ClusterError::no_thread(e));
        listener.set_nonblocking(true).map_err(|e| self.control.fail(ClusterError::system("use the listener", &e)))?;
        let rendezvous = self.clone();
        let spawn =
            std::thread::Builder::new().name("cluster:listen".into()).spawn(move || rendezvous.listen(&listener));
        let listening = spawn.map_err(no_thread)?;
        for rank in 0..own_rank {
            let rendezvous = self.clone();
            let dialer = std::thread::Builder::new().name(format!("cluster:dial-{rank}"));
            dialer.spawn(move || rendezvous.dial(rank)).map_err(no_thread)?;
        }
        let report = (limit / 4).clamp(Duration::from_millis(200), Duration::from_secs(5));
        let mut next_report = Instant::now() + report;
        loop {
            let missing = self.missing();
            if missing.is_empty() {
                break;
            }
            if let Some(cause) = self.control.first_failure.wait(Duration::from_millis(10)) {
                return Err(self.control.fail(cause));
            }
            let now = Instant::now();
            if now >= deadline {
                let lines: Vec<String> = missing.iter().map(|rank| self.describe(*rank)).collect();
                let rank = missing[0];
                let problem = self.problems.lock().unwrap_or_else(PoisonError::into_inner)[rank].clone();
                let mut why = format!("did not join within {}", seconds(limit));
                if !problem.is_empty() {
                    why = format!("{why}: {problem}");
                }
                why += &self.refused.hint();
                if lines.len() > 1 {
                    why = format!("{why}; also missing: {}", lines[1..].join("; "));
                }
                why = format!(
                    "{why}; start all processes within this time, and check hosts file, ranks, secret and firewalls"
                );
                let address = self.control.addresses[rank].clone();
                return Err(self.control.fail(ClusterError::Lost { rank, address, why }));
            }
            if now >= next_report {
                next_report = now + report;
                let lines: Vec<String> = missing.iter().map(|rank| self.describe(*rank)).collect();
                tracing::warn!(
                    "rank {own_rank} waits for {} of {} processes ({} left): {}",
                    lines.len(),
                    self.control.addresses.len(),
                    seconds(deadline.saturating_duration_since(now)),
                    lines.join("; ")
                );
            }
        }
        self.done.store(true, Ordering::Relaxed);
        // Frees the port. The thread checks `done` every few milliseconds. The hook posts its panics.
        let _ = listening.join();
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed) || self.control.first_failure.is_failing()
    }

    /// Accepts connections until all processes have joined. Each handshake has a thread, so that none delays another.
    fn listen(self: &Arc<Self>, listener: &TcpListener) {
        while !self.is_done() {
            match listener.accept() {
                Ok((stream, from)) => {
                    let stream = Arc::new(stream);
                    let Ok(number) = self.unproven.add(&stream) else { continue };
                    let rendezvous = self.clone();
                    let thread = std::thread::Builder::new().name("cluster:accept".into()).stack_size(256 << 10);
                    let spawned = thread.spawn(move || {
                        rendezvous.handshake(&stream, from, number);
                        rendezvous.unproven.remove(number);
                    });
                    if let Err(error) = spawned {
                        self.unproven.remove(number);
                        if self.unproven.is_empty() {
                            // The run needs more threads than this one, so it cannot begin either.
                            self.control.first_failure.post(ClusterError::no_thread(error));
                            return;
                        }
                        // Others hold the threads; their handshakes have a deadline.
                        std::thread::sleep(Duration::from_millis(20));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(4)),
                // The client has closed the connection, or the process has too many open files: both are temporary.
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        self.refused.log_total();
    }

    /// Makes the handshake of one accepted connection.
    fn handshake(self: &Arc<Self>, stream: &TcpStream, from: SocketAddr, number: u64) {
        let is_taken = |claim: &Claim| {
            self.unproven.remove(number);
            self.is_taken(claim)
        };
        let accepted = accept(stream, &self.party, &self.control.addresses, is_taken, HANDSHAKE_TIMEOUT);
        match accepted {
            Ok((claim, link)) => match self.add(&claim, link) {
                Ok(true) => {}
                Ok(false) => {
                    self.refused.add(from, &format!("says it is rank {}, which has joined already", claim.rank))
                }
                // The peer does not dial again after its handshake, so without this connection the run cannot begin.
                Err(error) => drop(self.control.first_failure.post(error)),
            },
            Err(Refusal::NonFatal(why)) => self.refused.add(from, &why),
            Err(Refusal::Fatal(error)) => {
                self.control.first_failure.post(error);
            }
        }
    }

    /// Stores a connection to the process of a claim. Returns false if there is one already. Both sides have completed the handshake, so
    /// an error here ends the run.
    fn add(self: &Arc<Self>, claim: &Claim, link: Link) -> Result<bool, ClusterError> {
        self.configure(link.socket()).map_err(cannot_configure)?;
        match claim.kind {
            Kind::Control => {
                let added = self.control.attach(claim.rank, link)?;
                if added {
                    self.members.lock().unwrap_or_else(PoisonError::into_inner)[claim.rank] =
                        Some(claim.process.clone());
                }
                Ok(added)
            }
            Kind::Data => {
                let socket = link.socket();
                let unlimited = socket.set_read_timeout(None).and_then(|()| socket.set_write_timeout(None));
                unlimited.map_err(cannot_configure)?;
                let taken = self.is_taken(claim);
                if !taken {
                    self.data()[claim.rank] = Some((claim.process.clone(), link));
                }
                Ok(!taken)
            }
        }
    }

    /// Sets the socket options of both kinds of connection.
    fn configure(&self, stream: &TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let socket = SockRef::from(stream);
        let probe = (self.user_timeout / 5).clamp(Duration::from_secs(1), Duration::from_secs(10));
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(probe).with_interval(probe).with_retries(3))?;
        // Without it, a cut link with unacknowledged bytes is detected only after a quarter of an hour.
        socket.set_tcp_user_timeout(Some(self.user_timeout))
    }

    /// Dials a lower rank until both connections exist.
    fn dial(self: &Arc<Self>, rank: usize) {
        for kind in [Kind::Control, Kind::Data] {
            let mut pause = Duration::from_millis(10);
            while !self.is_done() {
                match self.dial_once(rank, kind) {
                    Ok((claim, link)) => {
                        if rank == 0 {
                            let mut announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
                            announced.clone_from(&claim.announced);
                        }
                        if let Err(error) = self.add(&claim, link) {
                            self.control.first_failure.post(error);
                        }
                        break;
                    }
                    Err(Refusal::Fatal(error)) => {
                        self.control.first_failure.post(error);
                        return;
                    }
                    Err(Refusal::NonFatal(why)) => self.set_problem(rank, why),
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(500));
            }
        }
    }

    fn dial_once(&self, rank: usize, kind: Kind) -> Result<(Claim, Link), Refusal> {
        let own = Party { claim: Claim { kind, ..self.party.claim.clone() }, ..self.party.clone() };
        connect(&own, rank, &self.control.addresses[rank], self.member(rank).as_deref(), HANDSHAKE_TIMEOUT)
    }
}

fn cannot_configure(error: std::io::Error) -> ClusterError {
    ClusterError::system("configure a connection", &error)
}
