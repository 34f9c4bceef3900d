//! A block with derived data, which is computed on first use.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use candle_core::{DType, Device, DeviceLocation, Tensor};

use gnnflow_kernels::aggregate::relations::{Relation, split};
use gnnflow_kernels::aggregate::transpose::{Transpose, transpose};
use gnnflow_kernels::block::Block;

use super::error::Result;

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
    block: Block,
    transpose: OnceLock<Transpose>,
    inverse_degrees: OnceLock<Vec<f64>>,
    with_self_loops: OnceLock<Arc<GraphBlock>>,
    relations: OnceLock<Option<Vec<Relation>>>,
    edge_features: Option<EdgeMatrix>,
    edge_copies: Mutex<BTreeMap<usize, Tensor>>,
    degree_weights: Mutex<BTreeMap<usize, DegreeWeights>>,
    devices: Mutex<BTreeMap<usize, Arc<DeviceBlock>>>,
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

/// Edges of a row from which on a GPU sums it with more reads in flight: `LONG_ROW` of `cuda/segment.cu`.
const LONG_ROW: u32 = 512;

/// A block's arrays as `u32` tensors (inverse degrees: `f32`) on a device.
#[derive(Debug)]
pub struct DeviceBlock {
    /// `[num_dst + 1]`
    pub indptr: Tensor,
    /// `[num_edges]`: the source of each edge.
    pub indices: Tensor,
    /// `[num_edges]`: the destination of each edge.
    pub destinations: Tensor,
    /// `[num_src + 1]`: offsets of the transpose.
    pub by_source_indptr: Tensor,
    /// `[num_edges]`: the destination of each edge of the transpose.
    pub by_source_indices: Tensor,
    /// `[num_edges]`: the position of each edge of the transpose in the order by destination.
    pub by_source_edges: Tensor,
    /// `[num_dst]`: one over the number of edges; 0 for none.
    pub inverse_degrees: Tensor,
    /// The destinations with at least 512 edges; `None` if there are none.
    pub long_rows: Option<Tensor>,
    /// The sources with at least 512 edges; `None` if there are none.
    pub long_rows_by_source: Option<Tensor>,
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
        Arc::new(Self {
            edge_features,
            edge_copies: Mutex::default(),
            degree_weights: Mutex::default(),
            block,
            transpose: OnceLock::new(),
            inverse_degrees: OnceLock::new(),
            with_self_loops: OnceLock::new(),
            relations: OnceLock::new(),
            devices: Mutex::default(),
        })
    }

    /// Returns the block itself.
    pub fn block(&self) -> &Block {
        &self.block
    }

    /// Returns the number of destinations.
    pub fn num_dst(&self) -> usize {
        self.block.num_dst()
    }

    /// Returns the number of sources.
    pub fn num_src(&self) -> usize {
        self.block.num_src()
    }

    /// Returns the number of edges.
    pub fn num_edges(&self) -> usize {
        self.block.num_edges()
    }

    /// Returns the edges by source.
    pub fn transpose(&self) -> &Transpose {
        self.transpose.get_or_init(|| transpose(self.num_src(), self.block.indptr(), self.block.indices()))
    }

    /// Returns one over the number of edges of each destination; 0 for none.
    pub fn inverse_degrees(&self) -> &[f64] {
        self.inverse_degrees.get_or_init(|| {
            let inverse = |w: &[u32]| if w[0] == w[1] { 0.0 } else { 1.0 / f64::from(w[1] - w[0]) };
            self.block.indptr().windows(2).map(inverse).collect()
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
                indices.extend(self.block.neighbors(i).iter().filter(|&&j| j as usize != i));
                indptr.push(indices.len() as u32);
            }
            let block = Block::new(self.num_dst() as u32, self.num_src() as u32, indptr, indices);
            GraphBlock::build(block, self.edge_features.as_ref().map(|features| self.loop_features(features)))
        })
    }

    /// Returns the features of the edges of [`GraphBlock::with_self_loops`].
    fn loop_features(&self, features: &EdgeMatrix) -> EdgeMatrix {
        let dim = features.dim;
        let mut values = Vec::with_capacity((self.num_edges() + self.num_dst()) * dim);
        let (mut sums, indptr) = (vec![0f64; dim], self.block.indptr());
        for i in 0..self.num_dst() {
            let at = values.len();
            values.resize(at + dim, 0.0);
            sums.fill(0.0);
            let mut others = 0u32;
            for edge in (indptr[i] as usize..indptr[i + 1] as usize).filter(|&e| self.block.indices()[e] as usize != i)
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

    /// Returns weights of the edges as a tensor on `device`, `[E, 1]`. They are computed by `make` from the degrees of the sources, and again
    /// only for other degrees.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub(crate) fn degree_weights(
        &self,
        degrees: &[u32],
        device: &Device,
        make: impl FnOnce() -> Vec<f32>,
    ) -> Result<Tensor> {
        let mut held = self.degree_weights.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(found) = held.get(&device_key(device)).filter(|found| found.degrees == degrees) {
            return Ok(found.weights.clone());
        }
        let weights = make();
        let edges = weights.len();
        let weights = Tensor::from_vec(weights, (edges, 1), &Device::Cpu)?.to_device(device)?;
        held.insert(device_key(device), DegreeWeights { degrees: degrees.to_vec(), weights: weights.clone() });
        Ok(weights)
    }

    /// Returns the edges by relation, without empty relations; `None` if edges have no types.
    pub fn relations(&self) -> Option<&[Relation]> {
        let make = || Some(split(self.block.indptr(), self.block.indices(), self.block.edge_types()?));
        self.relations.get_or_init(make).as_deref()
    }

    /// Returns copies of the arrays on `device`. They are created once per device.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub(crate) fn on_device(&self, device: &Device) -> Result<Arc<DeviceBlock>> {
        let key = device_key(device);
        let mut devices = self.devices.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(copy) = devices.get(&key) {
            return Ok(copy.clone());
        }
        // A GPU cannot allocate an empty tensor; the one extra number is never read.
        let upload = |values: &[u32]| match values.len() {
            0 => Tensor::zeros(1, DType::U32, device)?.narrow(0, 0, 0),
            n => Tensor::from_slice(values, n, device),
        };
        let mut destinations = Vec::with_capacity(self.num_edges());
        for (i, w) in self.block.indptr().windows(2).enumerate() {
            destinations.extend((w[0]..w[1]).map(|_| i as u32));
        }
        let inverse: Vec<f32> = self.inverse_degrees().iter().map(|&x| x as f32).collect();
        let by_source = self.transpose();
        let long_rows = |indptr: &[u32]| {
            let rows = indptr.windows(2).zip(0..);
            let long: Vec<u32> =
                rows.filter(|(bounds, _)| bounds[1] - bounds[0] >= LONG_ROW).map(|(_, row)| row).collect();
            if long.is_empty() { Ok(None) } else { Tensor::from_slice(&long, long.len(), device).map(Some) }
        };
        let copy = Arc::new(DeviceBlock {
            indptr: upload(self.block.indptr())?,
            indices: upload(self.block.indices())?,
            destinations: upload(&destinations)?,
            by_source_indptr: upload(&by_source.indptr)?,
            by_source_indices: upload(&by_source.indices)?,
            by_source_edges: upload(&by_source.edges)?,
            inverse_degrees: match inverse.len() {
                0 => Tensor::zeros(1, DType::F32, device)?.narrow(0, 0, 0)?,
                n => Tensor::from_slice(&inverse, n, device)?,
            },
            long_rows: long_rows(self.block.indptr())?,
            long_rows_by_source: long_rows(&by_source.indptr)?,
        });
        devices.insert(key, copy.clone());
        Ok(copy)
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
    fn kernels_leave_out_the_rows_that_are_listed_as_long() {
        assert!(include_str!("../cuda/segment.cu").contains(&format!("LONG_ROW = {LONG_ROW},")));
    }

    #[test]
    fn device_copy_lists_long_rows_in_both_directions() -> Result<()> {
        // Destination 1 has 512 edges from source 0; source 1 has none.
        let block = GraphBlock::new(Block::new(2, 2, vec![0, 511, 1023], vec![0; 1023]));
        let on = block.on_device(&Device::Cpu)?;
        let rows = |rows: &Option<Tensor>| rows.as_ref().map(|rows| rows.to_vec1::<u32>()).transpose();
        assert_eq!((rows(&on.long_rows)?, rows(&on.long_rows_by_source)?), (Some(vec![1]), Some(vec![0])));
        let short = GraphBlock::new(Block::new(1, 1, vec![0, 511], vec![0; 511]));
        assert!(short.on_device(&Device::Cpu)?.long_rows.is_none());
        Ok(())
    }

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

    #[test]
    fn device_copy_has_every_edge_in_both_directions() -> Result<()> {
        let blocks = [
            Block::new(3, 4, vec![0, 2, 2, 5], vec![3, 0, 1, 1, 2]),
            Block::new(2, 3, vec![0; 3], Vec::new()),
            Block::new(0, 0, vec![0], Vec::new()),
        ];
        for block in blocks {
            let block = GraphBlock::new(block);
            let on = block.on_device(&Device::Cpu)?;
            let integers = |tensor: &Tensor| Ok::<_, super::super::Error>(tensor.to_vec1::<u32>()?);
            let (indptr, sources) = (integers(&on.indptr)?, integers(&on.indices)?);
            let (destinations, inverse) = (integers(&on.destinations)?, on.inverse_degrees.to_vec1::<f32>()?);
            let (by_source, to, edges) =
                (integers(&on.by_source_indptr)?, integers(&on.by_source_indices)?, integers(&on.by_source_edges)?);
            assert_eq!([sources.len(), destinations.len(), to.len(), edges.len()], [block.num_edges(); 4]);
            assert_eq!(
                [indptr.len(), inverse.len() + 1, by_source.len()],
                [block.num_dst() + 1, block.num_dst() + 1, block.num_src() + 1,]
            );
            for row in 0..block.num_dst() {
                let places = indptr[row] as usize..indptr[row + 1] as usize;
                assert!(places.clone().all(|e| destinations[e] as usize == row));
                assert_eq!(&sources[places.clone()], block.block().neighbors(row));
                let degree = places.len() as f32;
                assert_eq!(inverse[row], if places.is_empty() { 0.0 } else { 1.0 / degree });
            }
            for source in 0..block.num_src() {
                for place in by_source[source] as usize..by_source[source + 1] as usize {
                    let edge = edges[place] as usize;
                    assert_eq!((sources[edge] as usize, destinations[edge]), (source, to[place]));
                }
            }
            assert!(Arc::ptr_eq(&on, &block.on_device(&Device::Cpu)?), "copied once");
        }
        Ok(())
    }
}
