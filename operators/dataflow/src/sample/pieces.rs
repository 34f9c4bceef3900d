//! Answers with samples: cut into messages wherever they are full; the last one says so.

use crate::batch::mini_batch::Drawing;
use crate::wire::meter::Meter;
use crate::wire::{Header, MESSAGE_BYTES, Rows, WireBlock};
use gnnflow_kernels::sample::{Columns, Samples};

/// Answers the question `asked` with `samples`.
pub(super) fn send(asked: Header, samples: Samples, me: usize, meter: &Meter, reply: &mut dyn FnMut(WireBlock)) {
    let header = Header { to: asked.from, from: me as u32, aux: samples.counts.len() as u32, ..asked };
    let words = samples.into_words();
    let pieces = words.chunks(MESSAGE_BYTES / 4);
    let last = pieces.len().max(1) - 1;
    for (i, piece) in pieces.enumerate() {
        let header = Header { tag: u32::from(i == last), ..header };
        let block = WireBlock::new(header, Vec::new(), piece.to_vec(), Rows::None);
        meter.sent(me, &block);
        reply(block);
    }
}

/// Whether `answer` is the last one to its question.
pub(super) fn is_last(answer: &WireBlock) -> bool {
    answer.header().tag == 1
}

/// Takes in one message of an answer with `columns`.
///
/// # Panics
/// When the answer does not fit its counts: peers run the same program, so that is our bug.
pub(super) fn receive(drawings: &mut [Drawing], columns: Columns, answer: &WireBlock) {
    let header = answer.header();
    let (owner, nodes) = (header.from as usize, header.aux as usize);
    let Drawing { incoming, samples, .. } = &mut drawings[owner];
    if is_last(answer) && incoming.is_empty() {
        samples.read(owner, nodes, columns, answer.ids()).unwrap_or_else(|bad| panic!("{bad}"));
        return;
    }
    incoming.extend_from_slice(answer.ids());
    if is_last(answer) {
        samples.read(owner, nodes, columns, incoming).unwrap_or_else(|bad| panic!("{bad}"));
        incoming.clear();
    }
}
