//! Learned rows of nodes: a sparse update compared with a dense all-reduce of the same table (DistDGL, Fig. 7, at a
//! smaller scale). Two processes with one worker each, over loopback.
//!
//! In a step each process has gradients for `--touched` random rows of the table. *Sparse*: gradients are pushed to the
//! owners, which update only these rows. *Dense*: each process pads its gradient with zeros to the size of the table.
//! The gradients are summed and Adam updates every row in both processes. This is data-parallel training with the table
//! as an ordinary parameter. After the first step both tables must have equal bits.

mod common;
#[path = "common/pair.rs"]
mod pair;

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use common::{Seconds, Session};
use gnnflow_data::PartitionBook;
use gnnflow_data::rng::{Key, Permutation, Purpose};
use gnnflow_dataflow::collective::all_reduce::{AllReduce, Contribution};
use gnnflow_dataflow::embed::push_rows::{Arrival, PushRows, PushTo, RowGradients};
use gnnflow_dataflow::embed::table::{Draw, EmbeddingTable};
use gnnflow_dataflow::graph::local_graph::{InEdges, LocalGraph, OwnedInEdges};
use gnnflow_dataflow::graph::placement::Placement;
use gnnflow_dataflow::storage::Place;
use gnnflow_dataflow::wire::meter::Meter;
use gnnflow_kernels::sparse::SparseOptimizer;
use gnnflow_nn::optimizer::{Adam, AdamOptions, Optimizer};
use pair::{PARK, in_two_processes};
use serde_json::json;
use timely::dataflow::operators::core::Inspect;
use timely::dataflow::operators::{Input, Probe};
use timely::dataflow::{InputHandleVec, ProbeHandle};
use timely::worker::Worker;

/// Columns of a row.
const DIM: usize = 128;
const RATE: f64 = 0.01;
const ADAM: SparseOptimizer = SparseOptimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };

/// Measurements of one method with one table.
struct Measured {
    case: &'static str,
    nodes: usize,
    touched: usize,
    bytes_per_step: u64,
    seconds: Vec<f64>,
}

fn main() {
    let mut session = Session::new("embeddings");
    let nodes = if session.smoke { vec![4096] } else { session.numbers("nodes", &[1 << 15, 1 << 17, 1 << 19]) };
    let touched = if session.smoke { vec![500] } else { session.numbers("touched", &[5_000, 20_000]) };
    let (steps, threads) = (session.repeats(9), session.numbers("threads", &[1])[0]);
    let measured = in_two_processes(move |worker| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads for the optimizers");
        let pool = Rc::new(pool);
        let mut all = Vec::new();
        for &nodes in &nodes {
            for &touched in touched.iter().filter(|&&touched| touched <= nodes) {
                let (sparse, rows) = sparse(worker, nodes, touched, steps, &pool);
                let (dense, table) = dense(worker, nodes, touched, steps, &pool);
                verify(worker.index(), nodes, &rows, &table);
                all.extend([sparse, dense]);
            }
        }
        all
    });
    session.about("processes", 2);
    session.about("dim", DIM as u64);
    session.about("threads_per_process", threads as u64);
    session.about("optimizer", "adam");
    for pair in measured.chunks(2) {
        let medians: Vec<f64> = pair.iter().map(|m| Seconds::new(m.seconds.clone()).median()).collect();
        for Measured { case, nodes, touched, bytes_per_step, seconds } in pair {
            let seconds = Seconds::new(seconds.clone());
            let details = json!({
                "nodes": nodes,
                "touched_by_each": touched,
                "bytes_sent_per_step": bytes_per_step,
                "dense_over_sparse": medians[1] / medians[0],
            });
            session.result(case, details, &seconds, 2.0 * *touched as f64, "rows");
        }
    }
    session.finish();
}

/// The distinct rows that `part` updates in `step`, and their gradients.
fn gradients(nodes: usize, touched: usize, part: usize, step: usize) -> (Vec<u32>, Vec<f32>) {
    let key = Key::new(7, Purpose::Shuffle).fold(part as u64).fold(step as u64);
    let order = Permutation::new(key, nodes as u64);
    let ids = (0..touched as u64).map(|i| order.at(i) as u32).collect();
    let value = |i: u64| (key.unit(i) - 0.5) as f32;
    (ids, (0..(touched * DIM) as u64).map(value).collect())
}

/// Measures pushes and sparse steps. Also returns this process's rows after the first step.
fn sparse(
    worker: &mut Worker,
    nodes: usize,
    touched: usize,
    steps: usize,
    pool: &Rc<rayon::ThreadPool>,
) -> (Measured, Vec<f32>) {
    let (rank, meter) = (worker.index(), Rc::new(Meter::default()));
    let graph = Arc::new(edgeless(nodes, rank));
    let table = EmbeddingTable::create(&Place::Memory, &graph, rank, DIM, ADAM).expect("memory for the table");
    let table = table.drawn(Draw::Uniform(0.1), 1);
    let (table, pool) = (Rc::new(table), Rc::clone(pool));
    let updated_table = Rc::clone(&table);
    let to = PushTo { graph, dim: DIM, arrival: Arrival::Together, meter: Rc::clone(&meter) };
    let (mut input, probe) = worker.dataflow::<u64, _, _>(|scope| {
        let (input, pushes) = scope.new_input::<Vec<RowGradients>>();
        let pushed = pushes.push_rows(to).inspect(move |pushed| {
            let table: &EmbeddingTable = &updated_table;
            pool.install(|| table.apply(pushed, RATE)).expect("the table is not borrowed");
        });
        (input, pushed.probe().0)
    });
    let (mut seconds, mut first) = (Vec::new(), Vec::new());
    for step in 0..=steps {
        let (nodes, rows) = gradients(nodes, touched, rank, step);
        let rows = Arc::new(rows);
        seconds.push(close(worker, &mut input, &probe, || RowGradients {
            partition: rank as u32,
            examples: 1,
            nodes,
            rows,
        }));
        if step == 0 {
            first = table.read().expect("all pushes are applied").shard(rank).values.to_vec();
        }
    }
    let bytes_per_step = meter.bytes() / (steps as u64 + 1);
    (Measured { case: "sparse push", nodes, touched, bytes_per_step, seconds: seconds.split_off(1) }, first)
}

/// Measures padding, all-reduce and dense steps. Also returns all rows after the first step.
fn dense(
    worker: &mut Worker,
    nodes: usize,
    touched: usize,
    steps: usize,
    pool: &Rc<rayon::ThreadPool>,
) -> (Measured, Vec<f32>) {
    let (rank, meter) = (worker.index(), Rc::new(Meter::default()));
    let mut table = vec![0.0; nodes * DIM];
    table.chunks_exact_mut(DIM).zip(0..).for_each(|(row, node)| Draw::Uniform(0.1).fill(1, node, row));
    let options = AdamOptions { learning_rate: RATE, ..AdamOptions::default() };
    let state = Rc::new(RefCell::new((table, Adam::new(nodes * DIM, options))));
    let (stepped, pool) = (Rc::clone(&state), Rc::clone(pool));
    let counted = Rc::clone(&meter);
    let (mut input, probe) = worker.dataflow::<u64, _, _>(|scope| {
        let (input, vectors) = scope.new_input::<Vec<Contribution>>();
        let summed = vectors.all_reduce(2, nodes * DIM, counted).inspect(move |reduced| {
            let gradient: Vec<f32> = reduced.sum.iter().map(|sum| sum * 0.5).collect();
            let (table, adam) = &mut *stepped.borrow_mut();
            pool.install(|| adam.step(table, &gradient));
        });
        (input, summed.probe().0)
    });
    let (mut seconds, mut first) = (Vec::new(), Vec::new());
    for step in 0..=steps {
        let (ids, rows) = gradients(nodes, touched, rank, step);
        seconds.push(close(worker, &mut input, &probe, || {
            let mut padded = vec![0.0; nodes * DIM];
            for (&id, row) in ids.iter().zip(rows.chunks_exact(DIM)) {
                padded[id as usize * DIM..][..DIM].copy_from_slice(row);
            }
            Contribution { partition: rank as u32, vector: Some(Arc::new(padded)), words: Vec::new() }
        }));
        if step == 0 {
            first = state.borrow().0.clone();
        }
    }
    let bytes_per_step = meter.bytes() / (steps as u64 + 1);
    (Measured { case: "dense all-reduce", nodes, touched, bytes_per_step, seconds: seconds.split_off(1) }, first)
}

/// Sends the result of `item` and steps the worker until all workers have finished its time. Returns the seconds.
fn close<T: Clone + 'static>(
    worker: &mut Worker,
    input: &mut InputHandleVec<u64, T>,
    probe: &ProbeHandle<u64>,
    item: impl FnOnce() -> T,
) -> f64 {
    let start = Instant::now();
    input.send(item());
    let next = input.time() + 1;
    input.advance_to(next);
    input.flush();
    while probe.less_than(&next) {
        worker.step_or_park(PARK);
    }
    start.elapsed().as_secs_f64()
}

/// Checks that both methods give equal rows. Adam does not change a row whose gradient was always zero.
fn verify(rank: usize, nodes: usize, rows: &[f32], table: &[f32]) {
    let first = if rank == 0 { 0 } else { nodes / 2 };
    let same = rows == &table[first * DIM..first * DIM + rows.len()];
    assert!(same && rows.len() == nodes / 2 * DIM, "sparse and dense steps differ");
}

/// Two partitions of nodes without edges, one per worker.
fn edgeless(nodes: usize, worker: usize) -> LocalGraph {
    let half = nodes as u64 / 2;
    let book = PartitionBook::new(vec![0, half, 2 * half]).expect("it starts at 0 and rises");
    let load = |_| {
        let none = OwnedInEdges { indptr: vec![0; half as usize + 1], ..OwnedInEdges::default() };
        Ok::<_, Infallible>(Arc::new(none) as Arc<dyn InEdges>)
    };
    match LocalGraph::load(&book, Placement::new(2, 2), worker, false, load) {
        Ok(graph) => graph,
    }
}
