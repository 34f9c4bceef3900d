//! Applies a user's operator to a stream of batches, and checks that it returns as many batches as it receives.
//!
//! *In*: batches. *Out*: the operator's batches, or an error in place of the first batch too many or too few. *Kept per time*: two
//! counts. *Capabilities*: one, of the earliest time that may still have batches.

use std::collections::BTreeMap;

use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::core::Inspect;
use timely::dataflow::operators::generic::operator::Operator;

use crate::batch::mini_batch::MiniBatch;
use crate::context::OperatorContext;
use crate::flow::waits::{Cause, Reported};
use crate::time::{self, MessageTime};

/// A dataflow operator of a user, between the fetching of rows and the arithmetic of mini-batch training.
///
/// All functions of this shape implement it. An operator returns one batch for each batch, at the same time. The batch that it
/// returns depends on the batch that it receives only (its key included), so that results do not depend on the number of
/// processes.
///
/// ```
/// use gnnflow_dataflow::prelude::*;
/// use gnnflow_kernels::matrix::Values;
/// use timely::dataflow::operators::vec::Map;
///
/// /// Halves all features.
/// fn halve<'scope>(batches: StreamVec<'scope, u64, MiniBatch>, _: &OperatorContext) -> StreamVec<'scope, u64, MiniBatch> {
///     batches.map(|mut batch: MiniBatch| {
///         if let Values::F32(values) = &mut batch.features.values {
///             values.iter_mut().for_each(|value| *value /= 2.0);
///         }
///         batch
///     })
/// }
///
/// let operator: &dyn BatchOperator = &halve;
/// ```
pub trait BatchOperator: Send + Sync {
    /// Adds the operator to a dataflow.
    fn apply<'scope>(
        &self,
        batches: StreamVec<'scope, u64, MiniBatch>,
        cx: &OperatorContext,
    ) -> StreamVec<'scope, u64, MiniBatch>;
}

impl<F> BatchOperator for F
where
    F: for<'scope> Fn(StreamVec<'scope, u64, MiniBatch>, &OperatorContext) -> StreamVec<'scope, u64, MiniBatch>,
    F: Send + Sync,
{
    fn apply<'scope>(
        &self,
        batches: StreamVec<'scope, u64, MiniBatch>,
        cx: &OperatorContext,
    ) -> StreamVec<'scope, u64, MiniBatch> {
        self(batches, cx)
    }
}

/// An operator returned more or fewer batches than it received at a time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operator \"{operator}\" returned {returned} batches for {received} in step {step} of epoch {epoch}")]
pub struct BatchCountError {
    /// The name of the operator.
    pub operator: String,
    /// Batches that the operator returned, up to the first one too many.
    pub returned: u64,
    /// Batches that the operator received.
    pub received: u64,
    /// The epoch, from 0.
    pub epoch: u32,
    /// The step, from 0.
    pub step: u32,
}

/// Applies a [`BatchOperator`].
pub trait ApplyOperator<'scope> {
    /// Applies `operator`. Where the number of batches of a time differs, the stream has one error.
    fn apply_operator(
        self,
        name: &str,
        operator: &dyn BatchOperator,
        cx: &OperatorContext,
    ) -> StreamVec<'scope, u64, Result<MiniBatch, BatchCountError>>;
}

impl<'scope> ApplyOperator<'scope> for StreamVec<'scope, u64, MiniBatch> {
    fn apply_operator(
        self,
        name: &str,
        operator: &dyn BatchOperator,
        cx: &OperatorContext,
    ) -> StreamVec<'scope, u64, Result<MiniBatch, BatchCountError>> {
        // By time: batches received and returned.
        let counts =
            Reported::new(format!("operator \"{name}\""), BTreeMap::<u64, (u64, u64)>::new(), |counts, wait| {
                for (&time, (received, returned)) in counts {
                    (*returned..*received).for_each(|_| wait(time, Cause::Operator));
                }
            });
        let received = counts.clone();
        let batches = self.inspect_core(move |event| {
            if let Ok((stamp, batches)) = event {
                received.borrow_mut().entry(*stamp.expect_singleton()).or_default().0 += batches.len() as u64;
            }
        });
        let operator_name = name.to_owned();
        let error = move |time: u64, (received, returned)| {
            let (epoch, step) = (time::epoch(time), time::step(time));
            BatchCountError { operator: operator_name.clone(), returned, received, epoch, step }
        };
        operator.apply(batches, cx).unary_frontier::<CapacityContainerBuilder<Vec<_>>, _, _, _>(
            Pipeline,
            "count batches",
            move |capability, _| {
                let mut capability = Some(capability);
                move |(input, frontier), output| {
                    let mut counts = counts.borrow_mut();
                    input.for_each(|time, batches| {
                        let count = counts.entry(*time.time()).or_default();
                        let mut session = output.session(&time);
                        for batch in batches.drain(..) {
                            count.1 += 1;
                            if count.1 <= count.0 {
                                session.give(Ok(batch));
                            } else if count.1 == count.0 + 1 {
                                session.give(Err(error(*time.time(), *count)));
                            }
                        }
                    });
                    let next = frontier.frontier().first().copied();
                    let complete = match next {
                        Some(next) => {
                            let later = counts.split_off(&next);
                            std::mem::replace(&mut *counts, later)
                        }
                        None => std::mem::take(&mut *counts),
                    };
                    for (time, count) in complete {
                        if let (true, Some(capability)) = (count.1 < count.0, &capability) {
                            output.session(&capability.delayed(&time)).give(Err(error(time, count)));
                        }
                    }
                    match (next, &mut capability) {
                        (Some(next), Some(capability)) => capability.downgrade(&next),
                        (None, capability) => *capability = None,
                        (Some(_), None) => {}
                    }
                }
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use gnnflow_data::PartitionBook;
    use timely::dataflow::operators::vec::{Filter, Map, ToStream};

    use super::*;
    use crate::batch::mini_batch::BatchKey;
    use crate::context::{StepUntilDone, execute_threads};
    use crate::graph::local_graph::OwnedInEdges;

    type Batches<'scope> = StreamVec<'scope, u64, MiniBatch>;

    fn same<'scope>(batches: Batches<'scope>, _: &OperatorContext) -> Batches<'scope> {
        batches
    }

    fn drop_third<'scope>(batches: Batches<'scope>, _: &OperatorContext) -> Batches<'scope> {
        batches.filter(|batch: &MiniBatch| batch.key.step != 2)
    }

    fn repeat<'scope>(batches: Batches<'scope>, _: &OperatorContext) -> Batches<'scope> {
        batches.flat_map(|batch| [MiniBatch { key: batch.key, ..MiniBatch::default() }, batch])
    }

    /// Sends four batches per worker through `operator`; returns the steps that passed and the errors.
    fn run(operator: &'static dyn BatchOperator, workers: usize) -> (Vec<u32>, Vec<BatchCountError>) {
        let found: Arc<Mutex<(Vec<u32>, Vec<BatchCountError>)>> = Arc::default();
        let results = Arc::clone(&found);
        execute_threads(workers, move |worker| {
            let book = PartitionBook::even(8, workers);
            let edges = |part| OwnedInEdges::from_fn(book.range(part), |_| []);
            let cx = OperatorContext::load(worker, &book, 1, edges);
            let results = Arc::clone(&results);
            worker.dataflow::<u64, _, _>(|scope| {
                let keys = (0..4).map(|step| BatchKey { epoch: 0, step, partition: 0 });
                let batches = keys.to_stream(scope).map(|key| MiniBatch { key, ..MiniBatch::default() });
                batches.apply_operator("mine", operator, &cx).inspect(move |batch| {
                    let mut results = results.lock().unwrap();
                    match batch {
                        Ok(batch) => results.0.push(batch.key.step),
                        Err(error) => results.1.push(error.clone()),
                    }
                });
            });
            worker.step_until_done();
        })
        .unwrap();
        let mut found = found.lock().unwrap().clone();
        found.0.sort_unstable();
        found
    }

    #[test]
    fn equal_counts_pass_at_1_2_and_4_workers() {
        for workers in [1, 2, 4] {
            let (steps, errors) = run(&same, workers);
            assert_eq!((steps.len(), errors), (4 * workers, vec![]));
        }
    }

    #[test]
    fn missing_and_additional_batches_are_errors_at_1_2_and_4_workers() {
        for workers in [1, 2, 4] {
            let (steps, errors) = run(&drop_third, workers);
            assert_eq!((steps.len(), errors.len()), (3 * workers, workers));
            assert_eq!(errors[0].to_string(), "operator \"mine\" returned 3 batches for 4 in step 0 of epoch 0");

            let (steps, errors) = run(&repeat, workers);
            assert_eq!((steps.len(), errors.len()), (4 * workers, workers));
            assert_eq!(errors[0].to_string(), "operator \"mine\" returned 5 batches for 4 in step 0 of epoch 0");
        }
    }
}
