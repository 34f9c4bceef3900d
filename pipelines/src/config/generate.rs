//! `[graph.generate]`: a synthetic graph in place of files.

use super::section::{section, words};
use gnnflow_data::generate::{Generated, Planted, Rmat, write_once};
use gnnflow_data::progress::Progress;
use std::path::{Path, PathBuf};

section! {
    /// A synthetic graph. Equal keys give equal graphs. Each edge is one row, read with `undirected = true` by default.
    pub struct Generate {
        /// The generator.
        pub kind: GenerateKind = GenerateKind::Planted,
        /// Number of nodes; `rmat` takes the next power of two. Unset: 10000 (`planted`), 65536 (`rmat`).
        #[schemars(range(min = 1, max = 4294967294u64), extend("examples" = [10000]))]
        pub nodes: Option<u64> = None,
        /// Logarithm to base 2 of the number of nodes; instead of `nodes`.
        #[schemars(range(min = 1, max = 31), extend("examples" = [14]))]
        pub scale: Option<u32> = None,
        /// Number of edges. Unset: `edge_factor` times the nodes.
        #[schemars(range(min = 1, max = i64::MAX), extend("examples" = [100000]))]
        pub edges: Option<u64> = None,
        /// Edges per node. Unset: 10 (`planted`), 16 (`rmat`).
        #[schemars(range(min = 1, max = 1000000), extend("examples" = [16]))]
        pub edge_factor: Option<u64> = None,
        /// Width of the features; 0 for none. Unset: 64 (`planted`), none (`rmat`).
        #[schemars(range(max = 65536), extend("examples" = [64]))]
        pub features: Option<usize> = None,
        /// Number of classes; `rmat` takes 0 for no labels. Unset: 10 (`planted`), none (`rmat`).
        #[schemars(range(max = 65536), extend("examples" = [10]))]
        pub classes: Option<u64> = None,
        /// Probability that an edge stays within its class (`planted`). Unset: 0.5.
        #[schemars(range(min = 0.0, max = 1.0), extend("examples" = [0.5]))]
        pub homophily: Option<f64> = None,
        /// Exponent of the degrees' power law (`planted`). Unset: 2.5.
        #[schemars(extend("exclusiveMinimum" = 2.0), extend("examples" = [2.5]))]
        pub degree_exponent: Option<f64> = None,
        /// Distance of a class's mean feature from the origin, in standard deviations of the noise (`planted`). Unset: 1.8.
        #[schemars(range(min = 0.0), extend("examples" = [1.8]))]
        pub signal: Option<f64> = None,
        /// Probability of the quadrant "low to low" (`rmat`). Unset: 0.57.
        #[schemars(range(min = 0.0, max = 1.0), extend("examples" = [0.57]))]
        pub a: Option<f64> = None,
        /// Probability of the quadrant "low to high" (`rmat`). Unset: 0.19.
        #[schemars(range(min = 0.0, max = 1.0), extend("examples" = [0.19]))]
        pub b: Option<f64> = None,
        /// Probability of the quadrant "high to low" (`rmat`). Unset: 0.19.
        #[schemars(range(min = 0.0, max = 1.0), extend("examples" = [0.19]))]
        pub c: Option<f64> = None,
        /// Fractions of train, validation and test nodes; the rest is in no split.
        #[schemars(length(equal = 3), inner(range(min = 0.0, max = 1.0)))]
        pub split: Vec<f64> = vec![0.1, 0.1, 0.8],
        /// Seed of the graph.
        #[schemars(range(max = i64::MAX))]
        pub seed: u64 = 1,
        /// Files per table.
        #[schemars(range(min = 1, max = 100000))]
        pub files: usize = 1,
        /// The folder for the Parquet files. Unset: `.gnnflow/KIND-HASH` beside the pipeline file, with the hash of these keys.
        #[schemars(extend("x-results" = false, "examples" = ["generated/planted"]))]
        pub out: Option<PathBuf> = None,
    }
}

words! {
    /// A generator of synthetic graphs.
    pub enum GenerateKind {
        /// A degree-corrected block model: classes with features, labels and splits, on which a GNN beats an MLP.
        Planted = "planted",
        /// R-MAT, the recursive power-law model of Graph500.
        Rmat = "rmat",
    }
}

/// A generator with all its settings.
#[derive(Clone, Debug, PartialEq)]
pub enum Generator {
    /// See [`Planted`].
    Planted(Planted),
    /// See [`Rmat`].
    Rmat(Rmat),
}

impl Generate {
    /// The generator that these keys describe.
    pub fn generator(&self) -> Generator {
        let split = <[f64; 3]>::try_from(self.split.as_slice()).unwrap_or([0.1, 0.1, 0.8]);
        let (seed, files) = (self.seed, self.files);
        match self.kind {
            GenerateKind::Planted => {
                let d = Planted::default();
                let nodes = self.scale.map(|scale| 1 << scale).or(self.nodes).unwrap_or(d.nodes);
                Generator::Planted(Planted {
                    nodes,
                    edges: self.edges.unwrap_or(nodes.saturating_mul(self.edge_factor.unwrap_or(10))),
                    features: self.features.unwrap_or(d.features),
                    classes: self.classes.unwrap_or(d.classes),
                    homophily: self.homophily.unwrap_or(d.homophily),
                    degree_exponent: self.degree_exponent.unwrap_or(d.degree_exponent),
                    signal: self.signal.unwrap_or(d.signal),
                    split,
                    seed,
                    files,
                })
            }
            GenerateKind::Rmat => {
                let d = Rmat::default();
                let ceil_log2 = |nodes: u64| u64::BITS - nodes.saturating_sub(1).leading_zeros();
                Generator::Rmat(Rmat {
                    scale: self.scale.or(self.nodes.map(|nodes| ceil_log2(nodes).max(1))).unwrap_or(d.scale),
                    edge_factor: self.edge_factor.unwrap_or(d.edge_factor),
                    edges: self.edges,
                    a: self.a.unwrap_or(d.a),
                    b: self.b.unwrap_or(d.b),
                    c: self.c.unwrap_or(d.c),
                    features: self.features.unwrap_or(d.features),
                    classes: self.classes.unwrap_or(d.classes),
                    split,
                    seed,
                    files,
                })
            }
        }
    }

    /// The folder for the Parquet files.
    pub fn folder(&self) -> &Path {
        self.out.as_deref().unwrap_or(Path::new("."))
    }

    /// The node table and the edge table: each a file, or a folder of files.
    pub fn tables(&self) -> (PathBuf, PathBuf) {
        (self.folder().join("nodes.parquet"), self.folder().join("edges.parquet"))
    }

    /// Writes the Parquet files, unless an equal generator has written them before.
    ///
    /// # Errors
    /// A setting out of range; errors of the file system.
    pub(crate) fn ensure(&self, progress: &dyn Progress) -> gnnflow_data::Result<()> {
        let (generator, folder) = (self.generator(), self.folder());
        write_once(folder, progress, || generator.is_written(folder), || generator.write(folder, progress))
    }
}

impl Generator {
    /// Checks the ranges of all settings.
    ///
    /// # Errors
    /// [`gnnflow_data::Error::Setting`].
    pub fn check(&self) -> gnnflow_data::Result<()> {
        match self {
            Self::Planted(planted) => planted.check(),
            Self::Rmat(rmat) => rmat.check().map(drop),
        }
    }

    /// Returns the number of nodes and of edge rows.
    pub fn size(&self) -> (u64, u64) {
        match self {
            Self::Planted(planted) => (planted.nodes, planted.edges),
            Self::Rmat(rmat) => (1 << rmat.scale, rmat.edges.unwrap_or(rmat.edge_factor << rmat.scale)),
        }
    }

    /// Width of the features.
    pub fn features(&self) -> usize {
        match self {
            Self::Planted(planted) => planted.features,
            Self::Rmat(rmat) => rmat.features,
        }
    }

    /// Number of classes.
    pub fn classes(&self) -> u64 {
        match self {
            Self::Planted(planted) => planted.classes,
            Self::Rmat(rmat) => rmat.classes,
        }
    }

    /// Returns whether `out` contains the files of this generator.
    pub fn is_written(&self, out: &Path) -> bool {
        match self {
            Self::Planted(planted) => planted.is_written(out),
            Self::Rmat(rmat) => rmat.is_written(out),
        }
    }

    /// Writes the files below the folder `out`.
    ///
    /// # Errors
    /// A setting out of range; errors of the file system.
    pub fn write(&self, out: &Path, progress: &dyn Progress) -> gnnflow_data::Result<Generated> {
        match self {
            Self::Planted(planted) => planted.write(out, progress),
            Self::Rmat(rmat) => rmat.write(out, progress),
        }
    }
}
