//! What it takes to learn from edges by passes over the whole graph: chunks of pairs, scored by rows of their nodes.
//!
//! A chunk of E edges with k negatives each reads the rows of at most E (2 + k) nodes, of which a process has some itself. Of F nodes
//! elsewhere, d draws name F (1 − e^(−d / F)) different ones: d is (1 + k) E F / N, of N nodes in all, for negatives of each edge's own.
//! Each of those is asked for by its number (4 bytes), its row of w numbers comes (4 w) and a gradient goes back (4 + 4 w). HeadShards
//! count as drawn anywhere: partitions that are cut well bring fewer.

use std::ops::Range;

use gnnflow_nn::model::Decoder;

use super::Sizes;
use crate::config::{Config, NegativeSampler, Task, Train};
use crate::engine::stages::score_pairs::WINDOW;

/// Bytes of a message beside ids and rows, as far as each of a chunk's three ways needs one: a question, an answer, gradients.
const HEADERS: f64 = 64.0 + 64.0 + 72.0;
/// Training edges where nobody says how many they are.
const SHARE: f64 = 0.8;

/// Pairs that are learned from.
pub(super) struct Pairs {
    /// Numbers in a row.
    width: u64,
    /// Edges of a chunk, at most.
    batch: u64,
    /// Nodes that an edge's negatives add: of its own, or of the whole chunk.
    each: u64,
    together: u64,
    /// Pairs that an edge is compared with.
    negatives: u64,
    /// Of all edges, those that are trained on; at most.
    share: f64,
    /// Of those, the share that an epoch takes.
    taken: f64,
    /// Maps of a perceptron over both rows.
    maps: u64,
}

/// What the model has behind its layers.
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
    /// Of a pipeline that learns of edges.
    pub(super) fn of(config: &Config, graph: &Sizes) -> Option<Self> {
        let (train, model) = (config.train.as_ref()?, config.model.as_ref()?);
        if !train.learns_edges() {
            return None;
        }
        let (link, edge) = (train.link(), train.edge());
        let negatives = if train.predicts_links() { link.num_negative_edges as u64 } else { 0 };
        let (each, together) = match link.negative_sampler {
            NegativeSampler::InBatch => (0, 0),
            NegativeSampler::Joint => (0, negatives),
            NegativeSampler::Uniform | NegativeSampler::Degree => (negatives, 0),
        };
        let shares = if train.predicts_links() { &link.split_fractions } else { &edge.split_fractions };
        let drawn =
            config.graph.dataset.is_none() && config.graph.columns.edge_split.as_ref().is_none_or(String::is_empty);
        let of_splits = match shares.as_ref().and_then(|shares| shares.first()) {
            Some(&share) => share,
            None if drawn => SHARE,
            None => 1.0,
        };
        // Reverses are not predicted.
        let of_types = if config.graph.dataset.is_none() && config.graph.reverse_edges { 0.5 } else { 1.0 };
        let share = of_splits * of_types;
        let trained = share * graph.parts.iter().map(|part| part.edges as f64).sum::<f64>();
        let taken = train.edges_per_epoch().map_or(1.0, |edges| (edges as f64 / trained.max(1.0)).min(1.0));
        Some(Self {
            width: model.hidden as u64,
            batch: train.batch as u64,
            each,
            together,
            negatives,
            share,
            taken,
            maps: if train.predicts_links() { 0 } else { edge.num_decoder_layers as u64 },
        })
    }

    /// Edges that a partition with so many trains on, in an epoch.
    fn edges(&self, all: u64) -> u64 {
        (all as f64 * self.share * self.taken).round() as u64
    }

    /// Edges that are trained on.
    pub(super) fn all(&self, graph: &Sizes) -> u64 {
        graph.parts.iter().map(|part| self.edges(part.edges)).sum()
    }

    /// Chunks of an epoch.
    pub(super) fn chunks(&self, graph: &Sizes) -> u32 {
        let chunks = graph.parts.iter().map(|part| self.edges(part.edges).div_ceil(self.batch)).max();
        chunks.unwrap_or(0).try_into().unwrap_or(u32::MAX)
    }

    /// Nodes of a chunk of so many edges, at most.
    fn nodes(&self, edges: u64, graph: &Sizes) -> u64 {
        ((2 + self.each) * edges + self.together).min(graph.nodes)
    }

    /// Bytes between processes that host these partitions, in an epoch.
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
                let draws = ((1 + self.each) * edges + self.together) as f64 * foreign / graph.nodes as f64;
                let distinct = foreign * (1.0 - (-draws / foreign).exp());
                distinct * row + others * HEADERS
            };
            for part in &graph.parts[parts.clone()] {
                let edges = self.edges(part.edges);
                bytes += (edges / self.batch) as f64 * of_chunk(self.batch);
                bytes += match edges % self.batch {
                    0 => 0.0,
                    rest => of_chunk(rest),
                };
            }
        }
        bytes as u64
    }

    /// Bytes of a process's chunks that are under way: rows as they come, and gradients as they go.
    pub(super) fn batches(&self, graph: &Sizes, parts: &Range<usize>) -> u64 {
        let nodes = self.nodes(self.largest(graph, parts), graph);
        u64::from(WINDOW) * parts.len() as u64 * nodes * (2 * 4 * self.width + 12)
    }

    /// Bytes of one chunk's arithmetic: three times its nodes' rows, its scores, and what a perceptron makes of each pair.
    pub(super) fn scores(&self, graph: &Sizes, parts: &Range<usize>) -> u64 {
        let edges = self.largest(graph, parts);
        let of_edges = edges * (1 + self.negatives) + edges * 2 * self.width * self.maps;
        3 * 4 * (self.nodes(edges, graph) * self.width + of_edges)
    }

    /// Rows of own nodes that are scored by.
    pub(super) fn results(&self, own: u64) -> u64 {
        4 * own * self.width
    }

    fn largest(&self, graph: &Sizes, parts: &Range<usize>) -> u64 {
        let most = graph.parts[parts.clone()].iter().map(|part| self.edges(part.edges)).max();
        most.unwrap_or(0).min(self.batch)
    }
}
