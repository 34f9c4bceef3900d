//! Neighborhoods of nodes in the graph of all workers.
//!
//! - [`reached`]: the rows that a change of nodes reaches, along the edges;
//! - [`read`]: the rows that results of nodes are computed from, against the edges.

pub(crate) mod reached;
pub(crate) mod read;
pub(crate) mod search;

use gnnflow_nn::model::Stage;

/// Returns which stages' rows count as rows of layers: those of stages that read neighbors, which take most of the time; those of all stages if
/// none does.
pub(crate) fn layers(stages: &[Stage]) -> Vec<usize> {
    let read = (0..stages.len()).filter(|&stage| stages[stage].edges).collect::<Vec<_>>();
    if read.is_empty() { (0..stages.len()).collect() } else { read }
}

#[cfg(test)]
mod tests;
