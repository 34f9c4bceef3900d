//! The last hop in evaluation, if training has fewer receivers: separate links, ghosts and state, for all nodes.

use std::sync::Arc;

use gnnflow_dataflow::ghost::Links;
use gnnflow_dataflow::wire::WireBlock;

use super::ghost_rows::{first_rows, rows_at};
use crate::engine::aggregation::row_table::WireRows;

/// Edges to all nodes.
pub(crate) struct EvaluationLinks {
    pub(crate) links: Arc<Links>,
    /// By worker, the first row of its ghosts.
    ghosts: Vec<usize>,
}

impl EvaluationLinks {
    pub(super) fn new(links: &Arc<Links>, starts: &[u32]) -> Self {
        Self { links: Arc::clone(links), ghosts: first_rows(links, starts, 1) }
    }
}

/// The last hop in evaluation. `T` is the table of its activations, `S` the state of its aggregation.
pub(crate) struct EvaluationHop<T, S> {
    pub(crate) links: EvaluationLinks,
    /// Activations, if there are ghosts; else the table of training has the same rows.
    sent: Option<T>,
    pub(crate) state: S,
}

impl<T: WireRows, S> EvaluationHop<T, S> {
    /// Reserves the table of activations with `zeros(rows)`, if there are ghosts.
    pub(super) fn new(
        links: EvaluationLinks,
        state: S,
        zeros: impl FnOnce(usize) -> std::io::Result<T>,
    ) -> std::io::Result<Self> {
        let sent = match links.links.ghosts() {
            [] => None,
            _ => Some(zeros(links.links.table_rows())?),
        };
        Ok(Self { links, sent, state })
    }

    /// Returns the table of activations; `trained` is that of training.
    pub(super) fn sent<'a>(&'a self, trained: &'a T) -> &'a T {
        self.sent.as_ref().unwrap_or(trained)
    }

    /// Returns the table of activations to write to, the links and the state.
    pub(super) fn parts<'a>(&'a mut self, trained: &'a mut T) -> (&'a mut T, &'a Links, &'a mut S) {
        (self.sent.as_mut().unwrap_or(trained), &self.links.links, &mut self.state)
    }

    /// Stores the rows of a message.
    pub(super) fn receive(&mut self, block: &WireBlock) {
        if let Some(table) = &mut self.sent {
            table.put(rows_at(&self.links.ghosts, block.header()), block);
        }
    }
}
