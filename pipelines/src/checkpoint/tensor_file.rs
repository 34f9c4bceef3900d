//! Safetensors files with a checksum: checkpoints, shards of learned rows, and `model.safetensors`.
//!
//! The checksum is the entry `gnnflow.crc32` of the header's `__metadata__`: the CRC-32 of the whole file, with zeros as the
//! eight hexadecimal digits of the checksum. Other readers of safetensors files ignore it.

use std::collections::HashMap;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use gnnflow_data::fs::{persist, temporary_file};
use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors, TensorInfo};
use serde_json::{Map, Value, json};

use crate::error::Error;

/// The entry of the metadata with data that are not tensors.
const CONTENT: &str = "gnnflow";
/// The entry of the metadata with the checksum.
const CHECKSUM: &str = "gnnflow.crc32";
/// The digits in place of the checksum while it is computed.
const UNKNOWN: &str = "00000000";
/// Bytes that are hashed and written in one call.
const CHUNK: usize = 1 << 20;

/// A tensor to write.
pub(crate) struct Tensor<'a> {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: &'a [u8],
}

/// Writes a file of `tensors` atomically; `content` has other data. Tensors are not copied, so mapped ones may be larger than
/// memory.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn write(path: &Path, content: Option<&str>, mut tensors: Vec<Tensor<'_>>) -> Result<(), Error> {
    // The `safetensors` crate uses this order.
    tensors.sort_by(|a, b| b.dtype.cmp(&a.dtype).then_with(|| a.name.cmp(&b.name)));
    let mut metadata = Map::new();
    metadata.insert(CHECKSUM.into(), UNKNOWN.into());
    if let Some(content) = content {
        metadata.insert(CONTENT.into(), content.into());
    }
    let mut header = Map::from_iter([("__metadata__".to_owned(), Value::Object(metadata))]);
    let mut end = 0;
    for Tensor { name, dtype, shape, bytes } in &tensors {
        let info = TensorInfo { dtype: *dtype, shape: shape.clone(), data_offsets: (end, end + bytes.len()) };
        header.insert(name.clone(), json!(info));
        end += bytes.len();
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let digits = digits(&header).ok_or_else(|| Error::Bug("a header without its checksum".into()))?;
    let length = (header.len() as u64).to_le_bytes();

    let folder = path.parent().unwrap_or(Path::new("."));
    let write = || {
        let mut file = temporary_file(folder)?;
        let mut crc = crc32fast::Hasher::new();
        for bytes in [&length[..], &header].into_iter().chain(tensors.iter().map(|tensor| tensor.bytes)) {
            for chunk in bytes.chunks(CHUNK) {
                crc.update(chunk);
                file.write_all(chunk)?;
            }
        }
        let checksum = format!("{:08x}", crc.finalize());
        file.as_file().write_all_at(checksum.as_bytes(), (length.len() + digits) as u64)?;
        persist(file, path)
    };
    write().map_err(Error::io("write", path))
}

/// Returns the tensors and the other content of a file that [`write`] has written.
///
/// # Errors
/// The problem of the file, without its name.
pub(crate) fn parse(bytes: &[u8]) -> Result<(SafeTensors<'_>, String), String> {
    let checksum = Checksum::of(bytes);
    if checksum == Checksum::Wrong {
        return Err("is damaged: its checksum does not match its content".into());
    }
    let damaged = |error: SafeTensorError| format!("is damaged: {error}");
    let tensors = SafeTensors::deserialize(bytes).map_err(damaged)?;
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(damaged)?;
    let metadata: Option<&HashMap<String, String>> = header.metadata().as_ref();
    let content = metadata
        .and_then(|metadata| metadata.get(CONTENT))
        .ok_or("has no description: it is from an older version of gnnflow or from another program")?;
    match checksum {
        // Training must not resume from unverified content.
        Checksum::None => Err("has no checksum, and is from an older version of gnnflow or damaged".into()),
        _ => Ok((tensors, content.clone())),
    }
}

/// Verifies the checksum of a safetensors file. Of a file without checksum (from older versions or other programs), only the
/// header is verified.
///
/// # Errors
/// [`Error::Input`] if the file is damaged; [`Error::Io`] if it cannot be read.
pub fn verify_tensors(path: &Path) -> Result<(), Error> {
    let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
    let wrong = match Checksum::of(&bytes) {
        Checksum::Right => None,
        Checksum::Wrong => Some("its checksum does not match its content".to_owned()),
        Checksum::None => SafeTensors::deserialize(&bytes).err().map(|error| error.to_string()),
    };
    wrong.map_or(Ok(()), |reason| {
        let path = path.display();
        Err(Error::Input(format!("{path}: damaged: {reason}; restore it from a copy, or run the pipeline again")))
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Checksum {
    Right,
    Wrong,
    None,
}

impl Checksum {
    fn of(bytes: &[u8]) -> Self {
        let length = bytes.first_chunk().map_or(0, |length| u64::from_le_bytes(*length));
        let end = usize::try_from(length).ok().and_then(|length| length.checked_add(8));
        let header = end.and_then(|end| bytes.get(8..end));
        let Some(at) = header.and_then(digits).map(|at| 8 + at) else { return Self::None };
        let (before, rest) = bytes.split_at(at);
        let Some((found, after)) = rest.split_at_checked(UNKNOWN.len()) else { return Self::Wrong };
        let mut crc = crc32fast::Hasher::new();
        [before, UNKNOWN.as_bytes(), after].into_iter().for_each(|bytes| crc.update(bytes));
        let right = found == format!("{:08x}", crc.finalize()).as_bytes();
        if right { Self::Right } else { Self::Wrong }
    }
}

/// Returns the offset of the checksum's digits in a header. Quotes within other texts are escaped, so the match is unique.
fn digits(header: &[u8]) -> Option<usize> {
    let key = format!("\"{CHECKSUM}\":\"");
    let at = header.windows(key.len()).position(|window| window == key.as_bytes())?;
    Some(at + key.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(folder: &Path, content: Option<&str>) -> Vec<u8> {
        let path = folder.join("x.safetensors");
        let values = [1.0f32, -0.0, 3.5, 4.0];
        let counts = [7u32, 8];
        let tensors = vec![
            Tensor { name: "steps".into(), dtype: Dtype::U32, shape: vec![2], bytes: bytemuck::cast_slice(&counts) },
            Tensor { name: "b".into(), dtype: Dtype::F32, shape: vec![2, 2], bytes: bytemuck::cast_slice(&values) },
            Tensor { name: "a".into(), dtype: Dtype::F32, shape: vec![0], bytes: &[] },
        ];
        write(&path, content, tensors).unwrap();
        std::fs::read(path).unwrap()
    }

    #[test]
    fn written_file_is_read_by_the_safetensors_crate() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = written(folder.path(), Some("{\"epoch\": \"\\\"gnnflow.crc32\\\":\\\"00000000\"}"));
        let (tensors, content) = parse(&bytes).unwrap();
        assert_eq!(content, "{\"epoch\": \"\\\"gnnflow.crc32\\\":\\\"00000000\"}");
        let b = tensors.tensor("b").unwrap();
        assert_eq!(
            (b.dtype(), b.shape(), b.data()),
            (Dtype::F32, &[2, 2][..], bytemuck::cast_slice(&[1.0f32, -0.0, 3.5, 4.0]))
        );
        assert_eq!(tensors.tensor("steps").unwrap().data(), bytemuck::cast_slice::<u32, u8>(&[7, 8]));
        assert_eq!(tensors.tensor("a").unwrap().shape(), [0]);
        assert_eq!(bytes, written(folder.path(), Some(&content)), "equal bytes in each call");
        assert!(parse(&written(folder.path(), None)).unwrap_err().contains("has no description"));
    }

    #[test]
    fn flipped_bits_and_truncation_are_detected() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = written(folder.path(), Some("{}"));
        for bit in 0..8 * bytes.len() {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(&flipped).is_err(), "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert!(parse(&bytes[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn file_without_checksum_is_refused_as_a_checkpoint_and_accepted_as_a_model() {
        let folder = tempfile::tempdir().unwrap();
        let metadata = HashMap::from([("gnnflow".to_owned(), "{}".to_owned())]);
        let none: Vec<(&str, safetensors::tensor::TensorView<'_>)> = Vec::new();
        let bytes = safetensors::serialize(none, Some(metadata)).unwrap();
        assert!(parse(&bytes).unwrap_err().contains("older version"));
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, bytes).unwrap();
        verify_tensors(&path).unwrap();
    }
}
