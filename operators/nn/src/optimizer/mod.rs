//! Optimizers on flat vectors, equal to PyTorch's, with state that can be saved and restored.

mod adam;
mod sgd;

use gnnflow_kernels::parallel;

use super::error::{Error, Result};

pub use adam::{Adam, AdamOptions};
pub use sgd::{Sgd, SgdOptions};

/// Updates parameters from gradients.
///
/// ```
/// use gnnflow_nn::optimizer::{Optimizer, Sgd, SgdOptions};
///
/// let mut sgd = Sgd::new(2, SgdOptions { learning_rate: 0.5, ..Default::default() });
/// let mut params = [1.0, 2.0];
/// sgd.step(&mut params, &[1.0, -1.0]);
/// assert_eq!(params, [0.5, 2.5]);
/// ```
pub trait Optimizer: Send {
    /// Updates `params` by one step from `gradient`.
    ///
    /// # Panics
    /// Unless both have the length that the optimizer was created for.
    fn step(&mut self, params: &mut [f32], gradient: &[f32]);

    /// Sets the learning rate of the following steps.
    fn set_learning_rate(&mut self, learning_rate: f64);

    /// Returns the state that a resumed run needs.
    fn state(&self) -> State;

    /// Restores saved state.
    ///
    /// # Errors
    /// [`Error::State`] when the state is another optimizer's or has another length.
    fn load_state(&mut self, state: State) -> Result<()>;
}

/// An optimizer's state: the steps taken, and named vectors as long as the parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Steps taken.
    pub steps: u64,
    /// Names and vectors, in a fixed order.
    pub vectors: Vec<(String, Vec<f32>)>,
}

impl State {
    /// Removes and returns the vector called `name`, which must have `len` numbers.
    fn take(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        let refuse = |why: String| Error::State { name: name.to_owned(), why };
        let at = self.vectors.iter().position(|(n, _)| n == name);
        let (_, vector) = self.vectors.swap_remove(at.ok_or_else(|| refuse("is missing".to_owned()))?);
        if vector.len() != len {
            return Err(refuse(format!("has {} numbers; the model has {len} parameters", vector.len())));
        }
        Ok(vector)
    }
}

/// Numbers per parallel task.
const PIECE: usize = 1 << 16;

/// Calls `f(params, gradient, state)` in parallel on pieces of equal ranges. `state` holds the pieces of `N` vectors.
fn in_pieces<const N: usize>(
    params: &mut [f32],
    gradient: &[f32],
    state: [&mut [f32]; N],
    f: impl Fn(&mut [f32], &[f32], [&mut [f32]; N]) + Sync,
) {
    let len = params.len();
    assert!(
        gradient.len() == len && state.iter().all(|s| s.len() == len),
        "{len} parameters, {} gradients",
        gradient.len()
    );
    let mut state = state.map(|vector| vector.chunks_mut(PIECE));
    let mut pieces = Vec::with_capacity(len.div_ceil(PIECE));
    for (params, gradient) in params.chunks_mut(PIECE).zip(gradient.chunks(PIECE)) {
        // Every vector is as long as the parameters, so it has as many pieces.
        pieces.push((params, gradient, state.each_mut().map(|chunks| chunks.next().unwrap_or_default())));
    }
    parallel::each(pieces, &|(params, gradient, state): (&mut [f32], &[f32], [&mut [f32]; N])| {
        f(params, gradient, state);
    });
}
