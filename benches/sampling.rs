//! Multi-hop uniform sampling with compaction and without feature fetch, as in the peers' `bench_sample.py`.
//!
//! Batches are consecutive ranges of the shuffled training nodes, distributed over the threads. gnnflow should be faster
//! than the peers. The difference is small if the graph fits in the caches, because memory latency matters less.

mod common;
#[path = "common/graph.rs"]
mod graph;

use common::Session;
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_kernels::block::Block;
use gnnflow_kernels::compact::Compactor;
use gnnflow_kernels::sample::{Csc, Fanout, Neighbors, Partitions, Replies, assemble, sample_hop, sample_neighbors};
use graph::{Graph, repeat};
use serde_json::json;

const SEED: u64 = 1;
const BATCH: usize = 1000;
const BATCHES: usize = 40;

trait Hop: Sync {
    fn hop(&self, list: &mut Vec<u32>, fanout: Fanout, key: Key, compactor: &mut Compactor) -> Block;
}

/// The fused kernel.
struct Fused<T>(T);

impl<T: Neighbors> Hop for Fused<T> {
    fn hop(&self, list: &mut Vec<u32>, fanout: Fanout, key: Key, compactor: &mut Compactor) -> Block {
        sample_hop(&self.0, list, fanout, key, compactor)
    }
}

/// Distributed sampling: owners sample, and the requester assembles the block.
struct Distributed<'a>(Partitions<'a>, usize);

impl Hop for Distributed<'_> {
    fn hop(&self, list: &mut Vec<u32>, fanout: Fanout, key: Key, compactor: &mut Compactor) -> Block {
        let Self(topology, parts) = self;
        let mut requests = vec![Vec::new(); *parts];
        list.iter().for_each(|&node| requests[topology.owner(node)].push(node));
        let serve = |nodes: &Vec<u32>| {
            let (mut counts, mut neighbors) = (Vec::new(), Vec::new());
            sample_neighbors(topology, nodes, fanout, key, &mut counts, &mut neighbors);
            (counts, neighbors)
        };
        let served: Vec<_> = requests.iter().map(serve).collect();
        let mut replies = Replies::new(*parts, u64::from(u32::MAX));
        for (owner, (counts, neighbors)) in served.iter().enumerate() {
            replies.push(owner, counts, neighbors).expect("the replies match the requests");
        }
        assemble(list, |node| replies.next(topology.owner(node)), compactor)
    }
}

fn main() {
    let mut session = Session::new("sampling");
    let graph = Graph::load(&mut session);
    session.about("seed", SEED);
    session.about("batch", BATCH as u64);
    session.about("batches", BATCHES as u64);
    let threads = session.numbers("threads", &[1, 2]);
    let csc = Csc::new(&graph.indptr, &graph.indices);
    verify(&graph, &csc);
    threads.iter().for_each(|&threads| random_reads(&mut session, &graph, threads));

    for fanouts in [&[15, 10, 5][..], &[25, 10]] {
        let uniform: Vec<Fanout> = fanouts.iter().map(|&k| Fanout::Uniform { k }).collect();
        for &threads in &threads {
            case(&mut session, &graph, "fused", threads, &uniform, usize::MAX, &Fused(csc));
        }
    }
    let uniform = [15, 10, 5].map(|k| Fanout::Uniform { k });
    case(&mut session, &graph, "fused, table compactor", 1, &uniform, 0, &Fused(csc));
    let replacing = [15, 10, 5].map(|k| Fanout::UniformWithReplacement { k });
    case(&mut session, &graph, "fused, with replacement", 1, &replacing, usize::MAX, &Fused(csc));

    let nodes = graph.num_nodes() as u64;
    let offsets: Vec<u64> = (0..=4).map(|p| p * nodes / 4).collect();
    let cut: Vec<(Vec<i64>, &[u32])> = offsets
        .windows(2)
        .map(|range| {
            let bounds = &graph.indptr[range[0] as usize..=range[1] as usize];
            let edges = &graph.indices[bounds[0] as usize..bounds[bounds.len() - 1] as usize];
            (bounds.iter().map(|&end| end - bounds[0]).collect(), edges)
        })
        .collect();
    let parts = Partitions::new(&offsets, cut.iter().map(|(indptr, indices)| Some((&indptr[..], *indices))));
    case(&mut session, &graph, "fused, 4 partitions", 1, &uniform, usize::MAX, &Fused(parts.clone()));
    case(&mut session, &graph, "4 owners and an asker", 1, &uniform, usize::MAX, &Distributed(parts, 4));
    session.finish();
}

/// The limit of the machine: independent random reads of single entries of the edge array. A sampled and compacted edge
/// needs at least two such reads, of its entry and of the compactor's array, besides the bounds of its node's row.
fn random_reads(session: &mut Session, graph: &Graph, threads: usize) {
    let reads = if session.smoke { 1 << 12 } else { 1u64 << 24 };
    let seconds = repeat(session.repeats(15), || {
        std::thread::scope(|scope| {
            for thread in 0..threads as u64 {
                scope.spawn(move || {
                    let (mut sum, mut state) = (0u64, thread + 1);
                    for _ in 0..reads / threads as u64 {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        let at = ((u128::from(state) * graph.indices.len() as u128) >> 64) as usize;
                        sum = sum.wrapping_add(u64::from(graph.indices[at]));
                    }
                    std::hint::black_box(sum)
                });
            }
        });
    });
    session.result("random reads", json!({ "threads": threads }), &seconds, reads as f64, "reads");
}

/// Measures `BATCHES` batches on `threads` threads. `budget` bounds the compactor's direct array.
fn case(
    session: &mut Session,
    graph: &Graph,
    name: &str,
    threads: usize,
    fanouts: &[Fanout],
    budget: usize,
    hop: &impl Hop,
) {
    let batches = if session.smoke { 4 } else { BATCHES };
    let batch_of = |b: usize| -> Vec<u32> {
        let starts = (graph.train.len() / BATCH).max(1);
        graph.train.iter().skip(b % starts * BATCH).take(BATCH).copied().collect()
    };
    let mut compactors = vec![Compactor::with_budget(graph.num_nodes() as u64, budget); threads];
    let mut totals = (0, 0);
    let seconds = repeat(session.repeats(15), || {
        let counts: Vec<(usize, usize)> = std::thread::scope(|scope| {
            let spawned: Vec<_> = compactors
                .iter_mut()
                .enumerate()
                .map(|(thread, compactor)| {
                    scope.spawn(move || {
                        let (mut edges, mut inputs) = (0, 0);
                        for b in (thread..batches).step_by(threads) {
                            let mut list = batch_of(b);
                            compactor.start(&list);
                            let key = Key::new(SEED, Purpose::Sample).fold(0).fold(0).fold(b as u64);
                            for (h, &fanout) in fanouts.iter().enumerate() {
                                edges += hop.hop(&mut list, fanout, key.fold(h as u64), compactor).num_edges();
                            }
                            inputs += list.len();
                        }
                        (edges, inputs)
                    })
                })
                .collect();
            spawned.into_iter().map(|thread| thread.join().expect("sampling does not panic")).collect()
        });
        totals = counts.iter().fold((0, 0), |total, count| (total.0 + count.0, total.1 + count.1));
    });
    let fanouts: Vec<String> = fanouts
        .iter()
        .map(|fanout| match fanout {
            Fanout::All => "-1".into(),
            Fanout::Uniform { k } | Fanout::UniformWithReplacement { k } => k.to_string(),
        })
        .collect();
    let details = json!({
        "fanouts": fanouts.join(","),
        "threads": threads,
        "batches_per_repeat": batches,
        "seconds_per_batch": seconds.median() / batches as f64,
        "edges_per_batch": totals.0 / batches,
        "input_nodes_per_batch": totals.1 / batches,
    });
    session.result(name, details, &seconds, totals.0 as f64, "edges");
}

/// Checks that every sampled edge exists, and that every node has the right number of edges.
fn verify(graph: &Graph, csc: &Csc) {
    let mut list: Vec<u32> = graph.train.iter().take(BATCH).copied().collect();
    let mut compactor = Compactor::new(graph.num_nodes() as u64);
    compactor.start(&list);
    for hop in 0..2 {
        let key = Key::new(SEED, Purpose::Sample).fold(hop);
        let block = sample_hop(csc, &mut list, Fanout::Uniform { k: 10 }, key, &mut compactor);
        for (dst, &node) in list[..block.num_dst()].iter().enumerate() {
            let row = csc.neighbors(node);
            assert_eq!(block.neighbors(dst).len(), row.len().min(10), "node {node}");
            let real = block.neighbors(dst).iter().all(|&src| row.contains(&list[src as usize]));
            assert!(real, "node {node} has a sampled neighbor that is not its neighbor");
        }
    }
}
