//! Steps of the optimizer.

use std::time::Instant;

use gnnflow_dataflow::collective::all_reduce::Reduced;
use gnnflow_dataflow::embed::push_rows::PushedRows;

use super::{ComputeState, StepReport};
use crate::collectives::Payload;
use crate::embedding::NodeEmbeddings;
use crate::error::Error;

impl ComputeState {
    /// Takes an optimizer step along the sum of a step's gradients, divided by its examples. Updates the running statistics from the sums of its
    /// batches, which follow the gradients.
    ///
    /// [`ComputeState::report`] returns the first error.
    pub(crate) fn apply(&mut self, reduced: Reduced) {
        let reports = reduced.words.iter().filter_map(|words| StepReport::from_words(words).ok());
        let examples: u64 = reports.map(|report| report.examples).sum();
        if examples == 0 {
            return;
        }
        if let Err(error) = self.step(reduced.sum, examples) {
            self.error.get_or_insert(error);
        }
    }

    /// Takes one step along `sum`, the gradient summed over `examples` examples.
    pub(super) fn step(&mut self, mut sum: Vec<f32>, examples: u64) -> Result<(), Error> {
        let start = Instant::now();
        let Self { all, passes, optimizer, params, clip_norm, .. } = self;
        let mut loaded = passes.write();
        let model = &mut loaded.model;
        let result = all.threads.install(|| {
            let scale = 1.0 / examples as f32;
            let trained = model.params().trained_len();
            let gradients = &mut sum[..trained];
            gradients.iter_mut().for_each(|gradient| *gradient *= scale);
            if let Some(most) = clip_norm {
                shorten(gradients, *most);
            }
            optimizer.step(&mut params[..trained], gradients);
            model.absorb(params, &sum);
            model.params_mut().set_from(params)
        });
        self.step_time += start.elapsed();
        result?;
        passes.publish(&mut loaded, params);
        Ok(())
    }

    /// Takes one optimizer step on the learned rows that `pushed` has gradients for.
    ///
    /// # Errors
    /// [`Error::Bug`] when the rows are being read or written.
    pub(crate) fn update_rows(&mut self, rows: &NodeEmbeddings, pushed: &PushedRows) -> Result<(), Error> {
        let start = Instant::now();
        let result = self.all.threads.install(|| rows.apply(pushed));
        self.step_time += start.elapsed();
        result
    }
}

/// Scales a gradient to length `most` if it is longer. The length is summed in 64 bits and in order, so it is equal at all workers.
fn shorten(gradient: &mut [f32], most: f64) {
    let length = gradient.iter().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>().sqrt();
    if length > most {
        let scale = (most / length) as f32;
        gradient.iter_mut().for_each(|g| *g *= scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorten_scales_long_gradients_only() {
        let mut gradient = [3.0, 0.0, -4.0];
        shorten(&mut gradient, 10.0);
        assert_eq!(gradient, [3.0, 0.0, -4.0]);
        shorten(&mut gradient, 2.5);
        assert_eq!(gradient, [1.5, 0.0, -2.0]);
    }
}
