//! `halo.arrow`: the nodes of other partitions from which a partition's edges come.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::buffer::ScalarBuffer;
use memmap2::Mmap;

use super::mapped::column;
use super::{FeatureInfo, Features};
use crate::error::Result;

/// Name of the column of ids.
pub(crate) const NODE: &str = "node";

/// The halo of a partition. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Halo {
    nodes: ScalarBuffer<u32>,
    features: Option<Features>,
}

impl Halo {
    /// Creates a halo in memory from ascending global ids and, optionally, one row of features per id.
    ///
    /// # Panics
    /// If the ids do not ascend, or the number of rows differs.
    pub fn new(nodes: Vec<u32>, features: Option<Features>) -> Self {
        assert!(nodes.is_sorted_by(|a, b| a < b), "a halo's nodes ascend");
        assert!(features.as_ref().is_none_or(|features| features.num_rows() == nodes.len()), "one row a node");
        Self { nodes: nodes.into(), features }
    }

    pub(super) fn from_batch(
        (batch, map): (RecordBatch, Arc<Mmap>),
        path: &Path,
        features: Option<&FeatureInfo>,
    ) -> Result<Self> {
        let nodes: UInt32Array = column(&batch, path, NODE)?;
        let features = features.map(|info| Features::from_batch((&batch, map), path, info.layout())).transpose()?;
        Ok(Self { nodes: nodes.values().clone(), features })
    }

    /// The global ids, ascending.
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// The features, in the same order, if `partition.halo` requests them.
    pub fn features(&self) -> Option<&Features> {
        self.features.as_ref()
    }
}
