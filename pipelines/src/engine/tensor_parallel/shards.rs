//! Slices of all nodes' rows, by columns (NeutronTP, section 3.1).
//!
//! Every worker has all edges and, of every row, some columns, so that all have the same to do. Rows are split off whole rows of
//! own nodes, added up chunk by chunk (section 4.2.1), and gathered into whole rows again at the nodes' owners. A column's sum
//! does not depend on which others are with it: any number of workers comes to the same bits.

use std::ops::Range;
use std::sync::Arc;

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
use super::head_shards::HeadShards;
use super::send_order::Order;
use super::topology::AllEdges;
use crate::config::RowDtype;
use crate::engine::aggregation::attention::DropoutKey;
use crate::engine::aggregation::max::Argmax;
use crate::engine::aggregation::row_table::{RowTable, message_of};
use crate::engine::aggregation::scales::Scales;
use crate::engine::stages::program::{Attended, Propagated};
use crate::error::Error;

/// One hop's slices.
struct ShardHop {
    scales: Arc<Scales>,
    /// The columns of each worker.
    columns: Vec<Range<usize>>,
    width: usize,
    /// Activations, and when those have been added up, gradients: none of them is asked for again, but by attention.
    rows: RowTable,
    /// Gradients of what has arrived, by slot, where they cannot lie where activations were.
    back: Option<RowTable>,
    /// Whether rows are weighed by attention: by that of the first hop of the chain of hops that this one is of.
    attends: bool,
    first: usize,
    /// What the node task before makes of what has arrived and of what was held at first.
    by_column: [f32; 2],
}

/// The slices of one worker.
pub(crate) struct Shards {
    graph: AllEdges,
    /// Of slices that are added up, and on the way to where they are.
    dtype: RowDtype,
    hops: Vec<ShardHop>,
    /// By hop, where it attends and is the first of its chain.
    attention: Vec<Option<ChainAttention>>,
    /// By hop, where the largest of each column arrives: whose.
    largest: Vec<Option<Argmax>>,
    /// Gradients of what nodes held before the first layer, where later hops read it.
    initial_back: Option<Table>,
    chunks: Vec<Range<usize>>,
    /// When rows are sent: activations, gradients, and gradients that attention reads first.
    orders: [Order; 3],
}

impl Shards {
    /// Makes room for the slices of all nodes.
    ///
    /// # Errors
    /// When there is none, when a hop has fewer columns than there are workers, or a chunk no room for one node.
    pub(crate) fn new(
        graph: AllEdges,
        Cut { chunks, pipelined }: Cut,
        hops: &[Hop],
        by_column: &[Option<[f32; 2]>],
        dtype: RowDtype,
        goes_back: &dyn Fn(usize) -> bool,
        place: &Place,
    ) -> Result<Self, Error> {
        let failed =
            |error: std::io::Error| Error::Machine(format!("cannot reserve space for the column shards: {error}"));
        let (nodes, workers) = (graph.starts[graph.starts.len() - 1] as usize, graph.starts.len() - 1);
        let (mut made, mut attentions, mut largest): (Vec<ShardHop>, Vec<_>, Vec<_>) = Default::default();
        let chained = |task: usize| by_column[task].is_some();
        for (index, hop) in hops.iter().enumerate() {
            let width = if hop.aggregation == Aggregation::Nothing { 0 } else { hop.width };
            if width > 0 && width < workers {
                let message = format!(
                    "train.schedule = \"tensor-parallel\" cuts rows by columns, and layer {} has rows of {width} columns for \
                     {workers} processes; use at most {width} processes, or \"full-graph\"",
                    index + 1
                );
                return Err(Error::Usage(message));
            }
            let mut columns = intervals(width, workers.max(1));
            columns.resize(workers, width..width);
            let first = if chained(index) { made[index - 1].first } else { index };
            let (mut more, mut attention) = (0, None);
            if let Aggregation::Attention { slope, dropout, .. } = hop.aggregation {
                let heads = HeadShards::of_hop(hop, graph.parts.len(), workers);
                columns = (0..workers).map(|worker| heads.of(worker)[0].clone()).collect();
                if first == index {
                    let ranges = ChainAttention::ranges(&heads, graph.worker, width);
                    more = ranges[1..].iter().map(Range::len).sum();
                    let room_for = (nodes, chained(index + 1));
                    let state = ChainAttention::new(heads, graph.worker, [slope, dropout], room_for, place);
                    attention = Some(state.map_err(failed)?);
                }
            }
            let own = columns[graph.worker].len();
            let same = hops[..index].iter().position(|earlier| earlier.aggregation == hop.aggregation);
            let scales = match same {
                Some(same) => Arc::clone(&made[same].scales),
                None => Arc::new(Scales::of_parts(hop.aggregation, 0, &graph.parts)),
            };
            // In a chain, they lie where the slices were that this hop's had been propagated to.
            let apart = (hop.attends() || graph.slots > 1) && !chained(index + 1);
            let back = match apart && goes_back(index) {
                true => Some(RowTable::zeros(dtype, nodes * graph.slots, own, place).map_err(failed)?),
                false => None,
            };
            largest.push(match hop.takes_largest() {
                true => Some(Argmax::new(nodes, own, place).map_err(failed)?),
                false => None,
            });
            made.push(ShardHop {
                back,
                scales,
                columns,
                width,
                rows: RowTable::zeros(dtype, nodes, own + more, place).map_err(failed)?,
                attends: hop.attends(),
                first,
                by_column: by_column[index].unwrap_or([1.0, 0.0]),
            });
            attentions.push(attention);
        }
        let initial = by_column.iter().flatten().any(|[_, kept]| *kept != 0.0) && goes_back(0);
        let initial_back = match initial {
            true => Some(Table::zeros(nodes, made[0].columns[graph.worker].len(), place).map_err(failed)?),
            false => None,
        };
        let order = |back: bool| match pipelined && chunks.len() > 1 {
            true => Order::of_sources(graph.links(back), [graph.slots, 1], back, &chunks, &graph.starts),
            false => Order::at_once(chunks.len(), &graph.starts),
        };
        let own = match pipelined {
            true => Order::by_chunk(&chunks, &graph.starts),
            false => Order::at_once(chunks.len(), &graph.starts),
        };
        let orders = [order(false), order(true), own];
        Ok(Self { graph, dtype, hops: made, attention: attentions, largest, initial_back, chunks, orders })
    }

    /// What this worker adds up in an epoch: edges times columns, forwards and backwards.
    pub(crate) fn edge_numbers(&self, goes_back: &dyn Fn(usize) -> bool) -> u64 {
        let [arriving, leaving] = [&self.graph.arriving, &self.graph.leaving].map(|links| links.num_edges());
        let hop = |(index, hop): (usize, &ShardHop)| {
            let edges = arriving + if goes_back(index) { leaving } else { 0 };
            edges * hop.columns[self.graph.worker].len()
        };
        self.hops.iter().enumerate().map(hop).sum::<usize>() as u64
    }

    /// Returns the number of chunks.
    pub(crate) fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// What slices may take that are added up at once.
    pub(crate) fn chunk_memory(&self) -> u64 {
        self.graph.chunk_memory
    }

    /// Cuts whole rows of own nodes that `chunk` is the first to need, as far as they are among the own rows `rows` of a table, into
    /// slices for everybody: of activations, and, where a hop attends, the terms behind them; or of gradients, a node's slots side
    /// by side. [`Shards::message`] makes the messages.
    pub(crate) fn split(
        &self,
        header: Header,
        [hop, chunk]: [usize; 2],
        back: bool,
        rows: Range<usize>,
    ) -> Vec<Header> {
        let ShardHop { columns, width, .. } = &self.hops[hop];
        if *width == 0 || rows.is_empty() {
            return Vec::new();
        }
        let (order, first) =
            (in_order(&self.orders, &self.hops[hop], back), self.graph.starts[self.graph.worker] as usize);
        let places = order.places(chunk, first + rows.start..first + rows.end, self.graph.worker);
        let to_worker = |worker: usize| {
            let header = Header { to: worker as u32, seq: places.start as u32, ..header };
            let width: usize = self.ranges(hop, back, worker).iter().map(Range::len).sum();
            // Others may have all heads.
            row_headers(header, if width == 0 { 0 } else { places.len() }, self.dtype.bytes() as usize * width)
        };
        (0..columns.len()).flat_map(to_worker).collect()
    }

    /// The ranges of a whole row that make a row of a worker's slices.
    fn ranges(&self, hop: usize, back: bool, worker: usize) -> Vec<Range<usize>> {
        let ShardHop { columns, width, .. } = &self.hops[hop];
        let (columns, slots) = (&columns[worker], if back { self.graph.slots } else { 1 });
        match self.heads(hop).filter(|_| !back) {
            Some(heads) => ChainAttention::ranges(heads, worker, *width),
            None => (0..slots).map(|slot| slot * width + columns.start..slot * width + columns.end).collect(),
        }
    }

    /// The message of a header of [`Shards::split`], out of `table`.
    pub(crate) fn message(&self, header: Header, hop: usize, back: bool, table: &Table) -> WireBlock {
        let order = in_order(&self.orders, &self.hops[hop], back);
        let first = self.graph.starts[self.graph.worker] as usize;
        let slots = if back { self.graph.slots } else { 1 };
        let ranges = self.ranges(hop, back, header.to as usize);
        message_of(self.dtype, header, ranges.iter().map(Range::len).sum(), |values| {
            for place in header.seq as usize..(header.seq + header.aux) as usize {
                let row = order.node(place) - first;
                let row = table.some(row * slots..(row + 1) * slots);
                ranges.iter().for_each(|range| values.extend_from_slice(&row[range.clone()]));
            }
        })
    }

    /// Puts slices that have been split off where they are added up.
    pub(crate) fn put(&mut self, hop: usize, back: bool, block: &WireBlock) {
        let header = block.header();
        let places = header.seq as usize..(header.seq + header.aux) as usize;
        let order = in_order(&self.orders, &self.hops[hop], back);
        let ShardHop { rows: table, back: gradients, .. } = &mut self.hops[hop];
        let (table, slots) = match gradients {
            Some(gradients) if back => (gradients, self.graph.slots),
            _ => (table, 1),
        };
        table.put_at(slots, places.map(|place| order.node(place) * slots), block);
    }

    /// How attention's heads are cut at a hop that attends.
    pub(crate) fn heads(&self, hop: usize) -> Option<&HeadShards> {
        self.attention[self.hops[hop].first].as_ref().map(|attention| &attention.heads)
    }

    /// What the gradients at a chunk's receivers say of the attention that they pay, by `vectors`, where it is by any.
    pub(crate) fn attend(&mut self, stage: Attended, drop: DropoutKey, vectors: Option<&[f32]>) {
        let (of, back) = (attended(&self.hops, stage.hop, vectors), gradients(&self.hops, stage.hop));
        if let Some(attention) = &mut self.attention[self.hops[stage.hop].first] {
            let rows = self.chunks[stage.chunk as usize].clone();
            attention.complete(&self.graph.arriving, rows, of, (back.exact(), !stage.split), drop);
        }
    }

    /// The columns of a hop that `worker` adds up.
    pub(crate) fn columns(&self, hop: usize, worker: usize) -> Range<usize> {
        self.hops[hop].columns[worker].clone()
    }

    /// Adds up the slices of a chunk's nodes; what is gathered now is sent to the nodes' owners.
    pub(crate) fn propagate(
        &mut self,
        header: Header,
        stage: Propagated,
        drop: DropoutKey,
        vectors: Option<&[f32]>,
    ) -> Vec<WireBlock> {
        let rows = self.chunks[stage.chunk as usize].clone();
        let Propagated { hop, back, .. } = stage;
        if self.hops[hop].width == 0 {
            return Vec::new(); // nothing is on edges there
        }
        let links = self.graph.links(back);
        let own = self.hops[hop].columns[self.graph.worker].len();
        let slots = self.graph.slots;
        let state = &self.hops[hop];
        if let Some(attention) = &mut self.attention[state.first] {
            let of = attended(&self.hops, hop, vectors);
            if back {
                let gradients = (gradients(&self.hops, hop).exact(), !stage.split);
                let [made, terms] = attention.backward(links, rows.clone(), of, gradients, drop);
                return self.gather_back(header, stage, rows, made, &terms);
            }
            let mut made = vec![0.0; rows.len() * own];
            attention.forward(links, rows.clone(), of, drop, &mut made);
            return self.go_on(header, stage, rows, made);
        }
        if let Some(largest) = &mut self.largest[hop] {
            let mut out = vec![0.0; rows.len() * own];
            if back {
                largest.backward_apart(links, rows.clone(), gradients(&self.hops, hop).exact(), &mut out);
                return self.gather_back(header, stage, rows, out, &[]);
            }
            largest.forward(links, rows.clone(), state.rows.exact(), &mut out);
            return self.go_on(header, stage, rows, out);
        }
        // Forwards, edges lead to slots; backwards, they come from them.
        let (table, slots) = if back { (gradients(&self.hops, hop), 1) } else { (&state.rows, slots) };
        let mut out = vec![0.0; rows.len() * slots * own];
        let (receivers, scales) = (rows.start * slots..rows.end * slots, &state.scales);
        match table {
            RowTable::F32(table) => add_up(links, receivers, table, scales, back, &mut out),
            RowTable::Bf16(table) => add_up(links, receivers, table, scales, back, &mut out),
        }
        match back {
            true => self.gather_back(header, stage, rows, out, &[]),
            false => self.go_on(header, stage, rows, out),
        }
    }

    /// What becomes of slices that have been added up: whole rows, or slices that are added up once more.
    fn go_on(&mut self, header: Header, stage: Propagated, rows: Range<usize>, mut out: Vec<f32>) -> Vec<WireBlock> {
        if stage.gather {
            return self.gather(header, rows.clone(), out.len() / rows.len().max(1), &out);
        }
        let [kept_of_sum, kept_of_first] = self.hops[stage.hop + 1].by_column;
        let (before, rest) = self.hops.split_at_mut(stage.hop + 1);
        if kept_of_first == 0.0 {
            rest[0].rows.write_times(rows, &out, kept_of_sum);
            return Vec::new();
        }
        // Terms of attention may lie behind the first slices.
        let (first, width) = (&before[0].rows, rest[0].columns[self.graph.worker].len().max(1));
        let initial = first.read(rows.clone());
        for (sums, initial) in out.chunks_exact_mut(width).zip(initial.chunks_exact(first.width().max(1))) {
            sums.iter_mut().zip(initial).for_each(|(x, initial)| *x = kept_of_sum * *x + kept_of_first * initial);
        }
        rest[0].rows.write_times(rows, &out, 1.0);
        Vec::new()
    }

    /// What becomes of gradients of sent slices, and of attention's terms of out-edges: whole rows, or gradients of what arrived before.
    fn gather_back(
        &mut self,
        header: Header,
        stage: Propagated,
        rows: Range<usize>,
        mut out: Vec<f32>,
        terms: &[f32],
    ) -> Vec<WireBlock> {
        let [kept_of_sum, kept_of_first] = self.hops[stage.hop].by_column;
        if stage.gather {
            if let Some(initial) = self.initial_back.as_mut().filter(|_| stage.hop == 0) {
                let initial = initial.some_mut(rows.clone());
                out.iter_mut().zip(&*initial).for_each(|(out, x)| *out += x);
                initial.fill(0.0);
            }
            if let Some(attention) = &self.attention[stage.hop] {
                out = attention.join(rows.clone(), &out, terms);
            }
            return self.gather(header, rows.clone(), out.len() / rows.len().max(1), &out);
        }
        if let Some(initial) = self.initial_back.as_mut().filter(|_| kept_of_first != 0.0) {
            let initial = initial.some_mut(rows.clone());
            initial.iter_mut().zip(&out).for_each(|(initial, x)| *initial += kept_of_first * x);
        }
        // Of these nodes, what has been propagated here is not asked for again.
        let place = if self.hops[stage.hop].attends { stage.hop } else { stage.hop - 1 };
        self.hops[place].rows.write_times(rows, &out, kept_of_sum);
        Vec::new()
    }

    /// Slices of these nodes, to their owners.
    fn gather(&self, header: Header, rows: Range<usize>, width: usize, slices: &[f32]) -> Vec<WireBlock> {
        if width == 0 {
            return Vec::new(); // others have all heads
        }
        let starts = &self.graph.starts;
        let to_worker = |(worker, bounds): (usize, &[u32])| {
            let (first, end) = ((bounds[0] as usize).max(rows.start), (bounds[1] as usize).min(rows.end));
            let count = end.saturating_sub(first);
            let header = Header { to: worker as u32, from: self.graph.worker as u32, seq: first as u32, ..header };
            row_blocks(header, count, width, |range, values| {
                let offset = first - rows.start;
                values.extend_from_slice(&slices[(offset + range.start) * width..(offset + range.end) * width]);
            })
        };
        starts.windows(2).enumerate().flat_map(to_worker).collect()
    }
}

/// What a hop that attends reads.
fn attended<'a>(hops: &'a [ShardHop], hop: usize, vectors: Option<&'a [f32]>) -> AttendedRows<'a> {
    AttendedRows { rows: hops[hop].rows.exact(), terms: hops[hops[hop].first].rows.exact(), vectors }
}

/// Where the gradients of what has arrived at a hop are.
fn gradients(hops: &[ShardHop], hop: usize) -> &RowTable {
    match &hops[hop].back {
        Some(back) => back,
        // Attention reads activations once more, but those of the hop behind have been read.
        None if hops[hop].attends => &hops[hop + 1].rows,
        None => &hops[hop].rows,
    }
}

/// In which order a hop's rows are sent.
fn in_order<'a>([activations, gradients, attended]: &'a [Order; 3], hop: &ShardHop, back: bool) -> &'a Order {
    match (back, hop.attends) {
        (false, _) => activations,
        (true, false) => gradients,
        (true, true) => attended,
    }
}

/// `out[v] = after[v] · (Σ before[u] · table[u] + own[v] · before[v] · table[v])`, or for gradients the other way round.
fn add_up<T: Element<Acc = f32> + Pod>(
    links: &Links,
    rows: Range<usize>,
    table: &Table<T>,
    scales: &Scales,
    back: bool,
    out: &mut [f32],
) {
    let width = table.width();
    if rows.is_empty() || width == 0 {
        return;
    }
    let (before, after) = if back { (&scales.after, &scales.before) } else { (&scales.before, &scales.after) };
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
