//! Tests of LDG and Fennel against their papers.

use super::*;
use crate::{Fennel, Ldg};

/// Places every node in the part with the highest `score(neighbors in the part, nodes of the part)`.
fn stream(graph: &TestGraph, goal: &Goal, score: impl Fn(f64, f64) -> f64) -> Vec<u32> {
    let most = bound(graph.nodes, goal);
    let mut parts: Vec<u32> = Vec::new();
    for node in 0..graph.nodes {
        let neighbors = graph.edges.iter().filter_map(|&(u, v)| match (u == node, v == node) {
            (true, false) => Some(v),
            (false, true) => Some(u),
            _ => None,
        });
        let homes: Vec<u32> = neighbors.filter_map(|other| parts.get(other as usize).copied()).collect();
        let sizes = sizes(&parts, goal);
        let mut open: Vec<u32> = (0..goal.parts).filter(|&part| sizes[part as usize] < most).collect();
        open.sort_by_key(|&part| (sizes[part as usize], part));
        let mut best = None;
        for part in open {
            let count = homes.iter().filter(|&&home| home == part).count();
            let score = score(count as f64, sizes[part as usize] as f64);
            if best.is_none_or(|(other, _)| score > other) {
                best = Some((score, part));
            }
        }
        parts.push(best.unwrap().1);
    }
    parts
}

fn compare(method: &dyn Partitioner, paper: impl Fn(&TestGraph, &Goal) -> Vec<u32>) {
    for graph in all_graphs().into_iter().filter(|graph| graph.edges.len() < 5000) {
        for goal in goals() {
            let expected = paper(&graph, &goal);
            // All nodes in one batch; a few per batch; one per batch.
            for limit in [1 << 20, 8 * 300, 8] {
                let found = parts(method, &graph.stream(), &Goal { limit, ..goal.clone() });
                assert_eq!(found, expected, "{} {} {goal:?} {limit}", method.name(), graph.name);
            }
            let most = bound(graph.nodes, &goal);
            assert!(sizes(&expected, &goal).iter().all(|&size| size <= most));
        }
    }
}

#[test]
fn ldg_equals_the_paper() {
    compare(&Ldg, |graph, goal| {
        let most = bound(graph.nodes, goal) as f64;
        // Times C, so that scores are integers and ties are exact.
        stream(graph, goal, |count, size| count * (most - size))
    });
}

#[test]
fn fennel_equals_the_paper() {
    compare(&Fennel, |graph, goal| {
        let (n, m, k) = (f64::from(graph.nodes), graph.edges.len() as f64, f64::from(goal.parts));
        let alpha = k.sqrt() * m / (n * n.sqrt());
        stream(graph, goal, |count, size| count - alpha * 1.5 * size.sqrt())
    });
}

#[test]
fn smaller_memory_takes_more_passes() {
    let graph = power_law(500, 2000, 7);
    let passes = |limit| {
        let stream = graph.stream();
        parts(&Ldg, &stream, &Goal { limit, ..Goal::new(4) });
        stream.passes.take().len()
    };
    assert_eq!(passes(1 << 20), 2);
    // 2,000 neighbors of 4 bytes; a batch holds half of 4,000 bytes.
    assert!((5..8).contains(&passes(4000)), "{}", passes(4000));
}
