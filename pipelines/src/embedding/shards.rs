//! Learned rows in checkpoints: one file (a shard) per partition, written by its process.
//!
//! `checkpoints/embeddings-e7-p00002.safetensors` has partition 2's rows, optimizer state and counts after epoch 7, and
//! `checkpoints/embeddings-e7s40-p00002.safetensors` after 40 steps of the next epoch.
//! `checkpoints/embeddings-best-e5-p00002.safetensors` has its rows of the best epoch, 5. `last.safetensors` names both epochs
//! and is written after all shards, so a crash in between leaves the previous checkpoint. Shards of other epochs are removed
//! afterwards. A shard's checksum is verified before its rows are read. Shards do not depend on the number of processes. A
//! process that resumes needs the shards of its partitions.

use std::ops::Range;
use std::path::{Path, PathBuf};

use gnnflow_data::fs;
use memmap2::Mmap;
use safetensors::tensor::{Dtype, SafeTensorError};
use serde::{Deserialize, Serialize};

use super::NodeEmbeddings;
use crate::checkpoint::REMEDY;
use crate::checkpoint::tensor_file::{self, Tensor};
use crate::error::Error;

/// Prefix of the file names.
const PREFIX: &str = "embeddings-";

/// The epochs of a checkpoint's rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Generation {
    /// Epochs trained.
    pub(crate) epochs: u32,
    /// Steps of the next epoch that are trained.
    pub(crate) steps: u32,
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

fn file(folder: &Path, best: bool, (epoch, steps): (u32, u32), part: usize) -> PathBuf {
    let kind = if best { "best-" } else { "" };
    let steps = if steps > 0 { format!("s{steps}") } else { String::new() };
    folder.join(format!("{PREFIX}{kind}e{epoch}{steps}-p{part:05}.safetensors"))
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
            let metadata = |(epoch, steps)| {
                let model = model.to_owned();
                Metadata { model, epoch, steps, partition: part, dim: self.dim() }
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
            let last = (generation.epochs, generation.steps);
            write(&file(folder, false, last, part), &metadata(last), tensors)?;
            if let Some(best) = generation.best.filter(|_| with_best) {
                let (values, best) = (bytemuck::cast_slice(best_rows.shard(part)), (best, 0));
                write(&file(folder, true, best, part), &metadata(best), vec![("values", Dtype::F32, values)])?;
            }
        }
        Ok(())
    }

    /// Reads the shards of `parts`.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if a shard is missing, damaged or of another checkpoint; [`Error::Bug`] if the rows are open.
    pub(crate) fn load(
        &self,
        folder: &Path,
        parts: Range<usize>,
        generation: Generation,
        model: &str,
    ) -> Result<(), Error> {
        let (mut table, mut best_rows) = (self.table.write()?, self.best.write()?);
        for part in parts {
            let metadata = |(epoch, steps)| {
                let model = model.to_owned();
                Metadata { model, epoch, steps, partition: part, dim: self.dim() }
            };
            let Some(rows) = table.shard_mut(part) else { continue };
            let last = (generation.epochs, generation.steps);
            let mut into: Vec<(&str, &mut [u8])> = vec![("values", bytemuck::cast_slice_mut(rows.values))];
            if !rows.state.is_empty() {
                into.push(("state", bytemuck::cast_slice_mut(rows.state)));
            }
            if !rows.steps.is_empty() {
                into.push(("steps", bytemuck::cast_slice_mut(rows.steps)));
            }
            read(&file(folder, false, last, part), &metadata(last), into)?;
            if let Some(best) = generation.best {
                let into = vec![("values", bytemuck::cast_slice_mut(best_rows.shard_mut(part)))];
                let best = (best, 0);
                read(&file(folder, true, best, part), &metadata(best), into)?;
            }
        }
        Ok(())
    }
}

/// Removes the shards of the partitions `parts` (`None`: of all) in `folder`, except those of `keep`.
pub(crate) fn remove_shards(folder: &Path, keep: Option<Generation>, parts: Option<Range<usize>>) -> Result<(), Error> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io("read", folder)(error)),
    };
    for entry in entries {
        let path = entry.map_err(Error::io("read", folder))?.path();
        let Some((best, after, part)) = path.file_name().and_then(|name| parse(name.to_str()?)) else { continue };
        let is_current = keep.is_some_and(|keep| match best {
            true => keep.best.is_some_and(|best| after == (best, 0)),
            false => after == (keep.epochs, keep.steps),
        });
        if !is_current && parts.as_ref().is_none_or(|parts| parts.contains(&part)) {
            fs::remove(&path).map_err(Error::io("remove", &path))?;
        }
    }
    Ok(())
}

/// Reads kind, epoch with steps, and partition of a shard from its file name.
fn parse(name: &str) -> Option<(bool, (u32, u32), usize)> {
    let name = name.strip_prefix(PREFIX)?.strip_suffix(".safetensors")?;
    let (best, name) = name.strip_prefix("best-").map_or((false, name), |name| (true, name));
    let (after, part) = name.strip_prefix('e')?.split_once("-p")?;
    let (epoch, steps) = after.split_once('s').unwrap_or((after, "0"));
    Some((best, (epoch.parse().ok()?, steps.parse().ok()?), part.parse().ok()?))
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
    let refuse = |message: String| Error::Checkpoint { path: path.to_owned(), message };
    let file = match std::fs::File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let message = "is missing; share the run folder between all processes, which read the rows of their partitions \
                           from it";
            return Err(refuse(message.into()));
        }
        file => file.map_err(Error::io("read", path))?,
    };
    // SAFETY: shards are replaced by renaming, never written in place.
    let map = unsafe { Mmap::map(&file) }.map_err(Error::io("read", path))?;
    let (tensors, text) = tensor_file::parse(&map).map_err(|reason| refuse(format!("{reason}; {REMEDY}")))?;
    let damaged = |error: SafeTensorError| refuse(format!("is damaged: {error}"));
    let found: Metadata = serde_json::from_str(&text).map_err(|error| refuse(format!("is damaged: {error}")))?;
    if found != *metadata {
        let message = "belongs to another model, epoch or partition than its name and last.safetensors";
        return Err(refuse(format!("{message}; {REMEDY}")));
    }
    for (name, into) in into {
        let tensor = tensors.tensor(name).map_err(damaged)?;
        if tensor.data().len() != into.len() {
            let (found, wanted) = (tensor.data().len() / 4, into.len() / 4);
            return Err(refuse(format!("{name:?} has {found} values instead of {wanted}; {REMEDY}")));
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
            for (epochs, steps) in [(3, 0), (4, 0), (4, 7), (4, 14)] {
                saved.save(path, 0..3, Generation { epochs, steps, best: Some(2) }, epochs == 3, "abc").unwrap();
            }
            let keep = Generation { epochs: 4, steps: 7, best: Some(2) };
            remove_shards(path, Some(keep), Some(0..3)).unwrap();
            let mut names: Vec<String> =
                std::fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            assert_eq!(
                names,
                ["best-e2-p00000", "best-e2-p00002", "e4s7-p00000", "e4s7-p00002"]
                    .map(|name| format!("embeddings-{name}.safetensors"))
            );
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
        remove_shards(path, None, None).unwrap();
        assert_eq!(std::fs::read_dir(path).unwrap().count(), 0);
    }

    #[test]
    fn missing_damaged_and_foreign_shards_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let saved = rows(path, "adam", 1);
        let generation = Generation { epochs: 4, ..Generation::default() };
        saved.save(path, 0..3, generation, false, "abc").unwrap();
        let message = |generation, model: &str| saved.load(path, 0..3, generation, model).unwrap_err().to_string();
        assert!(
            message(Generation { epochs: 5, ..generation }, "abc")
                .contains("embeddings-e5-p00000.safetensors: is missing")
        );
        assert!(message(generation, "xyz").contains("another model"));
        let shard = file(path, false, (4, 0), 2);
        let bytes = std::fs::read(&shard).unwrap();
        std::fs::write(&shard, &bytes[..bytes.len() - 1]).unwrap();
        assert!(message(generation, "abc").contains("embeddings-e4-p00002.safetensors: is damaged"));
    }
}
