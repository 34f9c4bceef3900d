//! `[infer]`: results that are written for every node after training.

use super::section::{section, words};

section! {
    /// Results for every node, computed with all neighbors and the best model, as Parquet files in the run folder.
    pub struct Infer {
        /// `predictions.parquet`: node id or ends of the edge, prediction, label, split; for links, scores and ranks.
        pub predictions: bool = true,
        /// `embeddings.parquet`: node id, and the last hidden layer's output.
        pub embeddings: bool = false,
        /// Divide each row of embeddings by its length, so that inner products are cosines, as indexes of nearest neighbors want them.
        pub normalize: bool = false,
        /// Type of the values of embeddings.
        pub embedding_dtype: EmbeddingDtype = EmbeddingDtype::F32,
        /// Add the probabilities of all classes of each node or edge to `predictions.parquet`, by ascending number or name. Not for links,
        /// whose scores are always written, and not for regression.
        pub scores: bool = false,
        /// Link prediction: write `recommendations.parquet`, with at most this many nodes for each source, edge type and type of destinations: those with
        /// the highest scores that the source has no edge to, in any split. Takes sources × nodes scores for each edge type.
        #[schemars(range(min = 1, max = 10000), extend("examples" = [10]))]
        pub recommendations: Option<usize> = None,
        /// Write each table as a folder with a file for each partition, `part-00000.parquet` and so on, and then `_SUCCESS`. Each process writes the
        /// files of its partitions; on several hosts, each host has its own in its folder.
        pub parts: bool = false,
        /// Maximum number of rows of a row group in tables [default: as many as take 64 MiB, at most 1,048,576].
        #[schemars(range(min = 1, max = 1073741824), extend("x-results" = false), extend("examples" = [100000]))]
        pub row_group_size: Option<usize> = None,
        /// Maximum number of nodes that are computed together; fewer if they have more than 16,384 edges.
        #[schemars(range(min = 1, max = 16777216), extend("x-results" = false))]
        pub batch: usize = 4096,
    }
}

words! {
    /// Type of the values of embeddings.
    pub enum EmbeddingDtype {
        /// As they are computed.
        F32 = "f32",
        /// Rounded to 10 bits of mantissa instead of 23; at most 65,504.
        F16 = "f16",
    }
}

impl Infer {
    /// Whether the probabilities of classes are written.
    pub(crate) fn writes_scores(&self) -> bool {
        self.predictions && self.scores
    }
}
