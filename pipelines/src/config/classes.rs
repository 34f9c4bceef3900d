//! `[train.classes]`: how classes are weighted, and bounds of their metrics.

use std::borrow::Cow;
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::section::{section, words};
use super::values::OneOrMany;

section! {
    /// Classification: weights for imbalanced classes, and bounds of metrics.
    pub struct ClassOptions {
        /// Weights of the classes in the loss: `"balanced"` (in inverse proportion to their training nodes or edges), or one number
        /// per class, by ascending number or name. They are scaled so that their mean over the training nodes or edges is 1.
        /// With several labels per node, a weight multiplies the loss of nodes that have the label (PyTorch's `pos_weight`), without
        /// scaling; `"balanced"` is the number of training nodes without the label over those with it (1 if one is 0).
        /// Unset: all equal.
        #[schemars(extend("examples" = ["balanced"]))]
        pub weights: Option<ClassWeights> = None,
        /// Parquet with factors of the losses of training nodes: columns `node_id` and `weight`, one row per node. Nodes without a row
        /// have the factor 1.
        #[schemars(extend("examples" = ["weights.parquet"]))]
        pub node_weights: Option<OneOrMany<PathBuf>> = None,
        /// Exponent γ of the focal loss, −(1 − p)^γ log p (Lin et al. 2017), of the class or of each label; 2 is usual. Unset:
        /// cross-entropy.
        #[schemars(range(min = 0.0, max = 16.0), extend("examples" = [2.0]))]
        pub focal_gamma: Option<f64> = None,
        /// Also report `recall_at_precision_P`: the recall at the lowest threshold with at least this precision, for two classes or
        /// several labels. Unset: not reported.
        #[schemars(range(min = 0.0, max = 1.0), extend("examples" = [0.9]))]
        pub min_precision: Option<f64> = None,
        /// Also report `precision_at_K`: the precision of the K highest scores, for two classes or several labels. Unset: not reported.
        #[schemars(range(min = 1), extend("examples" = [100]))]
        pub top_k: Option<u64> = None,
    }
}

/// Weights of classes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ClassWeights {
    /// Computed from the training nodes or edges.
    Computed(ComputedWeights),
    /// One number per class or label.
    Given(Vec<f64>),
}

words! {
    /// How weights of classes are computed.
    pub enum ComputedWeights {
        /// In inverse proportion to the number of training nodes or edges.
        Balanced = "balanced",
    }
}

impl JsonSchema for ClassWeights {
    fn schema_name() -> Cow<'static, str> {
        "ClassWeights".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [
            { "type": "string", "const": "balanced" },
            { "type": "array", "items": { "type": "number", "minimum": 0 }, "minItems": 1 },
        ] })
    }
}
