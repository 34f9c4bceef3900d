//! The layers of a model, with their numbers of parameters.

use super::pairs::decoder;
use super::{Sizes, embedding};
use crate::config::{Aggregator, Config, JumpingKnowledge, Model, Norm};
use serde::Serialize;

/// One layer of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Layer {
    /// Width of its input.
    pub input: usize,
    /// Width of its output.
    pub output: usize,
    /// Number of parameters; `None` for a registered layer, and for a layer that reads edge types or features whose number is
    /// not known yet.
    pub parameters: Option<u64>,
}

/// Returns the layers of `model` from `features` to `classes`, for `relations` edge types and `edge_dim` features per edge.
///
/// Parameters with input width i and output width o:
/// - `gcn`, `mlp`, `sage` with `gcn`: i·o + o. `sage` with `mean`: 2·i·o + o; with `pool`, i·i + i more.
/// - `gat`: i·o + 3·o, where o counts all heads; its output layer, which averages h heads: i·h·o + 2·h·o + o. `gatv2`: i·o +
///   2·o more; d·o more with d edge features.
/// - `gin`: those of its perceptron, and one if ε is learned. `gine`: d·i + i more.
/// - `rgcn` with R edge types: R·i·o + i·o + o; with B bases: B·(i·o + R) + i·o + o.
/// - `sgc`: i·o + o in the last layer. `appnp`: those of its perceptron, in the first layer.
/// - A residual between unequal widths: i·o more; a layer norm: 2·o; a batch norm with running statistics: 4·o + 1.
/// - A decoupled `gat`: those of its perceptron without the last bias, and 2·h·o for the attention of h heads, in the first
///   layer; o in the last. Jumping knowledge adds a layer.
pub fn layers(
    model: &Model,
    features: usize,
    classes: usize,
    relations: Option<usize>,
    edge_dim: Option<usize>,
) -> Vec<Layer> {
    if model.decouples_attention() {
        return decoupled(model, features, classes);
    }
    let jumps = model.jumping_knowledge != JumpingKnowledge::None;
    let one = |index: usize| {
        let (first, last) = (index == 0, index + 1 == model.layers && !jumps);
        let between = match model.kind.as_str() {
            "sgc" => features,
            "appnp" => classes,
            _ => model.hidden,
        };
        let (input, output) = (if first { features } else { between }, if last { classes } else { between });
        let own = own(model, [first, last], [input, output], relations, edge_dim);
        Layer {
            input,
            output,
            parameters: own.map(|own| own + residual_and_norm(model, last, input as u64, output as u64)),
        }
    };
    let mut all: Vec<Layer> = (0..model.layers).map(one).collect();
    if jumps {
        let joined = if model.jumping_knowledge == JumpingKnowledge::Cat { model.layers } else { 1 };
        let (input, output) = (joined * model.hidden, classes);
        all.push(Layer { input, output, parameters: Some((input * output + output) as u64) });
    }
    all
}

/// Builds the model of a pipeline on the CPU; `None` without one, and for a registered layer. Unknown numbers of classes are 1, of types of edges and
/// columns 0.
pub(super) fn built(config: &Config, graph: &Sizes) -> Option<gnnflow_nn::Model> {
    let (train, model) = (config.train.as_ref()?, config.model.as_ref()?);
    let (classes, relations) = (graph.classes.unwrap_or(1).max(1) as usize, graph.relations.unwrap_or(0));
    let (network, input) = (model.network(&train.schedule), embedding::input(config, graph).0);
    let spec = network.describe(input.max(1), classes, relations, graph.edge_features.unwrap_or(0));
    let spec = gnnflow_nn::ModelSpec { decoder: decoder(train, graph), ..spec };
    gnnflow_nn::Model::build(&spec, &gnnflow_nn::Registry::default(), &candle_core::Device::Cpu, train.seed).ok()
}

/// Tells whether the first layer aggregates the features as they are. Training then needs no copy of their rows, and no gradient of them.
/// `layers` are those of `model`.
pub(super) fn aggregates_features(model: &Model, layers: &[Layer]) -> bool {
    let aggregates = match model.kind.as_str() {
        "gcn" => true,
        "sage" => model.aggregator() != Aggregator::Pool,
        _ => false,
    };
    // A layer that is narrower than its input multiplies first.
    let widens = layers.first().is_some_and(|layer| layer.input <= layer.output);
    aggregates
        && widens
        && model.embedding.is_none()
        && model.input_dropout == 0.0
        && !model.residual
        && model.norm == Norm::None
        && model.jumping_knowledge == JumpingKnowledge::None
}

/// Returns the layers of a decoupled `gat`. Between two propagations, a node has a prediction and two attention terms per head.
fn decoupled(model: &Model, features: usize, classes: usize) -> Vec<Layer> {
    let (predicted, between) = (model.output_heads() * classes, model.output_heads() * (classes + 2));
    let maps: usize = match model.layers {
        1 => features * predicted,
        layers => (features + 1 + (layers - 2) * (model.hidden + 1) + predicted) * model.hidden,
    };
    let one = |index: usize| {
        let (first, last) = (index == 0, index + 1 == model.layers);
        let parameters = if first { maps + 2 * predicted } else { 0 } + if last { classes } else { 0 };
        Layer {
            input: if first { features } else { between },
            output: if last { classes } else { between },
            parameters: Some(parameters as u64),
        }
    };
    (0..model.layers).map(one).collect()
}

/// Returns the parameters of a layer without residual and norm.
fn own(
    model: &Model,
    [first, last]: [bool; 2],
    dims: [usize; 2],
    relations: Option<usize>,
    edge_dim: Option<usize>,
) -> Option<u64> {
    let [i, o] = dims.map(|width| width as u64);
    let hidden = model.hidden as u64;
    let edge_dim = if model.reads_edge_features() { edge_dim? as u64 } else { 0 };
    let perceptron = || -> u64 {
        let n = model.mlp_layers() as u64;
        if n == 1 { i * o + o } else { i * hidden + hidden + (n - 2) * (hidden * hidden + hidden) + hidden * o + o }
    };
    Some(match model.kind.as_str() {
        "gcn" | "mlp" => i * o + o,
        "sage" => match model.aggregator() {
            Aggregator::Mean => 2 * i * o + o,
            Aggregator::Gcn => i * o + o,
            Aggregator::Pool => i * i + i + 2 * i * o + o,
        },
        "gat" | "gatv2" => {
            let wide = if last { o * model.output_heads() as u64 } else { o };
            let vectors = if model.kind == "gat" { 2 * wide } else { 3 * wide + i * wide + edge_dim * wide };
            i * wide + vectors + o
        }
        "gin" => perceptron() + u64::from(model.train_eps.unwrap_or(false)),
        "gine" => perceptron() + u64::from(model.train_eps.unwrap_or(false)) + edge_dim * i + i,
        "rgcn" => {
            let relations = relations? as u64;
            let matrices = model.num_bases.map_or(relations * i * o, |bases| bases as u64 * (i * o + relations));
            matrices + i * o + o
        }
        "sgc" => {
            if last {
                i * o + o
            } else {
                0
            }
        }
        "appnp" => {
            // The perceptron and all layers have the output width of the model.
            if first { perceptron() } else { 0 }
        }
        _ => return None,
    })
}

/// Returns the parameters of a layer's residual and norm.
fn residual_and_norm(model: &Model, last: bool, i: u64, o: u64) -> u64 {
    let residual = if model.residual && i != o { i * o } else { 0 };
    let norm = match model.norm {
        _ if last => 0,
        Norm::None => 0,
        Norm::Layer => 2 * o,
        Norm::Batch => 4 * o + 1,
    };
    residual + norm
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::is_builtin_layer;
    use candle_core::Device;
    use gnnflow_nn as compute;
    use gnnflow_nn::Registry;

    fn count(model: &Model) -> u64 {
        layers(model, 1433, 7, None, None).iter().filter_map(|layer| layer.parameters).sum()
    }

    #[test]
    fn parameter_counts_equal_those_of_built_models() {
        let registry = Registry::default();
        let base =
            |kind: &str| Model { kind: kind.into(), hidden: 16, layers: 3, output_heads: Some(2), ..Model::default() };
        let mut models = vec![
            Model { aggregator: Some(Aggregator::Gcn), ..base("sage") },
            Model { aggregator: Some(Aggregator::Pool), ..base("sage") },
            Model { train_eps: Some(true), mlp_layers: Some(3), ..base("gin") },
            Model { mlp_layers: Some(1), ..base("appnp") },
            Model { num_bases: Some(2), ..base("rgcn") },
            Model { edge_features: Some(true), ..base("gatv2") },
            Model { train_eps: Some(true), ..base("gine") },
            Model { decoupled: Some(true), ..base("gat") },
            Model { decoupled: Some(true), layers: 2, ..base("gat") },
            Model { decoupled: Some(true), layers: 1, ..base("gat") },
        ];
        models.extend(registry.names().map(base));
        for jumping_knowledge in [JumpingKnowledge::None, JumpingKnowledge::Cat, JumpingKnowledge::Max] {
            for norm in [Norm::Batch, Norm::Layer] {
                models.push(Model { residual: true, norm, jumping_knowledge, ..base("gatv2") });
            }
        }
        for model in models {
            assert!(is_builtin_layer(&model.kind), "{}", model.kind);
            let built = compute::Model::build(&model.describe(10, 3, 5, 4), &registry, &Device::Cpu, 1).unwrap();
            let parameters: u64 =
                layers(&model, 10, 3, Some(5), Some(4)).iter().filter_map(|layer| layer.parameters).sum();
            assert_eq!(built.params().flat_len() as u64, parameters, "{model:?}");
        }
    }

    #[test]
    fn layers_that_aggregate_features_send_their_input() {
        let registry = Registry::default();
        for kind in registry.names() {
            for (hidden, aggregator) in
                [(8, None), (16, None), (16, Some(Aggregator::Gcn)), (16, Some(Aggregator::Pool))]
            {
                if kind != "sage" && aggregator.is_some() {
                    continue;
                }
                let model = Model { kind: kind.into(), hidden, layers: 2, aggregator, ..Model::default() };
                let built = compute::Model::build(&model.describe(10, 3, 5, 4), &registry, &Device::Cpu, 1).unwrap();
                let sends_input = built.hops().is_ok_and(|hops| hops[0].width == 10);
                let expected = matches!(kind, "gcn" | "sage") && aggregator != Some(Aggregator::Pool) && sends_input;
                assert_eq!(
                    aggregates_features(&model, &layers(&model, 10, 3, Some(5), Some(4))),
                    expected,
                    "{kind} {hidden}"
                );
            }
        }
        let model = |change: fn(&mut Model)| {
            let mut model = Model { kind: "sage".into(), hidden: 16, layers: 2, ..Model::default() };
            change(&mut model);
            aggregates_features(&model, &layers(&model, 10, 3, None, None))
        };
        assert!(model(|_| {}));
        assert!(!model(|model| model.input_dropout = 0.1) && !model(|model| model.residual = true));
    }

    #[test]
    fn parameter_counts_equal_those_of_pyg() {
        let model = |kind: &str, hidden| Model { kind: kind.into(), hidden, ..Model::default() };
        assert_eq!(count(&model("gcn", 16)), 23_063);
        assert_eq!(count(&Model { heads: Some(8), ..model("gat", 64) }), 92_373);
        assert_eq!(count(&model("sage", 64)), 2 * 1433 * 64 + 64 + 2 * 64 * 7 + 7);
        assert_eq!(count(&model("appnp", 64)), 1433 * 64 + 64 + 64 * 7 + 7);
        assert_eq!(count(&model("sgc", 64)), 1433 * 7 + 7);
        assert_eq!(count(&Model { layers: 1, ..model("mlp", 64) }), 1433 * 7 + 7);
    }
}
