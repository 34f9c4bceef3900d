//! What is done with one interval at one stage: its rows are read, a task makes something of them ([`crate::tensor`]), and that is written
//! ([`super::write`]).

use std::ops::Range;
use std::sync::Arc;

use gnnflow_data::rng::{Key, Purpose};
use gnnflow_dataflow::collective::all_reduce::Contribution;
use gnnflow_dataflow::fetch::fetch_rows::FeatureView;
use gnnflow_dataflow::storage::Table;
use gnnflow_dataflow::time;
use gnnflow_dataflow::wire::Header;
use gnnflow_kernels::matrix::Matrix;

use super::attend::{Dropped, OutEdges};
use super::gather::gather;
use super::graph_links::slots_of;
use super::maximum::Largest;
use super::moves::{ACTIVATIONS, ARRIVED, GRADIENTS, KINDS, Parcel, SENT_BACK};
use super::program::Attended;
use super::rows::Selection;
use super::{HopState, Interval, Progress, Propagated, Stage, WholeGraph};
use crate::compute::ComputeState;
use crate::error::Error;
use crate::runtime::tensor_task::{NodeGradient, NodeRows, TensorTask, Work, matrix};
use gnnflow_nn::parameter_versions::ParameterVersion;

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
    pub(crate) parcels: Vec<Parcel>,
    /// What a partition adds to the epoch's gradient, behind its last interval's last stage.
    pub(crate) contribution: Option<Contribution>,
}

/// What has been begun of a stage of an interval.
pub(crate) enum Begun {
    /// All: there is nothing to compute.
    Ended(Ended),
    /// Its rows have been read: what the task makes of them, by these parameters, is still to be written.
    Task(Box<TensorTask>, ParameterVersion),
}

/// What is done with: a token leaves when its stage is done, a partition's last one when the partition's gradient is.
pub(crate) type Ended = Vec<(Token, Done)>;

impl WholeGraph {
    /// Begins a stage of an interval, or does one of a chunk. What [`Begun::Task`] comes to, [`WholeGraph::end`] writes; until
    /// then nothing else may be done with the interval.
    ///
    /// # Errors
    /// When rows are missing.
    pub(crate) fn begin(&mut self, trainer: &mut ComputeState, token: Token) -> Result<Begun, Error> {
        let stage = self.program.stage(self.step(token));
        match stage {
            Stage::Propagate(stage) => {
                let done = Done { parcels: self.propagate(trainer, token, stage), contribution: None };
                return Ok(Begun::Ended(vec![(token, done)]));
            }
            Stage::Attend(attended) => {
                let done = Done { parcels: self.attend(trainer, token, attended), contribution: None };
                return Ok(Begun::Ended(vec![(token, done)]));
            }
            _ => {}
        }
        let intervals = Arc::clone(&self.intervals);
        let interval = &intervals[token.item as usize];
        let key = [interval.partition, time::epoch(token.tick), interval.number]
            .into_iter()
            .fold(Key::new(self.seed, Purpose::Dropout), |key, word| key.fold(u64::from(word)));
        let task = match (stage, token.evaluates.is_some()) {
            (Stage::Forward(index), evaluates) => {
                self.forward(trainer, token, index, interval, (!evaluates).then_some(key))
            }
            (_, true) => self.results.is_some().then(|| self.result(trainer, token, interval)),
            (Stage::Backward(index), _) if index == self.hops.len() => Some(self.embed_back(interval, key)?),
            (Stage::Embed, _) => Some(self.embed(trainer, token, interval, key)),
            (Stage::Backward(index), _) => Some(self.backward(trainer, token, index, interval, key)?),
            _ => self.loss(trainer, token, interval, key)?,
        };
        match task {
            Some(task) => {
                let choice = match token.evaluates {
                    None => self.parameters.choose(token.item, time::epoch(token.tick), task.index),
                    Some(_) => self.parameters.latest(),
                };
                Ok(Begun::Task(Box::new(task), choice))
            }
            None => self.end(trainer, token, None).map(Begun::Ended),
        }
    }

    /// Whether a token is an interval at a stage, rather than a chunk.
    pub(super) fn is_interval(&self, token: Token) -> bool {
        !matches!(self.program.stage(self.step(token)), Stage::Propagate(_) | Stage::Attend(_) | Stage::Pairs(_))
    }

    /// Which stage of the program a token is at.
    pub(super) fn step(&self, token: Token) -> u32 {
        token.evaluates.unwrap_or(time::step(token.tick))
    }

    /// Sends the gradients that attention needs for the next chunk, or reads those of this one.
    fn attend(&mut self, trainer: &mut ComputeState, token: Token, stage: Attended) -> Vec<Parcel> {
        if token.item == 0 {
            return match stage.split {
                true => self.next_slices(token, stage.hop, GRADIENTS, stage.chunk),
                false => Vec::new(),
            };
        }
        let drop = self.drop(token, stage.hop);
        let vectors = self.vectors(stage.hop, self.parameters.latest());
        if let Some(slices) = &mut self.slices {
            trainer.timed_backward(|| slices.attend(stage, drop, vectors.as_deref()));
        }
        Vec::new()
    }

    /// What the chunk behind `chunk` is the first to need of own rows. As much of it as may be on its way at once is copied now: this
    /// thread will be busy with `chunk` while it travels.
    fn next_slices(&self, token: Token, hop: usize, kind: u32, chunk: u32) -> Vec<Parcel> {
        if chunk + 1 == self.program.chunks() {
            return Vec::new();
        }
        let headers = self.slices_of(token, [hop, chunk as usize + 1], kind, 0..self.own.len());
        let window = self.window();
        let parcel = |(place, header)| match place < window {
            true => Parcel::Made(self.rows(header)),
            false => Parcel::Rows(header),
        };
        headers.into_iter().enumerate().map(parcel).collect()
    }

    /// Sends what the next chunk needs, or adds up slices of this one.
    fn propagate(&mut self, trainer: &mut ComputeState, token: Token, stage: Propagated) -> Vec<Parcel> {
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
        let (chunks, vectors) = (self.program.chunks(), self.vectors(stage.hop, self.parameters.latest()));
        let Some(slices) = &mut self.slices else { return Vec::new() };
        let kind = if stage.back { SENT_BACK } else { ARRIVED };
        // What is gathered is not needed before all chunks have been added up.
        let last = token.tick + u64::from(chunks - 1 - stage.chunk);
        let header = Header { tag: KINDS * stage.hop as u32 + kind, key: last, ..Header::default() };
        let mut blocks = Vec::new();
        let work = || blocks = slices.propagate(header, stage, drop, vectors.as_deref());
        if stage.back {
            trainer.timed_backward(work)
        } else {
            trainer.timed_forward(work)
        }
        blocks.into_iter().map(Parcel::Made).collect()
    }

    /// The task of going forwards, unless its results are there.
    fn forward(
        &mut self,
        trainer: &mut ComputeState,
        token: Token,
        index: usize,
        interval: &Interval,
        key: Option<Key>,
    ) -> Option<TensorTask> {
        if index == 0 && self.constant && self.progress[token.item as usize] >= Progress::Sent {
            return None; // it is all there, here and in the ghost buffers
        }
        if index > 0 && self.slices.is_none() {
            self.gather_rows(trainer, token, index - 1, interval);
        }
        let rows = self.inputs(index, Selection::Range(interval.rows.clone()));
        Some(TensorTask { index, count: interval.rows.len(), rows, key, work: Work::Forward })
    }

    /// The last task and the loss, where the interval has nodes with one.
    fn loss(
        &mut self,
        trainer: &mut ComputeState,
        token: Token,
        interval: &Interval,
        key: Key,
    ) -> Result<Option<TensorTask>, Error> {
        let hop = self.hops.len() - 1;
        if self.slices.is_none() {
            self.gather_rows(trainer, token, hop, interval);
        }
        if interval.seeds.is_empty() {
            return Ok(None);
        }
        let own = self.own.start;
        let seeds: Vec<u32> = interval.seeds.iter().map(|&row| own + row as u32).collect();
        let rows = self.inputs(hop + 1, Selection::Rows(&interval.seeds));
        let work = Work::Loss(trainer.targets(&seeds)?);
        Ok(Some(TensorTask { index: hop + 1, count: seeds.len(), rows, key: Some(key), work }))
    }

    /// The task of going back.
    fn backward(
        &mut self,
        trainer: &mut ComputeState,
        token: Token,
        index: usize,
        interval: &Interval,
        key: Key,
    ) -> Result<TensorTask, Error> {
        let (rows, count, own) = (interval.rows.clone(), interval.rows.len(), self.own.start);
        let range = self.nodes(&rows);
        self.attend_again_by(index, token);
        let (state, drop) = (&self.hops[index], self.drop(token, index));
        let width = state.width;
        let back = || state.back.table(&state.sent).ok_or_else(|| Error::Bug("gradients that nobody wants".into()));
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
                        matrix(heads.sums(&parts), heads.terms())
                    };
                    terms = Some([term(width), term(width + count)]);
                }
            }
            (Some(attention), _) => {
                let table = state.arriving.table().between(&range);
                let (own, back) = (state.sent.exact().some(table.clone()), back()?.exact());
                let mut made = Default::default();
                trainer.timed_backward(|| {
                    made = match &state.mirrors {
                        None => attention.backward_left(OutEdges::of(links, senders), own, back, drop),
                        Some(mirrors) => {
                            let edges = mirrors.out_edges(table.clone(), range.clone());
                            let [mut dx, mut d_left] = attention.backward_left(edges, own, back, drop);
                            mirrors.add_told(&state.arriving, table, &mut dx, &mut d_left);
                            [dx, d_left]
                        }
                    }
                });
                let [dx, d_left] = made;
                // Who receives nothing has no term in any weight.
                let (columns, mut d_right) = (attention.terms, vec![0.0; count * attention.terms]);
                for row in state.arriving.rows().between(&range) {
                    let to = (state.arriving.rows().node(row) - range.start) as usize * columns;
                    d_right[to..to + columns].copy_from_slice(attention.d_right.some(row..row + 1));
                }
                sent = Some(matrix(dx, width));
                terms = Some([matrix(d_left, columns), matrix(d_right, columns)]);
            }
            (None, None) if width > 0 => {
                let mut made = vec![0.0; count * width];
                let back = back()?;
                trainer.timed_backward(|| match state.largest {
                    Some(_) => Largest::backward(links, senders, back.exact(), &mut made),
                    None => gather(links, senders, back, reversed, own, &mut made),
                });
                sent = Some(matrix(made, width));
            }
            _ => {}
        }
        let held = state.held.as_ref().map(|[_, back]| matrix(back.some(rows.clone()).to_vec(), back.width()));
        let gradient = NodeGradient { held, sent, terms };
        let rows = self.inputs(index, Selection::Range(rows));
        // Features have no gradient; rows that are learned in their place do.
        let of_rows = index > 0 || self.learnt.is_some();
        Ok(TensorTask { index, count, rows, key: Some(key), work: Work::Backward { gradient, of_rows } })
    }

    /// Adds up what arrives at an interval's nodes at hop `hop`, unless it is there already.
    pub(super) fn gather_rows(&mut self, trainer: &mut ComputeState, token: Token, hop: usize, interval: &Interval) {
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
        let HopState { mirrors, sent, .. } = &mut self.hops[hop];
        if mirrors.as_mut().is_none_or(|mirrors| mirrors.take(token.tick, sent.exact_mut())) {
            self.attend_by(hop, token);
        }
        let (rows, slots) = (self.receivers(hop, &range), self.slots);
        let HopState { arriving, sent, scales, arrived, attention, largest, .. } = &mut self.hops[hop];
        let out = arrived.some_mut(rows.start / slots as usize..rows.end / slots as usize);
        trainer.timed_forward(|| match (attention, largest) {
            (Some(attention), _) => attention.forward(arriving, rows, sent.exact(), drop, out),
            (_, Some(largest)) => largest.forward(arriving, rows, sent.exact(), out),
            _ => gather(arriving, rows, sent, scales, own * slots, out),
        });
    }

    /// Has a hop attend by the vectors that an interval has attended by before.
    pub(super) fn attend_again_by(&mut self, hop: usize, token: Token) {
        // Mirrors keep to those of the first interval, for all of an epoch.
        if self.hops[hop].mirrors.is_none() {
            self.attend_by(hop, token);
        }
    }

    /// Has a hop attend by the vectors of the parameters that an interval keeps to.
    fn attend_by(&mut self, hop: usize, token: Token) {
        let vectors = self.vectors_of(hop, token);
        if let (Some(attention), Some(vectors)) = (&mut self.hops[hop].attention, vectors) {
            attention.attend_by(vectors);
        }
    }

    /// The rows of edges of these own nodes: of their slots, as far as they receive at hop `hop`.
    pub(super) fn receivers(&self, hop: usize, nodes: &Range<u32>) -> Range<usize> {
        self.hops[hop].arriving.rows().between(&slots_of(nodes, self.slots))
    }

    /// Which weights of attention are dropped.
    pub(super) fn drop(&self, token: Token, hop: usize) -> Dropped {
        Dropped { seed: self.seed, epoch: time::epoch(token.tick), hop, nothing: false }
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
            let FeatureView { source, number, dim, .. } = &self.features;
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
}
