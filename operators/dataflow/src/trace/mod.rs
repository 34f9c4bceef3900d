//! Records what the threads of a process do, and for how long.
//!
//! Chrome's trace format and Perfetto show such records as one line per thread.

pub mod causes;
pub mod counter;
pub mod overlap;
pub mod permits;
pub mod pool;
pub mod spans;
pub mod thread_group;
pub mod worker;
