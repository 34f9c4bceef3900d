//! Partitioning of a graph in memory: several starts are refined on the entire graph, and the best is used.

use gnnflow_data::partitioner::Goal;
use gnnflow_data::{Error, GraphStream, Result};

use super::budget::Budget;
use super::polish::{self, Cost, CutAndCopies};
use super::{by_degree, coarsen};
use crate::balance::Bounds;
use crate::graph::Graph;
use crate::kway;
use crate::kway::KwayOptions;

/// Rounds of label propagation.
const ROUNDS: u64 = 3;
/// Largest number of passes over the graph, for each kind of refinement.
const MAX_PASSES: usize = 12;
/// Largest number of METIS's entries, summed over all seeds of a small graph.
const MAX_SEEDED_ENTRIES: u64 = 1 << 24;
const MAX_SEEDS: u64 = 6;
/// Largest number of parts for which METIS's recursive bisection is tried.
const MAX_BISECTED_PARTS: u32 = 8;

/// Largest number of entries for which replication is refined. Each entry reads counters that do not fit in the cache.
const MAX_POLISHED_ENTRIES: u64 = 1 << 25;
/// Smallest modularity of clusters for which METIS runs on them.
const MIN_MODULARITY: f64 = 0.05;

/// Name of the result in the journal, for a preparation that is interrupted later.
const JOURNAL_NAME: &str = "multilevel";

pub(super) fn assign(graph: &dyn GraphStream, goal: &Goal, bounds: &Bounds<'_>, budget: &Budget) -> Result<Vec<u16>> {
    let nodes = graph.num_nodes() as usize;
    if let Some(parts) = graph.load(JOURNAL_NAME)?.and_then(|bytes| kway::from_bytes(&bytes, nodes)) {
        return Ok(parts);
    }
    let whole = Graph::read(graph)?;
    let bytes =
        graph.once("partitioning in memory", &mut || Ok(kway::to_bytes(&best(&whole, goal, bounds, budget)?)))?;
    graph.save(JOURNAL_NAME, &bytes)?;
    kway::from_bytes(&bytes, nodes).ok_or_else(|| Error::Bug("the parts do not match the nodes".into()))
}

/// Returns the best result of all starts. Results within the bounds are preferred.
pub(super) fn best(graph: &Graph, goal: &Goal, bounds: &Bounds<'_>, budget: &Budget) -> Result<Vec<u16>> {
    let mut best: Option<((bool, Cost), Vec<u16>)> = None;
    let mut consider = |start: Vec<u16>| {
        if let Some(end) = refine(graph, goal, bounds, budget, start, best.as_ref().map(|best| best.0.1.cut)) {
            let broken = !bounds.satisfied(&bounds.loads(&end));
            let cost = (broken, polish::cost(graph, &end, goal.parts as usize));
            if best.as_ref().is_none_or(|best| cost < best.0) {
                best = Some((cost, end));
            }
        }
    };
    if budget.direct {
        let seeds = (MAX_SEEDED_ENTRIES / graph.entries().max(1)).clamp(1, MAX_SEEDS);
        for seed in 0..seeds {
            consider(metis(graph, goal, bounds, seed, graph.nodes(), |node| node)?);
        }
    } else {
        let (clusters, count) = coarsen::cluster(graph, budget.max_cluster_nodes, ROUNDS, goal.seed);
        if coarsen::modularity(graph, &clusters, count) >= MIN_MODULARITY {
            let small = coarsen::contract(graph, &clusters, count, budget.resident_edges(graph.entries()) as usize);
            let parts = metis(&small, goal, bounds, 0, count, |node| clusters[node] as usize)?;
            drop(small);
            consider(clusters.iter().map(|&cluster| parts[cluster as usize]).collect());
        }
    }
    consider(by_degree(graph.nodes(), goal.parts, |node| graph.degree(node)));
    best.map(|(_, parts)| parts).ok_or_else(|| Error::Bug("multilevel had no start".into()))
}

/// Partitions a graph of `groups` groups of nodes by METIS. `seed` is the number of the try.
pub(super) fn metis(
    graph: &Graph,
    goal: &Goal,
    bounds: &Bounds<'_>,
    seed: u64,
    groups: usize,
    group: impl Fn(usize) -> usize,
) -> Result<Vec<u16>> {
    // Every third try bounds nodes only. That is better if the other quantities are nearly balanced without a bound, or are soon
    // restored by moves. The first try of three uses no bisection, which is often better for few parts.
    let rules = if seed % 3 == 1 { 1 } else { bounds.len() };
    let node_weights = kway::node_weights(bounds, rules, groups, group);
    let (targets, node_weights) = (bounds.targets()[..rules].to_vec(), node_weights.as_slice());
    let bisect = !seed.is_multiple_of(3) && goal.parts <= MAX_BISECTED_PARTS;
    let options = KwayOptions {
        method: "multilevel",
        parts: goal.parts,
        seed: goal.seed.wrapping_add(seed),
        targets,
        bisect,
        node_weights,
    };
    kway::kway(graph, &options)
}

/// Restores the bounds of a start and refines it. Returns `None` if it is unlikely to cut fewer than `to_beat` edges.
fn refine(
    graph: &Graph,
    goal: &Goal,
    bounds: &Bounds<'_>,
    budget: &Budget,
    mut assignment: Vec<u16>,
    to_beat: Option<u64>,
) -> Option<Vec<u16>> {
    let (nodes, parts) = (graph.nodes(), goal.parts as usize);
    let mut loads = bounds.loads(&assignment);
    if !bounds.satisfied(&loads) {
        let before = assignment.clone();
        bounds.repair(&mut assignment, &mut loads, |node, part| graph.neighbors_in(&before, node, part));
    }
    for pass in 0..MAX_PASSES {
        let moved = polish::reduce_cut(graph, bounds, parts, &mut assignment, &mut loads);
        if moved <= nodes / 1000 {
            break;
        }
        // The first two passes gain most of the improvement.
        if pass == 1 && to_beat.is_some_and(|cut| polish::cost(graph, &assignment, parts).cut > cut + cut / 4) {
            return None;
        }
    }
    if graph.entries() <= MAX_POLISHED_ENTRIES && budget.copies {
        let mut refinement = CutAndCopies::new(graph, bounds, parts, &assignment);
        for _ in 0..MAX_PASSES {
            if refinement.pass(&mut assignment, &mut loads) <= nodes / 1000 {
                break;
            }
        }
    }
    Some(assignment)
}
