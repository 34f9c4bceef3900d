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
    for fanouts in [&[15, 10, 5][..], &[25, 10]] {
        let uniform: Vec<Fanout> = fanouts.iter().map(|&k| Fanout::Uniform { k }).collect();
        reads_alone(&mut session, &graph, &threads, &uniform);
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

/// The addresses that a batch reads.
#[derive(Default)]
struct Reads {
    /// Nodes, whose rows are sampled.
    rows: Vec<u32>,
    /// Sampled entries of the edge array.
    entries: Vec<usize>,
    /// The nodes of these entries, which are looked up in the compactor's array.
    nodes: Vec<u32>,
}

/// Samples a batch and returns the addresses that this reads.
fn reads_of(graph: &Graph, batch: usize, fanouts: &[Fanout], compactor: &mut Compactor) -> Reads {
    let (csc, mut list, mut reads) =
        (Csc::new(&graph.indptr, &graph.indices), batch_of(graph, batch), Reads::default());
    compactor.start(&list);
    for (hop, &fanout) in fanouts.iter().enumerate() {
        let block = sample_hop(&csc, &mut list, fanout, key_of(batch).fold(hop as u64), compactor);
        for (dst, &node) in list[..block.num_dst()].iter().enumerate() {
            let begin = graph.indptr[node as usize] as usize;
            reads.rows.push(node);
            for &src in block.neighbors(dst) {
                let source = list[src as usize];
                let entry = csc.neighbors(node).iter().position(|&other| other == source).expect("it is a neighbor");
                reads.entries.push(begin + entry);
                reads.nodes.push(source);
            }
        }
    }
    reads
}

/// The limit of the machine: the reads of memory that sampling must do, of known addresses, one after another and without any
/// other work. These are the bounds of each row, each sampled entry, and its node in the compactor's array.
fn reads_alone(session: &mut Session, graph: &Graph, threads: &[usize], fanouts: &[Fanout]) {
    let batches = if session.smoke { 4 } else { BATCHES };
    let mut compactor = Compactor::new(graph.num_nodes() as u64);
    let reads: Vec<Reads> = (0..batches).map(|batch| reads_of(graph, batch, fanouts, &mut compactor)).collect();
    let edges: usize = reads.iter().map(|reads| reads.entries.len()).sum();
    for &threads in threads {
        let arrays = vec![vec![0u32; graph.num_nodes()]; threads];
        let seconds = repeat(session.repeats(15), || {
            std::thread::scope(|scope| {
                for (thread, array) in arrays.iter().enumerate() {
                    let reads = reads.iter().skip(thread).step_by(threads);
                    scope.spawn(move || {
                        let mut sum = 0u64;
                        for Reads { rows, entries, nodes } in reads {
                            rows.iter().for_each(|&row| sum += graph.indptr[row as usize + 1] as u64);
                            entries.iter().for_each(|&entry| sum += u64::from(graph.indices[entry]));
                            nodes.iter().for_each(|&node| sum += u64::from(array[node as usize]));
                        }
                        std::hint::black_box(sum)
                    });
                }
            });
        });
        let details = json!({ "fanouts": text_of(fanouts), "threads": threads });
        session.result("reads alone", details, &seconds, edges as f64, "edges");
    }
}

/// The seeds of a batch.
fn batch_of(graph: &Graph, batch: usize) -> Vec<u32> {
    let starts = (graph.train.len() / BATCH).max(1);
    graph.train.iter().skip(batch % starts * BATCH).take(BATCH).copied().collect()
}

fn key_of(batch: usize) -> Key {
    Key::new(SEED, Purpose::Sample).fold(0).fold(0).fold(batch as u64)
}

fn text_of(fanouts: &[Fanout]) -> String {
    let text = |fanout: &Fanout| match fanout {
        Fanout::All => "-1".into(),
        Fanout::Uniform { k } | Fanout::UniformWithReplacement { k } => k.to_string(),
    };
    fanouts.iter().map(text).collect::<Vec<String>>().join(",")
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
                            let mut list = batch_of(graph, b);
                            compactor.start(&list);
                            let key = key_of(b);
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
    let details = json!({
        "fanouts": text_of(fanouts),
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
