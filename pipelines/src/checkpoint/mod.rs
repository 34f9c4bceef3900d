//! Checkpoints: the state from which a run resumes, in one safetensors file.
//!
//! `checkpoints/last.safetensors` has parameters and optimizer state, of the last and of the best epoch. Epoch, best epoch and fingerprint
//! are JSON in its metadata. The file is written under a temporary name, synced and renamed. Its checksum is verified before
//! it is used. It does not depend on the number of processes. Learned rows are in one file per partition
//! (`embedding::shards`), written before this file. Checkpoints before the last one are kept beside it ([`folder`]).

pub(crate) mod folder;
pub(crate) mod tensor_file;

use std::path::Path;

use gnnflow_nn::optimizer::State;
use safetensors::tensor::{Dtype, SafeTensorError};
use serde::{Deserialize, Serialize};

use self::folder::Position;
use self::tensor_file::Tensor;
use crate::compute::Replica;
use crate::engine::EpochPart;
use crate::error::Error;

/// Version of the layout.
const SCHEMA: u32 = 3;

/// The state of a run between two epochs, or two steps of one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Checkpoint {
    pub(crate) progress: Progress,
    /// After the last epoch.
    pub(crate) last: Replica,
    /// After the best epoch, if there is one. The optimizer's state has the same vectors.
    pub(crate) best: Option<Replica>,
    /// Width of learned rows, if the model has them.
    pub(crate) embedding: Option<usize>,
}

/// The progress of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Epochs trained.
    pub(crate) epochs: u32,
    /// The part of the next epoch that has been trained.
    pub(crate) part: Option<EpochPart>,
    /// The best epoch (from 1) by the validation metric, and its value there.
    pub(crate) best: Option<(u32, (f64, f64))>,
    /// The epochs whose models are kept, from the best on, and their values of the validation metric.
    #[serde(default)]
    pub(crate) best_models: Vec<(u32, (f64, f64))>,
    /// Seconds of each epoch.
    pub(crate) seconds: Vec<f64>,
    /// The hash of the sampled blocks so far.
    pub(crate) blocks: [u8; 32],
}

impl Progress {
    pub(crate) fn position(&self) -> Position {
        Position { epochs: self.epochs, steps: self.part.as_ref().map_or(0, |part| part.steps) }
    }
}

#[derive(Serialize, Deserialize)]
struct Metadata {
    schema: u32,
    model: String,
    progress: Progress,
    optimizer_steps: u64,
    /// Of the best epoch.
    best_optimizer_steps: Option<u64>,
    optimizer_vectors: Vec<String>,
    #[serde(default)]
    embedding: Option<usize>,
}

impl Checkpoint {
    /// Writes the checkpoint atomically. `model` is the fingerprint of pipeline and dataset.
    pub(crate) fn write(&self, path: &Path, model: &str) -> Result<(), Error> {
        let names = self.last.optimizer.vectors.iter().map(|(name, _)| name.clone());
        let metadata = Metadata {
            schema: SCHEMA,
            model: model.to_owned(),
            progress: self.progress.clone(),
            optimizer_steps: self.last.optimizer.steps,
            best_optimizer_steps: self.best.as_ref().map(|best| best.optimizer.steps),
            optimizer_vectors: names.collect(),
            embedding: self.embedding,
        };
        fn tensor(name: String, values: &[f32]) -> Tensor<'_> {
            Tensor { name, dtype: Dtype::F32, shape: vec![values.len()], bytes: bytemuck::cast_slice(values) }
        }
        let replicas = [("", Some(&self.last)), ("best.", self.best.as_ref())];
        let mut tensors = Vec::new();
        for (of, Replica { params, optimizer }) in replicas.into_iter().filter_map(|(of, all)| Some((of, all?))) {
            tensors.push(tensor(format!("{of}params"), params));
            let vectors = optimizer.vectors.iter();
            tensors.extend(vectors.map(|(name, vector)| tensor(format!("{of}optimizer.{name}"), vector)));
        }
        let text = serde_json::to_string(&metadata).map_err(|error| Error::Bug(error.to_string()))?;
        tensor_file::write(path, Some(&text), tensors)
    }

    /// Reads a checkpoint with the fingerprint `model`, `params` parameters, of which the optimizer updates the first `trained`,
    /// and learned rows of width `embedding`.
    ///
    /// # Errors
    /// [`Error::DamagedCheckpoint`] if it is damaged; [`Error::Checkpoint`] if it is of another model; [`Error::Io`] if it cannot be read.
    pub(crate) fn read(
        path: &Path,
        model: &str,
        params: usize,
        trained: usize,
        embedding: Option<usize>,
    ) -> Result<Self, Error> {
        let refuse = |message: String| Error::Checkpoint { path: path.to_owned(), message };
        let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
        let (tensors, text) =
            tensor_file::parse(&bytes).map_err(|reason| Error::DamagedCheckpoint { path: path.to_owned(), reason })?;
        let damaged = |error: SafeTensorError| refuse(format!("is damaged: {error}"));
        let metadata: Metadata = serde_json::from_str(&text).map_err(|error| refuse(format!("is damaged: {error}")))?;
        if metadata.schema != SCHEMA {
            let message = format!(
                "has schema {}, but this version reads {SCHEMA}; finish the run with the version of gnnflow that started it, or leave --resume out to start anew",
                metadata.schema
            );
            return Err(refuse(message));
        }
        if metadata.embedding != embedding {
            let has = |rows: Option<usize>| {
                rows.map_or("no learned rows".into(), |dim| format!("learned rows of {dim} numbers"))
            };
            let fix = metadata
                .embedding
                .map_or("leave model.embedding out".into(), |dim| format!("set model.embedding.dim = {dim}"));
            let message = format!(
                "has {}, and this pipeline has {}; {fix}, choose another --run-dir, or leave --resume out to start anew",
                has(metadata.embedding),
                has(embedding)
            );
            return Err(refuse(message));
        }
        if metadata.model != model {
            let message = "belongs to another pipeline, with a different graph, partitioning, model, training or train.from; choose \
                           another --run-dir, or leave --resume out to start anew";
            return Err(refuse(message.into()));
        }
        let vector = |name: &str, len: usize| -> Result<Vec<f32>, Error> {
            let tensor = tensors.tensor(name).map_err(damaged)?;
            if tensor.dtype() != Dtype::F32 || tensor.data().len() != 4 * len {
                return Err(refuse(format!("{name:?} has another length than the model's {len} parameters")));
            }
            Ok(tensor.data().chunks_exact(4).map(bytemuck::pod_read_unaligned).collect())
        };
        let replica = |of: &str, steps: u64| -> Result<Replica, Error> {
            let names = metadata.optimizer_vectors.iter();
            let vectors = names.map(|name| Ok((name.clone(), vector(&format!("{of}optimizer.{name}"), trained)?)));
            let optimizer = State { steps, vectors: vectors.collect::<Result<_, Error>>()? };
            Ok(Replica { params: vector(&format!("{of}params"), params)?, optimizer })
        };
        Ok(Self {
            last: replica("", metadata.optimizer_steps)?,
            best: metadata.best_optimizer_steps.map(|steps| replica("best.", steps)).transpose()?,
            progress: metadata.progress,
            embedding,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EpochSums;

    fn replica(params: &[f32], steps: u64, value: f32) -> Replica {
        let vectors = vec![("m".into(), vec![value; 3]), ("v".into(), vec![2.0 * value; 3])];
        Replica { params: params.to_vec(), optimizer: State { steps, vectors } }
    }

    fn checkpoint() -> Checkpoint {
        Checkpoint {
            progress: Progress {
                epochs: 7,
                part: Some(EpochPart {
                    steps: 3,
                    sums: EpochSums { examples: 9, loss: 0.1 + 0.2, ..EpochSums::default() },
                    blocks: [8; 32],
                }),
                best: Some((5, (0.8, -0.5))),
                best_models: vec![(5, (0.8, -0.5)), (3, (0.1 + 0.2, f64::MIN))],
                seconds: vec![0.1; 7],
                blocks: [9; 32],
            },
            last: replica(&[1.0, f32::MIN_POSITIVE, -0.0], 70, 1.0),
            best: Some(replica(&[0.5, 2.0, 3.0], 50, 4.0)),
            embedding: Some(16),
        }
    }

    #[test]
    fn optimizer_state_may_be_shorter_than_the_parameters() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("last.safetensors");
        let shorter = |mut all: Replica| {
            all.optimizer.vectors = vec![("m".into(), vec![1.0; 2])];
            all
        };
        let Checkpoint { last, best, .. } = checkpoint();
        let saved = Checkpoint { last: shorter(last), best: best.map(shorter), ..checkpoint() };
        saved.write(&path, "abc").unwrap();
        assert_eq!(Checkpoint::read(&path, "abc", 3, 2, Some(16)).unwrap(), saved);
        assert!(Checkpoint::read(&path, "abc", 3, 3, Some(16)).is_err());
    }

    #[test]
    fn read_checkpoint_equals_the_written_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("last.safetensors");
        let last = Replica { params: vec![1.0; 3], ..Replica::default() };
        for saved in [checkpoint(), Checkpoint { last, ..Checkpoint::default() }] {
            saved.write(&path, "abc").unwrap();
            let read = Checkpoint::read(&path, "abc", 3, 3, saved.embedding).unwrap();
            assert_eq!(read, saved);
            let bits = |c: &Checkpoint| c.last.params.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&read), bits(&saved));
        }
    }

    #[test]
    fn damaged_and_foreign_checkpoints_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("last.safetensors");
        checkpoint().write(&path, "abc").unwrap();
        let message = |result: Result<Checkpoint, Error>| result.unwrap_err().to_string();
        let read = |model: &str, params, embedding| Checkpoint::read(&path, model, params, params, embedding);
        assert!(message(read("xyz", 3, Some(16))).contains("another pipeline"));
        assert!(message(read("abc", 4, Some(16))).contains("4 parameters"));
        let other = message(read("xyz", 3, Some(32)));
        assert!(
            other.contains("has learned rows of 16 numbers, and this pipeline has learned rows of 32 numbers"),
            "{other}"
        );
        assert!(other.contains("set model.embedding.dim = 16"), "{other}");
        assert!(message(read("abc", 3, None)).contains("and this pipeline has no learned rows"));
        let bytes = std::fs::read(&path).unwrap();
        for len in [0, 5, 100, bytes.len() - 1] {
            std::fs::write(&path, &bytes[..len]).unwrap();
            assert!(message(read("abc", 3, Some(16))).contains("damaged"), "{len} bytes");
        }
        assert!(matches!(Checkpoint::read(&folder.path().join("none"), "abc", 3, 3, None), Err(Error::Io { .. })));
    }
}
