//! Where an evaluation writes the rows of all nodes.

use std::sync::Arc;

use gnnflow_dataflow::storage::RowStore;

/// The stores to which an evaluation writes rows of all nodes.
#[derive(Clone)]
pub(crate) struct ResultSink {
    /// The model's results.
    pub(crate) results: Arc<RowStore>,
    /// The inputs of the last layer, unless these are the results.
    pub(crate) embeddings: Option<Arc<RowStore>>,
}
