//! Keeping workers together: ordered sums, gates, work beside the worker.

pub mod admit;
pub mod all_reduce;
pub mod background;
pub mod barrier;
pub mod hold;
pub mod in_order;
pub mod later;
pub mod retime;
pub mod round_trip;
pub mod when_passed;
