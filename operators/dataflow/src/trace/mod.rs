//! Records what the threads of a process do, and for how long.
//!
//! Chrome's trace format and Perfetto show such records as one line per thread.

pub mod spans;
pub mod worker;
