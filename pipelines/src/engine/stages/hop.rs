//! What one hop needs and keeps: who adds up whose rows, and room for those.

use std::sync::Arc;

use gnnflow_dataflow::ghost::Links;
use gnnflow_dataflow::storage::{Place, Table};
use gnnflow_kernels::aggregate::dynamic_attention::KEPT;
use gnnflow_nn::layers::Propagation;

use super::Shape;
use super::attend::AttentionState;
use super::graph_links::GraphLinks;
use super::head_shards::Heads;
use super::maximum::Largest;
use super::mirrors::Mirrors;
use super::program::Program;
use super::row_table::Stored;
use super::scales::Scales;
use crate::config::RowDtype;
use crate::error::Error;

/// Where a hop's gradients lie.
pub(super) enum Back {
    /// Nobody wants them.
    Nowhere,
    /// Where the activations were: whose rows have been added up everywhere, and are not asked for again.
    OverSent,
    /// In a table of their own.
    Own(Stored),
}

impl Back {
    pub(super) fn table<'a>(&'a self, sent: &'a Stored) -> Option<&'a Stored> {
        match self {
            Self::Nowhere => None,
            Self::OverSent => Some(sent),
            Self::Own(table) => Some(table),
        }
    }

    pub(super) fn table_mut<'a>(&'a mut self, sent: &'a mut Stored) -> Option<&'a mut Stored> {
        match self {
            Self::Nowhere => None,
            Self::OverSent => Some(sent),
            Self::Own(table) => Some(table),
        }
    }
}

/// What one hop needs and keeps.
pub(super) struct HopState {
    /// Columns of what is sent, and of what arrives in each slot.
    pub(super) width: usize,
    /// Columns of attention's terms that are sent behind it, by those who have the out-edges.
    pub(super) sent_terms: usize,
    pub(super) scales: Scales,
    /// For gradients.
    pub(super) reversed: Scales,
    /// Rows are receivers' slots; the table has senders.
    pub(super) arriving: Arc<Links>,
    /// Rows are senders; the table has receivers' slots.
    pub(super) leaving: Arc<Links>,
    /// Gradients of what is sent, where they come from elsewhere.
    pub(super) sent_back: Option<Table>,
    /// Activations, times `scales.before`.
    pub(super) sent: Stored,
    /// What has arrived, at receivers: their slots side by side.
    pub(super) arrived: Table,
    /// Gradients of what has arrived, times `scales.after`.
    pub(super) back: Back,
    /// Where rows are weighed by attention.
    pub(super) attention: Option<AttentionState>,
    /// Where they are, and epochs overlap.
    pub(super) mirrors: Option<Mirrors>,
    /// Where the largest of each column arrives.
    pub(super) largest: Option<Largest>,
    /// What own nodes hold, where a later task reads it, and its gradient.
    pub(super) held: Option<[Table; 2]>,
}

/// What hops are made of.
pub(super) struct Making<'a> {
    pub(super) graph: &'a GraphLinks,
    pub(super) shape: &'a Shape,
    pub(super) program: &'a Program,
    /// By node task, whether it is done on slices.
    pub(super) chained: &'a [bool],
    pub(super) place: &'a Place,
}

impl Making<'_> {
    /// A hop, and where each worker's ghosts begin in its tables, of activations and of gradients.
    ///
    /// # Errors
    /// When there is no room, or rows that are more than added up are to be rounded.
    pub(super) fn hop(&self, index: usize) -> Result<(HopState, [Vec<usize>; 2]), Error> {
        let Self { graph, shape, program, place, .. } = *self;
        let (hop, dtype) = (&shape.hops[index], shape.row_dtype);
        let is_last = index + 1 == shape.hops.len();
        let [arriving, leaving] = if is_last { graph.last.clone() } else { graph.all.clone() };
        let (own, slots, by_nodes) = (graph.own.len(), graph.slots, graph.columns.is_none());
        if dtype != RowDtype::F32 && (hop.attends() || hop.takes_largest()) {
            let message = "does more with its neighbours' rows than to add them up, for which they must be";
            return Err(Error::Usage(format!(
                "train.schedule.row_dtype: layer {} {message} \"{}\"",
                index + 1,
                RowDtype::F32
            )));
        }
        let room = |error: std::io::Error| Error::Machine(format!("no room for the rows of the whole graph: {error}"));
        let zeros = |rows: usize, width: usize| Table::zeros(rows, width, place).map_err(room);
        // By columns, it is slices of these that are added up.
        let dtype = if by_nodes { dtype } else { RowDtype::F32 };
        let stored = |rows: usize, width: usize| Stored::zeros(dtype, rows, width, place).map_err(room);
        // Whole rows are only where a node task reads or makes them.
        let whole = |task: usize| by_nodes || !self.chained[task];
        let (splits, gathers, goes_back) = (whole(index), whole(index + 1), program.goes_back(index));
        let begins = |links: &Links, slots: u32| -> Vec<usize> {
            let own = links.table().len();
            let first = |&start: &u32| own + links.ghosts().partition_point(|&id| id < start * slots);
            graph.starts.iter().map(first).collect()
        };
        let ghosts = [begins(&arriving, 1), begins(&leaving, slots)];
        let receivers = arriving.rows().len();
        let (width, [more, more_back], attention) = match hop.propagation {
            Propagation::Nothing => (0, [0; 2], None),
            // Terms of in-edges travel too, to where a slice's columns are added up.
            Propagation::Attention { .. } if !by_nodes => (hop.width, [hop.sent_terms() + hop.terms(), 0], None),
            Propagation::Attention { slope, dropout, .. } => {
                let state = AttentionState::new(hop, [slope, dropout], receivers, [&arriving, &leaving], place);
                (hop.width, [hop.sent_terms(), hop.terms() + KEPT * hop.heads()], Some(state.map_err(room)?))
            }
            Propagation::Max if by_nodes => (hop.width, [0, hop.width], None),
            _ => (hop.width, [0; 2], None),
        };
        let largest = match hop.takes_largest() && by_nodes {
            true => Some(Largest::new(receivers, width, place).map_err(room)?),
            false => None,
        };
        let mirrors = match hop.attends() && by_nodes && shape.staleness > 0 {
            true => {
                let (widths, stride) = ([hop.width, hop.terms()], hop.width + hop.sent_terms());
                let places = [place, &graph.edges_at];
                Some(Mirrors::new(widths, stride, &arriving, &ghosts[0], places).map_err(room)?)
            }
            false => None,
        };
        // Attention goes back by the activations, beside gradients stands who was the largest, and where epochs overlap, others may
        // still read them.
        let remembers = hop.attends() || hop.takes_largest() && by_nodes;
        // The last hop's gradients come while others are still adding up its activations.
        let apart = !is_last || !by_nodes;
        let over_sent = Arc::ptr_eq(&arriving, &leaving) && !remembers && !shape.overlaps && apart && splits;
        // What own rows of gradients say of ghosts is told by mirrors.
        let back_rows = if mirrors.is_some() { leaving.table().len() } else { leaving.table_rows() };
        let back = match goes_back && gathers {
            false => Back::Nowhere,
            true if over_sent => Back::OverSent,
            true => Back::Own(stored(back_rows, width + more_back)?),
        };
        let read_at_end = index == 0 && shape.reads_initial.contains(&true);
        let held = match hop.keeps_held && (gathers || read_at_end) {
            true => Some([zeros(own, hop.held)?, zeros(if goes_back { own } else { 0 }, hop.held)?]),
            false => None,
        };
        let sent_back = match &graph.columns {
            Some(columns) => {
                // Behind the gradients of rows, those of terms, by piece.
                let terms = match hop.attends() && splits {
                    true => 2 * Heads::of_hop(hop, columns.parts.len(), columns.starts.len() - 1).count(),
                    false => 0,
                };
                Some(zeros(if splits && goes_back { own } else { 0 }, width + terms)?)
            }
            None => None,
        };
        // Slices are scaled where they are added up.
        let scales = match by_nodes {
            true => Scales::of_parts(hop.propagation, graph.own.start, &graph.in_edges),
            false => Scales::default(),
        };
        let state = HopState {
            width,
            sent_terms: hop.sent_terms(),
            reversed: scales.reversed(),
            scales,
            sent_back,
            sent: stored(if splits { arriving.table_rows() } else { 0 }, width + more)?,
            arrived: zeros(if gathers { receivers / slots as usize } else { 0 }, slots as usize * width)?,
            back,
            attention,
            mirrors,
            largest,
            held,
            arriving,
            leaving,
        };
        Ok((state, ghosts))
    }
}
