//! Samples batches on the model's device, where the edges of the whole graph are.

use gnnflow_dataflow::batch::mini_batch::MiniBatch;
use gnnflow_kernels::sample::Fanout;
use gnnflow_nn::{DeviceTopology, SampledBatch};

use crate::error::Error;

/// The graph on the model's device, and how batches are drawn from it.
pub(super) struct DeviceSampler {
    pub(super) graph: DeviceTopology,
    /// From the hop of the seeds on.
    pub(super) fanouts: Vec<Fanout>,
    pub(super) seed: u64,
}

impl DeviceSampler {
    /// Samples all hops of a batch of seeds, with the bits of `sample_batch` on the host.
    ///
    /// # Errors
    /// When the device is out of memory or fails.
    pub(super) fn sample(&self, batch: &MiniBatch) -> Result<SampledBatch, Error> {
        let hop = |(hop, &fanout): (u32, &Fanout)| (fanout, batch.key.of_hop(self.seed, hop));
        let hops: Vec<_> = (0..).zip(&self.fanouts).map(hop).collect();
        Ok(self.graph.sample(&batch.nodes[..batch.num_seeds], &hops)?)
    }
}
