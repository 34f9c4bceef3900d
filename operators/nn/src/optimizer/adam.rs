//! Adam (Kingma, Ba 2015) and AdamW (Loshchilov, Hutter 2019).

use super::{Optimizer, State, in_pieces};
use crate::error::Result;
use gnnflow_kernels::simd::dispatch::multiversion;

/// The options of [`Adam`]; the defaults are PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamOptions {
    /// The learning rate.
    pub learning_rate: f64,
    /// Decay of the mean of gradients.
    pub beta1: f64,
    /// Decay of the mean of squared gradients.
    pub beta2: f64,
    /// Added to the root of the mean of squared gradients.
    pub epsilon: f64,
    /// The factor of the weight decay.
    pub weight_decay: f64,
    /// Whether weights decay separately (AdamW) or through the gradient (Adam with an L2 penalty).
    pub decoupled: bool,
}

impl Default for AdamOptions {
    fn default() -> Self {
        Self { learning_rate: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0, decoupled: false }
    }
}

/// Adam, or AdamW.
#[derive(Clone, Debug)]
pub struct Adam {
    options: AdamOptions,
    steps: u64,
    mean: Vec<f32>,
    square: Vec<f32>,
}

impl Adam {
    /// An optimizer of `len` parameters.
    pub fn new(len: usize, options: AdamOptions) -> Self {
        Self { options, steps: 0, mean: vec![0.0; len], square: vec![0.0; len] }
    }
}

/// The constants of one step.
#[derive(Clone, Copy)]
struct Step {
    beta1: f32,
    one_less_beta1: f32,
    beta2: f32,
    one_less_beta2: f32,
    epsilon: f32,
    penalty: f32,
    keep: f32,
    size: f32,
    root: f32,
}

multiversion! {
    fn update(s: Step, params: &mut [f32], gradient: &[f32], mean: &mut [f32], square: &mut [f32]) {
        for (((p, &g), m), v) in params.iter_mut().zip(gradient).zip(mean).zip(square) {
            let decayed = *p * s.keep;
            let g = g + s.penalty * decayed;
            *m = s.beta1 * *m + s.one_less_beta1 * g;
            *v = s.beta2 * *v + s.one_less_beta2 * g * g;
            *p = decayed - s.size * *m / (v.sqrt() / s.root + s.epsilon);
        }
    }
}

impl Optimizer for Adam {
    fn step(&mut self, params: &mut [f32], gradient: &[f32]) {
        self.steps += 1;
        let o = self.options;
        let t = i32::try_from(self.steps).unwrap_or(i32::MAX);
        let (correction1, correction2) = (1.0 - o.beta1.powi(t), 1.0 - o.beta2.powi(t));
        let step = Step {
            beta1: o.beta1 as f32,
            one_less_beta1: (1.0 - o.beta1) as f32,
            beta2: o.beta2 as f32,
            one_less_beta2: (1.0 - o.beta2) as f32,
            epsilon: o.epsilon as f32,
            penalty: if o.decoupled { 0.0 } else { o.weight_decay as f32 },
            keep: if o.decoupled { (1.0 - o.learning_rate * o.weight_decay) as f32 } else { 1.0 },
            size: (o.learning_rate / correction1) as f32,
            root: correction2.sqrt() as f32,
        };
        in_pieces(params, gradient, [&mut self.mean, &mut self.square], |p, g, [m, v]| update(step, p, g, m, v));
    }

    fn set_learning_rate(&mut self, learning_rate: f64) {
        self.options.learning_rate = learning_rate;
    }

    fn state(&self) -> State {
        let vectors =
            vec![("adam.mean".to_owned(), self.mean.clone()), ("adam.square".to_owned(), self.square.clone())];
        State { steps: self.steps, vectors }
    }

    fn load_state(&mut self, mut state: State) -> Result<()> {
        let (mean, square) = (state.take("adam.mean", self.mean.len())?, state.take("adam.square", self.square.len())?);
        (self.mean, self.square, self.steps) = (mean, square, state.steps);
        Ok(())
    }
}
