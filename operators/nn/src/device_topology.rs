//! A graph on a device, from which batches are sampled there.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{Device, Tensor};
use gnnflow_data::rng::Key;
use gnnflow_kernels::compact::Compactor;
use gnnflow_kernels::sample::{Csc, Fanout, sample_hop};

#[cfg(feature = "cuda")]
use super::device_copies::LONG_ROW;
use super::error::Result;
use super::graph_block::GraphBlock;
use super::ops::RowNumbers;

/// The in-edges of all nodes on a device.
///
/// Its samples have the bits of [`sample_hop`], which samples if the device is the CPU.
///
/// ```
/// use candle_core::Device;
/// use gnnflow_data::rng::{Key, Purpose};
/// use gnnflow_kernels::sample::Fanout;
/// use gnnflow_nn::DeviceTopology;
///
/// // The path 0 → 1 → 2, in two parts: nodes 0 and 1, and node 2.
/// let parts = [(&[0, 0, 1][..], &[0][..]), (&[0, 1][..], &[1][..])];
/// let graph = DeviceTopology::new(parts, &Device::Cpu)?;
/// let key = Key::new(1, Purpose::Sample);
/// let batch = graph.sample(&[2], &[(Fanout::All, key.fold(0)), (Fanout::All, key.fold(1))])?;
/// assert_eq!(batch.nodes().to_vec1::<u32>()?, [2, 1, 0]);
/// assert_eq!(batch.blocks()[1].block().neighbors(0), [1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DeviceTopology {
    device: Device,
    nodes: usize,
    graph: Graph,
}

/// Where the edges are.
enum Graph {
    /// In this process's memory.
    Host { indptr: Vec<i64>, indices: Vec<u32>, compactors: Mutex<Vec<Compactor>> },
    #[cfg(feature = "cuda")]
    Gpu(super::cuda::Topology),
}

/// A batch that was sampled on a device.
#[derive(Debug)]
pub struct SampledBatch {
    blocks: Vec<Arc<GraphBlock>>,
    nodes: Tensor,
    /// Nodes of the graph.
    end: usize,
}

impl SampledBatch {
    /// Returns one block per hop, that of the seeds first.
    pub fn blocks(&self) -> &[Arc<GraphBlock>] {
        &self.blocks
    }

    /// Returns all nodes, the seeds first: `[nodes]`, `u32`.
    pub fn nodes(&self) -> &Tensor {
        &self.nodes
    }

    /// Returns the numbers of rows of a matrix that has a row for each node of the graph.
    pub fn row_numbers(&self) -> RowNumbers {
        RowNumbers::on_device(self.nodes.clone(), self.end as u32)
    }
}

impl std::fmt::Debug for DeviceTopology {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceTopology").field("device", &self.device.location()).finish_non_exhaustive()
    }
}

impl DeviceTopology {
    /// Copies a graph to `device`: for each part, the bounds of the in-edges of its consecutive nodes, from 0, and the sources of these edges.
    ///
    /// # Errors
    /// When the device is out of memory.
    ///
    /// # Panics
    /// If a part's bounds do not begin with 0 and end with its number of edges. They must ascend, which is not checked.
    pub fn new<'a>(parts: impl IntoIterator<Item = (&'a [i64], &'a [u32])>, device: &Device) -> Result<Self> {
        let parts: Vec<_> = parts.into_iter().collect();
        for (indptr, indices) in &parts {
            // Panics if the ends are wrong.
            Csc::new(indptr, indices);
        }
        let nodes = parts.iter().map(|(indptr, _)| indptr.len() - 1).sum();
        #[cfg(feature = "cuda")]
        if let Device::Cuda(gpu) = device {
            let graph = super::cuda::Topology::new(gpu, &parts)?;
            return Ok(Self { device: device.clone(), nodes, graph: Graph::Gpu(graph) });
        }
        let (mut indptr, mut indices) = (vec![0], Vec::new());
        for (bounds, sources) in parts {
            indptr.extend(bounds[1..].iter().map(|&end| indices.len() as i64 + end));
            indices.extend_from_slice(sources);
        }
        let graph = Graph::Host { indptr, indices, compactors: Mutex::default() };
        Ok(Self { device: device.clone(), nodes, graph })
    }

    /// Returns the bytes that a graph takes on a GPU.
    pub const fn bytes(nodes: u64, edges: u64) -> u64 {
        // Bounds, sources, and a mark for each node.
        8 * (nodes + 1) + 4 * edges + 4 * nodes
    }

    /// Samples in-neighbors of distinct `seeds`, then of these and all nodes found so far, and so on: one block per hop.
    ///
    /// On a GPU, the blocks are there only (see [`GraphBlock::read_back`]), and the host waits for the operations that the device has so far.
    ///
    /// # Errors
    /// When the device is out of memory or fails, or a hop has more than 2³¹ edges. No other batch may be sampled then.
    ///
    /// # Panics
    /// If a seed is no node of the graph, or occurs twice.
    pub fn sample(&self, seeds: &[u32], hops: &[(Fanout, Key)]) -> Result<SampledBatch> {
        let mut sorted = seeds.to_vec();
        sorted.sort_unstable();
        assert!(sorted.last().is_none_or(|&seed| (seed as usize) < self.nodes), "a seed is no node of the graph");
        assert!(sorted.is_sorted_by(|a, b| a < b), "a seed occurs twice");
        let end = self.nodes;
        match &self.graph {
            Graph::Host { indptr, indices, compactors } => {
                let topology = Csc::new(indptr, indices);
                let spare = compactors.lock().unwrap_or_else(PoisonError::into_inner).pop();
                let mut compactor = spare.unwrap_or_else(|| Compactor::new(topology.nodes() as u64));
                let mut nodes = seeds.to_vec();
                compactor.start(&nodes);
                let blocks = hops
                    .iter()
                    .map(|&(fanout, key)| sample_hop(&topology, &mut nodes, fanout, key, &mut compactor))
                    .map(GraphBlock::new)
                    .collect();
                compactors.lock().unwrap_or_else(PoisonError::into_inner).push(compactor);
                let count = nodes.len();
                Ok(SampledBatch { blocks, nodes: Tensor::from_vec(nodes, count, &self.device)?, end })
            }
            #[cfg(feature = "cuda")]
            Graph::Gpu(graph) => {
                let (hops, nodes) = graph.sample(seeds, hops, LONG_ROW)?;
                let block = |hop: super::cuda::Hop| {
                    GraphBlock::on_gpu([hop.destinations, hop.sources, hop.edges], hop.rows, &self.device)
                };
                Ok(SampledBatch { blocks: hops.into_iter().map(block).collect(), nodes, end })
            }
        }
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use gnnflow_data::rng::Purpose;

    use super::*;

    /// `check-device` compares larger batches.
    #[test]
    fn a_gpu_samples_also_where_there_is_nothing() {
        let Some(gpu) = crate::emulator::gpu("device_topology::tests::a_gpu_samples_also_where_there_is_nothing")
        else {
            return;
        };
        // Node 3 has no in-edges; all in-edges of node 0 are self-loops.
        let parts = [(&[0, 2, 3][..], &[0, 0, 2][..]), (&[0, 2, 2][..], &[1, 3][..])];
        let graphs = [&Device::Cpu, &gpu].map(|device| DeviceTopology::new(parts, device).unwrap());
        let hop = |hop| (Fanout::Uniform { k: 1 }, Key::new(1, Purpose::Sample).fold(hop));
        for (seeds, hops) in [
            (vec![], vec![hop(0)]),
            (vec![3], vec![hop(0), hop(1)]),
            (vec![0], vec![hop(0), (Fanout::All, hop(1).1)]),
            (vec![2, 1], vec![]),
            (vec![2, 0, 3, 1], vec![(Fanout::All, hop(0).1), (Fanout::UniformWithReplacement { k: 3 }, hop(1).1)]),
        ] {
            let [wanted, found] = graphs.each_ref().map(|graph| {
                let SampledBatch { blocks, nodes, .. } = graph.sample(&seeds, &hops).unwrap();
                let looped = blocks.iter().map(|block| block.with_self_loops_on(&graph.device).unwrap());
                let blocks: Vec<_> = blocks.iter().chain(looped).cloned().collect();
                for block in &blocks {
                    let on = block.on_device(&graph.device);
                    assert_eq!(on.by_source().unwrap().indices.dims(), [block.num_edges()]);
                    block.read_back().unwrap();
                }
                (nodes.to_vec1::<u32>().unwrap(), blocks.iter().map(|block| block.block().clone()).collect::<Vec<_>>())
            });
            assert_eq!(found, wanted, "{hops:?} of {seeds:?}");
        }
        let none = DeviceTopology::new([(&[0][..], &[][..])], &gpu).unwrap();
        assert_eq!(none.sample(&[], &[hop(0)]).unwrap().nodes.dims(), [0]);
    }
}
