//! The handshake on one connection: both sides prove the shared secret, then compare their claims.
//!
//! ```text
//! dialer → listener   magic, rank, Noise message: version, whether to encrypt
//! listener → dialer   magic, Noise message: the same                            or an empty message: wrong secret
//! dialer → listener   claim                                                     from here on encrypted
//! listener → dialer   claim
//! dialer → listener   1                                                         the connection is valid on both sides
//! ```
//!
//! Both compare versions only when the other side has proven the secret, so that a client without the secret cannot end a run. The
//! dialer's claim completes its proof: the first message may be a recorded one. All messages have a length limit, and the handshake has a
//! deadline. The bytes after it are encrypted, or plain if both sides have chosen that.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::wire::{Timed, read_bytes};
use super::{ClusterError, Fingerprints, Secret};
use crate::encryption::{CHANGED, Channel, Handshake, Link, Records};

/// Changes with the layout of the first messages.
const MAGIC: &[u8; 8] = b"gnnflow\x03";
/// Version of the claims and control frames.
pub(super) const VERSION: u32 = 3;
const OPENING_BYTES: usize = 8 + 4;
const HELLO_BYTES: usize = 4 + 1;

/// The name of the run in claims of the [roll call](super::roll_call), which no attempt has.
pub(super) const ROLL_CALL: &str = "roll call";

/// One side of a handshake.
#[derive(Debug, Clone)]
pub(super) struct Party {
    pub(super) version: u32,
    pub(super) secret: Option<Secret>,
    /// Whether the connection is encrypted after the handshake.
    pub(super) encrypt: bool,
    /// A listener ignores the kind.
    pub(super) claim: Claim,
}

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    /// Heartbeats and causes of failure.
    Control,
    /// Messages of timely.
    Data,
}

/// The identity of a process and its run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claim {
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) kind: Kind,
    pub(super) run: String,
    pub(super) build: String,
    pub(super) pipeline: String,
    pub(super) dataset: String,
    /// A random number of the process, which tells a restarted process from its predecessor.
    pub(super) process: String,
    /// The text of rank 0 for the others, see [`ClusterConfig::announced`](super::ClusterConfig::announced).
    pub(super) announced: String,
    /// Listener only: whether the dialer's rank has joined already.
    pub(super) taken: bool,
}

impl Claim {
    pub(super) fn new(rank: usize, size: usize, kind: Kind, run: &str, fingerprints: &Fingerprints) -> Self {
        let Fingerprints { build, pipeline, dataset } = fingerprints.clone();
        let (run, process, announced) = (run.to_string(), String::new(), String::new());
        Claim { rank, size, kind, run, build, pipeline, dataset, process, announced, taken: false }
    }

    /// Returns the first difference that makes a common run impossible: its name, this side's value, the other's value.
    fn difference(&self, theirs: &Claim) -> Option<(&'static str, String, String)> {
        let text = |what, a: &String, b: &String| (a != b).then(|| (what, quote(a), quote(b)));
        (self.size != theirs.size)
            .then(|| ("number of processes", self.size.to_string(), theirs.size.to_string()))
            .or_else(|| text("build of gnnflow", &self.build, &theirs.build))
            .or_else(|| text("pipeline", &self.pipeline, &theirs.pipeline))
            .or_else(|| text("prepared dataset", &self.dataset, &theirs.dataset))
    }
}

/// Returns the beginning of a text for an error, in one line.
fn quote(fingerprint: &str) -> String {
    let shown = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    if fingerprint.is_empty() { "none".to_string() } else { fingerprint.chars().take(80).map(shown).collect() }
}

/// Why a handshake did not end in a connection.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The other side is not, or not yet, a member of this run. The listener logs it, the dialer tries again.
    NonFatal(String),
    /// The other side knows the secret but cannot join, or has another secret.
    Fatal(ClusterError),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Refusal::NonFatal(match error.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock => {
                "connected but sent no complete handshake in time".to_string()
            }
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                "the connection was closed during the handshake".to_string()
            }
            _ if error.to_string() == CHANGED => "sent no valid proof of the secret".to_string(),
            _ => error.to_string(),
        })
    }
}

/// The content of a Noise message. The first bytes are the same in all versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hello {
    version: u32,
    encrypt: bool,
}

impl Hello {
    fn of(own: &Party) -> Self {
        Hello { version: own.version, encrypt: own.encrypt }
    }

    fn to_bytes(self) -> [u8; HELLO_BYTES] {
        let [a, b, c, d] = self.version.to_le_bytes();
        [a, b, c, d, self.encrypt.into()]
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, d, encrypt] = *bytes.first_chunk::<HELLO_BYTES>()?;
        Some(Hello { version: u32::from_le_bytes([a, b, c, d]), encrypt: encrypt != 0 })
    }

    /// Returns the first difference that makes a connection impossible.
    fn difference(self, theirs: Hello) -> Option<(&'static str, String, String)> {
        let on = |encrypt: bool| if encrypt { "on" } else { "off" }.to_string();
        (self.version != theirs.version)
            .then(|| ("protocol version", self.version.to_string(), theirs.version.to_string()))
            .or_else(|| {
                (self.encrypt != theirs.encrypt).then(|| ("cluster.encrypt", on(self.encrypt), on(theirs.encrypt)))
            })
    }
}

fn send(wire: &mut Timed<'_>, channel: &mut Channel, message: &[u8]) -> io::Result<()> {
    let mut records = Records::default();
    if channel.seal.seal(message, &mut records)? < message.len() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "a claim of the handshake is too long"));
    }
    wire.write_all(records.unsent())
}

/// Makes the connection that timely or the heartbeats use.
fn link(socket: TcpStream, channel: Channel, encrypt: bool) -> Link {
    if encrypt { Link::encrypted(socket, channel) } else { Link::plain(socket) }
}

/// Says that the other side is of another run or attempt.
fn another_run(own: &str, other: &str) -> String {
    let elastic = (own == ROLL_CALL || other == ROLL_CALL) && (own.is_empty() || other.is_empty());
    let why = if elastic { "; its cluster.elastic differs" } else { "" };
    format!("belongs to another run or attempt ({}{why})", quote(other))
}

fn claim_of(message: &[u8]) -> Result<Claim, Refusal> {
    serde_json::from_slice(message).map_err(|e| Refusal::NonFatal(format!("sent a claim that cannot be read: {e}")))
}

fn opening(own: &Party) -> [u8; OPENING_BYTES] {
    let mut opening = [0; OPENING_BYTES];
    opening[..8].copy_from_slice(MAGIC);
    opening[8..].copy_from_slice(&(own.claim.rank as u32).to_le_bytes());
    opening
}

fn read_magic(wire: &mut Timed<'_>) -> Result<(), Refusal> {
    let mut magic = [0; 8];
    wire.read_exact(&mut magic)?;
    if &magic == MAGIC {
        return Ok(());
    }
    let sent: String = magic.iter().flat_map(|byte| byte.escape_ascii()).map(char::from).collect();
    Err(Refusal::NonFatal(format!("does not speak gnnflow's protocol (it sent `{sent}`…)")))
}

fn read_opening(wire: &mut Timed<'_>) -> Result<[u8; OPENING_BYTES], Refusal> {
    // The magic alone is enough to detect other protocols.
    read_magic(wire)?;
    let mut opening = [0; OPENING_BYTES];
    opening[..8].copy_from_slice(MAGIC);
    wire.read_exact(&mut opening[8..])?;
    Ok(opening)
}

fn rank_of(opening: &[u8; OPENING_BYTES]) -> usize {
    u32::from_le_bytes([opening[8], opening[9], opening[10], opening[11]]) as usize
}

/// Returns an opening and a message as one block, so that they are one packet.
fn framed(opening: &[u8], message: &[u8]) -> Vec<u8> {
    [opening, &(message.len() as u32).to_le_bytes(), message].concat()
}

fn mismatch(peer: usize, address: &str, (what, ours, theirs): (&str, String, String)) -> Refusal {
    Refusal::Fatal(ClusterError::Mismatch {
        what: what.to_string(),
        rank: peer,
        address: address.to_string(),
        ours,
        theirs,
    })
}

/// Connects to rank `peer` at `address`, and makes the dialer's handshake, each within `limit`. See [`dial`].
pub(super) fn connect(
    own: &Party,
    peer: usize,
    address: &str,
    process: Option<&str>,
    limit: Duration,
) -> Result<(Claim, Link), Refusal> {
    let resolved =
        address.to_socket_addrs().map_err(|e| Refusal::NonFatal(format!("cannot resolve its host name: {e}")))?;
    let mut problem = "its host name has no address".to_string();
    for target in resolved {
        match TcpStream::connect_timeout(&target, limit / 2) {
            // A connection to a free port of this machine can connect to itself.
            Ok(stream) if stream.local_addr().ok() == Some(target) => problem = "no process listens there".into(),
            Ok(stream) => return dial(&stream, own, peer, address, process, limit),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                problem = "no process listens there yet".into()
            }
            Err(error) => problem = error.to_string(),
        }
    }
    Err(Refusal::NonFatal(problem))
}

/// Makes the dialer's handshake as `own` with rank `peer` at `address`. Returns the peer's claim and the connection.
///
/// `process` is the process at the other end of an earlier connection to the same rank, if there is one. Another process is refused.
pub(super) fn dial(
    stream: &TcpStream,
    own: &Party,
    peer: usize,
    address: &str,
    process: Option<&str>,
    limit: Duration,
) -> Result<(Claim, Link), Refusal> {
    // Nothing may fail on one side only after the last message.
    let socket = stream.try_clone()?;
    let wire = &mut Timed::new(stream, limit);
    let (mine, hello) = (opening(own), Hello::of(own));
    let mut noise = Handshake::dialer(&Secret::key(own.secret.as_ref()), &mine);
    wire.write_all(&framed(&mine, &noise.write(&hello.to_bytes())?))?;
    read_magic(wire)?;
    let wrong_secret = || Refusal::Fatal(ClusterError::WrongSecret { rank: peer, address: address.to_string() });
    let theirs = noise.read(&read_bytes(wire)?).ok_or_else(wrong_secret)?;
    let theirs = Hello::from_bytes(&theirs).ok_or_else(|| Refusal::NonFatal("sent an empty message".into()))?;
    let mut channel = noise.finish()?;

    send(wire, &mut channel, &serde_json::to_vec(&own.claim).map_err(io::Error::from)?)?;
    if let Some(difference) = hello.difference(theirs) {
        return Err(mismatch(peer, address, difference));
    }
    let claim = claim_of(&channel.open.open_one(wire)?)?;
    let own = &own.claim;
    if claim.run != own.run {
        return Err(Refusal::NonFatal(another_run(&own.run, &claim.run)));
    }
    if claim.rank != peer {
        let ranks = ("rank", format!("{peer} (hosts file)"), claim.rank.to_string());
        return Err(mismatch(peer, address, ranks));
    }
    if let Some(difference) = own.difference(&claim) {
        return Err(mismatch(peer, address, difference));
    }
    if claim.taken {
        return Err(Refusal::Fatal(ClusterError::RankTaken { rank: own.rank, address: address.to_string() }));
    }
    if process.is_some_and(|process| process != claim.process) {
        return Err(Refusal::NonFatal("was restarted during the handshakes".into()));
    }
    send(wire, &mut channel, &[1])?;
    Ok((claim, link(socket, channel, hello.encrypt)))
}

/// Makes the listener's handshake. `taken` returns whether a claimed rank has joined already. Returns the dialer's claim and the
/// connection, after the dialer has confirmed it.
pub(super) fn accept(
    stream: &TcpStream,
    own: &Party,
    addresses: &[String],
    taken: impl Fn(&Claim) -> bool,
    limit: Duration,
) -> Result<(Claim, Link), Refusal> {
    let socket = stream.try_clone()?;
    let wire = &mut Timed::new(stream, limit);
    let (theirs, hello) = (read_opening(wire)?, Hello::of(own));
    let mut noise = Handshake::listener(&Secret::key(own.secret.as_ref()), &theirs);
    let address_of = |rank: usize| match (addresses.get(rank), stream.peer_addr()) {
        (Some(address), _) => address.clone(),
        (None, Ok(from)) => from.to_string(),
        (None, Err(_)) => "unknown address".to_string(),
    };
    let peer = rank_of(&theirs);
    let Some(theirs) = noise.read(&read_bytes(wire)?) else {
        wire.write_all(&framed(MAGIC, &[]))?;
        return Err(Refusal::NonFatal(format!("says it is rank {peer}, but showed a wrong secret")));
    };
    let theirs = Hello::from_bytes(&theirs).ok_or_else(|| Refusal::NonFatal("sent an empty message".into()))?;
    wire.write_all(&framed(MAGIC, &noise.write(&hello.to_bytes())?))?;
    let mut channel = noise.finish()?;

    // The first record proves that the dialer has the secret, and has not only recorded a message.
    let claim = channel.open.open_one(wire)?;
    if let Some(difference) = hello.difference(theirs) {
        return Err(mismatch(peer, &address_of(peer), difference));
    }
    let (claim, own) = (claim_of(&claim)?, &own.claim);
    let mut reply = Claim { kind: claim.kind, ..own.clone() };
    reply.taken = taken(&claim);
    send(wire, &mut channel, &serde_json::to_vec(&reply).map_err(io::Error::from)?)?;
    if claim.run != own.run {
        return Err(Refusal::NonFatal(another_run(&own.run, &claim.run)));
    }
    if let Some(difference) = own.difference(&claim) {
        return Err(mismatch(claim.rank, &address_of(claim.rank), difference));
    }
    if claim.rank <= own.rank || claim.rank >= own.size {
        return Err(Refusal::NonFatal(format!("says it is rank {}, which does not dial this one", claim.rank)));
    }
    if reply.taken {
        return Err(Refusal::NonFatal(format!("says it is rank {}, which has joined already", claim.rank)));
    }
    // The dialer has proven the secret, and counts the connection as valid once it has sent its last message. So this side must not give up
    // while that is here, as with a deadline that passes while the process is stopped: the limit is for each read.
    stream.set_read_timeout(Some(limit))?;
    channel.open.open_one(&mut &*stream)?;
    Ok((claim, link(socket, channel, hello.encrypt)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const LIMIT: Duration = Duration::from_secs(5);

    fn party(rank: usize, secret: &str) -> Party {
        let fingerprints = Fingerprints { build: "b".into(), pipeline: "p".into(), dataset: String::new() };
        Party {
            version: VERSION,
            secret: Some(Secret::from_text(secret, "test").unwrap()),
            encrypt: true,
            claim: Claim::new(rank, 3, Kind::Data, "run/0", &fingerprints),
        }
    }

    /// Runs `listener_party` as listener and `dialer` on the other side. Returns both results.
    fn run_handshake<R: Send>(
        listener_party: Party,
        taken: bool,
        dialer: impl FnOnce(&mut TcpStream) -> R + Send,
    ) -> (Result<Claim, Refusal>, R) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let addresses: Vec<String> = (0..3).map(|rank| format!("host{rank}:1")).collect();
        std::thread::scope(|scope| {
            let dialed = scope.spawn(move || dialer(&mut TcpStream::connect(address).unwrap()));
            let (stream, _) = listener.accept().unwrap();
            let accepted = accept(&stream, &listener_party, &addresses, |_| taken, Duration::from_millis(800));
            drop(stream);
            (accepted.map(|(claim, _)| claim), dialed.join().unwrap())
        })
    }

    fn both(listener: Party, dialer: Party, taken: bool) -> (Result<Claim, Refusal>, Result<Claim, Refusal>) {
        run_handshake(listener, taken, move |stream| {
            dial(stream, &dialer, 0, "host0:1", None, LIMIT).map(|(claim, _)| claim)
        })
    }

    #[test]
    fn texts_of_the_other_side_stay_in_one_line() {
        assert_eq!(quote("a\nb\u{1b}[2J"), "a\u{fffd}b\u{fffd}[2J");
        assert_eq!(quote(""), "none");
    }

    #[test]
    fn handshake_of_equal_parties_succeeds() {
        let (accepted, dialed) = both(party(0, "sixteen bytes ok"), party(2, "sixteen bytes ok"), false);
        let accepted = accepted.unwrap();
        assert_eq!((accepted.rank, accepted.kind), (2, Kind::Data));
        assert_eq!(dialed.unwrap().rank, 0);
    }

    #[test]
    fn dial_refuses_a_restarted_process() {
        for (expected, meets) in [("first", true), ("second", false)] {
            let mut listener = party(0, "sixteen bytes ok");
            listener.claim.process = "first".into();
            let dialer = party(1, "sixteen bytes ok");
            let (accepted, dialed) = run_handshake(listener, false, move |stream| {
                dial(stream, &dialer, 0, "host0:1", Some(expected), LIMIT).map(drop)
            });
            assert_eq!((accepted.is_ok(), dialed.is_ok()), (meets, meets));
        }
    }

    #[test]
    fn wrong_secret_is_fatal_for_the_dialer_only() {
        let (accepted, dialed) = both(party(0, "sixteen bytes ok"), party(1, "sixteen bytes no"), false);
        assert!(
            matches!(accepted, Err(Refusal::NonFatal(why)) if why.contains("rank 1") && why.contains("wrong secret"))
        );
        let expected = ClusterError::WrongSecret { rank: 0, address: "host0:1".into() };
        assert!(matches!(dialed, Err(Refusal::Fatal(error)) if error == expected));
    }

    #[test]
    fn differences_are_named_on_both_sides() {
        type Change = fn(&mut Party);
        let changes: [(&str, Change); 6] = [
            ("protocol version", |party| party.version = 9),
            ("cluster.encrypt", |party| party.encrypt = false),
            ("build", |party| party.claim.build = "c".into()),
            ("pipeline", |party| party.claim.pipeline = "q".into()),
            ("dataset", |party| party.claim.dataset = "d".into()),
            ("number of processes", |party| party.claim.size = 4),
        ];
        for (word, change) in changes {
            let mut other = party(1, "sixteen bytes ok");
            change(&mut other);
            let (accepted, dialed) = both(party(0, "sixteen bytes ok"), other, false);
            let (Err(Refusal::Fatal(here)), Err(Refusal::Fatal(there))) = (accepted, dialed) else { panic!("{word}") };
            assert!(here.to_string().starts_with("rank 1 (host1:1)") && here.to_string().contains(word), "{here}");
            assert!(there.to_string().starts_with("rank 0 (host0:1)") && there.to_string().contains(word), "{there}");
            assert_eq!((here.exit_code(), there.exit_code()), (5, 5));
        }
    }

    #[test]
    fn another_attempt_is_not_fatal_and_a_taken_rank_is() {
        let mut late = party(1, "sixteen bytes ok");
        late.claim.run = "run/1".into();
        let (accepted, dialed) = both(party(0, "sixteen bytes ok"), late, false);
        assert!(matches!(accepted, Err(Refusal::NonFatal(why)) if why.contains("attempt")));
        assert!(matches!(dialed, Err(Refusal::NonFatal(why)) if why.contains("attempt")));
        let (accepted, dialed) = both(party(0, "sixteen bytes ok"), party(1, "sixteen bytes ok"), true);
        assert!(matches!(accepted, Err(Refusal::NonFatal(_))));
        assert!(matches!(dialed, Err(Refusal::Fatal(ClusterError::RankTaken { rank: 1, .. }))));
        let (accepted, _) = both(party(1, "sixteen bytes ok"), party(1, "sixteen bytes ok"), false);
        assert!(matches!(accepted, Err(Refusal::NonFatal(_))), "only higher ranks dial");
    }

    #[test]
    fn other_clients_are_refused_without_a_proof() {
        let says: [(&str, Vec<u8>); 6] = [
            ("GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
            ("closed", b"".to_vec()),
            ("closed", b"gnnflow".to_vec()),
            ("wrong secret", framed(&[&MAGIC[..], &[1, 0, 0, 0]].concat(), &[7; 1000])),
            ("frame of", [&MAGIC[..], &[7; 1000]].concat()),
            ("protocol", vec![0xff; 1 << 20]),
        ];
        for (word, bytes) in says {
            let (accepted, received) = run_handshake(party(0, "sixteen bytes ok"), false, move |stream| {
                let _ = stream.write_all(&bytes);
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let mut received = Vec::new();
                let _ = stream.read_to_end(&mut received);
                received
            });
            assert!(matches!(&accepted, Err(Refusal::NonFatal(why)) if why.contains(word)), "{word}: {accepted:?}");
            assert!(received.len() <= MAGIC.len() + 4, "no proof without a proof");
        }
        let (accepted, ()) = run_handshake(party(0, "sixteen bytes ok"), false, |stream| {
            let _ = stream.read(&mut [0]);
        });
        assert!(matches!(accepted, Err(Refusal::NonFatal(why)) if why.contains("no complete handshake")));
    }

    #[test]
    fn dial_refuses_its_own_proof() {
        // This listener returns the dialer's message.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mirror = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut message = [0; 1024];
            let length = stream.read(&mut message).unwrap();
            stream.write_all(&message[..length]).unwrap();
        });
        let stream = TcpStream::connect(address).unwrap();
        let dialed = dial(&stream, &party(1, "sixteen bytes ok"), 0, "host0:1", None, LIMIT);
        assert!(matches!(dialed, Err(Refusal::Fatal(ClusterError::WrongSecret { .. }))));
        mirror.join().unwrap();
    }

    #[test]
    fn a_recorded_handshake_is_refused() {
        // Passes the bytes of a dialer to a listener and records them.
        let (recorded, sent) = std::sync::mpsc::channel();
        let (accepted, ()) = run_handshake(party(0, "sixteen bytes ok"), false, move |stream| {
            let relay = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = relay.local_addr().unwrap();
            let dialer = std::thread::spawn(move || {
                let stream = TcpStream::connect(address).unwrap();
                dial(&stream, &party(1, "sixteen bytes ok"), 0, "host0:1", None, LIMIT).map(drop)
            });
            let (mut near, _) = relay.accept().unwrap();
            let (mut back, mut far) = (near.try_clone().unwrap(), stream.try_clone().unwrap());
            let answers = std::thread::spawn(move || std::io::copy(&mut far, &mut back));
            let (mut bytes, mut all) = ([0; 4096], Vec::new());
            while let Ok(count @ 1..) = near.read(&mut bytes) {
                all.extend_from_slice(&bytes[..count]);
                stream.write_all(&bytes[..count]).unwrap();
            }
            dialer.join().unwrap().unwrap();
            stream.shutdown(std::net::Shutdown::Both).unwrap();
            let _ = answers.join().unwrap();
            recorded.send(all).unwrap();
        });
        assert_eq!(accepted.unwrap().rank, 1);
        let sent: Vec<u8> = sent.recv().unwrap();
        let (accepted, ()) = run_handshake(party(0, "sixteen bytes ok"), false, move |stream| {
            stream.write_all(&sent).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        });
        assert!(matches!(&accepted, Err(Refusal::NonFatal(why)) if why.contains("no valid proof")), "{accepted:?}");
    }

    #[test]
    fn the_connection_is_encrypted_unless_both_choose_otherwise() {
        for encrypt in [true, false] {
            let parties = [0, 1].map(|rank| Party { encrypt, ..party(rank, "sixteen bytes ok") });
            let [listening, dialing] = parties;
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let dialed = std::thread::spawn(move || {
                let stream = TcpStream::connect(address).unwrap();
                dial(&stream, &dialing, 0, "host0:1", None, LIMIT).unwrap().1
            });
            let (stream, _) = listener.accept().unwrap();
            let addresses: Vec<String> = (0..3).map(|rank| format!("host{rank}:1")).collect();
            let (_, mut link) = accept(&stream, &listening, &addresses, |_| false, LIMIT).unwrap();
            let mut theirs = dialed.join().unwrap();
            link.write_all(b"a message").unwrap();
            let mut bytes = [0; 9];
            // A third party sees these bytes.
            theirs.socket().peek(&mut bytes).unwrap();
            assert_eq!(&bytes == b"a message", !encrypt);
            theirs.read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"a message");
        }
    }
}
