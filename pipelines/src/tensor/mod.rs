//! Tensor tasks: what the model does with nodes alone, between two aggregations over the whole graph; and who does them.
//!
//! A task is a function of rows, parameters and a key, and of nothing else (Dorylus, section 4: apply-vertex and its backward
//! twin); so it can be done by anybody, as often as one likes, and always comes to the same bits. The compute thread does
//! it, or a [`TensorWorker`] to which a controller gives it; how one is reached is the program's business ([`TensorWorkers`]).

mod autotune;
mod controller;
mod hand;
mod queue;
mod shape;
mod size;

pub(crate) use controller::{Answer, Controller, Setting};
pub(crate) use queue::BATCH;
pub(crate) use shape::ResultShapes;
pub(crate) use size::{AT_ONCE, task_bytes, under_way};

pub use crate::runtime::executor::{Again, Asked, Enlisted, TensorWorker, TensorWorkers};
pub use crate::runtime::tensor_task::{NodeBack, NodeGradient, NodeRows, TensorResult, TensorTask, Work};
pub use gnnflow_nn::node_targets::NodeTargets;
