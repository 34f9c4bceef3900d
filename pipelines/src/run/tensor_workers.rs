//! Starts the tensor workers of a run, and exchanges the addresses at which processes serve parameters to them.

use std::sync::Arc;

use gnnflow_nn::ModelProfile;
use gnnflow_nn::model::ModelSpec;

use crate::collectives::{Collectives, Driver};
use crate::config::Train;
use crate::engine::stages::intervals::Interval;
use crate::error::Error;
use crate::runtime::executor::{ExecutorSetup, TaskExecutor};
use crate::runtime::job::Job;
use crate::runtime::task_sizes::{task_bytes, tasks_in_flight};
use gnnflow_nn::parameter_versions::ParameterVersions;

/// Starts the executor of this worker's node tasks, if the pipeline has tensor workers. A collective operation.
pub(super) fn executor(
    driver: &mut Driver<'_>,
    job: &Job,
    train: &Train,
    collectives: &mut Collectives,
    parameters: &Arc<ParameterVersions>,
    (model, profile, intervals): (&ModelSpec, &ModelProfile, &[Interval]),
) -> Result<Option<Box<dyn TaskExecutor>>, Error> {
    let Some(settings) = &train.tensor_workers else { return Ok(None) };
    let Some(workers) = job.runtime.tensor_workers()? else { return Ok(None) };
    let own = workers.serve(Arc::clone(parameters))?;
    let servers = collectives.all_gather(driver, &own)?;
    let gpus = collectives.all_gather(driver, &workers.gpu())?;
    if let Some(rank) = gpus.iter().position(|gpu| *gpu != gpus[0]) {
        return Err(Error::Machine(format!(
            "the GPUs of tensor workers differ, and so would their rounding errors: rank 0 has {}, rank {rank} has {}; use GPUs of one model and \
             driver",
            gpus[0], gpus[rank]
        )));
    }
    let nodes = intervals.iter().map(|interval| interval.rows.len() as u64).max().unwrap_or(0);
    let reads_initial: Vec<bool> = profile.tasks.iter().map(|task| task.reads_initial).collect();
    let (of_model, params) = ((&profile.hops[..], &reads_initial[..]), profile.parameters);
    // On a GPU, the order of sums in a product depends on the number of rows.
    let device = settings.device(train.device);
    let splits = !device.is_gpu();
    let splittable = profile.tasks.iter().map(|task| task.splittable.map(|may| may && splits)).collect();
    let bytes = task_bytes(nodes, of_model, model.in_dim, model.out_dim, params as u64);
    let setup = ExecutorSetup {
        parameters: Arc::clone(parameters),
        model: model.clone(),
        hops: profile.hops.clone(),
        splittable,
        flat_len: params,
        servers,
        intervals: intervals.len(),
        capacity: tasks_in_flight(settings.expected(), bytes),
        may_compute: device.is_gpu() == train.device.is_gpu(),
        price: job.config.price.clone(),
    };
    workers.start(setup).map(Some)
}
