//! Fingerprints: whether a prepared dataset is current for its inputs and settings.
//!
//! The fingerprint is a SHA-256 of the layout's version, of every setting that affects the dataset's bytes, and of a digest of each
//! input file. The digest covers the length and the content. Of files larger than 64 MiB, it covers the first and last MiB (the last
//! holds the Parquet footer with all offsets, counts and statistics) and 64 evenly spaced samples of 64 KiB. The digest of an object
//! covers URL, length, ETag (or time of modification) and the last 64 KiB with the footer. Folders, modification times, and the numbers
//! of threads and processes do not affect the fingerprint, nor does the memory budget. The memory that the partitioner plans with does if
//! the partitioner says so.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::PrepareSettings;
use crate::dataset::{Dataset, InputFile, Manifest, SCHEMA_VERSION};
use crate::dump::DumpFile;
use crate::error::{Error, Result};
use crate::format::hex;
use crate::partitioner::Partitioner;
use crate::source::GraphSource;
use crate::store::{Object, Tail};

/// Files up to this length are hashed completely.
const MAX_WHOLE: u64 = 64 << 20;
/// Of larger files, this many bytes of both ends,
const END: u64 = 1 << 20;
/// and this many samples
const SAMPLES: u64 = 64;
/// of this length.
const SAMPLE: u64 = 64 << 10;
/// Maximum bytes of a difference in words.
const LONGEST_DIFFERENCE: usize = 300;
/// Number of objects whose ends are read concurrently.
const CONCURRENT: usize = 64;

/// Inputs and settings of a dataset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// SHA-256 in hexadecimal.
    pub digest: String,
    /// The settings that affect the dataset.
    pub settings: Value,
    /// The input files.
    pub inputs: Vec<InputFile>,
}

/// Computes the fingerprint of the dataset of `source` with `partitioner` and `settings`.
///
/// # Errors
/// If an input cannot be read.
pub fn fingerprint(
    source: &GraphSource,
    partitioner: &dyn Partitioner,
    settings: &PrepareSettings,
) -> Result<Fingerprint> {
    let settings = json!({
        "graph": graph_settings(source)?,
        "partition": {
            "method": partitioner.name(),
            "settings": partitioner.settings(),
            "parts": settings.parts,
            "seed": settings.seed,
            "balance": settings.balance,
            "halo_features": settings.halo_features,
            "memory": partitioner.memory_decides().then_some(settings.method_memory),
        },
    });
    let mut inputs = input_files("nodes", &source.node_files()?)?;
    inputs.extend(input_files("edges", &source.edge_files()?)?);
    let text = json!({ "schema": SCHEMA_VERSION, "settings": settings, "inputs": inputs }).to_string();
    Ok(Fingerprint { digest: hex(&Sha256::digest(text.as_bytes())), settings, inputs })
}

/// Returns the settings of the graph that are part of the fingerprint, as in [`Manifest::settings`].
///
/// # Errors
/// [`Error::Bug`] if they are not JSON.
pub fn graph_settings(source: &GraphSource) -> Result<Value> {
    let bare = GraphSource { nodes: Vec::new(), edges: Vec::new(), ..source.clone() };
    let mut graph = serde_json::to_value(&bare).map_err(|e| Error::Bug(e.to_string()))?;
    if let Value::Object(keys) = &mut graph {
        keys.retain(|key, _| !["nodes", "node_types", "edges", "edge_types", "retry"].contains(&key.as_str()));
    }
    Ok(graph)
}

/// Returns lengths and digests of input files, local ones and objects.
pub(crate) fn input_files(role: &str, files: &[DumpFile]) -> Result<Vec<InputFile>> {
    let mut inputs = Vec::with_capacity(files.len());
    for files in files.chunks(CONCURRENT) {
        let tails = DumpFile::tails(files)?;
        let some = files.par_iter().zip(tails).map(|(file, tail)| {
            let input = match (file.object(), tail) {
                (Some(object), Some(tail)) => remote_input(role, object, &tail),
                _ => input(role, file.path())?,
            };
            Ok(InputFile { row_type: file.row_type().map(|name| name.to_string()), ..input })
        });
        inputs.extend(some.collect::<Result<Vec<InputFile>>>()?);
    }
    Ok(inputs)
}

/// Returns length and digest of a local input file.
fn input(role: &str, path: &Path) -> Result<InputFile> {
    let mut file = File::open(path).map_err(Error::io(path, "open"))?;
    let bytes = file.metadata().map_err(Error::io(path, "read"))?.len();
    let mut hash = Sha256::new();
    hash.update(bytes.to_le_bytes());
    let mut buffer = vec![0; END as usize];
    if bytes <= MAX_WHOLE {
        loop {
            let length = file.read(&mut buffer).map_err(Error::io(path, "read"))?;
            if length == 0 {
                break;
            }
            hash.update(&buffer[..length]);
        }
    } else {
        let samples = (0..SAMPLES).map(|i| (bytes / (SAMPLES + 1) * (i + 1), SAMPLE));
        for (start, length) in [(0, END), (bytes - END, END)].into_iter().chain(samples) {
            let part = &mut buffer[..length as usize];
            file.read_exact_at(part, start).map_err(Error::io(path, "read"))?;
            hash.update(&*part);
        }
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(InputFile { role: role.into(), name, row_type: None, bytes, digest: hex(&hash.finalize()) })
}

fn remote_input(role: &str, object: &Object, tail: &Tail) -> InputFile {
    let mut hash = Sha256::new();
    hash.update(object.bytes().to_le_bytes());
    hash.update(object.version());
    hash.update(tail.bytes());
    let url = object.url().to_string_lossy();
    // A query may contain a temporary signature, which is a secret.
    let name = url.split_once('?').map_or(&*url, |(name, _)| name).to_owned();
    InputFile { role: role.into(), name, row_type: None, bytes: object.bytes(), digest: hex(&hash.finalize()) }
}

/// State of the folder of a dataset.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// The current dataset.
    Current(Box<Manifest>),
    /// No folder, or an empty one.
    Missing,
    /// A damaged dataset, or one with another layout, inputs or settings: the reason for another preparation.
    Stale(String),
    /// A dataset with changes that are not in its inputs, so another preparation would lose them.
    Updated,
    /// Other content, which must not be overwritten.
    Foreign,
}

/// Returns the state of folder `out`.
///
/// # Errors
/// If the folder cannot be read.
pub fn state(out: &Path, wanted: &Fingerprint) -> Result<State> {
    let manifest = match Manifest::read(out) {
        Ok(manifest) => manifest,
        Err(Error::Missing { .. }) => return Ok(State::Missing),
        Err(Error::NotADataset { .. }) => {
            let empty = out.is_dir() && std::fs::read_dir(out).map_err(Error::io(out, "list"))?.next().is_none();
            return Ok(if empty { State::Missing } else { State::Foreign });
        }
        // It cannot be read, but its changes must not be lost.
        Err(Error::SchemaVersion { .. } | Error::Damaged { .. }) if names_updates(out) => return Ok(State::Updated),
        Err(Error::SchemaVersion { found, expected, .. }) => {
            return Ok(State::Stale(format!("it has schema version {found}, but this gnnflow writes {expected}")));
        }
        Err(Error::Damaged { reason, .. }) => return Ok(State::Stale(format!("its manifest is damaged: {reason}"))),
        Err(error) => return Err(error),
    };
    if !manifest.updates.is_empty() {
        return Ok(State::Updated);
    }
    if manifest.fingerprint != wanted.digest {
        return Ok(State::Stale(difference(&manifest, wanted)));
    }
    match Dataset::open(out).and_then(|dataset| dataset.check_lengths()) {
        Ok(()) => Ok(State::Current(Box::new(manifest))),
        Err(Error::Damaged { path, reason }) => Ok(State::Stale(format!("{} is damaged: {reason}", path.display()))),
        Err(error) => Err(error),
    }
}

/// Whether the text of a manifest has updates.
fn names_updates(out: &Path) -> bool {
    std::fs::read(out.join(Manifest::FILE)).is_ok_and(|text| String::from_utf8_lossy(&text).contains("\"updates\""))
}

/// Describes the first difference.
fn difference(manifest: &Manifest, wanted: &Fingerprint) -> String {
    if let Some(words) = first_difference("", &manifest.settings, &wanted.settings) {
        return words;
    }
    if manifest.inputs.len() != wanted.inputs.len() {
        return format!("it was made from {} files, but now there are {}", manifest.inputs.len(), wanted.inputs.len());
    }
    let changed = manifest.inputs.iter().zip(&wanted.inputs).find(|(then, now)| then != now);
    match changed {
        Some((then, now)) if then.name != now.name => format!("input {} is now {}", then.name, now.name),
        Some((then, _)) => format!("input {} has changed", then.name),
        None => "its fingerprint differs".into(),
    }
}

fn first_difference(key: &str, then: &Value, now: &Value) -> Option<String> {
    if then == now {
        return None;
    }
    if let (Value::Object(then), Value::Object(now)) = (then, now) {
        let inside = |(name, now): (&String, &Value)| {
            let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
            first_difference(&key, then.get(name).unwrap_or(&Value::Null), now)
        };
        return now.iter().find_map(inside).or_else(|| Some(format!("{key} has changed")));
    }
    let words = format!("{key} was {then}, now it is {now}");
    Some(if words.len() > LONGEST_DIFFERENCE { format!("{key} has changed") } else { words })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_byte_of_a_small_file_changes_its_digest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.parquet");
        let mut bytes = vec![7u8; 3000];
        std::fs::write(&path, &bytes).unwrap();
        let before = input("nodes", &path).unwrap();
        assert_eq!(before, input("nodes", &path).unwrap());
        bytes[1500] = 8;
        std::fs::write(&path, &bytes).unwrap();
        assert_ne!(before, input("nodes", &path).unwrap());
    }

    #[test]
    fn changed_end_or_length_of_a_large_file_changes_its_digest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.parquet");
        let file = File::create(&path).unwrap();
        file.set_len(MAX_WHOLE + 5).unwrap();
        let before = input("edges", &path).unwrap();
        file.write_all_at(&[1], MAX_WHOLE + 4).unwrap();
        let after = input("edges", &path).unwrap();
        file.set_len(MAX_WHOLE + 6).unwrap();
        let longer = input("edges", &path).unwrap();
        assert!(before.digest != after.digest && after.digest != longer.digest);
    }

    #[test]
    fn the_first_difference_is_named() {
        let (then, now) = (json!({"partition": {"parts": 2}}), json!({"partition": {"parts": 4}}));
        assert_eq!(first_difference("", &then, &now).unwrap(), "partition.parts was 2, now it is 4");
    }
}
