//! Copies the edges of the graph to the model's device, which then samples batches.

use std::sync::Arc;

use gnnflow_dataflow::graph::local_graph::LocalGraph;
use gnnflow_kernels::sample::Fanout;
use gnnflow_nn::DeviceTopology;

use super::ComputeState;
use super::device_sampler::DeviceSampler;
use crate::error::Error;

impl ComputeState {
    /// Copies the edges of all partitions to the model's device, which then samples all batches.
    ///
    /// # Errors
    /// When the device is out of memory.
    ///
    /// # Panics
    /// When this process does not hold the edges of all partitions.
    pub(crate) fn sample_on_device(&self, graph: &LocalGraph, fanouts: Vec<Fanout>) -> Result<(), Error> {
        let parts = (0..graph.placement().parts()).map(|part| graph.in_edges(part));
        let edges = parts.map(|edges| (edges.indptr(), edges.indices()));
        let device = self.passes.edge_copies.device();
        let graph = DeviceTopology::new(edges, device)?;
        *self.passes.sampler() = Some(Arc::new(DeviceSampler { graph, fanouts, seed: self.passes.seed }));
        Ok(())
    }

    /// Frees the edges of [`ComputeState::sample_on_device`].
    pub(crate) fn free_edges(&self) {
        *self.passes.sampler() = None;
    }
}
