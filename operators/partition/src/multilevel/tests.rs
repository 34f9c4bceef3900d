//! Properties of `multilevel` on small graphs, for each of its three strategies.

use super::coarsen::{cluster, contract};
use super::polish::{self, Cost, CutAndCopies};
use super::*;
use crate::graph::Graph;
use gnnflow_data::Targets;
use gnnflow_data::testing::{TestGraph, TestStream, graphs, power_law};
use std::collections::{BTreeSet, HashMap};

/// Budgets in bytes for METIS on the graph, METIS on clusters, and the streamed strategy.
const MEMORIES: [u64; 3] = [1 << 30, 100_000, 2_000];

fn test_graphs() -> impl Iterator<Item = TestGraph> {
    graphs().into_iter().chain([power_law(700, 2500, 5)])
}

fn assign(stream: &TestStream, goal: &Goal) -> Vec<u16> {
    let nodes = stream.graph.nodes;
    let assignment = Multilevel.assign(stream, goal).unwrap();
    (0..u64::from(nodes)).map(|node| assignment.part(node) as u16).collect()
}

fn naive_cost(graph: &TestGraph, parts: &[u16]) -> Cost {
    let both = graph.edges.iter().flat_map(|&(u, v)| [(u, v), (v, u)]);
    let edges: BTreeSet<(u32, u32)> = both.filter(|&(u, v)| parts[u as usize] != parts[v as usize]).collect();
    let copies: BTreeSet<(u32, u16)> = edges.iter().map(|&(u, v)| (u, parts[v as usize])).collect();
    Cost { copies: copies.len() as u64, cut: edges.len() as u64 / 2 }
}

#[test]
fn memory_selects_each_of_the_three_strategies() {
    let graph = power_law(700, 2500, 5);
    let ways = MEMORIES.map(|memory| {
        let (stream, goal) = (graph.stream(), Goal { memory, ..Goal::new(4) });
        let budget = Budget::of(&stream, &goal, &Bounds::new(&stream, &goal).unwrap());
        (budget.resident, budget.direct)
    });
    assert_eq!(ways, [(true, true), (true, false), (false, false)]);
}

#[test]
fn the_limit_of_memory_never_changes_the_assignment() {
    let graph = power_law(700, 2500, 5);
    for memory in MEMORIES {
        let goal = Goal { memory, ..Goal::new(4) };
        let size = GraphSize { nodes: 700, edges: 2500, processes: 1 };
        let limit = Multilevel.needed_bytes(size, &goal);
        assert_eq!(
            assign(&graph.stream(), &Goal { limit, ..goal.clone() }),
            assign(&graph.stream(), &goal),
            "{memory}"
        );
    }
}

#[test]
fn assignment_is_balanced_and_equal_for_any_chunks_and_threads() {
    for graph in test_graphs() {
        for memory in MEMORIES {
            for parts in [1, 2, 4, 16, 300] {
                let goal = Goal { memory, ..Goal::new(parts) };
                let found = assign(&graph.stream(), &goal);
                let mut sizes = vec![0u64; parts as usize];
                found.iter().for_each(|&part| sizes[part as usize] += 1);
                let mean = f64::from(graph.nodes) / f64::from(parts);
                let bound = ((1.05 * mean) as u64).max(mean.ceil() as u64);
                assert!(sizes.iter().all(|&size| size <= bound), "{} in {parts} with {memory}: {sizes:?}", graph.name);
                let mut other = graph.stream();
                other.chunk = 1000;
                let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
                let again = pool.install(|| assign_owned(other, &goal));
                assert_eq!(found, again, "{} in {parts} with {memory}", graph.name);
            }
        }
    }
}

fn assign_owned(stream: TestStream, goal: &Goal) -> Vec<u16> {
    assign(&stream, goal)
}

#[test]
fn assignment_satisfies_all_constraints() {
    let graph = power_law(1000, 8000, 2);
    let mut stream = graph.stream();
    stream.splits = (0..1000).map(|node| (node % 4) as u8).collect();
    stream.types = (0..1000).map(|node| (node % 3) as u16).collect();
    let some = Some(1.2);
    let balance = Targets { nodes: 1.1, edges: some, train: some, val: some, test: some, types: some };
    for memory in MEMORIES {
        let goal = Goal { memory, balance, ..Goal::new(4) };
        let bounds = Bounds::new(&stream, &goal).unwrap();
        let loads = bounds.loads(&assign(&stream, &goal));
        assert!(bounds.satisfied(&loads), "with {memory}: {loads:?}");
    }
}

#[test]
fn two_components_become_two_parts() {
    let graph = graphs().into_iter().find(|graph| graph.name == "two components").unwrap();
    let parts = assign(&graph.stream(), &Goal::new(2));
    assert_eq!(naive_cost(&graph, &parts), Cost { copies: 0, cut: 0 });
}

#[test]
fn clusters_are_bounded_and_contraction_equals_a_hash_map() {
    for graph in test_graphs() {
        let whole = Graph::read(&graph.stream()).unwrap();
        for most in [1, 3, 50] {
            let (clusters, count) = cluster(&whole, most, 3, 1);
            let mut sizes = vec![0; count];
            clusters.iter().for_each(|&cluster| sizes[cluster as usize] += 1);
            assert!(sizes.iter().all(|&size| 0 < size && size <= most), "{}: {sizes:?}", graph.name);
            let mut naive: HashMap<u64, u32> = HashMap::new();
            for node in 0..whole.nodes() {
                for &other in whole.neighbors(node) {
                    let (a, b) = (clusters[node], clusters[other as usize]);
                    if a < b {
                        *naive.entry(u64::from(a) << 32 | u64::from(b)).or_default() += 1;
                    }
                }
            }
            let mut edges: Vec<(u64, u32)> = naive.into_iter().collect();
            edges.sort_unstable();
            let small = contract(&whole, &clusters, count, 1 << 20);
            assert_eq!(small, Graph::of_weighted_edges(count, &edges), "{}", graph.name);
            let thin = contract(&whole, &clusters, count, edges.len() / 8);
            assert!(thin.entries() as usize <= 2 * (edges.len() / 8 + count), "{}", graph.name);
        }
    }
}

#[test]
fn refinement_never_raises_the_cost() {
    for graph in test_graphs() {
        let whole = Graph::read(&graph.stream()).unwrap();
        for parts in [1u32, 2, 5, 40] {
            let stream = graph.stream();
            let bounds = Bounds::new(&stream, &Goal::new(parts)).unwrap();
            let mut parts_of: Vec<u16> = (0..graph.nodes).map(|node| (node % parts) as u16).collect();
            let mut loads = bounds.loads(&parts_of);
            let mut before = naive_cost(&graph, &parts_of);
            assert_eq!(polish::cost(&whole, &parts_of, parts as usize), before, "{}", graph.name);
            for _ in 0..3 {
                polish::reduce_cut(&whole, &bounds, parts as usize, &mut parts_of, &mut loads);
                let after = naive_cost(&graph, &parts_of);
                assert!(after.cut <= before.cut, "{}", graph.name);
                before = after;
            }
            let mut refinement = CutAndCopies::new(&whole, &bounds, parts as usize, &parts_of);
            for _ in 0..3 {
                let moved = refinement.pass(&mut parts_of, &mut loads);
                let after = naive_cost(&graph, &parts_of);
                assert!(after.cut <= before.cut && after.copies <= before.copies, "{}", graph.name);
                assert!(moved == 0 || after < before, "{}", graph.name);
                before = after;
            }
            assert_eq!(loads, bounds.loads(&parts_of));
        }
    }
}

#[test]
fn modularity_equals_known_values() {
    let graph = graphs().into_iter().find(|graph| graph.name == "two components").unwrap();
    let whole = Graph::read(&graph.stream()).unwrap();
    let halves: Vec<u32> = (0..10).map(|node| node / 5).collect();
    assert_eq!(coarsen::modularity(&whole, &halves, 2), 0.5);
    assert_eq!(coarsen::modularity(&whole, &[0; 10], 1), 0.0);
}

#[test]
fn by_degree_assigns_ranges_of_descending_degree() {
    assert_eq!(by_degree(6, 3, |node| [5, 1, 9, 1, 7, 1][node]), [1, 1, 0, 2, 0, 2]);
}

#[test]
fn second_run_uses_the_journal() {
    let graph = power_law(700, 2500, 5);
    for memory in MEMORIES {
        let (stream, goal) = (graph.stream(), Goal { memory, ..Goal::new(4) });
        let found = assign(&stream, &goal);
        let first = stream.passes.take().len();
        assert_eq!(assign(&stream, &goal), found);
        assert!(stream.passes.borrow().len() < first, "{:?}", stream.passes);
    }
}
