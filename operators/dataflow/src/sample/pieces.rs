//! Replies with samples, split into messages of limited size. The last message is marked.

use crate::batch::mini_batch::Drawing;
use crate::wire::meter::{Meter, Stage};
use crate::wire::{Header, MESSAGE_BYTES, Rows, WireBlock};
use gnnflow_kernels::sample::{Columns, Samples};

/// Replies to the request with header `request` with `samples`.
pub(super) fn send(request: Header, samples: Samples, me: usize, meter: &Meter, reply: &mut dyn FnMut(WireBlock)) {
    let header = Header { to: request.from, from: me as u32, aux: samples.counts.len() as u32, ..request };
    let words = samples.into_words();
    let pieces = words.chunks(MESSAGE_BYTES / 4);
    let last = pieces.len().max(1) - 1;
    for (i, piece) in pieces.enumerate() {
        let header = Header { tag: u32::from(i == last), ..header };
        let block = WireBlock::new(header, Vec::new(), piece.to_vec(), Rows::None);
        meter.sent(me, Stage::Sample, &block);
        reply(block);
    }
}

/// Returns whether `reply` is the last message of its reply.
pub(super) fn is_last(reply: &WireBlock) -> bool {
    reply.header().tag == 1
}

/// Adds one message of a reply, whose samples have `columns`.
///
/// # Panics
/// When the reply does not match its counts. All workers run the same program, so this is a bug.
pub(super) fn receive(drawings: &mut [Drawing], columns: Columns, reply: &WireBlock) {
    let header = reply.header();
    let (owner, nodes) = (header.from as usize, header.aux as usize);
    let Drawing { incoming, samples, .. } = &mut drawings[owner];
    if is_last(reply) && incoming.is_empty() {
        samples.read(owner, nodes, columns, reply.ids()).unwrap_or_else(|bad| panic!("{bad}"));
        return;
    }
    incoming.extend_from_slice(reply.ids());
    if is_last(reply) {
        samples.read(owner, nodes, columns, incoming).unwrap_or_else(|bad| panic!("{bad}"));
        incoming.clear();
    }
}
