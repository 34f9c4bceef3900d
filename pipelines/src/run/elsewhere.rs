//! Tensor workers of a run, and the addresses at which processes serve parameters to them.

use std::sync::Arc;

use gnnflow_nn::ModelProfile;
use gnnflow_nn::model::ModelSpec;

use crate::collectives::{Collectives, Driver};
use crate::config::Train;
use crate::engine::stages::intervals::Interval;
use crate::error::Error;
use crate::runtime::job::Job;
use crate::tensor::{Controller, ResultShapes, Setting, task_bytes, under_way};
use gnnflow_nn::parameter_versions::ParameterVersions;

/// The controller of this worker's tensor workers, if the pipeline asks for any. A collective operation.
pub(super) fn controller(
    driver: &mut Driver<'_>,
    job: &Job,
    train: &Train,
    collectives: &mut Collectives,
    parameters: &Arc<ParameterVersions>,
    (model, profile, intervals): (&ModelSpec, &ModelProfile, &[Interval]),
) -> Result<Option<Controller>, Error> {
    let Some(settings) = &train.tensor else { return Ok(None) };
    let Some(workers) = job.runtime.tensor_workers()? else { return Ok(None) };
    let own = workers.serve(Arc::clone(parameters))?;
    let servers = collectives.all_gather(driver, &own)?;
    let nodes = intervals.iter().map(|interval| interval.rows.len() as u64).max().unwrap_or(0);
    let reads_initial: Vec<bool> = profile.tasks.iter().map(|task| task.reads_initial).collect();
    let (of_model, params) = ((&profile.hops[..], &reads_initial[..]), profile.parameters);
    let splittable = profile.tasks.iter().map(|task| task.splittable).collect();
    let bytes = task_bytes(nodes, of_model, model.in_dim, model.out_dim, params as u64);
    let setting = Setting {
        permits: under_way(settings.expected(), bytes),
        settings: settings.clone(),
        parameters: Arc::clone(parameters),
        model: model.clone(),
        shapes: ResultShapes::new(&profile.hops, splittable, model.out_dim, params),
        servers,
        intervals: intervals.len(),
    };
    Controller::start(workers, Arc::clone(&job.runtime), setting).map(Some)
}
