//! Exact inference on a changed graph, of the rows that have changed.
//!
//! ```text
//! stored dataset ─┐                    by stage of the model
//!                 ├► differences ► reached nodes ► inference of these nodes ► stored rows of all stages
//! dataset now ────┘
//! ```
//!
//! A node's row of a stage can differ only if its in-edges have changed, or a row that it reads: its own or a neighbor's of the stage before. So
//! the rows of all other nodes keep the bits that a full pass would compute.

pub(crate) mod layer_store;

use gnnflow_nn::model::Stage;

use self::layer_store::LayerStore;

/// The rows of an earlier inference, which a refresh changes.
pub(crate) struct Refresh {
    pub(crate) store: LayerStore,
    pub(crate) stages: Vec<Stage>,
    /// Whether the model reads degrees.
    pub(crate) degrees: bool,
}
