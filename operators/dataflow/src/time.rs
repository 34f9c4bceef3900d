//! Timestamps: `(epoch, step)` packed into a `u64`, totally ordered.

use timely::dataflow::operators::{Capability, InputCapability};
use timely::progress::Timestamp;

/// Returns the timestamp of `step` in `epoch`.
///
/// ```
/// use gnnflow_dataflow::time;
///
/// assert!(time::at(1, 0) > time::at(0, u32::MAX));
/// assert_eq!((time::epoch(time::at(3, 9)), time::step(time::at(3, 9))), (3, 9));
/// ```
pub const fn at(epoch: u32, step: u32) -> u64 {
    ((epoch as u64) << 32) | step as u64
}

/// Returns the epoch of a timestamp.
pub const fn epoch(time: u64) -> u32 {
    (time >> 32) as u32
}

/// Returns the step of a timestamp within its epoch.
pub const fn step(time: u64) -> u32 {
    time as u32
}

/// Returns a timestamp as a text for messages: `(3, 17)`.
pub fn text(time: u64) -> String {
    format!("({}, {})", epoch(time), step(time))
}

/// The time of a received message. timely can send a message at several times; gnnflow's operators send each at one.
///
/// Implemented by the [`InputCapability`] that an operator's input gives with each message.
pub trait MessageTime<T: Timestamp> {
    /// Returns the time of the message.
    ///
    /// # Panics
    /// If the message was sent at several times or at none.
    fn time(&self) -> &T;

    /// Returns a capability with which the operator can send at the time of the message after it has returned. `output` is the index
    /// of the output.
    ///
    /// # Panics
    /// If the message was sent at several times or at none.
    fn retain(&self, output: usize) -> Capability<T>;
}

impl<T: Timestamp> MessageTime<T> for InputCapability<T> {
    fn time(&self) -> &T {
        self.stamp().expect_singleton()
    }

    fn retain(&self, output: usize) -> Capability<T> {
        self.delayed(self.time(), output)
    }
}
