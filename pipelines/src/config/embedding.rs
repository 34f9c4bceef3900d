//! `[model.embedding]`: learned rows for nodes without features.

use super::optimizer::{BETAS, EPS, LR, betas};
use super::section::{choice, section, words};
use gnnflow_dataflow::embed::table::Draw;
use gnnflow_kernels::sparse;

section! {
    /// Learned rows for nodes without features. `model.embedding = {}` enables them with all defaults.
    pub struct Embedding {
        /// Width of a row: the input width of the first layer.
        #[schemars(range(min = 1, max = 65536))]
        pub dim: usize = 128,
        /// How rows are initialized, depending on `train.seed` and the node.
        pub init: EmbeddingInit = EmbeddingInit::Uniform,
        /// The bound of `uniform`, the standard deviation of `normal`. Unset: 1 / √dim.
        #[schemars(extend("exclusiveMinimum" = 0.0), extend("examples" = [0.1]))]
        pub init_scale: Option<f64> = None,
        /// The optimizer of learned rows.
        pub optimizer: SparseOptimizer = SparseOptimizer::default(),
        /// When rows are read and updated. Full-graph schedules allow `sync` only: the owner updates a row once per epoch.
        pub mode: EmbeddingMode = EmbeddingMode::Sync,
        /// Maximum staleness of a row in steps, when it is read (`async`). `train.window`, one more by default, bounds it, too. Unset: 1.
        #[schemars(range(min = 1, max = 63), extend("examples" = [2]))]
        pub staleness: Option<usize> = None,
    }
}

impl Embedding {
    /// Returns the distribution of the initial rows.
    pub fn draw(&self) -> Draw {
        let scale = self.init_scale.unwrap_or_else(|| 1.0 / (self.dim as f64).sqrt());
        match self.init {
            EmbeddingInit::Zeros => Draw::Zeros,
            EmbeddingInit::Uniform => Draw::Uniform(scale),
            EmbeddingInit::Normal => Draw::Normal(scale),
        }
    }

    /// Whether gradients are applied when they arrive.
    pub(crate) fn is_async(&self) -> bool {
        self.mode == EmbeddingMode::Async
    }

    /// Maximum staleness of a row in steps, when it is read.
    pub fn staleness(&self) -> usize {
        if self.is_async() { self.staleness.unwrap_or(1) } else { 0 }
    }
}

choice! {
    /// The optimizer of learned rows. A step updates each row that it has read once; a full-graph step reads all rows.
    pub enum SparseOptimizer {
        /// Adam, with a count of steps for each row.
        Adam(SparseAdam) = "adam",
        /// Adagrad: a running sum of squares for each value.
        Adagrad(SparseAdagrad) = "adagrad",
        /// Stochastic gradient descent.
        Sgd(SparseSgd) = "sgd",
    }
}

section! {
    /// Options of `adam` for learned rows.
    pub struct SparseAdam {
        /// Learning rate; `train.lr_schedule` applies, too.
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        pub lr: f64 = LR,
        /// Decay of a row's running mean and running square.
        #[schemars(schema_with = "betas")]
        pub betas: [f64; 2] = BETAS,
        /// Added to the root of the running square.
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        pub eps: f64 = EPS,
    }
}

section! {
    /// Options of `adagrad` for learned rows.
    pub struct SparseAdagrad {
        /// Learning rate; `train.lr_schedule` applies, too.
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        pub lr: f64 = LR,
        /// Added to the root of the sum of squares.
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        pub eps: f64 = 1e-10,
    }
}

section! {
    /// Options of `sgd` for learned rows.
    pub struct SparseSgd {
        /// Learning rate; `train.lr_schedule` applies, too.
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        pub lr: f64 = LR,
    }
}

impl Default for SparseOptimizer {
    fn default() -> Self {
        Self::Adam(SparseAdam::default())
    }
}

impl SparseOptimizer {
    /// Learning rate.
    pub fn lr(&self) -> f64 {
        match self {
            Self::Adam(options) => options.lr,
            Self::Adagrad(options) => options.lr,
            Self::Sgd(options) => options.lr,
        }
    }

    /// Returns the update rule of `gnnflow-kernels`.
    pub fn rule(&self) -> sparse::SparseOptimizer {
        match *self {
            Self::Sgd(_) => sparse::SparseOptimizer::Sgd,
            Self::Adagrad(SparseAdagrad { eps, .. }) => sparse::SparseOptimizer::Adagrad { epsilon: eps },
            Self::Adam(SparseAdam { betas: [beta1, beta2], eps, .. }) => {
                sparse::SparseOptimizer::Adam { beta1, beta2, epsilon: eps }
            }
        }
    }
}

words! {
    /// How learned rows are initialized.
    pub enum EmbeddingInit {
        /// Uniform in ± `init_scale`.
        Uniform = "uniform",
        /// Normal with mean 0.
        Normal = "normal",
        /// Zeros.
        Zeros = "zeros",
    }
}

words! {
    /// When learned rows are read and updated.
    pub enum EmbeddingMode {
        /// A step reads rows after the updates of all earlier steps. Results are equal for any number of processes.
        Sync = "sync",
        /// Rows are read early and updated when gradients arrive (DistDGL). Results differ from run to run.
        Async = "async",
    }
}
