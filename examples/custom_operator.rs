//! How far do two hops reach? A dataflow of one's own, put together from gnnflow's operators and one more.
//!
//! ```text
//! seeds → sample_hop → sample_hop → reach (ours) → all_reduce → print
//! ```
//!
//! Two workers hold a partition each of a small graph in memory. Nothing of this needs a pipeline file or a model; the
//! same operators run unchanged over the partitions of a prepared dataset (`gnnflow_data::Dataset`).
//!
//!     cargo run --release --example custom_operator

use std::rc::Rc;
use std::sync::Arc;

use gnnflow_data::PartitionBook;
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_dataflow::batch::mini_batch::MiniBatch;
use gnnflow_dataflow::collective::all_reduce::{AllReduce, Contribution, Reduced};
use gnnflow_dataflow::graph::local_graph::{InEdges, LocalGraph, OwnedInEdges};
use gnnflow_dataflow::graph::placement::Placement;
use gnnflow_dataflow::sample::sample_hop::{CompactorPool, Hop, SampleHop, Strategy};
use gnnflow_dataflow::sample::seeds::{NodeBatches, Seeds};
use gnnflow_dataflow::wire::meter::Meter;
use gnnflow_kernels::sample::{Columns, Fanout};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::core::Inspect;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::vec::ToStream;

/// Our operator, in the shape of all others: an extension trait on `Stream`, named like its file would be.
trait Reach<'scope> {
    /// Says of each batch how many nodes its hops have reached, for each seed on average.
    fn reach(self) -> StreamVec<'scope, u64, Contribution>;
}

impl<'scope> Reach<'scope> for StreamVec<'scope, u64, MiniBatch> {
    fn reach(self) -> StreamVec<'scope, u64, Contribution> {
        self.unary::<CapacityContainerBuilder<Vec<Contribution>>, _, _, _>(Pipeline, "reach", |_, _| {
            |input, output| {
                input.for_each(|time, batches| {
                    let told = batches.drain(..).map(|batch| Contribution {
                        partition: batch.key.partition,
                        vector: Some(Arc::new(vec![batch.nodes.len() as f32 / batch.num_seeds as f32])),
                        words: vec![batch.blocks.iter().map(|block| block.num_edges() as u64).sum()],
                    });
                    output.session(&time).give_iterator(told);
                });
            }
        })
    }
}

const NODES: u32 = 10_000;
const PARTS: usize = 2;

/// Each node hears from twenty others, most of them near: a small world.
fn in_edges(nodes: std::ops::Range<u64>) -> OwnedInEdges {
    let key = Key::new(1, Purpose::GenerateEdges);
    let mut graph = OwnedInEdges { indptr: vec![0], ..OwnedInEdges::default() };
    for node in nodes {
        let key = key.fold(node);
        let mut from: Vec<u32> = (0..20)
            .map(|i| match key.unit(2 * i) < 0.9 {
                true => ((node + 1 + key.below(2 * i + 1, 100)) % u64::from(NODES)) as u32,
                false => key.below(2 * i + 1, u64::from(NODES)) as u32,
            })
            .collect();
        from.sort_unstable();
        graph.indices.extend(from);
        graph.indptr.push(graph.indices.len() as i64);
    }
    graph
}

fn main() -> Result<(), String> {
    let workers = timely::execute(timely::Config::process(PARTS), |worker| {
        let book = PartitionBook::new(vec![0, u64::from(NODES) / 2, u64::from(NODES)]).expect("offsets ascend");
        let placement = Placement::new(PARTS, worker.peers());
        let load = |part: usize| Ok::<_, String>(Arc::new(in_edges(book.range(part))) as Arc<dyn InEdges>);
        let graph = Arc::new(LocalGraph::load(&book, placement, worker.index(), false, load)?);
        let mine = placement.parts_of(worker.index());

        let mut seeds = NodeBatches { batch: 100, seed: 7, train: vec![vec![]; PARTS], ..NodeBatches::default() };
        mine.clone().for_each(|part| seeds.train[part] = graph.range(part).collect());
        let (meter, pool) = (Rc::new(Meter::default()), CompactorPool::default());
        let hop = |hop: u32| Hop {
            graph: Arc::clone(&graph),
            seed: 7,
            hop,
            strategy: Strategy::Fanout(Fanout::Uniform { k: 10 }),
            columns: Columns::default(),
            last: hop == 1,
            pool: pool.clone(),
            meter: Rc::clone(&meter),
        };
        let first = worker.index() == 0;
        worker.dataflow::<u64, _, _>(|scope| {
            mine.map(|part| part as u32)
                .to_stream(scope)
                .seeds(Arc::new(seeds))
                .sample_hop(hop(0))
                .sample_hop(hop(1))
                .reach()
                .all_reduce(PARTS, 1, Rc::clone(&meter))
                .inspect(move |reduced: &Reduced| {
                    if first {
                        let edges: u64 = reduced.words.iter().flatten().sum();
                        let reach = reduced.sum[0] / PARTS as f32;
                        println!("two hops from 100 seeds a partition: {reach} nodes a seed along {edges} edges");
                    }
                });
        });
        while worker.step_or_park(None) {}
        println!("worker {} sent {} messages", worker.index(), meter.messages());
        Ok(())
    })?;
    workers.join().into_iter().try_for_each(|worker: Result<Result<(), String>, String>| worker?)
}
