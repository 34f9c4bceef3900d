//! Rows on their way: what leaves an interval or a chunk, and where it is put.

use std::ops::Range;

use gnnflow_operators::propagate::scatter::row_blocks;
use gnnflow_operators::wire::{Header, WireBlock};

use super::WholeGraph;
use super::evaluate::LastHop;
use super::rows::put_columns;
use super::tasks::Token;

/// Which table a block is for: a hop's activations, or its gradients, as senders have them.
pub(super) const ACTIVATIONS: u32 = 0;
pub(super) const GRADIENTS: u32 = 1;
/// The same as receivers have them: slices of what has arrived, and of the gradients of what was sent.
pub(super) const ARRIVED: u32 = 2;
pub(super) const SENT_BACK: u32 = 3;
/// Activations of the last hop, for all nodes that receive any.
pub(super) const FOR_ALL: u32 = 4;
/// Kinds of tables.
pub(super) const KINDS: u32 = 5;

impl WholeGraph {
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
            let rows = block.rows_f32().expect("ghosts are rows of numbers");
            return table.some_mut(first..first + header.aux as usize).copy_from_slice(rows);
        }
        let first = self.ghosts[hop][kind as usize][header.from as usize] + header.seq as usize;
        let state = &mut self.hops[hop];
        let table = match kind {
            ACTIVATIONS => &mut state.sent,
            _ => state.back.table_mut(&mut state.sent).expect("only wanted gradients are sent"),
        };
        let rows = block.rows_f32().expect("ghosts are rows of numbers");
        table.some_mut(first..first + header.aux as usize).copy_from_slice(rows);
    }

    /// Slices of own nodes' rows that a chunk is the first to need.
    pub(super) fn slices_of(
        &self,
        token: Token,
        [hop, chunk]: [usize; 2],
        kind: u32,
        rows: Range<usize>,
    ) -> Vec<WireBlock> {
        let (state, back) = (&self.hops[hop], kind == GRADIENTS);
        let table = if back { state.back.table(&state.sent) } else { Some(&state.sent) };
        let header = Header { tag: KINDS * hop as u32 + kind, key: token.tick, ..Header::default() };
        match (&self.slices, table) {
            (Some(slices), Some(table)) => slices.split(header, [hop, chunk], back, rows, table),
            _ => Vec::new(),
        }
    }

    /// Rows of a hop's table, for those who have them as ghosts.
    pub(super) fn outgoing(&self, token: Token, hop: usize, kind: u32, rows: Range<usize>) -> Vec<WireBlock> {
        let state = &self.hops[hop];
        let (links, table) = match (kind, &self.last_hop) {
            (FOR_ALL, Some(last)) => (&last.links, last.sent.as_ref().unwrap_or(&state.sent)),
            (GRADIENTS, _) => match state.back.table(&state.sent) {
                Some(back) => (&state.leaving, back),
                None => return Vec::new(),
            },
            _ => (&state.arriving, &state.sent),
        };
        if table.width() == 0 || table.rows() == 0 {
            return Vec::new();
        }
        if self.slices.is_some() {
            // Gradients lie by slot.
            let slots = if kind == GRADIENTS { self.slots as usize } else { 1 };
            return self.slices_of(token, [hop, 0], kind, rows.start / slots..rows.end / slots);
        }
        let block = |(worker, first, wanted): (usize, usize, &[u32])| {
            let header = Header {
                to: worker as u32,
                from: self.worker as u32,
                partition: 0,
                tag: KINDS * hop as u32 + kind,
                key: token.tick,
                seq: first as u32,
                aux: 0,
            };
            row_blocks(header, wanted.len(), table.width(), |range, values| {
                for &row in &wanted[range] {
                    values.extend_from_slice(table.some(row as usize..row as usize + 1));
                }
            })
        };
        links.wanted(rows).flat_map(block).collect()
    }
}
