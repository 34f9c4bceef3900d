//! `[train.optimizer]` and `[train.lr_schedule]`.

use super::section::{choice, section};
use schemars::{Schema, SchemaGenerator, json_schema};

choice! {
    /// The optimizer.
    pub enum Optimizer {
        /// Adam, with an L2 penalty added to the gradients.
        Adam(Adam) = "adam",
        /// Adam with decoupled weight decay.
        Adamw(Adam) = "adamw",
        /// Stochastic gradient descent.
        Sgd(Sgd) = "sgd",
    }
}

section! {
    /// Options of `adam` and `adamw`.
    pub struct Adam {
        /// Learning rate.
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        pub lr: f64 = LR,
        /// L2 penalty (`adam`), or decay of the weights themselves (`adamw`).
        #[schemars(range(min = 0.0))]
        pub weight_decay: f64 = 0.0,
        /// Decay of the running mean and of the running square.
        #[schemars(schema_with = "betas")]
        pub betas: [f64; 2] = BETAS,
        /// Added to the root of the running square.
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        pub eps: f64 = EPS,
    }
}

section! {
    /// Options of `sgd`.
    pub struct Sgd {
        /// Learning rate.
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        pub lr: f64 = LR,
        /// L2 penalty added to the gradients.
        #[schemars(range(min = 0.0))]
        pub weight_decay: f64 = 0.0,
        /// Momentum.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        pub momentum: f64 = 0.0,
    }
}

/// The default learning rate.
pub(super) const LR: f64 = 0.01;
/// The default decay rates of Adam.
pub(super) const BETAS: [f64; 2] = [0.9, 0.999];
/// The default ε of Adam.
pub(super) const EPS: f64 = 1e-8;

/// The schema of two numbers in [0, 1).
pub(super) fn betas(_: &mut SchemaGenerator) -> Schema {
    let share = serde_json::json!({ "type": "number", "minimum": 0, "exclusiveMaximum": 1 });
    json_schema!({ "type": "array", "items": share, "minItems": 2, "maxItems": 2 })
}

impl Default for Optimizer {
    fn default() -> Self {
        Self::Adam(Adam::default())
    }
}

impl Optimizer {
    /// Learning rate.
    pub fn lr(&self) -> f64 {
        match self {
            Self::Adam(options) | Self::Adamw(options) => options.lr,
            Self::Sgd(options) => options.lr,
        }
    }

    /// Number of vectors in its state, each as long as the parameters.
    pub(crate) fn state(&self) -> u64 {
        match self {
            Self::Sgd(options) => u64::from(options.momentum > 0.0),
            Self::Adam(_) | Self::Adamw(_) => 2,
        }
    }
}

choice! {
    /// The learning rate by epochs.
    pub enum LrSchedule {
        /// The same in all epochs.
        Constant(Constant) = "constant",
        /// Falls by a factor every few epochs.
        Step(Step) = "step",
        /// Falls by a factor every epoch.
        Exponential(Exponential) = "exponential",
        /// Falls along half a cosine (Loshchilov and Hutter 2017, without restarts).
        Cosine(Falling) = "cosine",
        /// Falls linearly.
        Linear(Falling) = "linear",
    }
}

section! {
    /// Options of `constant`.
    pub struct Constant {
        /// Epochs in which it rises to `optimizer.lr` in equal steps.
        #[schemars(range(max = 1000000))]
        pub warmup: usize = 0,
    }
}

section! {
    /// Options of `step`.
    pub struct Step {
        /// Epochs in which it rises to `optimizer.lr` in equal steps, before it falls.
        #[schemars(range(max = 1000000))]
        pub warmup: usize = 0,
        /// Epochs between falls.
        #[schemars(range(min = 1, max = 1000000))]
        pub every: usize = 30,
        /// The factor of a fall.
        #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
        pub gamma: f64 = 0.1,
    }
}

section! {
    /// Options of `exponential`.
    pub struct Exponential {
        /// Epochs in which it rises to `optimizer.lr` in equal steps, before it falls.
        #[schemars(range(max = 1000000))]
        pub warmup: usize = 0,
        /// The factor of an epoch.
        #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
        pub gamma: f64 = 0.95,
    }
}

section! {
    /// Options of `cosine` and `linear`.
    pub struct Falling {
        /// Epochs in which it rises to `optimizer.lr` in equal steps, before it falls.
        #[schemars(range(max = 1000000))]
        pub warmup: usize = 0,
        /// The final value, as a fraction of `optimizer.lr`.
        #[schemars(range(min = 0.0, max = 1.0))]
        pub end: f64 = 0.0,
    }
}

impl Default for LrSchedule {
    fn default() -> Self {
        Self::Constant(Constant::default())
    }
}

impl LrSchedule {
    /// Number of epochs in which the learning rate rises.
    pub fn warmup(&self) -> usize {
        match self {
            Self::Constant(options) => options.warmup,
            Self::Step(options) => options.warmup,
            Self::Exponential(options) => options.warmup,
            Self::Cosine(options) | Self::Linear(options) => options.warmup,
        }
    }

    /// Replaces numbers of epochs by `scaled` ones, for epochs that are `factor` times as many.
    pub(super) fn scale_epochs(&mut self, scaled: impl Fn(usize) -> usize, factor: f64) {
        match self {
            Self::Constant(options) => options.warmup = scaled(options.warmup),
            Self::Step(options) => {
                (options.warmup, options.every) = (scaled(options.warmup), scaled(options.every));
            }
            Self::Exponential(options) => {
                options.warmup = scaled(options.warmup);
                options.gamma = libm::pow(options.gamma, 1.0 / factor);
            }
            Self::Cosine(options) | Self::Linear(options) => options.warmup = scaled(options.warmup),
        }
    }

    /// Returns the learning rate of `epoch` (from 0) of `epochs`, starting from `lr`.
    ///
    /// The value is equal on all machines: powers and cosines are computed by `libm`.
    ///
    /// ```
    /// use gnnflow_pipelines::config::{LrSchedule, optimizer::Falling};
    ///
    /// let schedule = LrSchedule::Linear(Falling { warmup: 2, end: 0.0 });
    /// assert_eq!([0, 1, 2, 4, 6].map(|epoch| schedule.at(epoch, 6, 1.0)), [0.5, 1.0, 1.0, 0.5, 0.0]);
    /// ```
    pub fn at(&self, epoch: usize, epochs: usize, lr: f64) -> f64 {
        let warmup = self.warmup();
        if epoch < warmup {
            return lr * (epoch + 1) as f64 / warmup as f64;
        }
        let past = epoch - warmup;
        let left = || 1.0 - past as f64 / epochs.saturating_sub(warmup).max(1) as f64;
        let toward = |end: f64, share: f64| end + (1.0 - end) * share.max(0.0);
        lr * match self {
            Self::Constant(_) => 1.0,
            Self::Step(options) => libm::pow(options.gamma, (past / options.every) as f64),
            Self::Exponential(options) => libm::pow(options.gamma, past as f64),
            Self::Linear(options) => toward(options.end, left()),
            Self::Cosine(options) => toward(options.end, 0.5 * (1.0 - libm::cos(std::f64::consts::PI * left()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learning_rates_equal_those_of_pytorch() {
        let at = |schedule: &LrSchedule, epochs: [usize; 4]| epochs.map(|epoch| schedule.at(epoch, 100, 0.2));
        let near = |found: [f64; 4], wanted: [f64; 4]| {
            assert!(found.iter().zip(wanted).all(|(f, w)| (f - w).abs() < 1e-12), "{found:?}, not {wanted:?}");
        };
        let constant = LrSchedule::default();
        near(at(&constant, [0, 1, 50, 99]), [0.2; 4]);
        // StepLR(30, 0.1), ExponentialLR(0.95), CosineAnnealingLR(100, 0.002) of torch 2.
        let step = LrSchedule::Step(Step::default());
        near(at(&step, [0, 29, 30, 90]), [0.2, 0.2, 0.02, 0.0002]);
        let exponential = LrSchedule::Exponential(Exponential::default());
        near(at(&exponential, [0, 1, 2, 10]), [0.2, 0.19, 0.1805, 0.119_747_387_847_675_75]);
        let cosine = LrSchedule::Cosine(Falling { end: 0.01, ..Falling::default() });
        near(at(&cosine, [0, 25, 50, 75]), [0.2, 0.171_003_571_337_468_2, 0.101, 0.030_996_428_662_531_8]);
        let warm = LrSchedule::Step(Step { warmup: 4, ..Step::default() });
        near(at(&warm, [0, 3, 4, 34]), [0.05, 0.2, 0.2, 0.02]);
    }
}
