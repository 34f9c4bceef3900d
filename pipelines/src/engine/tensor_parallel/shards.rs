//! Column shards of the rows of all nodes (NeutronTP, section 3.1).
//!
//! Every worker has all edges and some columns of every row, so all have equal work. Whole rows are split into shards at the nodes' owners,
//! aggregated chunk by chunk (section 4.2.1), and gathered into whole rows. The sum of a column does not depend on the other columns of its
//! shard, so the bits are equal for any number of workers.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytemuck::Pod;
use gnnflow_dataflow::ghost::Links;
use gnnflow_dataflow::ghost::intervals::intervals;
use gnnflow_dataflow::ghost::scatter::{row_blocks, row_headers};
use gnnflow_dataflow::storage::{Place, Table};
use gnnflow_dataflow::wire::{Header, WireBlock};
use gnnflow_kernels::aggregate::{Coefficient, Onto, Own, Propagate, Scale, Sources, Weights};
use gnnflow_kernels::simd::element::Element;
use gnnflow_nn::layers::Aggregation;
use gnnflow_nn::model::Hop;
use rayon::prelude::*;

use super::chain_attention::{AttendedRows, ChainAttention};
use super::chunks::Cut;
use super::device_sums::{ChunkSums, DeviceSums, Pass};
use super::head_shards::HeadShards;
use super::send_order::SendOrder;
use super::topology::AllEdges;
use crate::config::RowDtype;
use crate::engine::aggregation::attention::DropoutKey;
use crate::engine::aggregation::max::Argmax;
use crate::engine::aggregation::row_table::{RowTable, message_of};
use crate::engine::aggregation::scales::Scales;
use crate::engine::stages::program::{AttentionStage, Propagated};
use crate::error::Error;

/// The column shards of one hop.
struct ShardHop {
    scales: Arc<Scales>,
    /// The columns of each worker.
    columns: Vec<Range<usize>>,
    width: usize,
    /// Activations, which gradients overwrite after the aggregation; only attention reads activations again.
    rows: RowTable,
    /// Gradients of aggregated rows, by slot, if they need a separate table.
    gradients: Option<RowTable>,
    /// Whether the hop has attention: that of the first hop of its chain, `first`.
    attends: bool,
    first: usize,
    /// The factors `[a, b]` of the element-wise task before this hop: `row = a · aggregated + b · initial`.
    factors: [f32; 2],
}

/// The column shards of one worker.
pub(crate) struct Shards {
    graph: AllEdges,
    /// The type of stored and sent shards.
    dtype: RowDtype,
    hops: Vec<ShardHop>,
    /// By hop, if it has attention and is the first of its chain.
    attention: Vec<Option<ChainAttention>>,
    /// By hop, if it computes maxima.
    argmax: Vec<Option<Argmax>>,
    /// Gradients of the rows held before the first layer, if later hops read these.
    initial_gradient: Option<Table>,
    chunks: Vec<Range<usize>>,
    /// The send orders of activations, of gradients, and of gradients of hops with attention.
    orders: [SendOrder; 3],
    /// Sums on a GPU.
    device: Option<DeviceSums>,
}

impl Shards {
    /// Reserves the column shards of all nodes. `factors` holds the factors of element-wise node tasks.
    ///
    /// # Errors
    /// When there is no space.
    pub(crate) fn new(
        graph: AllEdges,
        Cut { chunks, pipelined }: Cut,
        hops: &[Hop],
        factors: &[Option<[f32; 2]>],
        dtype: RowDtype,
        goes_back: &dyn Fn(usize) -> bool,
        place: &Place,
    ) -> Result<Self, Error> {
        let failed =
            |error: std::io::Error| Error::Machine(format!("cannot reserve space for the column shards: {error}"));
        let (nodes, workers) = (graph.starts[graph.starts.len() - 1] as usize, graph.starts.len() - 1);
        let (mut shards, mut attentions, mut argmax): (Vec<ShardHop>, Vec<_>, Vec<_>) = Default::default();
        let element_wise = |task: usize| factors[task].is_some();
        for (index, hop) in hops.iter().enumerate() {
            let width = if hop.aggregation == Aggregation::Nothing { 0 } else { hop.width };
            // With fewer columns than workers, some workers have none.
            let mut columns = intervals(width, workers.max(1));
            columns.resize(workers, width..width);
            let first = if element_wise(index) { shards[index - 1].first } else { index };
            let (mut more, mut attention) = (0, None);
            if let Aggregation::Attention { slope, dropout, .. } = hop.aggregation {
                let heads = HeadShards::of_hop(hop, graph.parts.len(), workers);
                columns = (0..workers).map(|worker| heads.of(worker)[0].clone()).collect();
                if first == index {
                    let ranges = ChainAttention::ranges(&heads, graph.worker, width);
                    more = ranges[1..].iter().map(Range::len).sum();
                    let size = (nodes, element_wise(index + 1));
                    let state = ChainAttention::new(heads, graph.worker, [slope, dropout], size, place);
                    attention = Some(state.map_err(failed)?);
                }
            }
            let own = columns[graph.worker].len();
            let same = hops[..index].iter().position(|earlier| earlier.aggregation == hop.aggregation);
            let scales = match same {
                Some(same) => Arc::clone(&shards[same].scales),
                None => Arc::new(Scales::of_parts(hop.aggregation, 0, &graph.parts)),
            };
            // In a chain, gradients overwrite the shards of the next hop.
            let separate = (hop.attends() || graph.slots > 1) && !element_wise(index + 1);
            let gradients = match separate && goes_back(index) {
                true => Some(RowTable::zeros(dtype, nodes * graph.slots, own, place).map_err(failed)?),
                false => None,
            };
            argmax.push(match hop.takes_largest() {
                true => Some(Argmax::new(nodes, own, place).map_err(failed)?),
                false => None,
            });
            shards.push(ShardHop {
                gradients,
                scales,
                columns,
                width,
                rows: RowTable::zeros(dtype, nodes, own + more, place).map_err(failed)?,
                attends: hop.attends(),
                first,
                factors: factors[index].unwrap_or([1.0, 0.0]),
            });
            attentions.push(attention);
        }
        let reads_initial = factors.iter().flatten().any(|[_, initial]| *initial != 0.0) && goes_back(0);
        let initial_gradient = match reads_initial {
            true => Some(Table::zeros(nodes, shards[0].columns[graph.worker].len(), place).map_err(failed)?),
            false => None,
        };
        let orders = send_orders(&graph, &chunks, pipelined);
        Ok(Self {
            graph,
            dtype,
            hops: shards,
            attention: attentions,
            argmax,
            initial_gradient,
            chunks,
            orders,
            device: None,
        })
    }

    /// Returns the shards, with sums on a GPU.
    #[must_use]
    pub(super) fn summed_by(self, device: Option<DeviceSums>) -> Self {
        Self { device, ..self }
    }

    /// Returns the time that the GPU has summed since the last call.
    pub(super) fn take_device_time(&mut self) -> Duration {
        self.device.as_mut().map(DeviceSums::take_spent).unwrap_or_default()
    }

    /// Returns the edges times columns that this worker aggregates per epoch, forward and backward.
    pub(crate) fn edge_columns(&self, goes_back: &dyn Fn(usize) -> bool) -> u64 {
        let [arriving, leaving] = [&self.graph.arriving, &self.graph.leaving].map(|links| links.num_edges());
        let hop = |(index, hop): (usize, &ShardHop)| {
            let edges = arriving + if goes_back(index) { leaving } else { 0 };
            edges * hop.columns[self.graph.worker].len()
        };
        self.hops.iter().enumerate().map(hop).sum::<usize>() as u64
    }

    pub(crate) fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Returns the maximum bytes of the shards of a chunk.
    pub(crate) fn chunk_memory(&self) -> u64 {
        self.graph.chunk_memory
    }

    /// Returns notes of the shards, for all workers, of those own rows in `rows` that `chunk` needs first: of activations, followed by
    /// attention scores; or of gradients, a node's slots side by side. [`Shards::message`] builds the messages.
    pub(crate) fn split(
        &self,
        header: Header,
        [hop, chunk]: [usize; 2],
        backward: bool,
        rows: Range<usize>,
    ) -> Vec<Header> {
        let ShardHop { columns, width, .. } = &self.hops[hop];
        if *width == 0 || rows.is_empty() {
            return Vec::new();
        }
        let (order, first) =
            (in_order(&self.orders, &self.hops[hop], backward), self.graph.starts[self.graph.worker] as usize);
        let positions = order.positions(chunk, first + rows.start..first + rows.end, self.graph.worker);
        let to_worker = |worker: usize| {
            let header = Header { to: worker as u32, seq: positions.start as u32, ..header };
            let width: usize = self.ranges(hop, backward, worker).iter().map(Range::len).sum();
            // A worker may have no columns.
            row_headers(header, if width == 0 { 0 } else { positions.len() }, self.dtype.bytes() as usize * width)
        };
        (0..columns.len()).flat_map(to_worker).collect()
    }

    /// Returns the ranges of a whole row that make a row of a worker's shards.
    fn ranges(&self, hop: usize, backward: bool, worker: usize) -> Vec<Range<usize>> {
        let ShardHop { columns, width, .. } = &self.hops[hop];
        let (columns, slots) = (&columns[worker], if backward { self.graph.slots } else { 1 });
        match self.heads(hop).filter(|_| !backward) {
            Some(heads) => ChainAttention::ranges(heads, worker, *width),
            None => (0..slots).map(|slot| slot * width + columns.start..slot * width + columns.end).collect(),
        }
    }

    /// Returns the message of a note of [`Shards::split`], from `table`.
    pub(crate) fn message(&self, header: Header, hop: usize, backward: bool, table: &Table) -> WireBlock {
        let order = in_order(&self.orders, &self.hops[hop], backward);
        let first = self.graph.starts[self.graph.worker] as usize;
        let slots = if backward { self.graph.slots } else { 1 };
        let ranges = self.ranges(hop, backward, header.to as usize);
        message_of(self.dtype, header, ranges.iter().map(Range::len).sum(), |values| {
            for position in header.seq as usize..(header.seq + header.aux) as usize {
                let row = order.node(position) - first;
                let row = table.some(row * slots..(row + 1) * slots);
                ranges.iter().for_each(|range| values.extend_from_slice(&row[range.clone()]));
            }
        })
    }

    /// Stores received shards.
    pub(crate) fn put(&mut self, hop: usize, backward: bool, block: &WireBlock) {
        let header = block.header();
        let positions = header.seq as usize..(header.seq + header.aux) as usize;
        let order = in_order(&self.orders, &self.hops[hop], backward);
        let ShardHop { rows: table, gradients, .. } = &mut self.hops[hop];
        let (table, slots) = match gradients {
            Some(gradients) if backward => (gradients, self.graph.slots),
            _ => (table, 1),
        };
        table.put_at(slots, positions.map(|position| order.node(position) * slots), block);
    }

    /// Returns the head parts of a hop with attention.
    pub(crate) fn heads(&self, hop: usize) -> Option<&HeadShards> {
        self.attention[self.hops[hop].first].as_ref().map(|attention| &attention.heads)
    }

    /// Computes the receivers' side of the attention backward pass for a chunk. `vectors` are the attention vectors (GATv2).
    pub(crate) fn attention_backward(&mut self, stage: AttentionStage, drop: DropoutKey, vectors: Option<&[f32]>) {
        let (of, gradients) = (attended(&self.hops, stage.hop, vectors), gradients(&self.hops, stage.hop));
        if let Some(attention) = &mut self.attention[self.hops[stage.hop].first] {
            let rows = self.chunks[stage.chunk as usize].clone();
            attention.complete(&self.graph.arriving, rows, of, (gradients.as_f32(), !stage.split), drop);
        }
    }

    /// Returns the columns of a hop that `worker` aggregates.
    pub(crate) fn columns(&self, hop: usize, worker: usize) -> Range<usize> {
        self.hops[hop].columns[worker].clone()
    }

    /// Aggregates the shards of a chunk's nodes. Returns the messages for the nodes' owners, if the stage gathers whole rows.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn propagate(
        &mut self,
        header: Header,
        stage: Propagated,
        drop: DropoutKey,
        vectors: Option<&[f32]>,
    ) -> Result<Vec<WireBlock>, Error> {
        let rows = self.chunks[stage.chunk as usize].clone();
        let Propagated { hop, backward, .. } = stage;
        if self.hops[hop].width == 0 {
            return Ok(Vec::new());
        }
        let links = self.graph.links(backward);
        let own = self.hops[hop].columns[self.graph.worker].len();
        let slots = self.graph.slots;
        let state = &self.hops[hop];
        if let Some(attention) = &mut self.attention[state.first] {
            let of = attended(&self.hops, hop, vectors);
            if backward {
                let gradients = (gradients(&self.hops, hop).as_f32(), !stage.split);
                let [out, terms] = attention.backward(links, rows.clone(), of, gradients, drop);
                return Ok(self.finish_backward(header, stage, rows, out, &terms));
            }
            let mut out = vec![0.0; rows.len() * own];
            attention.forward(links, rows.clone(), of, drop, &mut out);
            return Ok(self.finish_forward(header, stage, rows, out));
        }
        if let Some(argmax) = &mut self.argmax[hop] {
            let mut out = vec![0.0; rows.len() * own];
            if backward {
                argmax.backward_separate(links, rows.clone(), gradients(&self.hops, hop).as_f32(), &mut out);
                return Ok(self.finish_backward(header, stage, rows, out, &[]));
            }
            argmax.forward(links, rows.clone(), state.rows.as_f32(), &mut out);
            return Ok(self.finish_forward(header, stage, rows, out));
        }
        // Receivers have slots: the destinations of edges forward, the sources backward.
        let (table, slots) = if backward { (gradients(&self.hops, hop), 1) } else { (&state.rows, slots) };
        let mut out = vec![0.0; rows.len() * slots * own];
        let (receivers, scales) = (rows.start * slots..rows.end * slots, &state.scales);
        match (&mut self.device, table) {
            (Some(device), rows) => {
                let next = self.chunks.get(stage.chunk as usize + 1);
                let chunk = ChunkSums {
                    pass: Pass { hop, backward },
                    links,
                    receivers,
                    next: next.map(|next| next.start * slots..next.end * slots),
                    rows,
                    new: new_rows(&self.graph, in_order(&self.orders, state, backward), stage),
                    scales,
                };
                device.sum(&chunk, &mut out)?;
            }
            (None, RowTable::F32(table)) => sum_rows(links, receivers, table, scales, backward, &mut out),
            (None, RowTable::Bf16(table)) => sum_rows(links, receivers, table, scales, backward, &mut out),
        }
        Ok(match backward {
            true => self.finish_backward(header, stage, rows, out, &[]),
            false => self.finish_forward(header, stage, rows, out),
        })
    }

    /// Gathers aggregated shards into whole rows, or stores them for the next hop of the chain.
    fn finish_forward(
        &mut self,
        header: Header,
        stage: Propagated,
        rows: Range<usize>,
        mut out: Vec<f32>,
    ) -> Vec<WireBlock> {
        if stage.gather {
            return self.gather(header, rows.clone(), out.len() / rows.len().max(1), &out);
        }
        let [of_aggregated, of_initial] = self.hops[stage.hop + 1].factors;
        let (before, rest) = self.hops.split_at_mut(stage.hop + 1);
        if of_initial == 0.0 {
            rest[0].rows.write_times(rows, &out, of_aggregated);
            return Vec::new();
        }
        // Attention scores may follow the shards of the first hop.
        let (first, width) = (&before[0].rows, rest[0].columns[self.graph.worker].len().max(1));
        let initial = first.read(rows.clone());
        for (sums, initial) in out.chunks_exact_mut(width).zip(initial.chunks_exact(first.width().max(1))) {
            sums.iter_mut().zip(initial).for_each(|(x, initial)| *x = of_aggregated * *x + of_initial * initial);
        }
        rest[0].rows.write_times(rows, &out, 1.0);
        Vec::new()
    }

    /// Gathers the gradients of sent shards and of source scores into whole rows, or stores them for the hop before in the chain.
    fn finish_backward(
        &mut self,
        header: Header,
        stage: Propagated,
        rows: Range<usize>,
        mut out: Vec<f32>,
        terms: &[f32],
    ) -> Vec<WireBlock> {
        let [of_aggregated, of_initial] = self.hops[stage.hop].factors;
        if stage.gather {
            if let Some(initial) = self.initial_gradient.as_mut().filter(|_| stage.hop == 0) {
                let initial = initial.some_mut(rows.clone());
                out.iter_mut().zip(&*initial).for_each(|(out, x)| *out += x);
                initial.fill(0.0);
            }
            if let Some(attention) = &self.attention[stage.hop] {
                out = attention.join(rows.clone(), &out, terms);
            }
            return self.gather(header, rows.clone(), out.len() / rows.len().max(1), &out);
        }
        if let Some(initial) = self.initial_gradient.as_mut().filter(|_| of_initial != 0.0) {
            let initial = initial.some_mut(rows.clone());
            initial.iter_mut().zip(&out).for_each(|(initial, x)| *initial += of_initial * x);
        }
        // The activations of these nodes are not read again.
        let place = if self.hops[stage.hop].attends { stage.hop } else { stage.hop - 1 };
        self.hops[place].rows.write_times(rows, &out, of_aggregated);
        Vec::new()
    }

    /// Returns messages with the shards of these nodes for their owners.
    fn gather(&self, header: Header, rows: Range<usize>, width: usize, shards: &[f32]) -> Vec<WireBlock> {
        if width == 0 {
            return Vec::new(); // this worker has no columns
        }
        let starts = &self.graph.starts;
        let to_worker = |(worker, bounds): (usize, &[u32])| {
            let (first, end) = ((bounds[0] as usize).max(rows.start), (bounds[1] as usize).min(rows.end));
            let count = end.saturating_sub(first);
            let header = Header { to: worker as u32, from: self.graph.worker as u32, seq: first as u32, ..header };
            row_blocks(header, count, width, |range, values| {
                let offset = first - rows.start;
                values.extend_from_slice(&shards[(offset + range.start) * width..(offset + range.end) * width]);
            })
        };
        starts.windows(2).enumerate().flat_map(to_worker).collect()
    }
}

/// Returns the send orders of activations, of gradients, and of gradients of hops with attention.
fn send_orders(graph: &AllEdges, chunks: &[Range<usize>], pipelined: bool) -> [SendOrder; 3] {
    let order = |backward: bool| match pipelined && chunks.len() > 1 {
        true => SendOrder::of_sources(graph.links(backward), graph.slots, backward, chunks, &graph.starts),
        false => SendOrder::all_first(chunks.len(), &graph.starts),
    };
    let by_chunk = match pipelined {
        true => SendOrder::by_chunk(chunks, &graph.starts),
        false => SendOrder::all_first(chunks.len(), &graph.starts),
    };
    [order(false), order(true), by_chunk]
}

/// Returns the inputs of a hop with attention.
fn attended<'a>(hops: &'a [ShardHop], hop: usize, vectors: Option<&'a [f32]>) -> AttendedRows<'a> {
    AttendedRows { rows: hops[hop].rows.as_f32(), terms: hops[hops[hop].first].rows.as_f32(), vectors }
}

/// Returns the table of the gradients of a hop's aggregated rows.
fn gradients(hops: &[ShardHop], hop: usize) -> &RowTable {
    match &hops[hop].gradients {
        Some(gradients) => gradients,
        // The backward pass of attention reads the activations of this hop, but no longer those of the next.
        None if hops[hop].attends => &hops[hop + 1].rows,
        None => &hops[hop].rows,
    }
}

/// Returns the rows of the shards that no chunk before this one has needed. Shards that the stage before has aggregated are all there.
fn new_rows(graph: &AllEdges, order: &SendOrder, stage: Propagated) -> Vec<u32> {
    let slots = if stage.backward { graph.slots as u32 } else { 1 };
    let of_node = |node: u32| node * slots..(node + 1) * slots;
    if !stage.split {
        let nodes = if stage.chunk == 0 { graph.starts[graph.starts.len() - 1] } else { 0 };
        return (0..nodes * slots).collect();
    }
    let of_worker = |(worker, bounds): (usize, &[u32])| {
        order.positions(stage.chunk as usize, bounds[0] as usize..bounds[1] as usize, worker)
    };
    let positions = graph.starts.windows(2).enumerate().flat_map(of_worker);
    positions.flat_map(|position| of_node(order.node(position) as u32)).collect()
}

/// Returns the send order of a hop's rows.
fn in_order<'a>(
    [activations, gradients, attended]: &'a [SendOrder; 3],
    hop: &ShardHop,
    backward: bool,
) -> &'a SendOrder {
    match (backward, hop.attends) {
        (false, _) => activations,
        (true, false) => gradients,
        (true, true) => attended,
    }
}

/// Computes `out[v] = after[v] · (Σ before[u] · table[u] + own[v] · before[v] · table[v])`; for gradients, `before` and `after` are exchanged.
fn sum_rows<T: Element<Acc = f32> + Pod>(
    links: &Links,
    rows: Range<usize>,
    table: &Table<T>,
    scales: &Scales,
    backward: bool,
    out: &mut [f32],
) {
    let width = table.width();
    if rows.is_empty() || width == 0 {
        return;
    }
    let (before, after) = if backward { (&scales.after, &scales.before) } else { (&scales.before, &scales.after) };
    let (indptr, indices) = links.edges(rows.clone());
    let number = |scale: &Option<Vec<f32>>, row: usize| scale.as_ref().map_or(1.0, |scale| scale[row]);
    let shares: Option<Vec<f32>> = scales.own.as_ref().map(|own| {
        rows.clone().into_par_iter().map(|row| own[row] * number(before, row) * number(after, row)).collect()
    });
    let own = shares.as_deref().map(|shares| Own {
        rows: table.some(rows.clone()),
        stride: width,
        coefficient: Coefficient::ByRow(shares),
    });
    Propagate {
        indptr,
        indices,
        sources: Sources::new(table.values(), width),
        heads: 1,
        width,
        weights: before.as_deref().map_or(Weights::One, Weights::BySource),
        scale: after.as_ref().map_or(Scale::One, |after| Scale::ByRow(&after[rows.clone()])),
        own,
        onto: Onto::Nothing,
        out_stride: width,
    }
    .run(out);
}
