//! The program around a run: what it gives to every worker, and what it is told.

pub(crate) mod job;
pub(crate) mod registry;
