//! The fixed cost of a training step, with two processes of one worker each over loopback.
//!
//! *Barrier*: a time closes at both workers; nothing is sent. *Empty step*: each worker has a batch without seeds. It
//! passes through three hops, a fetch and an all-reduce of one word per partition, and its time closes. Every training
//! step includes this cost once, so it should be far below a millisecond.

mod common;
#[path = "common/pair.rs"]
mod pair;

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use common::{Seconds, Session};
use gnnflow_data::PartitionBook;
use gnnflow_dataflow::collective::all_reduce::{AllReduce, Contribution};
use gnnflow_dataflow::fetch::fetch_rows::{FeatureView, FetchFrom, FetchRows};
use gnnflow_dataflow::graph::local_graph::{InEdges, LocalGraph, OwnedInEdges};
use gnnflow_dataflow::graph::placement::Placement;
use gnnflow_dataflow::sample::sample_hop::{CompactorPool, Hop, SampleHop, Strategy};
use gnnflow_dataflow::sample::seeds::{NodeBatches, Seeds};
use gnnflow_dataflow::storage::{Busy, RowReader, RowSource};
use gnnflow_dataflow::time;
use gnnflow_kernels::matrix::Number;
use gnnflow_kernels::sample::{Columns, Fanout};
use pair::{PARK, in_two_processes};
use serde_json::json;
use timely::dataflow::operators::vec::Map;
use timely::dataflow::operators::{Exchange, Input, Probe};
use timely::dataflow::{InputHandleVec, ProbeHandle};
use timely::worker::Worker;

const HOPS: u32 = 3;

fn main() {
    let mut session = Session::new("empty_step");
    let steps = 10 * session.repeats(2000) as u32;
    session.about("processes", 2);
    session.about("hops", HOPS);
    let (barrier, step) = in_two_processes(move |worker| (barrier(worker, steps), empty_step(worker, steps)));
    for (case, seconds) in [("barrier", barrier), ("empty step and barrier", step)] {
        session.result(
            case,
            json!({ "times": "median, min, p99, max of single steps" }),
            &Seconds::new(seconds),
            1.0,
            "steps",
        );
    }
    session.finish();
}

/// Seconds of each barrier.
fn barrier(worker: &mut Worker, steps: u32) -> Vec<f64> {
    let (input, probe) = worker.dataflow::<u64, _, _>(|scope| {
        let (input, stream) = scope.new_input::<Vec<u32>>();
        (input, stream.exchange(|&number| u64::from(number)).probe().0)
    });
    close(worker, input, probe, steps, false)
}

/// Seconds of each empty step.
fn empty_step(worker: &mut Worker, steps: u32) -> Vec<f64> {
    let graph = Arc::new(edgeless(worker.index()));
    let source = Arc::new(NodeBatches { batch: 1, seed: 1, train: vec![vec![]; 2], ..NodeBatches::default() });
    let (input, probe) = worker.dataflow::<u64, _, _>(|scope| {
        let (input, partitions) = scope.new_input::<Vec<u32>>();
        let (meter, pool) = (Rc::default(), CompactorPool::default());
        let mut batches = partitions.seeds(source);
        for hop in 0..HOPS {
            batches = batches.sample_hop(Hop {
                graph: Arc::clone(&graph),
                seed: 1,
                hop,
                strategy: Strategy::Fanout(Fanout::Uniform { k: 10 }),
                columns: Columns::default(),
                last: hop + 1 == HOPS,
                pool: pool.clone(),
                meter: Rc::clone(&meter),
            });
        }
        let rows = FeatureView { source: Arc::new(NoRows), number: Number::F32, dim: 1, packed: None, halo: None };
        let from = FetchFrom {
            graph,
            rows: Rc::new(move |_| rows.clone()),
            degrees: false,
            cache: None,
            meter: Rc::clone(&meter),
        };
        let contributions = batches.fetch_rows(from).map(|batch| Contribution {
            partition: batch.key.partition,
            vector: None,
            words: vec![0],
        });
        (input, contributions.all_reduce(2, 0, meter).probe().0)
    });
    close(worker, input, probe, steps, true)
}

/// Measures the closing of `steps` times. With `send`, each starts with a batch of this worker's partition.
fn close(
    worker: &mut Worker,
    mut input: InputHandleVec<u64, u32>,
    probe: ProbeHandle<u64>,
    steps: u32,
    send: bool,
) -> Vec<f64> {
    let warm_up = steps / 10;
    let mut seconds = Vec::new();
    for step in 0..warm_up + steps {
        let start = Instant::now();
        if send {
            input.send(worker.index() as u32);
        }
        let next = time::at(0, step + 1);
        input.advance_to(next);
        while probe.less_than(&next) {
            worker.step_or_park(PARK);
        }
        if step >= warm_up {
            seconds.push(start.elapsed().as_secs_f64());
        }
    }
    drop(input);
    while !probe.done() {
        worker.step_or_park(PARK);
    }
    seconds
}

/// Two partitions of two nodes without edges, one per worker.
fn edgeless(worker: usize) -> LocalGraph {
    let book = PartitionBook::new(vec![0, 2, 4]).expect("it starts at 0 and rises");
    let load = |_| {
        let none = OwnedInEdges { indptr: vec![0; 3], ..OwnedInEdges::default() };
        Ok::<_, Infallible>(Arc::new(none) as Arc<dyn InEdges>)
    };
    match LocalGraph::load(&book, Placement::new(2, 2), worker, false, load) {
        Ok(graph) => graph,
    }
}

/// A row source without requests.
struct NoRows;

impl RowSource for NoRows {
    fn row_bytes(&self) -> usize {
        4
    }
    fn open(&self) -> Result<Box<dyn RowReader + '_>, Busy> {
        Ok(Box::new(self))
    }
}

impl RowReader for NoRows {
    fn row(&self, node: u32) -> &[u8] {
        unreachable!("batches are empty; row {node} was requested")
    }
}
