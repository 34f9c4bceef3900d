//! Column-parallel full-graph training (NeutronTP, section 3.1): each worker has all edges, and some columns of the rows of all nodes.
//!
//! Node tasks run on whole rows at the nodes' owners ([`whole_rows`]). In between, rows are split into column shards, aggregated chunk by chunk
//! ([`shards`]), and gathered into whole rows. A GPU aggregates sums ([`device_sums`]); attention and maxima are aggregated on the CPU.

pub(crate) mod chain_attention;
pub(crate) mod chunks;
pub(crate) mod device_sums;
pub(crate) mod head_shards;
pub(crate) mod send_order;
pub(crate) mod shards;
pub(crate) mod topology;
pub(crate) mod whole_rows;

use std::ops::Range;

use candle_core::Device;
use gnnflow_dataflow::wire::{Header, WireBlock};
use gnnflow_kernels::matrix::Matrix;
use gnnflow_nn::layers::Aggregation;
use gnnflow_nn::model::{Hop, NodeOutputs};

use self::chunks::{Cut, cut};
use self::device_sums::DeviceSums;
use self::shards::Shards;
use self::topology::AllEdges;
use self::whole_rows::WholeRows;
use crate::engine::aggregation::rows::Selection;
use crate::engine::stages::exchange::{Evaluated, RowExchange, SentGradient, StageCx};
use crate::engine::stages::intervals::Interval;
use crate::engine::stages::message::{Channel, Outgoing, window};
use crate::engine::stages::program::{AttentionStage, Program, Propagated};
use crate::engine::stages::state::{StageConfig, reserve_failed};
use crate::engine::stages::synchrony::Synchrony;
use crate::error::Error;

/// The tables of rows of one worker: column shards of all nodes, and whole rows of its own.
pub(crate) struct TensorParallel {
    worker: usize,
    /// The worker's nodes.
    own: Range<u32>,
    shards: Shards,
    /// By hop.
    rows: Vec<WholeRows>,
}

/// Builds the program of an epoch and reserves the tables. Chunks are summed on `device`, if there is one.
///
/// # Errors
/// When there is no space, or one node exceeds the memory of a chunk.
pub(crate) fn open(
    edges: AllEdges,
    config: &StageConfig,
    device: Option<Device>,
) -> Result<(Program, Box<dyn RowExchange>), Error> {
    let StageConfig { profile, place, row_dtype, .. } = config;
    let (hops, element_wise) = (&profile.hops[..], config.element_wise());
    let chunks = cut(&edges, hops)?;
    let attends: Vec<bool> = hops.iter().map(Hop::attends).collect();
    let learns = profile.tasks[0].learns;
    let program = Program::column_parallel(hops.len(), learns, &element_wise, &attends, chunks.len() as u32);
    config.check_row_dtype()?;
    let (worker, own) = (edges.worker, edges.own.clone());
    let rows = (0..hops.len()).map(|hop| WholeRows::new(&edges, profile, &program, hop, place));
    let rows = rows.collect::<std::io::Result<Vec<_>>>().map_err(reserve_failed)?;
    let goes_back = |hop| program.goes_back(hop);
    let cut = Cut { chunks, pipelined: config.synchrony != Synchrony::Barrier };
    let by_task: Vec<_> = profile.tasks.iter().map(|task| task.element_wise).collect();
    let is_sum = |hop: &Hop| hop.aggregation != Aggregation::Nothing && !hop.attends() && !hop.takes_largest();
    let sums = device.filter(|_| hops.iter().any(is_sum)).map(DeviceSums::new).transpose()?;
    let shards = Shards::new(edges, cut, hops, &by_task, *row_dtype, &goes_back, place)?.summed_by(sums);
    Ok((program, Box::new(TensorParallel { worker, own, shards, rows })))
}

impl TensorParallel {
    fn header(&self, cx: &StageCx<'_>, hop: usize, channel: Channel) -> Header {
        Header { from: self.worker as u32, tag: channel.tag(hop), key: cx.token.time, ..Header::default() }
    }

    /// Returns notes of the shards of those own rows that chunk `chunk` needs first.
    fn shards_of(
        &self,
        cx: &StageCx<'_>,
        hop: usize,
        chunk: usize,
        channel: Channel,
        rows: Range<usize>,
    ) -> Vec<Header> {
        let is_gradient = channel == Channel::Gradients;
        match self.rows[hop].table(is_gradient) {
            Some(_) => self.shards.split(self.header(cx, hop, channel), [hop, chunk], is_gradient, rows),
            None => Vec::new(),
        }
    }

    /// Returns the shards of own rows that the chunk after `chunk` needs first. It copies a full window of them now, because the compute thread
    /// aggregates `chunk` while they travel.
    fn next_shards(&self, cx: &StageCx<'_>, hop: usize, channel: Channel, chunk: u32) -> Vec<Outgoing> {
        if chunk as usize + 1 == self.shards.chunks() {
            return Vec::new();
        }
        let notes = self.shards_of(cx, hop, chunk as usize + 1, channel, 0..self.own.len());
        let window = self.window();
        let outgoing = |(place, note)| match place < window {
            true => Outgoing::Block(self.message(note)),
            false => Outgoing::Note(note),
        };
        notes.into_iter().enumerate().map(outgoing).collect()
    }
}

impl RowExchange for TensorParallel {
    fn aggregate(&mut self, _: &mut StageCx<'_>, _: usize, _: &Interval) {}

    fn aggregated(&self, hop: usize, rows: &Selection<'_>) -> Option<Matrix> {
        self.rows[hop].aggregated(rows)
    }

    fn evaluate_last_hop(&mut self, _: &mut StageCx<'_>, _: &Interval) -> Evaluated {
        Evaluated::AsInTraining
    }

    fn send(
        &mut self,
        cx: &mut StageCx<'_>,
        hop: usize,
        interval: &Interval,
        outputs: &NodeOutputs,
    ) -> Result<Vec<Outgoing>, Error> {
        let (table, mut written) = (&mut self.rows[hop], Ok(()));
        cx.compute.timed_forward(|| written = table.write_sent(&interval.rows, outputs));
        written?;
        if !self.rows[hop].sends() {
            return Ok(Vec::new());
        }
        let notes = self.shards_of(cx, hop, 0, Channel::Activations, interval.rows.clone());
        Ok(notes.into_iter().map(Outgoing::Note).collect())
    }

    fn sent_gradient(&mut self, _: &mut StageCx<'_>, hop: usize, interval: &Interval) -> Result<SentGradient, Error> {
        Ok(self.rows[hop].sent_gradient(&interval.rows, self.shards.heads(hop)))
    }

    fn send_gradient(
        &mut self,
        cx: &mut StageCx<'_>,
        hop: usize,
        interval: &Interval,
        rows: &Selection<'_>,
        gradient: Option<Vec<f32>>,
    ) -> Vec<Outgoing> {
        let table = &mut self.rows[hop];
        if let Selection::Rows(_) = rows {
            table.clear_gradient(&interval.rows);
        }
        if let Some(gradient) = gradient {
            table.write_gradient(rows, &gradient);
        }
        if !table.sends_gradients() {
            return Vec::new();
        }
        let notes = self.shards_of(cx, hop, 0, Channel::Gradients, interval.rows.clone());
        notes.into_iter().map(Outgoing::Note).collect()
    }

    fn propagate(&mut self, cx: &mut StageCx<'_>, stage: Propagated) -> Result<Vec<Outgoing>, Error> {
        let channel = if stage.backward { Channel::Gradients } else { Channel::Activations };
        if cx.token.item == 0 {
            // With attention, all gradients were sent for the stage before.
            let sent = stage.backward && self.shards.heads(stage.hop).is_some();
            return Ok(match stage.split && !sent {
                true => self.next_shards(cx, stage.hop, channel, stage.chunk),
                false => Vec::new(),
            });
        }
        let (drop, vectors) = (cx.dropout(stage.hop), cx.latest_vectors(stage.hop));
        let channel = if stage.backward { Channel::SentGradients } else { Channel::Aggregated };
        // Gathered rows are read after all chunks have been aggregated.
        let last = cx.token.time + (self.shards.chunks() - 1) as u64 - u64::from(stage.chunk);
        let header = Header { tag: channel.tag(stage.hop), key: last, ..Header::default() };
        let (mut blocks, shards) = (Ok(Vec::new()), &mut self.shards);
        let work = || blocks = shards.propagate(header, stage, drop, vectors.as_deref());
        if stage.backward {
            cx.compute.timed_backward(work)
        } else {
            cx.compute.timed_forward(work)
        }
        cx.compute.add_device_time(self.shards.take_device_time());
        Ok(blocks?.into_iter().map(Outgoing::Block).collect())
    }

    fn attention_backward(&mut self, cx: &mut StageCx<'_>, stage: AttentionStage) -> Vec<Outgoing> {
        if cx.token.item == 0 {
            return match stage.split {
                true => self.next_shards(cx, stage.hop, Channel::Gradients, stage.chunk),
                false => Vec::new(),
            };
        }
        let (drop, vectors, shards) = (cx.dropout(stage.hop), cx.latest_vectors(stage.hop), &mut self.shards);
        cx.compute.timed_backward(|| shards.attention_backward(stage, drop, vectors.as_deref()));
        Vec::new()
    }

    fn message(&self, note: Header) -> WireBlock {
        let (hop, channel) = Channel::of(note);
        let is_gradient = channel == Channel::Gradients;
        let table = self.rows[hop].table(is_gradient).expect("a note names rows of this worker");
        self.shards.message(note, hop, is_gradient, table)
    }

    fn receive(&mut self, block: &WireBlock) {
        let header = block.header();
        let (hop, channel) = Channel::of(header);
        let from = header.from as usize;
        match channel {
            Channel::Activations | Channel::Gradients => self.shards.put(hop, channel == Channel::Gradients, block),
            _ => {
                let first = (header.seq - self.own.start) as usize;
                let rows = first..first + header.aux as usize;
                let (columns, heads) = (self.shards.columns(hop, from), self.shards.heads(hop));
                let heads = heads.map(|heads| (heads.entries(from), heads.count()));
                let values = block.rows_f32().expect("column shards that are gathered are numbers");
                self.rows[hop].gather(channel == Channel::SentGradients, rows, columns, heads, values);
            }
        }
    }

    fn window(&self) -> usize {
        window(Some(self.shards.chunk_memory()))
    }

    fn edge_columns(&self, goes_back: &dyn Fn(usize) -> bool) -> u64 {
        self.shards.edge_columns(goes_back)
    }
}
