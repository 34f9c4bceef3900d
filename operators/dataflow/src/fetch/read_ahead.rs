//! Tells the system which rows a batch will want, while the batch still waits.
//!
//! *In*: batches with their node list. *Out*: the same batches, unchanged. *Kept per time*: nothing. *Capabilities*: none held.
//!
//! Where rows are larger than memory, gathering them stops at every page that is not there, one after another. Said beforehand,
//! the disk brings many of them at once, while earlier batches are fetched and computed. It stands before `limit_in_flight`. Rows that other
//! workers hold are read ahead by them, when the question for them arrives.

use std::rc::Rc;

use timely::dataflow::StreamVec;
use timely::dataflow::operators::core::Inspect;

use super::fetch_rows::FeatureView;
use crate::batch::mini_batch::MiniBatch;

/// Reading ahead of `fetch_rows`.
pub trait ReadAhead<'scope> {
    /// Says of each batch which `rows` it will want. A source that does not [read ahead](crate::storage::RowSource::reads_ahead) is not
    /// asked to; one that does passes nodes over that are elsewhere.
    fn read_ahead(self, rows: Rc<dyn Fn(u64) -> FeatureView>) -> Self;
}

impl<'scope> ReadAhead<'scope> for StreamVec<'scope, u64, MiniBatch> {
    fn read_ahead(self, rows: Rc<dyn Fn(u64) -> FeatureView>) -> Self {
        self.inspect_time(move |&tick, batch: &MiniBatch| {
            let FeatureView { source, halo, .. } = (*rows)(tick);
            if source.reads_ahead() {
                source.will_need(&batch.nodes);
                halo.iter().for_each(|halo| halo.will_need(&batch.nodes));
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

    struct Told {
        ahead: bool,
        nodes: Mutex<Vec<u32>>,
    }

    impl RowSource for Told {
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
    fn rows_are_named_where_the_source_reads_ahead() {
        for ahead in [true, false] {
            let told = Arc::new(Told { ahead, nodes: Mutex::default() });
            let source = told.clone();
            timely::example(move |scope| {
                let key = BatchKey { epoch: 0, step: 0, partition: 0 };
                let rows = FeatureView { source, number: Number::F32, dim: 0, packed: None, halo: None };
                [MiniBatch::new(key, vec![3, 30, 1])].to_stream(scope).read_ahead(Rc::new(move |_| rows.clone()));
            });
            assert_eq!(*told.nodes.lock().unwrap(), if ahead { vec![3, 30, 1] } else { vec![] });
        }
    }
}
