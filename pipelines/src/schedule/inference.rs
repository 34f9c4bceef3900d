//! Exact inference: all neighbours of all nodes, one layer at a time, partition by partition.
//!
//! ```text
//! chunks of nodes → sample_hop (all neighbours) → fetch_rows (the layer below) → layer (companion) → probe
//! ```
//!
//! A layer starts when the frontier has passed the one below everywhere. Its cost is that of the layer on every node
//! once, where sampling would compute a node again for each batch that reaches it.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use gnnflow_operators::fetch::fetch_rows::{FetchFrom, FetchRows, RowsAt};
use gnnflow_operators::fetch::matrix::Number;
use gnnflow_operators::kernel::sample::Fanout;
use gnnflow_operators::sample::mini_batch::{BatchKey, MiniBatch};
use gnnflow_operators::sample::sample_hop::{Choice, CompactorPool, Hop, SampleHop};
use gnnflow_operators::sync::background::{Background, Companion};
use gnnflow_operators::tick;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::InputHandle;
use timely::dataflow::operators::vec::Map;
use timely::dataflow::operators::{Input, Probe, probe};
use timely::worker::Worker;

use crate::Error;
use crate::drive::{Fault, until};
use crate::job::Host;
use crate::layer_store::LayerStore;
use crate::setup::Setup;
use crate::trainer::Trainer;

/// Edges of a chunk at most, unless one node has more.
pub(crate) const CHUNK_EDGES: usize = 1 << 18;
/// Chunks of a partition under way.
pub(crate) const WINDOW: u32 = 3;

/// A chunk of a partition's nodes, by global ids.
type Chunk = (BatchKey, Range<u32>);

/// The inference dataflow of one worker.
pub(crate) struct Inference {
    input: InputHandle<u64, CapacityContainerBuilder<Vec<Chunk>>>,
    probe: probe::Handle<u64>,
    fault: Fault,
    /// By layer.
    stores: Vec<Arc<LayerStore>>,
    /// The nodes hosted here, partition by partition, cut into chunks: partition and global ids.
    chunks: Vec<(u32, Range<u32>)>,
    /// Layers computed so far, all passes counted: the next one's epoch in timestamps.
    layers_done: u32,
}

impl Inference {
    /// Builds the dataflow; `dims` are the widths between layers, `nodes` bounds a chunk.
    ///
    /// # Errors
    /// When there is no room for the layers' rows.
    pub(crate) fn build(
        worker: &mut Worker,
        setup: &Setup,
        dims: &[usize],
        uses_edges: bool,
        degrees: bool,
        nodes: usize,
        companion: &Companion<Trainer>,
    ) -> Result<Self, Error> {
        let layers = dims.len() - 1;
        let mut stores: Vec<Arc<LayerStore>> = Vec::new();
        for layer in 0..layers {
            // A layer is read only by the next one: the one after that may write over it, if it is as wide.
            let reuse = layer.checked_sub(2).map(|below| Arc::clone(&stores[below]));
            stores.push(match reuse.filter(|store| store.dim() == dims[layer + 1] && layer + 1 < layers) {
                Some(store) => store,
                None => Arc::new(LayerStore::create(&setup.scratch, &setup.graph, setup.worker, dims[layer + 1])?),
            });
        }
        let (mut input, probe, fault) = (InputHandle::new_with_builder(), probe::Handle::new(), Fault::default());
        let layer_of = move |tick: u64| tick::epoch(tick) as usize % layers;
        let (features, below) = (setup.features.clone(), stores.clone());
        let rows = move |tick| match layer_of(tick) {
            0 => features.clone(),
            layer => {
                RowsAt { source: Arc::clone(&below[layer - 1]) as _, number: Number::F32, dim: below[layer - 1].dim() }
            }
        };
        let (kept, into) = (fault.clone(), stores.clone());
        worker.dataflow::<u64, _, _>(|scope| {
            let mut stream =
                scope.input_from(&mut input).map(|(key, nodes): Chunk| MiniBatch::new(key, nodes.collect()));
            if uses_edges {
                stream = stream.sample_hop(Hop {
                    graph: Arc::clone(&setup.graph),
                    seed: 0, // nothing is drawn
                    hop: 0,
                    choice: Choice::Fanout(Fanout::All),
                    last: true,
                    pool: CompactorPool::default(),
                    meter: Rc::clone(&setup.meter),
                });
            }
            stream
                .fetch_rows(FetchFrom {
                    graph: Arc::clone(&setup.graph),
                    rows: Rc::new(rows),
                    degrees,
                    cache: None,
                    meter: Rc::clone(&setup.meter),
                })
                .background("layer", companion.clone(), move |trainer: &mut Trainer, batch: MiniBatch| {
                    let layer = batch.key.epoch as usize % layers;
                    trainer.infer(layer, batch, &into[layer])
                })
                .flat_map(move |done| kept.keep(done))
                .probe_with(&probe);
        });
        let chunks = setup
            .placement
            .parts_of(setup.worker)
            .flat_map(|part| {
                let indptr = setup.parts.get(part).topology.indptr();
                let cut = chunks(indptr, setup.graph.range(part).start, nodes);
                cut.into_iter().map(move |chunk| (part as u32, chunk))
            })
            .collect();
        Ok(Self { input, probe, fault, stores, chunks, layers_done: 0 })
    }

    /// Computes all layers with the companion's parameters and returns when the last one is there, everywhere.
    ///
    /// # Errors
    /// What an operator, or the companion thread, fails with.
    pub(crate) fn pass(&mut self, worker: &mut Worker, host: &dyn Host) -> Result<(), Error> {
        for _layer in 0..self.stores.len() {
            let epoch = self.layers_done;
            for (step, (partition, nodes)) in (0..).zip(&self.chunks) {
                let key = BatchKey { epoch, step, partition: *partition };
                self.input.send((key, nodes.clone()));
                self.input.advance_to(tick::at(epoch, step + 1));
                self.input.flush();
                let oldest = tick::at(epoch, (step + 1).saturating_sub(WINDOW));
                until(worker, host, &self.fault, &self.probe, oldest)?;
            }
            self.layers_done += 1;
            let next = tick::at(epoch + 1, 0);
            self.input.advance_to(next);
            self.input.flush();
            until(worker, host, &self.fault, &self.probe, next)?;
        }
        Ok(())
    }

    /// Rows of layer `layer`, as the last pass left them. Of the layers below the last, the last two are still there.
    pub(crate) fn rows(&self, layer: usize) -> &Arc<LayerStore> {
        &self.stores[layer]
    }
}

/// Cuts a partition's nodes, from global id `first`, into chunks of at most `most` nodes and about [`CHUNK_EDGES`] edges.
///
/// The cuts depend on the partition alone, so that a chunk is computed in the same shape whoever does it.
fn chunks(indptr: &[i64], first: u32, most: usize) -> Vec<Range<u32>> {
    let nodes = indptr.len() - 1;
    let (mut chunks, mut start) = (Vec::new(), 0);
    while start < nodes {
        let limit = indptr[start] + CHUNK_EDGES as i64;
        let by_edges = indptr.partition_point(|&edges| edges <= limit) - 1;
        let end = by_edges.clamp(start + 1, (start + most).min(nodes));
        chunks.push(first + start as u32..first + end as u32);
        start = end;
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_a_partition_and_keep_their_bounds() {
        let degrees = [3, 0, CHUNK_EDGES as i64 * 2, 5, 0, CHUNK_EDGES as i64, 1, 0, 0];
        let indptr: Vec<i64> = std::iter::once(0)
            .chain(degrees.iter().scan(0, |sum, degree| {
                *sum += degree;
                Some(*sum)
            }))
            .collect();
        let cut = chunks(&indptr, 10, 3);
        assert_eq!(cut, [10..12, 12..13, 13..15, 15..16, 16..19]);
        assert_eq!(chunks(&[0], 7, 3), []);
        assert_eq!(chunks(&[0, 0, 0], 0, 1), [0..1, 1..2]);
    }
}
