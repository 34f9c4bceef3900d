//! Meeting the others: one listener, one dialler for each lower rank, start-up messages, one deadline.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};

use super::control::{Control, seconds};
use super::handshake::{Claim, Kind, Party, Refusal, VERSION, answer, dial};
use super::{ClusterConfig, ClusterError};

/// One handshake must be done within this time.
const HANDSHAKE: Duration = Duration::from_secs(4);
/// Handshakes that go on at once; further connections wait in the system's queue.
const GUESTS: usize = 128;
/// Refused connections that are logged one by one, of one kind and of all kinds; further ones are only counted.
const LOGGED_ALIKE: usize = 3;
const LOGGED: usize = 30;

/// The time between the first socket and the last handshake.
pub(super) struct Meeting {
    party: Party,
    control: Arc<Control>,
    user_timeout: Duration,
    data: Mutex<Vec<Option<TcpStream>>>,
    /// By rank: what was last seen of it, for the start-up messages.
    notes: Mutex<Vec<String>>,
    over: AtomicBool,
    guests: AtomicUsize,
    refused: Mutex<Refused>,
}

/// Connections that were refused.
#[derive(Default)]
struct Refused {
    total: usize,
    logged: usize,
    alike: HashMap<String, usize>,
    /// The last one; perhaps it was a missing rank with a wrong secret.
    last: String,
}

impl Meeting {
    /// A meeting as `config` says, whose control connections go to `control`.
    pub(super) fn new(config: &ClusterConfig, control: Arc<Control>) -> Arc<Self> {
        Arc::new(Meeting {
            party: Party {
                version: VERSION,
                secret: config.secret.clone(),
                claim: Claim::new(config.rank, config.size(), Kind::Control, &config.run, &config.fingerprints),
            },
            control,
            user_timeout: config.heartbeat_timeout,
            data: Mutex::new((0..config.size()).map(|_| None).collect()),
            notes: Mutex::new(vec![String::new(); config.size()]),
            over: AtomicBool::new(false),
            guests: AtomicUsize::new(0),
            refused: Mutex::default(),
        })
    }

    /// Runs the listener and the diallers until nobody is missing; the data connections, by rank.
    pub(super) fn run(
        self: Arc<Self>,
        listener: TcpListener,
        deadline: Instant,
        limit: Duration,
    ) -> Result<Vec<Option<TcpStream>>, ClusterError> {
        let met = self.meet(listener, deadline, limit);
        self.over.store(true, Ordering::Relaxed);
        met.map(|()| std::mem::take(&mut *self.data()))
    }

    fn data(&self) -> MutexGuard<'_, Vec<Option<TcpStream>>> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refused(&self) -> MutexGuard<'_, Refused> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, rank: usize, text: String) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)[rank] = text;
    }

    fn has(&self, rank: usize, kind: Kind) -> bool {
        match kind {
            Kind::Control => self.control.is_attached(rank),
            Kind::Data => self.data()[rank].is_some(),
        }
    }

    /// Ranks without both connections.
    fn missing(&self) -> Vec<usize> {
        let me = self.control.me;
        (0..self.control.addresses.len())
            .filter(|rank| *rank != me && !(self.has(*rank, Kind::Control) && self.has(*rank, Kind::Data)))
            .collect()
    }

    fn describe(&self, rank: usize) -> String {
        let note = self.notes.lock().unwrap_or_else(PoisonError::into_inner)[rank].clone();
        let note = if note.is_empty() { "nothing heard of it yet".to_string() } else { note };
        format!("rank {rank} ({}): {note}", self.control.addresses[rank])
    }

    fn meet(self: &Arc<Self>, listener: TcpListener, deadline: Instant, limit: Duration) -> Result<(), ClusterError> {
        let me = self.control.me;
        let no_thread = |e| self.control.fail(ClusterError::system("start a thread", &e));
        listener.set_nonblocking(true).map_err(|e| self.control.fail(ClusterError::system("use the listener", &e)))?;
        let meeting = self.clone();
        let spawn = std::thread::Builder::new().name("cluster:listen".into()).spawn(move || meeting.listen(&listener));
        let listening = spawn.map_err(no_thread)?;
        for rank in 0..me {
            let meeting = self.clone();
            let dialler = std::thread::Builder::new().name(format!("cluster:dial-{rank}"));
            dialler.spawn(move || meeting.dial(rank)).map_err(no_thread)?;
        }
        let report = (limit / 4).clamp(Duration::from_millis(200), Duration::from_secs(5));
        let mut next_report = Instant::now() + report;
        loop {
            let missing = self.missing();
            if missing.is_empty() {
                break;
            }
            if let Some(cause) = self.control.board.wait(Duration::from_millis(10)) {
                return Err(self.control.fail(cause));
            }
            let now = Instant::now();
            if now >= deadline {
                let lines: Vec<String> = missing.iter().map(|rank| self.describe(*rank)).collect();
                let rank = missing[0];
                let first = self.notes.lock().unwrap_or_else(PoisonError::into_inner)[rank].clone();
                let mut why = format!("did not join within {}", seconds(limit));
                if !first.is_empty() {
                    why = format!("{why}: {first}");
                }
                let refusal = self.refused().last.clone();
                if !refusal.is_empty() {
                    why = format!("{why}; the last connection refused here was {refusal}");
                }
                if lines.len() > 1 {
                    why = format!("{why}; also missing: {}", lines[1..].join("; "));
                }
                let address = self.control.addresses[rank].clone();
                return Err(self.control.fail(ClusterError::Lost { rank, address, why }));
            }
            if now >= next_report {
                next_report = now + report;
                let lines: Vec<String> = missing.iter().map(|rank| self.describe(*rank)).collect();
                tracing::warn!(
                    "rank {me} waits for {} of {} processes (at most {} more): {}",
                    lines.len(),
                    self.control.addresses.len(),
                    seconds(deadline.saturating_duration_since(now)),
                    lines.join("; ")
                );
            }
        }
        self.over.store(true, Ordering::Relaxed);
        // Frees the port; the thread looks at `over` every few milliseconds. Its panics are posted by the hook.
        let _ = listening.join();
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed) || self.control.board.is_troubled()
    }

    /// Accepts until the meeting is over; every guest gets a thread, so that none can hold up another.
    fn listen(self: &Arc<Self>, listener: &TcpListener) {
        while !self.is_over() {
            if self.guests.load(Ordering::Relaxed) >= GUESTS {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            match listener.accept() {
                Ok((stream, from)) => {
                    self.guests.fetch_add(1, Ordering::Relaxed);
                    let meeting = self.clone();
                    let guest = std::thread::Builder::new().name("cluster:guest".into()).stack_size(256 << 10);
                    let spawned = guest.spawn(move || {
                        meeting.receive(&stream, from);
                        meeting.guests.fetch_sub(1, Ordering::Relaxed);
                    });
                    if let Err(error) = spawned {
                        self.guests.fetch_sub(1, Ordering::Relaxed);
                        self.refuse(from, &format!("no thread for it: {error}"));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(4)),
                // The guest is gone already, or we are short of files for a moment: neither ends the meeting.
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        let refused = self.refused();
        if refused.total > refused.logged {
            tracing::warn!("refused {} connections in all while the processes met", refused.total);
        }
    }

    fn refuse(&self, from: SocketAddr, why: &str) {
        let mut refused = self.refused();
        refused.total += 1;
        refused.last = format!("from {from}: {why}");
        // Beyond the last line that is logged, no new kinds are kept: strangers must not fill the memory.
        if refused.logged >= LOGGED {
            return;
        }
        let alike = refused.alike.entry(why.to_string()).or_default();
        *alike += 1;
        if *alike <= LOGGED_ALIKE {
            refused.logged += 1;
            tracing::warn!("refused a connection from {from}: {why}");
        }
    }

    /// One guest's handshake.
    fn receive(self: &Arc<Self>, stream: &TcpStream, from: SocketAddr) {
        let addresses = &self.control.addresses;
        let answered = stream.set_nonblocking(false).map_err(Refusal::from).and_then(|()| {
            let taken = |rank: usize, kind| rank < addresses.len() && self.has(rank, kind);
            answer(stream, &self.party, addresses, taken, HANDSHAKE)
        });
        match answered {
            Ok((rank, kind)) => match stream.try_clone().and_then(|stream| self.keep(rank, kind, stream)) {
                Ok(true) => {}
                Ok(false) => self.refuse(from, &format!("says it is rank {rank}, which has joined already")),
                Err(error) => self.note(rank, format!("its connection cannot be used: {error}")),
            },
            Err(Refusal::Stranger(why)) => self.refuse(from, &why),
            Err(Refusal::Fatal(error)) => {
                self.control.board.post(error);
            }
        }
    }

    /// Keeps a connection that both sides count on. False when there is one already.
    fn keep(self: &Arc<Self>, rank: usize, kind: Kind, stream: TcpStream) -> std::io::Result<bool> {
        stream.set_nodelay(true)?;
        let socket = SockRef::from(&stream);
        let probe = (self.user_timeout / 5).clamp(Duration::from_secs(1), Duration::from_secs(10));
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(probe).with_interval(probe).with_retries(3))?;
        // Without it a cut link goes unnoticed for a quarter of an hour as long as there are unacknowledged bytes.
        socket.set_tcp_user_timeout(Some(self.user_timeout))?;
        match kind {
            Kind::Control => self.control.attach(rank, stream),
            Kind::Data => {
                stream.set_read_timeout(None)?;
                stream.set_write_timeout(None)?;
                let slot = &mut self.data()[rank];
                Ok(slot.is_none() && slot.replace(stream).is_none())
            }
        }
    }

    /// Dials one lower rank until both connections stand.
    fn dial(self: &Arc<Self>, rank: usize) {
        for kind in [Kind::Control, Kind::Data] {
            let mut pause = Duration::from_millis(10);
            while !self.is_over() {
                match self.dial_once(rank, kind) {
                    Ok(stream) => {
                        if let Err(error) = self.keep(rank, kind, stream) {
                            self.control.board.post(ClusterError::system("configure a connection", &error));
                        }
                        break;
                    }
                    Err(Refusal::Fatal(error)) => {
                        self.control.board.post(error);
                        return;
                    }
                    Err(Refusal::Stranger(why)) => self.note(rank, why),
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(500));
            }
        }
    }

    fn dial_once(&self, rank: usize, kind: Kind) -> Result<TcpStream, Refusal> {
        let address = &self.control.addresses[rank];
        let resolved =
            address.to_socket_addrs().map_err(|e| Refusal::Stranger(format!("cannot resolve its name: {e}")))?;
        let mut problem = "its name has no address".to_string();
        for target in resolved {
            match TcpStream::connect_timeout(&target, HANDSHAKE / 2) {
                // Dialling a free port of this machine can connect to itself.
                Ok(stream) if stream.local_addr().ok() == Some(target) => problem = "nobody listens there".into(),
                Ok(stream) => {
                    let own = Party { claim: Claim { kind, ..self.party.claim.clone() }, ..self.party.clone() };
                    return dial(&stream, &own, rank, address, HANDSHAKE).map(|()| stream);
                }
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    problem = "nobody listens there yet".into()
                }
                Err(error) => problem = error.to_string(),
            }
        }
        Err(Refusal::Stranger(problem))
    }
}
