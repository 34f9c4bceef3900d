//! Node degrees for streaming methods.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use gnnflow_data::{GraphStream, Result};

/// Source of the degrees. A degree is a number of edge ends: both directions, duplicates, and two per self loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Degrees {
    /// Counted by an additional pass over the edges, on all threads.
    #[default]
    Exact,
    /// The degree so far in the stream. Saves a pass, but early decisions use little information.
    Online,
}

impl Degrees {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Online => "online",
        }
    }

    /// Returns the initial degrees: exact ones, or all zero.
    pub(super) fn begin(self, graph: &dyn GraphStream) -> Result<Vec<u32>> {
        match self {
            Self::Exact => exact(graph),
            Self::Online => Ok(vec![0; graph.num_nodes() as usize]),
        }
    }
}

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
    fn degree_equals_the_number_of_edge_ends() {
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
