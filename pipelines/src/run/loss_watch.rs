//! Watches the loss of a run.

use crate::error::Error;

/// A loss that grows to more than this many times the loss of the first epoch explodes.
const EXPLODED: f64 = 100.0;

/// A cross-entropy above this is far from that of a random guess, which is at most 17 for 2²⁴ classes.
const FAR_FROM_RANDOM: f64 = 1000.0;

/// Watches the loss of the epochs of a run.
#[derive(Debug)]
pub(super) struct LossWatch {
    cross_entropy: bool,
    first: Option<f64>,
    warned: bool,
}

impl LossWatch {
    pub(super) fn new(cross_entropy: bool) -> Self {
        Self { cross_entropy, first: None, warned: false }
    }

    /// Checks a loss of `epoch`.
    ///
    /// # Errors
    /// If the loss is not finite.
    pub(super) fn check_finite(&self, epoch: usize, loss: f64) -> Result<(), Error> {
        if loss.is_finite() {
            return Ok(());
        }
        let advice = "lower train.optimizer.lr, or scale the features (graph.normalize_features)";
        Err(Error::Input(format!("the loss of epoch {epoch} is {loss}; {advice}")))
    }

    /// Returns a warning when the loss of `epoch` is the first that is much larger than that of the first epoch, or than any
    /// cross-entropy of a random guess.
    ///
    /// # Errors
    /// If the loss is not finite.
    pub(super) fn check(&mut self, epoch: usize, loss: f64) -> Result<Option<String>, Error> {
        self.check_finite(epoch, loss)?;
        let first = *self.first.get_or_insert(loss);
        let grew = loss > EXPLODED * first.abs();
        let far = self.cross_entropy && loss > FAR_FROM_RANDOM;
        if self.warned || !(grew || far) {
            return Ok(None);
        }
        self.warned = true;
        let what = match grew {
            true => format!("the loss grew from {first:.4} to {loss:.4e} in epoch {epoch}"),
            false => format!("the loss of epoch {epoch} is {loss:.4e}, far above that of a random guess"),
        };
        let advice = "lower train.optimizer.lr, set train.clip_norm, or scale the features (graph.normalize_features)";
        Ok(Some(format!("{what}; {advice}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exploding_loss_is_reported_once() {
        let mut watch = LossWatch::new(true);
        assert_eq!(watch.check(1, 2.0).unwrap(), None);
        assert_eq!(watch.check(2, 200.0).unwrap(), None);
        let warning = watch.check(3, 4e9).unwrap().unwrap();
        assert!(
            warning.starts_with("the loss grew from 2.0000 to 4.0000e9 in epoch 3; lower train.optimizer.lr"),
            "{warning}"
        );
        assert_eq!(watch.check(4, 5e9).unwrap(), None);
        let mut watch = LossWatch::new(true);
        let warning = watch.check(1, 4e18).unwrap().unwrap();
        assert!(warning.starts_with("the loss of epoch 1 is 4.0000e18, far above that of a random guess"), "{warning}");
        assert_eq!(LossWatch::new(false).check(1, 4e18).unwrap(), None);
        assert!(watch.check(5, f64::NAN).unwrap_err().to_string().starts_with("the loss of epoch 5 is NaN"));
    }
}
