//! The end of a stage of an interval: writes the result of its node task to the tables, and sends rows to other workers.

use std::sync::Arc;

use gnnflow_nn::model::NodeOutputs;
use gnnflow_nn::tensors::read;

use super::gradient_sums::StageGradient;
use super::intervals::Interval;
use super::message::Outgoing;
use super::pair_results::no_pairs;
use super::program::Stage;
use super::state::{EpochState, Progress};
use super::token::{Ended, Finished, Token};
use crate::compute::ComputeState;
use crate::engine::aggregation::rows::Selection;
use crate::error::Error;
use gnnflow_nn::node_task::{NodeBack, NodeResult};

impl EpochState {
    /// Ends a stage of an interval with the result of its task, if it had one.
    pub(crate) fn end(
        &mut self,
        compute: &mut ComputeState,
        token: Token,
        result: Option<NodeResult>,
    ) -> Result<Ended, Error> {
        let intervals = Arc::clone(&self.intervals);
        let interval = &intervals[token.item as usize];
        let (stage, evaluates) = (self.program.stage(token.stage()), token.evaluates());
        let mut gradient = None;
        let rows = match (stage, result) {
            (Stage::Forward(index), Some(NodeResult::Outputs(outputs))) => {
                self.end_forward(compute, token, index, interval, &outputs)?
            }
            (Stage::Embed, Some(NodeResult::Outputs(outputs))) if !evaluates => {
                self.nodes.clear_gradients(&interval.rows);
                self.pairs.as_mut().ok_or_else(no_pairs)?.store(&self.nodes, &interval.rows, &outputs)?;
                Vec::new()
            }
            (Stage::Loss | Stage::Embed, Some(NodeResult::Outputs(outputs))) => {
                let nodes: Vec<u32> = self.nodes.nodes(&interval.rows).collect();
                if let Some(results) = &self.results {
                    let mut into = results.write()?;
                    read(outputs.held()?, |found| into.set(&nodes, found))?;
                }
                Vec::new()
            }
            (Stage::Loss, Some(NodeResult::Back(mut back))) => {
                gradient = Some(StageGradient::of(&mut back));
                self.end_loss(compute, token, interval, Some(back))
            }
            (Stage::Loss, None) if !evaluates => self.end_loss(compute, token, interval, None),
            (Stage::Backward(index), Some(NodeResult::Back(mut back))) => {
                gradient = Some(StageGradient::of(&mut back));
                self.end_backward(compute, token, index, interval, back)?
            }
            (Stage::Forward(_) | Stage::Loss | Stage::Embed, None) => Vec::new(),
            _ => return Err(Error::Bug("the result of a node task does not fit its stage".into())),
        };
        let done = Finished { rows, gradient: None };
        if evaluates {
            return Ok(vec![(token, done)]);
        }
        if self.program.is_last(token.stage()) {
            self.settled = true;
            self.vectors.parameters().release(token.item, token.epoch());
        }
        Ok(self.gradients.add(&self.program, token, interval, gradient, done))
    }

    fn end_forward(
        &mut self,
        compute: &mut ComputeState,
        token: Token,
        index: usize,
        interval: &Interval,
        outputs: &NodeOutputs,
    ) -> Result<Vec<Outgoing>, Error> {
        let (nodes, mut held) = (&mut self.nodes, Ok(()));
        compute.timed_forward(|| held = nodes.hold(index, &interval.rows, outputs));
        held?;
        let (exchange, mut cx) = self.exchange(compute, token);
        let rows = exchange.send(&mut cx, index, interval, outputs)?;
        let progress = &mut self.progress[token.item as usize];
        *progress = (*progress).max(Progress::Sent);
        Ok(rows)
    }

    fn end_loss(
        &mut self,
        compute: &mut ComputeState,
        token: Token,
        interval: &Interval,
        back: Option<NodeBack>,
    ) -> Vec<Outgoing> {
        // The last task covers nodes with a loss only; the gradients of other nodes are zeros.
        self.nodes.clear_gradients(&interval.rows);
        let seeds = if back.is_some() { &interval.seeds[..] } else { &[] };
        self.send_gradient(compute, token, self.hops - 1, interval, Selection::Rows(seeds), back.unwrap_or_default())
    }

    fn end_backward(
        &mut self,
        compute: &mut ComputeState,
        token: Token,
        index: usize,
        interval: &Interval,
        back: NodeBack,
    ) -> Result<Vec<Outgoing>, Error> {
        let Some(hop) = index.checked_sub(1) else {
            if let Some(learned) = &self.learned {
                let pairs = self.pairs.as_ref().map(|pairs| pairs.examples(token.epoch()));
                let nodes = self.nodes.nodes(&interval.rows).collect();
                learned.update(compute, token, pairs, nodes, back.held)?;
            }
            return Ok(Vec::new());
        };
        let rows = Selection::Range(interval.rows.clone());
        Ok(self.send_gradient(compute, token, hop, interval, rows, back))
    }

    /// Stores the gradients of the inputs of the node task after hop `hop`, and sends those of aggregated rows to the senders.
    fn send_gradient(
        &mut self,
        compute: &mut ComputeState,
        token: Token,
        hop: usize,
        interval: &Interval,
        rows: Selection<'_>,
        back: NodeBack,
    ) -> Vec<Outgoing> {
        if !self.program.goes_back(hop) {
            return Vec::new();
        }
        self.nodes.add_gradients(hop, &rows, back.held.as_deref(), back.initial.as_deref());
        let (exchange, mut cx) = self.exchange(compute, token);
        exchange.send_gradient(&mut cx, hop, interval, &rows, back.aggregated)
    }
}
