//! Degrees of nodes, as streaming methods want them.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use gnnflow_data::{GraphStream, Result};

/// Where a method has its degrees from. A node's degree is the number of edge ends at it: directions, duplicates and self loops (two
/// ends) all count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Degrees {
    /// Counted by a pass of their own over the edges, all threads at once.
    #[default]
    Exact,
    /// The degree seen so far: one pass less, and decisions early in the stream that know little.
    Online,
}

impl Degrees {
    /// Its word in settings.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Online => "online",
        }
    }

    /// The degrees to begin with: counted, or all zero.
    pub(super) fn begin(self, graph: &dyn GraphStream) -> Result<Vec<u32>> {
        match self {
            Self::Exact => exact(graph),
            Self::Online => Ok(vec![0; graph.num_nodes() as usize]),
        }
    }
}

/// Exact degrees: 4 bytes a node.
fn exact(graph: &dyn GraphStream) -> Result<Vec<u32>> {
    let cells: Vec<AtomicU32> = std::iter::repeat_with(AtomicU32::default).take(graph.num_nodes() as usize).collect();
    graph.accumulate("counting degrees", &cells, &|edges| {
        for &(src, dst) in edges {
            cells[src as usize].fetch_add(1, Relaxed);
            cells[dst as usize].fetch_add(1, Relaxed);
        }
    })?;
    Ok(cells.into_iter().map(AtomicU32::into_inner).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnnflow_data::testing::graphs;

    #[test]
    fn a_degree_counts_edge_ends() {
        for graph in graphs() {
            let degrees = Degrees::Exact.begin(&graph.stream()).unwrap();
            for node in 0..graph.nodes {
                let ends = graph.edges.iter().flat_map(|&(u, v)| [u, v]).filter(|&end| end == node).count();
                assert_eq!(degrees[node as usize] as usize, ends, "{} {node}", graph.name);
            }
            assert!(Degrees::Online.begin(&graph.stream()).unwrap().iter().all(|&degree| degree == 0));
        }
    }
}
