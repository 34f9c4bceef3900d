//! `[model.embedding]`: rows that are learnt for nodes without features.

use super::section::{section, words};
use gnnflow_dataflow::embed::table::Draw;
use gnnflow_kernels::sparse;

section! {
    /// A learnt row for each node, in the place of features (`model.embedding = {}` asks for one; see docs/book/src/embeddings.md).
    pub struct Embedding {
        /// Numbers of a node's row: what the first layer reads.
        #[schemars(range(min = 1, max = 65536))]
        pub dim: usize = 128,
        /// What rows are at first, drawn under `train.seed` and the node.
        pub init: EmbeddingInit = EmbeddingInit::Uniform,
        /// The bound of `uniform`, the standard deviation of `normal`. Unset: 1 / √dim.
        #[schemars(extend("exclusiveMinimum" = 0.0), extend("examples" = [0.1]))]
        pub init_scale: Option<f64> = None,
        /// How the rows move that a step has read.
        pub optimizer: SparseOptimizer = SparseOptimizer::default(),
        /// When rows are read and moved, in relation to the steps. Over whole graphs (`full-graph`, `tensor-parallel`) `sync`: a row moves once an epoch, where it is, and is never behind.
        pub mode: EmbeddingMode = EmbeddingMode::Sync,
        /// Steps that a row may be behind when it is read (`async`). `train.window` bounds it too; unset, that is one more. Unset: 1.
        #[schemars(range(min = 1, max = 63), extend("examples" = [2]))]
        pub staleness: Option<usize> = None,
    }
}

impl Embedding {
    /// What rows are drawn from.
    pub fn draw(&self) -> Draw {
        let scale = self.init_scale.unwrap_or_else(|| 1.0 / (self.dim as f64).sqrt());
        match self.init {
            EmbeddingInit::Zeros => Draw::Zeros,
            EmbeddingInit::Uniform => Draw::Uniform(scale),
            EmbeddingInit::Normal => Draw::Normal(scale),
        }
    }

    /// Whether gradients are applied as they come.
    pub fn is_async(&self) -> bool {
        self.mode == EmbeddingMode::Async
    }

    /// Steps that a row may be behind when it is read.
    pub fn staleness(&self) -> usize {
        if self.is_async() { self.staleness.unwrap_or(1) } else { 0 }
    }
}

section! {
    /// The optimiser of learnt rows: each row that a step has read moves once, the others rest. A step over a whole graph reads all.
    pub struct SparseOptimizer {
        /// Which one.
        pub kind: SparseKind = SparseKind::Adam,
        /// Learning rate; `train.lr_schedule` goes for it too.
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        pub lr: f64 = 0.01,
        /// Decay of a row's running mean and running square (`adam`). Unset: 0.9 and 0.999.
        #[schemars(length(equal = 2), inner(range(min = 0.0, max = 1.0)), extend("examples" = [[0.9, 0.999]]))]
        pub betas: Option<Vec<f64>> = None,
        /// Added to a root (`adam`, `adagrad`). Unset: 1e-8, and 1e-10.
        #[schemars(extend("exclusiveMinimum" = 0.0), extend("examples" = [1e-8]))]
        pub eps: Option<f64> = None,
    }
}

impl SparseOptimizer {
    /// The kernel's rule.
    pub fn rule(&self) -> sparse::SparseOptimizer {
        match self.kind {
            SparseKind::Sgd => sparse::SparseOptimizer::Sgd,
            SparseKind::Adagrad => sparse::SparseOptimizer::Adagrad { epsilon: self.eps.unwrap_or(1e-10) },
            SparseKind::Adam => {
                let [beta1, beta2] = match self.betas.as_deref() {
                    Some(&[first, second]) => [first, second],
                    _ => [0.9, 0.999],
                };
                sparse::SparseOptimizer::Adam { beta1, beta2, epsilon: self.eps.unwrap_or(1e-8) }
            }
        }
    }
}

words! {
    /// What learnt rows are at first.
    pub enum EmbeddingInit {
        /// Uniform in ± `init_scale`.
        Uniform = "uniform",
        /// Normal with mean 0.
        Normal = "normal",
        /// 0.
        Zeros = "zeros",
    }
}

words! {
    /// An optimiser of learnt rows.
    pub enum SparseKind {
        /// Plain descent.
        Sgd = "sgd",
        /// Adagrad: a running sum of squares for each number.
        Adagrad = "adagrad",
        /// Adam, with a count of steps for each row.
        Adam = "adam",
    }
}

words! {
    /// When learnt rows are read and moved.
    pub enum EmbeddingMode {
        /// A step reads rows that all earlier steps have moved: the same bits on any number of processes.
        Sync = "sync",
        /// Rows are read early, and moved by each batch's gradients when they come (DistDGL): results differ from run to run.
        Async = "async",
    }
}
