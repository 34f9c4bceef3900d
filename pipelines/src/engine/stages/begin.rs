//! The start of a stage of an interval: reads its rows and makes a node task of them. [`finish`](super::finish) writes the result of the task.

use std::sync::Arc;

use gnnflow_data::rng::{Key, Purpose};

use super::exchange::Evaluated;
use super::intervals::Interval;
use super::message::Outgoing;
use super::pair_results::no_pairs;
use super::program::{Propagated, Stage};
use super::state::{EpochState, Progress};
use super::token::{Ended, Finished, Token};
use crate::compute::ComputeState;
use crate::engine::aggregation::rows::Selection;
use crate::error::Error;
use gnnflow_nn::node_task::{NodeGradient, NodeTask, Work};
use gnnflow_nn::parameter_versions::ParameterVersion;

/// The state of a stage after its start.
pub(crate) enum Begun {
    /// The stage is over without a node task.
    Ended(Ended),
    /// The task to compute with this parameter version.
    Task(Box<NodeTask>, ParameterVersion),
}

impl EpochState {
    /// Begins a stage of an interval, or runs a stage of a chunk. After a task, the caller passes its result to [`EpochState::end`] before it begins
    /// another stage of the interval.
    ///
    /// # Errors
    /// When rows are missing.
    pub(crate) fn begin(&mut self, compute: &mut ComputeState, token: Token) -> Result<Begun, Error> {
        let stage = self.program.stage(token.stage());
        let of_chunk = match stage {
            Stage::Propagate(stage) => Some(self.propagate(compute, token, stage)?),
            Stage::AttentionBackward(stage) => {
                let (exchange, mut cx) = self.exchange(compute, token);
                Some(exchange.attention_backward(&mut cx, stage))
            }
            _ => None,
        };
        if let Some(rows) = of_chunk {
            return Ok(Begun::Ended(vec![(token, Finished { rows, gradient: None })]));
        }
        let intervals = Arc::clone(&self.intervals);
        let interval = &intervals[token.item as usize];
        let key = [interval.partition, token.epoch(), interval.number]
            .into_iter()
            .fold(Key::new(self.seed(), Purpose::Dropout), |key, word| key.fold(u64::from(word)));
        let task = match (stage, token.evaluates()) {
            (Stage::Forward(index), evaluates) => {
                self.forward(compute, token, index, interval, (!evaluates).then_some(key))
            }
            (_, true) => self.results.is_some().then(|| self.result(compute, token, interval)),
            (Stage::Backward(index), _) if index == self.hops => Some(self.embed_backward(interval, key)?),
            (Stage::Embed, _) => self.forward(compute, token, self.hops, interval, Some(key)),
            (Stage::Backward(index), _) => Some(self.backward(compute, token, index, interval, key)?),
            _ => self.loss(compute, token, interval, key)?,
        };
        match task {
            Some(task) => {
                let parameters = self.vectors.parameters();
                let version = match token.evaluates() {
                    false => parameters.choose(token.item, token.epoch(), task.index),
                    true => parameters.latest(),
                };
                Ok(Begun::Task(Box::new(task), version))
            }
            None => self.end(compute, token, None).map(Begun::Ended),
        }
    }

    /// Tells whether a token is an interval at a stage, rather than a chunk.
    pub(super) fn is_interval(&self, token: Token) -> bool {
        self.program.stage(token.stage()).is_of_intervals()
    }

    fn propagate(
        &mut self,
        compute: &mut ComputeState,
        token: Token,
        stage: Propagated,
    ) -> Result<Vec<Outgoing>, Error> {
        // A chain of hops from constant rows is aggregated once.
        let from_start = stage.hop == 0 || self.element_wise[1..=stage.hop].iter().all(|&element_wise| element_wise);
        if self.constant && self.settled && from_start && !stage.backward {
            return Ok(Vec::new());
        }
        let (exchange, mut cx) = self.exchange(compute, token);
        exchange.propagate(&mut cx, stage)
    }

    /// Aggregates hop `hop` for an interval, unless its rows are constant and have been aggregated.
    pub(super) fn aggregate(&mut self, compute: &mut ComputeState, token: Token, hop: usize, interval: &Interval) {
        if hop == 0 && self.constant {
            let progress = &mut self.progress[token.item as usize];
            if *progress == Progress::Aggregated {
                return;
            }
            *progress = Progress::Aggregated;
        }
        let (exchange, mut cx) = self.exchange(compute, token);
        exchange.aggregate(&mut cx, hop, interval);
    }

    /// Returns node task `index` over some own rows.
    pub(super) fn task(&self, index: usize, rows: Selection<'_>, key: Option<Key>, work: Work) -> NodeTask {
        let aggregated = index.checked_sub(1).and_then(|hop| self.exchange.aggregated(hop, &rows));
        NodeTask { index, count: rows.iter().count(), rows: self.nodes.inputs(index, &rows, aggregated), key, work }
    }

    /// Returns the forward task; `None` if its constant results have been sent.
    fn forward(
        &mut self,
        compute: &mut ComputeState,
        token: Token,
        index: usize,
        interval: &Interval,
        key: Option<Key>,
    ) -> Option<NodeTask> {
        if index == 0 && self.constant && self.progress[token.item as usize] >= Progress::Sent {
            return None;
        }
        if index > 0 {
            self.aggregate(compute, token, index - 1, interval);
        }
        let held = index == self.hops || self.nodes.keeps(index);
        Some(self.task(index, Selection::Range(interval.rows.clone()), key, Work::Forward { held }))
    }

    /// Returns the last task of an evaluation. Its results are those of the model.
    fn result(&mut self, compute: &mut ComputeState, token: Token, interval: &Interval) -> NodeTask {
        let (last, rows) = (self.hops - 1, Selection::Range(interval.rows.clone()));
        let (exchange, mut cx) = self.exchange(compute, token);
        match exchange.evaluate_last_hop(&mut cx, interval) {
            Evaluated::AsInTraining => {
                self.aggregate(compute, token, last, interval);
                self.task(last + 1, rows, None, Work::Forward { held: true })
            }
            Evaluated::Rows(aggregated) => NodeTask {
                index: last + 1,
                count: interval.rows.len(),
                rows: self.nodes.inputs(last + 1, &rows, aggregated),
                key: None,
                work: Work::Forward { held: true },
            },
        }
    }

    /// Returns the last task with the loss; `None` if the interval has no seeds.
    fn loss(
        &mut self,
        compute: &mut ComputeState,
        token: Token,
        interval: &Interval,
        key: Key,
    ) -> Result<Option<NodeTask>, Error> {
        let hop = self.hops - 1;
        self.aggregate(compute, token, hop, interval);
        if interval.seeds.is_empty() {
            return Ok(None);
        }
        let seeds: Vec<u32> = interval.seeds.iter().map(|&row| self.nodes.node(row)).collect();
        let work = Work::Loss(compute.targets(&seeds)?);
        Ok(Some(self.task(hop + 1, Selection::Rows(&interval.seeds), Some(key), work)))
    }

    /// Returns the backward task.
    fn backward(
        &mut self,
        compute: &mut ComputeState,
        token: Token,
        index: usize,
        interval: &Interval,
        key: Key,
    ) -> Result<NodeTask, Error> {
        let (exchange, mut cx) = self.exchange(compute, token);
        let of_sent = exchange.sent_gradient(&mut cx, index, interval)?;
        let held = self.nodes.gradient(index, &interval.rows);
        let gradient = NodeGradient { held, sent: of_sent.sent, terms: of_sent.terms };
        // Features have no gradient; learned rows do.
        let of_rows = index > 0 || self.learned.is_some();
        let work = Work::Backward { gradient, of_rows };
        Ok(self.task(index, Selection::Range(interval.rows.clone()), Some(key), work))
    }

    /// Returns the backward task of the model's results, in training on pairs.
    fn embed_backward(&self, interval: &Interval, key: Key) -> Result<NodeTask, Error> {
        let results = self.pairs.as_ref().ok_or_else(no_pairs)?;
        let gradient = NodeGradient { held: Some(results.gradient(&interval.rows)), ..NodeGradient::default() };
        let work = Work::Backward { gradient, of_rows: true };
        Ok(self.task(self.hops, Selection::Range(interval.rows.clone()), Some(key), work))
    }
}
