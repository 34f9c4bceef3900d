//! Tests of every method against its paper, and of common properties.

mod node_streams;
mod spring;
mod vertex_cuts;

use std::collections::BTreeMap;

use gnnflow_data::partitioner::{Goal, Targets};
use gnnflow_data::testing::{TestGraph, TestStream, graphs, power_law};
use gnnflow_data::{Assignment, Partitioner};

use super::{Settings, builtin};
use crate::Degrees;

fn parts(method: &dyn Partitioner, stream: &TestStream, goal: &Goal) -> Vec<u32> {
    let assignment = method.assign(stream, goal).unwrap();
    if let Assignment::Stored(parts) = &assignment {
        assert_eq!(parts.len(), stream.graph.nodes as usize, "{}: {}", method.name(), stream.graph.name);
    }
    (0..u64::from(stream.graph.nodes)).map(|node| assignment.part(node)).collect()
}

fn sizes(parts: &[u32], goal: &Goal) -> Vec<u64> {
    let mut sizes = vec![0; goal.parts as usize];
    parts.iter().for_each(|&part| sizes[part as usize] += 1);
    sizes
}

/// Groups of nodes with many edges inside and few between, interleaved over all indexes.
fn communities(groups: u32, each: u32, seed: u64) -> TestGraph {
    use gnnflow_data::rng::{Key, Purpose};
    let key = Key::new(seed, Purpose::GenerateEdges);
    let node = |group: u64, i: u64| (key.below(i, u64::from(each)) * u64::from(groups) + group) as u32;
    let edge = |i: u64| {
        let from = key.fold(1).below(i, u64::from(groups));
        let to = if key.fold(2).below(i, 8) == 0 { key.fold(3).below(i, u64::from(groups)) } else { from };
        (node(from, 2 * i), node(to, 2 * i + 1))
    };
    let edges = (0..u64::from(groups * each * 4)).map(edge).collect();
    TestGraph { name: "communities", nodes: groups * each, edges }
}

/// Small graphs of all kinds, and some larger ones.
fn all_graphs() -> Vec<TestGraph> {
    let mut all = graphs();
    all.extend([power_law(500, 2000, 7), power_law(1000, 20_000, 3), communities(12, 60, 1), communities(40, 9, 2)]);
    all
}

/// Goals of all kinds: more parts than nodes, tight balance and loose.
fn goals() -> Vec<Goal> {
    let balance = |nodes| Targets { nodes, ..Targets::default() };
    let goal = |(parts, nodes)| Goal { balance: balance(nodes), ..Goal::new(parts) };
    [(1, 1.05), (2, 1.05), (3, 1.0), (4, 1.3), (7, 1.05), (16, 1.05), (64, 2.0), (100, 1.05)].map(goal).into()
}

/// Bound on the nodes of a part: max(⌊β|V|/p⌋, ⌈|V|/p⌉).
fn bound(nodes: u32, goal: &Goal) -> u64 {
    let even = f64::from(nodes) / f64::from(goal.parts);
    (even.ceil() as u64).max((goal.balance.nodes * even).floor() as u64)
}

/// Every built-in method except METIS ones, with several settings.
fn methods() -> Vec<Box<dyn Partitioner>> {
    let settings = |degrees, hold_balance, volume| Settings { degrees, hold_balance, volume, ..Settings::default() };
    let all =
        [Settings::default(), settings(Some(Degrees::Online), None, Some(0.2)), settings(None, Some(true), Some(0.05))];
    let names = ["random", "range", "spring", "dbh", "greedy", "hdrf", "2ps-l", "ldg", "fennel"];
    let names = names.into_iter().flat_map(|name| all.iter().map(move |settings| (name, settings)));
    let made = names.map(|(name, settings)| builtin(name, settings).unwrap());
    let different = made.map(|method| ((method.name().to_string(), method.settings()), method));
    different.collect::<BTreeMap<_, _>>().into_values().collect()
}

#[test]
fn assignment_is_equal_for_any_chunk_size() {
    for method in methods() {
        for graph in all_graphs() {
            for goal in goals() {
                let mut stream = graph.stream();
                let first = parts(&*method, &stream, &goal);
                assert!(first.iter().all(|&part| part < goal.parts), "{} {} {goal:?}", method.name(), graph.name);
                for chunk in [1, 1000] {
                    stream.chunk = chunk;
                    stream.saved.take();
                    assert_eq!(parts(&*method, &stream, &goal), first, "{} {} {goal:?}", method.name(), graph.name);
                }
            }
        }
    }
}

#[test]
fn node_balance_holds_for_methods_that_bound_it() {
    for method in methods() {
        let cut = ["dbh", "greedy", "hdrf", "2ps-l"].contains(&method.name());
        if cut && !method.settings().contains("hold_balance = true") {
            continue;
        }
        for graph in all_graphs() {
            for goal in goals() {
                let sizes = sizes(&parts(&*method, &graph.stream(), &goal), &goal);
                let most = bound(graph.nodes, &goal);
                assert!(sizes.iter().all(|&size| size <= most), "{} {} {goal:?} {sizes:?}", method.name(), graph.name);
            }
        }
    }
}

#[test]
fn nodes_without_edges_are_spread_evenly() {
    // A triangle and 97 nodes without edges.
    let graph = TestGraph { name: "lonely", nodes: 100, edges: vec![(3, 50), (50, 99), (99, 3)] };
    for method in methods() {
        let goal = Goal::new(10);
        let sizes = sizes(&parts(&*method, &graph.stream(), &goal), &goal);
        assert_eq!(sizes, [10; 10], "{} {}", method.name(), method.settings());
    }
}

#[test]
fn settings_are_distinct_for_all_methods() {
    // 2ps-l has degrees, balance and volume; dbh, greedy and hdrf the first two; spring degrees and volume; four
    // methods none.
    assert_eq!(methods().len(), 3 + 3 * 3 + 3 + 4);
}
