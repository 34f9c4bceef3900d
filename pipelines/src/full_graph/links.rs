//! Finding out, before the first epoch, whose rows belong together and who needs whose.

use std::cell::RefCell;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use gnnflow_operators::local_graph::{InEdges, LocalGraph};
use gnnflow_operators::propagate::intervals::intervals;
use gnnflow_operators::propagate::links::Filter;
use gnnflow_operators::propagate::scatter::Scatter;
use gnnflow_operators::propagate::{Array, Links, Place};
use gnnflow_operators::wire::{Header, MESSAGE_BYTES, Rows, WireBlock};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::InputHandle;
use timely::dataflow::operators::core::Inspect;
use timely::dataflow::operators::{Input, Probe, probe};
use timely::worker::Worker;

use super::Interval;
use super::slices::{Columns, transposed};
use crate::Error;
use crate::agree::Agreement;
use crate::drive::{Fault, until};
use crate::job::{Host, Job};
use crate::setup::{Setup, TRAIN};

/// Nodes of an interval when nobody has said how many intervals there are.
pub(crate) const INTERVAL_NODES: usize = 1 << 15;
/// Training nodes among all nodes from which on nothing is won by leaving the others out of the last hop.
const MANY: f64 = 0.5;

/// What a worker knows of the whole graph.
pub(crate) struct WholeGraph {
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

/// Edges by one end: what a partition's nodes have at the other.
pub(super) struct OutEdges {
    pub(super) indptr: Vec<i64>,
    pub(super) indices: Array<u32>,
}

impl InEdges for OutEdges {
    fn indptr(&self) -> &[i64] {
        &self.indptr
    }
    fn indices(&self) -> &[u32] {
        &self.indices
    }
}

/// Asks everybody what this worker needs to know.
///
/// # Errors
/// When there is no room, or a file of the dataset cannot be read.
pub(crate) fn whole_graph(
    worker: &mut Worker,
    job: &Job,
    setup: &Setup,
    agreement: &mut Agreement,
    count: Option<usize>,
    self_loops: bool,
) -> Result<WholeGraph, Error> {
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
    Ok(WholeGraph {
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

/// As [`whole_graph`], where every worker has all edges and some columns of every row; `memory` is what a chunk may take.
///
/// # Errors
/// As [`whole_graph`].
pub(crate) fn by_columns(
    worker: &mut Worker,
    job: &Job,
    setup: &Setup,
    agreement: &mut Agreement,
    count: Option<usize>,
    memory: u64,
) -> Result<WholeGraph, Error> {
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
        Links::new(0..all, u64::from(all), parts, Filter::default(), &place).map(Arc::new).map_err(room)
    };
    let arriving = links(&parts)?;
    let leaving = match is_symmetric(worker, host, graph, agreement, job.dataset.manifest().undirected)? {
        true => Arc::clone(&arriving),
        false => links(&transposed(&parts, &place).map_err(room)?)?,
    };
    let none = Arc::new(Links::none(own.clone()));
    let columns = Columns { worker: setup.worker, links: [arriving, leaving], parts, starts: starts.clone(), memory };
    Ok(WholeGraph {
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

/// Tells every worker which of its rows are ghosts here, and hears which of the own rows are ghosts elsewhere: by worker.
fn ask(
    worker: &mut Worker,
    host: &dyn Host,
    setup: &Setup,
    starts: &[u32],
    ghosts: &[u32],
) -> Result<Vec<Vec<u32>>, Error> {
    let (me, peers) = (setup.worker, starts.len());
    let mut exchange = Exchange::build(worker, setup, vec![Vec::new(); peers], |lists: &mut Vec<Vec<u32>>, block| {
        lists[block.header().from as usize].extend_from_slice(block.ids());
        Ok(())
    });
    for to in (0..peers).filter(|&to| to != me) {
        let first = ghosts.partition_point(|&node| node < starts[to]);
        let end = starts.get(to + 1).map_or(ghosts.len(), |&next| ghosts.partition_point(|&node| node < next));
        for ids in ghosts[first..end].chunks(MESSAGE_BYTES / 4) {
            exchange.send(worker, host, to, ids.to_vec())?;
        }
    }
    let mut wanted = exchange.finish(worker, host)?;
    // Messages of one sender keep their order; that they do is nothing that we should have to know.
    wanted.iter_mut().for_each(|ids| ids.sort_unstable());
    Ok(wanted)
}

/// The out-edges of own nodes, from the owners of the edges' other ends, by partition hosted here.
fn reverse(
    worker: &mut Worker,
    host: &dyn Host,
    setup: &Setup,
    own: &Range<u32>,
    place: &Place,
) -> Result<Vec<Arc<dyn InEdges>>, Error> {
    let failed = |error: std::io::Error| Error::io("write the out-edges of the whole graph in", &setup.scratch)(error);
    let graph = &setup.graph;
    let file = tempfile::tempfile_in(&setup.scratch).map_err(failed)?;
    let spool = Spool { file: BufWriter::new(file), degrees: vec![0i64; own.len()], first: own.start };
    let mut exchange = Exchange::build(worker, setup, spool, Spool::add);
    let mut parcels: Vec<Vec<u32>> = vec![Vec::new(); setup.placement.workers()];
    for part in graph.hosted() {
        let (edges, first) = (graph.in_edges(part), graph.range(part).start);
        for (local, bounds) in edges.indptr().windows(2).enumerate() {
            for &source in &edges.indices()[bounds[0] as usize..bounds[1] as usize] {
                let to = graph.worker_of(source);
                parcels[to].extend([source, first + local as u32]);
                if parcels[to].len() * 4 >= MESSAGE_BYTES {
                    let full = std::mem::take(&mut parcels[to]);
                    exchange.send(worker, host, to, full)?;
                }
            }
        }
    }
    for (to, rest) in parcels.into_iter().enumerate().filter(|(_, rest)| !rest.is_empty()) {
        exchange.send(worker, host, to, rest)?;
    }
    let Spool { file, degrees, .. } = exchange.finish(worker, host)?;
    let mut file = file.into_inner().map_err(|error| failed(error.into_error()))?;
    file.rewind().map_err(failed)?;
    // Where each node's edges go next, in one array over all own nodes.
    let mut next: Vec<i64> = Vec::with_capacity(own.len());
    let mut arrays = Vec::new();
    for part in graph.hosted() {
        let range = graph.range(part);
        let degrees = &degrees[(range.start - own.start) as usize..(range.end - own.start) as usize];
        let mut indptr = vec![0];
        for degree in degrees {
            next.push(indptr[indptr.len() - 1]);
            indptr.push(indptr[indptr.len() - 1] + degree);
        }
        let edges = indptr[indptr.len() - 1] as usize;
        arrays.push((range.start, OutEdges { indptr, indices: Array::zeros(edges, place).map_err(failed)? }));
    }
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut pair = [0u8; 8];
    for _ in 0..degrees.iter().sum::<i64>() {
        reader.read_exact(&mut pair).map_err(failed)?;
        let [source, destination]: [u32; 2] = bytemuck::cast(pair);
        let slot = &mut next[(source - own.start) as usize];
        let array = arrays.partition_point(|(first, _)| *first <= source) - 1;
        arrays[array].1.indices[*slot as usize] = destination;
        *slot += 1;
    }
    let sorted = arrays.into_iter().map(|(_, mut edges)| {
        // In the order of ids, whoever's messages came first.
        let OutEdges { indptr, indices } = &mut edges;
        indptr.windows(2).for_each(|bounds| indices[bounds[0] as usize..bounds[1] as usize].sort_unstable());
        Arc::new(edges) as Arc<dyn InEdges>
    });
    Ok(sorted.collect())
}

/// Pairs of own node and other end, on disk; and how many each own node has.
struct Spool {
    file: BufWriter<std::fs::File>,
    degrees: Vec<i64>,
    first: u32,
}

impl Spool {
    fn add(&mut self, block: &WireBlock) -> Result<(), Error> {
        for pair in block.ids().chunks_exact(2) {
            self.degrees[(pair[0] - self.first) as usize] += 1;
        }
        let written = self.file.write_all(bytemuck::cast_slice(block.ids()));
        written.map_err(|error| Error::Machine(format!("cannot write the out-edges of the whole graph: {error}")))
    }
}

/// Blocks under way of one worker at most.
const WINDOW: u64 = 32;

/// A dataflow that brings lists of ids to other workers, and ends.
struct Exchange<S> {
    input: InputHandle<u64, CapacityContainerBuilder<Vec<WireBlock>>>,
    probe: probe::Handle<u64>,
    state: Rc<RefCell<Option<S>>>,
    fault: Fault,
    me: usize,
    sent: u64,
}

impl<S: 'static> Exchange<S> {
    fn build(
        worker: &mut Worker,
        setup: &Setup,
        state: S,
        take: impl Fn(&mut S, &WireBlock) -> Result<(), Error> + 'static,
    ) -> Self {
        let (mut input, probe, fault) = (InputHandle::new_with_builder(), probe::Handle::new(), Fault::default());
        let state = Rc::new(RefCell::new(Some(state)));
        let (taken, kept) = (Rc::clone(&state), fault.clone());
        worker.dataflow::<u64, _, _>(|scope| {
            scope
                .input_from(&mut input)
                .scatter(Rc::clone(&setup.meter))
                .inspect(move |block| {
                    if let Some(state) = &mut *taken.borrow_mut() {
                        kept.keep(take(state, block));
                    }
                })
                .probe_with(&probe);
        });
        Self { input, probe, state, fault, me: setup.worker, sent: 0 }
    }

    fn send(&mut self, worker: &mut Worker, host: &dyn Host, to: usize, ids: Vec<u32>) -> Result<(), Error> {
        let header = Header { to: to as u32, from: self.me as u32, ..Header::default() };
        self.input.send(WireBlock::new(header, Vec::new(), ids, Rows::None));
        self.sent += 1;
        self.input.advance_to(self.sent);
        self.input.flush();
        worker.step();
        // The slowest bounds everybody, and itself least of all: times of others that have closed their input count no more.
        while self.probe.less_than(&self.sent.saturating_sub(WINDOW)) {
            crate::drive::turn(worker, host, &self.fault)?;
        }
        Ok(())
    }

    fn finish(self, worker: &mut Worker, host: &dyn Host) -> Result<S, Error> {
        self.input.close();
        until(worker, host, &self.fault, &self.probe, u64::MAX)?;
        self.state.take().ok_or_else(|| Error::Bug("an exchange that is over has ended twice".into()))
    }
}
