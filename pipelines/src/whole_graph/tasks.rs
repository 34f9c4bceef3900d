//! What is done with one interval at one stage.

use std::ops::Range;
use std::sync::Arc;

use gnnflow_data::rng::{Key, Purpose};
use gnnflow_operators::fetch::fetch_rows::RowsAt;
use gnnflow_operators::fetch::matrix::Matrix;
use gnnflow_operators::kernel::propagate::attention::STATE;
use gnnflow_operators::propagate::Table;
use gnnflow_operators::sync::all_reduce::Contribution;
use gnnflow_operators::tick;
use gnnflow_operators::wire::{Header, WireBlock};

use super::attend::Dropped;
use super::evaluate::Results;
use super::gather::gather;
use super::links::slots_of;
use super::moves::{ACTIVATIONS, ARRIVED, FOR_ALL, GRADIENTS, KINDS, SENT_BACK};
use super::program::Attended;
use super::rows::{Selection, put_columns};
use super::scales::scale_rows;
use super::{Back, HopState, Interval, Progress, Propagated, Stage, WholeGraph};
use crate::Error;
use crate::trainer::{BatchWords, NodeBack, NodeGradient, NodeRows, Trainer, matrix, read};

/// A stage of an interval, or of a chunk, by its place among those of this worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    pub(crate) tick: u64,
    pub(crate) item: u32,
    /// The stage of an evaluation, where it is none of training.
    pub(crate) evaluates: Option<u32>,
}

/// What an interval's stage leaves to be sent.
#[derive(Default)]
pub(crate) struct Done {
    /// Rows for other workers' ghost buffers.
    pub(crate) blocks: Vec<WireBlock>,
    /// What a partition adds to the epoch's gradient, behind its last interval's last stage.
    pub(crate) contribution: Option<Contribution>,
}

impl WholeGraph {
    /// Does a stage of an interval, or of a chunk.
    pub(crate) fn run(&mut self, trainer: &mut Trainer, token: Token) -> Result<Done, Error> {
        let step = token.evaluates.unwrap_or(tick::step(token.tick));
        let stage = self.program.stage(step);
        match stage {
            Stage::Propagate(stage) => {
                return Ok(Done { blocks: self.propagate(trainer, token, stage), contribution: None });
            }
            Stage::Attend(attended) => {
                return Ok(Done { blocks: self.attend(trainer, token, attended), contribution: None });
            }
            _ => {}
        }
        let intervals = Arc::clone(&self.intervals);
        let interval = &intervals[token.item as usize];
        let key = [interval.partition, tick::epoch(token.tick), interval.number]
            .into_iter()
            .fold(Key::new(self.seed, Purpose::Dropout), |key, word| key.fold(u64::from(word)));
        if token.evaluates.is_some() {
            let blocks = match stage {
                Stage::Forward(index) => self.forward(trainer, token, index, interval, None)?,
                _ => {
                    if let Some(Results { results, .. }) = self.results.clone() {
                        self.result(trainer, token, interval, &results)?;
                    }
                    Vec::new()
                }
            };
            return Ok(Done { blocks, contribution: None });
        }
        let blocks = match stage {
            Stage::Forward(index) => self.forward(trainer, token, index, interval, Some(key))?,
            Stage::Backward(index) if index == self.hops.len() => self.embed_back(trainer, token, interval, key)?,
            Stage::Backward(index) => self.backward(trainer, token, index, interval, key)?,
            Stage::Embed => self.embed(trainer, token, interval, key)?,
            _ => self.loss(trainer, token, interval, key)?,
        };
        let is_last = self.program.is_last(step);
        self.settled |= is_last;
        let contribution = (is_last && interval.last).then(|| self.contribution(interval.partition));
        Ok(Done { blocks, contribution })
    }

    fn contribution(&mut self, partition: u32) -> Contribution {
        let sums = std::mem::take(&mut self.sums[partition as usize - self.first_part]);
        let words = BatchWords { examples: sums.examples, loss: sums.loss, rounds: 0, digest: None };
        Contribution { partition, vector: sums.flat.map(Arc::new), words: words.encode() }
    }

    /// Sends the gradients that attention needs for the next chunk, or reads those of this one.
    fn attend(&mut self, trainer: &mut Trainer, token: Token, Attended { hop, chunk }: Attended) -> Vec<WireBlock> {
        if token.item == 0 {
            return self.next_slices(token, hop, GRADIENTS, chunk);
        }
        let drop = self.drop(token, hop);
        if let Some(slices) = &mut self.slices {
            trainer.timed_backward(|| slices.attend(hop, chunk as usize, drop));
        }
        Vec::new()
    }

    /// What the chunk behind `chunk` is the first to need of own rows.
    fn next_slices(&self, token: Token, hop: usize, kind: u32, chunk: u32) -> Vec<WireBlock> {
        match chunk + 1 < self.program.chunks() {
            true => self.slices_of(token, [hop, chunk as usize + 1], kind, 0..self.own.len()),
            false => Vec::new(),
        }
    }

    /// Sends what the next chunk needs, or adds up slices of this one.
    fn propagate(&mut self, trainer: &mut Trainer, token: Token, stage: Propagated) -> Vec<WireBlock> {
        // What never changes is added up once: a chain of hops that begins with what is sent in every epoch.
        let from_start = stage.hop == 0 || self.chained[1..=stage.hop].iter().all(|&chained| chained);
        if self.constant && self.settled && from_start && !stage.back {
            return Vec::new();
        }
        if token.item == 0 {
            // Attention has read all gradients before.
            let read = stage.back && self.slices.as_ref().is_some_and(|slices| slices.heads(stage.hop).is_some());
            let kind = if stage.back { GRADIENTS } else { ACTIVATIONS };
            return match stage.split && !read {
                true => self.next_slices(token, stage.hop, kind, stage.chunk),
                false => Vec::new(),
            };
        }
        let drop = Dropped { nothing: token.evaluates.is_some(), ..self.drop(token, stage.hop) };
        let chunks = self.program.chunks();
        let Some(slices) = &mut self.slices else { return Vec::new() };
        let kind = if stage.back { SENT_BACK } else { ARRIVED };
        // What is gathered is not needed before all chunks have been added up.
        let last = token.tick + u64::from(chunks - 1 - stage.chunk);
        let header = Header { tag: KINDS * stage.hop as u32 + kind, key: last, ..Header::default() };
        let mut blocks = Vec::new();
        let work = || blocks = slices.propagate(header, stage, stage.chunk as usize, drop);
        if stage.back {
            trainer.timed_backward(work)
        } else {
            trainer.timed_forward(work)
        }
        blocks
    }

    fn forward(
        &mut self,
        trainer: &mut Trainer,
        token: Token,
        index: usize,
        interval: &Interval,
        key: Option<Key>,
    ) -> Result<Vec<WireBlock>, Error> {
        if index == 0 && self.constant && self.progress[token.item as usize] >= Progress::Sent {
            return Ok(Vec::new()); // it is all there, here and in the ghost buffers
        }
        if index > 0 && self.slices.is_none() {
            self.gather_rows(trainer, token, index - 1, interval);
        }
        let (rows, count) = (interval.rows.clone(), interval.rows.len());
        let inputs = self.inputs(index, Selection::Range(rows.clone()));
        let range = self.nodes(&rows);
        let nodes: Vec<u32> = range.clone().collect();
        let embeddings = match (&self.results, index + 1 == self.hops.len() && key.is_none()) {
            (Some(results), true) => results.embeddings.clone(),
            _ => None,
        };
        let for_all = key.is_none() && index + 1 == self.hops.len() && self.last_hop.is_some();
        let HopState { sent, held, scales, arriving, width, attention, .. } = &mut self.hops[index];
        let (mut links, width, stride) = (&*arriving, *width, sent.width());
        let (mut sent, mut attention) = (sent, attention.as_mut());
        if let Some(last) = self.last_hop.as_mut().filter(|_| for_all) {
            links = &last.links;
            sent = last.sent.as_mut().unwrap_or(sent);
            attention = last.attention.as_mut();
        }
        let (table, receivers) = (links.table().between(&range), links.rows().between(&range));
        trainer.node_forward(index, count, inputs, key, |outputs| {
            if let Some([held, _]) = held {
                read(&outputs.held, |found| held.some_mut(rows.clone()).copy_from_slice(found))?;
            }
            if let Some(store) = embeddings {
                read(&outputs.held, |found| store.write(&nodes, found))?;
            }
            let Some(found) = outputs.sent.as_ref().filter(|_| width > 0) else { return Ok(()) };
            let place = sent.some_mut(table.clone());
            let Some([left, right]) = &outputs.terms else {
                read(found, |found| place.copy_from_slice(found))?;
                scale_rows(place, width, scales.before.as_ref().map(|before| &before[rows.clone()]));
                return Ok(());
            };
            read(found, |found| put_columns(place, stride, 0, found, width))?;
            let Some(attention) = attention else {
                // Both travel with the slices.
                let heads = (stride - width) / 2;
                read(left, |left| put_columns(place, stride, width, left, heads))?;
                return read(right, |right| put_columns(place, stride, width + heads, right, heads));
            };
            read(left, |left| put_columns(place, stride, width, left, attention.heads))?;
            let heads = attention.heads;
            let (states, stride) = (&mut attention.states, STATE * heads);
            read(right, |right| {
                // Only who receives has a state.
                for row in receivers {
                    let from = (links.rows().node(row) - range.start) as usize * heads;
                    put_columns(states.some_mut(row..row + 1), stride, 0, &right[from..from + heads], heads);
                }
            })
        })?;
        let progress = &mut self.progress[token.item as usize];
        *progress = (*progress).max(Progress::Sent);
        Ok(self.outgoing(token, index, if for_all { FOR_ALL } else { ACTIVATIONS }, table))
    }

    fn loss(
        &mut self,
        trainer: &mut Trainer,
        token: Token,
        interval: &Interval,
        key: Key,
    ) -> Result<Vec<WireBlock>, Error> {
        let hop = self.hops.len() - 1;
        if self.slices.is_none() {
            self.gather_rows(trainer, token, hop, interval);
        }
        let range = self.nodes(&interval.rows);
        let own = self.own.start;
        // Only nodes with a loss go through the last task; the others' gradients are zeros.
        for state in &mut self.hops {
            if let Some([_, back]) = &mut state.held
                && back.rows() > 0
            {
                back.some_mut(interval.rows.clone()).fill(0.0);
            }
        }
        let (receivers, slots) = (self.receivers(hop, &range), slots_of(&range, self.slots));
        let HopState { sent, back, leaving, .. } = &mut self.hops[hop];
        if let Some(back) = back.table_mut(sent) {
            back.some_mut(leaving.table().between(&slots)).fill(0.0);
        }
        if !interval.seeds.is_empty() {
            let seeds: Vec<u32> = interval.seeds.iter().map(|&row| own + row as u32).collect();
            let inputs = self.inputs(hop + 1, Selection::Rows(&interval.seeds));
            let (back, loss, examples) = trainer.node_loss(&seeds, inputs, key)?;
            let sums = &mut self.sums[interval.partition as usize - self.first_part];
            (sums.loss, sums.examples) = (sums.loss + loss, sums.examples + examples);
            self.hand_back(hop + 1, Selection::Rows(&interval.seeds), interval, back);
        }
        self.attend_back(trainer, token, hop, interval);
        Ok(self.outgoing(token, hop, GRADIENTS, receivers))
    }

    fn backward(
        &mut self,
        trainer: &mut Trainer,
        token: Token,
        index: usize,
        interval: &Interval,
        key: Key,
    ) -> Result<Vec<WireBlock>, Error> {
        let (rows, count, own) = (interval.rows.clone(), interval.rows.len(), self.own.start);
        let range = self.nodes(&rows);
        let (state, drop) = (&self.hops[index], self.drop(token, index));
        let width = state.width;
        let back = state.back.table(&state.sent).ok_or_else(|| Error::Bug("gradients that nobody wants".into()))?;
        let (links, reversed) = (&state.leaving, &state.reversed);
        let senders = links.rows().between(&range);
        let (mut sent, mut terms) = (None, None);
        match (&state.attention, &state.sent_back) {
            (_, Some(table)) if width > 0 => {
                sent = Some(matrix(table.columns(rows.clone(), 0..width), width));
                if let Some(heads) = self.slices.as_ref().and_then(|slices| slices.heads(index)) {
                    let count = heads.count();
                    let term = |first: usize| {
                        let parts = table.columns(rows.clone(), first..first + count);
                        matrix(heads.sums(&parts), heads.heads())
                    };
                    terms = Some([term(width), term(width + count)]);
                }
            }
            (Some(attention), _) => {
                let own = state.sent.some(state.arriving.table().between(&range));
                let mut made = Default::default();
                trainer.timed_backward(|| made = attention.backward_left(links, senders, own, back, drop));
                let [dx, d_left] = made;
                // Who receives nothing has no term in any weight.
                let (heads, mut d_right) = (attention.heads, vec![0.0; count * attention.heads]);
                for row in state.arriving.rows().between(&range) {
                    let to = (state.arriving.rows().node(row) - range.start) as usize * heads;
                    d_right[to..to + heads].copy_from_slice(attention.d_right.some(row..row + 1));
                }
                sent = Some(matrix(dx, width));
                terms = Some([matrix(d_left, heads), matrix(d_right, heads)]);
            }
            (None, None) if width > 0 => {
                let mut made = vec![0.0; count * width];
                trainer.timed_backward(|| gather(links, senders, back, reversed, own, &mut made));
                sent = Some(matrix(made, width));
            }
            _ => {}
        }
        let held = state.held.as_ref().map(|[_, back]| matrix(back.some(rows.clone()).to_vec(), back.width()));
        let gradient = NodeGradient { held, sent, terms };
        let inputs = self.inputs(index, Selection::Range(rows.clone()));
        let back = trainer.node_backward(index, count, inputs, key, gradient, index > 0)?;
        self.hand_back(index, Selection::Range(rows), interval, back);
        if index == 0 {
            return Ok(Vec::new());
        }
        self.attend_back(trainer, token, index - 1, interval);
        let receivers = self.receivers(index - 1, &range);
        Ok(self.outgoing(token, index - 1, GRADIENTS, receivers))
    }

    /// Adds up what arrives at an interval's nodes at hop `hop`, unless it is there already.
    pub(super) fn gather_rows(&mut self, trainer: &mut Trainer, token: Token, hop: usize, interval: &Interval) {
        let progress = &mut self.progress[token.item as usize];
        if hop == 0 && self.constant {
            // What never changes is added up once.
            if *progress == Progress::Arrived {
                return;
            }
            *progress = Progress::Arrived;
        }
        let (range, own) = (self.nodes(&interval.rows), self.own.start);
        let drop = Dropped { nothing: token.evaluates.is_some(), ..self.drop(token, hop) };
        let (rows, slots) = (self.receivers(hop, &range), self.slots);
        let HopState { arriving, sent, scales, arrived, attention, .. } = &mut self.hops[hop];
        let out = arrived.some_mut(rows.start / slots as usize..rows.end / slots as usize);
        trainer.timed_forward(|| match attention {
            Some(attention) => attention.forward(arriving, rows, sent, drop, out),
            None => gather(arriving, rows, sent, scales, own * slots, out),
        });
    }

    /// The rows of edges of these own nodes: of their slots, as far as they receive at hop `hop`.
    pub(super) fn receivers(&self, hop: usize, nodes: &Range<u32>) -> Range<usize> {
        self.hops[hop].arriving.rows().between(&slots_of(nodes, self.slots))
    }

    /// Which weights of attention are dropped.
    fn drop(&self, token: Token, hop: usize) -> Dropped {
        Dropped { seed: self.seed, epoch: tick::epoch(token.tick), hop, nothing: false }
    }

    /// Global ids of own rows.
    pub(super) fn nodes(&self, rows: &Range<usize>) -> Range<u32> {
        self.own.start + rows.start as u32..self.own.start + rows.end as u32
    }

    /// What node task `index` reads of own rows.
    pub(super) fn inputs(&self, index: usize, rows: Selection<'_>) -> NodeRows {
        let own = self.own.start;
        if index == 0 {
            let nodes: Vec<u32> = rows.iter().map(|row| own + row as u32).collect();
            let RowsAt { source, number, dim, .. } = &self.features;
            let held = Matrix::gather(*number, *dim, |node| source.row(node), &nodes);
            return NodeRows { held: Some(held), ..NodeRows::default() };
        }
        let HopState { arrived, arriving, .. } = &self.hops[index - 1];
        let slots = self.slots;
        let receiver = |row: usize| {
            let slot = arriving.rows().find((own + row as u32) * slots);
            slot.expect("who reads what arrives receives it") / slots as usize
        };
        let aggregated = (arrived.width() > 0).then(|| rows.copy(arrived, receiver));
        NodeRows { aggregated, ..self.inputs_but_arrived(index, rows) }
    }

    /// The same without what has arrived, for a task behind a hop.
    pub(super) fn inputs_but_arrived(&self, index: usize, rows: Selection<'_>) -> NodeRows {
        let held_rows = |[held, _]: &[Table; 2]| rows.copy(held, |row| row);
        let initial = self.reads_initial[index].then(|| self.hops[0].held.as_ref()).flatten();
        let held = self.hops[index - 1].held.as_ref();
        NodeRows { held: held.map(held_rows), initial: initial.map(held_rows), aggregated: None }
    }

    /// Puts gradients of what node task `index` read where the stages before will look for them.
    pub(super) fn hand_back(&mut self, index: usize, rows: Selection<'_>, interval: &Interval, back: NodeBack) {
        self.sums[interval.partition as usize - self.first_part].add(back.flat);
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
                let out = &mut table.some_mut(place..place + 1)[..width];
                out.iter_mut().zip(values).for_each(|(out, x)| *out = scale * x);
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

    /// Where a hop attends: completes the states of an interval's receivers, whose gradients are there, and puts them beside these.
    pub(super) fn attend_back(&mut self, trainer: &mut Trainer, token: Token, hop: usize, interval: &Interval) {
        let (range, drop) = (self.nodes(&interval.rows), self.drop(token, hop));
        let HopState { back, arriving, width, attention, sent, .. } = &mut self.hops[hop];
        let (Some(attention), Back::Own(back)) = (attention, back) else { return };
        // Receivers are numbered alike among rows of edges and rows of gradients.
        let (receivers, width, stride) = (arriving.rows().between(&range), *width, back.width());
        let gradient = back.columns(receivers.clone(), 0..width);
        trainer.timed_backward(|| attention.backward_right(arriving, receivers.clone(), sent, drop, &gradient));
        put_columns(back.some_mut(receivers.clone()), stride, width, attention.states.some(receivers), stride - width);
    }
}
