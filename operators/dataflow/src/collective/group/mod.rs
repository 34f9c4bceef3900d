//! The process group that prepares a dataset, as dataflows.
//!
//! Every pass over the dump is one dataflow with timestamps `(unit, chunk)`:
//!
//! ```text
//! reading threads ⇒ units ──► messages to their processes ──► deliver ⇒ consumer     frontier ──► bound of reading ahead
//! ```
//!
//! `units` emits the messages of the reading threads, and `deliver` orders them by unit. The capability of a message is
//! held until the message is consumed. So the frontier is the progress of *all* processes, and each process reads only
//! a few messages ahead of it.

mod deliver;
#[cfg(test)]
mod tests;
mod units;
mod worker_group;

pub use worker_group::{LoopState, WorkerGroup};

/// The timestamp of a chunk of a unit.
fn pack_time(unit: usize, chunk: u32) -> u64 {
    (unit as u64) << 32 | u64::from(chunk)
}

/// The unit and the chunk of a timestamp.
fn unpack_time(time: u64) -> (usize, u32) {
    ((time >> 32) as usize, time as u32)
}

/// Messages of a process to itself. They are not encoded; an empty block is sent for each.
type LocalMessages<T> = std::rc::Rc<std::cell::RefCell<std::collections::VecDeque<T>>>;
