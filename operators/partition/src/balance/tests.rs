//! Compares bounds with a naive count, and checks that they hold where possible.

use super::*;
use gnnflow_data::Targets;
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_data::testing::{TestGraph, TestStream, graphs, power_law};

#[test]
fn repair_always_satisfies_the_bound_on_nodes() {
    for graph in graphs() {
        for parts in [1, 2, 7, 100] {
            let stream = graph.stream();
            let bounds = Bounds::new(&stream, &Goal::new(parts)).unwrap();
            let mut all_in_one = vec![(parts - 1) as u16; graph.nodes as usize];
            let mut loads = bounds.loads(&all_in_one);
            bounds.repair(&mut all_in_one, &mut loads, |_, _| 0);
            assert!(bounds.satisfied(&loads), "{}: {loads:?}", graph.name);
            assert_eq!(loads, bounds.loads(&all_in_one));
            let mean = f64::from(graph.nodes) / f64::from(parts);
            assert_eq!(bounds.cap(0), ((1.05 * mean) as u64).max(mean.ceil() as u64).max(u64::from(graph.nodes > 0)));
        }
    }
}

#[test]
fn repair_satisfies_the_bounds_of_all_quantities() {
    let graph = power_law(600, 4000, 3);
    let mut stream = graph.stream();
    stream.splits = (0..600).map(|v| [1, 1, 2, 3, 0][v % 5]).collect();
    stream.types = (0..600).map(|v| (v % 3) as u16).collect();
    let some = Some(1.2);
    let balance = Targets { nodes: 1.1, edges: some, train: some, val: some, test: some, types: some };
    let bounds = Bounds::new(&stream, &Goal { balance, ..Goal::new(4) }).unwrap();
    assert_eq!(bounds.len(), 8);
    assert_eq!(bounds.total(1), 240);
    let mut assignment: Vec<u16> = (0..600).map(|v| if v < 450 { 0 } else { 3 }).collect();
    let mut loads = bounds.loads(&assignment);
    assert!(!bounds.satisfied(&loads));
    bounds.repair(&mut assignment, &mut loads, |node, part| (node as u32 * 7 + part as u32) % 5);
    assert!(bounds.satisfied(&loads), "{loads:?}");
    assert_eq!(loads, bounds.loads(&assignment));
}

#[test]
fn repair_moves_nodes_with_the_smallest_loss_first() {
    let graph = power_law(10, 0, 1);
    let stream = graph.stream();
    let bounds = Bounds::new(&stream, &Goal::new(2)).unwrap();
    let mut assignment = vec![0; 10];
    let mut loads = bounds.loads(&assignment);
    // The neighbors of nodes 5 to 9 are in part 1.
    let moved = bounds.repair(&mut assignment, &mut loads, |node, part| u32::from((node >= 5) == (part == 1)));
    assert_eq!((moved, assignment), (5, vec![0, 0, 0, 0, 0, 1, 1, 1, 1, 1]));
}

/// Targets for all quantities: `nodes` for the number of nodes, `loose` for the others.
fn everything(nodes: f64, loose: f64) -> Targets {
    let some = Some(loose);
    Targets { nodes, edges: some, train: some, val: some, test: some, types: some }
}

/// Ranges of descending degree: all hubs are in the first part.
fn by_degree(graph: &TestGraph, parts: usize) -> Vec<u16> {
    let mut degrees = vec![0u32; graph.nodes as usize];
    graph.edges.iter().for_each(|&(src, dst)| [src, dst].into_iter().for_each(|end| degrees[end as usize] += 1));
    let mut order: Vec<usize> = (0..degrees.len()).collect();
    order.sort_by_key(|&node| Reverse(degrees[node]));
    let mut assignment = vec![0; degrees.len()];
    order.into_iter().enumerate().for_each(|(rank, node)| assignment[node] = (rank * parts / degrees.len()) as u16);
    assignment
}

/// Checks an assignment against the goal without [`Bounds`]. Returns a description of each broken bound.
fn naive_kept(stream: &TestStream, goal: &Goal, assignment: &[u16]) -> Vec<String> {
    let nodes = assignment.len();
    let mut broken = Vec::new();
    let mut check = |what: String, target: f64, weight: &dyn Fn(usize) -> u64| {
        let mut sums = vec![0; goal.parts as usize];
        (0..nodes).for_each(|node| sums[assignment[node] as usize] += weight(node));
        let total: u64 = sums.iter().sum();
        let heaviest = (0..nodes).map(weight).max().unwrap_or(0);
        let parts = u64::from(goal.parts);
        let cap = ((target * total as f64 / parts as f64) as u64).max(total.div_ceil(parts)).max(heaviest);
        if sums.iter().any(|&sum| sum > cap) {
            broken.push(format!("{what}: {sums:?}, at most {cap}"));
        }
    };
    let mut in_edges = vec![0u64; nodes];
    for &(src, dst) in &stream.graph.edges {
        in_edges[dst as usize] += 1;
        if stream.undirected && src != dst {
            in_edges[src as usize] += 1;
        }
    }
    let balance = &goal.balance;
    check("nodes".into(), balance.nodes, &|_| 1);
    for (split, target) in [(1, balance.train), (2, balance.val), (3, balance.test)] {
        if let Some(target) = target {
            check(format!("split {split}"), target, &|node| u64::from(stream.splits[node] == split));
        }
    }
    if let Some(target) = balance.edges {
        check("in-edges".into(), target, &|node| in_edges[node]);
    }
    if let Some(target) = balance.types {
        for kind in 0..8 {
            check(format!("type {kind}"), target, &|node| u64::from(stream.types[node] == kind));
        }
    }
    broken
}

#[test]
fn repair_of_ranges_of_descending_degree_satisfies_all_bounds() {
    for (nodes, edges, seed) in [(600u32, 4000, 3), (1000, 8000, 2), (3000, 40_000, 7), (2000, 5000, 11)] {
        for undirected in [false, true] {
            let graph = power_law(nodes, edges, seed);
            let mut stream = graph.stream();
            stream.undirected = undirected;
            let draw = |node: u32, below: u64| Key::new(seed, Purpose::Partition).below(u64::from(node), below);
            stream.splits = (0..nodes).map(|node| draw(node, 4) as u8).collect();
            stream.types = (0..nodes).map(|node| draw(node + nodes, 3) as u16).collect();
            for parts in [2, 4, 8] {
                for (of_nodes, loose) in [(1.0, 1.2), (1.01, 1.1), (1.05, 1.05)] {
                    let goal = Goal { balance: everything(of_nodes, loose), ..Goal::new(parts) };
                    let bounds = Bounds::new(&stream, &goal).unwrap();
                    for mut assignment in [by_degree(&graph, parts as usize), vec![0; nodes as usize]] {
                        let mut loads = bounds.loads(&assignment);
                        assert!(!bounds.satisfied(&loads) && !naive_kept(&stream, &goal, &assignment).is_empty());
                        bounds.repair(&mut assignment, &mut loads, |node, part| (node as u32 * 7 + part as u32) % 5);
                        assert_eq!(loads, bounds.loads(&assignment));
                        let broken = naive_kept(&stream, &goal, &assignment);
                        assert_eq!(broken.is_empty(), bounds.satisfied(&loads));
                        // A hub with nearly a part's share leaves capacity for the lightest nodes at most.
                        let hub = (0..nodes as usize).map(|node| bounds.weight(4, node)).max().unwrap();
                        let hopeless = 4 * u64::from(parts) * hub > 3 * bounds.total(4);
                        let case = format!("{nodes} nodes in {parts}, {of_nodes} {loose} {undirected}");
                        assert!(broken.is_empty() || hopeless, "{case}: {broken:?}");
                        assert!(bounds.excess(&loads) < 0.05, "{case}: {broken:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn exchange_keeps_node_counts_and_lowers_the_excess() {
    // No assignment satisfies these bounds: every heavy node has the same type.
    let graph = power_law(400, 6000, 5);
    let mut stream = graph.stream();
    stream.types = (0..400).map(|node| u16::from(node < 40)).collect();
    for target in [1.0, 1.02, 1.3] {
        let goal = Goal { balance: everything(1.0, target), ..Goal::new(7) };
        let bounds = Bounds::new(&stream, &goal).unwrap();
        let mut assignment = by_degree(&graph, 7);
        let mut loads = bounds.loads(&assignment);
        let (before, excess) = (loads.clone(), bounds.excess(&loads));
        let swapped = bounds.exchange(&mut assignment, &mut loads, &|_, _| 0);
        assert!(swapped > 0 && bounds.excess(&loads) < excess);
        assert!((0..7).all(|part| bounds.load(&loads, 0, part) == bounds.load(&before, 0, part)));
        assert_eq!(loads, bounds.loads(&assignment));
    }
}

#[test]
fn exchange_prefers_nodes_with_the_smallest_loss() {
    // Two parts of 20. Part 0 has all ten nodes of split 1; the odd ones have their neighbors in part 1.
    let graph = power_law(40, 0, 1);
    let mut stream = graph.stream();
    stream.splits = (0..40).map(|node| u8::from(node < 10)).collect();
    let balance = Targets { nodes: 1.0, train: Some(1.0), ..Targets::default() };
    let bounds = Bounds::new(&stream, &Goal { balance, ..Goal::new(2) }).unwrap();
    let mut assignment: Vec<u16> = (0..40).map(|node| u16::from(node >= 20)).collect();
    let mut loads = bounds.loads(&assignment);
    let moved =
        bounds.repair(&mut assignment, &mut loads, |node, part| u32::from((node < 10 && node % 2 == 1) == (part == 1)));
    assert!(moved > 0 && bounds.satisfied(&loads));
    assert!((0..10).all(|node| assignment[node] == node as u16 % 2), "{assignment:?}");
}
