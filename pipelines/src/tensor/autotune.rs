//! How many tensor workers are given tasks (Dorylus, section 6: autotuning numbers of Lambdas).
//!
//! What they send back waits in a queue for the compute thread, which adds up rows and writes. A queue that grows says that
//! they are too many for it, one that shrinks or is empty that they are too few.

/// How many to begin with at most, whatever there is to do.
const FIRST: usize = 100;
/// Answers between two looks at the queue.
const LOOK: usize = 16;

/// Follows the length of the queue.
#[derive(Clone, Debug)]
pub(crate) struct Autotuner {
    number: usize,
    most: usize,
    seen: usize,
    sum: usize,
    before: Option<f64>,
}

impl Autotuner {
    /// Begins with `min(intervals, 100)`, of `most` that there are.
    pub(crate) fn new(intervals: usize, most: usize) -> Self {
        Self { number: intervals.clamp(1, FIRST), most: most.max(1), seen: 0, sum: 0, before: None }
    }

    /// There are so many now, where there were fewer.
    pub(crate) fn widen(&mut self, most: usize) {
        self.most = self.most.max(most);
    }

    /// How many there should be.
    pub(crate) fn number(&self) -> usize {
        self.number.min(self.most)
    }

    /// An answer has come, and so many jobs are in the queue.
    pub(crate) fn see(&mut self, queue: usize) {
        (self.seen, self.sum) = (self.seen + 1, self.sum + queue);
        if self.seen < LOOK {
            return;
        }
        let mean = self.sum as f64 / self.seen as f64;
        (self.seen, self.sum) = (0, 0);
        let before = self.before.replace(mean);
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

    fn look(tuner: &mut Autotuner, queue: usize) -> usize {
        (0..LOOK).for_each(|_| tuner.see(queue));
        tuner.number()
    }

    #[test]
    fn it_begins_with_as_many_as_there_are_intervals() {
        assert_eq!(Autotuner::new(3, 8).number(), 3);
        assert_eq!(Autotuner::new(500, 800).number(), 100);
        assert_eq!(Autotuner::new(500, 4).number(), 4);
        assert_eq!(Autotuner::new(0, 0).number(), 1);
        let mut tuner = Autotuner::new(3, 0);
        tuner.widen(2);
        assert_eq!(tuner.number(), 2, "who comes later is in use at once, as far as there are intervals");
        tuner.widen(9);
        assert_eq!(tuner.number(), 3);
    }

    #[test]
    fn a_queue_that_grows_wants_fewer_and_one_that_shrinks_more() {
        let mut tuner = Autotuner::new(4, 6);
        assert_eq!(look(&mut tuner, 4), 4, "nothing to compare with");
        assert_eq!(look(&mut tuner, 8), 3);
        assert_eq!(look(&mut tuner, 20), 2);
        assert_eq!(look(&mut tuner, 20), 2, "it stays as it is");
        assert_eq!(look(&mut tuner, 5), 3);
        assert_eq!(look(&mut tuner, 0), 4);
        assert_eq!((0..9).map(|_| look(&mut tuner, 0)).last(), Some(6), "no more than there are");
        for queue in [10, 20, 40, 80, 160, 320, 640] {
            look(&mut tuner, queue);
        }
        assert_eq!(tuner.number(), 1, "no fewer than one");
    }
}
