//! Uploads of results and of prepared datasets to object stores.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gnnflow_data::group::{Json, ProcessGroup, SingleProcess};
use gnnflow_data::upload::upload;
use gnnflow_data::{Dataset, Error as DataError};
use gnnflow_dataflow::collective::group::WorkerGroup;
use gnnflow_dataflow::graph::placement::Placement;
use timely::worker::Worker;

use crate::cluster::Liveness;
use crate::console::Console;
use crate::loop_state::report_to;

/// The results of a run, an inference or a refresh.
const RESULTS: [&str; 8] = [
    "summary.json",
    "model.safetensors",
    "optimizer.safetensors",
    "predictions.parquet",
    "embeddings.parquet",
    "node_embeddings.parquet",
    "recommendations.parquet",
    "changes.parquet",
];

/// Results in a folder, and where they are uploaded.
#[derive(Clone, Debug)]
pub struct Upload {
    /// The folder of the results.
    pub folder: PathBuf,
    /// The URL below which they are stored.
    pub url: PathBuf,
    /// How long failed requests are repeated.
    pub retry: Duration,
}

impl Upload {
    /// Uploads all results from this process.
    ///
    /// # Errors
    /// If the store refuses them or cannot be reached.
    pub(crate) fn alone(&self, console: &Console) -> Result<(), DataError> {
        let mut names = Vec::new();
        for name in RESULTS {
            let path = self.folder.join(name);
            if path.is_file() {
                names.push(name.to_owned());
            } else if path.is_dir() {
                names.extend(parts(&path)?.map(|part| format!("{name}/{part}")));
            }
        }
        self.send(&SingleProcess, &names, console)
    }

    /// Uploads the results of all processes, after a run over `partitions` partitions. Rank 0 uploads its files, and each process the parts of tables
    /// that it has written. A collective operation.
    ///
    /// # Errors
    /// Those of [`Upload::alone`].
    pub(crate) fn together(
        &self,
        worker: &mut Worker,
        partitions: usize,
        liveness: &Liveness,
        console: &Console,
    ) -> Result<(), DataError> {
        let report = report_to(liveness, "uploading results");
        let group = WorkerGroup::new(worker, 1, &report);
        let in_parts = |name: &&str| self.folder.join(name).is_dir();
        let tables = (group.rank() == 0).then(|| RESULTS.into_iter().filter(in_parts).map(String::from).collect());
        let Json(tables): Json<Vec<String>> = group.broadcast(tables.map(Json))?;
        let own = Placement::new(partitions, group.size()).parts_of(group.rank());
        let mut names = Vec::new();
        for name in RESULTS {
            if tables.iter().any(|table| table == name) {
                names.extend(own.clone().map(|part| format!("{name}/part-{part:05}.parquet")));
            } else if group.rank() == 0 && self.folder.join(name).is_file() {
                names.push(name.to_owned());
            }
        }
        self.send(&group, &names, console)
    }

    fn send(&self, processes: &impl ProcessGroup, names: &[String], console: &Console) -> Result<(), DataError> {
        let Self { folder, url, retry } = self;
        upload(processes, folder, names, url, *retry, console).map_err(|error| match error {
            DataError::Remote { url, problem, fault } => {
                let problem = format!("{problem}; the results in {} are complete, but not uploaded", folder.display());
                DataError::Remote { url, problem, fault }
            }
            other => other,
        })?;
        console.say(&format!("results of {} uploaded to {}", folder.display(), url.display()));
        Ok(())
    }
}

/// Uploads all files of a dataset below `url`, the manifest as the last one, so that runs can read it there.
///
/// # Errors
/// If the store refuses them or cannot be reached for `retry`.
pub(crate) fn upload_dataset(
    dataset: &Dataset,
    url: &Path,
    retry: Duration,
    console: &Console,
) -> Result<(), DataError> {
    upload(&SingleProcess, dataset.dir(), &dataset.file_names(), url, retry, console).map_err(|error| match error {
        DataError::Remote { url, problem, fault } => {
            let problem =
                format!("{problem}; the dataset in {} is complete, but not uploaded", dataset.dir().display());
            DataError::Remote { url, problem, fault }
        }
        other => other,
    })?;
    console.say(&format!("dataset uploaded; use it with graph.dataset = \"{}\"", url.display()));
    Ok(())
}

/// Returns the names of the parts of a table, in order.
fn parts(table: &Path) -> Result<impl Iterator<Item = String>, DataError> {
    let listed = || DataError::io(table, "list");
    let mut parts = Vec::new();
    for entry in std::fs::read_dir(table).map_err(listed())? {
        let part = entry.map_err(listed())?.file_name().to_string_lossy().into_owned();
        parts.extend(part.ends_with(".parquet").then_some(part));
    }
    parts.sort_unstable();
    Ok(parts.into_iter())
}
