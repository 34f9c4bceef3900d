//! Keys of `[train]` that training reads, by schedule, sampler and task. All others are refused.

use super::Sampler;
use super::train::{Task, Train};

/// The condition under which training reads a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// With every schedule, sampler and task.
    Always,
    /// With schedules that sample batches.
    Sampled,
    /// With samplers that draw neighbors hop by hop.
    Hops,
    /// With batches of a given number of seeds, and with edges that are scored in chunks.
    Batch,
    /// With `full-graph` and `tensor-parallel`.
    FullGraph,
    /// With one task.
    Task(Task),
    /// With tasks that predict classes.
    Classes,
    /// If training starts from a model, with an optimizer that has a state.
    From,
}

/// All keys of `[train]`, including its tables, each with the condition under which it is read.
pub(super) const TRAIN: &[(&str, Use)] = &[
    ("task", Use::Always),
    ("link", Use::Task(Task::LinkPrediction)),
    ("edge", Use::Task(Task::EdgeClassification)),
    ("classes", Use::Classes),
    ("from", Use::Always),
    ("from_optimizer", Use::From),
    ("schedule", Use::Always),
    ("epochs", Use::Always),
    ("batch", Use::Batch),
    ("fanouts", Use::Hops),
    ("sampler", Use::Sampled),
    ("operators", Use::Sampled),
    ("optimizer", Use::Always),
    ("lr_schedule", Use::Always),
    ("clip_norm", Use::Always),
    ("evaluate_every", Use::Always),
    ("early_stop", Use::Always),
    ("metric", Use::Always),
    ("seed", Use::Always),
    ("threads", Use::Always),
    ("device", Use::Always),
    ("window", Use::Sampled),
    ("memory", Use::Always),
    // Exact inference reads features with every schedule.
    ("read_ahead", Use::Always),
    ("tensor_workers", Use::FullGraph),
    ("checkpoint_every", Use::Always),
    ("checkpoint_on_signal", Use::Always),
    ("keep_checkpoints", Use::Always),
    ("keep_best", Use::Always),
    ("trace", Use::Always),
    ("histograms", Use::Always),
    ("check_values", Use::Always),
    // Without sampled blocks, the hash of no blocks.
    ("hash_blocks", Use::Always),
];

impl Use {
    /// Returns the error text for a key that `train` does not read; `None` if `train` reads it.
    pub(super) fn refusal(self, train: &Train) -> Option<String> {
        let (schedule, sampler) = (&train.schedule, &train.sampler);
        let is_full_graph = train.is_full_graph();
        match self {
            Self::Always => None,
            Self::Sampled if is_full_graph => Some(format!(
                "`{schedule}` trains on the full graph and samples nothing, so it does not read this key; remove it"
            )),
            Self::Hops if is_full_graph => Self::Sampled.refusal(train),
            Self::Hops if sampler.draws_subgraphs() => {
                let size = match sampler {
                    Sampler::Cluster(_) => "`clusters` and `clusters_per_batch` set the size of batches",
                    _ => "`batch` sets the size of batches",
                };
                Some(format!(
                    "`{sampler}` has no fanouts: all layers read all edges of a batch; remove this key ({size})"
                ))
            }
            Self::Batch if is_full_graph && !train.learns_edges() => {
                Some(format!("`{schedule}` has no batches: each step computes all nodes; remove this key"))
            }
            Self::Batch if !is_full_graph && matches!(sampler, Sampler::Cluster(_)) => {
                Some("`cluster` makes batches of clusters; use `clusters_per_batch`".into())
            }
            Self::FullGraph if !is_full_graph => Some(format!(
                "`{schedule}` has no tasks for tensor workers; remove this key, or use `full-graph` or `tensor-parallel`"
            )),
            Self::Task(task) if train.task != task => {
                Some(format!("only the task `{task}` has it, not `{}`; remove this key", train.task))
            }
            Self::Classes if !train.task.has_classes() => {
                Some(format!("the task `{}` predicts no classes; remove this key", train.task))
            }
            Self::From if train.from.is_none() => {
                Some("has no effect without `train.from`; name a run there, or remove this key".into())
            }
            Self::From if train.optimizer.state() == 0 && train.average_momentum() == 0.0 => {
                Some(format!("has no effect: `{}` without momentum has no state; remove this key", train.optimizer))
            }
            Self::Sampled | Self::Hops | Self::Batch | Self::FullGraph | Self::Task(_) | Self::Classes | Self::From => {
                None
            }
        }
    }
}

/// Returns whether `train` reads the key `train.KEY`.
pub(super) fn is_used(key: &str, train: &Train) -> bool {
    TRAIN.iter().any(|(known, when)| *known == key && when.refusal(train).is_none())
}

/// Returns the keys of `[train]` that `train` does not read.
pub(super) fn unused(train: &Train) -> Vec<&'static str> {
    TRAIN.iter().filter(|(_, when)| when.refusal(train).is_some()).map(|(key, _)| *key).collect()
}
