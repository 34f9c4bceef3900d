//! Rows of a layer for all nodes of a worker's partitions, in files.
//!
//! Exact inference keeps whole layers; they may be larger than memory, so they live in unlinked scratch files of the run
//! folder, mapped. The system keeps in memory what fits.

use std::path::Path;
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};

use crate::graph::local_graph::LocalGraph;
use crate::wire::RowSource;

/// `f32` rows of one width for every node that a worker hosts.
///
/// Rows are written while a layer is computed and read only after all of it is there; the epochs of inference are
/// separated by the dataflow's frontier.
pub struct LayerStore {
    graph: Arc<LocalGraph>,
    dim: usize,
    /// By partition; `None` where another worker hosts it, or it has no nodes.
    parts: Vec<Option<MmapRaw>>,
}

impl LayerStore {
    /// Reserves room in `dir` for rows of `dim` numbers.
    ///
    /// # Errors
    /// When the disk has no room, or the folder cannot be written.
    pub fn create(dir: &Path, graph: &Arc<LocalGraph>, worker: usize, dim: usize) -> std::io::Result<Self> {
        let placement = graph.placement();
        let mut parts: Vec<Option<MmapRaw>> = (0..placement.parts()).map(|_| None).collect();
        for part in placement.parts_of(worker) {
            let bytes = graph.range(part).len() as u64 * dim as u64 * 4;
            if bytes > 0 {
                let reserve = || -> std::io::Result<MmapRaw> {
                    let file = tempfile::tempfile_in(dir)?;
                    // Room is taken now: a mapped write to a full disk would be a signal, not an error.
                    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)?;
                    MmapOptions::new().len(bytes as usize).map_raw(&file)
                };
                parts[part] = Some(reserve()?);
            }
        }
        Ok(Self { graph: Arc::clone(graph), dim, parts })
    }

    /// Numbers in a row.
    pub fn dim(&self) -> usize {
        self.dim
    }

    fn place(&self, node: u32) -> (&MmapRaw, usize) {
        let part = self.graph.partition_of(node);
        let map = self.parts[part].as_ref().expect("rows are asked of the worker that hosts them");
        (map, (node - self.graph.range(part).start) as usize * self.dim * 4)
    }

    /// Writes the rows of `nodes`, one after the other.
    ///
    /// # Panics
    /// When another worker hosts one of them, or there are not as many rows.
    pub fn write(&self, nodes: &[u32], rows: &[f32]) {
        assert_eq!(rows.len(), nodes.len() * self.dim, "one row per node");
        for (&node, row) in nodes.iter().zip(rows.chunks_exact(self.dim)) {
            let (map, at) = self.place(node);
            assert!(at + 4 * self.dim <= map.len(), "node {node} is of this partition");
            // SAFETY: the range is inside the map (asserted). Each node's row is written by one job at a time, and is
            // read only after the dataflow's frontier has passed the layer.
            unsafe { std::ptr::copy_nonoverlapping(row.as_ptr().cast::<u8>(), map.as_mut_ptr().add(at), 4 * self.dim) };
        }
    }

    /// The row of `node` as numbers.
    pub fn row_f32(&self, node: u32) -> &[f32] {
        bytemuck::cast_slice(self.row(node))
    }
}

impl RowSource for LayerStore {
    fn row_bytes(&self) -> usize {
        4 * self.dim
    }

    fn row(&self, node: u32) -> &[u8] {
        let (map, at) = self.place(node);
        assert!(at + 4 * self.dim <= map.len(), "node {node} is of this partition");
        // SAFETY: the range is inside the map (asserted), which lives as long as `self`; nobody writes to a layer that
        // is being read (see the type).
        unsafe { std::slice::from_raw_parts(map.as_ptr().add(at), 4 * self.dim) }
    }
}
