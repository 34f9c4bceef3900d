//! `topology.arrow`: the in-edges of a partition's core nodes, by destination (compressed sparse columns, CSC).

use std::path::Path;

use arrow::array::{Array, ArrowPrimitiveType, FixedSizeListArray, LargeListArray, PrimitiveArray, RecordBatch};
use arrow::buffer::ScalarBuffer;
use arrow::datatypes::{Float32Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type};

use super::manifest::EdgeColumns;
use super::mapped::column;
use super::split;
use crate::error::{Error, Result};

/// Names of the columns of `topology.arrow`.
pub(crate) mod names {
    pub(crate) const NEIGHBORS: &str = "neighbors";
    pub(crate) const WEIGHT: &str = "weight";
    pub(crate) const EDGE_TYPE: &str = "edge_type";
    pub(crate) const TIME: &str = "time";
    pub(crate) const SPLIT: &str = "split";
    pub(crate) const LABEL: &str = "label";
    pub(crate) const FEATURES: &str = "edge_features";
}

/// In-edges of the core nodes of one partition.
///
/// In-neighbors of local node `v` are `indices[indptr[v]..indptr[v + 1]]`: **global** ids, ascending. All values are checked when they
/// are opened (once per process) or built. `indptr` starts at 0, never decreases and ends at the number of edges. Every index is below
/// the graph's number of nodes. The optional columns are as long as `indices`. Cloning is cheap.
///
/// ```
/// use gnnflow_data::dataset::Topology;
///
/// // Node 0 has in-edges from 1 and 2, node 1 has none.
/// let topology = Topology::new(vec![0, 2, 2], vec![1, 2], 3).unwrap();
/// assert_eq!(topology.neighbors(0), [1, 2]);
/// assert!(topology.neighbors(1).is_empty());
/// ```
#[derive(Clone, Debug)]
pub struct Topology {
    indptr: ScalarBuffer<i64>,
    indices: ScalarBuffer<u32>,
    weights: Option<ScalarBuffer<f32>>,
    edge_types: Option<ScalarBuffer<u16>>,
    times: Option<ScalarBuffer<i64>>,
    splits: Option<ScalarBuffer<u8>>,
    labels: Option<ScalarBuffer<i32>>,
    features: Option<(ScalarBuffer<f32>, usize)>,
}

impl Topology {
    /// Creates a topology in memory without optional columns. `num_nodes` is the number of nodes of the graph.
    ///
    /// # Errors
    /// A description of an invalid array.
    pub fn new(indptr: Vec<i64>, indices: Vec<u32>, num_nodes: u64) -> std::result::Result<Self, String> {
        let valid = indptr.first() == Some(&0) && indptr.is_sorted() && indptr.last() == Some(&(indices.len() as i64));
        if !valid {
            return Err("indptr must start at 0, never decrease, and end at the number of edges".into());
        }
        check_indices(&indices, num_nodes)?;
        let (indptr, indices) = (indptr.into(), indices.into());
        let (weights, edge_types, times) = (None, None, None);
        Ok(Self { indptr, indices, weights, edge_types, times, splits: None, labels: None, features: None })
    }

    /// Returns the same topology with edge weights.
    ///
    /// # Panics
    /// Unless there is one weight per edge.
    pub fn with_weights(mut self, weights: Vec<f32>) -> Self {
        assert_eq!(weights.len(), self.indices.len(), "one weight per edge");
        self.weights = Some(weights.into());
        self
    }

    /// Returns the same topology with edge types.
    ///
    /// # Panics
    /// Unless there is one type per edge.
    pub fn with_edge_types(mut self, types: Vec<u16>) -> Self {
        assert_eq!(types.len(), self.indices.len(), "one type per edge");
        self.edge_types = Some(types.into());
        self
    }

    /// Returns the same topology with edge splits, see [`split`](super::split).
    ///
    /// # Panics
    /// Unless there is one split per edge.
    pub fn with_splits(mut self, splits: Vec<u8>) -> Self {
        assert_eq!(splits.len(), self.indices.len(), "one split per edge");
        self.splits = Some(splits.into());
        self
    }

    /// Returns the same topology with edge features, row by row.
    ///
    /// # Panics
    /// Unless there are `width` values per edge.
    pub fn with_edge_features(mut self, values: Vec<f32>, width: usize) -> Self {
        assert_eq!(values.len(), self.indices.len() * width, "one row per edge");
        self.features = Some((values.into(), width));
        self
    }

    /// Reads the columns of `topology.arrow`. If `check`, compares every value with the manifest.
    pub(super) fn from_batch(
        batch: &RecordBatch,
        path: &Path,
        columns: &EdgeColumns,
        num_nodes: u64,
        check: bool,
    ) -> Result<Self> {
        let neighbors: LargeListArray = column(batch, path, names::NEIGHBORS)?;
        let indptr = neighbors.offsets().inner().clone();
        let edges = indptr[indptr.len() - 1];
        let damaged = |reason: String| Error::Damaged { path: path.to_path_buf(), reason };
        let values = |name: &str| -> Result<_> {
            let list: LargeListArray = column(batch, path, name)?;
            let valid = list.offsets().inner() == &indptr && list.values().len() as i64 == edges;
            valid.then(|| list.values().clone()).ok_or_else(|| damaged(format!("column \"{name}\" is truncated")))
        };
        if indptr[0] != 0 {
            return Err(damaged("its first offset is not 0".into()));
        }
        let indices = primitive::<UInt32Type>(&values(names::NEIGHBORS)?, path, names::NEIGHBORS)?;
        if check {
            check_indices(&indices, num_nodes).map_err(damaged)?;
        }
        let weights = columns.weight.then(|| primitive::<Float32Type>(&values(names::WEIGHT)?, path, names::WEIGHT));
        let edge_types = match &columns.edge_type {
            Some(info) => {
                let types = primitive::<UInt16Type>(&values(names::EDGE_TYPE)?, path, names::EDGE_TYPE)?;
                if check && let Some(found) = types.iter().find(|&&found| u32::from(found) >= info.count) {
                    return Err(damaged(format!("type {found} is not among the {} types of edges", info.count)));
                }
                Some(types)
            }
            None => None,
        };
        let times = columns.time.then(|| primitive::<Int64Type>(&values(names::TIME)?, path, names::TIME));
        let splits = match columns.split {
            Some(_) => {
                let splits = primitive::<UInt8Type>(&values(names::SPLIT)?, path, names::SPLIT)?;
                if check && let Some(which) = splits.iter().find(|&&which| which > split::TEST) {
                    return Err(damaged(format!("{which} is not a split")));
                }
                Some(splits)
            }
            None => None,
        };
        let labels = match &columns.label {
            Some(info) => {
                let labels = primitive::<Int32Type>(&values(names::LABEL)?, path, names::LABEL)?;
                let classes = -1..i64::from(info.classes);
                if check && labels.iter().any(|&label| !classes.contains(&i64::from(label))) {
                    return Err(damaged(format!("a label is not among the {} classes", info.classes)));
                }
                Some(labels)
            }
            None => None,
        };
        let features = (columns.features > 0).then(|| {
            let lists = values(names::FEATURES)?;
            let lists = lists.as_any().downcast_ref::<FixedSizeListArray>();
            let rows = lists.filter(|lists| lists.value_length() as usize == columns.features);
            let rows = rows.ok_or_else(|| damaged(format!("column \"{}\" has the wrong width", names::FEATURES)))?;
            Ok((primitive::<Float32Type>(rows.values(), path, names::FEATURES)?, columns.features))
        });
        Ok(Self {
            indptr,
            indices,
            weights: weights.transpose()?,
            edge_types,
            times: times.transpose()?,
            splits,
            labels,
            features: features.transpose()?,
        })
    }

    /// Number of core nodes.
    pub fn num_nodes(&self) -> usize {
        self.indptr.len() - 1
    }

    /// Number of in-edges of the core nodes.
    pub fn num_edges(&self) -> u64 {
        self.indices.len() as u64
    }

    /// The edges of local node `v` are `indptr[v]..indptr[v + 1]`.
    #[inline]
    pub fn indptr(&self) -> &[i64] {
        &self.indptr
    }

    /// Global id of each edge's source.
    #[inline]
    pub fn indices(&self) -> &[u32] {
        &self.indices
    }

    /// Global ids of the in-neighbors of local node `local`, ascending.
    #[inline]
    pub fn neighbors(&self, local: usize) -> &[u32] {
        &self.indices[self.edge_range(local)]
    }

    /// Positions of the in-edges of local node `local` in all columns of edges.
    #[inline]
    pub fn edge_range(&self, local: usize) -> std::ops::Range<usize> {
        self.indptr[local] as usize..self.indptr[local + 1] as usize
    }

    /// Number of in-edges of local node `local`.
    #[inline]
    pub fn degree(&self, local: usize) -> usize {
        (self.indptr[local + 1] - self.indptr[local]) as usize
    }

    /// Weight of each edge.
    pub fn weights(&self) -> Option<&[f32]> {
        self.weights.as_deref()
    }

    /// Type of each edge.
    pub fn edge_types(&self) -> Option<&[u16]> {
        self.edge_types.as_deref()
    }

    /// Time of each edge.
    pub fn times(&self) -> Option<&[i64]> {
        self.times.as_deref()
    }

    /// Split of each edge, see [`split`](super::split).
    pub fn splits(&self) -> Option<&[u8]> {
        self.splits.as_deref()
    }

    /// Class of each edge; −1 = unlabeled.
    pub fn labels(&self) -> Option<&[i32]> {
        self.labels.as_deref()
    }

    /// Features of the edges, row by row, and the number of values per row.
    pub fn edge_features(&self) -> Option<(&[f32], usize)> {
        self.features.as_ref().map(|(values, width)| (&values[..], *width))
    }
}

fn check_indices(indices: &[u32], num_nodes: u64) -> std::result::Result<(), String> {
    use rayon::prelude::*;
    let largest = indices.par_chunks(1 << 16).map(|chunk| chunk.iter().fold(0, |max, &i| max.max(i))).max();
    match largest {
        Some(largest) if u64::from(largest) >= num_nodes => {
            Err(format!("an edge comes from node {largest}, but there are {num_nodes} nodes"))
        }
        _ => Ok(()),
    }
}

fn primitive<T: ArrowPrimitiveType>(array: &dyn Array, path: &Path, name: &str) -> Result<ScalarBuffer<T::Native>> {
    let array = array.as_any().downcast_ref::<PrimitiveArray<T>>().filter(|array| array.null_count() == 0);
    array.map(|array| array.values().clone()).ok_or_else(|| Error::Damaged {
        path: path.to_path_buf(),
        reason: format!("column \"{name}\" is not of type {}", T::DATA_TYPE),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_refuses_invalid_arrays() {
        for (indptr, indices, nodes) in [
            (vec![], vec![], 1),
            (vec![1, 1], vec![0], 1),
            (vec![0, 2, 1], vec![0], 1),
            (vec![0, 1], vec![0, 0], 1),
            (vec![0, 1], vec![7], 7),
        ] {
            assert!(Topology::new(indptr, indices, nodes).is_err());
        }
        assert_eq!(Topology::new(vec![0], vec![], 0).unwrap().num_nodes(), 0);
    }
}
