//! Samples all hops of a batch on separate threads, if the worker holds the whole topology.
//!
//! *In*: batches. *Out*: the same batches with their blocks, in order of arrival. *Kept per time*: batches that are being
//! sampled. *Capabilities*: held with them.
//!
//! Each batch is one task of the [`SamplingThreads`], which runs the fused kernel for all hops. Several batches are sampled in
//! parallel, while the worker fetches and serves. The samples of a batch depend on its [key](crate::batch::mini_batch::BatchKey)
//! alone, not on threads.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::operator::Operator;

use super::draw::Draw;
use super::sample_hop::{Hop, SampleHop};
use super::sampling_threads::SamplingThreads;
use crate::batch::mini_batch::MiniBatch;
use crate::flow::waits::{Cause, Reported};
use crate::time::MessageTime;
use crate::wire::meter::Stage;

/// Samples all hops of batches.
pub trait SampleBatch<'scope> {
    /// Samples `hops`, that of the seeds first, with the same result as [`sample_hop`](super::sample_hop) for each of them. Uses
    /// `threads` if the fused kernel can do all hops from local edges, and otherwise `sample_hop`.
    fn sample_batch(self, hops: Vec<Hop>, threads: Arc<SamplingThreads>) -> Self;
}

impl<'scope> SampleBatch<'scope> for StreamVec<'scope, u64, MiniBatch> {
    fn sample_batch(self, hops: Vec<Hop>, threads: Arc<SamplingThreads>) -> Self {
        let draws: Arc<[Draw]> = hops.iter().map(Hop::draw).collect();
        let (true, Some(meter)) = (draws.iter().all(Draw::is_fused), hops.first().map(|hop| hop.meter.clone())) else {
            return hops.into_iter().fold(self, |stream, hop| stream.sample_hop(hop));
        };
        let scope = self.scope();
        self.unary_frontier::<CapacityContainerBuilder<Vec<MiniBatch>>, _, _, _>(
            Pipeline,
            "sample_batch",
            move |initial, info| {
                drop(initial);
                // Made on the worker's own thread, which it wakes.
                let wake = scope.worker().sync_activator_for(info.address.to_vec());
                let (sender, results) = mpsc::channel::<(u64, std::thread::Result<(MiniBatch, Duration)>)>();
                // Capabilities of the batches in progress, and batches that are done before an earlier one.
                let held = Reported::new("sample_batch", VecDeque::<Capability<u64>>::new(), |held, wait| {
                    held.iter().for_each(|time| wait(*time.time(), Cause::Thread));
                });
                let mut done = BTreeMap::new();
                let (mut next, mut first) = (0u64, 0u64);
                move |(input, _frontier), output| {
                    let held = &mut *held.borrow_mut();
                    input.for_each(|time, batches| {
                        for mut batch in batches.drain(..) {
                            held.push_back(time.retain(output.output_index()));
                            let (threads, draws) = (Arc::clone(&threads), Arc::clone(&draws));
                            let (sender, wake, number) = (sender.clone(), wake.clone(), next);
                            next += 1;
                            threads.pool().spawn(move || {
                                // A panic on a thread of the pool would abort the process. It is resumed on the worker's thread.
                                let sampled = catch_unwind(AssertUnwindSafe(|| {
                                    let took = threads.sample(&mut batch, &draws);
                                    (batch, took)
                                }));
                                // The receiver or the worker is dropped when the dataflow ends.
                                if sender.send((number, sampled)).is_ok() {
                                    let _ = wake.activate();
                                }
                            });
                        }
                    });
                    while let Ok((number, sampled)) = results.try_recv() {
                        let (batch, took) = sampled.unwrap_or_else(|panic| resume_unwind(panic));
                        meter.add(Stage::Sample, took);
                        done.insert(number, batch);
                    }
                    while let Some(batch) = done.remove(&first) {
                        let time = held.pop_front().expect("one capability per batch, in order");
                        output.session(&time).give(batch);
                        first += 1;
                    }
                }
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use timely::dataflow::operators::core::Inspect;
    use timely::dataflow::operators::vec::ToStream;

    use super::*;
    use crate::batch::mini_batch::BatchKey;
    use crate::sample::sample_hop::CompactorPool;
    use crate::testing::{book, local, random_graph};
    use crate::wire::meter::Meter;
    use gnnflow_kernels::sample::{Columns, Draw, EdgeFanout, Fanout, PerEdgeStrategy, Strategy};

    type Seen = (BatchKey, Vec<u32>, Vec<(Vec<u32>, Vec<u32>)>);

    /// All batches in order of output, by `sample_hop` without threads.
    fn run(threads: Option<usize>, strategies: &[Strategy]) -> Vec<Seen> {
        let (strategies, (send, receive)) = (strategies.to_vec(), mpsc::channel());
        timely::execute_directly(move |worker| {
            let graph = Arc::new(local(&random_graph(3000, 12), &book(3000, 4), 1, 0, false));
            let (meter, pool) = (Rc::<Meter>::default(), CompactorPool::default());
            worker.dataflow::<u64, _, _>(|scope| {
                let batches: Vec<MiniBatch> = (0..40u32)
                    .map(|i| {
                        MiniBatch::new(
                            BatchKey { epoch: 1, step: i / 4, partition: i % 4 },
                            (i * 7..i * 7 + i % 90).collect(),
                        )
                    })
                    .collect();
                let stream = batches.to_stream(scope);
                let hops: Vec<Hop> = (0..)
                    .zip(strategies)
                    .map(|(hop, strategy)| Hop {
                        graph: Arc::clone(&graph),
                        seed: 3,
                        hop,
                        strategy,
                        columns: Columns { types: true, ..Columns::default() },
                        last: hop == 1,
                        pool: pool.clone(),
                        meter: Rc::clone(&meter),
                    })
                    .collect();
                let stream = match threads {
                    Some(threads) => stream.sample_batch(hops, Arc::new(SamplingThreads::start(threads).unwrap())),
                    None => hops.into_iter().fold(stream, |stream, hop| stream.sample_hop(hop)),
                };
                stream.inspect(move |batch| {
                    let blocks = batch.blocks.iter().map(|b| (b.indptr().to_vec(), b.indices().to_vec())).collect();
                    send.send((batch.key, batch.nodes.clone(), blocks)).unwrap();
                });
            });
            while worker.step_or_park(None) {}
        });
        receive.into_iter().collect()
    }

    #[test]
    fn batches_equal_those_of_single_hops_for_any_number_of_threads() {
        let weighted = |k| {
            Strategy::PerEdge(PerEdgeStrategy { draw: Draw::Weighted, fanouts: EdgeFanout::Each(k), temporal: false })
        };
        for strategies in [
            vec![Strategy::Fanout(Fanout::Uniform { k: 4 }), Strategy::Fanout(Fanout::Uniform { k: 3 })],
            vec![weighted(5), Strategy::Fanout(Fanout::All)],
            vec![Strategy::Layer(30), Strategy::Layer(40)], // not fused: hop by hop
        ] {
            let expected = run(None, &strategies);
            assert_eq!(expected.len(), 40);
            for threads in [1, 3] {
                assert_eq!(run(Some(threads), &strategies), expected);
            }
        }
    }
}
