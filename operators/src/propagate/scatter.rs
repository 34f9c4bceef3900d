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

use crate::meter::Meter;
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

/// Cuts rows of `width` numbers into messages of at most 256 KB (or one row). `header.seq` numbers the rows from what it is;
/// `rows` has them one after another, and `fill` copies those of a range behind what it is given.
pub fn row_blocks(
    header: Header,
    rows: usize,
    width: usize,
    mut fill: impl FnMut(Range<usize>, &mut Vec<f32>),
) -> Vec<WireBlock> {
    let each = (MESSAGE_BYTES / 4 / width.max(1)).max(1);
    let mut blocks = Vec::with_capacity(rows.div_ceil(each));
    for first in (0..rows).step_by(each) {
        let range = first..(first + each).min(rows);
        let mut values = Vec::with_capacity(range.len() * width);
        fill(range.clone(), &mut values);
        assert_eq!(values.len(), range.len() * width, "as many numbers as rows have");
        let header = Header { seq: header.seq + first as u32, aux: range.len() as u32, ..header };
        blocks.push(WireBlock::new(header, Vec::new(), Vec::new(), Rows::F32(values)));
    }
    blocks
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
