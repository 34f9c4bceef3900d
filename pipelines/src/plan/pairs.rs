//! The cost of tasks on edges in full-graph training: chunks of pairs, scored by the rows of their nodes.
//!
//! A chunk of E edges with k negatives each reads the rows of at most E (2 + k) nodes, some of them in the same process. Of N
//! nodes, F are in other processes, and d draws have F (1 − e^(−d / F)) different nodes of these. For negatives that are drawn
//! for each edge, d is (1 + k) E F / N. Each node needs a request (4 bytes), a reply with a row of w values (4 w) and a gradient
//! (4 + 4 w). Sources count as uniformly drawn, so a partitioning with a small cut needs fewer bytes.

use std::ops::Range;

use gnnflow_nn::model::Decoder;

use super::Sizes;
use crate::config::{Config, Graph, NegativeSampler, Task, Train};
use crate::engine::stages::score_pairs::WINDOW;

/// Bytes of the headers of a chunk's three messages: request, reply, gradients.
const HEADERS: f64 = 64.0 + 64.0 + 72.0;
/// Default fraction of training edges.
const SHARE: f64 = 0.8;

/// Pairs of nodes in training.
pub(super) struct Pairs {
    /// Width of a row.
    width: u64,
    /// Maximum number of edges of a chunk.
    batch: u64,
    /// Nodes that negatives add per edge.
    per_edge: u64,
    /// Nodes that negatives add per chunk.
    per_chunk: u64,
    /// Negative pairs of an edge.
    negatives: u64,
    /// Training edges of an epoch, by partition: rounded up if they are counted, else estimated.
    edges: Vec<u64>,
    /// Maximum number of training edges of an epoch.
    most: u64,
    /// Linear maps of the decoder over both rows.
    maps: u64,
}

pub(super) fn decoder(train: &Train, graph: &Sizes) -> Decoder {
    match train.task {
        Task::EdgeClassification => Decoder::Pairs {
            outputs: graph.edge_classes.unwrap_or(0) as usize,
            layers: train.edge().num_decoder_layers,
        },
        _ if train.decodes_relations() => Decoder::Relations(graph.relations.unwrap_or(0)),
        _ => Decoder::None,
    }
}

impl Pairs {
    /// Returns the pairs of a task on edges; `None` for other tasks.
    pub(super) fn of(config: &Config, graph: &Sizes) -> Option<Self> {
        let (train, model) = (config.train.as_ref()?, config.model.as_ref()?);
        if !train.learns_edges() {
            return None;
        }
        let (link, edge) = (train.link(), train.edge());
        let negatives = if train.predicts_links() { link.num_negative_edges as u64 } else { 0 };
        let (per_edge, per_chunk) = match link.negative_sampler {
            NegativeSampler::InBatch => (0, 0),
            NegativeSampler::Joint => (0, negatives),
            NegativeSampler::Uniform | NegativeSampler::Degree => (negatives, 0),
        };
        let edges: Vec<f64> = match &graph.targets {
            Some(targets) => targets.train.iter().map(|&edges| edges as f64).collect(),
            None => {
                let share = share(config, train);
                graph.parts.iter().map(|part| part.edges as f64 * share).collect()
            }
        };
        let trained = edges.iter().sum::<f64>();
        let epoch_share = train.edges_per_epoch().map_or(1.0, |edges| (edges as f64 / trained.max(1.0)).min(1.0));
        let whole = if graph.targets.is_some() { f64::ceil } else { f64::round };
        Some(Self {
            width: model.hidden as u64,
            batch: train.batch as u64,
            per_edge,
            per_chunk,
            negatives,
            edges: edges.into_iter().map(|edges| whole(edges * epoch_share) as u64).collect(),
            most: train.edges_per_epoch().unwrap_or(u64::MAX),
            maps: if train.predicts_links() { 0 } else { edge.num_decoder_layers as u64 },
        })
    }

    /// Returns the training edges of an epoch.
    pub(super) fn all(&self) -> u64 {
        self.edges.iter().sum::<u64>().min(self.most)
    }

    pub(super) fn chunks(&self) -> u32 {
        let chunks = self.edges.iter().map(|edges| edges.div_ceil(self.batch)).max();
        chunks.unwrap_or(0).try_into().unwrap_or(u32::MAX)
    }

    /// Returns the maximum number of nodes in a chunk of `edges` edges.
    fn nodes(&self, edges: u64, graph: &Sizes) -> u64 {
        ((2 + self.per_edge) * edges + self.per_chunk).min(graph.nodes)
    }

    /// Returns the bytes between processes in an epoch. `hosted` has the partitions of each process.
    pub(super) fn bytes(&self, graph: &Sizes, hosted: &[Range<usize>]) -> u64 {
        let others = hosted.len() as f64 - 1.0;
        let row = (4 + 4 * self.width + 4 + 4 * self.width) as f64;
        let mut bytes = 0.0;
        for parts in hosted {
            let own: u64 = graph.parts[parts.clone()].iter().map(|part| part.nodes).sum();
            let foreign = (graph.nodes - own) as f64;
            if foreign == 0.0 {
                continue;
            }
            let of_chunk = |edges: u64| {
                let draws = ((1 + self.per_edge) * edges + self.per_chunk) as f64 * foreign / graph.nodes as f64;
                let distinct = foreign * (1.0 - (-draws / foreign).exp());
                distinct * row + others * HEADERS
            };
            for &edges in &self.edges[parts.clone()] {
                bytes += (edges / self.batch) as f64 * of_chunk(self.batch);
                bytes += match edges % self.batch {
                    0 => 0.0,
                    rest => of_chunk(rest),
                };
            }
        }
        bytes as u64
    }

    /// Returns the bytes of a process's chunks in flight: rows and gradients.
    pub(super) fn batches(&self, graph: &Sizes, parts: &Range<usize>) -> u64 {
        let nodes = self.nodes(self.largest(parts), graph);
        u64::from(WINDOW) * parts.len() as u64 * nodes * (2 * 4 * self.width + 12)
    }

    /// Returns the bytes of a chunk's computation: three times its rows, scores, and the decoder's activations of each pair.
    pub(super) fn scores(&self, graph: &Sizes, parts: &Range<usize>) -> u64 {
        let edges = self.largest(parts);
        let of_edges = edges * (1 + self.negatives) + edges * 2 * self.width * self.maps;
        3 * 4 * (self.nodes(edges, graph) * self.width + of_edges)
    }

    /// Returns the bytes of the results of `own` nodes.
    pub(super) fn results(&self, own: u64) -> u64 {
        4 * own * self.width
    }

    fn largest(&self, parts: &Range<usize>) -> u64 {
        let most = self.edges[parts.clone()].iter().copied().max();
        most.unwrap_or(0).min(self.batch)
    }
}

/// Returns an upper bound of the share of training edges among all edges.
fn share(config: &Config, train: &Train) -> f64 {
    let (link, edge) = (train.link(), train.edge());
    let shares = if train.predicts_links() { link.split_fractions } else { edge.split_fractions };
    let graph = &config.graph;
    let of_splits = match shares.as_ref().and_then(|shares| shares.first()) {
        Some(&share) => share,
        None if graph.dataset.is_none() && !graph.splits_edges() => SHARE,
        None => 1.0,
    };
    of_splits * unreversed(graph)
}

/// Returns the share of edges that are not added reverses, which are not predicted.
pub(super) fn unreversed(graph: &Graph) -> f64 {
    if graph.dataset.is_none() && graph.reverse_edges { 0.5 } else { 1.0 }
}
