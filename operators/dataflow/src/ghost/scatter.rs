//! Sends blocks of rows to the workers that their headers name.
//!
//! *In*: blocks. *Out*: the same blocks, at their destinations. *Kept per time*: nothing. *Capabilities*: none.
//! When the frontier has passed a time, all its rows have arrived.
//!
//! Dorylus's scatter, forward and backward, and NeutronTP's split and gather are this operator. They differ in the rows
//! and columns that they send. [`row_blocks`] splits rows into messages.

use std::ops::Range;
use std::rc::Rc;

use timely::container::{CapacityContainerBuilder, NoopBuilder};
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;

use crate::wire::meter::{Meter, Stage};
use crate::wire::{Header, MESSAGE_BYTES, Rows, WireBlock, to_destination};

/// Sends blocks to their destinations.
pub trait Scatter<'scope> {
    /// Sends each block to worker `to` of its header.
    fn scatter(self, meter: Rc<Meter>) -> Self;
}

impl<'scope> Scatter<'scope> for StreamVec<'scope, u64, WireBlock> {
    fn scatter(self, meter: Rc<Meter>) -> Self {
        let me = self.scope().index();
        let sent = self.unary::<NoopBuilder<WireBlock>, _, _, _>(Pipeline, "scatter: send", move |_, _| {
            move |input, output| {
                input.for_each(|time, blocks| {
                    for mut block in blocks.drain(..) {
                        meter.sent(me, Stage::Fetch, &block);
                        output.session_with_builder(&time).give_container(&mut block);
                    }
                });
            }
        });
        sent.unary::<CapacityContainerBuilder<Vec<WireBlock>>, _, _, _>(
            to_destination(),
            "scatter: receive",
            move |_, _| {
                move |input, output| {
                    input.for_each(|time, block| output.session(&time).give(std::mem::take(block)));
                }
            },
        )
    }
}

/// Splits `rows` rows of `row_bytes` bytes into messages of at most 256 KB, or one row, and returns their headers. In each, `seq` is
/// `header.seq` plus the number of its first row, and `aux` is its number of rows.
pub fn row_headers(header: Header, rows: usize, row_bytes: usize) -> impl Iterator<Item = Header> {
    let each = (MESSAGE_BYTES / row_bytes.max(1)).max(1);
    let cut = move |first: usize| {
        let count = each.min(rows - first);
        Header { seq: header.seq + first as u32, aux: count as u32, ..header }
    };
    (0..rows).step_by(each).map(cut)
}

/// Splits `rows` rows of `width` numbers into messages, as [`row_headers`] does. `fill` appends the rows of a range to a vector.
pub fn row_blocks(
    header: Header,
    rows: usize,
    width: usize,
    mut fill: impl FnMut(Range<usize>, &mut Vec<f32>),
) -> Vec<WireBlock> {
    let cut = row_headers(header, rows, 4 * width).map(|cut| {
        let first = (cut.seq - header.seq) as usize;
        row_block(cut, width, |values| fill(first..first + cut.aux as usize, values))
    });
    cut.collect()
}

/// Returns the message of a header of [`row_headers`]. `fill` appends its rows to a vector.
///
/// # Panics
/// When `fill` appends another number of rows than the header says.
pub fn row_block(header: Header, width: usize, fill: impl FnOnce(&mut Vec<f32>)) -> WireBlock {
    let numbers = header.aux as usize * width;
    let mut values = Vec::with_capacity(numbers);
    fill(&mut values);
    assert_eq!(values.len(), numbers, "the message has as many rows as its header says");
    WireBlock::new(header, Vec::new(), Vec::new(), Rows::F32(values))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use timely::dataflow::operators::core::Inspect;
    use timely::dataflow::operators::vec::ToStream;

    use super::*;

    #[test]
    fn blocks_arrive_at_their_destinations_at_1_2_and_4_workers() {
        const ROWS: usize = 70_000;
        for workers in [1, 2, 4] {
            let (send, receive) = mpsc::channel();
            let send = std::sync::Mutex::new(send);
            timely::execute(timely::Config::process(workers), move |worker| {
                let (me, peers, send) = (worker.index(), worker.peers(), send.lock().unwrap().clone());
                worker.dataflow::<u64, _, _>(|scope| {
                    let blocks = (0..peers).flat_map(move |to| {
                        let header = Header { to: to as u32, from: me as u32, seq: 5, ..Header::default() };
                        row_blocks(header, ROWS, 3, |rows, values| {
                            values.extend(rows.flat_map(|row| [row as f32, me as f32, to as f32]));
                        })
                    });
                    blocks.to_stream(scope).container::<Vec<WireBlock>>().scatter(Default::default()).inspect(
                        move |block: &WireBlock| {
                            let header = block.header();
                            assert!(block.row_bytes() <= MESSAGE_BYTES);
                            send.send((me, header, block.rows_f32().unwrap().to_vec())).unwrap();
                        },
                    );
                });
            })
            .unwrap();
            let mut seen = vec![0; workers * workers];
            for (me, header, rows) in receive {
                assert_eq!(header.to as usize, me);
                for (k, row) in rows.chunks_exact(3).enumerate() {
                    assert_eq!(row, [(header.seq as usize - 5 + k) as f32, header.from as f32, me as f32]);
                }
                seen[me * workers + header.from as usize] += header.aux as usize;
            }
            assert!(seen.iter().all(|&rows| rows == ROWS), "{seen:?}");
        }
    }
}
