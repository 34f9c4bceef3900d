//! Inference from samples of in-neighbors.

use gnnflow_dataflow::sample::own_samples::OwnSamples;
use gnnflow_nn::model::Stage;

use crate::context::WorkerContext;
use crate::error::Error;
use crate::runtime::job::{InNeighbors, Job, Work};

/// Returns the samples of each stage. `fanouts` are those of the stages that read edges, from the last one on.
///
/// # Errors
/// [`Error::Usage`] unless there is a fanout for each of these stages.
pub(super) fn by_stage(
    context: &WorkerContext,
    stages: &[Stage],
    fanouts: &[i64],
    seed: u64,
) -> Result<Vec<Option<OwnSamples>>, Error> {
    let layers = stages.iter().filter(|stage| stage.edges).count();
    if layers != fanouts.len() {
        let message = format!(
            "--fanouts has {}, and the model reads neighbors {}; give a number for each time, from the output layer on",
            gnnflow_data::format::plural(fanouts.len(), "number"),
            gnnflow_data::format::plural(layers, "time"),
        );
        return Err(Error::Usage(message));
    }
    let mut fanouts = fanouts.iter().rev().zip(0..);
    let of = |stage: &Stage| {
        let (&fanout, layer) = stage.edges.then(|| fanouts.next()).flatten()?;
        Some(OwnSamples::new(&context.graph, fanout, (seed, layer), context.columns))
    };
    Ok(stages.iter().map(of).collect())
}

/// Refuses samples of edges for a model that reads none.
pub(super) fn check_unused(job: &Job) -> Result<(), Error> {
    match &job.work {
        Work::Infer { neighbors: InNeighbors::Sampled(_), .. } => {
            Err(Error::Usage("--fanouts: the model reads no neighbors; leave the option out".into()))
        }
        _ => Ok(()),
    }
}
