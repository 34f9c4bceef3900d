//! Neighborhoods beside a plain search, at 1, 2 and 4 workers.

use std::collections::BTreeSet;
use std::sync::Arc;

use gnnflow_data::PartitionBook;
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_dataflow::graph::local_graph::{InEdges, LocalGraph, OwnedInEdges};
use gnnflow_dataflow::graph::placement::Placement;
use gnnflow_dataflow::sample::own_samples::OwnSamples;
use gnnflow_kernels::sample::Columns;
use gnnflow_nn::model::Stage;

use super::reached::{Changed, Reach};
use super::read::rows_read;
use crate::collectives::tests::{PARTS, at};

const NODES: u64 = 400;

/// Returns random edges `(source, destination)`.
fn edges(undirected: bool) -> BTreeSet<(u32, u32)> {
    let key = Key::new(5, Purpose::GenerateEdges);
    let draw = |at: u64| key.below(at, NODES) as u32;
    let pairs = (0..300).map(|edge| (draw(2 * edge), draw(2 * edge + 1)));
    pairs.flat_map(|(a, b)| if undirected { vec![(a, b), (b, a)] } else { vec![(a, b)] }).collect()
}

/// Returns the graph of one of `workers` workers.
fn graph(all: &BTreeSet<(u32, u32)>, rank: usize, workers: usize) -> LocalGraph {
    let placement = Placement::new(PARTS, workers);
    let book = PartitionBook::even(NODES, placement.parts());
    let load = |part: usize| -> Result<Arc<dyn InEdges>, ()> {
        let sources = |node: u32| all.iter().filter(move |edge| edge.1 == node).map(|edge| edge.0);
        Ok(Arc::new(OwnedInEdges::from_fn(book.range(part), sources)))
    };
    LocalGraph::load(&book, placement, rank, false, load).unwrap()
}

/// The reference implementation: a row changes if one that it reads has changed.
fn expected(edges: &BTreeSet<(u32, u32)>, stages: &[Stage], degrees: bool, changed: &Changed) -> Vec<BTreeSet<u32>> {
    let mut rows: BTreeSet<u32> = changed.features.iter().copied().collect();
    let reads = |set: &BTreeSet<u32>| -> BTreeSet<u32> {
        edges.iter().filter(|(source, _)| set.contains(source)).map(|&(_, node)| node).collect()
    };
    let other_edges: BTreeSet<u32> = changed.edges.iter().copied().collect();
    let mut by_stage = Vec::new();
    for stage in stages {
        if stage.edges {
            rows.extend(reads(&rows));
            rows.extend(&other_edges);
            if degrees {
                rows.extend(reads(&other_edges));
            }
        }
        by_stage.push(rows.clone());
    }
    by_stage
}

#[test]
fn reached_nodes_are_those_of_a_plain_search() {
    let stage = |edges: bool| Stage { width: 1, edges, own: Vec::new(), reduction: None };
    let stages = [false, true, true, false, true].map(stage);
    let changed = Changed { features: vec![7, 300], edges: vec![7, 12, 150, 399] };
    for (undirected, degrees) in [(false, false), (false, true), (true, false), (true, true)] {
        let all = edges(undirected);
        let expected = expected(&all, &stages, degrees, &changed);
        assert!(expected.iter().all(|nodes| nodes.len() < NODES as usize), "some nodes are not reached");
        for workers in [1, 2, 4] {
            let (all, stages, changed) = (all.clone(), stages.clone(), changed.clone());
            let found = at(workers, move |collectives, driver| {
                let graph = graph(&all, driver.worker.index(), workers);
                let own = |nodes: &[u32]| nodes.iter().copied().filter(|&node| graph.hosts(node)).collect();
                let changed = Changed { features: own(&changed.features), edges: own(&changed.edges) };
                let reach = Reach { graph: &graph, undirected, stages: &stages, degrees };
                reach.of(driver, collectives, changed).unwrap()
            });
            for (stage, expected) in expected.iter().enumerate() {
                let nodes: Vec<u32> = found.iter().flat_map(|by_stage| by_stage[stage].clone()).collect();
                let expected: Vec<u32> = expected.iter().copied().collect();
                assert_eq!(nodes, expected, "{workers} workers, stage {stage}, {undirected}, {degrees}");
            }
        }
    }
}

/// Returns the samples of stages.
fn draw(graph: &Arc<LocalGraph>, fanouts: [i64; 4]) -> Vec<Option<OwnSamples>> {
    let of_stage = |(fanout, layer)| Some(OwnSamples::new(graph, fanout, (9, layer), Columns::default()));
    fanouts.into_iter().zip(0..).map(of_stage).collect()
}

#[test]
fn rows_read_are_those_of_a_plain_search() {
    let stages = [true, true, false, true].map(|edges| Stage { width: 1, edges, own: Vec::new(), reduction: None });
    let wanted: BTreeSet<u32> = [5, 120, 121, 399].into();
    for (undirected, fanouts) in [(false, None), (true, None), (true, Some([3, 1, 0, -1])), (false, Some([1, 2, 0, 1]))]
    {
        let all = edges(undirected);
        // The reference implementation.
        let samples = fanouts.map(|fanouts| draw(&Arc::new(graph(&all, 0, 1)), fanouts));
        let mut expected = vec![wanted.clone()];
        for (at, stage) in stages.iter().enumerate().skip(1).rev() {
            let mut rows = expected[0].clone();
            match &samples {
                _ if !stage.edges => {}
                None => {
                    rows.extend(all.iter().filter(|(_, node)| expected[0].contains(node)).map(|(source, _)| source))
                }
                Some(samples) => {
                    rows.extend(expected[0].iter().flat_map(|&node| samples[at].as_ref().unwrap().sources(node)))
                }
            }
            expected.insert(0, rows);
        }
        assert!(expected[0].len() > expected[3].len() && expected[0].len() < NODES as usize);
        for workers in [1, 2, 4] {
            let (all, stages, wanted) = (all.clone(), stages.clone(), wanted.clone());
            let found = at(workers, move |collectives, driver| {
                let graph = Arc::new(graph(&all, driver.worker.index(), workers));
                let own: Vec<u32> = wanted.iter().copied().filter(|&node| graph.hosts(node)).collect();
                let samples = fanouts.map(|fanouts| draw(&graph, fanouts));
                rows_read(driver, collectives, (&*graph, samples.as_deref()), &stages, &own).unwrap()
            });
            for (stage, expected) in expected.iter().enumerate() {
                let rows: Vec<u32> = found.iter().flat_map(|by_stage| by_stage[stage].clone()).collect();
                assert!(rows.iter().eq(expected), "{workers} workers, stage {stage}, undirected: {undirected}");
            }
        }
    }
}
