//! Full-graph training by nodes (Dorylus): each worker keeps the whole rows of its own nodes and copies of their neighbors' rows, the
//! ghosts.

pub(crate) mod ghost_edges;
pub(crate) mod mirrors;
