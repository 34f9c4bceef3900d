//! Copies feature rows to the model's device: those of all nodes, or of as many as fit.

use std::cmp::Reverse;

use candle_core::Tensor;
use gnnflow_dataflow::fetch::cache::CacheCounts;
use gnnflow_dataflow::fetch::fetch_rows::FeatureView;
use gnnflow_dataflow::graph::local_graph::LocalGraph;
use gnnflow_nn::Model;
use gnnflow_nn::tensors::tensor;

use super::ComputeState;
use super::held_rows::{ABSENT, HeldRows};
use super::passes::BatchRows;
use crate::error::Error;

/// Number of rows that are copied at a time.
const ROWS: usize = 1 << 16;

/// Returns the rows of `nodes` as a tensor on the model's device.
///
/// # Errors
/// When the device is out of memory.
pub(super) fn copy_rows(features: &FeatureView, nodes: &[u32], model: &Model) -> Result<Tensor, Error> {
    copy_in_parts(features, nodes, model, ROWS)
}

fn copy_in_parts(features: &FeatureView, nodes: &[u32], model: &Model, rows: usize) -> Result<Tensor, Error> {
    let part = |nodes: &[u32]| tensor(features.gather(nodes), nodes.len(), model.device());
    let mut parts = nodes.chunks(rows);
    let first = part(parts.next().unwrap_or_default())?;
    if nodes.len() <= rows {
        return Ok(first);
    }
    let copy = || -> gnnflow_nn::Result<Tensor> {
        let all = Tensor::zeros((nodes.len(), features.dim), first.dtype(), model.device())?;
        all.slice_set(&first, 0, 0)?;
        for (part_before, nodes) in parts.enumerate() {
            all.slice_set(&part(nodes)?, 0, (part_before + 1) * rows)?;
        }
        Ok(all)
    };
    Ok(copy()?)
}

/// How many of the rows that this process can read are on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// Rows on the device.
    pub(crate) rows: usize,
    /// Rows that this process can read.
    pub(crate) of: usize,
}

impl ComputeState {
    /// Copies at most `bytes` bytes of the rows that this process can read to the model's device, from which batches then read them: those of the nodes
    /// with most edges into its partitions.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn hold_rows(&self, features: &FeatureView, graph: &LocalGraph, bytes: u64) -> Result<Held, Error> {
        let model = &self.passes.read().model;
        let most = bytes / (features.dim * features.number.bytes()).max(1) as u64;
        let all = graph.num_nodes() as u32;
        let mut nodes: Vec<u32> = (0..all).filter(|&node| graph.hosts(node) || features.source.shares(node)).collect();
        let of = nodes.len();
        if most == 0 || nodes.is_empty() {
            return Ok(Held { rows: 0, of });
        }
        if of as u64 > most {
            let edges = graph.edges_from();
            let order = |&node: &u32| (Reverse(edges[node as usize]), node);
            nodes.select_nth_unstable_by_key(most as usize - 1, order);
            nodes.truncate(most as usize);
            // In the order of their places in files.
            nodes.sort_unstable();
        }
        let numbers = (nodes.len() < all as usize).then(|| {
            let mut numbers = vec![ABSENT; all as usize];
            (0..).zip(&nodes).for_each(|(number, &node)| numbers[node as usize] = number);
            numbers
        });
        let rows = copy_rows(features, &nodes, model)?;
        *self.passes.rows() = BatchRows::OnDevice(HeldRows { rows, numbers, features: features.clone() }.into());
        Ok(Held { rows: nodes.len(), of })
    }

    /// Returns how many rows of batches were on the device, and how many were copied to it; `None` if no rows are there.
    pub(crate) fn held_counts(&self) -> Option<CacheCounts> {
        matches!(&*self.passes.rows(), BatchRows::OnDevice(_)).then(|| *self.passes.held_counts())
    }

    /// Frees the rows of [`ComputeState::hold_rows`].
    pub(crate) fn free_rows(&self) {
        *self.passes.rows() = BatchRows::InBatch;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use candle_core::Device;
    use gnnflow_dataflow::storage::{Busy, RowReader, RowSource};
    use gnnflow_kernels::matrix::Number;
    use gnnflow_nn::model::ModelSpec;

    use super::*;

    /// Rows of two numbers, the bytes of the node's id.
    struct Ids(Vec<f32>);

    impl RowSource for Ids {
        fn row_bytes(&self) -> usize {
            8
        }

        fn open(&self) -> Result<Box<dyn RowReader + '_>, Busy> {
            Ok(Box::new(self))
        }
    }

    impl RowReader for Ids {
        fn row(&self, node: u32) -> &[u8] {
            bytemuck::cast_slice(&self.0[2 * node as usize..2 * node as usize + 2])
        }
    }

    #[test]
    fn rows_are_copied_in_parts() {
        let registry = crate::Registry::default();
        let model = Model::build(&ModelSpec::new("gcn", 1, 2, 4, 2), registry.layers(), &Device::Cpu, 1).unwrap();
        let source = Arc::new(Ids((0..20).map(|i| i as f32).collect()));
        let features = FeatureView { source, number: Number::F32, dim: 2, packed: None, halo: None };
        for count in [0, 1, 3, 4, 9] {
            let nodes: Vec<u32> = (0..count).map(|i| (7 * i) % 10).collect();
            let rows = copy_in_parts(&features, &nodes, &model, 3).unwrap();
            let expected: Vec<Vec<f32>> =
                nodes.iter().map(|&node| vec![2.0 * node as f32, 2.0 * node as f32 + 1.0]).collect();
            assert_eq!(rows.to_vec2::<f32>().unwrap(), expected);
        }
    }
}
