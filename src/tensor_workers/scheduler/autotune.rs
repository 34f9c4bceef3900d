//! The number of tensor workers in use (Dorylus, section 6: autotuning the number of Lambdas).
//!
//! Results wait in a queue for the compute thread, which aggregates and writes rows. If the queue grows, there are too many
//! workers; if it shrinks or is empty, too few.

/// Maximum initial number.
const MAX_INITIAL: usize = 100;
/// Results between two adjustments.
const PERIOD: usize = 16;

/// Adjusts the number of workers to the length of the queue.
#[derive(Clone, Debug)]
pub(crate) struct Autotuner {
    number: usize,
    limit: usize,
    recorded: usize,
    sum: usize,
    /// Mean length of the queue in the last period.
    last_mean: Option<f64>,
}

impl Autotuner {
    /// Begins with `min(intervals, 100)` workers, at most `limit`.
    pub(crate) fn new(intervals: usize, limit: usize) -> Self {
        Self { number: intervals.clamp(1, MAX_INITIAL), limit: limit.max(1), recorded: 0, sum: 0, last_mean: None }
    }

    /// Raises the number of workers that exist to `limit`.
    pub(crate) fn raise_limit(&mut self, limit: usize) {
        self.limit = self.limit.max(limit);
    }

    /// Returns the number of workers to use.
    pub(crate) fn number(&self) -> usize {
        self.number.min(self.limit)
    }

    /// Records the length of the queue at the time of a result, and adjusts the number once per period.
    pub(crate) fn record(&mut self, queue: usize) {
        (self.recorded, self.sum) = (self.recorded + 1, self.sum + queue);
        if self.recorded < PERIOD {
            return;
        }
        let mean = self.sum as f64 / self.recorded as f64;
        (self.recorded, self.sum) = (0, 0);
        let before = self.last_mean.replace(mean);
        let short = mean < 1.0;
        match before {
            _ if short => self.number = (self.number() + 1).max(self.number),
            Some(before) if mean > before * 1.25 + 0.5 => self.number = (self.number() - 1).max(1),
            Some(before) if mean < before * 0.75 - 0.5 => self.number = (self.number() + 1).max(self.number),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_period(tuner: &mut Autotuner, queue: usize) -> usize {
        (0..PERIOD).for_each(|_| tuner.record(queue));
        tuner.number()
    }

    #[test]
    fn number_begins_with_the_intervals_and_stays_below_the_limit() {
        assert_eq!(Autotuner::new(3, 8).number(), 3);
        assert_eq!(Autotuner::new(500, 800).number(), 100);
        assert_eq!(Autotuner::new(500, 4).number(), 4);
        assert_eq!(Autotuner::new(0, 0).number(), 1);
        let mut tuner = Autotuner::new(3, 0);
        tuner.raise_limit(2);
        assert_eq!(tuner.number(), 2, "workers that come later are used immediately, up to the number of intervals");
        tuner.raise_limit(9);
        assert_eq!(tuner.number(), 3);
    }

    #[test]
    fn number_falls_while_the_queue_grows_and_rises_while_it_shrinks() {
        let mut tuner = Autotuner::new(4, 6);
        assert_eq!(run_period(&mut tuner, 4), 4, "there is no earlier period");
        assert_eq!(run_period(&mut tuner, 8), 3);
        assert_eq!(run_period(&mut tuner, 20), 2);
        assert_eq!(run_period(&mut tuner, 20), 2, "the queue has kept its length");
        assert_eq!(run_period(&mut tuner, 5), 3);
        assert_eq!(run_period(&mut tuner, 0), 4);
        assert_eq!((0..9).map(|_| run_period(&mut tuner, 0)).last(), Some(6), "at most the limit");
        for queue in [10, 20, 40, 80, 160, 320, 640] {
            run_period(&mut tuner, queue);
        }
        assert_eq!(tuner.number(), 1, "at least one");
    }
}
