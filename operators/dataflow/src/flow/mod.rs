//! Control of the flow of items: gates, barriers, permits, calls to other workers, work on other threads.

pub mod advance_times;
pub mod barrier;
pub mod compute_thread;
pub mod gate;
pub mod in_order;
pub mod map_async;
pub mod on_frontier;
pub mod permits;
pub mod rpc;
pub mod waits;
