//! A naive reference implementation: everything in memory, one edge at a time.

use std::collections::HashSet;

use crate::source::{Duplicates, GraphSource, SelfLoops};
use crate::testing::TestGraph;

/// In-edges of a node: `(global source, row)`; added edges have no row.
pub(super) type InEdges = Vec<(u32, Option<usize>)>;

/// Assigns node `v` to part `v % parts`, after the smaller nodes of that part.
pub(super) fn globals(nodes: u32, parts: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..nodes).collect();
    order.sort_by_key(|v| (v % parts, *v));
    let mut global = vec![0; nodes as usize];
    order.iter().zip(0..).for_each(|(&v, id)| global[v as usize] = id);
    global
}

/// Returns in-edges by global id, with ascending sources, and in the order of the dump among equal sources. `None` if a policy fails.
pub(super) fn in_edges(graph: &TestGraph, source: &GraphSource, parts: u32) -> Option<Vec<InEdges>> {
    let global = globals(graph.nodes, parts);
    let mut directed = Vec::new();
    for (row, &(src, dst)) in graph.edges.iter().enumerate() {
        if src == dst {
            match source.self_loops {
                SelfLoops::Drop => continue,
                SelfLoops::Fail => return None,
                SelfLoops::Keep | SelfLoops::Add => {}
            }
        }
        directed.push((src, dst, row));
        if source.undirected && src != dst {
            directed.push((dst, src, row));
        }
    }
    if source.duplicates != Duplicates::Keep {
        let (mut seen, all) = (HashSet::new(), directed.len());
        let typed = source.columns.edge_type.is_some();
        directed.retain(|&(src, dst, row)| seen.insert((src, dst, if typed { row % 3 } else { 0 })));
        if source.duplicates == Duplicates::Fail && directed.len() < all {
            return None;
        }
    }
    let mut lists = vec![InEdges::new(); graph.nodes as usize];
    for &(src, dst, row) in &directed {
        lists[global[dst as usize] as usize].push((global[src as usize], Some(row)));
    }
    for (list, node) in lists.iter_mut().zip(0..) {
        if source.self_loops == SelfLoops::Add && list.iter().all(|&(src, _)| src != node) {
            list.push((node, None));
        }
        list.sort_by_key(|&(src, _)| src);
    }
    Some(lists)
}
