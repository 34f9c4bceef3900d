//! A topology without a batch's excluded edges.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use super::Neighbors;
use crate::compact::IdHasher;

/// All parallel edges of one type between two nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EdgeName {
    /// Destination.
    pub to: u32,
    /// Source.
    pub from: u32,
    /// Type; ignored if the topology has no edge types.
    pub edge_type: u16,
}

/// The edges that are hidden from a batch: those that it predicts.
///
/// ```
/// use gnnflow_kernels::sample::{EdgeName, Excluded};
///
/// let name = |to, from| EdgeName { to, from, edge_type: 0 };
/// let excluded = Excluded::new(vec![name(4, 1), name(1, 4), name(4, 1)]);
/// assert_eq!(excluded.into_node(4), [name(4, 1)]);
/// assert!(excluded.into_node(2).is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excluded(Vec<EdgeName>);

impl Excluded {
    /// Builds the set from edges in any order.
    pub fn new(mut edges: Vec<EdgeName>) -> Self {
        edges.sort_unstable();
        edges.dedup();
        Self(edges)
    }

    /// Returns whether there are no excluded edges.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all excluded edges in ascending order.
    pub fn edges(&self) -> &[EdgeName] {
        &self.0
    }

    /// Returns the excluded edges with destination `node`.
    pub fn into_node(&self, node: u32) -> &[EdgeName] {
        let first = self.0.partition_point(|edge| edge.to < node);
        let count = self.0[first..].iter().take_while(|edge| edge.to == node).count();
        &self.0[first..first + count]
    }
}

/// A topology without the edges excluded from a batch. Sampling gives the results of a graph without these edges.
///
/// Only rows with excluded edges are copied. Rows must be in ascending order.
pub struct Without<'t, N> {
    topology: &'t N,
    rows: HashMap<u32, Row, BuildHasherDefault<IdHasher>>,
}

/// A row without its excluded edges.
struct Row {
    sources: Vec<u32>,
    weights: Option<Vec<f32>>,
    types: Option<Vec<u16>>,
    times: Option<Vec<i64>>,
    /// Positions of the remaining edges in the complete row.
    positions: Vec<u32>,
}

impl<'t, N: Neighbors> Without<'t, N> {
    /// Creates a view of `topology` without the `excluded` edges whose destinations are `held` here.
    pub fn new(topology: &'t N, excluded: &Excluded, held: impl Fn(u32) -> bool) -> Self {
        let groups = excluded.edges().chunk_by(|a, b| a.to == b.to).filter(|edges| held(edges[0].to));
        let rows = groups.filter_map(|edges| Some((edges[0].to, Row::new(topology, edges)?)));
        Self { topology, rows: rows.collect() }
    }
}

impl Row {
    /// Copies the row of a node without `edges`, whose destination must be the node. Returns `None` if it contains none
    /// of them.
    fn new<N: Neighbors>(topology: &N, edges: &[EdgeName]) -> Option<Self> {
        let node = edges[0].to;
        let (row, types) = (topology.neighbors(node), topology.edge_types(node));
        let mut excluded = Vec::new();
        for edge in edges {
            let first = row.partition_point(|&source| source < edge.from);
            let parallel = row[first..].iter().take_while(|&&source| source == edge.from).count();
            let same_type = |at: &usize| types.is_none_or(|types| types[*at] == edge.edge_type);
            excluded.extend((first..first + parallel).filter(same_type).map(|at| at as u32));
        }
        if excluded.is_empty() {
            return None;
        }
        excluded.sort_unstable();
        let mut excluded = excluded.into_iter().peekable();
        let positions: Vec<u32> = (0..row.len() as u32)
            .filter(|at| {
                while excluded.next_if(|edge| edge < at).is_some() {}
                excluded.peek() != Some(at)
            })
            .collect();
        fn pick<T: Copy>(positions: &[u32], column: &[T]) -> Vec<T> {
            positions.iter().map(|&at| column[at as usize]).collect()
        }
        Some(Self {
            sources: pick(&positions, row),
            weights: topology.edge_weights(node).map(|column| pick(&positions, column)),
            types: types.map(|column| pick(&positions, column)),
            times: topology.edge_times(node).map(|column| pick(&positions, column)),
            positions,
        })
    }
}

impl<N: Neighbors> Neighbors for Without<'_, N> {
    #[inline]
    fn neighbors(&self, node: u32) -> &[u32] {
        self.rows.get(&node).map_or_else(|| self.topology.neighbors(node), |row| &row.sources)
    }

    #[inline]
    fn edge_offset(&self, node: u32) -> u64 {
        self.topology.edge_offset(node)
    }

    #[inline]
    fn edge_id(&self, node: u32, at: usize) -> u64 {
        self.topology.edge_id(node, self.rows.get(&node).map_or(at, |row| row.positions[at] as usize))
    }

    #[inline]
    fn edge_weights(&self, node: u32) -> Option<&[f32]> {
        self.rows.get(&node).map_or_else(|| self.topology.edge_weights(node), |row| row.weights.as_deref())
    }

    #[inline]
    fn edge_types(&self, node: u32) -> Option<&[u16]> {
        self.rows.get(&node).map_or_else(|| self.topology.edge_types(node), |row| row.types.as_deref())
    }

    #[inline]
    fn edge_times(&self, node: u32) -> Option<&[i64]> {
        self.rows.get(&node).map_or_else(|| self.topology.edge_times(node), |row| row.times.as_deref())
    }

    #[inline]
    fn prefetch(&self, node: u32) {
        self.topology.prefetch(node);
    }
}
