//! Classes and logits.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray};
use arrow::datatypes::DataType;
use gnnflow_data::dataset::{LabelInfo, Nodes};

use crate::context::TRAIN;

/// The classes of labels.
#[derive(Clone, Debug)]
pub(crate) struct Classes {
    /// Number of classes.
    pub(crate) count: usize,
    /// Names, if the dump's labels are strings.
    names: Vec<String>,
}

impl Classes {
    pub(crate) fn new(info: &LabelInfo) -> Self {
        Self { count: info.classes as usize, names: info.names.clone() }
    }

    /// Returns the type of [`Classes::column`].
    pub(crate) fn data_type(&self) -> DataType {
        if self.names.is_empty() { DataType::Int64 } else { DataType::Utf8 }
    }

    /// Returns the name of a class, or its number if the dump's labels are numbers.
    pub(crate) fn name(&self, class: usize) -> String {
        self.names.get(class).map_or_else(|| class.to_string(), |name| format!("\"{name}\""))
    }

    /// Returns the name of a class without quotes.
    pub(crate) fn plain_name(&self, class: usize) -> String {
        self.names.get(class).cloned().unwrap_or_else(|| class.to_string())
    }

    /// Returns a column of class numbers or names.
    pub(crate) fn column(&self, classes: impl Iterator<Item = Option<usize>>) -> ArrayRef {
        if self.names.is_empty() {
            Arc::new(Int64Array::from_iter(classes.map(|class| class.map(|class| class as i64))))
        } else {
            Arc::new(StringArray::from_iter(classes.map(|class| class.map(|class| self.names[class].as_str()))))
        }
    }
}

/// Adds the number of training nodes of each class to `counts`.
pub(super) fn count_training(nodes: &Nodes, counts: &mut [u64]) {
    let Some(labels) = nodes.class_labels() else { return };
    for local in nodes.in_split(TRAIN) {
        if let Some(count) = usize::try_from(labels[local as usize]).ok().and_then(|class| counts.get_mut(class)) {
            *count += 1;
        }
    }
}

/// Adds the number of training nodes with each label to `counts`, and returns the number of training nodes.
pub(super) fn count_training_labels(nodes: &Nodes, counts: &mut [u64]) -> u64 {
    let Some((flags, width)) = nodes.multi_labels() else { return 0 };
    let training = nodes.in_split(TRAIN);
    for &local in &training {
        let of_node = &flags[local as usize * width..][..width];
        counts.iter_mut().zip(of_node).for_each(|(count, &flag)| *count += u64::from(flag));
    }
    training.len() as u64
}

/// Returns the index of the maximum; the first of equal ones.
pub(crate) fn largest(row: &[f32]) -> usize {
    (1..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best })
}

/// Returns the softmax of the logits of a row.
pub(crate) fn probabilities(row: &[f32]) -> Vec<f32> {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exp: Vec<f32> = row.iter().map(|x| (x - max).exp()).collect();
    let sum: f32 = exp.iter().sum();
    exp.into_iter().map(|x| x / sum).collect()
}

/// Returns `−log softmax(row)[label]`.
pub(crate) fn cross_entropy(row: &[f32], label: usize) -> f64 {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&x| f64::from(x - max).exp()).sum();
    sum.ln() - f64::from(row[label] - max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cross_entropy_equals_its_formula() {
        let row = [1.0f32, 2.0, -1.0];
        let total: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
        assert!((cross_entropy(&row, 1) + (f64::from(row[1]).exp() / total).ln()).abs() < 1e-12);
        assert!(cross_entropy(&[1000.0, 0.0], 1).is_finite());
        assert_eq!((largest(&row), largest(&[3.0, 3.0])), (1, 0));
    }
}
