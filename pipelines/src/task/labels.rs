//! Labels of nodes by global id.

use std::collections::HashMap;
use std::sync::Arc;

use gnnflow_data::dataset::{Labels as Column, Partition};

use crate::context::feature_store::FeatureStore;

/// Labels of the nodes of the partitions hosted here, and of some nodes of other workers.
pub(crate) struct Labels {
    parts: Arc<FeatureStore>,
    /// Fetched labels as bytes, in the layout of the dataset's column: an `i32`, an `f32`, or one byte per class.
    foreign: HashMap<u32, Box<[u8]>>,
}

impl Labels {
    pub(crate) fn new(parts: Arc<FeatureStore>, foreign: HashMap<u32, Box<[u8]>>) -> Self {
        Self { parts, foreign }
    }

    /// Returns partition `part`, hosted here.
    pub(crate) fn partition(&self, part: usize) -> &Partition {
        self.parts.get(part)
    }

    /// Returns whether nodes of partition `part` may have labels.
    pub(crate) fn has_any(&self, part: usize) -> bool {
        !matches!(self.parts.get(part).nodes.labels(), Column::None)
    }

    /// Returns the class of `node`, if it has one.
    pub(crate) fn class(&self, node: u32) -> Option<u32> {
        let bytes = self.bytes(node).and_then(|bytes| bytes.try_into().ok());
        bytes.and_then(|bytes| u32::try_from(i32::from_ne_bytes(bytes)).ok())
    }

    /// Returns the numeric label of `node`, if it has a finite one.
    pub(crate) fn value(&self, node: u32) -> Option<f32> {
        let bytes = self.bytes(node).and_then(|bytes| bytes.try_into().ok());
        bytes.map(f32::from_ne_bytes).filter(|value| value.is_finite())
    }

    /// Returns a 0 or 1 per class of `node`, for nodes with several labels; empty if it has no labels.
    pub(crate) fn flags(&self, node: u32) -> &[u8] {
        self.bytes(node).unwrap_or_default()
    }

    /// Returns the label of `node` as bytes.
    ///
    /// # Panics
    /// When the node is of another worker and its label was not fetched.
    fn bytes(&self, node: u32) -> Option<&[u8]> {
        if let Some(bytes) = self.foreign.get(&node) {
            return Some(bytes);
        }
        let (partition, local) = self.parts.find(node);
        match partition.nodes.labels() {
            Column::None => None,
            Column::Class(classes) => Some(bytemuck::bytes_of(&classes[local])),
            Column::Value(values) => Some(bytemuck::bytes_of(&values[local])),
            Column::Multi(flags, width) => Some(&flags[local * width..(local + 1) * width]),
        }
    }
}
