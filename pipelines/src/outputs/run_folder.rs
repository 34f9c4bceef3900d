//! The run folder: `pipeline.toml`, `metrics.jsonl`, `checkpoints/` and the outputs of a finished run.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use gnnflow_data::fs::write_atomic;

use crate::config::Config;
use crate::embedding::remove_shards;
use crate::error::Error;
use crate::outputs::summary::Summary;
use crate::runtime::records::EpochRecord;

/// The run folder of the first worker.
pub(crate) struct RunFolder {
    dir: PathBuf,
    metrics: File,
}

impl RunFolder {
    /// Opens the folder for a run that resumes after `epochs` epochs (0: a new run), and removes the results of earlier runs.
    pub(crate) fn open(dir: &Path, config: &Config, epochs: u32) -> Result<Self, Error> {
        let checkpoints = dir.join("checkpoints");
        std::fs::create_dir_all(&checkpoints).map_err(Error::io("create", &checkpoints))?;
        let mut old =
            vec![Summary::FILE, "model.safetensors", "predictions.parquet", "embeddings.parquet", "report.html"];
        old.push("node_embeddings.parquet");
        if epochs == 0 {
            remove_shards(&checkpoints, None, None)?;
            old.extend(["checkpoints/last.safetensors", EpochRecord::FILE]);
        }
        for name in old {
            let path = dir.join(name);
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::io("remove", &path)(error));
                }
                _ => {}
            }
        }
        let file = dir.join("pipeline.toml");
        write_atomic(&file, config.resolved_toml().as_bytes()).map_err(Error::io("write", &file))?;
        let path = dir.join(EpochRecord::FILE);
        if epochs > 0 && path.exists() {
            // The run repeats the epochs after the checkpoint.
            let records = EpochRecord::read_all(dir)?.into_iter().filter(|record| record.epoch <= epochs as usize);
            let lines: String = records.map(|record| line(&record)).collect();
            write_atomic(&path, lines.as_bytes()).map_err(Error::io("write", &path))?;
        }
        let metrics = OpenOptions::new().create(true).append(true).open(&path).map_err(Error::io("write", &path))?;
        Ok(Self { dir: dir.to_owned(), metrics })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Appends an epoch to `metrics.jsonl`.
    pub(crate) fn epoch(&mut self, record: &EpochRecord) -> Result<(), Error> {
        let path = self.path(EpochRecord::FILE);
        self.metrics.write_all(line(record).as_bytes()).map_err(Error::io("write", path))
    }

    /// Writes `summary.json`, the last file of a finished run.
    pub(crate) fn summary(&self, summary: &Summary) -> Result<(), Error> {
        summary.write(&self.dir)
    }
}

fn line(record: &EpochRecord) -> String {
    serde_json::to_string(record).expect("all keys of a record are strings") + "\n"
}

pub(crate) fn checkpoints(dir: &Path) -> PathBuf {
    dir.join("checkpoints")
}

/// Returns the path of the last checkpoint of the run in `dir`. The file may not exist.
pub fn last_checkpoint(dir: &Path) -> PathBuf {
    checkpoints(dir).join("last.safetensors")
}
