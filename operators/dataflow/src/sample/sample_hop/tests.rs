//! Hops on one worker and on several: the same bits, with every column.

use std::sync::{Mutex, mpsc};

use gnnflow_data::rng::Permutation;
use timely::dataflow::operators::core::Inspect;
use timely::dataflow::operators::vec::ToStream;

use gnnflow_data::rng::{Key, Purpose};

use super::*;
use crate::testing::{Adjacency, book, edge, local, random_graph};
use gnnflow_kernels::block::Block;
use gnnflow_kernels::sample::{Draw, EdgeFanout, Fanout, Importance, PerEdgeStrategy, SquaredNorms};

const ALL: Columns = Columns { types: true, weights: true, ids: true };
const STEPS: u32 = 3;

/// A sampled batch, as plain data.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    seeds: Vec<u32>,
    nodes: Vec<u32>,
    trees: Vec<u32>,
    times: Vec<i64>,
    blocks: Vec<Block>,
}

/// All batches of a run on `workers` workers, by step and partition.
fn run(
    graph: &Adjacency,
    strategies: &[Strategy],
    columns: Columns,
    workers: usize,
    replicated: bool,
) -> Vec<(BatchKey, Seen)> {
    let (graph, strategies) = (graph.clone(), strategies.to_vec());
    let (send, receive) = mpsc::channel();
    let send = Mutex::new(send);
    timely::execute(timely::Config::process(workers), move |worker| {
        let (index, send) = (worker.index(), send.lock().unwrap().clone());
        let book = book(graph.len() as u32, 4);
        let local = Arc::new(local(&graph, &book, workers, index, replicated));
        let meter = Rc::new(Meter::default());
        let counted = meter.clone();
        worker.dataflow::<u64, _, _>(|scope| {
            let batch = |part: usize, step: u32| {
                let (range, root) = (local.range(part), Key::new(u64::from(step), Purpose::Shuffle));
                let order = Permutation::new(root, u64::from(range.end - range.start));
                let seeds: Vec<u32> = (0..order.len().min(9)).map(|i| range.start + order.at(i) as u32).collect();
                let times = (0..seeds.len() as u64).map(|i| root.below(i, 100) as i64 - 40).collect();
                let key = BatchKey { epoch: 4, step, partition: part as u32 * 10 + step };
                let hidden = if step == 1 { hidden(&graph, &seeds) } else { Excluded::default() };
                MiniBatch::new(key, seeds).with_seed_times(times).without(hidden)
            };
            let parts = local.placement().parts_of(index);
            let batches: Vec<MiniBatch> =
                parts.flat_map(|part| (0..STEPS).map(move |step| (part, step))).map(|(p, s)| batch(p, s)).collect();
            let mut stream = batches.to_stream(scope);
            let pool = CompactorPool::default();
            for (hop, strategy) in strategies.iter().enumerate() {
                stream = stream.sample_hop(Hop {
                    graph: local.clone(),
                    seed: 7,
                    hop: hop as u32,
                    strategy: strategy.clone(),
                    columns,
                    last: hop + 1 == strategies.len(),
                    pool: pool.clone(),
                    meter: meter.clone(),
                });
            }
            stream.inspect(move |batch| {
                let seen = Seen {
                    seeds: batch.nodes[..batch.num_seeds].to_vec(),
                    nodes: batch.nodes.clone(),
                    trees: batch.trees.clone(),
                    times: batch.seed_times.clone(),
                    blocks: batch.blocks.clone(),
                };
                send.send((batch.key, seen)).unwrap();
            });
        });
        while worker.step_or_park(None) {}
        assert!(
            workers > 1 && !replicated || counted.messages() == 0,
            "a worker with the whole topology sends no request"
        );
    })
    .unwrap();
    let mut all: Vec<_> = receive.into_iter().collect();
    all.sort_by_key(|(key, _)| *key);
    all
}

/// Every other in-edge of the seeds, and all that are parallel and of the same type.
fn hidden(graph: &Adjacency, seeds: &[u32]) -> Excluded {
    let of = |&to: &u32| {
        let sources = graph[to as usize].iter().enumerate().step_by(2);
        sources.map(move |(i, &from)| EdgeName { to, from, edge_type: edge(to, i).1 })
    };
    Excluded::new(seeds.iter().flat_map(of).collect())
}

#[test]
fn what_a_batch_must_not_see_is_in_none_of_its_blocks() {
    let graph = random_graph(200, 12);
    for fanout in [Fanout::All, Fanout::Uniform { k: 3 }] {
        for (workers, replicated) in [(1, false), (2, false), (4, false), (2, true)] {
            let batches = run(&graph, &[Strategy::Fanout(fanout), Strategy::Fanout(fanout)], ALL, workers, replicated);
            let mut taken = 0;
            for (key, batch) in batches {
                let hidden = if key.step == 1 { hidden(&graph, &batch.seeds) } else { Excluded::default() };
                for block in &batch.blocks {
                    for to in 0..block.num_dst() {
                        for e in block.indptr()[to] as usize..block.indptr()[to + 1] as usize {
                            let from = batch.nodes[block.indices()[e] as usize];
                            let edge_type = block.edge_types().unwrap()[e];
                            let name = EdgeName { to: batch.nodes[to], from, edge_type };
                            assert!(!hidden.edges().contains(&name), "{name:?}");
                            taken += usize::from(key.step == 1);
                        }
                    }
                }
            }
            assert!(taken > 50, "{taken} edges are left to be seen");
        }
    }
}

fn per_edge(draw: Draw, fanouts: EdgeFanout, temporal: bool) -> Strategy {
    Strategy::PerEdge(PerEdgeStrategy { draw, fanouts, temporal })
}

#[test]
fn every_choice_has_the_same_bits_at_1_2_and_4_workers_in_both_topologies() {
    let graph = random_graph(200, 12);
    let by_type = || EdgeFanout::ByType(vec![2, 0, -1]);
    let mut norms = SquaredNorms::new(200);
    norms.add(&local(&graph, &book(200, 4), 1, 0, false).view(), 0..200);
    let importance = Arc::new(Importance::new(&norms));
    let cases = [
        vec![Strategy::Fanout(Fanout::Uniform { k: 3 }), Strategy::Fanout(Fanout::All)],
        vec![
            per_edge(Draw::Weighted, EdgeFanout::Each(3), false),
            per_edge(Draw::WeightedWithReplacement, EdgeFanout::Each(4), false),
        ],
        vec![per_edge(Draw::Labor, EdgeFanout::Each(3), false), per_edge(Draw::Labor, EdgeFanout::Each(2), false)],
        vec![Strategy::Layer(15), Strategy::Layer(40)],
        vec![Strategy::Importance(15, importance.clone()), Strategy::Importance(40, importance)],
        vec![per_edge(Draw::Uniform, by_type(), false), per_edge(Draw::Weighted, by_type(), false)],
        vec![per_edge(Draw::Uniform, EdgeFanout::Each(3), true), per_edge(Draw::Last, EdgeFanout::Each(2), true)],
        vec![per_edge(Draw::Weighted, by_type(), true), per_edge(Draw::Uniform, EdgeFanout::Each(-1), true)],
    ];
    for strategies in cases {
        for columns in [Columns::default(), Columns { types: true, ..Columns::default() }, ALL] {
            let one = run(&graph, &strategies, columns, 1, false);
            assert_eq!(one.len(), 4 * STEPS as usize);
            for (workers, replicated) in [(2, false), (4, false), (2, true)] {
                assert!(run(&graph, &strategies, columns, workers, replicated) == one, "{columns:?} on {workers}");
            }
        }
    }
}

#[test]
fn columns_belong_to_the_sampled_edges() {
    let graph = random_graph(120, 9);
    let offsets = book(120, 4).offsets().to_vec();
    let strategies = [Strategy::Fanout(Fanout::Uniform { k: 4 }), per_edge(Draw::Uniform, EdgeFanout::Each(3), true)];
    for strategies in [&strategies[..1], &strategies[1..]] {
        for (_, batch) in run(&graph, strategies, ALL, 2, false) {
            let block = &batch.blocks[0];
            let (ids, weights, types) =
                (block.edge_ids().unwrap(), block.edge_weights().unwrap(), block.edge_types().unwrap());
            for (dst, &node) in batch.seeds.iter().enumerate() {
                let part = offsets.partition_point(|&start| start <= u64::from(node)) - 1;
                let before: usize = (offsets[part] as usize..node as usize).map(|v| graph[v].len()).sum();
                for e in block.indptr()[dst] as usize..block.indptr()[dst + 1] as usize {
                    let at = ids[e] as usize - before;
                    let (weight, edge_type, time) = edge(node, at);
                    assert_eq!((weights[e], types[e]), (weight, edge_type));
                    assert_eq!(batch.nodes[block.indices()[e] as usize], graph[node as usize][at]);
                    assert!(batch.trees.is_empty() || time < batch.times[dst]);
                }
            }
        }
    }
}

#[test]
fn replies_with_columns_larger_than_a_message_arrive_complete() {
    let nodes = 50_000;
    let mut graph: Adjacency = vec![vec![]; nodes as usize];
    graph[nodes as usize - 1] = (0..nodes).collect(); // a hub: 900 KB of samples
    graph[0] = vec![nodes - 1];
    let strategies = [Strategy::Fanout(Fanout::All), Strategy::Fanout(Fanout::All)];
    let one = run(&graph, &strategies, ALL, 1, false);
    assert!(run(&graph, &strategies, ALL, 2, false) == one);
}
