//! The stages `[graph]` and `[partition]`: from the pipeline's input to a prepared dataset.

use std::path::Path;
use std::sync::Arc;

use gnnflow_data::Dataset;
use gnnflow_data::group::{ProcessGroup, SingleProcess};
use gnnflow_data::prepare::{PrepareSettings, prepare_with as write_dataset};
use gnnflow_data::progress::Progress;
use gnnflow_dataflow::collective::group::{LoopState, WorkerGroup};
use gnnflow_partition::Refined;
use timely::worker::Worker;

use crate::config::Config;
use crate::error::Error;
use crate::runtime::registry::Registry;

/// Opens the prepared dataset of `config`, and writes it first if necessary.
///
/// With `graph.dataset`, this dataset is opened. Otherwise the dataset in `out` (default: the pipeline's folder) is written if
/// it is missing or has other inputs or settings. A synthetic graph is generated first.
///
/// # Errors
/// Errors of the dump, the dataset or the disk.
pub fn prepare(
    config: &Config,
    registry: &Registry,
    out: Option<&Path>,
    progress: &dyn Progress,
) -> Result<Dataset, Error> {
    prepare_with(&SingleProcess, config, registry, out, progress)
}

/// [`prepare`] by all processes of a timely cluster, which share the input files and the folder. Each reads with `threads`
/// threads. `report` is called with the state of the worker's loop.
///
/// # Errors
/// Those of [`prepare`].
pub fn prepare_on(
    worker: &mut Worker,
    threads: usize,
    report: &dyn Fn(LoopState),
    config: &Config,
    registry: &Registry,
    out: Option<&Path>,
    progress: &dyn Progress,
) -> Result<Dataset, Error> {
    prepare_with(&WorkerGroup::new(worker, threads, report), config, registry, out, progress)
}

fn prepare_with<C: ProcessGroup>(
    processes: &C,
    config: &Config,
    registry: &Registry,
    out: Option<&Path>,
    progress: &dyn Progress,
) -> Result<Dataset, Error> {
    if let Some(dataset) = &config.graph.dataset {
        return Ok(Dataset::open(dataset)?);
    }
    if let Some(generate) = &config.graph.generate {
        generate.ensure(progress)?;
    }
    let source = config.graph.source()?.ok_or_else(|| Error::Bug("a pipeline has no graph".into()))?;
    let out = out.unwrap_or_else(|| config.dataset_folder()).to_owned();
    let settings = PrepareSettings {
        parts: config.parts() as u32,
        out: out.clone(),
        memory: config.partition.memory.0,
        seed: config.partition.seed,
        balance: config.partition.balance.targets(),
        halo_features: config.stores_halo_features(),
    };
    let mut partitioner = match registry.partitioner(&config.partition.method) {
        Some(registered) => registered,
        None => {
            let method = &config.partition.method;
            let unknown = || {
                config.problem(
                    "partition.method",
                    format!("{method:?} is neither built in nor registered; use another method"),
                )
            };
            Arc::from(config.partition.builtin().ok_or_else(unknown)?)
        }
    };
    if config.partition.refine > 0 {
        partitioner = Arc::new(Refined::new(partitioner, config.partition.refine));
    }
    write_dataset(processes, &source, &*partitioner, &settings, progress)?;
    Ok(Dataset::open(out)?)
}
