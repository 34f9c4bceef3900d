//! The work of an epoch: steps, batches, and messages between processes.

use gnnflow_dataflow::wire::MESSAGE_BYTES;
use serde::Serialize;

use super::batch::Batch;
use super::{Sizes, embedding};
use crate::config::{Config, Model, Topology};

/// The work of an epoch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Training {
    /// Maximum number of epochs.
    pub epochs: usize,
    /// Steps in an epoch: the largest number of seeds of a partition over `train.batch`, or its clusters over those of a batch.
    pub steps_per_epoch: u64,
    /// Whether the number of training nodes or edges is known. Otherwise all count, and steps are an upper bound.
    pub exact: bool,
    /// Upper bound of the seeds in a step, over all partitions.
    pub seeds: u64,
    /// Nodes of the largest batch: its seeds, then the list after each hop. Empty in full-graph training.
    pub batch_nodes: Vec<u64>,
    /// Edges of the largest batch in each hop.
    pub batch_edges: Vec<u64>,
    /// Whether a batch is a subgraph: `batch_nodes` are its seeds and all nodes, and all layers read its edges.
    pub subgraph: bool,
    /// Bytes of the adjacency lists from which a hop is drawn (`ladies`).
    pub rows_bytes: u64,
    /// Rounds of messages in a step, for L layers. Several processes need 2 (L − 1) to sample and 2 to fetch. Walks need 2 for
    /// each step after the first, and 2 for the edges of the subgraph. A replicated topology needs the 2 to fetch only. One
    /// process, and batches within a partition, need none.
    /// Every process counts as a host of its own, also in the bytes: processes of one host that share features need less.
    pub rounds_per_step: u64,
    /// Upper bound of the bytes between processes in a step: requests, replies, features, gradients.
    pub bytes_per_step: u64,
    /// Approximate number of messages between processes in a step.
    pub messages_per_step: u64,
}

impl Training {
    pub(super) fn new(config: &Config, graph: &Sizes, processes: usize, parameters: u64) -> Option<Self> {
        let (train, model) = (config.train.as_ref()?, config.model.as_ref()?);
        let batch = Batch::of(train, model, graph);
        let partitioned = config.partition.topology == Topology::Partitioned;
        let local = train.schedule.is_partition_parallel();
        let edge_bytes = edge_bytes(model, graph);
        // Features of other partitions' edges are fetched separately.
        let far_edges = batch.edges.iter().skip(usize::from(!batch.subgraph)).sum::<u64>();
        let fetches_edges = edge_bytes > 0 && partitioned && batch.leaves && far_edges > 0;
        let place = usize::from(!partitioned);
        let rounds_per_step = match processes {
            1 => 0,
            _ if !batch.leaves || local => 0,
            _ => batch.rounds[place] + 2 + if fetches_edges { 2 } else { 0 },
        };
        let w = processes as u64;
        // With w processes, (w - 1) / w of a batch's nodes are in other processes.
        let remote = |bytes: u64| bytes * (w - 1) / w * graph.parts.len() as u64;
        let all_nodes = batch.nodes.last().copied().unwrap_or(0);
        let (input, input_bytes) = embedding::input(config, graph);
        let fetch = all_nodes * (8 + (input * input_bytes) as u64) + embedding::push(config, all_nodes);
        let fetch = if batch.leaves { fetch } else { 0 };
        let fetch = fetch + if fetches_edges { far_edges * (4 + edge_bytes) } else { 0 };
        let gradients = gradient_bytes(parameters, graph.parts.len() as u64, w);
        let steps = batch.steps;
        let bytes_per_step = if local {
            // Parameters and optimizer state are sent once per average.
            gradients * (1 + train.optimizer.state()) / (steps * train.average_every() as u64).max(1)
        } else {
            remote(batch.bytes[place] + fetch) + gradients
        };
        let pairs = w * (w - 1);
        Some(Self {
            epochs: train.epochs(),
            steps_per_epoch: steps,
            exact: graph.knows_examples(),
            seeds: batch.seeds,
            batch_nodes: batch.nodes,
            batch_edges: batch.edges,
            subgraph: batch.subgraph,
            rows_bytes: batch.rows,
            rounds_per_step,
            bytes_per_step,
            messages_per_step: if w == 1 {
                0
            } else {
                pairs * (rounds_per_step + 1) + bytes_per_step / MESSAGE_BYTES as u64
            },
        })
    }
}

/// Returns the bytes of gradients that `processes` processes send in a step: each sums a slice of the gradient of all partitions, and sends
/// the sums to the others.
pub(super) fn gradient_bytes(parameters: u64, parts: u64, processes: u64) -> u64 {
    let bytes = 4 * parameters;
    bytes * (processes - 1) / processes * parts + bytes * (processes - 1)
}

/// Returns the bytes of an edge's features in f32; 0 if the model reads none, or their width is unknown.
pub(super) fn edge_bytes(model: &Model, graph: &Sizes) -> u64 {
    if model.reads_edge_features() { graph.edge_features.unwrap_or(0) as u64 * 4 } else { 0 }
}
