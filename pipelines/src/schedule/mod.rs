//! Training schedules, one a file, and exact inference.

pub(crate) mod inference;
pub(crate) mod mini_batch;
