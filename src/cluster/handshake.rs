//! The handshake on one connection: both sides prove the shared secret, then compare their claims.
//!
//! ```text
//! dialer → listener   magic, version, rank, nonce      opening: the same in all versions
//! listener → dialer   magic, version, rank, nonce
//! dialer → listener   HMAC(secret, "dialler" | both openings)
//! listener → dialer   1, HMAC(secret, "listener" | both openings)       or 0: wrong secret
//! dialer → listener   claim, HMAC(session, "dialler" | claim)           session = HMAC(secret, "session" | both openings)
//! listener → dialer   claim, HMAC(session, "listener" | claim)
//! dialer → listener   1                                                 the connection is valid on both sides
//! ```
//!
//! Versions are compared after the proof, so that a client without the secret cannot end a run. The listener sends its proof only
//! after the dialer's. All messages have a length limit, and the handshake has a deadline.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use super::wire::{Timed, read_bytes};
use super::{ClusterError, Fingerprints, Secret};

const MAGIC: &[u8; 8] = b"gnnflow\0";
/// Version of the claims and control frames.
pub(super) const VERSION: u32 = 2;
const OPENING_BYTES: usize = 8 + 4 + 4 + 32;

pub(crate) type Tag = [u8; 32];

/// One side of a handshake.
#[derive(Debug, Clone)]
pub(super) struct Party {
    pub(super) version: u32,
    pub(super) secret: Option<Secret>,
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

fn quote(fingerprint: &str) -> String {
    if fingerprint.is_empty() { "none".to_string() } else { fingerprint.chars().take(80).collect() }
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
            ErrorKind::TimedOut => "connected but sent no complete handshake in time".to_string(),
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                "the connection was closed during the handshake".to_string()
            }
            _ => error.to_string(),
        })
    }
}

/// Both openings, and the keys derived from them.
struct Session<'a> {
    secret: &'a [u8],
    openings: Vec<u8>,
    key: Tag,
}

impl<'a> Session<'a> {
    fn new(secret: Option<&'a Secret>, dialer: &[u8; OPENING_BYTES], listener: &[u8; OPENING_BYTES]) -> Self {
        // Without a secret (loopback only), the proof uses a constant key.
        let secret = secret.map_or(&b"loopback"[..], Secret::as_bytes);
        let openings = [&dialer[..], &listener[..]].concat();
        let key = mac(secret, "session", &openings);
        Session { secret, openings, key }
    }

    fn proof(&self, role: &str) -> Tag {
        mac(self.secret, role, &self.openings)
    }

    fn send_claim(&self, wire: &mut Timed<'_>, role: &str, claim: &Claim) -> io::Result<()> {
        let body = serde_json::to_vec(claim)?;
        let frame = [&(body.len() as u32).to_le_bytes()[..], &body, &mac(&self.key, role, &body)].concat();
        wire.write_all(&frame)
    }

    fn receive_claim(&self, wire: &mut Timed<'_>, role: &str) -> Result<Claim, Refusal> {
        let body = read_bytes(wire)?;
        if !equal(&read_tag(wire)?, &mac(&self.key, role, &body)) {
            return Err(Refusal::NonFatal("sent a claim with a wrong signature".into()));
        }
        serde_json::from_slice(&body).map_err(|e| Refusal::NonFatal(format!("sent a claim that cannot be read: {e}")))
    }
}

/// Returns the HMAC of `data`. `purpose` separates its uses.
pub(crate) fn mac(key: &[u8], purpose: &str, data: &[u8]) -> Tag {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC accepts every key length");
    mac.update(b"gnnflow handshake ");
    mac.update(&(purpose.len() as u64).to_le_bytes());
    mac.update(purpose.as_bytes());
    mac.update(data);
    mac.finalize().into_bytes().into()
}

fn equal(a: &Tag, b: &Tag) -> bool {
    constant_time_eq(a, b)
}

/// Compares two proofs in constant time.
pub(crate) fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    a.ct_eq(b).into()
}

fn read_tag(wire: &mut Timed<'_>) -> io::Result<Tag> {
    let mut tag = [0; 32];
    wire.read_exact(&mut tag)?;
    Ok(tag)
}

fn own_opening(own: &Party) -> Result<[u8; OPENING_BYTES], Refusal> {
    let mut opening = [0; OPENING_BYTES];
    opening[..8].copy_from_slice(MAGIC);
    opening[8..12].copy_from_slice(&own.version.to_le_bytes());
    opening[12..16].copy_from_slice(&(own.claim.rank as u32).to_le_bytes());
    getrandom::fill(&mut opening[16..])
        .map_err(|e| Refusal::NonFatal(format!("no random bytes from the system: {e}")))?;
    Ok(opening)
}

fn read_opening(wire: &mut Timed<'_>) -> Result<[u8; OPENING_BYTES], Refusal> {
    let mut opening = [0; OPENING_BYTES];
    // The first bytes are enough to detect other protocols.
    wire.read_exact(&mut opening[..8])?;
    if &opening[..8] != MAGIC {
        let sent: String = opening[..8].iter().flat_map(|byte| byte.escape_ascii()).map(char::from).collect();
        return Err(Refusal::NonFatal(format!("does not speak gnnflow's protocol (it sent `{sent}`…)")));
    }
    wire.read_exact(&mut opening[8..])?;
    Ok(opening)
}

fn version_of(opening: &[u8; OPENING_BYTES]) -> u32 {
    u32::from_le_bytes([opening[8], opening[9], opening[10], opening[11]])
}

fn rank_of(opening: &[u8; OPENING_BYTES]) -> usize {
    u32::from_le_bytes([opening[12], opening[13], opening[14], opening[15]]) as usize
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

/// Makes the dialer's handshake as `own` with rank `peer` at `address`. Returns the peer's claim.
///
/// `process` is the process at the other end of an earlier connection to the same rank, if there is one. Another process is refused.
pub(super) fn dial(
    stream: &TcpStream,
    own: &Party,
    peer: usize,
    address: &str,
    process: Option<&str>,
    limit: Duration,
) -> Result<Claim, Refusal> {
    let wire = &mut Timed::new(stream, limit);
    let mine = own_opening(own)?;
    wire.write_all(&mine)?;
    let theirs = read_opening(wire)?;
    let session = Session::new(own.secret.as_ref(), &mine, &theirs);
    let wrong_secret = || Refusal::Fatal(ClusterError::WrongSecret { rank: peer, address: address.to_string() });

    wire.write_all(&session.proof("dialler"))?;
    let mut known = [0];
    wire.read_exact(&mut known)?;
    if known != [1] || !equal(&read_tag(wire)?, &session.proof("listener")) {
        return Err(wrong_secret());
    }
    if version_of(&theirs) != own.version {
        return Err(mismatch(peer, address, versions(own, &theirs)));
    }

    let own = &own.claim;
    session.send_claim(wire, "dialler", own)?;
    let claim = session.receive_claim(wire, "listener")?;
    if claim.run != own.run {
        return Err(Refusal::NonFatal(format!("belongs to another run or attempt ({})", quote(&claim.run))));
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
    wire.write_all(&[1])?;
    Ok(claim)
}

fn versions(own: &Party, theirs: &[u8; OPENING_BYTES]) -> (&'static str, String, String) {
    ("protocol version", own.version.to_string(), version_of(theirs).to_string())
}

/// Makes the listener's handshake. `taken` returns whether a claimed rank has joined already. Returns the dialer's claim, after the
/// dialer has confirmed the connection.
pub(super) fn accept(
    stream: &TcpStream,
    own: &Party,
    addresses: &[String],
    taken: impl Fn(&Claim) -> bool,
    limit: Duration,
) -> Result<Claim, Refusal> {
    let wire = &mut Timed::new(stream, limit);
    let theirs = read_opening(wire)?;
    let mine = own_opening(own)?;
    wire.write_all(&mine)?;
    let session = Session::new(own.secret.as_ref(), &theirs, &mine);
    let address_of = |rank: usize| match (addresses.get(rank), stream.peer_addr()) {
        (Some(address), _) => address.clone(),
        (None, Ok(from)) => from.to_string(),
        (None, Err(_)) => "unknown address".to_string(),
    };

    if !equal(&read_tag(wire)?, &session.proof("dialler")) {
        // As long as the response to a valid proof, so that the dialer reads all of it.
        wire.write_all(&[0; 33])?;
        return Err(Refusal::NonFatal(format!("says it is rank {}, but showed a wrong secret", rank_of(&theirs))));
    }
    wire.write_all(&[&[1][..], &session.proof("listener")].concat())?;
    if version_of(&theirs) != own.version {
        let peer = rank_of(&theirs);
        return Err(mismatch(peer, &address_of(peer), versions(own, &theirs)));
    }

    let own = &own.claim;
    let claim = session.receive_claim(wire, "dialler")?;
    let mut reply = Claim { kind: claim.kind, ..own.clone() };
    reply.taken = taken(&claim);
    session.send_claim(wire, "listener", &reply)?;
    if claim.run != own.run {
        return Err(Refusal::NonFatal(format!("belongs to another run or attempt ({})", quote(&claim.run))));
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
    // The dialer has proven the secret. Its last message gets a new time limit, so that on a busy machine both sides agree on whether
    // the connection is valid.
    let mut last = [0];
    Timed::new(stream, limit).read_exact(&mut last)?;
    Ok(claim)
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
            (accepted, dialed.join().unwrap())
        })
    }

    fn both(listener: Party, dialer: Party, taken: bool) -> (Result<Claim, Refusal>, Result<Claim, Refusal>) {
        run_handshake(listener, taken, move |stream| dial(stream, &dialer, 0, "host0:1", None, LIMIT))
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
        let changes: [(&str, Change); 5] = [
            ("protocol version", |party| party.version = 9),
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
        let says: [(&str, Vec<u8>); 5] = [
            ("GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
            ("closed", b"".to_vec()),
            ("closed", b"gnnflow".to_vec()),
            ("wrong secret", [&MAGIC[..], &[1, 0, 0, 0], &[7; 1000]].concat()),
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
            assert!(received.len() <= OPENING_BYTES + 33, "no proof without a proof");
        }
        let (accepted, ()) = run_handshake(party(0, "sixteen bytes ok"), false, |stream| {
            let _ = stream.read(&mut [0]);
        });
        assert!(matches!(accepted, Err(Refusal::NonFatal(why)) if why.contains("no complete handshake")));
    }

    #[test]
    fn dial_refuses_its_own_proof() {
        // This listener returns the dialer's opening and proof.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mirror = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut opening = [0; OPENING_BYTES];
            stream.read_exact(&mut opening).unwrap();
            stream.write_all(&opening).unwrap();
            let mut proof = [0; 32];
            stream.read_exact(&mut proof).unwrap();
            stream.write_all(&[&[1][..], &proof].concat()).unwrap();
        });
        let stream = TcpStream::connect(address).unwrap();
        let dialed = dial(&stream, &party(1, "sixteen bytes ok"), 0, "host0:1", None, LIMIT);
        assert!(matches!(dialed, Err(Refusal::Fatal(ClusterError::WrongSecret { .. }))));
        mirror.join().unwrap();
    }
}
