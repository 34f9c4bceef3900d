//! Makes a batch of any type for each step.
//!
//! *In*: one partition number per step and partition, at the partition's worker. *Out*: one batch for each. *Kept per time*:
//! nothing. *Capabilities*: none.

use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;

use crate::batch::mini_batch::BatchKey;
use crate::time::{self, MessageTime};

/// Makes batches of any type.
pub trait DrawBatches<'scope> {
    /// Calls `make` for each partition number, with the epoch and step of its time.
    ///
    /// # Example
    /// ```
    /// use gnnflow_dataflow::sample::draw_batches::DrawBatches;
    /// use gnnflow_dataflow::sample::random_walk::Walks;
    /// use timely::dataflow::operators::{ToStream, core::Inspect};
    ///
    /// timely::example(|scope| {
    ///     [0u32, 1].to_stream(scope).container::<Vec<u32>>()
    ///         .draw_batches("roots", |key| Walks::new(key, vec![key.partition; 3]))
    ///         .inspect(|walks| assert_eq!(walks.len(), 3));
    /// });
    /// ```
    fn draw_batches<B: 'static>(
        self,
        name: &str,
        make: impl FnMut(BatchKey) -> B + 'static,
    ) -> StreamVec<'scope, u64, B>;
}

impl<'scope> DrawBatches<'scope> for StreamVec<'scope, u64, u32> {
    fn draw_batches<B: 'static>(
        self,
        name: &str,
        mut make: impl FnMut(BatchKey) -> B + 'static,
    ) -> StreamVec<'scope, u64, B> {
        self.unary::<CapacityContainerBuilder<Vec<B>>, _, _, _>(Pipeline, name, move |_, _| {
            move |input, output| {
                input.for_each(|time, partitions| {
                    let (epoch, step) = (time::epoch(*time.time()), time::step(*time.time()));
                    let mut session = output.session(&time);
                    for partition in partitions.drain(..) {
                        session.give(make(BatchKey { epoch, step, partition }));
                    }
                });
            }
        })
    }
}
