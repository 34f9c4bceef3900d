//! Feature rows of sampled batches: from local memory compared with a plain loop, and over loopback compared with TCP.
//!
//! The ids are the nodes of batches of 1000 seeds with fanouts 15, 10, 5. A row has 100 floats (400 bytes). The plain
//! loop copies the same rows into a similar buffer without prefetching. The kernel prefetches rows, so the operator
//! should be at least as fast, although it also allocates the matrix of each batch. Over loopback, the other process
//! owns all rows: the time includes requests, gathering into the wire buffer and scattering. Raw TCP writes equally
//! many bytes. With `--encrypt`, messages are encrypted; with `--loopback`, only the cases over loopback are measured.

mod common;
#[path = "common/graph.rs"]
mod graph;
#[path = "common/pair.rs"]
mod pair;
#[path = "common/raw_tcp.rs"]
mod raw_tcp;

use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use common::{Seconds, Session};
use gnnflow_data::PartitionBook;
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_dataflow::batch::mini_batch::{BatchKey, MiniBatch};
use gnnflow_dataflow::fetch::fetch_rows::{FeatureView, FetchFrom, FetchRows};
use gnnflow_dataflow::graph::local_graph::{InEdges, LocalGraph, OwnedInEdges};
use gnnflow_dataflow::graph::placement::Placement;
use gnnflow_dataflow::storage::{Busy, RowReader, RowSource};
use gnnflow_kernels::compact::Compactor;
use gnnflow_kernels::dense::gather::gather_rows;
use gnnflow_kernels::matrix::Number;
use gnnflow_kernels::sample::{Csc, Fanout, sample_hop};
use graph::{Graph, repeat};
use pair::{PARK, in_two_processes};
use raw_tcp::raw_tcp;
use serde_json::json;
use timely::dataflow::operators::core::Inspect;
use timely::dataflow::operators::{Input, Probe};
use timely::worker::Worker;

// As in the program: the matrix of a batch has tens of megabytes, and 4 KiB pages would cause many page faults.
#[global_allocator]
static ALLOCATOR: gnnflow_nn::alloc::Allocator = gnnflow_nn::alloc::Allocator;

/// Columns of a row.
const DIM: usize = 100;
const ROW: usize = 4 * DIM;
/// Number of batches in flight.
const WINDOW: usize = 4;

/// A matrix in memory whose first row is that of node `first`.
struct Rows {
    values: Vec<f32>,
    first: u32,
}

impl RowSource for Rows {
    fn row_bytes(&self) -> usize {
        ROW
    }
    fn open(&self) -> Result<Box<dyn RowReader + '_>, Busy> {
        Ok(Box::new(self))
    }
}

impl RowReader for Rows {
    fn row(&self, node: u32) -> &[u8] {
        bytemuck::cast_slice(&self.values[(node - self.first) as usize * DIM..][..DIM])
    }
}

fn rows(nodes: u32, first: u32) -> Arc<Rows> {
    Arc::new(Rows { values: (0..nodes as usize * DIM).map(|i| (i % 977) as f32).collect(), first })
}

fn main() {
    let mut session = Session::new("fetch");
    let (repeats, smoke) = (session.repeats(7), session.smoke);
    // The second process also runs `main` up to this line, so no work precedes it.
    let (pages, over_loopback) = in_two_processes(move |worker| loopback(worker, smoke, repeats));
    if !std::env::args().any(|argument| argument == "--loopback") {
        measure_local(&mut session, repeats);
    }
    session.about("loopback_rows", pages as u64);
    let raw = Seconds::new(over_loopback.iter().map(|pair| pair.0).collect());
    let wire = Seconds::new(over_loopback.iter().map(|pair| pair.1).collect());
    let bytes = (pages * ROW) as f64;
    session.result("raw TCP", json!({}), &raw, bytes, "B");
    session.result("fetch_rows, loopback", json!({ "times_raw_tcp": raw.median() / wire.median() }), &wire, bytes, "B");
    session.finish();
}

/// Measures the rows of sampled batches in local memory.
fn measure_local(session: &mut Session, repeats: usize) {
    let graph = Graph::load(session);
    let lists = lists(&graph, if session.smoke { 2 } else { 20 });
    let ids: usize = lists.iter().map(Vec::len).sum();
    let bytes = (ids * ROW) as f64;
    session.about("rows", ids as u64);
    session.about("row_bytes", ROW as u64);

    let source = rows(graph.num_nodes() as u32, 0);
    let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
    let mut out = vec![0u8; longest * ROW];
    let plain = |out: &mut [u8]| {
        for list in &lists {
            for (position, &id) in list.iter().enumerate() {
                out[position * ROW..][..ROW].copy_from_slice(source.row(id));
            }
        }
    };
    let mut gathered = vec![0u8; lists[0].len() * ROW];
    gather_rows(ROW, |id| source.row(id), &lists[0], &mut gathered);
    lists[0].iter().enumerate().for_each(|(i, &id)| assert_eq!(&gathered[i * ROW..][..ROW], source.row(id)));

    let loop_seconds = repeat(repeats, || plain(&mut out));
    let beside = |seconds: &Seconds| json!({ "times_plain_loop": loop_seconds.median() / seconds.median() });
    session.result("plain loop", json!({}), &loop_seconds, bytes, "B");
    let kernel = repeat(repeats, || {
        for list in &lists {
            gather_rows(ROW, |id| source.row(id), list, &mut out[..list.len() * ROW]);
        }
    });
    session.result("gather kernel", beside(&kernel), &kernel, bytes, "B");
    let (nodes, repeated) = (graph.num_nodes() as u64, lists.clone());
    let operator = timely::execute_directly(move |worker| {
        let graph = Arc::new(edgeless(&[0, nodes], 1, worker.index()));
        Seconds::new((0..repeats + 1).map(|_| fetch(worker, &graph, source.clone(), &repeated)).skip(1).collect())
    });
    session.result("fetch_rows, local", beside(&operator), &operator, bytes, "B");
}

/// Node lists of batches after three hops.
fn lists(graph: &Graph, batches: usize) -> Vec<Vec<u32>> {
    let (csc, mut compactor) = (Csc::new(&graph.indptr, &graph.indices), Compactor::new(graph.num_nodes() as u64));
    graph
        .train
        .chunks(1000)
        .take(batches)
        .zip(0..)
        .map(|(seeds, step)| {
            let mut list = seeds.to_vec();
            compactor.start(&list);
            for (hop, k) in [15, 10, 5].into_iter().enumerate() {
                let key = Key::new(1, Purpose::Sample).fold(step).fold(hop as u64);
                sample_hop(&csc, &mut list, Fanout::Uniform { k }, key, &mut compactor);
            }
            list
        })
        .collect()
}

/// Partitions without edges, for fetches of rows only.
fn edgeless(offsets: &[u64], workers: usize, worker: usize) -> LocalGraph {
    let book = PartitionBook::new(offsets.to_vec()).expect("they rise from 0");
    let load = |part: usize| {
        let nodes = (book.range(part).end - book.range(part).start) as usize;
        let none = OwnedInEdges { indptr: vec![0; nodes + 1], ..OwnedInEdges::default() };
        Ok::<_, Infallible>(Arc::new(none) as Arc<dyn InEdges>)
    };
    LocalGraph::load(&book, Placement::new(book.parts(), workers), worker, false, load)
        .unwrap_or_else(|never| match never {})
}

/// Seconds to fetch the rows of all `lists`, the batches of this worker.
fn fetch(worker: &mut Worker, graph: &Arc<LocalGraph>, source: Arc<dyn RowSource>, lists: &[Vec<u32>]) -> f64 {
    let fetched = Rc::new(Cell::new(0));
    let count = Rc::clone(&fetched);
    let rows = FeatureView { source, number: Number::F32, dim: DIM, packed: None, halo: None };
    let from = FetchFrom {
        graph: Arc::clone(graph),
        rows: Rc::new(move |_| rows.clone()),
        degrees: false,
        cache: None,
        meter: Rc::default(),
    };
    let (mut input, probe) = worker.dataflow::<u64, _, _>(|scope| {
        let (input, keys) = scope.new_input::<Vec<u32>>();
        let lists = lists.to_vec();
        use timely::dataflow::operators::vec::Map;
        let batches = keys.map(move |step| {
            MiniBatch::new(BatchKey { epoch: 0, step, partition: step }, lists[step as usize].clone())
        });
        let counted = batches.fetch_rows(from).inspect(move |batch| {
            assert_eq!(batch.features.bytes().len(), batch.nodes.len() * ROW);
            count.set(count.get() + 1);
        });
        (input, counted.probe().0)
    });
    let start = Instant::now();
    let mut sent = 0;
    while fetched.get() < lists.len() {
        while sent < lists.len() && sent - fetched.get() < WINDOW {
            input.send(sent as u32);
            input.flush();
            sent += 1;
        }
        worker.step_or_park(PARK);
    }
    let seconds = start.elapsed().as_secs_f64();
    drop(input);
    while !probe.done() {
        worker.step_or_park(PARK);
    }
    seconds
}

/// Fetches rows of the second process from the first. Returns their number, and pairs of seconds of TCP and of the
/// fetch.
fn loopback(worker: &mut Worker, smoke: bool, repeats: usize) -> (usize, Vec<(f64, f64)>) {
    let nodes: u32 = if smoke { 2000 } else { 1 << 20 };
    let graph = Arc::new(edgeless(&[0, u64::from(nodes), 2 * u64::from(nodes)], 2, worker.index()));
    let source = rows(nodes, if worker.index() == 0 { 0 } else { nodes });
    let (batches, rows) = if smoke { (2, 100) } else { (8, 200_000) };
    let key = Key::new(2, Purpose::GenerateNodes);
    // Only the first process has batches.
    let lists: Vec<Vec<u32>> = (0..if worker.index() == 0 { batches } else { 0 })
        .map(|batch| (0..rows).map(|i| nodes + key.fold(batch).below(i, u64::from(nodes)) as u32).collect())
        .collect();
    let all = (batches * rows) as usize;
    let pairs = (0..repeats + 1)
        .map(|_| {
            let raw = if worker.index() == 0 { raw_tcp((all * ROW) as u64) } else { 0.0 };
            (raw, fetch(worker, &graph, source.clone(), &lists))
        })
        .skip(1)
        .collect();
    (all, pairs)
}
