//! How node features are scaled and stored.

use serde::{Deserialize, Serialize};

/// How to scale node features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Normalize {
    /// No scaling.
    #[default]
    None,
    /// Each row divided by the sum of its absolute values, or by 1 when that is smaller.
    Row,
    /// Each column with mean 0 and standard deviation 1 over all nodes; constant columns become 0.
    Standard,
}

/// How features are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FeatureDtype {
    /// 32-bit floats.
    #[default]
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a 32-bit float.
    Bf16,
}

impl FeatureDtype {
    /// Bytes of one value.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Its name in pipelines and files.
    pub const fn word(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}
