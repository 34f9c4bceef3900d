//! The loss of classification: cross-entropy, with weights of classes and nodes, or the focal loss.

use std::collections::HashMap;

use candle_core::Tensor;
use gnnflow_data::dataset::LabelKind;
use gnnflow_data::dump::NodeWeightTable;
use gnnflow_nn::loss::{cross_entropy, focal_loss};
use gnnflow_nn::node_targets::NodeTargets;

use super::classes::{Classes, count_training};
use crate::config::{ClassOptions, ClassWeights};
use crate::error::Error;
use crate::runtime::job::Job;

/// The weights of a classification, and the exponent of its focal loss.
#[derive(Debug, Default)]
pub(crate) struct ClassLoss {
    /// By class; empty if all are equal.
    by_class: Vec<f32>,
    /// Factors of nodes; nodes without an entry have 1.
    by_node: HashMap<u32, f32>,
    gamma: f64,
}

impl ClassLoss {
    /// Opens the loss of the task. `examples` returns the number of training nodes or edges of each class; `keep` selects the nodes
    /// whose factors are read.
    ///
    /// # Errors
    /// If the weights do not fit the classes, or the table of factors cannot be read.
    pub(crate) fn open(
        job: &Job,
        options: &ClassOptions,
        classes: &Classes,
        examples: impl FnOnce() -> Result<Vec<u64>, Error>,
        keep: impl Fn(u32) -> bool,
    ) -> Result<Self, Error> {
        let by_class = match &options.weights {
            None => Vec::new(),
            Some(weights) => {
                let weights = by_class(weights, classes, &examples()?);
                weights.map_err(|message| job.config.problem("train.classes.weights", &message))?
            }
        };
        let by_node = match &options.node_weights {
            None => HashMap::new(),
            Some(files) => NodeWeightTable { files: files.0.clone() }.read(&job.dataset, keep)?,
        };
        Ok(Self { by_class, by_node, gamma: options.focal_gamma.unwrap_or(0.0) })
    }

    /// Returns the targets of nodes with these classes.
    pub(crate) fn targets(&self, classes: Vec<u32>, nodes: &[u32]) -> NodeTargets {
        if self.is_plain() {
            return NodeTargets::Classes(classes);
        }
        let of_node = |node: &u32| self.by_node.get(node).copied().unwrap_or(1.0);
        let weights = classes.iter().zip(nodes).map(|(&class, node)| self.of_class(class) * of_node(node)).collect();
        NodeTargets::WeightedClasses { classes, weights, gamma: self.gamma }
    }

    /// Returns the loss of rows of logits, for the classes of edges.
    pub(crate) fn of_edges(&self, logits: &Tensor, classes: &[u32]) -> Result<Tensor, Error> {
        if self.is_plain() {
            return Ok(cross_entropy(logits, classes)?);
        }
        let weights: Vec<f32> = classes.iter().map(|&class| self.of_class(class)).collect();
        Ok(focal_loss(logits, classes, &weights, self.gamma)?)
    }

    fn is_plain(&self) -> bool {
        self.by_class.is_empty() && self.by_node.is_empty() && self.gamma == 0.0
    }

    fn of_class(&self, class: u32) -> f32 {
        self.by_class.get(class as usize).copied().unwrap_or(1.0)
    }
}

/// Returns the weights of classes, with a mean of 1 over the examples. `examples` are numbers of training examples by class.
///
/// # Errors
/// What is wrong with the given weights.
fn by_class(weights: &ClassWeights, classes: &Classes, examples: &[u64]) -> Result<Vec<f32>, String> {
    let weights: Vec<f64> = match weights {
        ClassWeights::Computed(_) => {
            examples.iter().map(|&count| if count == 0 { 0.0 } else { 1.0 / count as f64 }).collect()
        }
        ClassWeights::Given(weights) if weights.len() != classes.count => {
            let names: Vec<String> = (0..classes.count.min(8)).map(|class| classes.name(class)).collect();
            let more = if classes.count > 8 { ", …" } else { "" };
            let (found, count) = (weights.len(), classes.count);
            return Err(format!(
                "{found} weights for {count} classes; give one per class, in this order: {}{more}",
                names.join(", ")
            ));
        }
        ClassWeights::Given(weights) => weights.clone(),
    };
    let all: u64 = examples.iter().sum();
    let sum: f64 = weights.iter().zip(examples).map(|(weight, &count)| weight * count as f64).sum();
    if sum <= 0.0 {
        return Err("all training examples have the weight 0; raise the weight of a class that occurs".into());
    }
    Ok(weights.iter().map(|weight| (weight * all as f64 / sum) as f32).collect())
}

/// Returns the number of training nodes of each class, in all partitions.
///
/// # Errors
/// If the labels cannot be read.
pub(crate) fn training_nodes(job: &Job, classes: usize) -> Result<Vec<u64>, Error> {
    let mut counts = vec![0; classes];
    for part in 0..job.dataset.manifest().parts() {
        count_training(&job.dataset.nodes(part)?, &mut counts);
    }
    Ok(counts)
}

/// Returns the error of `options` for labels that are lists, if there is one.
pub(crate) fn refuse_for_lists(job: &Job, options: &ClassOptions, kind: LabelKind) -> Result<(), Error> {
    let given = [
        ("weights", options.weights.is_some()),
        ("node_weights", options.node_weights.is_some()),
        ("focal_gamma", options.focal_gamma.is_some()),
    ];
    match given.into_iter().find(|(_, given)| *given && kind == LabelKind::Multi) {
        Some((key, _)) => {
            let message = "nodes have several labels, and only single classes can be weighted; remove this key";
            Err(job.config.problem(&format!("train.classes.{key}"), message))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ComputedWeights;
    use gnnflow_data::dataset::LabelInfo;

    fn classes(names: &[&str]) -> Classes {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        Classes::new(&LabelInfo {
            kind: LabelKind::Class,
            classes: names.len() as u32,
            labeled: 0,
            counts: Vec::new(),
            names,
        })
    }

    #[test]
    fn weights_have_a_mean_of_1_over_the_examples() {
        let three = classes(&["a", "b", "c"]);
        let balanced = ClassWeights::Computed(ComputedWeights::Balanced);
        // scikit-learn: n / (classes × count), for the classes that occur.
        assert_eq!(by_class(&balanced, &three, &[6, 2, 0]).unwrap()[..2], [8.0 / 12.0, 2.0]);
        let given = ClassWeights::Given(vec![1.0, 3.0, 100.0]);
        assert_eq!(by_class(&given, &three, &[6, 2, 0]).unwrap()[..2], [8.0 / 12.0, 2.0]);
        let error = by_class(&ClassWeights::Given(vec![1.0]), &three, &[6, 2, 0]).unwrap_err();
        assert_eq!(error, "1 weights for 3 classes; give one per class, in this order: \"a\", \"b\", \"c\"");
        assert!(by_class(&ClassWeights::Given(vec![0.0, 0.0, 1.0]), &three, &[6, 2, 0]).is_err());
    }

    #[test]
    fn targets_have_weights_only_if_there_are_any() {
        assert_eq!(ClassLoss::default().targets(vec![1], &[7]), NodeTargets::Classes(vec![1]));
        let loss = ClassLoss { by_class: vec![0.5, 2.0], by_node: [(7, 3.0)].into(), gamma: 1.0 };
        let expected = NodeTargets::WeightedClasses { classes: vec![1, 0], weights: vec![6.0, 0.5], gamma: 1.0 };
        assert_eq!(loss.targets(vec![1, 0], &[7, 8]), expected);
    }
}
