//! The loss of classification: cross-entropy of classes or of each label, with weights of classes and nodes, or the focal loss.

use std::collections::HashMap;

use candle_core::Tensor;
use gnnflow_data::dataset::{LabelInfo, LabelKind};
use gnnflow_data::dump::NodeWeightTable;
use gnnflow_nn::loss::{cross_entropy, focal_loss};
use gnnflow_nn::node_targets::NodeTargets;

use super::classes::{Classes, count_training, count_training_labels};
use crate::config::{ClassOptions, ClassWeights};
use crate::error::Error;
use crate::runtime::job::Job;

/// The weights of a classification, and the exponent of its focal loss.
#[derive(Debug, Default)]
pub(crate) struct ClassLoss {
    /// By class or label; empty if all are equal.
    by_class: Vec<f32>,
    /// Factors of nodes; nodes without an entry have 1.
    by_node: HashMap<u32, f32>,
    gamma: f64,
}

impl ClassLoss {
    /// Opens the loss of the task. `counts` returns the numbers of training nodes or edges; `keep` selects the nodes whose factors are
    /// read.
    ///
    /// # Errors
    /// If the weights do not fit the classes, or the table of factors cannot be read.
    pub(crate) fn open(
        job: &Job,
        options: &ClassOptions,
        classes: &Classes,
        counts: impl FnOnce() -> Result<ClassCounts, Error>,
        keep: impl Fn(u32) -> bool,
    ) -> Result<Self, Error> {
        let by_class = match &options.weights {
            None => Vec::new(),
            Some(weights) => {
                let weights = by_class(weights, classes, &counts()?);
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
        let weight = |(&class, &node): (&u32, &u32)| self.of_class(class as usize) * self.of_node(node);
        let weights = classes.iter().zip(nodes).map(weight).collect();
        NodeTargets::WeightedClasses { classes, weights, gamma: self.gamma }
    }

    /// Returns the targets of nodes with several labels. `flags` returns a 0 or 1 for each label of a node.
    pub(crate) fn label_targets<'a>(&self, flags: impl Fn(u32) -> &'a [u8], nodes: &[u32]) -> NodeTargets {
        if self.is_plain() {
            let flags = nodes.iter().flat_map(|&node| flags(node));
            return NodeTargets::Flags(flags.map(|&flag| f32::from(flag)).collect());
        }
        let weights = nodes.iter().flat_map(|&node| {
            let of_node = self.of_node(node);
            let weight = move |(label, &flag): (usize, &u8)| match flag {
                0 => -of_node,
                _ => of_node * self.of_class(label),
            };
            flags(node).iter().enumerate().map(weight)
        });
        NodeTargets::WeightedFlags { weights: weights.collect(), gamma: self.gamma }
    }

    /// Returns the loss of rows of logits, for the classes of edges.
    pub(crate) fn of_edges(&self, logits: &Tensor, classes: &[u32]) -> Result<Tensor, Error> {
        if self.is_plain() {
            return Ok(cross_entropy(logits, classes)?);
        }
        let weights: Vec<f32> = classes.iter().map(|&class| self.of_class(class as usize)).collect();
        Ok(focal_loss(logits, classes, &weights, self.gamma)?)
    }

    fn is_plain(&self) -> bool {
        self.by_class.is_empty() && self.by_node.is_empty() && self.gamma == 0.0
    }

    fn of_class(&self, class: usize) -> f32 {
        self.by_class.get(class).copied().unwrap_or(1.0)
    }

    fn of_node(&self, node: u32) -> f32 {
        self.by_node.get(&node).copied().unwrap_or(1.0)
    }
}

/// Numbers of training examples, in all partitions.
pub(crate) enum ClassCounts {
    /// Of each class, if examples have one.
    Classes(Vec<u64>),
    /// If nodes have several labels: the nodes with each label, and all nodes.
    Labels(Vec<u64>, u64),
}

impl ClassCounts {
    /// Counts the training nodes.
    ///
    /// # Errors
    /// If the labels cannot be read.
    pub(crate) fn of_nodes(job: &Job, info: &LabelInfo) -> Result<Self, Error> {
        let (mut counts, mut all) = (vec![0; info.classes as usize], 0);
        for part in 0..job.dataset.manifest().parts() {
            let nodes = job.dataset.nodes(part)?;
            count_training(&nodes, &mut counts);
            all += count_training_labels(&nodes, &mut counts);
        }
        Ok(if info.kind == LabelKind::Multi { Self::Labels(counts, all) } else { Self::Classes(counts) })
    }

    /// Returns the weights `"balanced"`.
    fn balanced(&self) -> Vec<f64> {
        let over = |dividend: u64, divisor: u64| dividend as f64 / divisor as f64;
        match self {
            Self::Classes(counts) => {
                counts.iter().map(|&count| if count == 0 { 0.0 } else { over(1, count) }).collect()
            }
            Self::Labels(counts, all) => {
                let is_of_some = |count| 0 < count && count < *all;
                counts.iter().map(|&count| if is_of_some(count) { over(all - count, count) } else { 1.0 }).collect()
            }
        }
    }

    /// Returns the weights as the loss uses them: with a mean of 1 over the examples if they have one class each.
    ///
    /// # Errors
    /// If all examples have the weight 0.
    fn scale(&self, weights: &[f64]) -> Result<Vec<f32>, String> {
        let Self::Classes(counts) = self else {
            return Ok(weights.iter().map(|&weight| weight as f32).collect());
        };
        let all: u64 = counts.iter().sum();
        let sum: f64 = weights.iter().zip(counts).map(|(weight, &count)| weight * count as f64).sum();
        if sum <= 0.0 {
            return Err("all training examples have the weight 0; raise the weight of a class that occurs".into());
        }
        Ok(weights.iter().map(|weight| (weight * all as f64 / sum) as f32).collect())
    }
}

/// Returns the weights of classes or labels.
///
/// # Errors
/// What is wrong with the given weights.
fn by_class(weights: &ClassWeights, classes: &Classes, counts: &ClassCounts) -> Result<Vec<f32>, String> {
    match weights {
        ClassWeights::Computed(_) => counts.scale(&counts.balanced()),
        ClassWeights::Given(weights) if weights.len() != classes.count => {
            let names: Vec<String> = (0..classes.count.min(8)).map(|class| classes.name(class)).collect();
            let more = if classes.count > 8 { ", …" } else { "" };
            let (found, count) = (weights.len(), classes.count);
            let (one, many) = match counts {
                ClassCounts::Classes(_) => ("class", "classes"),
                ClassCounts::Labels(..) => ("label", "labels"),
            };
            let names = names.join(", ");
            Err(format!("{found} weights for {count} {many}; give one per {one}, in this order: {names}{more}"))
        }
        ClassWeights::Given(weights) => counts.scale(weights),
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
            lists: None,
        })
    }

    fn balanced() -> ClassWeights {
        ClassWeights::Computed(ComputedWeights::Balanced)
    }

    #[test]
    fn weights_have_a_mean_of_1_over_the_examples() {
        let three = classes(&["a", "b", "c"]);
        let counts = ClassCounts::Classes(vec![6, 2, 0]);
        // scikit-learn: n / (classes × count), for the classes that occur.
        assert_eq!(by_class(&balanced(), &three, &counts).unwrap()[..2], [8.0 / 12.0, 2.0]);
        let given = ClassWeights::Given(vec![1.0, 3.0, 100.0]);
        assert_eq!(by_class(&given, &three, &counts).unwrap()[..2], [8.0 / 12.0, 2.0]);
        let error = by_class(&ClassWeights::Given(vec![1.0]), &three, &counts).unwrap_err();
        assert_eq!(error, "1 weights for 3 classes; give one per class, in this order: \"a\", \"b\", \"c\"");
        assert!(by_class(&ClassWeights::Given(vec![0.0, 0.0, 1.0]), &three, &counts).is_err());
    }

    #[test]
    fn weights_of_labels_are_not_scaled() {
        let four = classes(&["a", "b", "c", "d"]);
        let counts = ClassCounts::Labels(vec![2, 4, 0, 8], 8);
        assert_eq!(by_class(&balanced(), &four, &counts).unwrap(), [3.0, 1.0, 1.0, 1.0]);
        let given = ClassWeights::Given(vec![9.0, 0.5, 0.0, 1.0]);
        assert_eq!(by_class(&given, &four, &counts).unwrap(), [9.0, 0.5, 0.0, 1.0]);
        let error = by_class(&ClassWeights::Given(vec![1.0]), &four, &counts).unwrap_err();
        assert!(error.starts_with("1 weights for 4 labels; give one per label"), "{error}");
    }

    #[test]
    fn targets_have_weights_only_if_there_are_any() {
        assert_eq!(ClassLoss::default().targets(vec![1], &[7]), NodeTargets::Classes(vec![1]));
        let loss = ClassLoss { by_class: vec![0.5, 2.0], by_node: [(7, 3.0)].into(), gamma: 1.0 };
        let expected = NodeTargets::WeightedClasses { classes: vec![1, 0], weights: vec![6.0, 0.5], gamma: 1.0 };
        assert_eq!(loss.targets(vec![1, 0], &[7, 8]), expected);
        // The weight of a label multiplies the loss of nodes that have it.
        let flags = |node| if node == 7 { &[0, 1][..] } else { &[1, 0] };
        let expected = NodeTargets::WeightedFlags { weights: vec![-3.0, 6.0, 0.5, -1.0], gamma: 1.0 };
        assert_eq!(loss.label_targets(flags, &[7, 8]), expected);
        assert_eq!(ClassLoss::default().label_targets(flags, &[7]), NodeTargets::Flags(vec![0.0, 1.0]));
    }
}
