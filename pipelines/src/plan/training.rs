//! The work of an epoch: steps, batches, and what moves between processes.

use std::ops::Range;

use gnnflow_dataflow::graph::placement::Placement;
use serde::Serialize;

use super::batch::Batch;
use super::memory::state;
use super::whole_graph::Whole;
use super::{Sizes, embedding};
use crate::config::{Config, Model, Topology};

/// Messages are at most this large.
const MESSAGE_BYTES: u64 = 256 << 10;

/// The work of an epoch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Training {
    /// Epochs, unless stopped early.
    pub epochs: usize,
    /// Steps in an epoch: the most seeds of any partition over `train.batch`; its clusters over those of a batch.
    pub steps_per_epoch: u64,
    /// Whether the number of train nodes is known; if not, all nodes are assumed, and steps are at most these.
    pub exact: bool,
    /// Seeds in a step, all partitions together; at most.
    pub seeds: u64,
    /// Nodes of the largest batch (none where steps are over the whole graph): first its seeds, then the list after each hop.
    pub batch_nodes: Vec<u64>,
    /// Edges of the largest batch in each hop.
    pub batch_edges: Vec<u64>,
    /// Whether a batch is a subgraph, of so many seeds and so many nodes, and all layers read its edges.
    pub subgraph: bool,
    /// Bytes of whole rows that a hop is chosen from (`ladies`).
    pub rows_bytes: u64,
    /// Rounds of messages in a step: 2 (L − 1) to sample and 2 to fetch with several processes, none with one or where batches stay
    /// in their partition; 2 for each step of a walk but the first, and 2 for the edges of a subgraph that may leave it. A replicated
    /// topology leaves the 2; partitions that train by themselves ask nothing.
    pub rounds_per_step: u64,
    /// Bytes between processes in a step: requests, replies, features, gradients; at most.
    pub bytes_per_step: u64,
    /// Messages between processes in a step; about.
    pub messages_per_step: u64,
}

impl Training {
    /// Of epochs that are one step over the whole graph.
    pub(super) fn of_whole(config: &Config, graph: &Sizes, whole: &Whole, placement: Placement) -> Option<Self> {
        let (train, w) = (config.train.as_ref()?, placement.workers() as u64);
        let hosted: Vec<Range<usize>> = (0..placement.workers()).map(|worker| placement.parts_of(worker)).collect();
        let rows = whole.bytes(graph, &hosted);
        let gradients = 4 * whole.parameters * (graph.parts.len() as u64 * (w - 1) / w + w - 1);
        let (rounds, bytes) = (whole.rounds(placement.workers()), rows + gradients);
        Some(Self {
            epochs: train.epochs,
            steps_per_epoch: 1,
            exact: graph.train.is_some(),
            seeds: whole.pairs.as_ref().map_or(graph.train.unwrap_or(graph.nodes), |pairs| pairs.all(graph)),
            batch_nodes: Vec::new(),
            batch_edges: Vec::new(),
            subgraph: false,
            rows_bytes: 0,
            rounds_per_step: rounds,
            bytes_per_step: bytes,
            messages_per_step: if w == 1 { 0 } else { w * (w - 1) * (rounds + 1) + bytes / MESSAGE_BYTES },
        })
    }

    pub(super) fn new(config: &Config, graph: &Sizes, processes: usize, parameters: u64) -> Option<Self> {
        let (train, model) = (config.train.as_ref()?, config.model.as_ref()?);
        let batch = Batch::of(train, model, graph);
        let partitioned = config.partition.topology == Topology::Partitioned;
        let alone = train.schedule.is_partition_parallel();
        let edge_bytes = edge_bytes(model, graph);
        // Edges of other partitions' nodes are asked for apart, where their rows are not here.
        let far_edges = batch.edges.iter().skip(usize::from(!batch.subgraph)).sum::<u64>();
        let asks_edges = edge_bytes > 0 && partitioned && batch.leaves && far_edges > 0;
        let place = usize::from(!partitioned);
        let rounds_per_step = match processes {
            1 => 0,
            _ if !batch.leaves || alone => 0,
            _ => batch.rounds[place] + 2 + if asks_edges { 2 } else { 0 },
        };
        let w = processes as u64;
        // With w processes, (w - 1) / w of what a batch touches lives elsewhere.
        let remote = |bytes: u64| bytes * (w - 1) / w * graph.parts.len() as u64;
        let all_nodes = batch.nodes.last().copied().unwrap_or(0);
        let (input, input_bytes) = embedding::input(config, graph);
        let fetch = all_nodes * (8 + (input * input_bytes) as u64) + embedding::push(config, all_nodes);
        let fetch = if batch.leaves { fetch } else { 0 };
        let fetch = fetch + if asks_edges { far_edges * (4 + edge_bytes) } else { 0 };
        // Every partition's piece goes to whoever sums it, the sums to everybody.
        let gradients = remote(parameters * 4) + parameters * 4 * (w - 1);
        let steps = batch.steps;
        let bytes_per_step = if alone {
            // Parameters and the optimizer's state, once in all the steps from one average to the next.
            gradients * (1 + state(train)) / (steps * train.average_every() as u64).max(1)
        } else {
            remote(batch.moved[place] + fetch) + gradients
        };
        let pairs = w * (w - 1);
        Some(Self {
            epochs: train.epochs,
            steps_per_epoch: steps,
            exact: graph.train.is_some(),
            seeds: batch.seeds,
            batch_nodes: batch.nodes,
            batch_edges: batch.edges,
            subgraph: batch.subgraph,
            rows_bytes: batch.rows,
            rounds_per_step,
            bytes_per_step,
            messages_per_step: if w == 1 { 0 } else { pairs * (rounds_per_step + 1) + bytes_per_step / MESSAGE_BYTES },
        })
    }
}

/// Bytes of an edge's features as computed on; 0 where the model reads none, or nothing is known of them.
pub(super) fn edge_bytes(model: &Model, graph: &Sizes) -> u64 {
    if model.reads_edge_features() { graph.edge_features.unwrap_or(0) as u64 * 4 } else { 0 }
}
