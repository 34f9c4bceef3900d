//! The batches of training nodes of one worker.

use gnnflow_dataflow::sample::seeds::NodeBatches;

use crate::config;
use crate::context::seed_split::SeedSplit;
use crate::context::{TRAIN, WorkerContext};
use crate::error::Error;
use crate::task::Task;

/// Returns the batches of training nodes for the partitions of this worker.
///
/// # Errors
/// If a training node has no label, or the graph has no training nodes.
pub(crate) fn node_batches(
    context: &WorkerContext,
    task: &Task,
    train: &config::Train,
    split: SeedSplit,
) -> Result<NodeBatches, Error> {
    if context.train_nodes.iter().sum::<u64>() == 0 {
        let message = "no node is in the train split; name the split column, or give graph.split_fractions";
        return Err(Error::Input(message.into()));
    }
    let task = task.nodes()?;
    for part in context.placement.parts_of(context.worker) {
        let partition = context.parts.get(part);
        let unlabeled = |&node: &u32| !task.is_labeled(partition.range.start as u32 + node);
        if let Some(node) = partition.nodes.in_split(TRAIN).into_iter().find(unlabeled) {
            let id = partition.nodes.ids().display(node as usize).to_string();
            let message = format!(
                "node {id} is in the train split but has no label (null, or -1 for a class, means no label; classes are 0 or \
                 more); add a label, or change its split"
            );
            return Err(Error::Input(message));
        }
    }
    let times = if train.sampler.is_temporal() { split.times } else { Vec::new() };
    Ok(NodeBatches { batch: train.batch, seed: train.seed, train: split.train, times })
}
