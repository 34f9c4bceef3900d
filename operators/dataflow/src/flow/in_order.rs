//! Delivers the payloads of blocks in time order.
//!
//! *In*: blocks at any worker, at most one per time. *Out*: `(time, payload)` at the block's destination, by ascending
//! time. *Kept per time*: payloads of times that the frontier has not passed. *Capabilities*: held with them.
//!
//! Used for output files: their rows must not depend on the order in which messages arrive.

use std::collections::BTreeMap;

use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::{Stream, StreamVec};

use crate::flow::waits::{Cause, Reported};
use crate::time::MessageTime;
use crate::wire::{WireBlock, to_destination};

/// Delivers blocks in time order.
pub trait InOrder<'scope> {
    /// Delivers each block's row bytes at its destination, after those of all earlier times.
    ///
    /// # Panics
    /// When two blocks have the same time and destination.
    fn in_order(self) -> StreamVec<'scope, u64, (u64, Vec<u8>)>;
}

impl<'scope> InOrder<'scope> for Stream<'scope, u64, WireBlock> {
    fn in_order(self) -> StreamVec<'scope, u64, (u64, Vec<u8>)> {
        type Builder = CapacityContainerBuilder<Vec<(u64, Vec<u8>)>>;
        self.unary_frontier::<Builder, _, _, _>(to_destination(), "in_order", |initial, _| {
            drop(initial);
            let held: BTreeMap<u64, (Capability<u64>, Vec<u8>)> = BTreeMap::new();
            let held = Reported::new("in_order", held, |held, wait| {
                held.keys().for_each(|&time| wait(time, Cause::EarlierTimes));
            });
            move |(input, frontier), output| {
                let held = &mut *held.borrow_mut();
                input.for_each(|time, block| {
                    let mut payload = Vec::with_capacity(block.row_bytes());
                    block.for_each_row_bytes(|bytes| payload.extend_from_slice(bytes));
                    let before = held.insert(*time.time(), (time.retain(output.output_index()), payload));
                    assert!(before.is_none(), "two blocks of one time have the same destination");
                });
                while let Some(first) = held.first_entry().filter(|first| !frontier.less_equal(first.key())) {
                    let (timestamp, (time, payload)) = first.remove_entry();
                    output.session(&time).give((timestamp, payload));
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use timely::container::NoopBuilder;
    use timely::dataflow::InputHandle;
    use timely::dataflow::operators::capture::Event;
    use timely::dataflow::operators::{Capture, Input};

    use super::*;
    use crate::wire::{Header, Rows};

    #[test]
    fn payloads_arrive_in_time_order_at_1_2_and_4_workers() {
        for workers in [1, 2, 4] {
            let outputs = timely::execute(timely::Config::process(workers), move |worker| {
                let mut input = InputHandle::<u64, NoopBuilder<WireBlock>>::new_with_builder();
                let captured = worker.dataflow(|scope| scope.input_from(&mut input).in_order().capture());
                for timestamp in 0..50u64 {
                    input.advance_to(timestamp);
                    if timestamp as usize * 7 % worker.peers() == worker.index() {
                        let rows = Rows::Bytes(vec![timestamp as u8; 3]);
                        input.send_batch(&mut WireBlock::new(Header::default(), vec![], vec![], rows));
                    }
                    worker.step();
                }
                captured
            })
            .unwrap();
            let mut seen = Vec::new();
            for captured in outputs.join() {
                for event in captured.unwrap() {
                    if let Event::Messages(_, payloads) = event {
                        seen.extend(payloads);
                    }
                }
            }
            assert_eq!(
                seen,
                (0..50).map(|timestamp| (timestamp, vec![timestamp as u8; 3])).collect::<Vec<_>>(),
                "{workers} workers"
            );
        }
    }
}
