//! Finding out, before the first epoch, whose rows belong together and who needs whose.

use std::ops::Range;
use std::sync::Arc;

use gnnflow_dataflow::ghost::intervals::intervals;
use gnnflow_dataflow::ghost::links::Filter;
use gnnflow_dataflow::ghost::{Ends, Links};
use gnnflow_dataflow::graph::local_graph::{InEdges, LocalGraph};
use gnnflow_dataflow::storage::Place;
use timely::worker::Worker;

use super::Interval;
use crate::collectives::agreement::Agreement;
use crate::config::Train;
use crate::context::{TRAIN, WorkerContext};
use crate::engine::aggregation::edge_types::by_relation;
use crate::engine::aggregation::transpose::transposed;
use crate::engine::full_graph::ghost_edges::{ask, reverse};
use crate::engine::tensor_parallel::column_shards::Columns;
use crate::error::Error;
use crate::runtime::job::Job;

/// Nodes of an interval when nobody has said how many intervals there are.
pub(crate) const INTERVAL_NODES: usize = 1 << 15;
/// Training nodes among all nodes from which on nothing is won by leaving the others out of the last hop.
const MANY: f64 = 0.5;

/// What a worker knows of the whole graph.
pub(crate) struct GraphLinks {
    pub(crate) worker: usize,
    pub(crate) own: Range<u32>,
    pub(crate) intervals: Vec<Interval>,
    /// Of all hops but the last: those along which rows arrive, and those along which gradients do.
    pub(crate) all: [Arc<Links>; 2],
    /// Of the last hop, whose receivers are the nodes with a loss.
    pub(crate) last: [Arc<Links>; 2],
    /// In-edges of the partitions hosted here, by slot.
    pub(crate) in_edges: Vec<Arc<dyn InEdges>>,
    /// In how many sums a node receives.
    pub(crate) slots: u32,
    /// By worker, its first node.
    pub(crate) starts: Vec<u32>,
    /// Where numbers of edges lie.
    pub(crate) edges_at: Place,
    /// Where rows are cut by columns.
    pub(crate) columns: Option<Columns>,
}

/// What a model asks of edges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EdgeNeeds {
    /// That every node has one to itself.
    pub(crate) self_loops: bool,
    /// That those of so many types are told apart.
    pub(crate) slots: u32,
}

/// The slots of nodes.
pub(crate) fn slots_of(nodes: &Range<u32>, slots: u32) -> Range<u32> {
    nodes.start * slots..nodes.end * slots
}

/// Refuses what has more slots than there are numbers for.
fn check_slots(nodes: u64, slots: u32) -> Result<(), Error> {
    if nodes * u64::from(slots) <= u64::from(u32::MAX) {
        return Ok(());
    }
    let message = format!(
        "{nodes} nodes receive by {slots} types of edges each, more than the {} sums that training over the whole graph can \
         number: use train.schedule = \"mini-batch\"",
        u32::MAX
    );
    Err(Error::Usage(message))
}

/// Names long local work for [`Runtime::busy`](crate::Runtime::busy).
const PREPARING_EDGES: &str = "preparing the edges for training over the whole graph";

/// Asks everybody what this worker needs to know.
///
/// # Errors
/// When there is no room, or a file of the dataset cannot be read.
pub(crate) fn by_nodes(
    worker: &mut Worker,
    job: &Job,
    context: &WorkerContext,
    agreement: &mut Agreement,
    count: Option<usize>,
    EdgeNeeds { self_loops, slots }: EdgeNeeds,
) -> Result<GraphLinks, Error> {
    let (runtime, graph, book) = (&*job.runtime, &context.graph, job.dataset.book());
    let busy = runtime.busy(PREPARING_EDGES);
    let placement = context.placement;
    let first_node = |worker: usize| book.offsets()[placement.parts_of(worker).start] as u32;
    let starts: Vec<u32> = (0..placement.workers()).map(first_node).collect();
    let hosted = graph.hosted();
    let own = book.offsets()[hosted.start] as u32..book.offsets()[hosted.end] as u32;
    let of_edges = learns_edges(job);
    let trains = training_nodes(job)?;
    let is_train = |node: u32| trains[node as usize / 64] >> (node % 64) & 1 == 1;
    let cut = cut(graph, &own, count, &|node| !of_edges && is_train(node));
    let place = Place::Folder(context.scratch.clone());
    let room = |error: std::io::Error| {
        Error::Machine(format!("no room for the edges' numbers in {}: {error}", context.scratch.display()))
    };
    let nodes = graph.num_nodes();
    check_slots(nodes, slots)?;
    let in_edges = hosted.clone().map(|part| by_relation(&graph.shared_in_edges(part), slots, &place));
    let in_edges = in_edges.collect::<Result<Vec<_>, _>>()?;
    drop(busy);
    // Types need not be the same both ways.
    let symmetric = slots == 1 && is_symmetric(worker, job, graph, agreement)?;
    let out_edges = if symmetric { in_edges.clone() } else { reverse(worker, runtime, context, &own, slots, &place)? };
    let mut build = |edges: &[Arc<dyn InEdges>], [rows, table]: [u32; 2], filter: Filter<'_>| {
        let ends = Ends { rows: slots_of(&own, rows), table: slots_of(&own, table), all: nodes * u64::from(table) };
        let busy = runtime.busy(PREPARING_EDGES);
        let mut links = Links::new(ends, edges, filter, &place).map_err(room)?;
        drop(busy);
        let starts: Vec<u32> = starts.iter().map(|&start| start * table).collect();
        let wanted = ask(worker, runtime, context, &starts, links.ghosts())?;
        links.set_wanted(wanted);
        Ok::<_, Error>(Arc::new(links))
    };
    let share = trains.iter().map(|word| word.count_ones() as u64).sum::<u64>() as f64 / nodes.max(1) as f64;
    // Edges may ask for any node's result.
    let share = if of_edges { 1.0 } else { share };
    // Attention weighs a node's own row as it does its neighbors'.
    let every = Filter { self_loops, ..Filter::default() };
    let all = {
        let arriving = build(&in_edges, [slots, 1], every)?;
        let leaving = if symmetric { Arc::clone(&arriving) } else { build(&out_edges, [1, slots], every)? };
        [arriving, leaving]
    };
    let last = if share > MANY {
        all.clone()
    } else {
        let has_loss = |slot: u32| is_train(slot / slots);
        let arriving = build(&in_edges, [slots, 1], Filter { rows: Some(&has_loss), ..every })?;
        [arriving, build(&out_edges, [1, slots], Filter { neighbors: Some(&has_loss), ..every })?]
    };
    let worker = context.worker;
    Ok(GraphLinks { worker, own, intervals: cut, all, last, in_edges, slots, starts, edges_at: place, columns: None })
}

/// The intervals of the partitions hosted here.
fn cut(graph: &LocalGraph, own: &Range<u32>, count: Option<usize>, is_train: &dyn Fn(u32) -> bool) -> Vec<Interval> {
    let mut cut = Vec::new();
    for part in graph.hosted() {
        let range = graph.range(part);
        let (nodes, first) = (range.len(), (range.start - own.start) as usize);
        let ranges = intervals(nodes.max(1), count.unwrap_or(nodes.div_ceil(INTERVAL_NODES)).max(1));
        let many = ranges.len();
        for (number, range) in ranges.into_iter().enumerate() {
            let rows = first + range.start..first + range.end.min(nodes);
            let seeds = rows.clone().filter(|&row| is_train(own.start + row as u32)).collect();
            cut.push(Interval { partition: part as u32, number: number as u32, rows, last: number + 1 == many, seeds });
        }
    }
    cut
}

/// As [`by_nodes`], where every worker has all edges and some columns of every row; `memory` is what a chunk may take.
///
/// # Errors
/// As [`by_nodes`].
pub(crate) fn by_columns(
    worker: &mut Worker,
    job: &Job,
    context: &WorkerContext,
    agreement: &mut Agreement,
    count: Option<usize>,
    memory: u64,
    EdgeNeeds { self_loops, slots }: EdgeNeeds,
) -> Result<GraphLinks, Error> {
    let (runtime, graph, book) = (&*job.runtime, &context.graph, job.dataset.book());
    let busy = runtime.busy(PREPARING_EDGES);
    let placement = context.placement;
    let first_node = |worker: usize| book.offsets()[placement.parts_of(worker).start] as u32;
    let all = graph.num_nodes() as u32;
    let starts: Vec<u32> = (0..placement.workers()).map(first_node).chain([all]).collect();
    let own = starts[context.worker]..starts[context.worker + 1];
    let trains = training_nodes(job)?;
    let is_train = |node: u32| trains[node as usize / 64] >> (node % 64) & 1 == 1;
    let place = Place::Folder(context.scratch.clone());
    let room = |error: std::io::Error| {
        Error::Machine(format!("no room for the out-edges in {}: {error}", context.scratch.display()))
    };
    check_slots(u64::from(all), slots)?;
    let parts = (0..placement.parts()).map(|part| by_relation(&graph.shared_in_edges(part), slots, &place));
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    let links = |parts: &[Arc<dyn InEdges>], [rows, table]: [u32; 2]| {
        let (rows, table) = (all * rows, all * table);
        let ends = Ends { rows: 0..rows, table: 0..table, all: u64::from(table) };
        Links::new(ends, parts, Filter { self_loops, ..Filter::default() }, &place).map(Arc::new).map_err(room)
    };
    let arriving = links(&parts, [slots, 1])?;
    drop(busy);
    let symmetric = slots == 1 && is_symmetric(worker, job, graph, agreement)?;
    let _busy = runtime.busy(PREPARING_EDGES);
    let leaving = match symmetric {
        true => Arc::clone(&arriving),
        false => links(&transposed(&parts, slots as usize, &place).map_err(room)?, [1, slots])?,
    };
    // Whole rows are at home here, and their edges are not.
    let receivers = slots_of(&own, slots);
    let arrive = Arc::new(Links::none(receivers.clone(), own.clone()));
    let leave = if slots == 1 { Arc::clone(&arrive) } else { Arc::new(Links::none(own.clone(), receivers)) };
    let none = [arrive, leave];
    let columns = Columns {
        worker: context.worker,
        links: [arriving, leaving],
        parts,
        starts: starts.clone(),
        slots: slots as usize,
        memory,
    };
    Ok(GraphLinks {
        worker: context.worker,
        intervals: cut(graph, &own, count, &|node| !learns_edges(job) && is_train(node)),
        own,
        all: none.clone(),
        last: none,
        in_edges: Vec::new(),
        slots,
        starts,
        edges_at: place,
        columns: Some(columns),
    })
}

/// Whether examples are edges, and no nodes are seeds.
fn learns_edges(job: &Job) -> bool {
    job.config.train.as_ref().is_some_and(Train::learns_edges)
}

/// A bit for each node of the graph: whether it is a training node.
fn training_nodes(job: &Job) -> Result<Vec<u64>, Error> {
    let book = job.dataset.book();
    let mut bits = vec![0u64; (book.nodes() as usize).div_ceil(64)];
    for part in 0..book.parts() {
        let first = book.range(part).start as usize;
        for local in job.dataset.nodes(part)?.in_split(TRAIN) {
            let node = first + local as usize;
            bits[node / 64] |= 1 << (node % 64);
        }
    }
    Ok(bits)
}

/// Whether every edge is there both ways, as often: then gradients go where activations came from. Sums of hashes of edges tell,
/// one way and the other.
fn is_symmetric(worker: &mut Worker, job: &Job, graph: &LocalGraph, agreement: &mut Agreement) -> Result<bool, Error> {
    // Edges that are held out may leave their mirror images behind.
    if job.dataset.manifest().undirected && !learns_edges(job) {
        return Ok(true);
    }
    let hash = |from: u32, to: u32| {
        // SplitMix64's finaliser.
        let mut word = (u64::from(from) << 32 | u64::from(to)).wrapping_add(0x9e37_79b9_7f4a_7c15);
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    };
    let told = agreement.by_partition(worker, &*job.runtime, |part| {
        let (edges, first) = (graph.in_edges(part), graph.range(part).start);
        let mut sum = 0u64;
        for (local, bounds) in edges.indptr().windows(2).enumerate() {
            for &source in &edges.indices()[bounds[0] as usize..bounds[1] as usize] {
                let node = first + local as u32;
                sum = sum.wrapping_add(hash(source, node)).wrapping_sub(hash(node, source));
            }
        }
        vec![sum]
    })?;
    Ok(told.iter().fold(0u64, |sum, words| sum.wrapping_add(words[0])) == 0)
}
