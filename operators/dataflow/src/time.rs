//! Timestamps: `(epoch, step)`, totally ordered, packed into timely's `u64`.

/// The timestamp of `step` in `epoch`.
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

/// The epoch of a timestamp.
pub const fn epoch(tick: u64) -> u32 {
    (tick >> 32) as u32
}

/// The step of a timestamp within its epoch.
pub const fn step(tick: u64) -> u32 {
    tick as u32
}
