//! How long training will take.

use std::time::Instant;

/// The time of training so far.
#[derive(Clone, Debug, Default)]
pub(super) struct TrainingClock {
    /// Epochs of the run.
    pub(super) epochs: usize,
    /// The first epoch that this process trains, and when it began.
    first: Option<(usize, Instant)>,
    /// The last epoch that has ended, and when.
    last: Option<(usize, Instant)>,
}

impl TrainingClock {
    pub(super) fn begin(&mut self, epoch: usize) {
        self.first.get_or_insert((epoch, Instant::now()));
    }

    pub(super) fn end(&mut self, epoch: usize) {
        self.last = Some((epoch, Instant::now()));
    }

    /// Estimates the seconds until the last epoch ends, if all epochs take equally long. `share` of the current epoch is done, if that is known; it
    /// counts only until the first epoch has ended.
    pub(super) fn remaining(&self, share: Option<f64>) -> Option<f64> {
        let (first, begun) = self.first?;
        let (per_epoch, left, since) = match self.last {
            Some((last, ended)) => {
                let trained = (last + 1).checked_sub(first).filter(|&trained| trained > 0)?;
                let per_epoch = ended.duration_since(begun).as_secs_f64() / trained as f64;
                (per_epoch, self.epochs.saturating_sub(last), ended)
            }
            None => (begun.elapsed().as_secs_f64() / share?, (self.epochs + 1).saturating_sub(first), begun),
        };
        Some((per_epoch * left as f64 - since.elapsed().as_secs_f64()).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn remaining_time_follows_from_the_epochs_so_far() {
        let ago = |seconds: u64| Instant::now() - Duration::from_secs(seconds);
        let near = |estimate: Option<f64>, expected: f64| {
            assert!(estimate.is_some_and(|estimate| (estimate - expected).abs() < 0.5), "{estimate:?}, {expected}");
        };
        let mut clock = TrainingClock { epochs: 10, ..TrainingClock::default() };
        assert_eq!(clock.remaining(Some(0.5)), None);
        // A resumed run.
        clock.first = Some((5, ago(30)));
        assert_eq!(clock.remaining(None), None);
        near(clock.remaining(Some(0.5)), 6.0 * 60.0 - 30.0);
        clock.last = Some((6, ago(10)));
        near(clock.remaining(Some(0.5)), 4.0 * 10.0 - 10.0);
        clock.last = Some((10, ago(10)));
        assert_eq!(clock.remaining(None), Some(0.0));
    }
}
