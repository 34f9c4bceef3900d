//! The default number of epochs.

use super::batch::Batch;
use super::full_graph::FullGraphPlan;
use super::{Sizes, training_sizes};
use crate::config::{Config, DEFAULT_EPOCHS};
use crate::error::Error;

/// Steps that the default number of epochs has, if the bounds allow.
const STEPS: u64 = 500;

impl Config {
    /// Sets `train.epochs`, if it is unset, by the steps of an epoch. Tasks on edges count all edges here, not only those for training.
    ///
    /// The number depends on the pipeline and on the prepared dataset. Before preparation, it is an estimate.
    ///
    /// # Errors
    /// If the size of the input cannot be read.
    pub fn resolve_epochs(&mut self) -> Result<(), Error> {
        let unset = self.train.as_ref().is_some_and(|train| train.epochs.is_none());
        if unset {
            let sizes = training_sizes(self, &Sizes::of(self, 1)?);
            let epochs = epochs(steps(self, &sizes));
            self.train.iter_mut().for_each(|train| train.epochs = Some(epochs));
        }
        Ok(())
    }
}

/// Returns the steps of an epoch.
fn steps(config: &Config, sizes: &Sizes) -> u64 {
    match (&config.train, &config.model) {
        (Some(train), Some(model)) if FullGraphPlan::of(config, sizes).is_none() => {
            Batch::of(train, model, sizes).steps
        }
        _ => 1,
    }
}

/// Returns the default number of epochs for epochs of `steps` steps.
pub(super) fn epochs(steps: u64) -> usize {
    let (least, most) = DEFAULT_EPOCHS.into_inner();
    (STEPS.div_ceil(steps.max(1)) as usize).clamp(least, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_epochs_have_500_steps_within_bounds() {
        assert_eq!([0, 1, 2, 3, 6, 30, 50, 51, 200].map(epochs), [200, 200, 200, 167, 84, 17, 10, 10, 10]);
    }
}
