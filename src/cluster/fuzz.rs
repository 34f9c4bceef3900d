//! Fuzz targets of the connections between processes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use gnnflow_data::testing::corpus::parts;

use super::control::{Control, Frame};
use super::handshake::{Claim, Kind, Party, Refusal, VERSION, accept, dial};
use super::hosts::{check_address, host_numbers, parse_hosts};
use super::wire::read_frame;
use super::{Fingerprints, Secret};
use crate::encryption::{Handshake, Link, Records};

const LIMIT: Duration = Duration::from_secs(2);

/// Both ends of a connection without a network.
fn sockets() -> (TcpStream, TcpStream) {
    let (one, other) = UnixStream::pair().expect("sockets can be made");
    (TcpStream::from(OwnedFd::from(one)), TcpStream::from(OwnedFd::from(other)))
}

/// The party of a rank in a run of three processes.
fn party(rank: usize) -> Party {
    let fingerprints = Fingerprints { build: "b".into(), pipeline: "p".into(), dataset: String::new() };
    Party {
        version: VERSION,
        secret: Some(Secret::from_text("sixteen bytes or more", "test").expect("the secret is long enough")),
        encrypt: true,
        claim: Claim::new(rank, 3, Kind::Data, "run/0", &fingerprints),
    }
}

/// Returns a claim of the process with this rank, for the corpus.
#[cfg(test)]
pub(crate) fn claim(rank: usize) -> Vec<u8> {
    serde_json::to_vec(&party(rank).claim).expect("a claim is JSON")
}

/// A handshake with a side that sends these bytes. The first one says which side it is, and whether it knows the secret; it then sends the
/// other parts within the protocol: the bytes before its Noise message, the content of that message, and records.
pub fn handshake(bytes: &[u8]) -> bool {
    let Some((&mode, content)) = bytes.split_first() else { return false };
    let (mine, theirs) = sockets();
    let (dials, knows) = (mode & 1 == 0, mode & 2 != 0);
    let own = party(usize::from(!dials));
    let result = std::thread::scope(|scope| {
        scope.spawn(move || {
            // The other end may close the connection at any time.
            let _ = if knows { member(theirs, dials, content) } else { stranger(theirs, content) };
        });
        let result = if dials {
            let addresses: Vec<String> = (0..3).map(|rank| format!("host{rank}:1")).collect();
            accept(&mine, &own, &addresses, |_| false, LIMIT)
        } else {
            dial(&mine, &own, 0, "host0:1", None, LIMIT)
        };
        let _ = mine.shutdown(Shutdown::Both);
        result
    });
    match result {
        Ok((claim, _)) => {
            assert!(knows, "a stranger was accepted");
            assert_eq!((&claim.run, claim.size, &claim.build), (&own.claim.run, 3, &own.claim.build));
            assert!(if dials { (1..3).contains(&claim.rank) } else { claim.rank == 0 && !claim.taken });
            true
        }
        Err(Refusal::NonFatal(_)) => false,
        Err(Refusal::Fatal(error)) => {
            assert!(!error.to_string().contains('\n') && error.exit_code() != 70, "{error}");
            false
        }
    }
}

fn stranger(mut socket: TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    socket.write_all(bytes)?;
    socket.shutdown(Shutdown::Write)?;
    std::io::copy(&mut socket, &mut std::io::sink()).map(drop)
}

fn member(mut socket: TcpStream, dials: bool, content: &[u8]) -> std::io::Result<()> {
    let parts = parts(content);
    let (first, hello) = (parts[0], parts.get(1).copied().unwrap_or_default());
    let hello = &hello[..hello.len().min(1 << 10)];
    let key = Secret::key(party(0).secret.as_ref());
    let read = |socket: &mut TcpStream, before: usize| -> std::io::Result<(Vec<u8>, Vec<u8>)> {
        let (mut begin, mut length) = (vec![0; before], [0; 4]);
        socket.read_exact(&mut begin)?;
        socket.read_exact(&mut length)?;
        let mut message = vec![0; u32::from_le_bytes(length) as usize];
        socket.read_exact(&mut message)?;
        Ok((begin, message))
    };
    let send = |socket: &mut TcpStream, first: &[u8], message: &[u8]| {
        socket.write_all(&[first, &(message.len() as u32).to_le_bytes(), message].concat())
    };
    let mut noise;
    if dials {
        noise = Handshake::dialer(&key, first);
        let message = noise.write(hello)?;
        send(&mut socket, first, &message)?;
        noise.read(&read(&mut socket, 8)?.1);
    } else {
        let (opening, message) = read(&mut socket, 12)?;
        noise = Handshake::listener(&key, &opening);
        noise.read(&message);
        let message = noise.write(hello)?;
        send(&mut socket, first, &message)?;
    }
    let mut channel = noise.finish()?;
    for part in parts.iter().skip(2) {
        let mut records = Records::default();
        channel.seal.seal(part, &mut records)?;
        socket.write_all(records.unsent())?;
    }
    socket.shutdown(Shutdown::Write)?;
    std::io::copy(&mut socket, &mut std::io::sink()).map(drop)
}

/// Frames of a control connection.
pub fn control(bytes: &[u8]) -> bool {
    let (mine, mut theirs) = sockets();
    // More bytes than the socket takes would need a thread.
    let bytes = &bytes[..bytes.len().min(64 << 10)];
    let (mut reader, mut frames, mut valid) = (bytes, 0, true);
    while valid && !reader.is_empty() {
        match read_frame::<Frame>(&mut reader) {
            Ok(frame) => {
                let text = serde_json::to_vec(&frame).expect("a frame is JSON");
                let again: Frame = serde_json::from_slice(&text).expect("a written frame can be read");
                assert_eq!(serde_json::to_vec(&again).expect("a frame is JSON"), text);
                frames += 1;
            }
            Err(_) => valid = false,
        }
    }
    theirs.write_all(bytes).expect("the socket has space");
    drop(theirs);
    let addresses = (0..3).map(|rank| format!("host{rank}:1")).collect();
    let control = Control::new(0, addresses, Duration::ZERO, Duration::from_secs(60));
    control.read(1, &mut Link::plain(mine));
    if let Some(cause) = control.first_failure.cause() {
        let sent = cause.to_cause(0, "host0:1");
        assert!(sent.culprit < 3 && sent.message.len() <= bytes.len() + 1000, "{cause}");
    }
    assert!(control.statuses.others().iter().all(|(_, status)| status.rank == 1), "a process reports for another");
    valid && frames > 0
}

/// A hosts file.
pub fn hosts(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    match parse_hosts(text) {
        Ok(addresses) => {
            assert!(!addresses.is_empty() && addresses.iter().all(|address| check_address(address).is_ok()));
            let numbers = host_numbers(&addresses);
            assert!(numbers.len() == addresses.len() && numbers.iter().all(|&number| number < addresses.len()));
            true
        }
        Err((line, problem)) => {
            assert!(line <= text.lines().count() && !problem.contains('\n'), "line {line}: {problem}");
            false
        }
    }
}
