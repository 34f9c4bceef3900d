//! A block with derived data, which is computed on first use.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use candle_core::{DType, Device, DeviceLocation, Tensor};

use gnnflow_kernels::aggregate::relations::{Relation, split};
use gnnflow_kernels::aggregate::transpose::{Transpose, transpose};
use gnnflow_kernels::block::Block;

#[cfg(feature = "cuda")]
use super::device_copies::LONG_ROW;
use super::device_copies::{Copies, RowEdges};
use super::error::{Error, Result};
use super::target::Target;

/// A [`Block`] shared by the operations on it, with its transpose, inverse degrees, self-loop variant and device copies.
///
/// ```
/// use gnnflow_kernels::block::Block;
/// use gnnflow_nn::GraphBlock;
///
/// let block = GraphBlock::new(Block::new(2, 3, vec![0, 2, 3], vec![1, 2, 2]));
/// assert_eq!(block.transpose().indices, [0, 0, 1]);
/// assert_eq!(block.inverse_degrees(), [0.5, 1.0]);
/// assert_eq!(block.with_self_loops().block().neighbors(0), [0, 1, 2]);
/// ```
#[derive(Debug)]
pub struct GraphBlock {
    num_dst: usize,
    num_src: usize,
    num_edges: usize,
    /// Unset if a GPU has sampled the block, until it is read back.
    block: OnceLock<Block>,
    transpose: OnceLock<Transpose>,
    inverse_degrees: OnceLock<Vec<f64>>,
    with_self_loops: OnceLock<Arc<GraphBlock>>,
    relations: OnceLock<Option<Vec<Relation>>>,
    edge_features: Option<EdgeMatrix>,
    edge_copies: Mutex<BTreeMap<usize, Tensor>>,
    degree_weights: Mutex<BTreeMap<usize, DegreeWeights>>,
    devices: Mutex<BTreeMap<usize, Arc<Copies>>>,
}

/// Features of a block's edges, row by row.
#[derive(Clone, Debug, PartialEq)]
struct EdgeMatrix {
    values: Vec<f32>,
    dim: usize,
}

/// Weights of edges by the degrees of nodes.
#[derive(Clone, Debug)]
struct DegreeWeights {
    degrees: Vec<u32>,
    /// `[E, 1]`
    weights: Tensor,
}

impl GraphBlock {
    /// Wraps a block.
    pub fn new(block: Block) -> Arc<Self> {
        Self::build(block, None)
    }

    /// Wraps a block whose edges have features of `dim` columns, row by row in the edges' order.
    ///
    /// # Panics
    /// Unless there is one row per edge.
    pub fn with_edge_features(block: Block, values: Vec<f32>, dim: usize) -> Arc<Self> {
        assert_eq!(values.len(), block.num_edges() * dim, "one row of {dim} numbers per edge");
        Self::build(block, Some(EdgeMatrix { values, dim }))
    }

    fn build(block: Block, edge_features: Option<EdgeMatrix>) -> Arc<Self> {
        let (num_dst, num_src, num_edges) = (block.num_dst(), block.num_src(), block.num_edges());
        let empty = Self::empty([num_dst, num_src, num_edges]);
        Arc::new(Self { edge_features, block: OnceLock::from(block), ..empty })
    }

    /// Returns a block of this size without its edges.
    fn empty([num_dst, num_src, num_edges]: [usize; 3]) -> Self {
        Self {
            num_dst,
            num_src,
            num_edges,
            edge_features: None,
            edge_copies: Mutex::default(),
            degree_weights: Mutex::default(),
            block: OnceLock::new(),
            transpose: OnceLock::new(),
            inverse_degrees: OnceLock::new(),
            with_self_loops: OnceLock::new(),
            relations: OnceLock::new(),
            devices: Mutex::default(),
        }
    }

    /// Wraps a block whose edges are on a GPU.
    #[cfg(feature = "cuda")]
    pub(crate) fn on_gpu(size: [usize; 3], edges: RowEdges, device: &Device) -> Arc<Self> {
        let block = Self::empty(size);
        block.copies_on(device).by_destination.set(edges);
        Arc::new(block)
    }

    /// Copies the edges of a block that a GPU has sampled to the memory of the host. Does nothing if they are there.
    ///
    /// # Errors
    /// When the device fails.
    pub fn read_back(&self) -> Result<()> {
        if self.in_host_memory().is_none() {
            let devices = self.devices.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let copies = devices.values().find_map(|copies| copies.by_destination.made());
            let RowEdges { indptr, indices, .. } =
                copies.ok_or_else(|| Error::Input("the block has its edges on no device".into()))?;
            let block = Block::new(self.num_dst as u32, self.num_src as u32, indptr.to_vec1()?, indices.to_vec1()?);
            // Another thread may have set the same.
            let _ = self.block.set(block);
        }
        Ok(())
    }

    /// Returns the block itself.
    ///
    /// # Panics
    /// If a GPU has sampled it, and [`GraphBlock::read_back`] has not been called.
    pub fn block(&self) -> &Block {
        self.in_host_memory().expect("the block of a GPU's sampler is read back before the host reads it")
    }

    /// Returns the block itself, unless it is on a GPU only.
    pub(crate) fn in_host_memory(&self) -> Option<&Block> {
        self.block.get()
    }

    /// Returns the types of the edges; `None` if they have none, as all that a GPU has sampled.
    pub(crate) fn edge_types(&self) -> Option<&[u16]> {
        self.in_host_memory()?.edge_types()
    }

    /// Returns the weights of the edges; `None` if they have none, as all that a GPU has sampled.
    pub(crate) fn edge_weights(&self) -> Option<&[f32]> {
        self.in_host_memory()?.edge_weights()
    }

    /// Returns the number of destinations.
    pub fn num_dst(&self) -> usize {
        self.num_dst
    }

    /// Returns the number of sources.
    pub fn num_src(&self) -> usize {
        self.num_src
    }

    /// Returns the number of edges.
    pub fn num_edges(&self) -> usize {
        self.num_edges
    }

    /// Returns the edges by source.
    pub fn transpose(&self) -> &Transpose {
        self.transpose.get_or_init(|| transpose(self.num_src(), self.block().indptr(), self.block().indices()))
    }

    /// Returns one over the number of edges of each destination; 0 for none.
    pub fn inverse_degrees(&self) -> &[f64] {
        self.inverse_degrees.get_or_init(|| {
            let inverse = |w: &[u32]| if w[0] == w[1] { 0.0 } else { 1.0 / f64::from(w[1] - w[0]) };
            self.block().indptr().windows(2).map(inverse).collect()
        })
    }

    /// Returns the block with exactly one self-loop per destination: row `i` is the edge i→i, then the row's other
    /// edges without any i→i. It has no edge types. The features of i→i are the mean of those of the row's other edges
    /// (as in PyG), or zeros without other edges.
    pub fn with_self_loops(&self) -> &Arc<GraphBlock> {
        self.with_self_loops.get_or_init(|| {
            let mut indptr = Vec::with_capacity(self.num_dst() + 1);
            let mut indices = Vec::with_capacity(self.num_edges() + self.num_dst());
            indptr.push(0);
            for i in 0..self.num_dst() {
                indices.push(i as u32);
                indices.extend(self.block().neighbors(i).iter().filter(|&&j| j as usize != i));
                indptr.push(indices.len() as u32);
            }
            let block = Block::new(self.num_dst() as u32, self.num_src() as u32, indptr, indices);
            GraphBlock::build(block, self.edge_features.as_ref().map(|features| self.loop_features(features)))
        })
    }

    /// As [`GraphBlock::with_self_loops`], which returns the same after this call. A block that is on a GPU only gets its self-loops there.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub(crate) fn with_self_loops_on(&self, device: &Device) -> Result<&Arc<GraphBlock>> {
        #[cfg(feature = "cuda")]
        if let (None, None, Device::Cuda(gpu)) = (self.in_host_memory(), self.with_self_loops.get(), device) {
            let edges = self.on_device(device).by_destination()?;
            let (edges, count) = super::cuda::with_self_loops(gpu, &edges, LONG_ROW)?;
            let block = Self::on_gpu([self.num_dst, self.num_src, count], edges, device);
            return Ok(self.with_self_loops.get_or_init(|| block));
        }
        let _ = device;
        Ok(self.with_self_loops())
    }

    /// Returns the features of the edges of [`GraphBlock::with_self_loops`].
    fn loop_features(&self, features: &EdgeMatrix) -> EdgeMatrix {
        let dim = features.dim;
        let mut values = Vec::with_capacity((self.num_edges() + self.num_dst()) * dim);
        let (mut sums, indptr) = (vec![0f64; dim], self.block().indptr());
        for i in 0..self.num_dst() {
            let at = values.len();
            values.resize(at + dim, 0.0);
            sums.fill(0.0);
            let mut others = 0u32;
            for edge in
                (indptr[i] as usize..indptr[i + 1] as usize).filter(|&e| self.block().indices()[e] as usize != i)
            {
                let row = &features.values[edge * dim..(edge + 1) * dim];
                sums.iter_mut().zip(row).for_each(|(sum, &value)| *sum += f64::from(value));
                values.extend_from_slice(row);
                others += 1;
            }
            let mean = |sum: &f64| (sum / f64::from(others.max(1))) as f32;
            values[at..at + dim].iter_mut().zip(&sums).for_each(|(value, sum)| *value = mean(sum));
        }
        EdgeMatrix { values, dim }
    }

    /// Returns the edge features, row by row in the edges' order, and their number of columns.
    pub fn edge_features(&self) -> Option<(&[f32], usize)> {
        self.edge_features.as_ref().map(|features| (&features.values[..], features.dim))
    }

    /// Returns the edge features as a tensor on `device`, `[E, dim]`. It is created once per device.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub(crate) fn edge_features_on(&self, device: &Device) -> Result<Option<Tensor>> {
        let Some(EdgeMatrix { values, dim }) = &self.edge_features else { return Ok(None) };
        let mut copies = self.edge_copies.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(copy) = copies.get(&device_key(device)) {
            return Ok(Some(copy.clone()));
        }
        let copy = match self.num_edges() {
            // A GPU cannot allocate an empty tensor.
            0 => Tensor::zeros((1, *dim), DType::F32, device)?.narrow(0, 0, 0)?,
            edges => Tensor::from_slice(values, (edges, *dim), device)?,
        };
        copies.insert(device_key(device), copy.clone());
        Ok(Some(copy))
    }

    /// Returns weights of the edges as a tensor on the device of `target`, `[E, 1]`. They are computed by `make` from the degrees of the sources, and again
    /// only for other degrees.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub(crate) fn degree_weights(
        &self,
        degrees: &[u32],
        target: Target<'_>,
        make: impl FnOnce() -> Vec<f32>,
    ) -> Result<Tensor> {
        let mut held = self.degree_weights.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let key = device_key(target.device());
        if let Some(found) = held.get(&key).filter(|found| found.degrees == degrees) {
            return Ok(found.weights.clone());
        }
        let weights = make();
        let edges = weights.len();
        let weights = target.floats(weights, (edges, 1))?;
        held.insert(key, DegreeWeights { degrees: degrees.to_vec(), weights: weights.clone() });
        Ok(weights)
    }

    /// Returns the edges by relation, without empty relations; `None` if edges have no types.
    pub fn relations(&self) -> Option<&[Relation]> {
        let make = || {
            let block = self.block();
            Some(split(block.indptr(), block.indices(), block.edge_types()?))
        };
        self.relations.get_or_init(make).as_deref()
    }

    /// Returns the copies of the block's arrays on `device`.
    pub(crate) fn copies_on(&self, device: &Device) -> Arc<Copies> {
        let mut devices = self.devices.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        Arc::clone(devices.entry(device_key(device)).or_default())
    }
}

/// Returns a distinct number for each device.
fn device_key(device: &Device) -> usize {
    match device.location() {
        DeviceLocation::Cpu => 0,
        DeviceLocation::Cuda { gpu_id } | DeviceLocation::Metal { gpu_id } => gpu_id + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn self_loop_features_are_the_mean_of_other_edges() -> Result<()> {
        // Node 0 has in-edges from 1, itself and 2; node 1 has none.
        let block = Block::new(2, 3, vec![0, 3, 3], vec![1, 0, 2]);
        let block = GraphBlock::with_edge_features(block, vec![1., 2., 90., 90., 3., 5.], 2);
        let looped = block.with_self_loops();
        assert_eq!(looped.block().indices(), [0, 1, 2, 1]);
        assert_eq!(looped.edge_features(), Some((&[2., 3.5, 1., 2., 3., 5., 0., 0.][..], 2)));
        let tensor = looped.edge_features_on(&Device::Cpu)?.unwrap();
        assert_eq!((tensor.dims(), tensor.to_vec2::<f32>()?[1].clone()), (&[4, 2][..], vec![1., 2.]));
        assert!(GraphBlock::new(Block::new(0, 0, vec![0], vec![])).edge_features_on(&Device::Cpu)?.is_none());
        Ok(())
    }
}
