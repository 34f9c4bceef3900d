//! How many numbers a model has.

use crate::spec::{Aggregator, Model};
use serde::Serialize;

/// One layer of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Layer {
    /// Width of its input.
    pub input: usize,
    /// Width of its output.
    pub output: usize,
    /// Number of parameters; `None` for a registered layer, which only it knows.
    pub parameters: Option<u64>,
}

/// The layers of `model` from `features` to `classes`.
///
/// With input width i and output width o: `gcn`, `mlp` and `sage` with `gcn` aggregation have i·o + o parameters,
/// `sage` with `mean` 2·i·o + o, with `pool` i·i + i more; `gat` i·o + 3·o, where o counts all heads, and its output layer,
/// which averages its heads h, i·h·o + 2·h·o + o.
pub fn layers(model: &Model, features: usize, classes: usize) -> Vec<Layer> {
    let one = |index: usize| {
        let input = if index == 0 { features } else { model.hidden };
        let last = index + 1 == model.layers;
        let output = if last { classes } else { model.hidden };
        let (i, o) = (input as u64, output as u64);
        let parameters = match model.kind.as_str() {
            "gcn" | "mlp" => Some(i * o + o),
            "sage" => Some(match model.aggregator() {
                Aggregator::Mean => 2 * i * o + o,
                Aggregator::Gcn => i * o + o,
                Aggregator::Pool => i * i + i + 2 * i * o + o,
            }),
            "gat" => {
                let wide = if last { o * model.output_heads() as u64 } else { o };
                Some(i * wide + 2 * wide + o)
            }
            _ => None,
        };
        Layer { input, output, parameters }
    };
    (0..model.layers).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn count(model: Model) -> u64 {
        layers(&model, 1433, 7).iter().filter_map(|layer| layer.parameters).sum()
    }

    #[test]
    fn counts_are_those_of_the_models_that_are_built() {
        for (kind, aggregator) in [
            ("gcn", None),
            ("mlp", None),
            ("gat", None),
            ("sage", Some(Aggregator::Mean)),
            ("sage", Some(Aggregator::Gcn)),
            ("sage", Some(Aggregator::Pool)),
        ] {
            let model = Model {
                kind: kind.into(),
                hidden: 16,
                layers: 3,
                aggregator,
                output_heads: Some(2),
                ..Model::default()
            };
            let registry = gnnflow_operators::compute::Registry::default();
            let built =
                gnnflow_operators::compute::Model::build(&model.describe(10, 3), &registry, &Device::Cpu, 1).unwrap();
            let parameters: u64 = layers(&model, 10, 3).iter().filter_map(|layer| layer.parameters).sum();
            assert_eq!(built.params().flat_len() as u64, parameters, "{kind} {aggregator:?}");
        }
    }

    /// The counts that PyG's layers of the same shape have.
    #[test]
    fn parameters_of_known_models() {
        let model = |kind: &str, hidden| Model { kind: kind.into(), hidden, ..Model::default() };
        assert_eq!(count(model("gcn", 16)), 23_063);
        assert_eq!(count(Model { heads: Some(8), ..model("gat", 64) }), 92_373);
        assert_eq!(count(model("sage", 64)), 2 * 1433 * 64 + 64 + 2 * 64 * 7 + 7);
        assert_eq!(count(Model { layers: 1, ..model("mlp", 64) }), 1433 * 7 + 7);
    }
}
