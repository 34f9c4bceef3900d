//! The arrays of a block on a device. Each is copied on first use: a forward pass reads the edges by destination only.

use std::sync::Arc;

use candle_core::{Device, Tensor};

#[cfg(feature = "cuda")]
use super::cuda;
use super::device_copies::{Copies, LONG_ROW, RowEdges};
use super::error::Result;
use super::graph_block::GraphBlock;
use super::target::Target;
use super::upload::Upload;

/// A block on a device.
pub(crate) struct DeviceBlock<'a> {
    block: &'a GraphBlock,
    target: Target<'a>,
    copies: Arc<Copies>,
}

impl GraphBlock {
    /// Returns the block on `device`.
    pub(crate) fn on_device<'a>(&'a self, device: &'a Device) -> DeviceBlock<'a> {
        self.on(Target::InOrder(device))
    }

    /// Copies the edges of all destinations to `device`, asynchronously with `upload`. Forward passes of sums then read this copy. Does nothing on the CPU.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn copy_to(&self, device: &Device, upload: Option<&Upload>) -> Result<()> {
        if !device.is_cpu() {
            self.on(Target::new(device, upload)).by_destination()?;
        }
        Ok(())
    }

    /// Returns the block on the device of `target`.
    pub(crate) fn on<'a>(&'a self, target: Target<'a>) -> DeviceBlock<'a> {
        DeviceBlock { block: self, copies: self.copies_on(target.device()), target }
    }
}

/// Every method fails when the device is out of memory.
impl DeviceBlock<'_> {
    /// Returns the sources of every destination's edges.
    pub(crate) fn by_destination(&self) -> Result<RowEdges> {
        self.copies.by_destination.get(|| {
            let block = self.block.block();
            self.rows(block.indptr(), block.indices())
        })
    }

    /// Returns the destinations of every source's edges.
    pub(crate) fn by_source(&self) -> Result<RowEdges> {
        self.copies.by_source.get(|| {
            #[cfg(feature = "cuda")]
            if let Some(gpu) = self.sampled_on() {
                let found = cuda::by_source(gpu, &self.by_destination()?, self.block.num_src(), LONG_ROW)?;
                self.copies.edges_by_source.set(found.edges);
                return Ok(found.rows);
            }
            let transpose = self.block.transpose();
            self.rows(&transpose.indptr, &transpose.indices)
        })
    }

    /// Returns, for each edge by source, its position in the order by destination: `[num_edges]`, `u32`.
    pub(crate) fn edges_by_source(&self) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if self.sampled_on().is_some() {
            // It makes both.
            self.by_source()?;
        }
        self.copies.edges_by_source.get(|| self.target.integers(&self.block.transpose().edges))
    }

    /// Returns the destination of each edge: `[num_edges]`, `u32`.
    pub(crate) fn destinations(&self) -> Result<Tensor> {
        self.copies.destinations.get(|| {
            #[cfg(feature = "cuda")]
            if let Some(gpu) = self.sampled_on() {
                return cuda::destinations(gpu, &self.by_destination()?);
            }
            let mut destinations = Vec::with_capacity(self.block.num_edges());
            for (row, bounds) in (0..).zip(self.block.block().indptr().windows(2)) {
                destinations.extend((bounds[0]..bounds[1]).map(|_| row));
            }
            self.target.integers(&destinations)
        })
    }

    /// Returns one over the number of edges of each destination, 0 for none: `[num_dst]`, `f32`.
    pub(crate) fn inverse_degrees(&self) -> Result<Tensor> {
        self.copies.inverse_degrees.get(|| {
            #[cfg(feature = "cuda")]
            if let Some(gpu) = self.sampled_on() {
                return cuda::inverse_degrees(gpu, &self.by_destination()?);
            }
            let inverse: Vec<f32> = self.block.inverse_degrees().iter().map(|&x| x as f32).collect();
            let rows = inverse.len();
            self.target.floats(inverse, rows)
        })
    }

    /// Returns the GPU if it alone has the edges.
    #[cfg(feature = "cuda")]
    fn sampled_on(&self) -> Option<&candle_core::CudaDevice> {
        match (self.block.in_host_memory(), self.target.device()) {
            (None, Device::Cuda(gpu)) => Some(gpu),
            _ => None,
        }
    }

    fn rows(&self, indptr: &[u32], indices: &[u32]) -> Result<RowEdges> {
        let is_long = |bounds: &[u32]| bounds[1] - bounds[0] >= LONG_ROW;
        let long: Vec<u32> =
            (0..).zip(indptr.windows(2)).filter(|(_, bounds)| is_long(bounds)).map(|(row, _)| row).collect();
        let long_rows = if long.is_empty() { None } else { Some(self.target.integers(&long)?) };
        Ok(RowEdges { indptr: self.target.integers(indptr)?, indices: self.target.integers(indices)?, long_rows })
    }
}

#[cfg(test)]
mod tests {
    use gnnflow_kernels::block::Block;

    use super::*;

    fn integers(tensor: &Tensor) -> Vec<u32> {
        tensor.to_vec1().unwrap()
    }

    #[test]
    fn kernels_leave_out_the_rows_that_are_listed_as_long() {
        assert!(include_str!("../cuda/rows.cuh").contains(&format!("LONG_ROW = {LONG_ROW},")));
    }

    #[test]
    fn long_rows_are_listed_in_both_directions() -> Result<()> {
        // Destination 1 has 512 edges from source 0; source 1 has none.
        let block = GraphBlock::new(Block::new(2, 2, vec![0, 511, 1023], vec![0; 1023]));
        let on = block.on_device(&Device::Cpu);
        let rows = |edges: RowEdges| edges.long_rows.as_ref().map(integers);
        assert_eq!((rows(on.by_destination()?), rows(on.by_source()?)), (Some(vec![1]), Some(vec![0])));
        let short = GraphBlock::new(Block::new(1, 1, vec![0, 511], vec![0; 511]));
        assert!(short.on_device(&Device::Cpu).by_destination()?.long_rows.is_none());
        Ok(())
    }

    #[test]
    fn copies_have_every_edge_in_both_directions() -> Result<()> {
        let blocks = [
            Block::new(3, 4, vec![0, 2, 2, 5], vec![3, 0, 1, 1, 2]),
            Block::new(2, 3, vec![0; 3], Vec::new()),
            Block::new(0, 0, vec![0], Vec::new()),
        ];
        for block in blocks {
            let block = GraphBlock::new(block);
            let on = block.on_device(&Device::Cpu);
            let (forward, backward) = (on.by_destination()?, on.by_source()?);
            let (indptr, sources) = (integers(&forward.indptr), integers(&forward.indices));
            let (by_source, to) = (integers(&backward.indptr), integers(&backward.indices));
            let (destinations, edges) = (integers(&on.destinations()?), integers(&on.edges_by_source()?));
            let inverse: Vec<f32> = on.inverse_degrees()?.to_vec1()?;
            assert_eq!([sources.len(), destinations.len(), to.len(), edges.len()], [block.num_edges(); 4]);
            assert_eq!(
                [indptr.len(), inverse.len() + 1, by_source.len()],
                [block.num_dst() + 1, block.num_dst() + 1, block.num_src() + 1]
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
        }
        Ok(())
    }

    #[test]
    fn arrays_are_copied_once() -> Result<()> {
        let block = GraphBlock::new(Block::new(1, 1, vec![0, 1], vec![0]));
        let [first, second] = [(); 2].map(|()| block.on_device(&Device::Cpu).by_destination());
        assert_eq!(first?.indices.id(), second?.indices.id());
        Ok(())
    }
}
