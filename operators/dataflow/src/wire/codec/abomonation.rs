//! Blocks encoded by the `abomonation` crate, behind the feature `abomonation`, which is off by default.
//!
//! The crate is unsound and has no fixed version (RUSTSEC-2021-0120): it writes the memory of its values,
//! pointers included, and reads them back in place. This module guards against that as follows:
//!
//! 1. Only columns of plain numbers go through it, ordered by decreasing alignment, so that no padding is written and
//!    every bit pattern is a value. No strings, enums or nested vectors.
//! 2. A frame precedes them: codec, fingerprint of the layout, the lengths of the columns, CRC-32 of the rest. The lengths are
//!    checked without overflow against the length of the message, and the checksum is verified, *before* anything is decoded. The
//!    decoded columns must have the frame's lengths.
//! 3. Decoding writes pointers into the buffer, so it works on a private copy, aligned to eight bytes. The columns are copied
//!    out of it.
//! 4. Peers have proved the shared secret and the same build before a byte arrives. Messages contain pointers of this process: never
//!    use this codec over a link that others can read, and never for files.
//!
//! The default codec is as fast, smaller and sound. This one exists for comparison.

use std::io::Write;

use super::super::block::{BLOCK_MAGIC, HEADER_WORDS, Header, Rows, WireBlock};
use super::Codec;

/// Words before the encoded columns: magic and codec, layout, three lengths, checksum.
const FRAME_WORDS: usize = 6;

/// Header and words, ids, bytes of the rows.
type Columns = (Vec<u64>, Vec<u32>, Vec<u8>);

/// Returns a fingerprint of the memory layout of [`Columns`].
const fn layout() -> u64 {
    ((size_of::<Columns>() as u64) << 32) | ((align_of::<Columns>() as u64) << 16) | size_of::<Vec<u64>>() as u64
}

const fn pad8(n: usize) -> usize {
    (n + 7) & !7
}

/// Returns the bytes of the encoded columns, without padding; `None` on overflow.
fn payload(words: u64, ids: u64, rows: u64) -> Option<u64> {
    let columns = words.checked_mul(8)?.checked_add(ids.checked_mul(4)?)?.checked_add(rows)?;
    columns.checked_add(size_of::<Columns>() as u64)
}

pub(in crate::wire) fn encoded_len(block: &WireBlock) -> usize {
    let words = HEADER_WORDS + block.words().len();
    let bytes = size_of::<Columns>() + 8 * words + 4 * block.ids().len() + block.row_bytes();
    8 * FRAME_WORDS + pad8(bytes)
}

pub(in crate::wire) fn encode<W: Write>(block: &WireBlock, writer: &mut W) -> std::io::Result<()> {
    let words = [&block.header().to_words()[..], block.words()].concat();
    let mut rows = Vec::with_capacity(block.row_bytes());
    block.for_each_row_bytes(|stretch| rows.extend_from_slice(stretch));
    let columns: Columns = (words, block.ids().to_vec(), rows);
    let mut encoded = Vec::with_capacity(abomonation::measure(&columns));
    // SAFETY: the columns hold plain numbers; the writer gets their memory and that of the three vectors' headers,
    // which has no padding.
    unsafe { abomonation::encode(&columns, &mut encoded)? };
    let frame = [
        u64::from(BLOCK_MAGIC) | ((Codec::Abomonation as u64) << 32),
        layout(),
        columns.0.len() as u64,
        columns.1.len() as u64,
        columns.2.len() as u64,
        u64::from(crc32fast::hash(&encoded)),
    ];
    writer.write_all(bytemuck::cast_slice(&frame))?;
    writer.write_all(&encoded)?;
    writer.write_all(&[0; 8][..pad8(encoded.len()) - encoded.len()])
}

pub(in crate::wire) fn decode(bytes: &[u8]) -> Result<WireBlock, String> {
    let Some((frame, body)) = bytes.split_at_checked(8 * FRAME_WORDS) else {
        return Err(format!("{} bytes are too short for a frame", bytes.len()));
    };
    let word = |i: usize| u64::from_le_bytes(frame[8 * i..8 * i + 8].try_into().expect("eight bytes"));
    if word(1) != layout() {
        return Err("written by a build of another memory layout".into());
    }
    let (words, ids, rows) = (word(2), word(3), word(4));
    let len = payload(words, ids, rows).filter(|&len| (pad8(len as usize)) == body.len() && len <= body.len() as u64);
    let Some(len) = len else {
        return Err(format!("columns of {words}, {ids} and {rows} do not fill {} bytes", body.len()));
    };
    let encoded = &body[..len as usize];
    if u64::from(crc32fast::hash(encoded)) != word(5) {
        return Err("checksum differs".into());
    }
    let mut private = vec![0u64; pad8(encoded.len()) / 8];
    let buffer = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut private)[..encoded.len()];
    buffer.copy_from_slice(encoded);
    // SAFETY: the bytes were written by `encode` of a peer that runs the same build (layout checked) and came whole
    // (checksum); the buffer is private, mutable and aligned for every column. The vectors that the reference leads to
    // are only borrowed from the buffer, and are never dropped.
    let decoded = unsafe { abomonation::decode::<Columns>(buffer) };
    let Some((columns, _rest)) = decoded else { return Err("columns are cut off".into()) };
    let found = (columns.0.len() as u64, columns.1.len() as u64, columns.2.len() as u64);
    if found != (words, ids, rows) || columns.0.len() < HEADER_WORDS {
        return Err("columns have other lengths than their frame says".into());
    }
    let (head, words) = columns.0.split_at(HEADER_WORDS);
    let rows = match columns.2.len() {
        0 => Rows::None,
        n if n % 4 == 0 => Rows::F32(columns.2.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect()),
        _ => Rows::Bytes(columns.2.clone()),
    };
    Ok(WireBlock::new(Header::from_words(head), words.to_vec(), columns.1.clone(), rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(rows: Rows) -> WireBlock {
        let header = Header { to: 3, from: 1, partition: 9, tag: 4, key: u64::MAX - 5, seq: 77, aux: 8 };
        WireBlock::new(header, vec![1, u64::MAX], vec![1, 2, 3], rows)
    }

    fn bytes_of(block: &WireBlock) -> Vec<u8> {
        let mut bytes = Vec::new();
        block.for_each_row_bytes(|rows| bytes.extend_from_slice(rows));
        bytes
    }

    #[test]
    fn blocks_keep_their_bits_through_the_codec() {
        for rows in [Rows::None, Rows::F32(vec![1.5, f32::NAN, -0.0]), Rows::Bytes(vec![7; 5])] {
            let sent = block(rows);
            let mut encoded = Vec::new();
            encode(&sent, &mut encoded).unwrap();
            assert_eq!(encoded.len(), encoded_len(&sent));
            for shift in [0, 1, 4] {
                // Wherever the bytes lie, decoding happens in an aligned buffer.
                let shifted = [vec![0; shift], encoded.clone()].concat();
                let received = decode(&shifted[shift..]).unwrap();
                assert_eq!(received.header(), sent.header());
                assert_eq!((received.words(), received.ids()), (sent.words(), sent.ids()));
                assert_eq!(bytes_of(&received), bytes_of(&sent));
            }
        }
    }

    #[test]
    fn what_is_cut_off_forged_or_flipped_is_refused() {
        let mut encoded = Vec::new();
        encode(&block(Rows::F32(vec![1.0; 9])), &mut encoded).unwrap();
        for len in [0, 8, 47, 48, 100, encoded.len() - 8] {
            assert!(decode(&encoded[..len]).is_err(), "{len} bytes");
        }
        for (word, forged) in [(1, 1), (2, 1 << 61), (2, 0), (3, u64::MAX), (4, u64::MAX), (4, 35), (5, 0)] {
            let mut bytes = encoded.clone();
            bytes[8 * word..8 * word + 8].copy_from_slice(&u64::to_le_bytes(forged));
            assert!(decode(&bytes).is_err(), "word {word}: {forged}");
        }
        for bit in (48 * 8..encoded.len() * 8 - 64).step_by(61) {
            let mut bytes = encoded.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bytes).is_err(), "bit {bit}");
        }
    }
}
