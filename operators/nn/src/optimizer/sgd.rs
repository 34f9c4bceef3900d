//! Stochastic gradient descent, optionally with momentum or Nesterov's momentum.

use super::{Optimizer, State, in_pieces};
use crate::error::Result;
use gnnflow_kernels::simd::dispatch::multiversion;

/// The options of [`Sgd`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SgdOptions {
    /// The learning rate.
    pub learning_rate: f64,
    /// The share of the previous velocity that is kept.
    pub momentum: f64,
    /// Whether to use Nesterov's momentum.
    pub nesterov: bool,
    /// The factor of the L2 penalty.
    pub weight_decay: f64,
}

/// Stochastic gradient descent.
#[derive(Clone, Debug)]
pub struct Sgd {
    options: SgdOptions,
    steps: u64,
    /// Empty without momentum.
    velocity: Vec<f32>,
    len: usize,
}

impl Sgd {
    /// An optimizer of `len` parameters.
    pub fn new(len: usize, options: SgdOptions) -> Self {
        let velocity = if options.momentum == 0.0 { Vec::new() } else { vec![0.0; len] };
        Self { options, steps: 0, velocity, len }
    }
}

multiversion! {
    fn update(rate: f32, momentum: f32, nesterov: bool, penalty: f32, params: &mut [f32], gradient: &[f32], velocity: &mut [f32]) {
        for ((p, &g), v) in params.iter_mut().zip(gradient).zip(velocity) {
            let g = g + penalty * *p;
            *v = momentum * *v + g;
            *p -= rate * if nesterov { g + momentum * *v } else { *v };
        }
    }
}

multiversion! {
    fn update_plain(rate: f32, penalty: f32, params: &mut [f32], gradient: &[f32]) {
        for (p, &g) in params.iter_mut().zip(gradient) {
            *p -= rate * (g + penalty * *p);
        }
    }
}

impl Optimizer for Sgd {
    fn step(&mut self, params: &mut [f32], gradient: &[f32]) {
        assert!(params.len() == self.len && gradient.len() == self.len, "{} parameters", self.len);
        self.steps += 1;
        let o = self.options;
        let (rate, momentum, penalty) = (o.learning_rate as f32, o.momentum as f32, o.weight_decay as f32);
        if self.velocity.is_empty() {
            in_pieces(params, gradient, [], |p, g, []| update_plain(rate, penalty, p, g));
        } else {
            let velocity = [self.velocity.as_mut_slice()];
            in_pieces(params, gradient, velocity, |p, g, [v]| update(rate, momentum, o.nesterov, penalty, p, g, v));
        }
    }

    fn set_learning_rate(&mut self, learning_rate: f64) {
        self.options.learning_rate = learning_rate;
    }

    fn state(&self) -> State {
        let vectors = match self.velocity.is_empty() {
            true => Vec::new(),
            false => vec![("sgd.velocity".to_owned(), self.velocity.clone())],
        };
        State { steps: self.steps, vectors }
    }

    fn load_state(&mut self, mut state: State) -> Result<()> {
        if !self.velocity.is_empty() {
            self.velocity = state.take("sgd.velocity", self.len)?;
        }
        self.steps = state.steps;
        Ok(())
    }
}
