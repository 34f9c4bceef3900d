//! The run folder: `pipeline.toml`, `metrics.jsonl`, `checkpoints/` and what a run leaves when it is done.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use gnnflow_data::fs::write_atomic;

use crate::config::Config;
use crate::embedding::forget;
use crate::error::Error;
use crate::outputs::summary::Summary;
use crate::runtime::records::EpochRecord;

/// The folder as the first worker writes it.
pub(crate) struct RunFolder {
    dir: PathBuf,
    metrics: File,
}

impl RunFolder {
    /// Opens the folder for a run that goes on after `epochs` epochs (0: starts anew). Results of an earlier run go away,
    /// so that nothing of it is taken for this one's.
    pub(crate) fn open(dir: &Path, config: &Config, epochs: u32) -> Result<Self, Error> {
        let checkpoints = dir.join("checkpoints");
        std::fs::create_dir_all(&checkpoints).map_err(Error::io("create", &checkpoints))?;
        let mut old =
            vec![Summary::FILE, "model.safetensors", "predictions.parquet", "embeddings.parquet", "report.html"];
        old.push("node_embeddings.parquet");
        if epochs == 0 {
            forget(&checkpoints, None, None)?;
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
            // Epochs past the checkpoint will be trained again.
            let kept = EpochRecord::read_all(dir)?.into_iter().filter(|record| record.epoch <= epochs as usize);
            let lines: String = kept.map(|record| line(&record)).collect();
            write_atomic(&path, lines.as_bytes()).map_err(Error::io("write", &path))?;
        }
        let metrics = OpenOptions::new().create(true).append(true).open(&path).map_err(Error::io("write", &path))?;
        Ok(Self { dir: dir.to_owned(), metrics })
    }

    /// The path of a file in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Adds an epoch to `metrics.jsonl`.
    pub(crate) fn epoch(&mut self, record: &EpochRecord) -> Result<(), Error> {
        let path = self.path(EpochRecord::FILE);
        self.metrics.write_all(line(record).as_bytes()).map_err(Error::io("write", path))
    }

    /// Writes `summary.json`, the last file of a run that is done.
    pub(crate) fn summary(&self, summary: &Summary) -> Result<(), Error> {
        summary.write(&self.dir)
    }
}

fn line(record: &EpochRecord) -> String {
    serde_json::to_string(record).expect("a record has no maps with other keys than strings") + "\n"
}

/// Where a run's checkpoints are.
pub(crate) fn checkpoints(dir: &Path) -> PathBuf {
    dir.join("checkpoints")
}

/// The last checkpoint of the run in the folder `dir`; whether it is there is another question.
pub fn last_checkpoint(dir: &Path) -> PathBuf {
    checkpoints(dir).join("last.safetensors")
}
