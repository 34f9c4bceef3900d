//! Finding out, before the first epoch, whose rows belong together and who needs whose.

use std::ops::Range;
use std::sync::Arc;

use gnnflow_operators::local_graph::{InEdges, LocalGraph};
use gnnflow_operators::propagate::intervals::intervals;
use gnnflow_operators::propagate::links::Filter;
use gnnflow_operators::propagate::{Links, Place};
use timely::worker::Worker;

use super::Interval;
use super::exchange::{ask, reverse};
use super::slices::{Columns, transposed};
use crate::Error;
use crate::agree::Agreement;
use crate::job::{Host, Job};
use crate::setup::{Setup, TRAIN};

/// Nodes of an interval when nobody has said how many intervals there are.
pub(crate) const INTERVAL_NODES: usize = 1 << 15;
/// Training nodes among all nodes from which on nothing is won by leaving the others out of the last hop.
const MANY: f64 = 0.5;

/// What a worker knows of the whole graph.
pub(crate) struct GraphLinks {
    pub(super) worker: usize,
    pub(super) own: Range<u32>,
    pub(super) intervals: Vec<Interval>,
    /// Of all hops but the last: those along which rows arrive, and those along which gradients do.
    pub(super) all: [Arc<Links>; 2],
    /// Of the last hop, whose receivers are the nodes with a loss.
    pub(super) last: [Arc<Links>; 2],
    pub(super) graph: Arc<LocalGraph>,
    /// By worker, its first node.
    pub(super) starts: Vec<u32>,
    /// Where rows are cut by columns.
    pub(super) columns: Option<Columns>,
}

/// Asks everybody what this worker needs to know.
///
/// # Errors
/// When there is no room, or a file of the dataset cannot be read.
pub(crate) fn by_nodes(
    worker: &mut Worker,
    job: &Job,
    setup: &Setup,
    agreement: &mut Agreement,
    count: Option<usize>,
    self_loops: bool,
) -> Result<GraphLinks, Error> {
    let (host, graph, book) = (&*job.host, &setup.graph, job.dataset.book());
    let placement = setup.placement;
    let first_node = |worker: usize| book.offsets()[placement.parts_of(worker).start] as u32;
    let starts: Vec<u32> = (0..placement.workers()).map(first_node).collect();
    let hosted = graph.hosted();
    let own = book.offsets()[hosted.start] as u32..book.offsets()[hosted.end] as u32;
    let trains = training_nodes(job)?;
    let is_train = |node: u32| trains[node as usize / 64] >> (node % 64) & 1 == 1;
    let cut = cut(graph, &own, count, &is_train);
    let place = Place::Folder(setup.scratch.clone());
    let room = |error: std::io::Error| {
        Error::Machine(format!("no room for the edges' numbers in {}: {error}", setup.scratch.display()))
    };
    let in_edges: Vec<Arc<dyn InEdges>> = hosted.clone().map(|part| graph.shared_in_edges(part)).collect();
    let symmetric = is_symmetric(worker, host, graph, agreement, job.dataset.manifest().undirected)?;
    let out_edges = if symmetric { in_edges.clone() } else { reverse(worker, host, setup, &own, &place)? };
    let nodes = graph.num_nodes();
    let mut build = |edges: &[Arc<dyn InEdges>], filter: Filter<'_>| -> Result<Arc<Links>, Error> {
        let mut links = Links::new(own.clone(), nodes, edges, filter, &place).map_err(room)?;
        let wanted = ask(worker, host, setup, &starts, links.ghosts())?;
        links.set_wanted(wanted);
        Ok(Arc::new(links))
    };
    let share = trains.iter().map(|word| word.count_ones() as u64).sum::<u64>() as f64 / nodes.max(1) as f64;
    // Attention weighs a node's own row as it does its neighbours'.
    let every = Filter { self_loops, ..Filter::default() };
    let all = {
        let arriving = build(&in_edges, every)?;
        let leaving = if symmetric { Arc::clone(&arriving) } else { build(&out_edges, every)? };
        [arriving, leaving]
    };
    let last = if share > MANY {
        all.clone()
    } else {
        let arriving = build(&in_edges, Filter { rows: Some(&is_train), ..every })?;
        [arriving, build(&out_edges, Filter { neighbors: Some(&is_train), ..every })?]
    };
    Ok(GraphLinks {
        worker: setup.worker,
        own,
        intervals: cut,
        all,
        last,
        graph: Arc::clone(graph),
        starts,
        columns: None,
    })
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

/// As [`by_nodes`], where every worker has all edges and some columns of every row; `memory` is what a chunk may take, and
/// `self_loops` says whether every node is a neighbour of itself.
///
/// # Errors
/// As [`by_nodes`].
pub(crate) fn by_columns(
    worker: &mut Worker,
    job: &Job,
    setup: &Setup,
    agreement: &mut Agreement,
    count: Option<usize>,
    memory: u64,
    self_loops: bool,
) -> Result<GraphLinks, Error> {
    let (host, graph, book) = (&*job.host, &setup.graph, job.dataset.book());
    let placement = setup.placement;
    let first_node = |worker: usize| book.offsets()[placement.parts_of(worker).start] as u32;
    let all = graph.num_nodes() as u32;
    let starts: Vec<u32> = (0..placement.workers()).map(first_node).chain([all]).collect();
    let own = starts[setup.worker]..starts[setup.worker + 1];
    let trains = training_nodes(job)?;
    let is_train = |node: u32| trains[node as usize / 64] >> (node % 64) & 1 == 1;
    let place = Place::Folder(setup.scratch.clone());
    let room = |error: std::io::Error| {
        Error::Machine(format!("no room for the out-edges in {}: {error}", setup.scratch.display()))
    };
    let parts: Vec<Arc<dyn InEdges>> = (0..placement.parts()).map(|part| graph.shared_in_edges(part)).collect();
    let links = |parts: &[Arc<dyn InEdges>]| {
        Links::new(0..all, u64::from(all), parts, Filter { self_loops, ..Filter::default() }, &place)
            .map(Arc::new)
            .map_err(room)
    };
    let arriving = links(&parts)?;
    let leaving = match is_symmetric(worker, host, graph, agreement, job.dataset.manifest().undirected)? {
        true => Arc::clone(&arriving),
        false => links(&transposed(&parts, &place).map_err(room)?)?,
    };
    let none = Arc::new(Links::none(own.clone()));
    let columns = Columns { worker: setup.worker, links: [arriving, leaving], parts, starts: starts.clone(), memory };
    Ok(GraphLinks {
        worker: setup.worker,
        intervals: cut(graph, &own, count, &is_train),
        own,
        all: [Arc::clone(&none), Arc::clone(&none)],
        last: [Arc::clone(&none), none],
        graph: Arc::clone(graph),
        starts,
        columns: Some(columns),
    })
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
fn is_symmetric(
    worker: &mut Worker,
    host: &dyn Host,
    graph: &LocalGraph,
    agreement: &mut Agreement,
    undirected: bool,
) -> Result<bool, Error> {
    if undirected {
        return Ok(true);
    }
    let hash = |from: u32, to: u32| {
        // SplitMix64's finaliser.
        let mut word = (u64::from(from) << 32 | u64::from(to)).wrapping_add(0x9e37_79b9_7f4a_7c15);
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    };
    let told = agreement.by_partition(worker, host, |part| {
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
