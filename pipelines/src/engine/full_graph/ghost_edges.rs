//! Asking other workers, before the first epoch, for what only they know: out-edges, and who needs whose rows.

use std::cell::RefCell;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use gnnflow_dataflow::ghost::scatter::Scatter;
use gnnflow_dataflow::graph::local_graph::InEdges;
use gnnflow_dataflow::storage::{Array, Place};
use gnnflow_dataflow::wire::{Header, MESSAGE_BYTES, Rows, WireBlock};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::InputHandle;
use timely::dataflow::operators::core::Inspect;
use timely::dataflow::operators::{Input, Probe, probe};
use timely::worker::Worker;

use crate::collectives::driver::{FirstError, run_until};
use crate::context::WorkerContext;
use crate::engine::aggregation::edge_types::types;
use crate::engine::aggregation::transpose::HeldEdges;
use crate::error::Error;
use crate::runtime::job::Runtime;

/// Tells every worker which of its rows are ghosts here, and hears which of the own rows are ghosts elsewhere: by worker.
pub(crate) fn ask(
    worker: &mut Worker,
    runtime: &dyn Runtime,
    context: &WorkerContext,
    starts: &[u32],
    ghosts: &[u32],
) -> Result<Vec<Vec<u32>>, Error> {
    let (me, peers) = (context.worker, starts.len());
    let mut exchange = Exchange::build(worker, context, vec![Vec::new(); peers], |lists: &mut Vec<Vec<u32>>, block| {
        lists[block.header().from as usize].extend_from_slice(block.ids());
        Ok(())
    });
    for to in (0..peers).filter(|&to| to != me) {
        let first = ghosts.partition_point(|&node| node < starts[to]);
        let end = starts.get(to + 1).map_or(ghosts.len(), |&next| ghosts.partition_point(|&node| node < next));
        for ids in ghosts[first..end].chunks(MESSAGE_BYTES / 4) {
            exchange.send(worker, runtime, to, ids.to_vec())?;
        }
    }
    let mut wanted = exchange.finish(worker, runtime)?;
    // Messages of one sender keep their order; that they do is nothing that we should have to know.
    wanted.iter_mut().for_each(|ids| ids.sort_unstable());
    Ok(wanted)
}

/// The out-edges of own nodes to the `slots` slots of each node, from the owners of the edges' other ends, by partition hosted here.
pub(crate) fn reverse(
    worker: &mut Worker,
    runtime: &dyn Runtime,
    context: &WorkerContext,
    own: &Range<u32>,
    slots: u32,
    place: &Place,
) -> Result<Vec<Arc<dyn InEdges>>, Error> {
    let failed =
        |error: std::io::Error| Error::io("write the out-edges of the whole graph in", &context.scratch)(error);
    let graph = &context.graph;
    let file = tempfile::tempfile_in(&context.scratch).map_err(failed)?;
    let spool = Spool { file: BufWriter::new(file), degrees: vec![0i64; own.len()], first: own.start };
    let mut exchange = Exchange::build(worker, context, spool, Spool::add);
    let mut parcels: Vec<Vec<u32>> = vec![Vec::new(); context.placement.workers()];
    for part in graph.hosted() {
        let (edges, first) = (graph.in_edges(part), graph.range(part).start);
        let types = types(edges, slots)?;
        for (local, bounds) in edges.indptr().windows(2).enumerate() {
            for edge in bounds[0] as usize..bounds[1] as usize {
                let (source, slot) = (edges.indices()[edge], types.map_or(0, |types| u32::from(types[edge])));
                let to = graph.worker_of(source);
                parcels[to].extend([source, (first + local as u32) * slots + slot]);
                if parcels[to].len() * 4 >= MESSAGE_BYTES {
                    let full = std::mem::take(&mut parcels[to]);
                    exchange.send(worker, runtime, to, full)?;
                }
            }
        }
    }
    for (to, rest) in parcels.into_iter().enumerate().filter(|(_, rest)| !rest.is_empty()) {
        exchange.send(worker, runtime, to, rest)?;
    }
    let Spool { file, degrees, .. } = exchange.finish(worker, runtime)?;
    let _busy = runtime.busy("sorting the reversed edges");
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
        arrays.push((range.start, HeldEdges { indptr, indices: Array::zeros(edges, place).map_err(failed)? }));
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
        let HeldEdges { indptr, indices } = &mut edges;
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
    errors: FirstError,
    me: usize,
    sent: u64,
}

impl<S: 'static> Exchange<S> {
    fn build(
        worker: &mut Worker,
        context: &WorkerContext,
        state: S,
        take: impl Fn(&mut S, &WireBlock) -> Result<(), Error> + 'static,
    ) -> Self {
        let (mut input, probe, errors) = (InputHandle::new_with_builder(), probe::Handle::new(), FirstError::default());
        let state = Rc::new(RefCell::new(Some(state)));
        let (taken, kept) = (Rc::clone(&state), errors.clone());
        worker.dataflow::<u64, _, _>(|scope| {
            scope
                .input_from(&mut input)
                .scatter(Rc::clone(&context.other_meter))
                .inspect(move |block| {
                    if let Some(state) = &mut *taken.borrow_mut() {
                        kept.capture(take(state, block));
                    }
                })
                .probe_with(&probe);
        });
        Self { input, probe, state, errors, me: context.worker, sent: 0 }
    }

    fn send(&mut self, worker: &mut Worker, runtime: &dyn Runtime, to: usize, ids: Vec<u32>) -> Result<(), Error> {
        let header = Header { to: to as u32, from: self.me as u32, ..Header::default() };
        self.input.send(WireBlock::new(header, Vec::new(), ids, Rows::None));
        self.sent += 1;
        self.input.advance_to(self.sent);
        self.input.flush();
        worker.step();
        // The slowest bounds everybody, and itself least of all: times of others that have closed their input count no more.
        while self.probe.less_than(&self.sent.saturating_sub(WINDOW)) {
            crate::collectives::driver::step(worker, runtime, &self.errors)?;
        }
        Ok(())
    }

    fn finish(self, worker: &mut Worker, runtime: &dyn Runtime) -> Result<S, Error> {
        self.input.close();
        run_until(worker, runtime, &self.errors, &self.probe, u64::MAX)?;
        self.state.take().ok_or_else(|| Error::Bug("an exchange that is over has ended twice".into()))
    }
}
