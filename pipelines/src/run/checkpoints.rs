//! Checkpoints of a run, and resuming from them.

use std::rc::Rc;
use std::sync::Arc;

use gnnflow_nn::optimizer::State;

use super::Run;
use crate::checkpoint::{Checkpoint, Progress};
use crate::collectives::{Collectives, Driver, Json, Payload};
use crate::compute::Replica;
use crate::embedding::{Generation, remove_shards};
use crate::engine::{BlocksHash, EpochPart, EpochSums};
use crate::error::Error;
use crate::outputs::run_folder::{checkpoints, last_checkpoint};

/// The content of a checkpoint without its vectors: progress, the optimizer's steps (also after the best epoch) and the names of its vectors.
type Header = (Progress, ((u64, Option<u64>), Json<Vec<String>>));

impl Payload for Progress {
    fn to_words(&self) -> Vec<u64> {
        let best = self.best.map(|(epoch, (metric, loss))| (u64::from(epoch), [metric, loss]));
        let part = self.part.as_ref().map(|EpochPart { steps, sums, blocks }| {
            let EpochSums { examples, loss, rounds, steps: summed, seconds } = *sums;
            (([u64::from(*steps), examples, rounds, summed], [loss, seconds]), *blocks)
        });
        ((u64::from(self.epochs), self.blocks), ((best, part), self.seconds.clone())).to_words()
    }

    fn from_words(words: &[u64]) -> Result<Self, Error> {
        type Best = Option<(u64, [f64; 2])>;
        type Part = Option<(([u64; 4], [f64; 2]), [u8; 32])>;
        type Parts = ((u64, [u8; 32]), ((Best, Part), Vec<f64>));
        let ((epochs, blocks), ((best, part), seconds)) = Parts::from_words(words)?;
        let best = best.map(|(epoch, value)| (epoch as u32, value.into()));
        let part = part.map(|(([steps, examples, rounds, summed], [loss, seconds]), blocks)| EpochPart {
            steps: steps as u32,
            sums: EpochSums { examples, loss, rounds, steps: summed, seconds },
            blocks,
        });
        Ok(Self { epochs: epochs as u32, part, best, seconds, blocks })
    }
}

impl Run<'_> {
    /// Resumes from the last checkpoint, which the first worker reads and broadcasts. Returns whether there is one.
    pub(super) fn resume(&mut self, driver: &mut Driver<'_>, params: usize, trained: usize) -> Result<bool, Error> {
        let path = last_checkpoint(&self.job.run_dir);
        let checkpoint = match self.context.worker {
            0 if path.exists() => {
                let embedding = self.context.embeddings.as_ref().map(|rows| rows.dim());
                Some(Checkpoint::read(&path, &self.fingerprint(), params, trained, embedding)?)
            }
            _ => None,
        };
        let header = checkpoint.as_ref().map(|checkpoint| {
            let State { steps, vectors } = &checkpoint.last.optimizer;
            let names = vectors.iter().map(|(name, _)| name.clone()).collect();
            let best_steps = checkpoint.best.as_ref().map(|best| best.optimizer.steps);
            (checkpoint.progress.clone(), ((*steps, best_steps), Json(names)))
        });
        let header = self.collectives.broadcast(driver, (self.context.worker == 0).then_some(header))?;
        let Some((progress, ((steps, best_steps), Json(names)))): Option<Header> = header else {
            return Ok(false);
        };
        // All vectors, concatenated: parameters and those of the optimizer, of the last and of the best epoch.
        let len = (params + trained * names.len()) * (1 + usize::from(best_steps.is_some()));
        let flat = checkpoint.map(|Checkpoint { last, best, .. }| {
            let mut flat = Vec::with_capacity(len);
            for Replica { params, optimizer } in [Some(last), best].into_iter().flatten() {
                flat.extend(params);
                optimizer.vectors.iter().for_each(|(_, vector)| flat.extend_from_slice(vector));
            }
            Arc::new(flat)
        });
        // Separate collectives: their dataflow is used once and dropped.
        let context = &self.context;
        let mut vectors = Collectives::new(context.placement, context.worker, Rc::clone(&context.other_meter));
        let mut rest = vectors.all_reduce_rows(driver, len, |part| flat.clone().filter(|_| part == 0))?;
        let mut take = |len: usize| {
            let after = rest.split_off(len);
            std::mem::replace(&mut rest, after)
        };
        let mut replica = |steps: u64| {
            let params = take(params);
            let vectors = names.iter().map(|name| (name.clone(), take(trained))).collect();
            Replica { params, optimizer: State { steps, vectors } }
        };
        let last = replica(steps);
        self.best = best_steps.map(replica);
        *self.training.blocks() = BlocksHash(progress.blocks);
        if let Some(part) = &progress.part {
            if progress.epochs as usize >= self.train.epochs() {
                let epoch = progress.epochs + 1;
                let message = format!("the checkpoint is within epoch {epoch}; set train.epochs to {epoch} or more");
                return Err(Error::Usage(message));
            }
            self.training.continue_epoch(part)?;
            self.resumed_part = Some(part.sums.clone());
        }
        self.progress = progress;
        if let Some(rows) = &self.context.embeddings {
            let parts = self.context.placement.parts_of(self.context.worker);
            let (folder, generation, model) = (checkpoints(&self.job.run_dir), self.generation(), self.fingerprint());
            let busy = driver.runtime.busy("reading the learned rows of the checkpoint");
            rows.load(&folder, parts, generation, &model)?;
            drop(busy);
            // No worker requests rows before all have loaded theirs.
            self.collectives.barrier(driver)?;
            self.best_rows_saved = generation.best;
        }
        self.compute_thread.call(move |compute| compute.restore(last))?;
        Ok(true)
    }

    fn fingerprint(&self) -> String {
        let from = self.job.starts_from().map(|model| format!(" from model {}", model.sha256)).unwrap_or_default();
        format!("{} {}{from}", self.job.config.model_fingerprint(), self.job.dataset.manifest().fingerprint)
    }

    /// Returns the epochs of the learned rows of a checkpoint.
    fn generation(&self) -> Generation {
        let Progress { epochs, part, best, .. } = &self.progress;
        Generation {
            epochs: *epochs,
            steps: part.as_ref().map_or(0, |part| part.steps),
            best: best.map(|(epoch, _)| epoch),
        }
    }

    /// Writes a checkpoint. The frontier must have passed the last step at all workers, so that their parameters are equal.
    ///
    /// All workers write their learned rows first. The previous checkpoint stays valid until all shards are written.
    pub(super) fn checkpoint(&mut self, driver: &mut Driver<'_>) -> Result<(), Error> {
        let Some(rows) = self.context.embeddings.clone() else { return self.checkpoint_shared() };
        let generation = self.generation();
        let (folder, parts) = (checkpoints(&self.job.run_dir), self.context.placement.parts_of(self.context.worker));
        let with_best = self.best_rows_saved != generation.best;
        let busy = driver.runtime.busy("writing the learned rows of the checkpoint");
        rows.save(&folder, parts.clone(), generation, with_best, &self.fingerprint())?;
        drop(busy);
        self.collectives.barrier(driver)?;
        self.checkpoint_shared()?;
        self.collectives.barrier(driver)?;
        self.best_rows_saved = generation.best;
        remove_shards(&folder, Some(generation), Some(parts))
    }

    /// Writes the part of the checkpoint that is equal at all workers; the first worker does this.
    fn checkpoint_shared(&self) -> Result<(), Error> {
        if self.folder.is_none() {
            return Ok(());
        }
        let _busy = self.job.runtime.busy("writing the checkpoint");
        let last = self.compute_thread.call(|compute| compute.replica());
        let (progress, best) = (self.progress.clone(), self.best.clone());
        let embedding = self.context.embeddings.as_ref().map(|rows| rows.dim());
        let checkpoint = Checkpoint { progress, last, best, embedding };
        checkpoint.write(&last_checkpoint(&self.job.run_dir), &self.fingerprint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectives::ROUND_WORDS;
    use crate::collectives::tests::at;

    #[test]
    fn header_of_many_epochs_is_broadcast_with_equal_bits() {
        // More words than fit into one round.
        let seconds: Vec<f64> = (0..20_000).map(|epoch| 0.1 + f64::from(epoch) / 3.0).collect();
        let sums = EpochSums { examples: 5, loss: 0.1 + 0.2, rounds: 6, steps: 4, seconds: 0.3 };
        let part = EpochPart { steps: 4, sums, blocks: [3; 32] };
        for (best, part) in [(None, None), (Some((3, (0.1 + 0.2, f64::NEG_INFINITY))), Some(part))] {
            let progress = Progress { epochs: 20_000, part, best, seconds: seconds.clone(), blocks: [7; 32] };
            assert!(progress.to_words().len() > ROUND_WORDS);
            for workers in [1, 2, 4] {
                let header = (progress.clone(), ((5u64, Some(3u64)), vec!["velocity".to_owned()]));
                let found = at(workers, move |all, driver| {
                    let (progress, (steps, names)) = header.clone();
                    let own = (driver.worker.index() == 0).then_some(Some((progress, (steps, Json(names)))));
                    let received: Option<Header> = all.broadcast(driver, own).unwrap();
                    received.unwrap()
                });
                for (received, (steps, Json(names))) in found {
                    assert!(
                        received == progress && steps == (5, Some(3)) && names == ["velocity"],
                        "{workers} workers"
                    );
                }
            }
        }
    }
}
