//! Encryption of a sequence of bytes in records: two bytes of length, then the encrypted bytes with their tag.

use std::fmt;
use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::sync::Arc;

use snow::StatelessTransportState;

/// Maximum bytes of a record before encryption. Two records hold what timely writes at once.
const MAX_PLAIN: usize = 32 << 10;
/// The error text of a connection for bytes that are not the next record of the other side.
pub(crate) const CHANGED: &str =
    "received bytes that the other side has not sent: something between the two changes or repeats them";
const LENGTH_BYTES: usize = 2;
const TAG_BYTES: usize = 16;
const MAX_RECORD: usize = Sealer::bytes_of(MAX_PLAIN);
/// Bytes that are received at once.
const BUFFER_BYTES: usize = 8 * MAX_RECORD;

/// The two directions of a connection.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) seal: Sealer,
    pub(crate) open: Opener,
}

/// Encrypted records that have not been sent. The memory is kept for later ones.
#[derive(Debug, Default)]
pub(crate) struct Records {
    bytes: Vec<u8>,
    unsent: Range<usize>,
}

impl Records {
    /// Returns the bytes to send.
    pub(crate) fn unsent(&self) -> &[u8] {
        &self.bytes[self.unsent.clone()]
    }

    /// Says that the first `count` bytes have been sent.
    pub(crate) fn sent(&mut self, count: usize) {
        self.unsent.start += count;
        if self.unsent.is_empty() {
            self.unsent = 0..0;
        }
    }

    /// Returns `count` more bytes, for a record.
    fn extend(&mut self, count: usize) -> &mut [u8] {
        if self.unsent.end + count > self.bytes.len() {
            // The place of bytes that have been sent is used again, so that a slow socket does not make this grow.
            self.bytes.copy_within(self.unsent.clone(), 0);
            self.unsent = 0..self.unsent.len();
        }
        let begin = self.unsent.end;
        self.unsent.end += count;
        if self.bytes.len() < self.unsent.end {
            self.bytes.resize(self.unsent.end, 0);
        }
        &mut self.bytes[begin..self.unsent.end]
    }
}

/// The sending direction.
pub(crate) struct Sealer {
    keys: Arc<StatelessTransportState>,
    next: u64,
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("next", &self.next).finish_non_exhaustive()
    }
}

impl Sealer {
    pub(super) fn new(keys: Arc<StatelessTransportState>) -> Self {
        Sealer { keys, next: 0 }
    }

    /// Returns the bytes of a record with `plain` bytes.
    pub(crate) const fn bytes_of(plain: usize) -> usize {
        LENGTH_BYTES + plain + TAG_BYTES
    }

    /// Appends one record with the first bytes of `plain`. Returns their number, at most 32 KiB.
    ///
    /// # Errors
    /// If the encryption fails, which it does after 2^64 records.
    pub(crate) fn seal(&mut self, plain: &[u8], records: &mut Records) -> io::Result<usize> {
        let plain = &plain[..plain.len().min(MAX_PLAIN)];
        let (length, encrypted) =
            records.extend(Self::bytes_of(plain.len())).split_first_chunk_mut().expect("a record has a length");
        *length = u16::try_from(encrypted.len()).expect("records are shorter than 64 KiB").to_le_bytes();
        self.keys.write_message(self.next, plain, encrypted).map_err(io::Error::other)?;
        self.next += 1;
        Ok(plain.len())
    }

    /// Appends records with all of `plain`.
    ///
    /// # Errors
    /// As [`seal`](Sealer::seal).
    pub(crate) fn seal_all(&mut self, mut plain: &[u8], records: &mut Records) -> io::Result<()> {
        while !plain.is_empty() {
            let count = self.seal(plain, records)?;
            plain = &plain[count..];
        }
        Ok(())
    }
}

/// The receiving direction. The caller receives bytes into [`space`](Opener::space); [`read`](Opener::read) returns decrypted bytes.
pub(crate) struct Opener {
    keys: Arc<StatelessTransportState>,
    next: u64,
    /// Received bytes, which begin with a record.
    buffer: Vec<u8>,
    received: Range<usize>,
    /// The rest of a decrypted record.
    plain: Vec<u8>,
    unread: Range<usize>,
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener").field("next", &self.next).finish_non_exhaustive()
    }
}

impl Opener {
    pub(super) fn new(keys: Arc<StatelessTransportState>) -> Self {
        Opener { keys, next: 0, buffer: Vec::new(), received: 0..0, plain: Vec::new(), unread: 0..0 }
    }

    /// Reads exactly one record, and nothing after it. For handshakes, before any call of [`space`](Opener::space).
    ///
    /// # Errors
    /// Those of `reader`; [`ErrorKind::InvalidData`] for a record that was not sealed by the other side as its next one.
    pub(crate) fn open_one(&mut self, reader: &mut impl Read) -> io::Result<Vec<u8>> {
        let mut length = [0; LENGTH_BYTES];
        reader.read_exact(&mut length)?;
        let mut encrypted = vec![0; checked_length(length)?];
        reader.read_exact(&mut encrypted)?;
        let mut plain = vec![0; encrypted.len()];
        let length = self.decrypt(&encrypted, &mut plain)?;
        plain.truncate(length);
        Ok(plain)
    }

    /// Returns whether the connection may end here: no record is incomplete.
    pub(crate) fn is_between_records(&self) -> bool {
        self.received.is_empty()
    }

    /// Returns the place for the next received bytes, which is never empty.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        if self.buffer.is_empty() {
            self.buffer.resize(BUFFER_BYTES, 0);
        }
        if self.buffer.len() - self.received.end < MAX_RECORD {
            self.buffer.copy_within(self.received.clone(), 0);
            self.received = 0..self.received.len();
        }
        &mut self.buffer[self.received.end..]
    }

    /// Says that `count` bytes have been received into [`space`](Opener::space).
    pub(crate) fn receive(&mut self, count: usize) {
        self.received.end += count;
    }

    /// Fills the beginning of `bytes` with decrypted bytes and returns their number. 0 means that no record is complete: more bytes must
    /// be received.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] for a record that was not sealed by the other side as its next one.
    pub(crate) fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut filled = self.take_unread(bytes);
        while filled < bytes.len() {
            let Some(record) = self.complete_record()? else { break };
            let rest = &mut bytes[filled..];
            let fits = rest.len() >= record.len();
            if !fits && filled > 0 {
                break;
            }
            self.received.start = record.end;
            let encrypted = std::mem::take(&mut self.buffer);
            // A record that fits is decrypted in its place.
            let mut plain = std::mem::take(&mut self.plain);
            let into = if fits {
                rest
            } else {
                plain.resize(MAX_PLAIN + TAG_BYTES, 0);
                &mut plain[..]
            };
            let decrypted = self.decrypt(&encrypted[record], into);
            (self.buffer, self.plain) = (encrypted, plain);
            filled += match decrypted? {
                count if fits => count,
                count => {
                    self.unread = 0..count;
                    self.take_unread(bytes)
                }
            };
        }
        Ok(filled)
    }

    /// Copies the rest of a decrypted record to the beginning of `bytes`. Returns the number of bytes.
    fn take_unread(&mut self, bytes: &mut [u8]) -> usize {
        let count = bytes.len().min(self.unread.len());
        bytes[..count].copy_from_slice(&self.plain[self.unread.start..][..count]);
        self.unread.start += count;
        count
    }

    /// Returns the place of the first record in the buffer, if all of it has been received.
    fn complete_record(&self) -> io::Result<Option<Range<usize>>> {
        let received = &self.buffer[self.received.clone()];
        let Some((length, rest)) = received.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let (length, begin) = (checked_length(*length)?, self.received.start + LENGTH_BYTES);
        Ok((rest.len() >= length).then_some(begin..begin + length))
    }

    fn decrypt(&mut self, encrypted: &[u8], plain: &mut [u8]) -> io::Result<usize> {
        let length = self.keys.read_message(self.next, encrypted, plain).map_err(|_| changed())?;
        self.next += 1;
        Ok(length)
    }
}

fn checked_length(bytes: [u8; LENGTH_BYTES]) -> io::Result<usize> {
    let length = usize::from(u16::from_le_bytes(bytes));
    if (TAG_BYTES..=MAX_PLAIN + TAG_BYTES).contains(&length) { Ok(length) } else { Err(changed()) }
}

fn changed() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, CHANGED)
}

#[cfg(test)]
mod tests {
    use super::super::Handshake;
    use super::*;

    fn pair() -> (Sealer, Opener) {
        let (mut dialer, mut listener) = (Handshake::dialer(&[7; 32], b""), Handshake::listener(&[7; 32], b""));
        listener.read(&dialer.write(b"").unwrap()).unwrap();
        dialer.read(&listener.write(b"").unwrap()).unwrap();
        (dialer.finish().unwrap().seal, listener.finish().unwrap().open)
    }

    /// Seals `plain` in records.
    fn sealed(seal: &mut Sealer, plain: &[u8]) -> Vec<u8> {
        let mut records = Records::default();
        seal.seal_all(plain, &mut records).unwrap();
        records.unsent().to_vec()
    }

    /// Receives `wire` in pieces of `piece` bytes and reads `read` bytes at a time.
    fn opened(open: &mut Opener, wire: &[u8], piece: usize, read: usize) -> io::Result<Vec<u8>> {
        let (mut all, mut bytes) = (Vec::new(), vec![0; read]);
        for mut piece in wire.chunks(piece) {
            while !piece.is_empty() {
                let space = open.space();
                let count = piece.len().min(space.len());
                space[..count].copy_from_slice(&piece[..count]);
                open.receive(count);
                piece = &piece[count..];
                loop {
                    match open.read(&mut bytes)? {
                        0 => break,
                        count => all.extend_from_slice(&bytes[..count]),
                    }
                }
            }
        }
        Ok(all)
    }

    #[test]
    fn bytes_arrive_however_they_are_divided() {
        let plain: Vec<u8> = (0..200_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        for (piece, read) in [(1, 1), (7, 100_000), (1 << 16, 1 << 16), (1 << 20, 3), (1 << 20, 1 << 20)] {
            let (mut seal, mut open) = pair();
            let wire = sealed(&mut seal, &plain);
            assert_eq!(wire.len(), plain.len() + 7 * (LENGTH_BYTES + TAG_BYTES));
            assert!(opened(&mut open, &wire, piece, read).unwrap() == plain, "pieces of {piece}, reads of {read}");
            assert!(open.is_between_records());
        }
    }

    #[test]
    fn changed_repeated_omitted_and_exchanged_records_are_errors() {
        let record = |seal: &mut Sealer| sealed(seal, b"twelve bytes");
        for byte in 0..LENGTH_BYTES + 12 + TAG_BYTES {
            let (mut seal, mut open) = pair();
            let mut wire: Vec<u8> = (0..20).flat_map(|_| record(&mut seal)).collect();
            wire[byte] ^= 1;
            let result = opened(&mut open, &wire, 1 << 16, 1 << 16);
            assert!(result.is_err_and(|error| error.kind() == ErrorKind::InvalidData), "byte {byte}");
        }
        for order in [[0, 0], [1, 0], [1, 2]] {
            let (mut seal, mut open) = pair();
            let records = [record(&mut seal), record(&mut seal), record(&mut seal)];
            let wire = order.map(|number| records[number].clone()).concat();
            assert!(opened(&mut open, &wire, 1 << 16, 1 << 16).is_err(), "{order:?}");
        }
        // Records of another connection.
        let ((mut seal, _), (_, mut open)) = (pair(), pair());
        assert!(opened(&mut open, &record(&mut seal), 1 << 16, 1 << 16).is_err());
    }

    #[test]
    fn unsent_records_take_bounded_memory_and_keep_their_order() {
        let (mut seal, mut open) = pair();
        let (mut records, mut wire) = (Records::default(), Vec::new());
        // The socket always accepts a part only, so that some bytes remain.
        for round in 0..1000u32 {
            seal.seal_all(&round.to_le_bytes().repeat(500), &mut records).unwrap();
            let part = records.unsent().len() - 7;
            wire.extend_from_slice(&records.unsent()[..part]);
            records.sent(part);
            assert!(records.bytes.len() < 3 * Sealer::bytes_of(2000), "{} bytes", records.bytes.len());
        }
        wire.extend_from_slice(records.unsent());
        let plain: Vec<u8> = (0..1000u32).flat_map(|round| round.to_le_bytes().repeat(500)).collect();
        assert!(opened(&mut open, &wire, 1 << 16, 1 << 16).unwrap() == plain);
    }

    #[test]
    fn the_wire_does_not_show_the_bytes() {
        let (mut seal, _) = pair();
        let wire = sealed(&mut seal, &[b'x'; 4096]);
        assert!(!wire.windows(8).any(|bytes| bytes == b"xxxxxxxx"));
    }

    #[test]
    fn an_incomplete_record_is_no_end() {
        let (mut seal, mut open) = pair();
        let wire = sealed(&mut seal, b"twelve bytes");
        assert_eq!(opened(&mut open, &wire[..wire.len() - 1], 64, 64).unwrap(), b"");
        assert!(!open.is_between_records());
    }
}
