//! The flat block container.
//!
//! ```text
//! offset  bytes        what
//! 0       64           header: eight little-endian words
//! 64      8 · words    `words`: a column of u64
//! …       4 · ids      `ids`: a column of u32, padded to 8
//! …       rows         `rows`: one matrix as bytes, padded to 8
//! ```
//!
//! Every section starts on a multiple of eight, so that a received block is read in place. A received block is a *view* into the
//! network's buffer and keeps that buffer alive. Copy data that must outlive the operator's invocation.

use std::io::Write;
use std::ops::Range;
use std::sync::Arc;

use timely::Accountable;
use timely::bytes::arc::Bytes;

use super::codec::Codec;
use crate::storage::RowSource;

/// First half of every block's first word.
pub(super) const BLOCK_MAGIC: u32 = u32::from_le_bytes(*b"gfb1");
/// Words in a header.
pub(super) const HEADER_WORDS: usize = 4;
const HEADER_BYTES: usize = 64;

/// The header of a block. Operators choose the meaning of `tag`, `key`, `seq` and `aux`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Index of the receiving worker.
    pub to: u32,
    /// Index of the sending worker.
    pub from: u32,
    /// The partition that the block belongs to.
    pub partition: u32,
    /// Free for the operator.
    pub tag: u32,
    /// Free for the operator. Batches use their time, `(epoch << 32) | step`.
    pub key: u64,
    /// Free for the operator: the number of the message among those with the same key.
    pub seq: u32,
    /// Free for the operator.
    pub aux: u32,
}

impl Header {
    pub(super) fn to_words(self) -> [u64; HEADER_WORDS] {
        let pair = |low: u32, high: u32| u64::from(low) | (u64::from(high) << 32);
        [pair(self.to, self.from), pair(self.partition, self.tag), self.key, pair(self.seq, self.aux)]
    }

    pub(super) fn from_words(words: &[u64]) -> Self {
        let (low, high) = (|w: u64| w as u32, |w: u64| (w >> 32) as u32);
        Self {
            to: low(words[0]),
            from: high(words[0]),
            partition: low(words[1]),
            tag: high(words[1]),
            key: words[2],
            seq: low(words[3]),
            aux: high(words[3]),
        }
    }
}

/// The row matrix of a block under construction.
#[derive(Clone, Default)]
pub enum Rows {
    /// No rows.
    #[default]
    None,
    /// Owned numbers.
    F32(Vec<f32>),
    /// Owned bytes.
    Bytes(Vec<u8>),
    /// A range of numbers that several blocks share.
    Shared(Arc<Vec<f32>>, Range<usize>),
    /// Rows of these nodes, gathered while the block is written to the network (or read, inside one process). The source is open for
    /// as long as that takes.
    Gather(Arc<dyn RowSource>, Vec<u32>),
}

impl Rows {
    fn len_bytes(&self) -> usize {
        match self {
            Rows::None => 0,
            Rows::F32(rows) => 4 * rows.len(),
            Rows::Bytes(rows) => rows.len(),
            Rows::Shared(_, range) => 4 * range.len(),
            Rows::Gather(source, nodes) => source.row_bytes() * nodes.len(),
        }
    }
}

#[derive(Clone)]
enum Repr {
    Owned { header: Header, words: Vec<u64>, ids: Vec<u32>, rows: Rows },
    View(Bytes),
}

/// A message: a header, a column of words, a column of ids, and one row matrix.
///
/// ```
/// use gnnflow_dataflow::wire::{Header, Rows, WireBlock};
///
/// let block = WireBlock::new(Header { to: 1, ..Header::default() }, vec![7], vec![1, 2, 3], Rows::F32(vec![0.5, 1.5]));
/// assert_eq!(block.ids(), [1, 2, 3]);
/// assert_eq!(block.rows_f32(), Some(&[0.5, 1.5][..]));
/// ```
#[derive(Clone)]
pub struct WireBlock(Repr);

impl Default for WireBlock {
    fn default() -> Self {
        Self::new(Header::default(), Vec::new(), Vec::new(), Rows::None)
    }
}

const fn pad8(n: usize) -> usize {
    (n + 7) & !7
}

/// Section sizes of an encoded block, checked against its length.
#[derive(Clone, Copy)]
struct Sections {
    words: usize,
    ids: usize,
    rows: usize,
}

impl Sections {
    fn ids_at(self) -> usize {
        HEADER_BYTES + 8 * self.words
    }
    fn rows_at(self) -> usize {
        self.ids_at() + pad8(4 * self.ids)
    }
    fn len(self) -> usize {
        self.rows_at() + pad8(self.rows)
    }
    /// Returns `None` if the sizes do not add up to `len`, or overflow.
    fn checked(words: u64, ids: u64, rows: u64, len: usize) -> Option<Self> {
        let fits = |n: u64, size: u64| n.checked_mul(size).filter(|&bytes| bytes <= len as u64);
        fits(words, 8)?;
        fits(ids, 4)?;
        fits(rows, 1)?;
        let sections = Self { words: words as usize, ids: ids as usize, rows: rows as usize };
        (sections.len() == len).then_some(sections)
    }
}

impl WireBlock {
    /// Creates a block of these parts.
    pub fn new(header: Header, words: Vec<u64>, ids: Vec<u32>, rows: Rows) -> Self {
        Self(Repr::Owned { header, words, ids, rows })
    }

    fn view_words(bytes: &Bytes) -> &[u64] {
        bytemuck::cast_slice(&bytes[..HEADER_BYTES])
    }

    fn sections(&self) -> Sections {
        match &self.0 {
            Repr::Owned { words, ids, rows, .. } => {
                Sections { words: words.len(), ids: ids.len(), rows: rows.len_bytes() }
            }
            Repr::View(bytes) => {
                let head = Self::view_words(bytes);
                Sections { words: head[5] as usize, ids: head[6] as usize, rows: head[7] as usize }
            }
        }
    }

    /// Returns the header.
    pub fn header(&self) -> Header {
        match &self.0 {
            Repr::Owned { header, .. } => *header,
            Repr::View(bytes) => Header::from_words(&Self::view_words(bytes)[1..]),
        }
    }

    /// Returns the column of words.
    pub fn words(&self) -> &[u64] {
        match &self.0 {
            Repr::Owned { words, .. } => words,
            Repr::View(bytes) => bytemuck::cast_slice(&bytes[HEADER_BYTES..self.sections().ids_at()]),
        }
    }

    /// Returns the column of ids.
    pub fn ids(&self) -> &[u32] {
        match &self.0 {
            Repr::Owned { ids, .. } => ids,
            Repr::View(bytes) => {
                let sections = self.sections();
                bytemuck::cast_slice(&bytes[sections.ids_at()..sections.ids_at() + 4 * sections.ids])
            }
        }
    }

    /// Returns the size of the row matrix in bytes.
    pub fn row_bytes(&self) -> usize {
        self.sections().rows
    }

    /// Returns the row matrix as numbers, in place; `None` if it is not gathered yet, or is not `f32`.
    pub fn rows_f32(&self) -> Option<&[f32]> {
        match &self.0 {
            Repr::Owned { rows: Rows::None, .. } => Some(&[]),
            Repr::Owned { rows: Rows::F32(rows), .. } => Some(rows),
            Repr::Owned { rows: Rows::Shared(rows, range), .. } => Some(&rows[range.clone()]),
            Repr::Owned { .. } => None,
            Repr::View(bytes) => {
                let sections = self.sections();
                let rows = &bytes[sections.rows_at()..sections.rows_at() + sections.rows];
                (rows.len() % 4 == 0).then(|| bytemuck::cast_slice(rows))
            }
        }
    }

    /// Calls `each` with the row matrix in consecutive pieces: with one row at a time if the rows are not gathered yet, else with
    /// the whole matrix.
    ///
    /// # Panics
    /// When rows are gathered from a source that is being written, which is a bug.
    pub fn for_each_row_bytes(&self, mut each: impl FnMut(&[u8])) {
        match &self.0 {
            Repr::Owned { rows, .. } => match rows {
                Rows::None => {}
                Rows::F32(rows) => each(bytemuck::cast_slice(rows)),
                Rows::Bytes(rows) => each(rows),
                Rows::Shared(rows, range) => each(bytemuck::cast_slice(&rows[range.clone()])),
                Rows::Gather(source, nodes) => {
                    let rows = source.open().unwrap_or_else(|busy| panic!("gather into a message: {busy}"));
                    nodes.iter().for_each(|&node| each(rows.row(node)));
                }
            },
            Repr::View(bytes) => {
                let sections = self.sections();
                each(&bytes[sections.rows_at()..sections.rows_at() + sections.rows]);
            }
        }
    }

    /// Takes the block and leaves an empty one. A view is copied, so that it no longer keeps the network's buffer alive.
    pub(crate) fn detach(&mut self) -> Self {
        match std::mem::take(self) {
            owned @ Self(Repr::Owned { .. }) => owned,
            view => {
                let rows = match view.rows_f32() {
                    Some([]) => Rows::None,
                    Some(rows) => Rows::F32(rows.to_vec()),
                    None => {
                        let mut bytes = Vec::with_capacity(view.row_bytes());
                        view.for_each_row_bytes(|rows| bytes.extend_from_slice(rows));
                        Rows::Bytes(bytes)
                    }
                };
                Self::new(view.header(), view.words().to_vec(), view.ids().to_vec(), rows)
            }
        }
    }

    /// Returns the encoded size in bytes.
    pub(crate) fn wire_bytes(&self) -> usize {
        self.sections().len()
    }

    pub(crate) fn encode_plain<W: Write>(&self, writer: &mut W) -> std::io::Result<()> {
        if let Repr::View(bytes) = &self.0 {
            return writer.write_all(bytes);
        }
        let (header, sections) = (self.header(), self.sections());
        let [about, part, key, rest] = header.to_words();
        let magic = u64::from(BLOCK_MAGIC) | ((Codec::Plain as u64) << 32);
        let head = [magic, about, part, key, rest, sections.words as u64, sections.ids as u64, sections.rows as u64];
        writer.write_all(bytemuck::cast_slice(&head))?;
        writer.write_all(bytemuck::cast_slice(self.words()))?;
        writer.write_all(bytemuck::cast_slice(self.ids()))?;
        writer.write_all(&[0; 8][..pad8(4 * sections.ids) - 4 * sections.ids])?;
        let mut result = Ok(());
        self.for_each_row_bytes(|rows| {
            if result.is_ok() {
                result = writer.write_all(rows);
            }
        });
        result?;
        writer.write_all(&[0; 8][..pad8(sections.rows) - sections.rows])
    }

    /// Returns a view of an encoded block, or an error text.
    pub(crate) fn decode_plain(bytes: Bytes) -> Result<Self, String> {
        if bytes.len() < HEADER_BYTES || !bytes.as_ptr().cast::<u64>().is_aligned() {
            return Err(format!("a block of {} bytes is too short or misaligned", bytes.len()));
        }
        let head = Self::view_words(&bytes);
        if head[0] as u32 != BLOCK_MAGIC {
            return Err(format!("{:08x} is not the first word of a block", head[0] as u32));
        }
        match Sections::checked(head[5], head[6], head[7], bytes.len()) {
            Some(_) => Ok(Self(Repr::View(bytes))),
            None => Err(format!("sections of a block do not add up to its {} bytes", bytes.len())),
        }
    }
}

impl Accountable for WireBlock {
    /// Always one: timely drops containers without records, but an empty block is a reply too.
    fn record_count(&self) -> i64 {
        1
    }
    fn is_empty(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use timely::bytes::arc::BytesMut;
    use timely::dataflow::channels::ContainerBytes;

    use super::*;
    use crate::storage::{Busy, RowReader};

    struct Matrix(Vec<f32>, usize);

    impl RowSource for Matrix {
        fn row_bytes(&self) -> usize {
            4 * self.1
        }
        fn open(&self) -> Result<Box<dyn RowReader + '_>, Busy> {
            Ok(Box::new(self))
        }
    }

    impl RowReader for Matrix {
        fn row(&self, node: u32) -> &[u8] {
            bytemuck::cast_slice(&self.0[node as usize * self.1..(node as usize + 1) * self.1])
        }
    }

    fn through_the_wire(block: &WireBlock) -> WireBlock {
        let mut encoded = Vec::new();
        block.into_bytes(&mut encoded);
        assert_eq!(encoded.len(), block.length_in_bytes());
        assert_eq!(encoded.len() % 8, 0);
        WireBlock::from_bytes(BytesMut::from(encoded).freeze())
    }

    #[test]
    fn blocks_keep_their_contents_through_the_wire() {
        let header = Header { to: 3, from: 1, partition: 9, tag: 4, key: u64::MAX - 5, seq: 77, aux: 8 };
        let matrix: Arc<dyn RowSource> = Arc::new(Matrix((0..30).map(|x| x as f32).collect(), 3));
        let shared = Arc::new((0..10).map(|x| x as f32).collect::<Vec<_>>());
        for words in [vec![], vec![1, u64::MAX]] {
            for ids in [vec![], vec![5], vec![1, 2]] {
                for (rows, expected) in [
                    (Rows::None, vec![]),
                    (Rows::F32(vec![1.5, -2.5, 3.0]), vec![1.5, -2.5, 3.0]),
                    (Rows::Shared(shared.clone(), 2..5), vec![2., 3., 4.]),
                    (Rows::Gather(matrix.clone(), vec![9, 0]), vec![27., 28., 29., 0., 1., 2.]),
                ] {
                    let received = through_the_wire(&WireBlock::new(header, words.clone(), ids.clone(), rows));
                    assert_eq!(received.header(), header);
                    assert_eq!((received.words(), received.ids()), (&words[..], &ids[..]));
                    assert_eq!(received.rows_f32(), Some(&expected[..]));
                    assert_eq!(through_the_wire(&received).rows_f32(), Some(&expected[..]), "forwarded");
                    let detached = through_the_wire(&received).detach();
                    assert!(matches!(detached.0, Repr::Owned { .. }));
                    assert_eq!((detached.header(), detached.words(), detached.ids()), (header, &words[..], &ids[..]));
                    assert_eq!(detached.rows_f32(), Some(&expected[..]), "detached");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "gather into a message: rows cannot be read: they are being written")]
    fn rows_that_are_being_written_are_not_sent() {
        let graph = crate::testing::local(&vec![vec![]; 9], &crate::testing::book(9, 1), 1, 0, false);
        let store = crate::storage::RowStore::create(&crate::storage::Place::Memory, &Arc::new(graph), 0, 3).unwrap();
        let store = Arc::new(store);
        let block = WireBlock::new(Header::default(), vec![], vec![], Rows::Gather(store.clone(), vec![8, 1]));
        block.for_each_row_bytes(|row| assert_eq!(row, [0; 12]));
        let _writer = store.write().unwrap();
        block.into_bytes(&mut Vec::new());
    }

    #[test]
    fn forged_lengths_are_refused() {
        let mut encoded = Vec::new();
        WireBlock::new(Header::default(), vec![1], vec![2, 3], Rows::F32(vec![4.0]))
            .encode_plain(&mut encoded)
            .unwrap();
        assert!(WireBlock::decode_plain(BytesMut::from(encoded.clone()).freeze()).is_ok());
        for (section, forged) in [(5, 1u64 << 61), (5, 2), (6, u64::MAX), (7, 1000), (0, 0)] {
            let mut bytes = encoded.clone();
            bytes[8 * section..8 * section + 8].copy_from_slice(&forged.to_le_bytes());
            assert!(WireBlock::decode_plain(BytesMut::from(bytes).freeze()).is_err(), "section {section}: {forged}");
        }
        assert!(WireBlock::decode_plain(BytesMut::from(encoded[..32].to_vec()).freeze()).is_err());
    }
}
