//! Initial parameters, drawn from the counter-based generator under the parameter's name.

use gnnflow_data::rng::{Key, Purpose};

/// The distribution of initial values. Fan-in and fan-out are a matrix's columns and rows, also in a stack of matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// 0.
    Zeros,
    /// The same number everywhere.
    Constant(f64),
    /// Uniform in ±`gain · sqrt(6 / (fan in + fan out))`: Xavier's, also called Glorot's.
    XavierUniform {
        /// 1, or sqrt 2 before a ReLU.
        gain: f64,
    },
    /// Uniform in ±`sqrt(6 / fan in)`: He's, also called Kaiming's, for ReLU.
    HeUniform,
    /// Uniform in ±`1 / sqrt(fan in)`: PyTorch's default for linear layers and their biases.
    FanIn {
        /// Numbers that are summed into one output.
        fan_in: usize,
    },
}

impl Initial {
    /// Returns the initial values of the parameter called `name`, equal on any machine.
    ///
    /// ```
    /// use gnnflow_nn::initial::Initial;
    ///
    /// let xavier = Initial::XavierUniform { gain: 1.0 };
    /// let weight = xavier.values(1, "layers.0.weight", &[4, 8]);
    /// assert_eq!(weight, xavier.values(1, "layers.0.weight", &[4, 8]));
    /// assert!(weight.iter().all(|w| w.abs() <= 0.5f32.sqrt()));
    /// ```
    pub fn values(self, seed: u64, name: &str, shape: &[usize]) -> Vec<f32> {
        let fan_out = shape[shape.len().saturating_sub(2)] as f64;
        let fan_in = shape.last().map_or(1.0, |&n| n as f64);
        let bound = match self {
            Self::Zeros => 0.0,
            Self::Constant(value) => return vec![value as f32; shape.iter().product()],
            Self::XavierUniform { gain } => gain * (6.0 / (fan_in + fan_out)).sqrt(),
            Self::HeUniform => (6.0 / fan_in).sqrt(),
            Self::FanIn { fan_in } => 1.0 / (fan_in.max(1) as f64).sqrt(),
        };
        let key = Key::new(seed, Purpose::Init).fold_str(name);
        (0..shape.iter().product::<usize>() as u64).map(|i| ((2.0 * key.unit(i) - 1.0) * bound) as f32).collect()
    }
}
