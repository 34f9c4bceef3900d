//! The stages `[graph]` and `[partition]`: from the pipeline's input to a prepared dataset.

use std::path::Path;

use gnnflow_data::Dataset;
use gnnflow_data::group::{ProcessGroup, SingleProcess};
use gnnflow_data::prepare::prepare_with as write_dataset;
use gnnflow_data::progress::Progress;
use gnnflow_dataflow::collective::group::{LoopState, WorkerGroup};
use gnnflow_nn::alloc::ReturnAtOnce;
use timely::worker::Worker;

use crate::config::Config;
use crate::error::Error;
use crate::model_file::encode_like;
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
    if config.graph.dataset.is_some() {
        return config.open_dataset();
    }
    if let Some(generate) = &config.graph.generate {
        generate.ensure(progress)?;
    }
    let source = encode_like::source(config)?.ok_or_else(|| Error::Bug("a pipeline has no graph".into()))?;
    let out = out.unwrap_or_else(|| config.dataset_folder()).to_owned();
    let method = &config.partition.method;
    let unknown = || {
        config.problem("partition.method", format!("{method:?} is neither built in nor registered; use another method"))
    };
    let partitioner = config.partition.partitioner(registry.partitioner(method)).ok_or_else(unknown)?;
    let returned = ReturnAtOnce::start();
    write_dataset(processes, &source, &*partitioner, &config.prepare_settings(out.clone()), progress)?;
    drop(returned);
    Ok(Dataset::open(out)?)
}
