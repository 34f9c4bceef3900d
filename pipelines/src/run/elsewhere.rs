//! Tensor workers of a run: who they are, and where each process serves parameters to them.

use std::sync::Arc;

use gnnflow_nn::model::ModelSpec;
use timely::worker::Worker;

use crate::collectives::agreement::Agreement;
use crate::config::Train;
use crate::engine::stages::{Interval, Shape};
use crate::error::Error;
use crate::runtime::job::Job;
use crate::tensor::{Controller, ResultShapes, Setting, task_bytes, under_way};
use gnnflow_nn::parameter_versions::ParameterService;

/// The controller of this worker's tensor workers, where the pipeline asks for any. All workers must call it at once.
pub(super) fn controller(
    worker: &mut Worker,
    job: &Job,
    train: &Train,
    agreement: &mut Agreement,
    parameters: &Arc<ParameterService>,
    (model, shape, intervals, params): (&ModelSpec, &Shape, &[Interval], usize),
) -> Result<Option<Controller>, Error> {
    let Some(settings) = &train.tensor_workers else { return Ok(None) };
    let Some(workers) = job.runtime.tensor_workers()? else { return Ok(None) };
    let own = workers.serve(Arc::clone(parameters))?;
    let first = gnnflow_dataflow::graph::placement::Placement::new(job.dataset.manifest().parts(), worker.peers())
        .parts_of(worker.index())
        .start;
    let words = agreement.lists(worker, &*job.runtime, |part| if part == first { encode(&own) } else { Vec::new() })?;
    let nodes = intervals.iter().map(|interval| interval.rows.len() as u64).max().unwrap_or(0);
    let of_model = (&shape.hops[..], &shape.reads_initial[..]);
    let bytes = task_bytes(nodes, of_model, model.in_dim, model.out_dim, params as u64);
    let setting = Setting {
        permits: under_way(settings.expected(), bytes),
        settings: settings.clone(),
        parameters: Arc::clone(parameters),
        model: model.clone(),
        shapes: ResultShapes::new(&shape.hops, shape.by_row.clone(), model.out_dim, params),
        servers: decode(&words),
        intervals: intervals.len(),
    };
    Controller::start(workers, Arc::clone(&job.runtime), setting).map(Some)
}

/// A text as words: its length, and eight bytes a word.
fn encode(text: &str) -> Vec<u64> {
    let words = text.as_bytes().chunks(8).map(|bytes| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    });
    [text.len() as u64].into_iter().chain(words).collect()
}

/// The texts that [`encode`] has made words of, one behind the other.
fn decode(mut words: &[u64]) -> Vec<String> {
    let mut texts = Vec::new();
    while let Some((&len, rest)) = words.split_first() {
        let len = len as usize;
        let (text, rest) = rest.split_at(len.div_ceil(8).min(rest.len()));
        let bytes: Vec<u8> = text.iter().flat_map(|word| word.to_le_bytes()).take(len).collect();
        texts.push(String::from_utf8_lossy(&bytes).into_owned());
        words = rest;
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_cross_as_words() {
        let texts = ["127.0.0.1:80", "", "exactly8", "a.host.of.some.length:65535"];
        let words: Vec<u64> = texts.iter().flat_map(|text| encode(text)).collect();
        assert_eq!(decode(&words), texts);
    }
}
