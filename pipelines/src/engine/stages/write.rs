//! What a task has come to, written where others look for it; and what leaves then.

use std::ops::Range;
use std::sync::Arc;

use gnnflow_dataflow::storage::Table;
use gnnflow_dataflow::time;
use gnnflow_nn::model::NodeOutputs;

use super::gradient_sums::Share;
use super::graph_links::slots_of;
use super::moves::{ACTIVATIONS, FOR_ALL, GRADIENTS, MIRRORED, Parcel};
use super::rows::{Selection, put_columns};
use super::tasks::{Done, Ended, Token};
use super::{Back, HopState, Interval, Progress, Stage, WholeGraph};
use crate::compute::ComputeState;
use crate::error::Error;
use crate::runtime::tensor_task::{NodeBack, TensorResult};
use gnnflow_nn::tensors::read;

impl WholeGraph {
    /// Ends a stage of an interval with what its task has come to, if there was one to do.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn end(
        &mut self,
        trainer: &mut ComputeState,
        token: Token,
        result: Option<TensorResult>,
    ) -> Result<Ended, Error> {
        let intervals = Arc::clone(&self.intervals);
        let interval = &intervals[token.item as usize];
        let step = self.step(token);
        let (stage, evaluates) = (self.program.stage(step), token.evaluates.is_some());
        let mut share = None;
        let parcels = match (stage, result) {
            (Stage::Forward(index), Some(TensorResult::Outputs(outputs))) => {
                self.end_forward(trainer, token, index, interval, &outputs)?
            }
            (Stage::Embed, Some(TensorResult::Outputs(outputs))) if !evaluates => {
                self.end_embed(interval, &outputs)?;
                Vec::new()
            }
            (Stage::Loss | Stage::Embed, Some(TensorResult::Outputs(outputs))) => {
                let nodes: Vec<u32> = self.nodes(&interval.rows).collect();
                if let Some(into) = &self.results {
                    let mut into = into.results.write()?;
                    read(&outputs.held, |found| into.set(&nodes, found))?;
                }
                Vec::new()
            }
            (Stage::Loss, Some(TensorResult::Back(mut back))) => {
                share = Some(Share::of(&mut back));
                self.end_loss(trainer, token, interval, Some(back))
            }
            (Stage::Loss, None) if !evaluates => self.end_loss(trainer, token, interval, None),
            (Stage::Backward(index), Some(TensorResult::Back(mut back))) => {
                share = Some(Share::of(&mut back));
                self.end_backward(trainer, token, index, interval, back)?
            }
            (Stage::Forward(_) | Stage::Loss | Stage::Embed, None) => Vec::new(),
            _ => return Err(Error::Bug("a task came to what was not asked of it".into())),
        };
        let done = Done { parcels, contribution: None };
        if evaluates {
            return Ok(vec![(token, done)]);
        }
        if self.program.is_last(step) {
            self.settled = true;
            self.parameters.release(token.item, time::epoch(token.tick));
        }
        Ok(self.account(token, interval, share, done))
    }

    /// Adds a stage's share of an interval to the epoch's gradient; what is done with then, the stage itself among it.
    fn account(&mut self, token: Token, interval: &Interval, share: Option<Share>, done: Done) -> Ended {
        let (step, epoch, partition) = (self.step(token), time::epoch(token.tick), interval.partition);
        let intervals = self.counts.get(&partition).copied().unwrap_or(0);
        let sum = self.sums.entry((epoch, partition)).or_default();
        if let Some(stage) = self.program.gradient_stage(step) {
            sum.add(stage * intervals + interval.number as usize, share);
        }
        let mut ended = Vec::new();
        match self.program.is_last(step) && interval.last {
            true => sum.close(token, done),
            false => ended.push((token, done)),
        }
        if let Some(last) = sum.finish(partition, self.program.gradient_stages() * intervals) {
            self.sums.remove(&(epoch, partition));
            ended.push(last);
        }
        ended
    }

    fn end_forward(
        &mut self,
        trainer: &mut ComputeState,
        token: Token,
        index: usize,
        interval: &Interval,
        outputs: &NodeOutputs,
    ) -> Result<Vec<Parcel>, Error> {
        let (rows, range, evaluates) = (interval.rows.clone(), self.nodes(&interval.rows), token.evaluates.is_some());
        let last = index + 1 == self.hops.len();
        let embeddings = match (&self.results, last && evaluates) {
            (Some(results), true) => results.embeddings.clone(),
            _ => None,
        };
        let for_all = evaluates && last && self.last_hop.is_some();
        let HopState { sent, held, scales, arriving, width, sent_terms, attention, .. } = &mut self.hops[index];
        let (mut links, width, stride) = (&*arriving, *width, sent.width());
        let (mut sent, mut attention) = (sent, attention.as_mut());
        if let Some(last) = self.last_hop.as_mut().filter(|_| for_all) {
            links = &last.links;
            sent = last.sent.as_mut().unwrap_or(sent);
            attention = last.attention.as_mut();
        }
        let (table, receivers) = (links.table().between(&range), links.rows().between(&range));
        let write = || -> Result<(), Error> {
            if let Some([held, _]) = held {
                read(&outputs.held, |found| held.some_mut(rows.clone()).copy_from_slice(found))?;
            }
            if let Some(store) = embeddings {
                let nodes: Vec<u32> = range.clone().collect();
                let mut into = store.write()?;
                read(&outputs.held, |found| into.set(&nodes, found))?;
            }
            let Some(found) = outputs.sent.as_ref().filter(|_| width > 0) else { return Ok(()) };
            let Some([left, right]) = &outputs.terms else {
                let scale = scales.before.as_ref().map(|before| &before[rows.clone()]);
                return Ok(read(found, |found| sent.write(table.clone(), found, scale))?);
            };
            let place = sent.exact_mut().some_mut(table.clone());
            read(found, |found| put_columns(place, stride, 0, found, width))?;
            // Terms as wide as what is sent are made of it again.
            let sent_terms = *sent_terms;
            if sent_terms > 0 {
                read(left, |left| put_columns(place, stride, width, left, sent_terms))?;
            }
            let Some(attention) = attention else {
                // Both travel with the slices.
                let first = width + sent_terms;
                return Ok(read(right, |right| put_columns(place, stride, first, right, stride - first))?);
            };
            let (states, terms) = (&mut attention.states, attention.terms);
            let stride = states.width();
            Ok(read(right, |right| {
                // Only who receives has a state.
                for row in receivers {
                    let from = (links.rows().node(row) - range.start) as usize * terms;
                    put_columns(states.some_mut(row..row + 1), stride, 0, &right[from..from + terms], terms);
                }
            })?)
        };
        let mut written = Ok(());
        trainer.timed_forward(|| written = write());
        written?;
        let progress = &mut self.progress[token.item as usize];
        *progress = (*progress).max(Progress::Sent);
        Ok(self.outgoing(token, index, if for_all { FOR_ALL } else { ACTIVATIONS }, table))
    }

    fn end_loss(
        &mut self,
        trainer: &mut ComputeState,
        token: Token,
        interval: &Interval,
        back: Option<NodeBack>,
    ) -> Vec<Parcel> {
        let (hop, range) = (self.hops.len() - 1, self.nodes(&interval.rows));
        // Only nodes with a loss go through the last task; the others' gradients are zeros.
        for state in &mut self.hops {
            if let Some([_, back]) = &mut state.held
                && back.rows() > 0
            {
                back.some_mut(interval.rows.clone()).fill(0.0);
            }
        }
        let (receivers, slots) = (self.receivers(hop, &range), slots_of(&range, self.slots));
        let HopState { sent, back: table, leaving, .. } = &mut self.hops[hop];
        if let Some(table) = table.table_mut(sent) {
            table.clear(leaving.table().between(&slots));
        }
        if let Some(back) = back {
            self.hand_back(hop + 1, Selection::Rows(&interval.seeds), back);
        }
        self.tell_senders(trainer, token, hop, receivers)
    }

    fn end_backward(
        &mut self,
        trainer: &mut ComputeState,
        token: Token,
        index: usize,
        interval: &Interval,
        back: NodeBack,
    ) -> Result<Vec<Parcel>, Error> {
        if index == 0 {
            self.move_rows(trainer, token, interval, back.held)?;
            return Ok(Vec::new());
        }
        self.hand_back(index, Selection::Range(interval.rows.clone()), back);
        let receivers = self.receivers(index - 1, &self.nodes(&interval.rows));
        Ok(self.tell_senders(trainer, token, index - 1, receivers))
    }

    /// Puts gradients of what node task `index` read where the stages before will look for them.
    fn hand_back(&mut self, index: usize, rows: Selection<'_>, back: NodeBack) {
        let (Some(hop), own, slots) = (index.checked_sub(1), self.own.start, self.slots) else { return };
        if !self.program.goes_back(hop) {
            return;
        }
        let HopState { sent, back: table, leaving, scales, held, width, .. } = &mut self.hops[hop];
        let (width, table) = (*width, table.table_mut(sent));
        if let (Some(values), Some(table)) = (back.aggregated.filter(|_| width > 0), table) {
            let slots_of = |row: usize| (0..slots as usize).map(move |slot| row * slots as usize + slot);
            for (slot, values) in rows.iter().flat_map(slots_of).zip(values.chunks_exact(width)) {
                let place = leaving.table().find(own * slots + slot as u32);
                let place = place.expect("who receives has a row for its gradient");
                let scale = scales.after.as_ref().map_or(1.0, |after| after[slot]);
                table.write_row(place, values, scale);
            }
        }
        let add = |table: &mut Table, values: Vec<f32>| {
            for (row, values) in rows.iter().zip(values.chunks_exact(table.width())) {
                table.some_mut(row..row + 1).iter_mut().zip(values).for_each(|(sum, x)| *sum += x);
            }
        };
        if let (Some([_, table]), Some(values)) = (held, back.held) {
            add(table, values);
        }
        if let (Some([_, table]), Some(values)) = (&mut self.hops[0].held, back.initial) {
            add(table, values);
        }
    }

    /// What leaves of the gradients of an interval's receivers, which are there: of those with what senders must know beside them (where a hop
    /// attends, their states, which are completed; where the largest arrive, of whom), or from mirrors, behind the last interval.
    fn tell_senders(
        &mut self,
        trainer: &mut ComputeState,
        token: Token,
        hop: usize,
        receivers: Range<usize>,
    ) -> Vec<Parcel> {
        self.complete_gradients(trainer, token, hop, receivers.clone());
        let (header, drop, intervals) =
            (self.header(token, hop, MIRRORED), self.drop(token, hop), self.intervals.len());
        match &mut self.hops[hop] {
            HopState {
                mirrors: Some(mirrors),
                attention: Some(attention),
                back: Back::Own(back),
                arriving,
                sent,
                ..
            } => {
                let mut complete = false;
                trainer.timed_backward(|| {
                    let tables = [sent.exact(), back.exact()];
                    complete = mirrors.complete(intervals, attention, arriving, tables, drop);
                });
                if complete { mirrors.outgoing(header) } else { Vec::new() }
            }
            _ => self.outgoing(token, hop, GRADIENTS, receivers),
        }
    }

    /// Puts what senders must know of receivers beside their gradients.
    fn complete_gradients(&mut self, trainer: &mut ComputeState, token: Token, hop: usize, receivers: Range<usize>) {
        let drop = self.drop(token, hop);
        self.attend_again_by(hop, token);
        let HopState { back, arriving, width, attention, largest, sent, .. } = &mut self.hops[hop];
        let Back::Own(back) = back else { return };
        // Receivers are numbered alike among rows of edges and rows of gradients.
        let (width, stride) = (*width, back.width());
        if let Some(largest) = largest {
            return largest.beside(receivers, width, back.exact_mut());
        }
        let Some(attention) = attention else { return };
        let back = back.exact_mut();
        let gradient = back.columns(receivers.clone(), 0..width);
        let sent = sent.exact();
        trainer.timed_backward(|| attention.backward_right(arriving, receivers.clone(), sent, drop, &gradient));
        put_columns(back.some_mut(receivers.clone()), stride, width, attention.states.some(receivers), stride - width);
    }
}
