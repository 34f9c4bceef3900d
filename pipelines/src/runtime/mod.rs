//! The interface between a run and the program around it.

pub mod executor;
pub(crate) mod job;
pub(crate) mod records;
pub(crate) mod registry;
pub(crate) mod stage;
pub(crate) mod task_sizes;
