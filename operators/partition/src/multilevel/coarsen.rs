//! Coarsening of a graph in memory: clusters by label propagation, and the graph of their heaviest edges.

use std::cmp::Reverse;

use gnnflow_data::rng::{Key, Purpose};
use rayon::prelude::*;

use crate::graph::Graph;

/// Number of nodes that choose in parallel by the same labels. The result depends on it.
const BATCH: usize = 4096;
/// Number of neighbors from which a label is chosen. Larger lists are sampled at a regular stride.
const MAX_SAMPLED: usize = 32;
/// Stride of the clusters from which the number of edges is estimated.
const ESTIMATE_STRIDE: usize = 64;

/// Clusters nodes by label propagation: in each round every node joins the cluster of most of its (sampled) neighbors.
///
/// Returns the cluster of every node, numbered in the order of first nodes, and the number of clusters. A cluster has
/// at most `limit` nodes. The result is equal for any number of threads.
pub(super) fn cluster(graph: &Graph, limit: u32, rounds: u64, seed: u64) -> (Vec<u32>, usize) {
    let nodes = graph.nodes();
    let mut labels: Vec<u32> = (0..nodes as u32).collect();
    let mut sizes = vec![1u32; nodes];
    let key = Key::new(seed, Purpose::Partition).fold_str("clusters");
    for round in 0..rounds {
        let key = key.fold(round);
        let mut moved = 0;
        for first in (0..nodes).step_by(BATCH) {
            let batch = first..nodes.min(first + BATCH);
            let choice = |votes: &mut Vec<u32>, node| preferred_label(graph, &labels, &sizes, limit, key, node, votes);
            let choices: Vec<u32> =
                batch.clone().into_par_iter().with_min_len(256).map_init(Vec::new, choice).collect();
            for (node, choice) in batch.zip(choices) {
                let label = &mut labels[node];
                if choice != *label && sizes[choice as usize] < limit {
                    sizes[*label as usize] -= 1;
                    sizes[choice as usize] += 1;
                    *label = choice;
                    moved += 1;
                }
            }
        }
        if moved < nodes / 64 {
            break;
        }
    }
    let count = number(&mut labels);
    (labels, count)
}

/// Returns the label of most sampled neighbors among clusters below the size limit.
fn preferred_label(
    graph: &Graph,
    labels: &[u32],
    sizes: &[u32],
    limit: u32,
    key: Key,
    node: usize,
    votes: &mut Vec<u32>,
) -> u32 {
    let (neighbors, own_label) = (graph.neighbors(node), labels[node]);
    let step = (neighbors.len() / MAX_SAMPLED).max(1);
    let first = key.below(node as u64, step as u64) as usize;
    votes.clear();
    votes.extend(neighbors.iter().skip(first).step_by(step).map(|&other| labels[other as usize]));
    votes.sort_unstable();
    let of_own = votes.iter().filter(|&&label| label == own_label).count();
    // The own label wins a tie, otherwise a random one. The lowest label would spread over the graph.
    let (mut best, mut count, mut tie_break) = (own_label, of_own, u64::MAX);
    for same in votes.chunk_by(|a, b| a == b) {
        let label = same[0];
        if label == own_label || same.len() < count || sizes[label as usize] >= limit {
            continue;
        }
        let draw = key.draw(u64::from(label)) >> 1;
        if same.len() > count || draw > tie_break && tie_break != u64::MAX {
            (best, count, tie_break) = (label, same.len(), draw);
        }
    }
    best
}

/// The modularity of clusters: the share of edges inside them, less the expected share in a random graph.
/// M. E. J. Newman, M. Girvan: Finding and evaluating community structure in networks. Physical Review E 69, 2004.
pub(super) fn modularity(graph: &Graph, clusters: &[u32], count: usize) -> f64 {
    let mut volumes = vec![0u64; count];
    clusters.iter().enumerate().for_each(|(node, &cluster)| volumes[cluster as usize] += graph.degree(node));
    let inside = |node: usize| {
        graph.neighbors(node).iter().filter(|&&other| clusters[other as usize] == clusters[node]).count() as u64
    };
    let inside: u64 = (0..graph.nodes()).into_par_iter().with_min_len(4096).map(inside).sum();
    let all = graph.entries().max(1) as f64;
    let chance: f64 = volumes.iter().map(|&volume| (volume as f64 / all).powi(2)).sum();
    inside as f64 / all - chance
}

/// Renumbers labels from 0 in the order of first occurrence. Returns the number of labels.
pub(super) fn number(labels: &mut [u32]) -> usize {
    let mut numbers = vec![u32::MAX; labels.len()];
    let mut count = 0;
    for label in labels {
        let number = &mut numbers[*label as usize];
        if *number == u32::MAX {
            *number = count;
            count += 1;
        }
        *label = *number;
    }
    count as usize
}

/// Largest bytes of [`contract`] and its result: members and starts of clusters, edges in pieces and as a whole, and the
/// lists of the new graph. There are at most as many clusters as nodes.
pub(super) const fn contracting_bytes(nodes: u64, edges: u64) -> u64 {
    12 * nodes + 2 * 16 * edges + Graph::weighted_bytes(nodes, edges)
}

/// Builds the graph of the clusters, weighted by the number of edges of `graph`. With more than about `limit` edges,
/// each cluster keeps an equal share of its heaviest edges. An edge stays if either end keeps it.
pub(super) fn contract(graph: &Graph, clusters: &[u32], count: usize, limit: usize) -> Graph {
    let mut starts = vec![0u32; count + 1];
    clusters.iter().for_each(|&cluster| starts[cluster as usize + 1] += 1);
    (0..count).for_each(|cluster| starts[cluster + 1] += starts[cluster]);
    let mut next = starts.clone();
    let mut members = vec![0u32; clusters.len()];
    for (node, &cluster) in (0..).zip(clusters) {
        let at = &mut next[cluster as usize];
        members[*at as usize] = node;
        *at += 1;
    }
    // Fills `found` with the neighboring clusters of `cluster` and their weights.
    let neighbor_clusters = |cluster: usize, sums: &mut [u32], found: &mut Vec<(u32, u32)>| {
        found.clear();
        for &member in &members[starts[cluster] as usize..starts[cluster + 1] as usize] {
            for &other in graph.neighbors(member as usize) {
                let other = clusters[other as usize];
                if other as usize != cluster {
                    if sums[other as usize] == 0 {
                        found.push((other, 0));
                    }
                    sums[other as usize] += 1;
                }
            }
        }
        for (other, weight) in found {
            *weight = std::mem::take(&mut sums[*other as usize]);
        }
    };
    let scratch = || (vec![0u32; count], Vec::new());
    let step = if count > 64 * ESTIMATE_STRIDE { ESTIMATE_STRIDE } else { 1 };
    let sampled: usize = (0..count.div_ceil(step))
        .into_par_iter()
        .with_min_len(1024)
        .map_init(scratch, |(sums, found), cluster| {
            neighbor_clusters(cluster * step, sums, found);
            found.len()
        })
        .sum();
    let entries = sampled * step;
    let share = if entries <= 2 * limit { 1.0 } else { limit as f64 / entries as f64 };
    let key = Key::new(0, Purpose::Partition).fold_str("contract");
    let mut edges: Vec<(u64, u32)> = (0..count)
        .into_par_iter()
        .with_min_len(4096)
        .map_init(scratch, |(sums, found), cluster| {
            neighbor_clusters(cluster, sums, found);
            let edge_key = |other: u32| {
                let (low, high) = (other.min(cluster as u32), other.max(cluster as u32));
                u64::from(low) << 32 | u64::from(high)
            };
            let num_kept = ((found.len() as f64 * share).ceil() as usize).min(found.len());
            if num_kept > 0 && num_kept < found.len() {
                found.select_nth_unstable_by_key(num_kept - 1, |&(other, weight)| {
                    (Reverse(weight), key.draw(edge_key(other)))
                });
            }
            // If no edge is dropped, only the lower end emits it.
            let emitted = found[..num_kept].iter().filter(|&&(other, _)| share < 1.0 || cluster < other as usize);
            emitted.map(|&(other, weight)| (edge_key(other), weight)).collect::<Vec<_>>()
        })
        .flatten_iter()
        .collect();
    edges.par_sort_unstable();
    edges.dedup();
    Graph::of_weighted_edges(count, &edges)
}
