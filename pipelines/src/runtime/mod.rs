//! The program around a run: what it gives to every worker, and what it is told.

pub(crate) mod executor;
pub(crate) mod job;
pub(crate) mod records;
pub(crate) mod registry;
pub(crate) mod tensor_task;
