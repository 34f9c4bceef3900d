//! Watches the loss of a run.

use crate::error::Error;

/// A loss that grows to more than this many times the loss of the first epoch explodes.
const EXPLODED: f64 = 100.0;

/// Watches the loss of the epochs of a run.
#[derive(Debug, Default)]
pub(super) struct LossWatch {
    first: Option<f64>,
    warned: bool,
}

impl LossWatch {
    /// Returns a warning when the loss of `epoch` is the first that is much larger than that of the first epoch.
    ///
    /// # Errors
    /// If the loss is not finite.
    pub(super) fn check(&mut self, epoch: usize, loss: f64) -> Result<Option<String>, Error> {
        if !loss.is_finite() {
            let message = format!(
                "the loss of epoch {epoch} is {loss}; lower train.optimizer.lr, or scale the features \
                 (graph.normalize_features)"
            );
            return Err(Error::Input(message));
        }
        let first = *self.first.get_or_insert(loss);
        if self.warned || loss <= EXPLODED * first.abs() {
            return Ok(None);
        }
        self.warned = true;
        Ok(Some(format!(
            "the loss grew from {first:.4} to {loss:.4e} in epoch {epoch}; lower train.optimizer.lr, set train.clip_norm, or scale \
             the features (graph.normalize_features)"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exploding_loss_is_reported_once() {
        let mut watch = LossWatch::default();
        assert_eq!(watch.check(1, 2.0).unwrap(), None);
        assert_eq!(watch.check(2, 200.0).unwrap(), None);
        let warning = watch.check(3, 4e9).unwrap().unwrap();
        assert!(
            warning.starts_with("the loss grew from 2.0000 to 4.0000e9 in epoch 3; lower train.optimizer.lr"),
            "{warning}"
        );
        assert_eq!(watch.check(4, 5e9).unwrap(), None);
        assert!(watch.check(5, f64::NAN).unwrap_err().to_string().starts_with("the loss of epoch 5 is NaN"));
    }
}
