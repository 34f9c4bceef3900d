//! The scheduler of a graph worker's tensor workers (Dorylus, section 6).
//!
//! Assigns node tasks to workers in calls, times every call, gives late tasks to a second worker, drops workers that fail,
//! restarts launched workers, accepts workers that register, and tunes the number of workers in use.
//!
//! It knows tensor workers by two traits only ([`workers`]).

mod autotune;
mod calls;
mod queue;
mod result_shapes;
mod task_scheduler;
mod workers;

pub(super) use task_scheduler::TaskScheduler;
pub(super) use workers::{RegistryEvent, Retry, TaskRequest, TensorWorker, WorkerPool};
