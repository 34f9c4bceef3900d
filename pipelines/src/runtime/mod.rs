//! The interface between a run and the program around it.

pub mod executor;
pub(crate) mod job;
pub(crate) mod records;
pub(crate) mod registry;
pub(crate) mod task_sizes;
/// Node tasks under their former names, for `engine::stages`.
pub(crate) mod tensor_task {
    pub(crate) use gnnflow_nn::node_task::{
        NodeBack, NodeGradient, NodeResult as TensorResult, NodeRows, NodeTask as TensorTask, Work, matrix,
    };
}
