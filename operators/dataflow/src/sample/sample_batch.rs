//! Samples all hops of batches beside the worker, where everything that they read is here.
//!
//! *In*: batches. *Out*: the same batches with their blocks, in the order in which they came. *Kept per time*: batches under
//! way. *Capabilities*: held with them.
//!
//! Each batch is one task of the [`SamplingThreads`], all hops by the fused kernel: several batches are sampled at once, and the
//! worker goes on fetching and serving. What a batch draws depends on its name alone, so neither do its bits.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError, RwLock, mpsc};
use std::time::{Duration, Instant};

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;

use super::draw::Draw;
use super::sample_hop::Hop;
use crate::batch::mini_batch::MiniBatch;
use crate::wire::meter::Stage;
use gnnflow_kernels::compact::Compactor;

/// Threads that sample, of one worker.
pub struct SamplingThreads {
    pool: RwLock<Arc<ThreadPool>>,
    /// Of batches that are through, for the next ones.
    compactors: Mutex<Vec<Compactor>>,
}

impl SamplingThreads {
    /// Starts `threads` of them.
    ///
    /// # Errors
    /// When the system has no threads to give.
    pub fn start(threads: usize) -> Result<Self, ThreadPoolBuildError> {
        Ok(Self { pool: RwLock::new(Arc::new(pool(threads)?)), compactors: Mutex::default() })
    }

    /// Goes on with `threads` threads; what is under way is finished by those before.
    ///
    /// # Errors
    /// When the system has no threads to give; then it goes on with those that are there.
    pub fn resize(&self, threads: usize) -> Result<(), ThreadPoolBuildError> {
        if threads != self.threads() {
            let new = Arc::new(pool(threads)?);
            *self.pool.write().unwrap_or_else(PoisonError::into_inner) = new;
        }
        Ok(())
    }

    /// How many they are.
    pub fn threads(&self) -> usize {
        self.pool().current_num_threads()
    }

    /// Does `work` on them and waits for it.
    pub fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.pool().install(work)
    }

    fn pool(&self) -> Arc<ThreadPool> {
        Arc::clone(&self.pool.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// All hops of a batch, and how long they took.
    fn sample(&self, batch: &mut MiniBatch, hops: &[Draw]) -> Duration {
        let start = Instant::now();
        let Some(nodes) = hops.first().map(|hop| hop.graph.num_nodes()) else { return Duration::ZERO };
        let spare = self.compactors.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut compactor = spare.unwrap_or_else(|| Compactor::new(nodes));
        compactor.start(&batch.nodes);
        hops.iter().for_each(|hop| hop.add_hop(batch, &mut compactor));
        self.compactors.lock().unwrap_or_else(PoisonError::into_inner).push(compactor);
        start.elapsed()
    }
}

fn pool(threads: usize) -> Result<ThreadPool, ThreadPoolBuildError> {
    ThreadPoolBuilder::new().num_threads(threads.max(1)).thread_name(|i| format!("sample-{i}")).build()
}

/// Sampling of whole batches.
pub trait SampleBatch<'scope> {
    /// Samples `hops`, the seeds' own first, as [`sample_hop`](super::sample_hop) does one after the other: on `threads`, where all
    /// of them are drawn by the fused kernel from edges that are here; hop by hop otherwise.
    fn sample_batch(self, hops: Vec<Hop>, threads: Arc<SamplingThreads>) -> Self;
}

impl<'scope> SampleBatch<'scope> for StreamVec<'scope, u64, MiniBatch> {
    fn sample_batch(self, hops: Vec<Hop>, threads: Arc<SamplingThreads>) -> Self {
        use super::sample_hop::SampleHop;
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
                // Must be made on the worker's own thread: it remembers whom to wake.
                let wake = scope.worker().sync_activator_for(info.address.to_vec());
                let (answer, results) = mpsc::channel::<(u64, std::thread::Result<(MiniBatch, Duration)>)>();
                // Times of the batches under way; and those that are done before an earlier one.
                let (mut held, mut done) = (VecDeque::new(), BTreeMap::new());
                let (mut next, mut first) = (0u64, 0u64);
                move |(input, _frontier), output| {
                    input.for_each(|time, batches| {
                        for mut batch in batches.drain(..) {
                            held.push_back(time.retain(output.output_index()));
                            let (threads, draws) = (Arc::clone(&threads), Arc::clone(&draws));
                            let (answer, wake, number) = (answer.clone(), wake.clone(), next);
                            next += 1;
                            threads.pool().spawn(move || {
                                // A panic on a thread of the pool would abort the process: it goes on at the worker.
                                let sampled = catch_unwind(AssertUnwindSafe(|| {
                                    let took = threads.sample(&mut batch, &draws);
                                    (batch, took)
                                }));
                                // A dropped receiver or worker means that the dataflow is being torn down.
                                if answer.send((number, sampled)).is_ok() {
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
                        let time = held.pop_front().expect("one capability per batch, given up in order");
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
    use crate::sample::sample_hop::{CompactorPool, SampleHop};
    use crate::testing::{book, local, random_graph};
    use crate::wire::meter::Meter;
    use gnnflow_kernels::sample::{Columns, Draw, Fanout, Fanouts, PerEdgeStrategy, Strategy};

    type Seen = (BatchKey, Vec<u32>, Vec<(Vec<u32>, Vec<u32>)>);

    /// All batches in the order in which they come out; by single hops where there are no threads.
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
    fn any_number_of_threads_gives_the_bits_and_the_order_of_single_hops() {
        let weighted =
            |k| Strategy::PerEdge(PerEdgeStrategy { draw: Draw::Weighted, fanouts: Fanouts::Each(k), temporal: false });
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
