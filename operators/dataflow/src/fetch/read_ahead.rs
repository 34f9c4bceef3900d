//! Starts reading a batch's rows from disk before the batch is fetched.
//!
//! *In*: batches with their node list. *Out*: the same batches, unchanged. *Kept per time*: nothing. *Capabilities*: none.
//!
//! If features are larger than memory, a gather waits for every page that is not in memory, one after another. This operator
//! names the rows in advance, so that the disk reads many pages at a time while earlier batches are fetched and computed. It
//! stands before `limit_in_flight`. Other workers read their rows ahead when a request arrives.

use std::rc::Rc;

use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;

use super::fetch_rows::FeatureView;
use crate::batch::mini_batch::MiniBatch;
use crate::time::MessageTime;

/// Reads rows ahead of `fetch_rows`.
pub trait ReadAhead<'scope> {
    /// Starts reading the `rows` of each batch, if their source [reads ahead](crate::storage::RowSource::reads_ahead). The source
    /// skips nodes that other workers host.
    fn read_ahead(self, rows: Rc<dyn Fn(u64) -> FeatureView>) -> Self;
}

impl<'scope> ReadAhead<'scope> for StreamVec<'scope, u64, MiniBatch> {
    fn read_ahead(self, rows: Rc<dyn Fn(u64) -> FeatureView>) -> Self {
        self.unary::<CapacityContainerBuilder<Vec<MiniBatch>>, _, _, _>(Pipeline, "read_ahead", |_, _| {
            move |input, output| {
                input.for_each(|time, batches| {
                    let FeatureView { source, halo, .. } = (*rows)(*time.time());
                    if source.reads_ahead() {
                        for batch in &*batches {
                            source.will_need(&batch.nodes);
                            halo.iter().for_each(|halo| halo.will_need(&batch.nodes));
                        }
                    }
                    output.session(&time).give_container(batches);
                });
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use timely::dataflow::operators::vec::ToStream;

    use super::*;
    use crate::batch::mini_batch::BatchKey;
    use crate::storage::{Busy, RowReader, RowSource};
    use gnnflow_kernels::matrix::Number;

    struct Recorder {
        ahead: bool,
        nodes: Mutex<Vec<u32>>,
    }

    impl RowSource for Recorder {
        fn row_bytes(&self) -> usize {
            0
        }

        fn open(&self) -> Result<Box<dyn RowReader + '_>, Busy> {
            unreachable!("nothing is gathered")
        }

        fn reads_ahead(&self) -> bool {
            self.ahead
        }

        fn will_need(&self, nodes: &[u32]) {
            self.nodes.lock().unwrap().extend(nodes);
        }
    }

    #[test]
    fn will_need_is_called_only_if_the_source_reads_ahead() {
        for ahead in [true, false] {
            let recorder = Arc::new(Recorder { ahead, nodes: Mutex::default() });
            let source = recorder.clone();
            timely::example(move |scope| {
                let key = BatchKey { epoch: 0, step: 0, partition: 0 };
                let rows = FeatureView { source, number: Number::F32, dim: 0, packed: None, halo: None };
                [MiniBatch::new(key, vec![3, 30, 1])].to_stream(scope).read_ahead(Rc::new(move |_| rows.clone()));
            });
            assert_eq!(*recorder.nodes.lock().unwrap(), if ahead { vec![3, 30, 1] } else { vec![] });
        }
    }
}
