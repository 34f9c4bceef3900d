//! The run folder: `pipeline.toml`, `metrics.jsonl`, event files, `checkpoints/` and the outputs of a finished run. Earlier runs in the
//! same folder are kept in `earlier/`.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use gnnflow_data::fs::write_atomic;

use crate::checkpoint::folder;
use crate::config::Config;
use crate::error::Error;
use gnnflow_nn::params::Param;

use crate::outputs::event_file::{EventFile, event_files};
use crate::outputs::summary::Summary;
use crate::runtime::records::EpochRecord;

/// The run folder of the first worker.
pub(crate) struct RunFolder {
    dir: PathBuf,
    metrics: File,
    events: EventFile,
}

/// Predictions of nodes or edges.
const PREDICTIONS: &str = "predictions.parquet";
/// Embeddings of all nodes.
const EMBEDDINGS: &str = "embeddings.parquet";
/// Recommended edges.
pub(crate) const RECOMMENDATIONS: &str = "recommendations.parquet";
/// The nodes that a refresh has computed anew, and removed nodes.
pub(crate) const CHANGES: &str = "changes.parquet";
/// The model.
pub(crate) const MODEL: &str = "model.safetensors";
/// The optimizer's state after the epoch of the model.
pub(crate) const OPTIMIZER: &str = "optimizer.safetensors";
/// Learned rows of all nodes.
pub(crate) const NODE_EMBEDDINGS: &str = "node_embeddings.parquet";
/// The outputs of a finished run.
const OUTPUTS: [&str; 9] = [
    Summary::FILE,
    "report.html",
    MODEL,
    OPTIMIZER,
    PREDICTIONS,
    EMBEDDINGS,
    NODE_EMBEDDINGS,
    RECOMMENDATIONS,
    CHANGES,
];
/// The last file of a table in parts.
pub(super) const SUCCESS: &str = "_SUCCESS";
/// What a run writes before its outputs.
const CHECKPOINTS: &str = "checkpoints";
/// The folder with one folder for each of the best epochs.
const BEST: &str = "best";
const PIPELINE: &str = "pipeline.toml";
/// The folder of traces.
pub(super) const TRACE: &str = "trace";
/// The folder with one folder for each earlier run.
const EARLIER: &str = "earlier";

impl RunFolder {
    /// Opens the folder for a run that resumes after `epochs` epochs, and removes the outputs that the run writes again.
    pub(crate) fn resume(dir: &Path, config: &Config, epochs: u32) -> Result<Self, Error> {
        for name in OUTPUTS {
            remove(&dir.join(name))?;
        }
        // The trace is of the run before; the number of its processes may differ.
        remove(&dir.join(TRACE))?;
        let path = dir.join(EpochRecord::FILE);
        if path.exists() {
            // The run repeats the epochs after the checkpoint.
            let records = EpochRecord::read_all(dir)?.into_iter().filter(|record| record.epoch <= epochs as usize);
            let lines: String = records.map(|record| line(&record)).collect();
            write_atomic(&path, lines.as_bytes()).map_err(Error::io("write", &path))?;
        }
        Self::open(dir, config, epochs as usize)
    }

    /// Opens the folder for a new run. Call [`keep_earlier_run`] first.
    pub(crate) fn create(dir: &Path, config: &Config) -> Result<Self, Error> {
        let checkpoints = checkpoints(dir);
        std::fs::create_dir_all(&checkpoints).map_err(Error::io("create", &checkpoints))?;
        Self::open(dir, config, 0)
    }

    /// Returns the pipeline file of a run folder.
    pub(crate) fn pipeline(dir: &Path) -> PathBuf {
        dir.join(PIPELINE)
    }

    /// Writes the pipeline file into a folder with a model, and returns its text.
    pub(crate) fn write_pipeline(dir: &Path, config: &Config) -> Result<String, Error> {
        let (file, pipeline) = (Self::pipeline(dir), config.resolved_toml());
        write_atomic(&file, pipeline.as_bytes()).map_err(Error::io("write", &file))?;
        Ok(pipeline)
    }

    /// Opens the folder after `epochs` epochs.
    fn open(dir: &Path, config: &Config, epochs: usize) -> Result<Self, Error> {
        let pipeline = Self::write_pipeline(dir, config)?;
        let path = dir.join(EpochRecord::FILE);
        let metrics = OpenOptions::new().create(true).append(true).open(&path).map_err(Error::io("write", &path))?;
        let events = EventFile::create(dir, epochs, &pipeline)?;
        Ok(Self { dir: dir.to_owned(), metrics, events })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Appends an epoch to `metrics.jsonl` and to the event file, with histograms of `parameters`.
    pub(crate) fn epoch(&mut self, record: &EpochRecord, parameters: &[Param]) -> Result<(), Error> {
        let path = self.path(EpochRecord::FILE);
        self.metrics.write_all(line(record).as_bytes()).map_err(Error::io("write", path))?;
        self.events.epoch(record, parameters)
    }
}

/// Removes results of an earlier inference in `dir` that this one does not replace. Without `evaluates`, it writes no predictions.
pub(crate) fn remove_old_results(dir: &Path, config: &Config, evaluates: bool) -> Result<(), Error> {
    let infer = config.infer.clone().unwrap_or_default();
    if !infer.predictions || !evaluates {
        remove(&dir.join(PREDICTIONS))?;
    }
    if infer.recommendations.is_none() {
        remove(&dir.join(RECOMMENDATIONS))?;
    }
    if !infer.embeddings {
        remove(&dir.join(EMBEDDINGS))?;
    }
    remove(&dir.join(CHANGES))
}

/// Removes a file or a folder. Of a table in parts, `_SUCCESS` goes first.
fn remove(path: &Path) -> Result<(), Error> {
    let success = path.join(SUCCESS);
    if success.exists() {
        gnnflow_data::fs::remove(&success).map_err(Error::io("remove", &success))?;
    }
    gnnflow_data::fs::remove(path).map_err(Error::io("remove", path))
}

fn line(record: &EpochRecord) -> String {
    serde_json::to_string(record).expect("all keys of a record are strings") + "\n"
}

/// Moves the files of an earlier run in `dir` to a new folder `dir/earlier/N`, and says so to `say`. Does nothing if `dir` has
/// no run with a finished epoch, results or a checkpoint.
///
/// # Errors
/// When the files cannot be moved.
pub fn keep_earlier_run(dir: &Path, say: impl FnOnce(&str)) -> Result<(), Error> {
    let has_epochs = std::fs::metadata(dir.join(EpochRecord::FILE)).is_ok_and(|file| file.len() > 0);
    let has_outputs = OUTPUTS.iter().any(|name| dir.join(name).exists());
    if !has_epochs && !has_outputs && !has_checkpoint(dir)? {
        return Ok(());
    }
    let earlier = dir.join(EARLIER);
    std::fs::create_dir_all(&earlier).map_err(Error::io("create", &earlier))?;
    let mut number = 1;
    let kept = loop {
        let folder = earlier.join(number.to_string());
        match std::fs::create_dir(&folder) {
            Ok(()) => break folder,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(Error::io("create", &folder)(error)),
        }
    };
    let named =
        OUTPUTS.into_iter().chain([PIPELINE, EpochRecord::FILE, CHECKPOINTS, BEST, TRACE]).map(|name| dir.join(name));
    for path in named.chain(event_files(dir)?) {
        match std::fs::rename(&path, kept.join(path.file_name().unwrap_or_default())) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(Error::io("move", &path)(error)),
            _ => {}
        }
    }
    say(&format!("{} has an earlier run; its files are now in {}", dir.display(), kept.display()));
    Ok(())
}

pub(crate) fn checkpoints(dir: &Path) -> PathBuf {
    dir.join(CHECKPOINTS)
}

/// Returns the folder with the models of the best epochs.
pub(crate) fn best_models(dir: &Path) -> PathBuf {
    dir.join(BEST)
}

/// Returns the folder with the model after `epoch` epochs.
pub(crate) fn best_model(dir: &Path, epoch: u32) -> PathBuf {
    best_models(dir).join(format!("e{epoch}"))
}

/// Returns the path of the last checkpoint of the run in `dir`. The file may not exist.
pub fn last_checkpoint(dir: &Path) -> PathBuf {
    folder::last(&checkpoints(dir))
}

/// Returns whether the run in `dir` has a checkpoint.
///
/// # Errors
/// If the folder cannot be read.
pub fn has_checkpoint(dir: &Path) -> Result<bool, Error> {
    Ok(!folder::newest_first(&checkpoints(dir))?.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_runs_are_kept_in_numbered_folders() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path();
        let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
        let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
        let nothing = |line: &str| panic!("{line}");
        keep_earlier_run(dir, nothing).unwrap();
        write("notes.txt", "of the user");
        write("metrics.jsonl", "");
        // No epoch has finished.
        keep_earlier_run(dir, nothing).unwrap();
        for number in 1..=2 {
            std::fs::create_dir_all(checkpoints(dir)).unwrap();
            write("checkpoints/last.safetensors", "weights");
            write("metrics.jsonl", &format!("epoch {number}"));
            write("report.html", "page");
            write("events.out.tfevents.0000000001.1", "events");
            let mut said = String::new();
            keep_earlier_run(dir, |line| said.push_str(line)).unwrap();
            assert!(said.ends_with(&format!("/earlier/{number}")), "{said}");
        }
        assert_eq!(read("earlier/1/metrics.jsonl") + &read("earlier/2/metrics.jsonl"), "epoch 1epoch 2");
        assert_eq!(read("earlier/2/checkpoints/last.safetensors"), "weights");
        assert_eq!(read("earlier/2/events.out.tfevents.0000000001.1"), "events");
        assert_eq!(read("notes.txt"), "of the user");
        assert!(!checkpoints(dir).exists());
    }
}
