//! Samples the hops of a batch from a graph that is on the GPU.
//!
//! ```text
//! nodes → counts → starts → sources ─ those that are new, in order of first appearance → the next hop's nodes
//!                              └ positions in the list of nodes: the block
//! ```
//!
//! All kernels are on the device's stream, after the operations that it has so far. The host waits for them several times in each hop: for the numbers
//! of edges, of new nodes, and of rows with many edges if there may be any.

use std::sync::{Mutex, PoisonError};

use candle_core::cuda_backend::cudarc::driver::CudaSlice;
use candle_core::{CudaDevice, Tensor};
use gnnflow_data::rng::Key;
use gnnflow_kernels::sample::Fanout;

use super::integers::{Array, Integers, row_edges};
use super::kernels::{self, Kernel};
use super::threads::{over_numbers, warp_per_row};
use crate::device_copies::RowEdges;
use crate::error::Result;

/// The mark of a node that no batch has listed: `NONE` of `sample.cu`.
const NONE: u32 = u32::MAX;

/// The in-edges of all nodes.
pub(crate) struct Topology {
    device: CudaDevice,
    /// `indices[indptr[v]..indptr[v + 1]]` are the sources of node `v`.
    indptr: CudaSlice<i64>,
    indices: CudaSlice<u32>,
    /// By node, its position in the batch's list. All are [`NONE`] between batches. Two batches must not use them at the same time.
    marks: Mutex<Array>,
}

/// The in-edges of a hop's nodes.
pub(crate) struct Hop {
    pub(crate) destinations: usize,
    pub(crate) sources: usize,
    pub(crate) edges: usize,
    pub(crate) rows: RowEdges,
}

impl Topology {
    /// Copies a graph to the device, part by part: the bounds of the in-edges of consecutive nodes, and their sources.
    pub(crate) fn new(device: &CudaDevice, parts: &[(&[i64], &[u32])]) -> Result<Self> {
        let nodes = parts.iter().map(|(bounds, _)| bounds.len() - 1).sum::<usize>();
        let edges = parts.iter().map(|(_, sources)| sources.len()).sum::<usize>();
        // SAFETY: all bounds are written below.
        let mut indptr = unsafe { device.alloc::<i64>(nodes + 1) }?;
        // SAFETY: all sources are written below; without edges, nothing reads the one number.
        let mut indices = unsafe { device.alloc::<u32>(edges.max(1)) }?;
        let (mut node, mut edge) = (0, 0);
        device.memcpy_htod(&[0i64][..], &mut indptr.slice_mut(..1))?;
        for (bounds, sources) in parts {
            let ends: Vec<i64> = bounds[1..].iter().map(|&end| edge as i64 + end).collect();
            if !ends.is_empty() {
                device.memcpy_htod(&ends, &mut indptr.slice_mut(node + 1..node + 1 + ends.len()))?;
            }
            if !sources.is_empty() {
                device.memcpy_htod(*sources, &mut indices.slice_mut(edge..edge + sources.len()))?;
            }
            (node, edge) = (node + ends.len(), edge + sources.len());
        }
        let marks = Mutex::new(Integers::on(device).filled(nodes, NONE)?);
        Ok(Self { device: device.clone(), indptr, indices, marks })
    }

    /// Samples the hops of a batch, that of the seeds first. Returns them and all nodes, the seeds first: `[n]`, `u32`. Seeds are distinct nodes of the
    /// graph.
    ///
    /// Rows of `long` edges or more are listed. After an error, no other batch may be sampled.
    pub(crate) fn sample(&self, seeds: &[u32], hops: &[(Fanout, Key)], long: u32) -> Result<(Vec<Hop>, Tensor)> {
        let (marks, on) = (self.marks.lock().unwrap_or_else(PoisonError::into_inner), Integers::on(&self.device));
        let over_list = |kernel: Kernel, list: &Array| {
            let arguments = [on.address_of_array(list), on.count(list.len)?, on.address_of_array(&marks)];
            // SAFETY: these are the kernels' arguments, and there is a mark for each node.
            unsafe { on.launch(kernel, over_numbers(list.len), &arguments) }
        };
        let mut nodes = on.copy(seeds)?;
        over_list(kernels::MARK_LISTED, &nodes)?;
        let mut sampled = Vec::with_capacity(hops.len());
        for &(fanout, key) in hops {
            let (hop, list) = self.hop(&on, &marks, nodes, fanout, key, long)?;
            sampled.push(hop);
            nodes = list;
        }
        over_list(kernels::UNMARK, &nodes)?;
        Ok((sampled, on.tensor(nodes)))
    }

    /// Samples in-edges of `nodes`, and returns them with the list of these nodes and the new ones.
    fn hop(
        &self,
        on: &Integers<'_>,
        marks: &Array,
        nodes: Array,
        fanout: Fanout,
        key: Key,
        long: u32,
    ) -> Result<(Hop, Array)> {
        let (starts, sources) = self.draw(on, &nodes, fanout, key)?;
        let (listed, edges) = (nodes.len, sources.len);
        let (at, e, threads) = (on.address_of_array(&sources), on.count(edges)?, over_numbers(edges));
        let (first, marks) = (on.array(edges)?, on.address_of_array(marks));
        // SAFETY: these are the kernels' arguments; there is a mark for each node.
        unsafe {
            on.launch(kernels::MARK_FOUND, threads, &[at, e, marks])?;
            on.launch(kernels::FIND_FIRST, threads, &[at, e, marks, on.address_of_array(&first)])?;
        }
        let places = on.scan(&first)?;
        let found = on.total(&places)?;
        let mut list = on.array(listed + found)?;
        if listed > 0 {
            let mut begin = list.numbers.slice_mut(..listed);
            self.device.memcpy_dtod(&nodes.numbers.slice(..listed), &mut begin)?;
        }
        let (places, to) = (on.address_of_array(&places.starts), on.address_of_array(&list));
        // SAFETY: as above; the list has room for the nodes that are found.
        unsafe {
            on.launch(kernels::LIST_FOUND, threads, &[at, places, e, on.count(listed)?, to, marks])?;
            on.launch(kernels::TO_POSITIONS, threads, &[at, e, marks])?;
        }
        let may_be_long = match fanout {
            Fanout::All => true,
            Fanout::Uniform { k } | Fanout::UniformWithReplacement { k } => k >= long,
        };
        let rows = row_edges(on, starts, sources, may_be_long.then_some(long))?;
        Ok((Hop { destinations: listed, sources: listed + found, edges, rows }, list))
    }

    /// Draws in-edges of `nodes`. Returns the bounds of the nodes' edges, and their sources.
    fn draw(&self, on: &Integers<'_>, nodes: &Array, fanout: Fanout, key: Key) -> Result<(Array, Array)> {
        let (kind, k) = match fanout {
            Fanout::All => (0u32, 0),
            Fanout::Uniform { k } => (1, k),
            Fanout::UniformWithReplacement { k } => (2, k),
        };
        let (indptr, indices) = (on.address(&self.indptr), on.address(&self.indices));
        let (listed, n, counts) = (on.address_of_array(nodes), on.count(nodes.len)?, on.array(nodes.len)?);
        let arguments = [listed, n, indptr, kind.into(), k.into(), on.address_of_array(&counts)];
        // SAFETY: these are the kernel's arguments, and all nodes are of the graph.
        unsafe { on.launch(kernels::COUNT_SAMPLES, over_numbers(nodes.len), &arguments) }?;
        let scan = on.scan(&counts)?;
        let sources = on.array(on.total(&scan)?)?;
        let (starts, to) = (on.address_of_array(&scan.starts), on.address_of_array(&sources));
        // SAFETY: as above; there is room for all samples.
        unsafe {
            if fanout == Fanout::All {
                let arguments = [listed, n, indptr, indices, starts, to];
                on.launch(kernels::TAKE_ALL, warp_per_row(nodes.len as u32), &arguments)?;
            } else {
                let arguments = [listed, n, indptr, indices, kind.into(), k.into(), key.bits().into(), starts, to];
                on.launch(kernels::DRAW_SAMPLES, over_numbers(nodes.len), &arguments)?;
            }
        }
        Ok((scan.starts, sources))
    }
}
