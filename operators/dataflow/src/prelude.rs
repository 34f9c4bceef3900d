//! Imports for a dataflow of your own: `use gnnflow_dataflow::prelude::*;`. The [context](crate::context) module has an example.

pub use crate::apply_operator::{ApplyOperator, BatchOperator};
pub use crate::batch::feature_view::FeatureView;
pub use crate::batch::mini_batch::{BatchKey, MiniBatch};
pub use crate::collective::all_reduce::{Contribution, Reduced};
pub use crate::context::{
    BatchOperators, ContributionOperators, GradientOperators, OperatorContext, StepUntilDone, execute_threads,
};
pub use crate::embed::push_rows::{PushedRows, RowGradients};
pub use crate::flow::advance_times::AdvanceTimes;
pub use crate::flow::barrier::Barrier;
pub use crate::flow::compute_thread::{ComputeThread, OnThread};
pub use crate::flow::gate::{Gate, Gated};
pub use crate::flow::map_async::MapAsync;
pub use crate::flow::on_frontier::OnFrontier;
pub use crate::flow::permits::{LimitInFlight, Permits};
pub use crate::graph::local_graph::{LocalGraph, OwnedInEdges};
pub use crate::sample::seeds::{BatchSource, NodeBatches, Seeds};
pub use crate::time::MessageTime;
pub use gnnflow_data::{PartitionBook, Result};
pub use gnnflow_kernels::block::Block;

pub use gnnflow_kernels::sample::Strategy;
pub use timely::dataflow::StreamVec;
pub use timely::dataflow::channels::pact::Pipeline;
pub use timely::dataflow::operators::core::Inspect;
pub use timely::dataflow::operators::generic::operator::Operator;
pub use timely::dataflow::operators::vec::ToStream;

/// The container builder of streams of vectors.
pub type VecBuilder<T> = timely::container::CapacityContainerBuilder<Vec<T>>;
