//! Several processes that prepare one dataset, as a dataflow.
//!
//! Every pass over the dump is one small dataflow, and its timestamps are `(unit, chunk)`:
//!
//! ```text
//! reading threads ⇒ units ──► messages to their processes ──► deliver ⇒ consumer     frontier ──► bound of reading ahead
//! ```
//!
//! `units` emits the messages of the reading threads; `deliver` orders them by unit. The capability of a message is held until the
//! message has been consumed. So the frontier is the progress of *every* process, and each reads only a few messages ahead of it.

pub mod deliver;
#[cfg(test)]
mod tests;
pub mod units;
mod worker_group;

pub use worker_group::{LoopState, WorkerGroup};

/// The time of chunk `chunk` of unit `unit`.
fn tick(unit: usize, chunk: u32) -> u64 {
    (unit as u64) << 32 | u64::from(chunk)
}

/// Unit and chunk of a time.
fn untick(tick: u64) -> (usize, u32) {
    ((tick >> 32) as usize, tick as u32)
}

/// Messages of a process to itself: they are not encoded, and an empty block announces each.
type Own<T> = std::rc::Rc<std::cell::RefCell<std::collections::VecDeque<T>>>;
