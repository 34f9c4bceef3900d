//! Following a graph that changes: the results of each batch of changes, one batch after the other.
//!
//! ```text
//! refresh ──► stored rows of layers = results of the dataset
//!                  │ mapped, changes stay in memory
//!                  ▼
//! CHANGES/NAME ──► LiveGraph ──► reached nodes ──► inference of these nodes ──► OUT/batches/NAME
//!                  │ after some batches
//!                  ▼
//! update of the dataset with all batches since, then the first step again
//! ```
//!
//! **Exactly once.** Between two updates of the dataset, nothing but `OUT` is written. A batch is copied to `OUT/pending` before it is applied. Its
//! results get their name when they are complete, and after that `OUT/applied.txt` has its name. So a process that was killed applies the
//! pending batches again, which gives the same results, and writes those that are missing.

pub(crate) mod batch_queue;
pub(crate) mod follower;
mod place;
pub(crate) mod state;
