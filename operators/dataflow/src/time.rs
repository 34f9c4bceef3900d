//! Timestamps: `(epoch, step)` packed into a `u64`, totally ordered.

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
