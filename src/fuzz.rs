//! Fuzz targets: the decoders of this crate, with checks of what they accept. `fuzz/` has the programs for `cargo fuzz`; the tests
//! of this module run the same functions without it.
//!
//! Each function returns whether the bytes were accepted.

#[cfg(test)]
mod tests;

use std::io::ErrorKind;

use gnnflow_data::testing::corpus::parts;
use gnnflow_pipelines::Summary;
use gnnflow_pipelines::summary::EpochRecord;

pub use crate::cluster::fuzz::{control, handshake, hosts};
use crate::encryption::{CHANGED, Channel, Handshake, Records};
use crate::status::RunStatus;
#[cfg(feature = "tensor-workers")]
pub use crate::tensor_workers::transport::fuzz::tensor_messages;

/// Returns both ends of a connection.
fn connection() -> (Channel, Channel) {
    let (mut dialer, mut listener) = (Handshake::dialer(&[7; 32], b""), Handshake::listener(&[7; 32], b""));
    listener.read(&dialer.write(b"").expect("random bytes")).expect("the same secret");
    dialer.read(&listener.write(b"").expect("random bytes")).expect("the same secret");
    (dialer.finish().expect("both messages"), listener.finish().expect("both messages"))
}

/// Messages of a Noise handshake from one who does not know the secret, and bytes after the records of one who does. In the first
/// part are numbers of bytes, by which records are received and read.
pub fn noise(bytes: &[u8]) -> bool {
    for mut side in [Handshake::dialer(&[7; 32], b"gnnflow"), Handshake::listener(&[7; 32], b"gnnflow")] {
        assert!(side.read(bytes).is_none(), "a message without the secret was accepted");
    }
    let parts = parts(bytes);
    let (sizes, plain) = (parts[0], parts.get(1).copied().unwrap_or_default());
    let after = parts.get(2).copied().unwrap_or_default();
    let (mut sender, mut receiver) = connection();
    let mut records = Records::default();
    sender.seal.seal_all(plain, &mut records).expect("records can be sealed");
    let wire = [records.unsent(), after].concat();
    let (mut opened, mut at, mut steps) = (Vec::new(), 0, sizes.iter().cycle());
    let mut step = || 1 + 97 * usize::from(steps.next().copied().unwrap_or(255));
    let error = 'all: loop {
        let space = receiver.open.space();
        assert!(!space.is_empty());
        let count = step().min(space.len()).min(wire.len() - at);
        space[..count].copy_from_slice(&wire[at..at + count]);
        receiver.open.receive(count);
        at += count;
        let mut buffer = vec![0; step()];
        loop {
            match receiver.open.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => opened.extend_from_slice(&buffer[..count]),
                Err(error) => break 'all Some(error),
            }
        }
        if at == wire.len() {
            break None;
        }
    };
    assert!(error.as_ref().is_none_or(|error| error.kind() == ErrorKind::InvalidData && error.to_string() == CHANGED));
    // Bytes before an error in the same call are lost, as the connection is.
    assert!(plain.starts_with(&opened) && (error.is_some() || opened == plain), "other bytes, or not all of them");
    // One record, as in a handshake.
    let mut reader = after;
    assert!(receiver.open.open_one(&mut reader).is_err(), "a record without the key was accepted");
    error.is_none() && receiver.open.is_between_records()
}

/// `status.json`, `summary.json` and `metrics.jsonl` of a run, as `gnnflow top` and reports show them.
pub fn run_folder(bytes: &[u8]) -> bool {
    let place = tempfile::tempdir().expect("a folder can be created");
    let dir = place.path();
    for (part, name) in parts(bytes).iter().zip([RunStatus::FILE, Summary::FILE, EpochRecord::FILE]) {
        std::fs::write(dir.join(name), part).expect("a file can be written");
    }
    let status = RunStatus::read(dir).map(|status| {
        let text = crate::top::text(&status);
        assert!(text.lines().count() > status.statuses.len());
        status.write(dir).expect("a status can be written");
    });
    let report = Summary::read(dir).and_then(|summary| {
        let _ = crate::report::table(&summary);
        crate::report::write(dir, &summary, None)
    });
    status.is_ok() | report.is_ok()
}
