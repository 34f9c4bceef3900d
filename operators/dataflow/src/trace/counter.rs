//! A number that changes over time, such as the length of a queue.

use std::time::Duration;

/// Maximum number of values that are kept, of 24 bytes each.
const MOST: usize = 1 << 20;

/// The values of a number over time.
///
/// ```
/// use std::time::Duration;
/// use gnnflow_dataflow::trace::counter::Counter;
///
/// let mut queue = Counter::default();
/// for (ms, length) in [(0, 3), (5, 3), (9, 0)] {
///     queue.add(Duration::from_millis(ms), length);
/// }
/// assert_eq!((queue.mean(), queue.mean_over_time(), queue.max()), (2.0, 3.0, 3));
/// assert_eq!(queue.kept().len(), 2, "a value is kept when it changes");
/// ```
#[derive(Debug, Default)]
pub struct Counter {
    kept: Vec<Value>,
    count: u64,
    sum: u64,
    max: u64,
    last: Option<Value>,
    /// The sum of the values before the last one, each times its nanoseconds.
    area: u128,
    nanoseconds: u128,
    dropped: u64,
}

/// A value, from its time to that of the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// When it was observed.
    pub time: Duration,
    /// The value.
    pub value: u64,
}

impl Counter {
    /// Adds an observation. Its time is not before that of the last one.
    pub fn add(&mut self, time: Duration, value: u64) {
        self.count += 1;
        self.sum += value;
        self.max = self.max.max(value);
        if let Some(last) = self.last.replace(Value { time, value }) {
            let nanoseconds = time.saturating_sub(last.time).as_nanos();
            self.area += u128::from(last.value) * nanoseconds;
            self.nanoseconds += nanoseconds;
        }
        if self.kept.last().is_some_and(|last| last.value == value) {
            return;
        }
        if self.kept.len() == MOST {
            self.dropped += 1;
            return;
        }
        self.kept.push(Value { time, value });
    }

    /// Returns the mean of all observations; 0 if there is none.
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.count.max(1) as f64
    }

    /// Returns the mean from the first to the last observation, each value times its duration; 0 if there are fewer than two.
    pub fn mean_over_time(&self) -> f64 {
        self.area as f64 / self.nanoseconds.max(1) as f64
    }

    /// Returns the largest value; 0 if there is none.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the values that differ from the one before.
    pub fn kept(&self) -> &[Value] {
        &self.kept
    }

    /// Returns the number of values that were not kept because there were too many.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}
