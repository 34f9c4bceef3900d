use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use gnnflow_data::rng::Permutation;
use gnnflow_data::{Features, Halo};
use timely::dataflow::operators::core::Inspect;
use timely::dataflow::operators::vec::{Map, ToStream};

use super::super::cache::Policy;
use super::*;
use crate::batch::halo::HaloRows;
use crate::batch::mini_batch::BatchKey;
use crate::sample::sample_hop::{CompactorPool, Hop, SampleHop, Strategy};
use crate::storage::RowReader;
use crate::testing::{Adjacency, TellingRows, book, local, random_graph};
use gnnflow_kernels::matrix::{Number, Values};
use gnnflow_kernels::sample::{Columns, Fanout};

/// A sampled and fetched batch, as plain data.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    nodes: Vec<u32>,
    blocks: Vec<(Vec<u32>, Vec<u32>)>,
    features: Vec<f32>,
    degrees: Vec<u32>,
}

fn seen(batch: &MiniBatch) -> Seen {
    let Values::F32(features) = &batch.features.values else { panic!("features are f32 here") };
    Seen {
        nodes: batch.nodes.clone(),
        blocks: batch.blocks.iter().map(|b| (b.indptr().to_vec(), b.indices().to_vec())).collect(),
        features: features.clone(),
        degrees: batch.degrees.clone(),
    }
}

/// Distinct seeds of a batch, all of its partition; none for an empty partition.
fn seeds(range: std::ops::Range<u32>, step: u32) -> Vec<u32> {
    let key = gnnflow_data::rng::Key::new(u64::from(step), gnnflow_data::rng::Purpose::Shuffle);
    let order = Permutation::new(key, u64::from(range.end - range.start));
    (0..order.len().min(9)).map(|i| range.start + order.at(i) as u32).collect()
}

const STEPS: u32 = 3;
const DIM: usize = 5;

/// What a worker has of the rows of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Foreign {
    Nothing,
    /// Those of the halo.
    Halo,
    /// All.
    Shared,
}

/// All batches of a run on `workers` workers, by step and partition.
fn run(
    graph: &Adjacency,
    parts: usize,
    fanouts: &[Fanout],
    workers: usize,
    replicated: bool,
    cache: Option<(Policy, usize)>,
    foreign: Foreign,
) -> (Vec<(BatchKey, Seen)>, [u64; 2]) {
    run_in(graph, parts, fanouts, workers, replicated, cache, foreign, false)
}

/// [`run`], whose local rows are read by the operator or by the receiver of each batch.
#[expect(clippy::too_many_arguments, reason = "the options of a fetch")]
fn run_in(
    graph: &Adjacency,
    parts: usize,
    fanouts: &[Fanout],
    workers: usize,
    replicated: bool,
    cache: Option<(Policy, usize)>,
    foreign: Foreign,
    leaves_local: bool,
) -> (Vec<(BatchKey, Seen)>, [u64; 2]) {
    let (graph, fanouts) = (graph.clone(), fanouts.to_vec());
    let (send, receive) = mpsc::channel();
    let send = std::sync::Mutex::new(send);
    let nodes = graph.len() as u32;
    let traffic = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let total = traffic.clone();
    timely::execute(timely::Config::process(workers), move |worker| {
        let (index, send) = (worker.index(), send.lock().unwrap().clone());
        let local = Arc::new(local(&graph, &book(nodes, parts), workers, index, replicated));
        let meter = Rc::new(Meter::default());
        let mut source = TellingRows::new(nodes, DIM);
        source.shared = foreign == Foreign::Shared;
        let source = Arc::new(source);
        let halo = (foreign == Foreign::Halo).then(|| {
            let of = |part| halo_of(&graph, local.range(part), &source);
            let halos = local.placement().parts_of(index).map(of).collect();
            Arc::new(HaloRows::new(halos, |node| !local.hosts(node)).unwrap())
        });
        let rows = FeatureView { source, number: Number::F32, dim: DIM, packed: None, halo };
        let counted = meter.clone();
        worker.dataflow::<u64, _, _>(|scope| {
            let batches: Vec<MiniBatch> = (local.placement().parts_of(index))
                .flat_map(|part| {
                    let range = local.range(part);
                    (0..STEPS).map(move |step| {
                        let key = BatchKey { epoch: 4, step, partition: part as u32 * 10 + step };
                        MiniBatch::new(key, seeds(range.clone(), step))
                    })
                })
                .collect();
            let mut stream = batches.to_stream(scope);
            let pool = CompactorPool::default();
            for (hop, fanout) in fanouts.iter().enumerate() {
                stream = stream.sample_hop(Hop {
                    graph: local.clone(),
                    seed: 7,
                    hop: hop as u32,
                    strategy: Strategy::Fanout(*fanout),
                    columns: Columns::default(),
                    last: hop + 1 == fanouts.len(),
                    pool: pool.clone(),
                    meter: meter.clone(),
                });
            }
            let view = rows.clone();
            let from = FetchFrom {
                graph: local.clone(),
                rows: Rc::new(move |_| rows.clone()),
                degrees: true,
                cache: cache.map(|(policy, rows)| {
                    let bytes = RowCache::bytes(rows, 4 * DIM);
                    Rc::new(RefCell::new(RowCache::new(policy, bytes, 4 * DIM, &local, |_| true)))
                }),
                meter: meter.clone(),
            };
            let fetched = match leaves_local {
                false => stream.fetch_rows(from),
                true => stream.fetch_remote_rows(from).map(move |mut batch| {
                    view.complete(&mut batch, index);
                    batch
                }),
            };
            fetched.inspect(move |batch| send.send((batch.key, seen(batch))).unwrap());
        });
        while worker.step_or_park(None) {}
        assert!(workers > 1 || counted.messages() == 0, "a single worker sends no message");
        total[0].fetch_add(counted.messages(), Ordering::Relaxed);
        total[1].fetch_add(counted.bytes(), Ordering::Relaxed);
    })
    .unwrap();
    let mut all: Vec<_> = receive.into_iter().collect();
    all.sort_by_key(|(key, _)| *key);
    (all, [0, 1].map(|i: usize| traffic[i].load(Ordering::Relaxed)))
}

/// The halo of the nodes in `range`: in-neighbors outside of it, and their rows.
fn halo_of(graph: &Adjacency, range: std::ops::Range<u32>, rows: &TellingRows) -> Halo {
    let mut nodes: Vec<u32> = range.clone().flat_map(|node| graph[node as usize].clone()).collect();
    nodes.retain(|node| !range.contains(node));
    nodes.sort_unstable();
    nodes.dedup();
    let values: Vec<f32> = nodes.iter().flat_map(|&node| bytemuck::cast_slice(rows.row(node)).to_vec()).collect();
    Halo::new(nodes, Some(Features::from_f32(DIM, values)))
}

#[test]
fn batches_have_the_same_bits_at_1_2_and_4_workers_in_both_topologies() {
    let graph = random_graph(200, 12);
    for fanouts in [
        vec![Fanout::All],
        vec![Fanout::Uniform { k: 3 }, Fanout::Uniform { k: 2 }, Fanout::All],
        vec![Fanout::UniformWithReplacement { k: 4 }, Fanout::Uniform { k: 1 }],
    ] {
        let (one, _) = run(&graph, 4, &fanouts, 1, false, None, Foreign::Nothing);
        assert_eq!(one.len(), 4 * STEPS as usize);
        assert_eq!(run_in(&graph, 4, &fanouts, 1, false, None, Foreign::Nothing, true).0, one);
        for (workers, replicated) in [(2, false), (4, false), (2, true), (3, true)] {
            for cache in [None, Some((Policy::Degree, 30)), Some((Policy::Frequency, 9)), Some((Policy::Dynamic, 5))] {
                for foreign in [Foreign::Nothing, Foreign::Halo, Foreign::Shared] {
                    for leaves_local in [false, true] {
                        let (some, _) = run_in(&graph, 4, &fanouts, workers, replicated, cache, foreign, leaves_local);
                        assert_eq!(some, one, "{fanouts:?} on {workers} with {cache:?} and {foreign:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn rows_degrees_and_all_neighbors_equal_the_graph() {
    let graph = random_graph(120, 9);
    for (_, batch) in run(&graph, 3, &[Fanout::All, Fanout::All], 2, false, None, Foreign::Nothing).0 {
        for (i, &node) in batch.nodes.iter().enumerate() {
            let expected: Vec<f32> = (0..DIM).map(|column| node as f32 + column as f32 / 1000.0).collect();
            assert_eq!(batch.features[i * DIM..(i + 1) * DIM], expected);
            let loops = graph[node as usize].iter().filter(|&&n| n == node).count();
            assert_eq!(batch.degrees[i] as usize, graph[node as usize].len() - loops);
        }
        for (indptr, indices) in &batch.blocks {
            for dst in 0..indptr.len() - 1 {
                let sources = &indices[indptr[dst] as usize..indptr[dst + 1] as usize];
                let sources: Vec<u32> = sources.iter().map(|&i| batch.nodes[i as usize]).collect();
                assert_eq!(sources, graph[batch.nodes[dst] as usize]);
            }
        }
    }
}

#[test]
fn replies_larger_than_a_message_arrive_complete() {
    let nodes = 100_000;
    let mut graph: Adjacency = vec![vec![]; nodes as usize];
    graph[nodes as usize - 1] = (0..nodes).collect(); // a hub: 400 KB of samples
    graph[0] = vec![nodes - 1];
    let fanouts = [Fanout::All, Fanout::All];
    let (one, _) = run(&graph, 2, &fanouts, 1, false, None, Foreign::Nothing);
    for foreign in [Foreign::Nothing, Foreign::Halo, Foreign::Shared] {
        assert_eq!(run(&graph, 2, &fanouts, 2, false, None, foreign).0, one);
    }
}

#[test]
fn one_hop_requests_no_rows_that_the_halo_has() {
    let graph = random_graph(200, 12);
    // From the second step on, degrees are known or requested. Rows are never requested.
    let hop = [Fanout::All];
    let (without, [messages, bytes]) = run(&graph, 2, &hop, 2, true, None, Foreign::Nothing);
    let (with, [fewer, less]) = run(&graph, 2, &hop, 2, true, None, Foreign::Halo);
    assert_eq!(with, without);
    let foreign: Vec<Vec<u32>> = (with.iter())
        .map(|(key, batch)| {
            let own = if key.partition < 10 { 0..100 } else { 100..200 };
            batch.nodes.iter().copied().filter(|node| !own.contains(node)).collect()
        })
        .collect();
    let rows: usize = foreign.iter().map(Vec::len).sum();
    assert!(rows > 0 && messages > 0 && fewer <= messages, "{fewer} messages of {messages}");
    // Only ids and degrees are sent, four bytes each, of nodes without a known degree.
    assert!(less as usize + 4 * DIM * rows <= bytes as usize, "{less} bytes of {bytes} for {rows} rows");

    // Two hops reach beyond the halo: fewer rows, but some.
    let hops = [Fanout::Uniform { k: 2 }, Fanout::Uniform { k: 2 }];
    let (without, [_, bytes]) = run(&graph, 4, &hops, 4, true, None, Foreign::Nothing);
    let (with, [_, less]) = run(&graph, 4, &hops, 4, true, None, Foreign::Halo);
    assert_eq!(with, without);
    assert!(0 < less && less < bytes, "{less} bytes of {bytes}");
}

#[test]
fn shared_rows_are_not_requested() {
    let graph = random_graph(200, 12);
    let hops = [Fanout::Uniform { k: 3 }, Fanout::Uniform { k: 2 }];
    let (without, [messages, bytes]) = run(&graph, 4, &hops, 4, true, None, Foreign::Nothing);
    let (with, [_, less]) = run(&graph, 4, &hops, 4, true, None, Foreign::Shared);
    assert_eq!(with, without);
    // Requests and replies have headers, ids and degrees; and replies without sharing have rows.
    let book = book(200, 4);
    let own = |key: &BatchKey| book.range(key.partition as usize / 10);
    let foreign: usize = with
        .iter()
        .map(|(key, batch)| batch.nodes.iter().filter(|&&node| !own(key).contains(&node.into())).count())
        .sum();
    // A message is padded to 8 bytes.
    let rows = 4 * (DIM * foreign) as u64;
    assert!(rows > 0 && (bytes - less).abs_diff(rows) <= 8 * messages, "{less} bytes of {bytes}, {foreign} rows");
}
