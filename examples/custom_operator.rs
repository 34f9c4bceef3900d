//! How far do two hops reach? Our own dataflow: seeds → sample_hop × 2 → reach (ours) → all_reduce → print
//!
//!     cargo run --release --example custom_operator

use gnnflow::prelude::*;

/// Our operator: an extension trait on `Stream`, like every operator of gnnflow.
trait Reach<'scope> {
    /// For each batch: nodes reached per seed, and the number of sampled edges.
    fn reach(self) -> StreamVec<'scope, u64, Contribution>;
}

impl<'scope> Reach<'scope> for StreamVec<'scope, u64, MiniBatch> {
    fn reach(self) -> StreamVec<'scope, u64, Contribution> {
        self.unary::<VecBuilder<Contribution>, _, _, _>(Pipeline, "reach", |_, _| {
            |input, output| {
                input.for_each(|time, batches| {
                    output.session(&time).give_iterator(batches.drain(..).map(|batch: MiniBatch| {
                        let reached = batch.nodes.len() as f32 / batch.num_seeds as f32;
                        Contribution::new(batch.key.partition, vec![reached], vec![batch.num_edges()])
                    }));
                })
            }
        })
    }
}

fn main() -> Result<()> {
    execute_threads(2, |worker| {
        let book = PartitionBook::even(10_000, 2);
        let cx = OperatorContext::load(worker, &book, 7, |part| {
            OwnedInEdges::from_fn(book.range(part), |node| (1..=20).map(move |i| (node + i * i) % 10_000))
        });
        let (seeds, first) = (NodeBatches::all_nodes(&cx, 100), worker.index() == 0);
        worker.dataflow::<u64, _, _>(|scope| {
            cx.partitions()
                .to_stream(scope)
                .seeds(seeds)
                .sample_hops(&cx, &[Strategy::uniform(10), Strategy::uniform(10)])
                .reach()
                .all_reduce(&cx, 1)
                .inspect(move |all| {
                    if first {
                        println!("{} nodes per seed, {} edges", all.sum[0] / 2.0, all.total(0));
                    }
                });
        });
        worker.step_until_done();
        println!("worker {} sent {} messages", worker.index(), cx.meter.messages());
    })
}
