//! Checkpoints of a run, and resuming from them.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use gnnflow_nn::optimizer::State;

use super::Run;
use crate::checkpoint::folder::{Position, last as last_checkpoint, newest_first, remove_old, set_aside};
use crate::checkpoint::{Checkpoint, Progress};
use crate::collectives::{Collectives, Driver, Json, Payload};
use crate::compute::Replica;
use crate::embedding::{Generation, remove_later_shards, remove_shards};
use crate::engine::{BlocksHash, EpochPart, EpochSums};
use crate::error::Error;
use crate::outputs::run_folder::checkpoints;

/// The content of a checkpoint without its vectors: progress, the optimizer's steps (also after the best epoch) and the names of its vectors.
type Header = (Progress, ((u64, Option<u64>), Json<Vec<String>>));

impl Payload for Progress {
    fn to_words(&self) -> Vec<u64> {
        let best = self.best.map(|(epoch, (metric, loss))| (u64::from(epoch), [metric, loss]));
        let part = self.part.as_ref().map(|EpochPart { steps, sums, blocks }| {
            let EpochSums { examples, loss, rounds, steps: summed, seconds } = *sums;
            (([u64::from(*steps), examples, rounds, summed], [loss, seconds]), *blocks)
        });
        let of_models = self.best_models.iter().flat_map(|&(epoch, (metric, loss))| [f64::from(epoch), metric, loss]);
        let vectors = (of_models.collect::<Vec<_>>(), self.seconds.clone());
        ((u64::from(self.epochs), self.blocks), ((best, part), vectors)).to_words()
    }

    fn from_words(words: &[u64]) -> Result<Self, Error> {
        type Best = Option<(u64, [f64; 2])>;
        type Part = Option<(([u64; 4], [f64; 2]), [u8; 32])>;
        type Parts = ((u64, [u8; 32]), ((Best, Part), (Vec<f64>, Vec<f64>)));
        let ((epochs, blocks), ((best, part), (of_models, seconds))) = Parts::from_words(words)?;
        let (of_models, _) = of_models.as_chunks();
        let best_models = of_models.iter().map(|&[epoch, metric, loss]| (epoch as u32, (metric, loss))).collect();
        let best = best.map(|(epoch, value)| (epoch as u32, value.into()));
        let part = part.map(|(([steps, examples, rounds, summed], [loss, seconds]), blocks)| EpochPart {
            steps: steps as u32,
            sums: EpochSums { examples, loss, rounds, steps: summed, seconds },
            blocks,
        });
        Ok(Self { epochs: epochs as u32, part, best, best_models, seconds, blocks })
    }
}

/// The checkpoints of an earlier process, from the newest on, and those that were damaged. Only the first worker has any.
struct Candidates {
    paths: std::vec::IntoIter<PathBuf>,
    damaged: Vec<Error>,
}

impl Candidates {
    /// Returns the next checkpoint that is whole, as `read` reads it, and its file. If all are damaged, returns the error of the newest.
    fn next(
        &mut self,
        read: impl Fn(&Path) -> Result<Checkpoint, Error>,
    ) -> Result<Option<(PathBuf, Checkpoint)>, Error> {
        for path in self.paths.by_ref() {
            match read(&path) {
                Err(error @ Error::DamagedCheckpoint { .. }) => self.damaged.push(error),
                read => return Ok(Some((path, read?))),
            }
        }
        if self.damaged.is_empty() { Ok(None) } else { Err(self.damaged.swap_remove(0)) }
    }
}

impl Run<'_> {
    /// Resumes from the last checkpoint that is not damaged, which the first worker reads and broadcasts. Returns whether there is one.
    pub(super) fn resume(&mut self, driver: &mut Driver<'_>, params: usize, trained: usize) -> Result<bool, Error> {
        let (folder, fingerprint) = (checkpoints(&self.job.run_dir), self.fingerprint());
        let embedding = self.context.embeddings.as_ref().map(|rows| rows.dim());
        let is_first = self.context.worker == 0;
        let paths = if is_first { newest_first(&folder)? } else { Vec::new() };
        let mut candidates = Candidates { paths: paths.into_iter(), damaged: Vec::new() };
        loop {
            let read = |path: &Path| Checkpoint::read(path, &fingerprint, params, trained, embedding);
            let (path, checkpoint) = candidates.next(read)?.unzip();
            let Some((progress, last, best)) = self.broadcast(driver, checkpoint, params, trained)? else {
                return Ok(false);
            };
            let generation = Generation { last: progress.position(), best: progress.best.map(|(epoch, _)| epoch) };
            if let Some(damaged) = self.load_checkpoint_rows(driver, &folder, generation, &fingerprint)? {
                if is_first {
                    candidates.damaged.push(damaged);
                }
                continue;
            }
            if let Some(path) = path {
                for damaged in &candidates.damaged {
                    let Error::DamagedCheckpoint { path: file, reason } = damaged else { continue };
                    driver.runtime.warn(&format!("the checkpoint {} {reason}", file.display()));
                }
                if path != last_checkpoint(&folder) {
                    driver.runtime.warn(&format!("the run continues after the checkpoint {}", path.display()));
                }
            }
            if self.context.embeddings.is_some() {
                let parts = self.context.placement.parts_of(self.context.worker);
                remove_later_shards(&folder, generation.last, parts)?;
            }
            self.best_rows_saved = generation.best;
            self.checkpoint_at = Some(generation.last);
            self.best = best;
            *self.training.blocks() = BlocksHash(progress.blocks);
            if let Some(part) = &progress.part {
                if progress.epochs as usize >= self.train.epochs() {
                    let epoch = progress.epochs + 1;
                    let message =
                        format!("the checkpoint is within epoch {epoch}; set train.epochs to {epoch} or more");
                    return Err(Error::Usage(message));
                }
                self.training.continue_epoch(part)?;
                self.resumed_part = Some(part.sums.clone());
            }
            self.progress = progress;
            self.compute_thread.call(move |compute| compute.restore(last))?;
            return Ok(true);
        }
    }

    /// Returns the content of `checkpoint`, which the first worker has, at all workers: progress, and the states of the last and of the best epoch.
    fn broadcast(
        &mut self,
        driver: &mut Driver<'_>,
        checkpoint: Option<Checkpoint>,
        params: usize,
        trained: usize,
    ) -> Result<Option<(Progress, Replica, Option<Replica>)>, Error> {
        let header = checkpoint.as_ref().map(|checkpoint| {
            let State { steps, vectors } = &checkpoint.last.optimizer;
            let names = vectors.iter().map(|(name, _)| name.clone()).collect();
            let best_steps = checkpoint.best.as_ref().map(|best| best.optimizer.steps);
            (checkpoint.progress.clone(), ((*steps, best_steps), Json(names)))
        });
        let header = self.collectives.broadcast(driver, (self.context.worker == 0).then_some(header))?;
        let Some((progress, ((steps, best_steps), Json(names)))): Option<Header> = header else {
            return Ok(None);
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
        Ok(Some((progress, replica(steps), best_steps.map(replica))))
    }

    /// Reads the learned rows of a checkpoint, if the model has any. Returns the first damaged file of all workers.
    fn load_checkpoint_rows(
        &mut self,
        driver: &mut Driver<'_>,
        folder: &Path,
        generation: Generation,
        model: &str,
    ) -> Result<Option<Error>, Error> {
        let Some(rows) = &self.context.embeddings else { return Ok(None) };
        let parts = self.context.placement.parts_of(self.context.worker);
        let busy = driver.runtime.busy("reading the learned rows of the checkpoint");
        let damaged = match rows.load(folder, parts, generation, model) {
            Err(Error::DamagedCheckpoint { path, reason }) => Some((path, reason)),
            loaded => loaded.map(|()| None)?,
        };
        drop(busy);
        // No worker requests rows before all have loaded theirs.
        let all = self.collectives.all_gather(driver, &Json(damaged))?;
        let first = all.into_iter().find_map(|Json(damaged)| damaged);
        Ok(first.map(|(path, reason)| Error::DamagedCheckpoint { path, reason }))
    }

    fn fingerprint(&self) -> String {
        let from = self.job.starts_from().map(|model| format!(" from model {}", model.sha256)).unwrap_or_default();
        format!("{} {}{from}", self.job.config.model_fingerprint(), self.job.dataset.manifest().fingerprint)
    }

    /// Writes a checkpoint. The frontier must have passed the last step at all workers, so that their parameters are equal.
    ///
    /// All workers write their learned rows first. The previous checkpoint stays valid until all shards are written.
    pub(super) fn checkpoint(&mut self, driver: &mut Driver<'_>) -> Result<(), Error> {
        let last = self.progress.position();
        let Some(rows) = self.context.embeddings.clone() else {
            self.checkpoint_shared()?;
            self.checkpoint_at = Some(last);
            return Ok(());
        };
        let generation = Generation { last, best: self.progress.best.map(|(epoch, _)| epoch) };
        let (folder, parts) = (checkpoints(&self.job.run_dir), self.context.placement.parts_of(self.context.worker));
        let with_best = self.best_rows_saved != generation.best;
        let busy = driver.runtime.busy("writing the learned rows of the checkpoint");
        rows.save(&folder, parts.clone(), generation, with_best, &self.fingerprint())?;
        drop(busy);
        self.collectives.barrier(driver)?;
        let kept = self.checkpoint_shared()?;
        let Json(kept) = self.collectives.broadcast(driver, kept.map(Json))?;
        (self.best_rows_saved, self.checkpoint_at) = (generation.best, Some(last));
        remove_shards(&folder, &kept, parts)
    }

    /// Writes the part of the checkpoint that is equal at all workers, and removes old ones; the first worker does this. It returns the positions of
    /// the checkpoints that are kept.
    fn checkpoint_shared(&self) -> Result<Option<Vec<Position>>, Error> {
        if self.folder.is_none() {
            return Ok(None);
        }
        let _busy = self.job.runtime.busy("writing the checkpoint");
        let last = self.compute_thread.call(|compute| compute.replica());
        let (progress, best) = (self.progress.clone(), self.best.clone());
        let embedding = self.context.embeddings.as_ref().map(|rows| rows.dim());
        let checkpoint = Checkpoint { progress, last, best, embedding };
        let (folder, at) = (checkpoints(&self.job.run_dir), self.progress.position());
        if let Some(before) = self.checkpoint_at.filter(|&before| before != at) {
            set_aside(&folder, before)?;
        }
        checkpoint.write(&last_checkpoint(&folder), &self.fingerprint())?;
        self.remove_other_models()?;
        remove_old(&folder, at, self.train.keep_checkpoints).map(Some)
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
            let best_models = best.iter().copied().chain([(20_000, (0.1, -0.3))]).collect();
            let progress =
                Progress { epochs: 20_000, part, best, best_models, seconds: seconds.clone(), blocks: [7; 32] };
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
