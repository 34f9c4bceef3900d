//! Rows on their way: what leaves an interval or a chunk, and where it is put.

use std::ops::Range;

use gnnflow_dataflow::ghost::Links;
use gnnflow_dataflow::ghost::scatter::row_headers;
use gnnflow_dataflow::wire::{Header, MESSAGE_BYTES, WireBlock};

use super::WholeGraph;
use super::evaluate::LastHop;
use super::tasks::Token;
use crate::engine::aggregation::row_table::Stored;
use crate::engine::aggregation::rows::put_columns;

/// Which table a block is for: a hop's activations, or its gradients, as senders have them.
pub(crate) const ACTIVATIONS: u32 = 0;
pub(crate) const GRADIENTS: u32 = 1;
/// The same as receivers have them: slices of what has arrived, and of the gradients of what was sent.
pub(crate) const ARRIVED: u32 = 2;
pub(crate) const SENT_BACK: u32 = 3;
/// Activations of the last hop, for all nodes that receive any.
pub(crate) const FOR_ALL: u32 = 4;
/// Gradients of senders, as mirrors of their rows have them.
pub(crate) const MIRRORED: u32 = 5;
/// Kinds of tables.
pub(crate) const KINDS: u32 = 6;

/// Messages of a worker that are on their way at once; by columns, as many as what a chunk may take, if that is more: the rows of the
/// next chunk travel while this one is added up, and nobody has time to put any of them then.
const WINDOW: usize = 64;

/// The same where chunks may take `chunk_memory`, if rows are cut by columns.
pub(crate) fn window(chunk_memory: Option<u64>) -> usize {
    chunk_memory.map_or(WINDOW, |memory| WINDOW.max(memory as usize / MESSAGE_BYTES))
}

/// A message that is to be sent.
pub(crate) enum Parcel {
    /// Rows that stay where they are, and are copied when it is their turn.
    Rows(Header),
    /// Rows that lie nowhere else, or that must leave before anything else is computed.
    Made(WireBlock),
}

impl Parcel {
    /// The time that it travels at.
    pub(crate) fn time(&self) -> u64 {
        match self {
            Self::Rows(header) => header.key,
            Self::Made(block) => block.header().key,
        }
    }
}

impl WholeGraph {
    /// How many messages may be on their way from here at once.
    pub(crate) fn window(&self) -> usize {
        window(self.slices.as_ref().map(|slices| slices.chunk_memory()))
    }

    /// Puts rows that have come where they are read: into a ghost buffer, among slices, or from slices into rows.
    pub(crate) fn arrived(&mut self, block: &WireBlock) {
        let header = block.header();
        let (hop, kind) = ((header.tag / KINDS) as usize, header.tag % KINDS);
        if let Some(slices) = &mut self.slices {
            if kind == ACTIVATIONS || kind == GRADIENTS {
                return slices.put(hop, kind == GRADIENTS, block);
            }
            let from = header.from as usize;
            let (columns, entries) =
                (slices.columns(hop, from), slices.heads(hop).map(|heads| (heads.entries(from), heads.count())));
            let state = &mut self.hops[hop];
            let table = match (kind, &mut state.sent_back) {
                (SENT_BACK, Some(table)) => table,
                _ => &mut state.arrived,
            };
            let first = (header.seq - self.own.start) as usize;
            let (stride, place) = (table.width(), first..first + header.aux as usize);
            let rows = block.rows_f32().expect("slices are rows of numbers");
            let Some((entries, count)) = entries.filter(|_| kind == SENT_BACK) else {
                let stride = if kind == ARRIVED { stride / self.slots as usize } else { stride };
                return put_columns(table.some_mut(place), stride, columns.start, rows, columns.len());
            };
            // Behind the columns, what pieces of heads have of the terms' gradients.
            let (width, each) = (stride - 2 * count, entries.len());
            let rows = rows.chunks_exact(columns.len() + 2 * each);
            for (out, row) in table.some_mut(place).chunks_exact_mut(stride).zip(rows) {
                out[columns.clone()].copy_from_slice(&row[..columns.len()]);
                for (first, terms) in [width, width + count].into_iter().zip(row[columns.len()..].chunks_exact(each)) {
                    out[first + entries.start..first + entries.end].copy_from_slice(terms);
                }
            }
            return;
        }
        if let (FOR_ALL, Some(LastHop { sent: Some(table), ghosts, .. })) = (kind, &mut self.last_hop) {
            let first = ghosts[header.from as usize] + header.seq as usize;
            return table.put(first..first + header.aux as usize, block);
        }
        let state = &mut self.hops[hop];
        let exact = || block.rows_f32().expect("mirrors' rows are numbers");
        if let (MIRRORED, Some(mirrors)) = (kind, &mut state.mirrors) {
            return mirrors.hear(header, exact());
        }
        let first = self.ghosts[hop][kind as usize][header.from as usize] + header.seq as usize;
        let rows = first..first + header.aux as usize;
        let table = match (kind, &mut state.mirrors) {
            (ACTIVATIONS, Some(mirrors)) => return mirrors.put(rows, exact()),
            (ACTIVATIONS, None) => &mut state.sent,
            _ => state.back.table_mut(&mut state.sent).expect("only wanted gradients are sent"),
        };
        table.put(rows, block);
    }

    /// Slices of own nodes' rows that a chunk is the first to need.
    pub(crate) fn slices_of(
        &self,
        token: Token,
        [hop, chunk]: [usize; 2],
        kind: u32,
        rows: Range<usize>,
    ) -> Vec<Header> {
        let header = self.header(token, hop, kind);
        match (&self.slices, self.slices_from(hop, kind)) {
            (Some(slices), Some(_)) => slices.split(header, [hop, chunk], kind == GRADIENTS, rows),
            _ => Vec::new(),
        }
    }

    /// What is split into slices of activations or gradients.
    fn slices_from(&self, hop: usize, kind: u32) -> Option<&Stored> {
        let state = &self.hops[hop];
        if kind == GRADIENTS { state.back.table(&state.sent) } else { Some(&state.sent) }
    }

    pub(crate) fn header(&self, token: Token, hop: usize, kind: u32) -> Header {
        let (from, tag) = (self.worker as u32, KINDS * hop as u32 + kind);
        Header { from, tag, key: token.tick, ..Header::default() }
    }

    /// Where rows lie that others have as ghosts, and who has which of them.
    fn ghosts_from(&self, hop: usize, kind: u32) -> Option<(&Links, &Stored)> {
        let state = &self.hops[hop];
        let (links, table) = match (kind, &self.last_hop) {
            (FOR_ALL, Some(last)) => (&last.links, last.sent.as_ref().unwrap_or(&state.sent)),
            (GRADIENTS, _) => (&state.leaving, state.back.table(&state.sent)?),
            _ => (&state.arriving, &state.sent),
        };
        (table.width() > 0 && table.rows() > 0).then_some((links, table))
    }

    /// Rows of a hop's table, for those who have them as ghosts.
    pub(crate) fn outgoing(&self, token: Token, hop: usize, kind: u32, rows: Range<usize>) -> Vec<Parcel> {
        let Some((links, table)) = self.ghosts_from(hop, kind) else { return Vec::new() };
        if self.slices.is_some() {
            // Gradients lie by slot.
            let slots = if kind == GRADIENTS { self.slots as usize } else { 1 };
            let headers = self.slices_of(token, [hop, 0], kind, rows.start / slots..rows.end / slots);
            return headers.into_iter().map(Parcel::Rows).collect();
        }
        let header = self.header(token, hop, kind);
        let to_worker = |(worker, first, wanted): (usize, usize, &[u32])| {
            row_headers(Header { to: worker as u32, seq: first as u32, ..header }, wanted.len(), table.row_bytes())
        };
        links.wanted(rows).flat_map(to_worker).map(Parcel::Rows).collect()
    }

    /// The message of a parcel, whose turn it is.
    pub(crate) fn message(&self, parcel: Parcel) -> WireBlock {
        match parcel {
            Parcel::Made(block) => block,
            Parcel::Rows(header) => self.rows(header),
        }
    }

    /// The message of a header that [`WholeGraph::outgoing`] or [`WholeGraph::slices_of`] has made.
    pub(crate) fn rows(&self, header: Header) -> WireBlock {
        let (hop, kind) = ((header.tag / KINDS) as usize, header.tag % KINDS);
        if let Some(slices) = &self.slices {
            let table = self.slices_from(hop, kind).expect("nothing is split that is not there");
            return slices.slices(header, hop, kind == GRADIENTS, table.exact());
        }
        if let (MIRRORED, Some(mirrors)) = (kind, &self.hops[hop].mirrors) {
            return mirrors.message(header);
        }
        let (links, table) = self.ghosts_from(hop, kind).expect("nothing is sent that is not there");
        let wanted = &links.wanted_by(header.to as usize)[header.seq as usize..(header.seq + header.aux) as usize];
        table.message(header, wanted)
    }
}
