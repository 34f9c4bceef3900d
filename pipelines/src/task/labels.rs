//! What is known of nodes, by global id, wherever they belong.

use std::collections::HashMap;
use std::sync::Arc;

use gnnflow_data::dataset::{Labels as Column, Partition};

use crate::context::FeatureStore;

/// Labels of the nodes of the partitions hosted here, and of those foreign nodes whose labels were brought.
pub(crate) struct Labels {
    parts: Arc<FeatureStore>,
    /// As bytes, in the layout of the dataset's column: an `i32`, an `f32`, or one byte a class.
    foreign: HashMap<u32, Box<[u8]>>,
}

impl Labels {
    pub(crate) fn new(parts: Arc<FeatureStore>, foreign: HashMap<u32, Box<[u8]>>) -> Self {
        Self { parts, foreign }
    }

    /// Partition `part`, hosted here.
    pub(crate) fn partition(&self, part: usize) -> &Partition {
        self.parts.get(part)
    }

    /// The class of `node`; `None` where it has none.
    pub(crate) fn class(&self, node: u32) -> Option<u32> {
        let bytes = self.bytes(node).and_then(|bytes| bytes.try_into().ok());
        bytes.and_then(|bytes| u32::try_from(i32::from_ne_bytes(bytes)).ok())
    }

    /// The number of `node`; `None` where it has none that is finite.
    pub(crate) fn value(&self, node: u32) -> Option<f32> {
        let bytes = self.bytes(node).and_then(|bytes| bytes.try_into().ok());
        bytes.map(f32::from_ne_bytes).filter(|value| value.is_finite())
    }

    /// A 0 or 1 for each class of `node`, where nodes have many; nothing where it has no labels.
    pub(crate) fn flags(&self, node: u32) -> &[u8] {
        self.bytes(node).unwrap_or_default()
    }

    /// The label of `node` as bytes.
    ///
    /// # Panics
    /// When the node is foreign and nobody brought its label.
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
