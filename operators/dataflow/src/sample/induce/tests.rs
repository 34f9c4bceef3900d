//! Induced subgraphs on one worker and on several, compared with a naive implementation; with counts and weights.

use std::sync::{Mutex, mpsc};

use gnnflow_data::rng::{Key, Permutation, Purpose};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::InputHandle;
use timely::dataflow::operators::Input;
use timely::dataflow::operators::core::Inspect;
use timely::dataflow::operators::vec::Map;

use super::*;
use crate::storage::Place;
use crate::testing::{Adjacency, book, edge, local, random_graph};
use gnnflow_kernels::block::Block;

const ALL: Columns = Columns { types: true, weights: true, ids: true };
const STEPS: u32 = 3;
/// Subgraphs that are counted before others are weighed by the counts.
const COUNTED: u32 = 2;

/// The list of a batch: some nodes of the graph.
fn list(nodes: u32, key: BatchKey) -> Vec<u32> {
    let root = Key::new(u64::from(key.step), Purpose::Shuffle).fold(u64::from(key.partition));
    let order = Permutation::new(root, u64::from(nodes));
    (0..u64::from(nodes) / 3).map(|i| order.at(i) as u32).collect()
}

/// All batches, in order.
fn keys() -> impl Iterator<Item = BatchKey> {
    (0..STEPS).flat_map(|step| (0..4).map(move |partition| BatchKey { epoch: 0, step, partition }))
}

/// The edges that a worker holds, and that a batch sees.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Edges {
    Partitioned,
    Replicated,
    /// A batch sees in-edges of its own partition's nodes only.
    PartitionViews,
}

/// The blocks of all batches, in order; with `weigh`, weighed by counts of the first steps' subgraphs.
fn run(graph: &Adjacency, columns: Columns, weigh: bool, workers: usize, edges: Edges) -> Vec<(BatchKey, Block)> {
    let graph = graph.clone();
    let (send, receive) = mpsc::channel();
    let send = Mutex::new(send);
    timely::execute(timely::Config::process(workers), move |worker| {
        let (index, send) = (worker.index(), send.lock().unwrap().clone());
        let nodes = graph.len() as u32;
        let local = local(&graph, &book(nodes, 4), workers, index, edges == Edges::Replicated);
        let local = Arc::new(if edges == Edges::PartitionViews { local.into_partition_views() } else { local });
        let counts = Rc::new(RefCell::new(SubgraphCounts::new(local.clone(), &Place::Memory).unwrap()));
        let hosted = local.placement().parts_of(index);
        let mut pass = |norm: Norm, steps: u32, send: Option<mpsc::Sender<(BatchKey, Block)>>| {
            let mut input = InputHandle::<u64, CapacityContainerBuilder<Vec<BatchKey>>>::new_with_builder();
            worker.dataflow::<u64, _, _>(|scope| {
                let by = InduceBy {
                    graph: local.clone(),
                    columns,
                    norm,
                    pool: CompactorPool::default(),
                    meter: Rc::default(),
                };
                let batches = scope.input_from(&mut input).map(move |key| MiniBatch::new(key, list(nodes, key)));
                batches.induce(by).inspect(move |batch| {
                    assert_eq!(batch.blocks.len(), 1);
                    assert!(edges != Edges::PartitionViews || batch.rounds == 0);
                    send.iter().for_each(|send| send.send((batch.key, batch.blocks[0].clone())).unwrap());
                });
            });
            for step in 0..steps {
                input.advance_to(step.into());
                for partition in hosted.clone() {
                    let key = BatchKey { epoch: 0, step, partition: partition as u32 };
                    input.send(key);
                }
            }
            input.close();
            while worker.step_or_park(None) {}
        };
        if weigh {
            pass(Norm::Count(counts.clone()), COUNTED, None);
        }
        pass(if weigh { Norm::Weigh(counts) } else { Norm::None }, STEPS, Some(send));
    })
    .unwrap();
    let mut all: Vec<_> = receive.into_iter().collect();
    all.sort_by_key(|(key, _)| *key);
    all
}

/// Whether a batch of `key` sees the in-edges of `node`.
fn sees(edges: Edges, key: BatchKey, node: u32) -> bool {
    edges != Edges::PartitionViews || book(150, 4).range(key.partition as usize).contains(&u64::from(node))
}

/// A naive implementation.
fn naive(graph: &Adjacency, edges: Edges, key: BatchKey, weight: impl Fn(u32, usize) -> f32) -> Block {
    let (offsets, list) = (book(graph.len() as u32, 4).offsets().to_vec(), list(graph.len() as u32, key));
    let (mut indptr, mut indices) = (vec![0], vec![]);
    let (mut types, mut weights, mut ids) = (vec![], vec![], vec![]);
    for &node in &list {
        let part = offsets.partition_point(|&start| start <= u64::from(node)) - 1;
        let before: usize = (offsets[part] as usize..node as usize).map(|v| graph[v].len()).sum();
        for (at, source) in graph[node as usize].iter().enumerate().filter(|_| sees(edges, key, node)) {
            if let Some(position) = list.iter().position(|listed| listed == source) {
                indices.push(position as u32);
                types.push(edge(node, at).1);
                weights.push(weight(node, at));
                ids.push((before + at) as u64);
            }
        }
        indptr.push(indices.len() as u32);
    }
    let all = list.len() as u32;
    Block::new(all, all, indptr, indices).with_edge_types(types).with_edge_weights(weights).with_edge_ids(ids)
}

/// Workers and edges of other runs with the results of the first.
const RUNS: [&[(usize, Edges)]; 2] = [
    &[(1, Edges::Partitioned), (2, Edges::Partitioned), (4, Edges::Partitioned), (2, Edges::Replicated)],
    &[(1, Edges::PartitionViews), (2, Edges::PartitionViews), (4, Edges::PartitionViews)],
];

#[test]
fn subgraphs_equal_a_naive_implementation_at_1_2_and_4_workers() {
    let graph = random_graph(150, 9);
    for runs in RUNS {
        let expected = |key| naive(&graph, runs[0].1, key, |node, at| edge(node, at).0);
        let expected: Vec<_> = keys().map(|key| (key, expected(key))).collect();
        for &(workers, edges) in runs {
            assert!(run(&graph, ALL, false, workers, edges) == expected, "{workers} {edges:?}");
            let bare = run(&graph, Columns::default(), false, workers, edges);
            assert!(bare.iter().zip(&expected).all(|((_, bare), (_, full))| bare.indices() == full.indices()));
        }
    }
}

#[test]
fn weights_come_from_counts_that_do_not_depend_on_who_counts() {
    let graph = random_graph(150, 9);
    for runs in RUNS {
        let edges = runs[0].1;
        let counted: Vec<(BatchKey, Vec<u32>)> =
            keys().filter(|key| key.step < COUNTED).map(|key| (key, list(150, key))).collect();
        let has = |v: u32| counted.iter().filter(|(key, list)| list.contains(&v) && sees(edges, *key, v)).count();
        let both = |u: u32, v: u32| {
            counted.iter().filter(|(key, list)| list.contains(&u) && list.contains(&v) && sees(edges, *key, v)).count()
        };
        let weight = |node: u32, at: usize| {
            let row = &graph[node as usize];
            let seen = has(node).max(1) as f64 / row.len() as f64;
            (seen / both(row[at], node).max(1) as f64) as f32
        };
        let expected: Vec<_> = keys().map(|key| (key, naive(&graph, edges, key, weight))).collect();
        for &(workers, edges) in runs {
            assert!(run(&graph, ALL, true, workers, edges) == expected, "{workers} {edges:?}");
        }
    }
}

#[test]
fn an_empty_list_induces_an_empty_block() {
    let block = assemble_listed(0, |_| unreachable!("no node"), Columns::default());
    assert_eq!((block.num_dst(), block.num_src(), block.num_edges()), (0, 0, 0));
}
