//! The rows of ghosts in a table, by the worker that sends them.

use std::ops::Range;

use gnnflow_dataflow::ghost::Links;
use gnnflow_dataflow::wire::Header;

/// Returns, by worker, the first row of its ghosts in the table of `links`. `starts` are the workers' first nodes, which have `slots` rows each.
pub(super) fn first_rows(links: &Links, starts: &[u32], slots: u32) -> Vec<usize> {
    let own = links.table().len();
    starts.iter().map(|&start| own + links.ghosts().partition_point(|&id| id < start * slots)).collect()
}

/// Returns the rows of a message whose sender's ghosts begin at `ghosts[sender]`.
pub(super) fn rows_at(ghosts: &[usize], header: Header) -> Range<usize> {
    let first = ghosts[header.from as usize] + header.seq as usize;
    first..first + header.aux as usize
}
