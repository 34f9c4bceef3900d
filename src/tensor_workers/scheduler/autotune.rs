//! The number of tensor workers in use (Dorylus, section 6: autotuning the number of Lambdas).
//!
//! The paper watches the length of a queue. Here, the measure is the value that the paper counts in its results (section 7.1): 1 / (time × cost) of
//! an epoch, or its time if there are no prices. The search compares the best number so far with half and twice as many workers, then with
//! numbers in between. 0 is possible: then the process computes all tasks.

use std::collections::BTreeSet;

/// Maximum initial number.
const MAX_INITIAL: usize = 100;
/// Epochs with one number. The first one does not count: workers connect, and tasks of the epoch before are still in flight.
const EPOCHS: usize = 3;
/// A number replaces the best one if its time × cost is at most this much of the other's.
const BETTER: f64 = 0.98;

/// Searches the number of workers with the smallest time × cost.
#[derive(Clone, Debug)]
pub(crate) struct Autotuner {
    /// The smallest number: 1 if the process computes no tasks.
    least: usize,
    /// Workers that exist.
    limit: usize,
    /// The best number so far. It may exceed the limit.
    best: usize,
    /// Numbers that are worse than `best`.
    worse: BTreeSet<usize>,
    turn: Turn,
    /// Time × cost of the epochs with the number in use.
    measured: Vec<f64>,
}

/// The number in use, and why.
#[derive(Clone, Copy, Debug)]
enum Turn {
    /// The best number is used, to compare others with it.
    Best,
    /// Another number is tried. With the best one, time × cost was `best`.
    Trial { number: usize, best: f64 },
}

impl Autotuner {
    /// Begins with `min(intervals, 100)` workers. The number is at least `least`.
    pub(crate) fn new(intervals: usize, least: usize) -> Self {
        let best = intervals.clamp(1, MAX_INITIAL);
        Self { least, limit: 0, best, worse: BTreeSet::new(), turn: Turn::Best, measured: Vec::new() }
    }

    /// Raises the number of workers that exist to `limit`.
    pub(crate) fn raise_limit(&mut self, limit: usize) {
        self.limit = self.limit.max(limit);
    }

    /// Returns the number of workers to use.
    pub(crate) fn number(&self) -> usize {
        match self.turn {
            Turn::Best => self.best(),
            Turn::Trial { number, .. } => number,
        }
    }

    /// Returns the best number so far.
    pub(crate) fn best(&self) -> usize {
        self.best.min(self.limit)
    }

    /// Records time × cost of an epoch, and changes the number once per [`EPOCHS`].
    pub(crate) fn epoch_ended(&mut self, time_times_cost: f64) {
        self.measured.push(time_times_cost);
        if self.measured.len() < EPOCHS {
            return;
        }
        // The mean: the smallest would be that of an epoch in which, by chance, no task went to a worker.
        let found = self.measured.drain(..).skip(1).sum::<f64>() / (EPOCHS - 1) as f64;
        self.turn = match self.turn {
            Turn::Best => match self.candidate() {
                Some(number) => Turn::Trial { number, best: found },
                None => Turn::Best,
            },
            Turn::Trial { number, best } => {
                let before = self.best();
                let is_better = found <= best * BETTER;
                self.best = if is_better { number } else { self.best };
                self.worse.insert(if is_better { before } else { number });
                Turn::Best
            }
        };
    }

    /// Returns a number that may be better: first a smaller one, then a larger one, until the numbers next to the best are worse. At last, the
    /// least: no worker may be better than few.
    fn candidate(&self) -> Option<usize> {
        let best = self.best();
        let smaller = match self.worse.range(..best).next_back() {
            Some(&worse) => worse.midpoint(best),
            None => best / 2,
        };
        let larger = match self.worse.range(best + 1..).next() {
            Some(&worse) => best.midpoint(worse),
            None => (2 * best).max(1),
        };
        let may_try = |number: &usize| (self.least..=self.limit).contains(number) && *number != best;
        let is_new = |number: &usize| may_try(number) && !self.worse.contains(number);
        [smaller, larger.min(self.limit), self.least].into_iter().find(is_new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the best number after `epochs` epochs whose time × cost depends on the number of workers, and the numbers that were tried.
    fn search(tuner: &mut Autotuner, epochs: usize, score: impl Fn(usize) -> f64) -> (usize, BTreeSet<usize>) {
        let tried = (0..epochs).map(|_| {
            let number = tuner.number();
            tuner.epoch_ended(score(number));
            number
        });
        let tried = tried.collect();
        (tuner.best(), tried)
    }

    fn tuner(intervals: usize, least: usize, limit: usize) -> Autotuner {
        let mut tuner = Autotuner::new(intervals, least);
        tuner.raise_limit(limit);
        tuner
    }

    #[test]
    fn number_begins_with_the_intervals_and_stays_below_the_limit() {
        assert_eq!(tuner(3, 0, 8).number(), 3);
        assert_eq!(tuner(500, 0, 800).number(), 100);
        assert_eq!(tuner(500, 0, 4).number(), 4);
        assert_eq!(tuner(2, 0, 0).number(), 0, "there is no worker");
        let mut tuner = tuner(3, 0, 0);
        tuner.raise_limit(2);
        assert_eq!(tuner.number(), 2, "workers that come later are used immediately, up to the number of intervals");
        tuner.raise_limit(9);
        assert_eq!(tuner.number(), 3);
    }

    #[test]
    fn search_finds_the_best_number() {
        for best in [0, 1, 2, 5, 11, 12] {
            let score = |number: usize| 1.0 + (number as f64 - best as f64).abs();
            let mut tuner = tuner(4, 0, 12);
            assert_eq!(search(&mut tuner, 80, score).0, best);
            assert_eq!(search(&mut tuner, 60, score).1, BTreeSet::from([best]), "the search has ended");
        }
        assert_eq!(search(&mut tuner(4, 1, 12), 80, |number| number as f64).0, 1, "the process computes no tasks");
    }

    #[test]
    fn search_keeps_the_number_if_others_are_not_clearly_better() {
        assert_eq!(search(&mut tuner(4, 0, 8), 80, |number| 1.0 - 0.001 * number as f64).0, 4);
    }

    #[test]
    fn search_compares_epochs_of_the_same_time() {
        // Epochs become shorter, whatever the number is. In each turn, one worker is best.
        let (mut tuner, mut seconds) = (tuner(4, 0, 4), 100.0);
        for _ in 0..60 {
            seconds *= 0.999;
            tuner.epoch_ended(seconds * (1.0 + (tuner.number() as f64 - 1.0).abs()));
        }
        assert_eq!(tuner.best(), 1);
    }

    #[test]
    fn first_epoch_with_a_number_does_not_count() {
        let mut tuner = tuner(4, 0, 4);
        [9.0, 1.0, 1.0].into_iter().for_each(|score| tuner.epoch_ended(score));
        assert_eq!(tuner.number(), 2);
        [0.1, 2.0, 2.0].into_iter().for_each(|score| tuner.epoch_ended(score));
        assert_eq!(tuner.number(), 4);
    }

    #[test]
    fn none_is_tried_even_if_one_is_worse() {
        assert_eq!(search(&mut tuner(4, 0, 4), 80, |number| [1.0, 5.0, 4.0, 3.0, 2.0][number]).0, 0);
    }

    #[test]
    fn all_epochs_after_the_first_count() {
        // With 4 workers, every other epoch happens to cost nothing.
        let (mut tuner, mut epoch) = (tuner(4, 0, 4), 0);
        for _ in 0..40 {
            epoch += 1;
            let cost = if tuner.number() == 4 && epoch % 2 == 0 { 0.0 } else { tuner.number() as f64 };
            tuner.epoch_ended(cost);
        }
        assert_eq!(tuner.best(), 0);
    }

    #[test]
    fn new_workers_are_tried() {
        let mut tuner = tuner(1, 0, 1);
        let score = |number: usize| 1.0 / (1.0 + number as f64);
        assert_eq!(search(&mut tuner, 30, score).0, 1);
        tuner.raise_limit(3);
        assert_eq!(search(&mut tuner, 30, score).0, 3);
    }
}
