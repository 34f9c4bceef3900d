//! Makes the key of a batch for each step.
//!
//! *In*: one partition number per step and partition, at the partition's worker. *Out*: one key for each. *Kept per time*:
//! nothing. *Capabilities*: none.

use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;

use crate::batch::mini_batch::BatchKey;
use crate::time::{self, MessageTime};

/// Makes keys of batches.
pub trait BatchKeys<'scope> {
    /// Makes the key of each partition number, with the epoch and step of its time.
    ///
    /// # Example
    /// ```
    /// use gnnflow_dataflow::batch::mini_batch::BatchKey;
    /// use gnnflow_dataflow::sample::batch_keys::BatchKeys;
    /// use timely::dataflow::operators::{ToStream, core::Inspect};
    ///
    /// timely::example(|scope| {
    ///     [3u32].to_stream(scope).container::<Vec<u32>>().batch_keys()
    ///         .inspect(|key| assert_eq!(*key, BatchKey { epoch: 0, step: 0, partition: 3 }));
    /// });
    /// ```
    fn batch_keys(self) -> StreamVec<'scope, u64, BatchKey>;
}

impl<'scope> BatchKeys<'scope> for StreamVec<'scope, u64, u32> {
    fn batch_keys(self) -> StreamVec<'scope, u64, BatchKey> {
        self.unary::<CapacityContainerBuilder<Vec<BatchKey>>, _, _, _>(Pipeline, "batch_keys", move |_, _| {
            move |input, output| {
                input.for_each(|time, partitions| {
                    let (epoch, step) = (time::epoch(*time.time()), time::step(*time.time()));
                    let keys = partitions.drain(..).map(|partition| BatchKey { epoch, step, partition });
                    output.session(&time).give_iterator(keys);
                });
            }
        })
    }
}
