//! The properties of a model that full-graph schedules and their plans need.

use std::ops::Range;

use crate::error::Result;
use crate::model::{Hop, Model};

/// The node tasks of a model, and the hops between them.
///
/// A model of `L` layers has `L` hops and `L + 1` node tasks: task `l` reads the rows that hop `l - 1` aggregated and
/// computes the rows that hop `l` sends (Dorylus, section 4).
///
/// ```
/// use candle_core::Device;
/// use gnnflow_nn::{Model, ModelSpec, Registry};
///
/// let model = Model::build(&ModelSpec::new("gcn", 2, 16, 8, 4), &Registry::default(), &Device::Cpu, 7)?;
/// let profile = model.profile()?;
/// assert_eq!((profile.hops.len(), profile.tasks.len()), (2, 3));
/// assert_eq!((profile.hops[0].width, profile.hops[1].width), (8, 4));
/// assert!(profile.tasks[0].learns && !profile.tasks[0].constant);
/// # Ok::<(), gnnflow_nn::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ModelProfile {
    /// By layer.
    pub hops: Vec<Hop>,
    /// By node task.
    pub tasks: Vec<TaskProfile>,
    /// By hop: the range of its attention vectors among the parameters, if computing edge weights needs them (GATv2).
    pub attention: Vec<Option<Range<usize>>>,
    /// The length of the flat vector of all parameters and buffers.
    pub parameters: usize,
}

/// One node task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TaskProfile {
    /// Whether the task has parameters. `false` only for the first task and for element-wise ones.
    pub learns: bool,
    /// Whether the task returns the same rows in every epoch. Only the first task may.
    pub constant: bool,
    /// `[a, b]` if the task only computes `a · aggregated + b · initial`.
    pub element_wise: Option<[f32; 2]>,
    /// Whether the task reads the rows before the first layer.
    pub reads_initial: bool,
    /// Whether its rows may be split with equal bits: in evaluation, and in training.
    pub splittable: [bool; 2],
    /// Whether ReLU directly follows the layer before. A layer that fuses both holds one row less.
    pub ends_with_relu: bool,
}

impl Model {
    /// Returns the model's hops and node tasks.
    ///
    /// # Errors
    /// [`Error::Spec`](crate::Error::Spec) when a layer has no full-graph aggregation.
    pub fn profile(&self) -> Result<ModelProfile> {
        let task = |index: usize| {
            let element_wise = self.task_by_column(index);
            TaskProfile {
                learns: if index == 0 { self.first_task_learns() } else { element_wise.is_none() },
                constant: index == 0 && self.first_task_is_constant(),
                element_wise,
                reads_initial: self.task_reads_initial(index),
                splittable: [false, true].map(|training| self.task_works_by_row(index, training)),
                ends_with_relu: index > 0 && self.ends_with_relu(index - 1),
            }
        };
        Ok(ModelProfile {
            hops: self.hops()?,
            tasks: (0..=self.num_layers()).map(task).collect(),
            attention: (0..self.num_layers()).map(|index| self.attention_vectors(index)).collect(),
            parameters: self.params().flat_len(),
        })
    }
}
