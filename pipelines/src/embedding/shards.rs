//! Learned rows in checkpoints: one file (a shard) per partition, written by its process.
//!
//! `checkpoints/embeddings-e7-p00002.safetensors` has partition 2's rows, optimizer state and counts after epoch 7, and
//! `checkpoints/embeddings-e7s40-p00002.safetensors` after 40 steps of the next epoch.
//! `checkpoints/embeddings-best-e5-p00002.safetensors` has its rows of the best epoch, 5. `last.safetensors` names both epochs
//! and is written after all shards, so a crash in between leaves the previous checkpoint. Shards of checkpoints that are not kept are
//! removed afterwards. A shard's checksum is verified before its rows are read. Shards do not depend on the number of processes. A
//! process that resumes needs the shards of its partitions.

use std::ops::Range;
use std::path::{Path, PathBuf};

use gnnflow_data::fs;
use memmap2::Mmap;
use safetensors::tensor::Dtype;
use serde::{Deserialize, Serialize};

use super::NodeEmbeddings;
use crate::checkpoint::folder::Position;
use crate::checkpoint::tensor_file::{self, Tensor};
use crate::error::Error;

/// Prefix of the file names.
const PREFIX: &str = "embeddings-";

/// The epochs of a checkpoint's rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Generation {
    pub(crate) last: Position,
    /// The best epoch, if there is one.
    pub(crate) best: Option<u32>,
}

#[derive(Serialize, Deserialize, PartialEq)]
struct Metadata {
    model: String,
    epoch: u32,
    steps: u32,
    partition: usize,
    dim: usize,
}

fn file(folder: &Path, best: bool, at: Position, part: usize) -> PathBuf {
    let kind = if best { "best-" } else { "" };
    folder.join(format!("{PREFIX}{kind}{at}-p{part:05}.safetensors"))
}

impl NodeEmbeddings {
    /// Writes the shards of `parts`; those of the best epoch only if `with_best`. Each file is written atomically.
    pub(crate) fn save(
        &self,
        folder: &Path,
        parts: Range<usize>,
        generation: Generation,
        with_best: bool,
        model: &str,
    ) -> Result<(), Error> {
        std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        let (table, best_rows) = (self.table.read()?, self.best.read()?);
        for part in parts {
            let metadata = |at: Position| {
                let model = model.to_owned();
                Metadata { model, epoch: at.epochs, steps: at.steps, partition: part, dim: self.dim() }
            };
            let shard = table.shard(part);
            let (values, state) = (bytemuck::cast_slice(shard.values), bytemuck::cast_slice(shard.state));
            let mut tensors = vec![("values", Dtype::F32, values)];
            if !state.is_empty() {
                tensors.push(("state", Dtype::F32, state));
            }
            if !shard.steps.is_empty() {
                tensors.push(("steps", Dtype::U32, bytemuck::cast_slice(shard.steps)));
            }
            let last = generation.last;
            write(&file(folder, false, last, part), &metadata(last), tensors)?;
            if let Some(best) = generation.best.filter(|_| with_best).map(Position::after) {
                let values = bytemuck::cast_slice(best_rows.shard(part));
                write(&file(folder, true, best, part), &metadata(best), vec![("values", Dtype::F32, values)])?;
            }
        }
        Ok(())
    }

    /// Reads the shards of `parts`.
    ///
    /// # Errors
    /// [`Error::DamagedCheckpoint`] if a shard is damaged, missing or of another checkpoint; [`Error::Bug`] if the rows are open.
    pub(crate) fn load(
        &self,
        folder: &Path,
        parts: Range<usize>,
        generation: Generation,
        model: &str,
    ) -> Result<(), Error> {
        let (mut table, mut best_rows) = (self.table.write()?, self.best.write()?);
        for part in parts {
            let metadata = |at: Position| {
                let model = model.to_owned();
                Metadata { model, epoch: at.epochs, steps: at.steps, partition: part, dim: self.dim() }
            };
            let Some(rows) = table.shard_mut(part) else { continue };
            let last = generation.last;
            let mut into: Vec<(&str, &mut [u8])> = vec![("values", bytemuck::cast_slice_mut(rows.values))];
            if !rows.state.is_empty() {
                into.push(("state", bytemuck::cast_slice_mut(rows.state)));
            }
            if !rows.steps.is_empty() {
                into.push(("steps", bytemuck::cast_slice_mut(rows.steps)));
            }
            read(&file(folder, false, last, part), &metadata(last), into)?;
            if let Some(best) = generation.best.map(Position::after) {
                let into = vec![("values", bytemuck::cast_slice_mut(best_rows.shard_mut(part)))];
                read(&file(folder, true, best, part), &metadata(best), into)?;
            }
        }
        Ok(())
    }
}

/// Removes the shards of the partitions `parts` in `folder` that belong to none of the checkpoints `kept`.
///
/// The best epoch of a checkpoint is the last one of which it could have written the rows, because it wrote them when they became the best. A run that resumes
/// removes rows of later epochs first ([`remove_later_shards`]).
pub(crate) fn remove_shards(folder: &Path, kept: &[Position], parts: Range<usize>) -> Result<(), Error> {
    let shards = shards_of(folder, parts)?;
    let best_of = |kept: &Position, part: usize| {
        let best = shards.iter().map(|(shard, _)| shard).filter(|shard| shard.best && shard.part == part);
        best.map(|shard| shard.at.epochs).filter(|&best| best <= kept.epochs).max()
    };
    for (Shard { best, at, part }, path) in &shards {
        let is_needed = match best {
            true => kept.iter().any(|kept| best_of(kept, *part) == Some(at.epochs)),
            false => kept.contains(at),
        };
        if !is_needed {
            fs::remove(path).map_err(Error::io("remove", path))?;
        }
    }
    Ok(())
}

/// Removes the shards of the partitions `parts` in `folder` that a process has written after the checkpoint of `last`, before it ended. They would be taken
/// for those of later checkpoints.
pub(crate) fn remove_later_shards(folder: &Path, last: Position, parts: Range<usize>) -> Result<(), Error> {
    for (Shard { at, .. }, path) in shards_of(folder, parts)? {
        if at > last {
            fs::remove(&path).map_err(Error::io("remove", &path))?;
        }
    }
    Ok(())
}

/// Returns the shards of the partitions `parts` in `folder`, and their files.
fn shards_of(folder: &Path, parts: Range<usize>) -> Result<Vec<(Shard, PathBuf)>, Error> {
    let mut shards = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Error::io("read", folder))? {
        let path = entry.map_err(Error::io("read", folder))?.path();
        let shard = path.file_name().and_then(|name| Shard::parse(name.to_str()?));
        shards.extend(shard.filter(|shard| parts.contains(&shard.part)).map(|shard| (shard, path)));
    }
    Ok(shards)
}

/// What the name of a shard says.
struct Shard {
    best: bool,
    at: Position,
    part: usize,
}

impl Shard {
    fn parse(name: &str) -> Option<Self> {
        let name = name.strip_prefix(PREFIX)?.strip_suffix(".safetensors")?;
        let (best, name) = name.strip_prefix("best-").map_or((false, name), |name| (true, name));
        let (at, part) = name.split_once("-p")?;
        Some(Self { best, at: at.parse().ok()?, part: part.parse().ok()? })
    }
}

fn write(path: &Path, metadata: &Metadata, tensors: Vec<(&str, Dtype, &[u8])>) -> Result<(), Error> {
    if tensors.iter().all(|(_, _, bytes)| bytes.is_empty()) {
        return Ok(()); // a partition without nodes
    }
    let tensor = |(name, dtype, bytes): (&str, Dtype, _)| Tensor {
        name: name.into(),
        dtype,
        shape: vec![<[u8]>::len(bytes) / 4],
        bytes,
    };
    let text = serde_json::to_string(metadata).map_err(|error| Error::Bug(error.to_string()))?;
    // The bytes are mapped: a shard may be larger than memory.
    tensor_file::write(path, Some(&text), tensors.into_iter().map(tensor).collect())
}

fn read(path: &Path, metadata: &Metadata, into: Vec<(&str, &mut [u8])>) -> Result<(), Error> {
    let damaged = |reason: String| Error::DamagedCheckpoint { path: path.to_owned(), reason };
    let file = match std::fs::File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let reason = "is missing; share the run folder between all processes, which read the rows of their partitions from it";
            return Err(damaged(reason.into()));
        }
        file => file.map_err(Error::io("read", path))?,
    };
    // SAFETY: shards are replaced by renaming, never written in place.
    let map = unsafe { Mmap::map(&file) }.map_err(Error::io("read", path))?;
    let (tensors, text) = tensor_file::parse(&map).map_err(damaged)?;
    let found: Metadata = serde_json::from_str(&text).map_err(|error| damaged(format!("is damaged: {error}")))?;
    if found != *metadata {
        return Err(damaged("belongs to another model, epoch or partition than its name says".into()));
    }
    for (name, into) in into {
        let tensor = tensors.tensor(name).map_err(|error| damaged(format!("is damaged: {error}")))?;
        if tensor.data().len() != into.len() {
            let (found, wanted) = (tensor.data().len() / 4, into.len() / 4);
            return Err(damaged(format!("has {found} values of {name:?} instead of {wanted}")));
        }
        into.copy_from_slice(tensor.data());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gnnflow_data::PartitionBook;
    use gnnflow_dataflow::graph::local_graph::{InEdges, LocalGraph, OwnedInEdges};
    use gnnflow_dataflow::graph::placement::Placement;

    use super::*;
    use crate::config::{Embedding, SparseOptimizer};

    /// Rows of three partitions of one worker; the second has no nodes.
    fn rows(folder: &Path, kind: &str, seed: u64) -> NodeEmbeddings {
        let book = PartitionBook::new(vec![0, 3, 3, 7]).unwrap();
        let load = |part: usize| {
            let nodes = (book.range(part).end - book.range(part).start) as usize;
            let none = OwnedInEdges { indptr: vec![0; nodes + 1], ..OwnedInEdges::default() };
            Ok::<_, Error>(Arc::new(none) as Arc<dyn InEdges>)
        };
        let graph = Arc::new(LocalGraph::load(&book, Placement::new(3, 1), 0, false, load).unwrap());
        let optimizer: SparseOptimizer = serde_json::from_value(serde_json::json!({ "kind": kind })).unwrap();
        let config = Embedding { dim: 5, optimizer, ..Default::default() };
        let rows = NodeEmbeddings::create(&config, folder, &graph, 0, seed, 1).unwrap();
        for part in 0..3 {
            if let Some(shard) = rows.table.write().unwrap().shard_mut(part) {
                shard.state.iter_mut().zip(0u32..).for_each(|(x, i)| *x = (i + seed as u32) as f32);
                shard.steps.iter_mut().zip(0u32..).for_each(|(x, i)| *x = i + seed as u32);
            }
        }
        rows.save_best().unwrap();
        rows
    }

    #[test]
    fn loaded_shards_equal_saved_shards_and_old_shards_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        for kind in ["sgd", "adagrad", "adam"] {
            let saved = rows(path, kind, 1);
            let at = |epochs, steps| Position { epochs, steps };
            for (last, best) in [(at(3, 0), 2), (at(4, 0), 2), (at(4, 7), 2), (at(4, 14), 2), (at(5, 0), 5)] {
                let generation = Generation { last, best: Some(best) };
                saved.save(path, 0..3, generation, last.steps == 0, "abc").unwrap();
            }
            let names = || {
                let names = std::fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
                let mut names: Vec<String> =
                    names.map(|name| name.strip_prefix(PREFIX).unwrap().split_once("-p").unwrap().0.into()).collect();
                names.sort();
                names
            };
            remove_shards(path, &[at(5, 0), at(4, 7)], 0..3).unwrap();
            // Two of three partitions have nodes.
            assert_eq!(names(), ["best-e2", "best-e2", "best-e5", "best-e5", "e4s7", "e4s7", "e5", "e5"]);
            remove_shards(path, &[at(4, 7)], 2..3).unwrap();
            assert_eq!(names(), ["best-e2", "best-e2", "best-e5", "e4s7", "e4s7", "e5"]);
            remove_shards(path, &[at(4, 7)], 0..3).unwrap();
            assert_eq!(names(), ["best-e2", "best-e2", "e4s7", "e4s7"]);
            // Of a process that ended after it had written shards of the next checkpoint.
            let later = Generation { last: at(7, 0), best: Some(6) };
            saved.save(path, 0..3, later, true, "abc").unwrap();
            remove_later_shards(path, at(4, 7), 0..3).unwrap();
            assert_eq!(names(), ["best-e2", "best-e2", "e4s7", "e4s7"]);
            let keep = Generation { last: at(4, 7), best: Some(2) };
            let other = rows(path, kind, 2);
            let saved = (saved.table.read().unwrap(), saved.best.read().unwrap());
            assert_ne!(other.table.read().unwrap().shard(0), saved.0.shard(0));
            other.load(path, 0..3, keep, "abc").unwrap();
            let found = (other.table.read().unwrap(), other.best.read().unwrap());
            for part in 0..3 {
                assert_eq!(found.0.shard(part), saved.0.shard(part));
                assert_eq!(found.1.shard(part), saved.1.shard(part));
            }
        }
        remove_shards(path, &[], 0..3).unwrap();
        assert_eq!(std::fs::read_dir(path).unwrap().count(), 0);
    }

    #[test]
    fn missing_damaged_and_foreign_shards_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let saved = rows(path, "adam", 1);
        let generation = Generation { last: Position::after(4), best: None };
        saved.save(path, 0..3, generation, false, "abc").unwrap();
        let message = |generation, model: &str| saved.load(path, 0..3, generation, model).unwrap_err().to_string();
        assert!(
            message(Generation { last: Position::after(5), best: None }, "abc")
                .contains("embeddings-e5-p00000.safetensors: is missing")
        );
        assert!(message(generation, "xyz").contains("another model"));
        let shard = file(path, false, Position::after(4), 2);
        let bytes = std::fs::read(&shard).unwrap();
        std::fs::write(&shard, &bytes[..bytes.len() - 1]).unwrap();
        assert!(message(generation, "abc").contains("embeddings-e4-p00002.safetensors: is damaged"));
    }
}
