//! Several processes that prepare one dataset, as a dataflow.
//!
//! Every pass over the dump is one small dataflow, and its timestamps are `(unit, chunk)`:
//!
//! ```text
//! reading threads ⇒ units ──► messages to their processes ──► deliver ⇒ consumer     frontier ──► how far ahead may be read
//! ```
//!
//! `units` emits what the threads read, `deliver` hands it on in the order of the units, whoever read them. A message's
//! capability is held until it has been consumed, so the frontier says how far *every* process has come, and nobody reads
//! further ahead of it than a few messages.

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

/// What moves inside one process beside the blocks, which then are mere announcements: messages for oneself need no bytes.
type Own<T> = std::rc::Rc<std::cell::RefCell<std::collections::VecDeque<T>>>;
