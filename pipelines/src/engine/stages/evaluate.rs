//! Every node by the model as it is: the stages up to the loss, without dropout, for all nodes.
//!
//! The last hop's receivers are all nodes here, where training may need fewer: its links, its ghosts and what it attends with are
//! then others than in training.

use std::ops::Range;
use std::sync::Arc;

use gnnflow_dataflow::ghost::Links;
use gnnflow_dataflow::storage::Place;
use gnnflow_nn::layers::Aggregation;
use gnnflow_nn::model::Hop;

use super::attend::{AttentionState, Dropped};
use super::gather::gather;
use super::graph_links::slots_of;
use super::maximum::Largest;
use super::row_table::Stored;
use super::rows::Selection;
use super::tasks::Token;
use super::{HopState, Interval, WholeGraph};
use crate::compute::ComputeState;
use crate::config::RowDtype;
use crate::runtime::tensor_task::{NodeRows, TensorTask, Work, matrix};
use gnnflow_dataflow::storage::layer_store::LayerStore;

/// The last hop where its receivers are all nodes.
pub(super) struct LastHop {
    pub(super) links: Arc<Links>,
    /// Activations, where other workers' are among them; else those of training have the same rows.
    pub(super) sent: Option<Stored>,
    pub(super) attention: Option<AttentionState>,
    pub(super) largest: Option<Largest>,
    /// Where each worker's ghosts begin.
    pub(super) ghosts: Vec<usize>,
}

impl LastHop {
    pub(super) fn new(
        hop: &Hop,
        (dtype, stride): (RowDtype, usize),
        links: &Arc<Links>,
        starts: &[u32],
        place: &Place,
    ) -> std::io::Result<Self> {
        let attention = match hop.aggregation {
            // Nothing is dropped.
            Aggregation::Attention { slope, .. } => {
                Some(AttentionState::new(hop, [slope, 0.0], links.rows().len(), [links, links], place)?)
            }
            _ => None,
        };
        let largest = match hop.takes_largest() {
            true => Some(Largest::new(links.rows().len(), hop.width, place)?),
            false => None,
        };
        let own = links.table().len();
        let sent = match links.ghosts() {
            [] => None,
            _ => Some(Stored::zeros(dtype, links.table_rows(), stride, place)?),
        };
        let ghosts = starts.iter().map(|&start| own + links.ghosts().partition_point(|&node| node < start)).collect();
        Ok(Self { links: Arc::clone(links), sent, attention, largest, ghosts })
    }
}

/// Where rows of all nodes go.
#[derive(Clone)]
pub(crate) struct Results {
    /// The model's results.
    pub(crate) results: Arc<LayerStore>,
    /// What the last layer reads of a node, unless those are the results.
    pub(crate) embeddings: Option<Arc<LayerStore>>,
}

impl WholeGraph {
    /// Whether embeddings, which are what the last layer reads, are whole rows at some time. Not where a readout stands behind it, which
    /// reads the last layer's own results.
    pub(crate) fn has_embeddings(&self) -> bool {
        !self.chained[self.hops.len() - 1] && !self.reads_out
    }

    /// The last node task of an interval, whose results are the model's.
    pub(super) fn result(&mut self, trainer: &mut ComputeState, token: Token, interval: &Interval) -> TensorTask {
        let last = self.hops.len() - 1;
        let rows = interval.rows.clone();
        let aggregated = match (&self.last_hop, &self.slices) {
            (Some(_), None) => self.arrived_at_all(trainer, interval),
            (None, None) => {
                self.gather_rows(trainer, token, last, interval);
                None
            }
            _ => None,
        };
        let (index, count) = (last + 1, rows.len());
        let rows = match aggregated {
            Some((values, width)) => NodeRows {
                aggregated: Some(matrix(values, width)),
                ..self.inputs_but_arrived(index, Selection::Range(rows))
            },
            None => self.inputs(index, Selection::Range(rows)),
        };
        TensorTask { index, count, rows, key: None, work: Work::Forward }
    }

    /// What arrives at all nodes of an interval at the last hop, and its width.
    fn arrived_at_all(&mut self, trainer: &mut ComputeState, interval: &Interval) -> Option<(Vec<f32>, usize)> {
        let (range, own, seed): (Range<u32>, _, _) = (self.nodes(&interval.rows), self.own.start, self.seed);
        let last = self.hops.len() - 1;
        let vectors = self.vectors(last, self.parameters.latest());
        let LastHop { links, sent, attention, largest, .. } = self.last_hop.as_mut()?;
        if let (Some(attention), Some(vectors)) = (&mut *attention, vectors) {
            attention.attend_by(vectors);
        }
        let HopState { sent: trained, scales, width, .. } = &self.hops[last];
        let (width, table, slots) = (*width, sent.as_ref().unwrap_or(trained), self.slots);
        let rows = links.rows().between(&slots_of(&range, slots));
        let mut out = vec![0.0; rows.len() * width];
        trainer.timed_forward(|| match (attention, largest) {
            (Some(attention), _) => {
                let drop = Dropped { seed, epoch: 0, hop: last, nothing: true };
                attention.forward(links, rows, table.exact(), drop, &mut out)
            }
            (_, Some(largest)) => largest.forward(links, rows, table.exact(), &mut out),
            _ => gather(links, rows, table, scales, own * slots, &mut out),
        });
        (width > 0).then_some((out, slots as usize * width))
    }
}
