//! Partition methods: which node goes to which part.
//!
//! One file per method; each implements [`Partitioner`](gnnflow_data::Partitioner).

mod counters;
mod random;
mod range;

pub use counters::Counters;
pub use random::Random;
pub use range::Range;

/// The part of position `i` when `n` positions are cut into `parts` consecutive pieces whose sizes differ by at most one.
fn piece(i: u64, n: u64, parts: u32) -> u32 {
    (u128::from(i) * u128::from(parts) / u128::from(n)) as u32
}
