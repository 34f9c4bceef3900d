//! `[train.optimizer]` and `[train.lr_schedule]`.

use super::section::{section, words};

section! {
    /// The optimiser.
    pub struct Optimizer {
        /// Which one.
        pub kind: OptimizerKind = OptimizerKind::Adam,
        /// Learning rate.
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        pub lr: f64 = 0.01,
        /// L2 penalty added to the gradients (`sgd`, `adam`), or decay of the weights themselves (`adamw`).
        #[schemars(range(min = 0.0))]
        pub weight_decay: f64 = 0.0,
        /// Momentum (`sgd`). Unset: 0.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0), extend("examples" = [0.9]))]
        pub momentum: Option<f64> = None,
        /// Decay of the running mean and of the running square (`adam`, `adamw`). Unset: 0.9 and 0.999.
        #[schemars(length(equal = 2), inner(range(min = 0.0, max = 1.0)), extend("examples" = [[0.9, 0.999]]))]
        pub betas: Option<Vec<f64>> = None,
        /// Added to the root of the running square (`adam`, `adamw`). Unset: 1e-8.
        #[schemars(extend("exclusiveMinimum" = 0.0), extend("examples" = [1e-8]))]
        pub eps: Option<f64> = None,
    }
}

impl Optimizer {
    /// Momentum of `sgd`.
    pub fn momentum(&self) -> f64 {
        self.momentum.unwrap_or(0.0)
    }

    /// Decay rates of `adam` and `adamw`.
    pub fn betas(&self) -> [f64; 2] {
        match self.betas.as_deref() {
            Some(&[first, second]) => [first, second],
            _ => [0.9, 0.999],
        }
    }

    /// The small number that keeps `adam` and `adamw` from dividing by 0.
    pub fn eps(&self) -> f64 {
        self.eps.unwrap_or(1e-8)
    }
}

words! {
    /// An optimiser.
    pub enum OptimizerKind {
        /// Stochastic gradient descent.
        Sgd = "sgd",
        /// Adam.
        Adam = "adam",
        /// Adam with decoupled weight decay.
        Adamw = "adamw",
    }
}

section! {
    /// The learning rate by epochs.
    pub struct LrSchedule {
        /// How it falls.
        pub kind: LrKind = LrKind::Constant,
        /// Epochs in which it rises to `optimizer.lr` in equal steps, before it falls.
        #[schemars(range(max = 1000000))]
        pub warmup: usize = 0,
        /// Epochs from one fall to the next (`step`). Unset: 30.
        #[schemars(range(min = 1, max = 1000000), extend("examples" = [30]))]
        pub every: Option<usize> = None,
        /// What is left of it after a fall (`step`), or after every epoch (`exponential`). Unset: 0.1, and 0.95.
        #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0), extend("examples" = [0.5]))]
        pub gamma: Option<f64> = None,
        /// Where it ends, as a share of `optimizer.lr` (`cosine`, `linear`). Unset: 0.
        #[schemars(range(min = 0.0, max = 1.0), extend("examples" = [0.01]))]
        pub end: Option<f64> = None,
    }
}

impl LrSchedule {
    /// The learning rate of epoch `epoch` (from 0) of `epochs`, when it begins at `lr`.
    ///
    /// The same number on every machine: the processor's own cosine is not asked.
    ///
    /// ```
    /// use gnnflow_pipelines::config::{LrKind, LrSchedule};
    ///
    /// let schedule = LrSchedule { kind: LrKind::Linear, warmup: 2, ..LrSchedule::default() };
    /// assert_eq!([0, 1, 2, 4, 6].map(|epoch| schedule.at(epoch, 6, 1.0)), [0.5, 1.0, 1.0, 0.5, 0.0]);
    /// ```
    pub fn at(&self, epoch: usize, epochs: usize, lr: f64) -> f64 {
        if epoch < self.warmup {
            return lr * (epoch + 1) as f64 / self.warmup as f64;
        }
        let past = epoch - self.warmup;
        let left = || 1.0 - past as f64 / epochs.saturating_sub(self.warmup).max(1) as f64;
        let towards_end = |share: f64| {
            let end = self.end.unwrap_or(0.0);
            end + (1.0 - end) * share.max(0.0)
        };
        lr * match self.kind {
            LrKind::Constant => 1.0,
            LrKind::Step => libm::pow(self.gamma.unwrap_or(0.1), (past / self.every.unwrap_or(30)) as f64),
            LrKind::Exponential => libm::pow(self.gamma.unwrap_or(0.95), past as f64),
            LrKind::Linear => towards_end(left()),
            LrKind::Cosine => towards_end(0.5 * (1.0 - libm::cos(std::f64::consts::PI * left()))),
        }
    }
}

words! {
    /// How the learning rate falls.
    pub enum LrKind {
        /// Not at all.
        Constant = "constant",
        /// By a factor every so many epochs.
        Step = "step",
        /// By a factor every epoch.
        Exponential = "exponential",
        /// Along half a cosine (Loshchilov and Hutter 2017, without restarts).
        Cosine = "cosine",
        /// Along a line.
        Linear = "linear",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learning_rates_are_those_of_pytorch() {
        let at = |schedule: &LrSchedule, epochs: [usize; 4]| epochs.map(|epoch| schedule.at(epoch, 100, 0.2));
        let near = |found: [f64; 4], wanted: [f64; 4]| {
            assert!(found.iter().zip(wanted).all(|(f, w)| (f - w).abs() < 1e-12), "{found:?}, not {wanted:?}");
        };
        let constant = LrSchedule::default();
        near(at(&constant, [0, 1, 50, 99]), [0.2; 4]);
        // StepLR(30, 0.1), ExponentialLR(0.95), CosineAnnealingLR(100, 0.002), by torch 2.
        let step = LrSchedule { kind: LrKind::Step, ..constant.clone() };
        near(at(&step, [0, 29, 30, 90]), [0.2, 0.2, 0.02, 0.0002]);
        let exponential = LrSchedule { kind: LrKind::Exponential, ..constant.clone() };
        near(at(&exponential, [0, 1, 2, 10]), [0.2, 0.19, 0.1805, 0.119_747_387_847_675_75]);
        let cosine = LrSchedule { kind: LrKind::Cosine, end: Some(0.01), ..constant.clone() };
        near(at(&cosine, [0, 25, 50, 75]), [0.2, 0.171_003_571_337_468_2, 0.101, 0.030_996_428_662_531_8]);
        let warm = LrSchedule { warmup: 4, ..step };
        near(at(&warm, [0, 3, 4, 34]), [0.05, 0.2, 0.2, 0.02]);
    }
}
