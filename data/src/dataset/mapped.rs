//! Opens an Arrow IPC file in place: maps the file; the arrays point into the map.

use std::fs::{File, Metadata};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::buffer::Buffer;
use arrow::ipc::convert::try_fb_to_schema;
use arrow::ipc::reader::{FileDecoder, read_footer_length};
use memmap2::Mmap;

use super::copies::origin_of;
use super::manifest::FileInfo;
use crate::decoding::guard;
use crate::error::{Error, Result};
use crate::store::on_one_line;

/// Opens a file and checks its length against the manifest.
pub(super) fn open_file(path: &Path, expected: &FileInfo) -> Result<(File, Metadata)> {
    let damaged = |reason: String| Error::Damaged { path: path.to_path_buf(), reason };
    let file = match File::open(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            // The dataset's folder has one of each partition.
            let copies = path.ancestors().nth(2).and_then(|dir| Some((dir, origin_of(dir)?)));
            return Err(match copies {
                Some((dir, origin)) => Error::Copies { path: dir.to_path_buf(), origin },
                None => damaged("the file is missing".into()),
            });
        }
        file => file.map_err(Error::io(path, "open"))?,
    };
    let metadata = file.metadata().map_err(Error::io(path, "read"))?;
    if metadata.len() != expected.bytes {
        return Err(damaged(format!("it has {} bytes, but the manifest says {}", metadata.len(), expected.bytes)));
    }
    Ok((file, metadata))
}

/// Maps an open file. Returns its only record batch without copying, and the map that contains it.
///
/// Checks the CRC of the headers, that every buffer is within the file, and (by Arrow) offsets and strings. Damaged headers
/// do not reach Arrow's decoder, because it panics on some of them. If their CRC is right, which a fault of a disk does not cause, a panic
/// becomes an error of the file.
pub(super) fn map(file: &File, path: &Path, expected: &FileInfo, rows: u64) -> Result<(RecordBatch, Arc<Mmap>)> {
    let damaged = |reason: String| Error::Damaged { path: path.to_path_buf(), reason };
    // SAFETY: the map is read-only and private to this process. Datasets are replaced by renaming a new folder, and never written in
    // place. So the mapped file does not change. (Truncating it by hand causes a bus error, which ends the program.)
    let map = unsafe { Mmap::map(file) }.map_err(Error::io(path, "map"))?;
    let (start, end) = expected.body;
    let headers = usize::try_from(start).ok().zip(usize::try_from(end).ok());
    let headers = headers.and_then(|(start, end)| Some((map.get(..start)?, map.get(end..)?)));
    let intact = headers.is_some_and(|(head, tail)| {
        let mut crc = crc32fast::Hasher::new();
        crc.update(head);
        crc.update(tail);
        crc.finalize() == expected.headers_crc32
    });
    if !intact {
        return Err(damaged("the checksum of its headers is wrong".into()));
    }
    let map = Arc::new(map);
    let batch = guard(|| decode(Arc::clone(&map))).flatten().map_err(damaged)?;
    if batch.num_rows() as u64 != rows {
        return Err(damaged(format!("it has {} rows, but the manifest says {rows}", batch.num_rows())));
    }
    Ok((batch, map))
}

fn decode(map: Arc<Mmap>) -> std::result::Result<RecordBatch, String> {
    let text = |e: arrow::error::ArrowError| on_one_line(&e);
    let length = map.len();
    let trailer: [u8; 10] = map.last_chunk().copied().ok_or("it is shorter than any Arrow file")?;
    let footer_length = read_footer_length(trailer).map_err(text)?;
    let footer_start = (length - 10).checked_sub(footer_length).ok_or("its footer is truncated")?;
    let footer = arrow::ipc::root_as_footer(&map[footer_start..length - 10]).map_err(|e| on_one_line(&e))?;
    let schema = try_fb_to_schema(footer.schema().ok_or("no schema")?).map_err(text)?;
    let blocks =
        footer.recordBatches().filter(|blocks| blocks.len() == 1).ok_or("it does not hold one record batch")?;
    let block = *blocks.get(0);
    let span = |start: i64, length: i64| {
        let (start, length) = (usize::try_from(start).ok()?, usize::try_from(length).ok()?);
        start.checked_add(length).filter(|&end| end <= footer_start).map(|_| (start, length))
    };
    let metadata = i64::from(block.metaDataLength());
    let size = metadata.checked_add(block.bodyLength()).and_then(|size| span(block.offset(), size));
    let (start, size) = size.ok_or("its record batch is truncated")?;
    let version = footer.version();

    let pointer = NonNull::new(map.as_ptr().cast_mut()).ok_or("an empty map")?;
    // SAFETY: `pointer` is valid for `length` bytes for as long as the map lives, and the buffer keeps the map alive.
    let buffer = unsafe { Buffer::from_custom_allocation(pointer, length, map) };
    let batch = buffer.slice_with_length(start, size);
    check_buffers(&batch, metadata as usize)?;
    let decoder = FileDecoder::new(Arc::new(schema), version).with_require_alignment(true);
    decoder.read_record_batch(&block, &batch).map_err(text)?.ok_or_else(|| "no record batch".to_string())
}

/// Checks that every buffer of the batch is within it; Arrow's decoder would panic otherwise.
fn check_buffers(batch: &[u8], metadata: usize) -> std::result::Result<(), String> {
    let message = batch.get(8..metadata).ok_or("its batch header is truncated")?;
    let message = arrow::ipc::root_as_message(message).map_err(|e| on_one_line(&e))?;
    let header = message.header_as_record_batch().ok_or("its message is not a record batch")?;
    let body = (batch.len() - metadata) as i64;
    for buffer in header.buffers().into_iter().flatten() {
        let end = buffer.offset().checked_add(buffer.length());
        if buffer.offset() < 0 || buffer.length() < 0 || end.is_none_or(|end| end > body) {
            return Err("a column extends beyond the end".into());
        }
    }
    Ok(())
}

/// Returns column `name` as array type `A`, without nulls.
pub(super) fn column<A: Array + Clone + 'static>(batch: &RecordBatch, path: &Path, name: &str) -> Result<A> {
    let found: Option<&ArrayRef> = batch.column_by_name(name);
    let array = found.and_then(|array| array.as_any().downcast_ref::<A>()).filter(|array| array.null_count() == 0);
    array.cloned().ok_or_else(|| Error::Damaged {
        path: path.to_path_buf(),
        reason: match found {
            Some(array) => format!("column \"{name}\" is {}", array.data_type()),
            None => format!("there is no column \"{name}\""),
        },
    })
}
