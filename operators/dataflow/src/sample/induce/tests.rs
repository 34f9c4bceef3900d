//! Induced subgraphs on one worker and on several, compared with a naive implementation; with counts and weights.

use std::sync::{Mutex, mpsc};

use gnnflow_data::rng::{Key, Permutation, Purpose};
use timely::dataflow::operators::core::Inspect;
use timely::dataflow::operators::vec::ToStream;

use super::*;
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

fn keys() -> impl Iterator<Item = BatchKey> {
    (0..4)
        .flat_map(|partition| (0..STEPS).map(move |step| BatchKey { epoch: 0, step, partition: partition * 8 + step }))
}

/// The blocks of all batches, in order; with `weigh`, weighed by counts of the first steps' subgraphs.
fn run(graph: &Adjacency, columns: Columns, weigh: bool, workers: usize, replicated: bool) -> Vec<(BatchKey, Block)> {
    let graph = graph.clone();
    let (send, receive) = mpsc::channel();
    let send = Mutex::new(send);
    timely::execute(timely::Config::process(workers), move |worker| {
        let (index, send) = (worker.index(), send.lock().unwrap().clone());
        let nodes = graph.len() as u32;
        let local = Arc::new(local(&graph, &book(nodes, 4), workers, index, replicated));
        let counts = Rc::new(RefCell::new(SubgraphCounts::new(local.clone())));
        let hosted = local.placement().parts_of(index);
        let mut pass = |norm: Norm, steps: u32, send: Option<mpsc::Sender<(BatchKey, Block)>>| {
            let hosted = hosted.clone();
            worker.dataflow::<u64, _, _>(|scope| {
                let mine = keys().filter(|key| hosted.contains(&(key.partition as usize / 8)) && key.step < steps);
                let batches: Vec<MiniBatch> = mine.map(|key| MiniBatch::new(key, list(nodes, key))).collect();
                let by = InduceBy {
                    graph: local.clone(),
                    columns,
                    norm,
                    pool: CompactorPool::default(),
                    meter: Rc::default(),
                };
                batches.to_stream(scope).induce(by).inspect(move |batch| {
                    assert_eq!(batch.blocks.len(), 1);
                    send.iter().for_each(|send| send.send((batch.key, batch.blocks[0].clone())).unwrap());
                });
            });
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

/// A naive implementation.
fn naive(graph: &Adjacency, list: &[u32], weight: impl Fn(u32, usize) -> f32) -> Block {
    let offsets = book(graph.len() as u32, 4).offsets().to_vec();
    let (mut indptr, mut indices) = (vec![0], vec![]);
    let (mut types, mut weights, mut ids) = (vec![], vec![], vec![]);
    for &node in list {
        let part = offsets.partition_point(|&start| start <= u64::from(node)) - 1;
        let before: usize = (offsets[part] as usize..node as usize).map(|v| graph[v].len()).sum();
        for (at, source) in graph[node as usize].iter().enumerate() {
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

#[test]
fn subgraphs_equal_a_naive_implementation_at_1_2_and_4_workers() {
    let graph = random_graph(150, 9);
    let one = run(&graph, ALL, false, 1, false);
    assert_eq!(one.len(), 4 * STEPS as usize);
    for (key, block) in &one {
        assert!(*block == naive(&graph, &list(150, *key), |node, at| edge(node, at).0), "{key:?}");
    }
    for (workers, replicated) in [(2, false), (4, false), (2, true)] {
        assert!(run(&graph, ALL, false, workers, replicated) == one, "{workers}");
        let bare = run(&graph, Columns::default(), false, workers, replicated);
        assert!(bare.iter().zip(&one).all(|((_, bare), (_, full))| bare.indices() == full.indices()));
    }
}

#[test]
fn weights_come_from_counts_that_do_not_depend_on_who_counts() {
    let graph = random_graph(150, 9);
    let counted: Vec<Vec<u32>> = keys().filter(|key| key.step < COUNTED).map(|key| list(150, key)).collect();
    let has = |node: u32| counted.iter().filter(|list| list.contains(&node)).count();
    let both = |u: u32, v: u32| counted.iter().filter(|list| list.contains(&u) && list.contains(&v)).count();
    let weight = |node: u32, at: usize| {
        let row = &graph[node as usize];
        let seen = has(node).max(1) as f64 / row.len() as f64;
        (seen / both(row[at], node).max(1) as f64) as f32
    };
    let one = run(&graph, ALL, true, 1, false);
    for (key, block) in &one {
        assert!(*block == naive(&graph, &list(150, *key), weight), "{key:?}");
    }
    for (workers, replicated) in [(2, false), (4, false), (2, true)] {
        assert!(run(&graph, ALL, true, workers, replicated) == one, "{workers}");
    }
}

#[test]
fn an_empty_list_induces_an_empty_block() {
    let block = assemble_listed(0, |_| unreachable!("no node"), Columns::default());
    assert_eq!((block.num_dst(), block.num_src(), block.num_edges()), (0, 0, 0));
}
