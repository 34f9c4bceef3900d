//! Brings blocks of rows to the workers whom they are for.
//!
//! *In*: blocks that name their receiver. *Out*: at the receiver, the same blocks. *Kept per time*: nothing. *Capabilities*: none
//! are held; a block leaves as it comes. When the frontier has passed a time, all its rows are where they belong.
//!
//! One operator for Dorylus's scatter, forwards and backwards, and for NeutronTP's split and gather: they differ in which rows
//! and columns go to whom. [`row_blocks`] cuts them into messages.

use std::ops::Range;
use std::rc::Rc;

use timely::container::{CapacityContainerBuilder, NoopBuilder};
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;

use crate::wire::meter::Meter;
use crate::wire::{Header, MESSAGE_BYTES, Rows, WireBlock, to_destination};

/// Blocks to whom they are for.
pub trait Scatter<'scope> {
    /// Sends each block to the worker of its header's `to`.
    fn scatter(self, meter: Rc<Meter>) -> Self;
}

impl<'scope> Scatter<'scope> for StreamVec<'scope, u64, WireBlock> {
    fn scatter(self, meter: Rc<Meter>) -> Self {
        let me = self.scope().index();
        let alone = self.unary::<NoopBuilder<WireBlock>, _, _, _>(Pipeline, "scatter: send", move |_, _| {
            move |input, output| {
                input.for_each(|time, blocks| {
                    for mut block in blocks.drain(..) {
                        meter.sent(me, &block);
                        output.session_with_builder(&time).give_container(&mut block);
                    }
                });
            }
        });
        alone.unary::<CapacityContainerBuilder<Vec<WireBlock>>, _, _, _>(
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

/// The headers of messages of at most 256 KB (or one row) that so many rows of `row_bytes` are cut into: `seq` numbers the rows from
/// what it is, `aux` says how many a message has.
pub fn row_headers(header: Header, rows: usize, row_bytes: usize) -> impl Iterator<Item = Header> {
    let each = (MESSAGE_BYTES / row_bytes.max(1)).max(1);
    let cut = move |first: usize| {
        let count = each.min(rows - first);
        Header { seq: header.seq + first as u32, aux: count as u32, ..header }
    };
    (0..rows).step_by(each).map(cut)
}

/// Cuts rows of `width` numbers into messages by [`row_headers`]; `rows` has them one after another, and `fill` copies those of a range
/// behind what it is given.
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

/// The message of a header of [`row_headers`]; `fill` adds its rows.
///
/// # Panics
/// When these are not as many as the header says.
pub fn row_block(header: Header, width: usize, fill: impl FnOnce(&mut Vec<f32>)) -> WireBlock {
    let numbers = header.aux as usize * width;
    let mut values = Vec::with_capacity(numbers);
    fill(&mut values);
    assert_eq!(values.len(), numbers, "as many numbers as rows have");
    WireBlock::new(header, Vec::new(), Vec::new(), Rows::F32(values))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use timely::dataflow::operators::core::Inspect;
    use timely::dataflow::operators::vec::ToStream;

    use super::*;

    #[test]
    fn blocks_come_to_whom_they_are_for_at_1_2_and_4_workers() {
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
