//! The rows that results of some nodes are computed from, by stage of the model.

use std::borrow::Cow;

use gnnflow_dataflow::graph::local_graph::LocalGraph;
use gnnflow_dataflow::sample::own_samples::OwnSamples;
use gnnflow_nn::model::Stage;

use super::search::Search;
use crate::collectives::{Collectives, Driver};
use crate::error::Error;

/// Returns, for each stage, the nodes of this worker whose rows the results of `nodes` are computed from, ascending: along all edges of the graph, or
/// along the samples of each stage. Each worker gives its own nodes, ascending. A collective operation.
///
/// # Errors
/// If the program ends the run.
pub(crate) fn rows_read(
    driver: &mut Driver<'_>,
    collectives: &mut Collectives,
    (graph, samples): (&LocalGraph, Option<&[Option<OwnSamples>]>),
    stages: &[Stage],
    nodes: &[u32],
) -> Result<Vec<Vec<u32>>, Error> {
    let mut search = Search::new(graph);
    search.found.insert_all(nodes);
    let (mut fresh, mut by_stage) = (nodes.to_vec(), vec![nodes.to_vec()]);
    // A stage reads rows of the stage before: of its nodes and, if it has edges, of their in-neighbors. So the sets grow from the last stage to
    // the first, and have all rows of earlier stages that a stage reads of its own nodes.
    for (at, stage) in stages.iter().enumerate().skip(1).rev() {
        let mut rows = by_stage.last().cloned().unwrap_or_default();
        if stage.edges {
            fresh = match samples.and_then(|samples| samples[at].as_ref()) {
                // In-neighbors of the others were found for a later stage.
                None => search.in_neighbors(driver, collectives, &fresh)?,
                // A stage has its own samples of all its nodes.
                Some(samples) => {
                    let sources = |node| Cow::Owned(samples.sources(node));
                    search.sources_of(driver, collectives, &rows, &sources)?
                }
            };
            rows.extend_from_slice(&fresh);
            rows.sort_unstable();
        }
        by_stage.push(rows);
    }
    by_stage.reverse();
    Ok(by_stage)
}
