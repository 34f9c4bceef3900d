//! Writes an Arrow IPC file with one record batch that is never in memory as a whole.
//!
//! Arrow's writer needs whole arrays. Here, positioned writes fill the buffers of the body in any order and before their lengths are
//! known. The headers are written last; their size depends only on the schema:
//!
//! ```text
//! "ARROW1" schema message | batch message, padded | body: buffers at multiples of 64 | end mark, footer, "ARROW1"
//! ```
//!
//! Several columns may share one buffer (the lists of `topology.arrow` share their offsets). The file is complete when
//! [`IpcFile::finish`] has returned: it is synced to the disk, and its CRC-32 is known without reading it back.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use arrow::ipc;
use arrow::ipc::convert::IpcSchemaEncoder;
use flatbuffers::FlatBufferBuilder;

use super::manifest::FileInfo;
use crate::error::{Error, Result};

const ALIGN: u64 = 64;
const MAGIC: &[u8] = b"ARROW1";
const CONTINUATION: [u8; 4] = [0xff; 4];

/// Returns the next multiple of 64.
pub(crate) const fn align(offset: u64) -> u64 {
    offset.next_multiple_of(ALIGN)
}

/// The position of a buffer in the body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl Span {
    /// No bytes, for the validity of a column without nulls.
    pub(crate) const NONE: Self = Self { offset: 0, length: 0 };

    /// Returns the first multiple of 64 at or after the end of this span.
    pub(crate) const fn next(self) -> u64 {
        align(self.offset + self.length)
    }
}

/// An Arrow IPC file that is being written.
pub(crate) struct IpcFile {
    path: PathBuf,
    file: Arc<File>,
    schema: Schema,
    schema_message: Vec<u8>,
    /// Start of the body in the file.
    body: u64,
}

impl IpcFile {
    /// Creates the file and reserves space for its headers. Replaces a file that a killed preparation left.
    pub(crate) fn create(path: &Path, schema: Schema) -> Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path);
        let file = Arc::new(file.map_err(Error::io(path, "create"))?);
        let schema_message = schema_message(&schema);
        let (nodes, buffers) = schema.fields().iter().fold((0, 0), |sum, field| add(sum, shape(field)));
        // Flatbuffers omit zeros. A header of ones has the maximum length.
        let longest = batch_message(1, &vec![1; nodes], &vec![Span { offset: 1, length: 1 }; buffers], 1);
        let body = align(8 + (8 + schema_message.len() + 8 + longest.len() + 16) as u64);
        Ok(Self { path: path.to_path_buf(), file, schema, schema_message, body })
    }

    /// Creates a writer that appends to the body from `offset` on, through a buffer of `capacity` bytes.
    pub(crate) fn region(&self, offset: u64, capacity: usize) -> Region {
        debug_assert!(offset.is_multiple_of(ALIGN));
        let (path, file) = (self.path.clone(), self.file.clone());
        Region {
            path,
            file,
            body: self.body,
            offset,
            written: 0,
            buffer: Vec::new(),
            capacity,
            crc: crc32fast::Hasher::new(),
        }
    }

    /// Writes the headers and syncs the file to the disk. `nodes` are the lengths of the schema's arrays, and `buffers` are their buffers,
    /// both depth first.
    pub(crate) fn finish(self, nodes: &[u64], buffers: &[Span], regions: Vec<Region>) -> Result<FileInfo> {
        let rows = nodes.first().copied().unwrap_or(0);
        let mut spans = Vec::with_capacity(regions.len());
        for region in regions {
            spans.push(region.finish()?);
        }
        spans.sort_by_key(|(span, _)| span.offset);
        let body_length = spans.last().map_or(0, |(span, _)| span.next());

        let batch = batch_message(rows, nodes, buffers, body_length);
        let batch_start = 8 + 8 + self.schema_message.len();
        let batch_length = self.body as usize - batch_start;
        let mut header = Vec::with_capacity(self.body as usize);
        header.extend_from_slice(MAGIC);
        header.resize(8, 0);
        frame(&mut header, &self.schema_message, self.schema_message.len());
        frame(&mut header, &batch, batch_length - 8);

        let block = ipc::Block::new(batch_start as i64, batch_length as i32, body_length as i64);
        let mut tail = Vec::from(CONTINUATION);
        tail.extend_from_slice(&[0; 4]);
        let footer = footer(&self.schema, block);
        tail.extend_from_slice(&footer);
        tail.extend_from_slice(&(footer.len() as i32).to_le_bytes());
        tail.extend_from_slice(MAGIC);

        let write = |bytes: &[u8], at| self.file.write_all_at(bytes, at).map_err(Error::io(&self.path, "write"));
        write(&header, 0)?;
        write(&tail, self.body + body_length)?;
        self.file.sync_all().map_err(Error::io(&self.path, "flush"))?;

        let mut crc = crc32fast::Hasher::new();
        crc.update(&header);
        let mut end = 0;
        for (span, part) in &spans {
            crc.update(&[0; ALIGN as usize][..(span.offset - end) as usize]);
            crc.combine(part);
            end = span.offset + span.length;
        }
        crc.update(&[0; ALIGN as usize][..(body_length - end) as usize]);
        crc.update(&tail);
        let (body_end, mut headers) = (self.body + body_length, crc32fast::Hasher::new());
        headers.update(&header);
        headers.update(&tail);
        Ok(FileInfo {
            bytes: body_end + tail.len() as u64,
            body: (self.body, body_end),
            headers_crc32: headers.finalize(),
            crc32: crc.finalize(),
        })
    }
}

/// Appends to a region of the body.
pub(crate) struct Region {
    path: PathBuf,
    file: Arc<File>,
    body: u64,
    offset: u64,
    written: u64,
    buffer: Vec<u8>,
    capacity: usize,
    crc: crc32fast::Hasher,
}

impl Region {
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if self.buffer.len() + bytes.len() > self.capacity {
            self.flush()?;
        }
        if bytes.len() >= self.capacity {
            return self.put(bytes);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// Returns the position in the body of the bytes written so far.
    pub(crate) fn span(&self) -> Span {
        Span { offset: self.offset, length: self.written + self.buffer.len() as u64 }
    }

    fn flush(&mut self) -> Result<()> {
        let buffer = std::mem::take(&mut self.buffer);
        self.put(&buffer)?;
        self.buffer = buffer;
        self.buffer.clear();
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let at = self.body + self.offset + self.written;
        self.file.write_all_at(bytes, at).map_err(Error::io(&self.path, "write"))?;
        self.crc.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }

    fn finish(mut self) -> Result<(Span, crc32fast::Hasher)> {
        self.flush()?;
        Ok((self.span(), self.crc))
    }
}

/// Returns the numbers of arrays and buffers of a field, children included.
fn shape(field: &Field) -> (usize, usize) {
    match field.data_type() {
        DataType::LargeUtf8 => (1, 3),
        DataType::LargeList(item) => add((1, 2), shape(item)),
        DataType::FixedSizeList(item, _) => add((1, 1), shape(item)),
        _ => (1, 2),
    }
}

fn add(a: (usize, usize), b: (usize, usize)) -> (usize, usize) {
    (a.0 + b.0, a.1 + b.1)
}

/// Appends a message with its length, padded to `length`.
fn frame(into: &mut Vec<u8>, message: &[u8], length: usize) {
    debug_assert!(message.len() <= length && length.is_multiple_of(8));
    into.extend_from_slice(&CONTINUATION);
    into.extend_from_slice(&(length as i32).to_le_bytes());
    let end = into.len() + length;
    into.extend_from_slice(message);
    into.resize(end, 0);
}

fn schema_message(schema: &Schema) -> Vec<u8> {
    let mut fbb = FlatBufferBuilder::new();
    let header = IpcSchemaEncoder::new().schema_to_fb_offset(&mut fbb, schema).as_union_value();
    let mut message = ipc::MessageBuilder::new(&mut fbb);
    message.add_version(ipc::MetadataVersion::V5);
    message.add_header_type(ipc::MessageHeader::Schema);
    message.add_header(header);
    let root = message.finish();
    fbb.finish(root, None);
    let mut bytes = fbb.finished_data().to_vec();
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

fn batch_message(rows: u64, nodes: &[u64], buffers: &[Span], body_length: u64) -> Vec<u8> {
    let mut fbb = FlatBufferBuilder::new();
    let buffers: Vec<_> = buffers.iter().map(|span| ipc::Buffer::new(span.offset as i64, span.length as i64)).collect();
    let buffers = fbb.create_vector(&buffers);
    let nodes: Vec<_> = nodes.iter().map(|&length| ipc::FieldNode::new(length as i64, 0)).collect();
    let nodes = fbb.create_vector(&nodes);
    let mut batch = ipc::RecordBatchBuilder::new(&mut fbb);
    batch.add_length(rows as i64);
    batch.add_nodes(nodes);
    batch.add_buffers(buffers);
    let header = batch.finish().as_union_value();
    let mut message = ipc::MessageBuilder::new(&mut fbb);
    message.add_version(ipc::MetadataVersion::V5);
    message.add_header_type(ipc::MessageHeader::RecordBatch);
    message.add_bodyLength(body_length as i64);
    message.add_header(header);
    let root = message.finish();
    fbb.finish(root, None);
    fbb.finished_data().to_vec()
}

fn footer(schema: &Schema, block: ipc::Block) -> Vec<u8> {
    let mut fbb = FlatBufferBuilder::new();
    let dictionaries = fbb.create_vector::<ipc::Block>(&[]);
    let batches = fbb.create_vector(&[block]);
    let schema = IpcSchemaEncoder::new().schema_to_fb_offset(&mut fbb, schema);
    let mut footer = ipc::FooterBuilder::new(&mut fbb);
    footer.add_version(ipc::MetadataVersion::V5);
    footer.add_schema(schema);
    footer.add_dictionaries(dictionaries);
    footer.add_recordBatches(batches);
    let root = footer.finish();
    fbb.finish(root, None);
    fbb.finished_data().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Array, AsArray, UInt32Array};
    use arrow::datatypes::{Float32Type, UInt32Type};
    use arrow::ipc::reader::FileReader;

    fn list(name: &str, item: DataType) -> Field {
        Field::new(name, DataType::LargeList(Arc::new(Field::new("item", item, false))), false)
    }

    /// `neighbors` and `weight` of `degrees.len()` nodes, sharing one offsets buffer.
    fn write(path: &Path, degrees: &[usize]) -> FileInfo {
        let schema = Schema::new(vec![list("neighbors", DataType::UInt32), list("weight", DataType::Float32)]);
        let file = IpcFile::create(path, schema).unwrap();
        let n = degrees.len() as u64;
        let mut offsets = file.region(0, 16);
        let mut indices = file.region(align(8 * (n + 1)), 1 << 10);
        let mut edges = 0;
        offsets.write(&0i64.to_le_bytes()).unwrap();
        for degree in degrees {
            (edges..edges + degree).for_each(|e| indices.write(&(e as u32).to_le_bytes()).unwrap());
            edges += degree;
            offsets.write(&(edges as i64).to_le_bytes()).unwrap();
        }
        let mut weights = file.region(indices.span().next(), 64);
        (0..edges).for_each(|e| weights.write(&(e as f32 / 2.0).to_le_bytes()).unwrap());
        let (o, i, w) = (offsets.span(), indices.span(), weights.span());
        let buffers = [Span::NONE, o, Span::NONE, i, Span::NONE, o, Span::NONE, w];
        file.finish(&[n, edges as u64, n, edges as u64], &buffers, vec![weights, offsets, indices]).unwrap()
    }

    #[test]
    fn written_file_is_read_by_arrow_with_equal_values() {
        let dir = tempfile::tempdir().unwrap();
        for (i, degrees) in [vec![], vec![0], vec![3], vec![0, 2, 0, 5, 1], vec![7; 3000]].iter().enumerate() {
            let path = dir.path().join(i.to_string());
            let info = write(&path, degrees);
            let bytes = std::fs::read(&path).unwrap();
            assert_eq!((info.bytes, info.crc32), (bytes.len() as u64, crc32fast::hash(&bytes)), "{degrees:?}");

            let reader = FileReader::try_new(File::open(&path).unwrap(), None).unwrap();
            let batches: Vec<_> = reader.map(Result::unwrap).collect();
            assert_eq!((batches.len(), batches[0].num_rows()), (1, degrees.len()));
            let (neighbors, weights) = (batches[0].column(0).as_list::<i64>(), batches[0].column(1).as_list::<i64>());
            let mut edge = 0;
            for (row, &degree) in degrees.iter().enumerate() {
                let expected = UInt32Array::from_iter_values(edge..edge + degree as u32);
                assert_eq!(neighbors.value(row).as_primitive::<UInt32Type>(), &expected);
                let weights = weights.value(row);
                assert!(
                    weights.as_primitive::<Float32Type>().values().iter().eq(expected
                        .values()
                        .iter()
                        .map(|&e| e as f32 / 2.0)
                        .collect::<Vec<_>>()
                        .iter())
                );
                edge += degree as u32;
            }
        }
    }

    fn open(path: &Path, info: &FileInfo, rows: u64) -> Result<arrow::array::RecordBatch> {
        let (file, _) = super::super::mapped::open_file(path, info)?;
        Ok(super::super::mapped::map(&file, path, info, rows)?.0)
    }

    #[test]
    fn arrays_point_into_the_map() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.arrow");
        let info = write(&path, &[2, 0, 1]);
        let batch = open(&path, &info, 3).unwrap();
        let data = batch.column(0).to_data();
        let (offsets, indices) =
            (data.buffers()[0].as_ptr() as usize, data.child_data()[0].buffers()[0].as_ptr() as usize);
        assert_eq!((offsets % 64, indices - offsets), (0, 64), "both point into the map, 64 bytes apart");
    }

    #[test]
    fn damaged_file_never_panics_and_truncated_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.arrow");
        let info = write(&path, &[2, 0, 40]);
        let whole = std::fs::read(&path).unwrap();
        for length in (0..whole.len()).step_by(13) {
            std::fs::write(&path, &whole[..length]).unwrap();
            let error = open(&path, &info, 3).unwrap_err();
            assert!(error.to_string().contains("bytes, but the manifest says"), "{error}");
        }
        // A flipped byte gives an error or a record batch, but never a panic.
        for at in (0..whole.len()).step_by(5) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x81;
            std::fs::write(&path, &bytes).unwrap();
            drop(open(&path, &info, 3));
        }
    }
}
