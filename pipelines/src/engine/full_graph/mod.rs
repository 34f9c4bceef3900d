//! Node-parallel full-graph training (Dorylus, sections 4 and 5). Each worker stores whole rows of its own nodes, and ghosts: copies of the rows of
//! their neighbors at other workers.
//!
//! | file | content |
//! |---|---|
//! | [`topology`], [`ghost_edges`] | edges and ghosts, prepared before the first epoch |
//! | [`ghost_rows`] | the rows of ghosts in a table |
//! | [`sum_hop`], [`max_hop`], [`attention_hop`] | the tables, forward and backward pass of one aggregation each |
//! | [`evaluation_hop`] | the last hop of an evaluation, in which all nodes are receivers |
//! | [`mirrors`] | attention with overlapping epochs |

pub(crate) mod attention_hop;
pub(crate) mod evaluation_hop;
pub(crate) mod ghost_edges;
mod ghost_rows;
pub(crate) mod hop;
pub(crate) mod max_hop;
pub(crate) mod mirrors;
pub(crate) mod sum_hop;
pub(crate) mod topology;

use std::ops::Range;

use gnnflow_dataflow::ghost::Links;
use gnnflow_dataflow::ghost::scatter::row_headers;
use gnnflow_dataflow::storage::Table;
use gnnflow_dataflow::wire::{Header, WireBlock};
use gnnflow_kernels::matrix::Matrix;
use gnnflow_nn::layers::Aggregation;
use gnnflow_nn::model::NodeOutputs;

use self::attention_hop::AttentionHop;
use self::evaluation_hop::EvaluationLinks;
use self::hop::{Completed, GhostHop, HopLinks};
use self::max_hop::MaxHop;
use self::sum_hop::SumHop;
use self::topology::Topology;
use crate::engine::aggregation::row_table::WireRows;
use crate::engine::aggregation::rows::Selection;
use crate::engine::stages::exchange::{Evaluated, RowExchange, SentGradient, StageCx};
use crate::engine::stages::intervals::{Interval, slots_of};
use crate::engine::stages::message::{Channel, Outgoing, window};
use crate::engine::stages::program::Program;
use crate::engine::stages::state::{StageConfig, reserve_failed};
use crate::error::Error;
use gnnflow_nn::node_task::matrix;

/// One hop: its edges, its results, and the tables of its aggregation.
struct Hop {
    links: HopLinks,
    /// Aggregated rows, `[receivers, slots · width]`.
    aggregated: Table,
    rows: Box<dyn GhostHop>,
}

/// The edges and the tables of rows of one worker.
pub(crate) struct FullGraph {
    worker: usize,
    own: Range<u32>,
    slots: u32,
    /// Number of intervals of this worker.
    intervals: usize,
    hops: Vec<Hop>,
}

/// Builds the program of an epoch and reserves the tables.
///
/// # Errors
/// When there is no space, or `config` rounds rows of a model that does not only sum them.
pub(crate) fn open(graph: &Topology, config: &StageConfig) -> Result<(Program, Box<dyn RowExchange>), Error> {
    config.check_row_dtype()?;
    let hops = &config.profile.hops;
    let program = Program::node_parallel(hops.len(), config.profile.tasks[0].learns, &config.element_wise());
    let Topology { worker, own, slots, .. } = graph;
    let hops = (0..hops.len()).map(|index| hop(graph, config, &program, index));
    let hops = hops.collect::<std::io::Result<Vec<Hop>>>().map_err(reserve_failed)?;
    let exchange =
        FullGraph { worker: *worker, own: own.clone(), slots: *slots, intervals: graph.intervals.len(), hops };
    Ok((program, Box::new(exchange)))
}

/// Reserves the tables of hop `index`.
fn hop(graph: &Topology, config: &StageConfig, program: &Program, index: usize) -> std::io::Result<Hop> {
    let hops = &config.profile.hops;
    let (hop, pair) = (&hops[index], graph.links(index, hops.len()));
    let is_last = index + 1 == hops.len();
    let width = if hop.aggregation == Aggregation::Nothing { 0 } else { hop.width };
    let links = HopLinks::new(index, width, graph, pair);
    // In evaluation, all nodes are receivers. If training has fewer, the last hop needs separate links.
    let differs = is_last && !std::sync::Arc::ptr_eq(&graph.all.arriving, &graph.last.arriving);
    let evaluation = (differs && width > 0).then(|| EvaluationLinks::new(&graph.all.arriving, &graph.starts));
    let (has_gradient, place, mirrors) = (program.goes_back(index), &config.place, config.synchrony.mirrors());
    let rows: Box<dyn GhostHop> = match hop.aggregation {
        Aggregation::Attention { .. } => {
            let mirrors = mirrors.then_some(&graph.edges_at);
            Box::new(AttentionHop::new(hop, &links, has_gradient, mirrors, evaluation, place)?)
        }
        Aggregation::Max => Box::new(MaxHop::new(&links, has_gradient, evaluation, place)?),
        aggregation => {
            // Gradients overwrite activations that no interval reads again. With overlapping epochs, and in the last hop, other intervals may
            // still aggregate activations when gradients arrive.
            let in_place = pair.is_symmetric() && !config.synchrony.is_stale() && !is_last;
            Box::new(SumHop::new(
                aggregation,
                graph,
                &links,
                (has_gradient, in_place),
                evaluation,
                (config.row_dtype, place),
            )?)
        }
    };
    let receivers = links.arriving.rows().len() / graph.slots as usize;
    let aggregated = Table::zeros(receivers, graph.slots as usize * width, place)?;
    Ok(Hop { links, aggregated, rows })
}

impl FullGraph {
    fn nodes(&self, rows: &Range<usize>) -> Range<u32> {
        self.own.start + rows.start as u32..self.own.start + rows.end as u32
    }

    fn header(&self, cx: &StageCx<'_>, hop: usize, channel: Channel) -> Header {
        Header { from: self.worker as u32, tag: channel.tag(hop), key: cx.token.time, ..Header::default() }
    }

    /// Returns notes of rows of a table for the workers that have some of them as ghosts.
    fn outgoing(&self, cx: &StageCx<'_>, hop: usize, channel: Channel, rows: Range<usize>) -> Vec<Outgoing> {
        let Some((links, table)) = self.table(hop, channel) else { return Vec::new() };
        let header = self.header(cx, hop, channel);
        let to_worker = |(worker, first, wanted): (usize, usize, &[u32])| {
            row_headers(Header { to: worker as u32, seq: first as u32, ..header }, wanted.len(), table.row_bytes())
        };
        links.wanted(rows).flat_map(to_worker).map(Outgoing::Note).collect()
    }

    /// Returns the table of a channel, unless it is empty, and the links with its ghosts.
    fn table(&self, hop: usize, channel: Channel) -> Option<(&Links, &dyn WireRows)> {
        let Hop { links, rows, .. } = &self.hops[hop];
        rows.table(links, channel).filter(|(_, table)| table.row_bytes() > 0 && table.rows() > 0)
    }
}

impl RowExchange for FullGraph {
    fn aggregate(&mut self, cx: &mut StageCx<'_>, hop: usize, interval: &Interval) {
        let slots = self.slots as usize;
        let nodes = self.nodes(&interval.rows);
        let Hop { links, aggregated, rows } = &mut self.hops[hop];
        let receivers = links.receivers(&nodes);
        let out = aggregated.some_mut(receivers.start / slots..receivers.end / slots);
        rows.forward(cx, links, receivers, out);
    }

    fn aggregated(&self, hop: usize, rows: &Selection<'_>) -> Option<Matrix> {
        let Hop { links, aggregated, .. } = &self.hops[hop];
        let receiver = |row: usize| {
            let slot = links.arriving.rows().find((self.own.start + row as u32) * self.slots);
            slot.expect("a node that reads aggregated rows is a receiver") / self.slots as usize
        };
        (aggregated.width() > 0).then(|| rows.copy(aggregated, receiver))
    }

    fn evaluate_last_hop(&mut self, cx: &mut StageCx<'_>, interval: &Interval) -> Evaluated {
        let nodes = self.nodes(&interval.rows);
        let Some(Hop { links, rows, .. }) = self.hops.last_mut() else { return Evaluated::AsInTraining };
        match rows.forward_all(cx, links, &slots_of(&nodes, self.slots)) {
            Some(values) => Evaluated::Rows(Some(matrix(values, self.slots as usize * links.width))),
            None => Evaluated::AsInTraining,
        }
    }

    fn send(
        &mut self,
        cx: &mut StageCx<'_>,
        hop: usize,
        interval: &Interval,
        outputs: &NodeOutputs,
    ) -> Result<Vec<Outgoing>, Error> {
        let nodes = self.nodes(&interval.rows);
        let Hop { links, rows, .. } = &mut self.hops[hop];
        let for_all = cx.token.evaluates() && rows.evaluation().is_some();
        if links.width > 0 {
            let mut written = Ok(());
            cx.compute.timed_forward(|| written = rows.write_sent(links, &nodes, &interval.rows, outputs, for_all));
            written?;
        }
        let senders = match rows.evaluation().filter(|_| for_all) {
            Some(evaluation) => &evaluation.links,
            None => &links.arriving,
        };
        let sent = senders.table().between(&nodes);
        let channel = if for_all { Channel::EvaluationActivations } else { Channel::Activations };
        Ok(self.outgoing(cx, hop, channel, sent))
    }

    fn sent_gradient(&mut self, cx: &mut StageCx<'_>, hop: usize, interval: &Interval) -> Result<SentGradient, Error> {
        let nodes = self.nodes(&interval.rows);
        let Hop { links, rows, .. } = &mut self.hops[hop];
        if links.width == 0 {
            return Ok(SentGradient::default());
        }
        rows.backward(cx, links, &nodes)
    }

    fn send_gradient(
        &mut self,
        cx: &mut StageCx<'_>,
        hop: usize,
        interval: &Interval,
        rows: &Selection<'_>,
        gradient: Option<Vec<f32>>,
    ) -> Vec<Outgoing> {
        let (nodes, slots, intervals) = (self.nodes(&interval.rows), self.slots, self.intervals);
        let own = self.own.start * slots;
        let header = self.header(cx, hop, Channel::MirrorGradients);
        let Hop { links, rows: tables, .. } = &mut self.hops[hop];
        let table = links.leaving.table();
        if let Selection::Rows(_) = rows {
            tables.clear_gradient(table.between(&slots_of(&nodes, slots)));
        }
        if let Some(gradient) = gradient.filter(|_| links.width > 0) {
            let slots_of = |row: usize| (0..slots as usize).map(move |slot| row * slots as usize + slot);
            for (slot, values) in rows.iter().flat_map(slots_of).zip(gradient.chunks_exact(links.width)) {
                let place = table.find(own + slot as u32).expect("a receiver has a row for its gradient");
                tables.write_gradient(place, slot, values);
            }
        }
        let receivers = links.receivers(&nodes);
        match tables.complete(cx, links, receivers.clone(), (intervals, header)) {
            Completed::Rows => self.outgoing(cx, hop, Channel::Gradients, receivers),
            Completed::Mirrors(outgoing) => outgoing,
        }
    }

    fn message(&self, note: Header) -> WireBlock {
        let (hop, channel) = Channel::of(note);
        if channel == Channel::MirrorGradients {
            return self.hops[hop].rows.mirror_message(note);
        }
        let (links, table) = self.table(hop, channel).expect("a note names rows of this worker");
        let wanted = &links.wanted_by(note.to as usize)[note.seq as usize..(note.seq + note.aux) as usize];
        table.message(note, wanted)
    }

    fn receive(&mut self, block: &WireBlock) {
        let (hop, channel) = Channel::of(block.header());
        let Hop { links, rows, .. } = &mut self.hops[hop];
        rows.receive(links, channel, block);
    }

    fn window(&self) -> usize {
        window(None)
    }

    fn edge_columns(&self, goes_back: &dyn Fn(usize) -> bool) -> u64 {
        let hop = |(index, Hop { links, .. }): (usize, &Hop)| {
            let back = if goes_back(index) { links.leaving.num_edges() } else { 0 };
            (links.arriving.num_edges() + back) * links.width
        };
        self.hops.iter().enumerate().map(hop).sum::<usize>() as u64
    }
}
