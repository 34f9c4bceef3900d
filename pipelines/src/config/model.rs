//! `[model]`: the model.

use super::embedding::Embedding;
use super::schedule::Schedule;
use super::section::{section, words};
use gnnflow_kernels::dense::elementwise;
use gnnflow_nn as compute;
use gnnflow_nn::{KindOptions, ModelSpec};

/// Layer kinds of this version.
pub(super) const KINDS: &[&str] = &["sage", "gcn", "gat", "gatv2", "gin", "gine", "sgc", "rgcn", "appnp", "mlp"];

/// Keys of `[model]` of some built-in kinds only, with these kinds.
pub(super) const KEYS: &[(&str, &[&str])] = &[
    ("hidden", &["sage", "gcn", "gat", "gatv2", "gin", "gine", "rgcn", "appnp", "mlp"]),
    ("heads", &["gat", "gatv2"]),
    ("output_heads", &["gat", "gatv2"]),
    ("attention_dropout", &["gat", "gatv2"]),
    ("dropout", &["sage", "gcn", "gat", "gatv2", "gin", "gine", "rgcn", "appnp", "mlp"]),
    ("aggregator", &["sage"]),
    ("eps", &["gin", "gine"]),
    ("train_eps", &["gin", "gine"]),
    ("mlp_layers", &["gin", "gine", "appnp"]),
    ("edge_features", &["gatv2"]),
    ("teleport", &["appnp"]),
    ("num_bases", &["rgcn"]),
    ("decoupled", &["gcn", "gat"]),
    ("activation", &["sage", "gcn", "gat", "gatv2", "gin", "gine", "rgcn", "appnp", "mlp"]),
    ("residual", LAYERED),
    ("norm", LAYERED),
    ("jumping_knowledge", LAYERED),
];

/// The kinds with parameters in every layer.
const LAYERED: &[&str] = &["sage", "gcn", "gat", "gatv2", "gin", "gine", "rgcn", "mlp"];

/// Returns whether layers of this name are built in.
pub(crate) fn is_builtin(kind: &str) -> bool {
    KINDS.contains(&kind)
}

section! {
    /// The model.
    pub struct Model {
        /// The kind of layer: GraphSAGE, GCN, GAT, GATv2, GIN, GINE (GIN with edge features), SGC, R-GCN (edge types), APPNP,
        /// `mlp` (a baseline without edges), or the name of a registered one.
        #[schemars(extend("x-known" = KINDS))]
        pub kind: String = "sage".into(),
        /// Number of layers, including the output layer; also the number of hops of a batch. For `sgc` and `appnp`: propagations.
        #[schemars(range(min = 1, max = 64))]
        pub layers: usize = 2,
        /// Width of the hidden layers; for `gat` and `gatv2`, of all heads together.
        #[schemars(range(min = 1, max = 65536))]
        pub hidden: usize = 128,
        /// Attention heads of the hidden layers (`gat`, `gatv2`); divides `hidden`. A decoupled `gat` has none there. Unset: 8.
        #[schemars(range(min = 1, max = 1024), extend("examples" = [8]))]
        pub heads: Option<usize> = None,
        /// Attention heads of the output layer (`gat`, `gatv2`), averaged; of a decoupled `gat`, of all its propagations. Unset: 1.
        #[schemars(range(min = 1, max = 1024), extend("examples" = [1]))]
        pub output_heads: Option<usize> = None,
        /// How a `sage` layer aggregates its neighbors. Unset: `mean`.
        #[schemars(extend("examples" = ["mean"]))]
        pub aggregator: Option<Aggregator> = None,
        /// ε in `gin` and `gine`: a node's own row has weight 1 + ε; the initial value with `train_eps`. Unset: 0.
        #[schemars(extend("examples" = [0.0]))]
        pub eps: Option<f64> = None,
        /// Whether each `gin` and `gine` layer learns `eps`. Unset: false.
        #[schemars(extend("examples" = [false]))]
        pub train_eps: Option<bool> = None,
        /// Linear maps in the perceptron of each `gin` or `gine` layer, and in that of an `appnp` model. Unset: 2.
        #[schemars(range(min = 1, max = 16), extend("examples" = [2]))]
        pub mlp_layers: Option<usize> = None,
        /// Weight of a node's own prediction in each propagation (`appnp`; the paper's α). Unset: 0.1.
        #[schemars(range(min = 0.0, max = 1.0), extend("examples" = [0.1]))]
        pub teleport: Option<f64> = None,
        /// Number of basis matrices that relations share (`rgcn`). Unset: each relation learns its own matrix.
        #[schemars(range(min = 1, max = 65536), extend("examples" = [30]))]
        pub num_bases: Option<usize> = None,
        /// Whether the attention of `gatv2` reads the edges' features (`graph.columns.edge_features`), as `gine` always does.
        /// Unset: false.
        #[schemars(extend("examples" = [true]))]
        pub edge_features: Option<bool> = None,
        /// Run a perceptron of `layers` linear maps, then as many propagations (NeutronTP, section 4.1): another model, with fewer exchanges.
        /// Unset: true for a plain `gcn` with `tensor-parallel`, else false ([details](tensor-parallel.md#decoupled-models)).
        #[schemars(extend("examples" = [true]))]
        pub decoupled: Option<bool> = None,
        /// The function between layers, and inside the perceptrons of `gin`, `gine` and `appnp`.
        /// Unset: `elu` for `gat` and `gatv2`, else `relu`.
        #[schemars(extend("examples" = ["relu"]))]
        pub activation: Option<Activation> = None,
        /// Add the input of each layer to its output, through a learned linear map where widths differ.
        pub residual: bool = false,
        /// How the outputs of all layers but the last are normalized, before the activation.
        pub norm: Norm = Norm::None,
        /// How the outputs of all layers are combined. The output is then a linear map of the result, and all layers have the width `hidden`.
        pub jumping_knowledge: JumpingKnowledge = JumpingKnowledge::None,
        /// Probability with which an input of a layer after the first is dropped in training; for `appnp` and decoupled models, of
        /// a linear map after the first.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        pub dropout: f64 = 0.5,
        /// Probability with which a feature is dropped in training: an input of the first layer.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        pub input_dropout: f64 = 0.0,
        /// Probability with which an attention coefficient is dropped in training (`gat`, `gatv2`). Unset: as `dropout`.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0), extend("examples" = [0.6]))]
        pub attention_dropout: Option<f64> = None,
        /// Learned rows for nodes without features. Unset: none.
        pub embedding: Option<Embedding> = None,
    }
}

impl Model {
    /// Returns the model that is built. A decoupled `gcn` becomes an `appnp` with teleport 0. All other models stay the same;
    /// the layers of a decoupled `gat` are built by `gnnflow-nn`.
    pub fn network(&self, schedule: &Schedule) -> Self {
        let jumps = self.jumping_knowledge != JumpingKnowledge::None;
        let may = !self.residual && self.norm == Norm::None && !jumps;
        let decoupled = self.decoupled.unwrap_or(may && schedule.is_tensor_parallel());
        if self.kind != "gcn" || !decoupled {
            return self.clone();
        }
        let (teleport, mlp_layers) = (Some(0.0), Some(self.layers));
        Self { kind: "appnp".into(), teleport, mlp_layers, decoupled: None, ..self.clone() }
    }

    /// Whether it is a decoupled `gat`: the predictions of its perceptron determine the attention of all propagations.
    pub(crate) fn decouples_attention(&self) -> bool {
        self.kind == "gat" && self.decoupled == Some(true)
    }

    /// Whether layers have attention heads.
    pub fn attends(&self) -> bool {
        matches!(self.kind.as_str(), "gat" | "gatv2")
    }

    /// Attention heads of the hidden layers.
    pub fn heads(&self) -> usize {
        self.heads.unwrap_or(if self.attends() { 8 } else { 1 })
    }

    /// Attention heads of the output layer.
    pub fn output_heads(&self) -> usize {
        self.output_heads.unwrap_or(1)
    }

    /// How a `sage` layer aggregates.
    pub fn aggregator(&self) -> Aggregator {
        self.aggregator.unwrap_or(Aggregator::Mean)
    }

    /// Whether `dropout` has an effect: an input after the first, or attention without a probability of its own.
    pub(super) fn reads_dropout(&self) -> bool {
        let later_inputs = match self.kind.as_str() {
            "sgc" => false,
            "appnp" => self.mlp_layers() > 1,
            kind => self.layers > 1 || self.jumping_knowledge != JumpingKnowledge::None || !is_builtin(kind),
        };
        later_inputs || (self.attends() && self.attention_dropout.is_none())
    }

    /// Keys that this model refuses, although they have defaults. `decoded`: the task is on edges, whose decoder reads rows of width
    /// `hidden`.
    pub(super) fn refused_defaults(&self, decoded: bool) -> Vec<&'static str> {
        let foreign = |(_, kinds): &&(&str, &[&str])| is_builtin(&self.kind) && !kinds.contains(&self.kind.as_str());
        let mut keys: Vec<&str> = KEYS.iter().filter(foreign).map(|(key, _)| *key).collect();
        if self.is_linear_appnp() && !decoded {
            keys.push("hidden");
        }
        if !self.reads_dropout() && self.dropout == Self::default().dropout {
            keys.push("dropout");
        }
        keys
    }

    /// Whether it is an `appnp` whose perceptron is one linear map.
    pub(super) fn is_linear_appnp(&self) -> bool {
        self.kind == "appnp" && self.mlp_layers() == 1
    }

    /// Probability with which an attention coefficient is dropped.
    pub fn attention_dropout(&self) -> f64 {
        self.attention_dropout.unwrap_or(self.dropout)
    }

    /// Linear maps in a perceptron.
    pub fn mlp_layers(&self) -> usize {
        self.mlp_layers.unwrap_or(2)
    }

    /// Returns the specification for `features` features per node, `classes` classes, `relations` edge types (0: edges without
    /// types) and `edge_dim` features per edge.
    pub fn describe(&self, features: usize, classes: usize, relations: usize, edge_dim: usize) -> ModelSpec {
        ModelSpec {
            heads: self.heads(),
            output_heads: self.output_heads(),
            input_dropout: self.input_dropout,
            dropout: self.dropout,
            attention_dropout: Some(self.attention_dropout()),
            activation: self.activation.map(Activation::function),
            residual: self.residual,
            norm: self.norm.layer(),
            jumping_knowledge: self.jumping_knowledge.readout(),
            options: KindOptions {
                aggregator: self.aggregator().word().into(),
                epsilon: self.eps.unwrap_or(0.0),
                train_epsilon: self.train_eps.unwrap_or(false),
                mlp_layers: self.mlp_layers(),
                teleport: self.teleport.unwrap_or(0.1),
                relations,
                bases: self.num_bases,
                decoupled: self.decouples_attention(),
                // A registered layer may read them.
                edge_dim: if self.reads_edge_features() || !is_builtin(&self.kind) { edge_dim } else { 0 },
            },
            ..ModelSpec::new(&self.kind, self.layers, features, self.hidden, classes)
        }
    }

    /// Whether layers read neighbors at all.
    pub(crate) fn uses_edges(&self) -> bool {
        self.kind != "mlp"
    }

    /// Whether layers read the features of edges.
    pub fn reads_edge_features(&self) -> bool {
        self.kind == "gine" || self.edge_features == Some(true)
    }

    /// Whether layers read the types of edges.
    pub(crate) fn reads_edge_types(&self) -> bool {
        self.kind == "rgcn"
    }
}

words! {
    /// How a GraphSAGE layer aggregates its neighbors.
    pub enum Aggregator {
        /// The mean of the neighbors; the node itself has a second weight matrix.
        Mean = "mean",
        /// The mean over the neighbors and the node itself, with one weight matrix.
        Gcn = "gcn",
        /// The maximum of their transformed features.
        Pool = "pool",
    }
}

words! {
    /// The function between layers.
    pub enum Activation {
        /// `max(x, 0)`
        Relu = "relu",
        /// `x` above 0, else `e^x − 1`.
        Elu = "elu",
        /// `x` above 0, else `0.01 · x`.
        LeakyRelu = "leaky_relu",
        /// The hyperbolic tangent.
        Tanh = "tanh",
        /// GELU, by its tanh approximation.
        Gelu = "gelu",
        /// The identity.
        None = "none",
    }
}

impl Activation {
    fn function(self) -> elementwise::Activation {
        match self {
            Self::Relu => elementwise::Activation::Relu,
            Self::Elu => elementwise::Activation::Elu,
            Self::LeakyRelu => elementwise::Activation::LeakyRelu(0.01),
            Self::Tanh => elementwise::Activation::Tanh,
            Self::Gelu => elementwise::Activation::Gelu,
            Self::None => elementwise::Activation::Identity,
        }
    }
}

words! {
    /// How the result of a layer is normalized.
    pub enum Norm {
        /// Not at all.
        None = "none",
        /// Each column over the batch of a partition; in evaluation and inference by running statistics.
        Batch = "batch",
        /// Each row over its columns.
        Layer = "layer",
    }
}

impl Norm {
    fn layer(self) -> compute::Norm {
        match self {
            Self::None => compute::Norm::None,
            Self::Batch => compute::Norm::Batch,
            Self::Layer => compute::Norm::Layer,
        }
    }
}

words! {
    /// How the results of all layers are combined.
    pub enum JumpingKnowledge {
        /// Not at all: the last layer gives the output.
        None = "none",
        /// Concatenated.
        Cat = "cat",
        /// The maximum of each column.
        Max = "max",
        /// The mean of each column.
        Mean = "mean",
    }
}

impl JumpingKnowledge {
    fn readout(self) -> compute::JumpingKnowledge {
        match self {
            Self::None => compute::JumpingKnowledge::None,
            Self::Cat => compute::JumpingKnowledge::Cat,
            Self::Max => compute::JumpingKnowledge::Max,
            Self::Mean => compute::JumpingKnowledge::Mean,
        }
    }
}
