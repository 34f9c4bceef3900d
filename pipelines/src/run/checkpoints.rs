//! Writing what a run has come to, and taking it up again.

use std::sync::Arc;

use gnnflow_dataflow::collective::all_reduce::Contribution;
use gnnflow_nn::optimizer::State;
use timely::worker::Worker;

use super::Run;
use crate::checkpoint::{Checkpoint, Progress};
use crate::collectives::agreement::Agreement;
use crate::embedding::{Generation, forget};
use crate::engine::BlocksHash;
use crate::error::Error;
use crate::outputs::run_folder::{checkpoints, last_checkpoint};

impl Run<'_> {
    /// Takes up the last checkpoint, which the first worker reads and tells.
    pub(super) fn resume(&mut self, worker: &mut Worker, params: usize, trained: usize) -> Result<(), Error> {
        let runtime = &*self.job.runtime;
        let path = last_checkpoint(&self.job.run_dir);
        let checkpoint = match self.context.worker {
            0 if path.exists() => {
                let embedding = self.context.embeddings.as_ref().map(|rows| rows.dim());
                Some(Checkpoint::read(&path, &self.fingerprint(), params, trained, embedding)?)
            }
            _ => None,
        };
        let header = checkpoint.as_ref().map(|checkpoint| {
            let names: Vec<&String> = checkpoint.optimizer.vectors.iter().map(|(name, _)| name).collect();
            serde_json::json!([checkpoint.progress, checkpoint.optimizer.steps, names]).to_string()
        });
        let words = header.map_or_else(Vec::new, |text| text.bytes().map(u64::from).collect());
        let told =
            self.agreement.by_partition(worker, runtime, |part| if part == 0 { words.clone() } else { Vec::new() })?;
        let text: Vec<u8> = told[0].iter().map(|&byte| byte as u8).collect();
        if text.is_empty() {
            return Ok(()); // no checkpoint yet
        }
        let bad = |error: serde_json::Error| Error::Bug(format!("the first worker's checkpoint: {error}"));
        let (progress, steps, names): (Progress, u64, Vec<String>) = serde_json::from_slice(&text).map_err(bad)?;
        // All vectors behind one another: parameters, the optimizer's, the best parameters.
        let length = params * (1 + usize::from(progress.best.is_some())) + trained * names.len();
        let mut all = Agreement::build(worker, self.context.placement, length, self.context.other_meter.clone());
        let flat = checkpoint.map(|checkpoint| {
            let mut flat = checkpoint.params;
            checkpoint.optimizer.vectors.iter().for_each(|(_, vector)| flat.extend_from_slice(vector));
            flat.extend(checkpoint.best.iter().flatten());
            Arc::new(flat)
        });
        let reduced = all.round(worker, runtime, |part| Contribution {
            partition: part as u32,
            vector: flat.clone().filter(|_| part == 0),
            words: Vec::new(),
        })?;
        let mut rest = reduced.sum;
        let mut take = |len: usize| {
            let after = rest.split_off(len);
            std::mem::replace(&mut rest, after)
        };
        let values = take(params);
        let vectors = names.into_iter().map(|name| (name, take(trained))).collect();
        self.best = progress.best.is_some().then(|| take(params));
        *self.training.blocks() = BlocksHash(progress.blocks);
        self.progress = progress;
        if let Some(rows) = &self.context.embeddings {
            let parts = self.context.placement.parts_of(self.context.worker);
            let (folder, generation, model) = (checkpoints(&self.job.run_dir), self.generation(), self.fingerprint());
            let busy = runtime.busy("reading the learned rows of the checkpoint");
            rows.load(&folder, parts, generation, &model)?;
            drop(busy);
            // Nobody asks for rows that are not there yet.
            self.agreement.by_worker(worker, runtime, &[0])?;
            self.best_rows_saved = generation.best;
        }
        self.compute_thread.call(move |trainer| {
            trainer.set_params(values)?;
            trainer.load_optimizer(State { steps, vectors })
        })
    }

    fn fingerprint(&self) -> String {
        format!("{} {}", self.job.config.model_fingerprint(), self.job.dataset.manifest().fingerprint)
    }

    /// The epochs whose learned rows belong to a checkpoint.
    fn generation(&self) -> Generation {
        Generation { epochs: self.progress.epochs, best: self.progress.best.map(|(epoch, _)| epoch) }
    }

    /// Writes a checkpoint; the frontier has passed the epoch everywhere, and the parameters are the same at all workers.
    ///
    /// Learnt rows first, by whoever has them: the checkpoint before stands until all of them are there.
    pub(super) fn checkpoint(&mut self, worker: &mut Worker) -> Result<(), Error> {
        let Some(rows) = self.context.embeddings.clone() else { return self.checkpoint_shared() };
        let (runtime, generation) = (&*self.job.runtime, self.generation());
        let (folder, parts) = (checkpoints(&self.job.run_dir), self.context.placement.parts_of(self.context.worker));
        let with_best = self.best_rows_saved != generation.best;
        let busy = runtime.busy("writing the learned rows of the checkpoint");
        rows.save(&folder, parts.clone(), generation, with_best, &self.fingerprint())?;
        drop(busy);
        self.agreement.by_worker(worker, runtime, &[0])?;
        self.checkpoint_shared()?;
        self.agreement.by_worker(worker, runtime, &[0])?;
        self.best_rows_saved = generation.best;
        forget(&folder, Some(generation), Some(parts))
    }

    /// Writes what is the same at all workers, at the first one.
    fn checkpoint_shared(&self) -> Result<(), Error> {
        if self.folder.is_none() {
            return Ok(());
        }
        let _busy = self.job.runtime.busy("writing the checkpoint");
        let (params, optimizer) =
            self.compute_thread.call(|trainer| (trainer.params().to_vec(), trainer.optimizer_state()));
        let (progress, best) = (self.progress.clone(), self.best.clone());
        let embedding = self.context.embeddings.as_ref().map(|rows| rows.dim());
        let checkpoint = Checkpoint { progress, params, best, optimizer, embedding };
        checkpoint.write(&last_checkpoint(&self.job.run_dir), &self.fingerprint())
    }
}
