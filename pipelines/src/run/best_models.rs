//! The models of the best epochs, each in a folder of its own: `train.keep_best`.
//!
//! `best/e12` has `pipeline.toml`, `model.safetensors` and `optimizer.safetensors` of epoch 12, and `node_embeddings.parquet` if nodes have
//! learned rows. Inference and training start from it like from a run folder. A folder is removed when a checkpoint no longer counts its epoch
//! among the best.

use gnnflow_data::fs;

use super::Run;
use crate::checkpoint::folder::Position;
use crate::collectives::Driver;
use crate::error::Error;
use crate::evaluate::Evaluation;
use crate::outputs::output_nodes::OutputNodes;
use crate::outputs::run_folder::{RunFolder, best_model, best_models};

impl Run<'_> {
    /// Writes the model after the last epoch, which has this evaluation, if it is one of the best `train.keep_best`. All workers have equal metrics and
    /// decide equally.
    pub(super) fn keep_if_among_best(&mut self, driver: &mut Driver<'_>, evaluation: &Evaluation) -> Result<(), Error> {
        let (keep, epoch) = (self.train.keep_best, self.progress.epochs);
        // A value that is not a number is no place among the best.
        let worth = evaluation.worth(self.metric).filter(|(metric, _)| keep > 0 && metric.is_finite());
        let Some(worth) = worth else { return Ok(()) };
        let best = &mut self.progress.best_models;
        // Of equal epochs, the earlier one is the better one, as for the best epoch.
        let place = best.iter().position(|(_, other)| worth > *other).unwrap_or(best.len());
        if place >= keep {
            return Ok(());
        }
        best.insert(place, (epoch, worth));
        best.truncate(keep);
        let folder = best_model(&self.job.run_dir, epoch);
        if self.folder.is_some() {
            let _busy = self.job.runtime.busy("writing the model of one of the best epochs");
            // A run that was killed after its last checkpoint may have left it.
            fs::remove(&folder).map_err(Error::io("remove", &folder))?;
            std::fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
            RunFolder::write_pipeline(&folder, &self.job.config)?;
        }
        let nodes = OutputNodes::all(self.job.dataset.manifest());
        let optimizer = self.compute_thread.call(|compute| compute.optimizer_state());
        self.write_model(driver, &nodes, (evaluation, epoch), optimizer, &folder).map(drop)
    }

    /// Removes the models of epochs that are no longer among the best.
    pub(super) fn remove_other_models(&self) -> Result<(), Error> {
        if self.train.keep_best == 0 {
            return Ok(());
        }
        let folder = best_models(&self.job.run_dir);
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(Error::io("read", &folder)(error)),
        };
        for entry in entries {
            let entry = entry.map_err(Error::io("read", &folder))?;
            // Other names are folders of the user.
            let Some(at) = entry.file_name().to_str().and_then(|name| name.parse::<Position>().ok()) else { continue };
            if !self.progress.best_models.iter().any(|&(epoch, _)| Position::after(epoch) == at) {
                let path = entry.path();
                fs::remove(&path).map_err(Error::io("remove", &path))?;
            }
        }
        Ok(())
    }
}
