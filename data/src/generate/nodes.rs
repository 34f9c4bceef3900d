//! The node table of a synthetic graph: ids, features, labels and splits.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeListArray, Float32Array, Int64Array, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use crate::error::Result;
use crate::rng::{Key, Permutation, Purpose};

/// A node table with the columns `node_id`, `features` (if any), and `label` and `split` (if there are classes).
pub(super) struct NodeTable<C> {
    class_of: C,
    classes: u64,
    /// Class means, `classes × features`.
    means: Vec<f32>,
    features: usize,
    noise: Key,
    order: Permutation,
    /// Positions in `order` at which train, validation and test end.
    split_ends: [u64; 3],
}

impl<C: Fn(u64) -> u64 + Sync> NodeTable<C> {
    /// Creates the table. `signal` is the distance of all class means from the origin, in standard deviations.
    pub(super) fn new(
        nodes: u64,
        features: usize,
        classes: u64,
        signal: f64,
        split: [f64; 3],
        seed: u64,
        class_of: C,
    ) -> Self {
        let root = Key::new(seed, Purpose::GenerateNodes);
        let mut means = Vec::with_capacity(classes as usize * features);
        for class in 0..classes {
            let key = root.fold(0).fold(class);
            let direction: Vec<f64> = (0..features as u64).map(|j| key.normal(j)).collect();
            let norm = direction.iter().map(|x| x * x).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
            means.extend(direction.iter().map(|x| (signal * x / norm) as f32));
        }
        let order = Permutation::new(Key::new(seed, Purpose::Split), nodes);
        let mut share = 0.0;
        let split_ends = split.map(|fraction| {
            share += fraction;
            ((share * nodes as f64).round() as u64).min(nodes)
        });
        Self { class_of, classes, means, features, noise: root.fold(1), order, split_ends }
    }

    pub(super) fn schema(&self) -> SchemaRef {
        let mut fields = vec![Field::new("node_id", DataType::Int64, false)];
        if self.features > 0 {
            fields.push(Field::new("features", self.list_type(), false));
        }
        if self.classes > 0 {
            fields.push(Field::new("label", DataType::Int64, false));
            fields.push(Field::new("split", DataType::Utf8, false));
        }
        Arc::new(Schema::new(fields))
    }

    pub(super) fn row_bytes(&self) -> usize {
        24 + 4 * self.features
    }

    fn list_type(&self) -> DataType {
        DataType::FixedSizeList(Self::element(), self.features as i32)
    }

    fn element() -> Arc<Field> {
        Arc::new(Field::new("element", DataType::Float32, false))
    }

    pub(super) fn rows(&self, rows: Range<u64>) -> Result<Vec<ArrayRef>> {
        let mut columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from_iter_values(rows.clone().map(|id| id as i64)))];
        if self.features > 0 {
            let mut values = Vec::with_capacity((rows.end - rows.start) as usize * self.features);
            rows.clone().for_each(|id| self.push_features(id, &mut values));
            let values = Arc::new(Float32Array::from(values));
            columns.push(Arc::new(FixedSizeListArray::new(Self::element(), self.features as i32, values, None)));
        }
        if self.classes > 0 {
            let labels = rows.clone().map(|id| (self.class_of)(id) as i64);
            columns.push(Arc::new(Int64Array::from_iter_values(labels)));
            columns.push(Arc::new(StringArray::from_iter_values(rows.map(|id| self.split(id)))));
        }
        Ok(columns)
    }

    /// Appends the features of a node: the class mean, if there are classes, plus standard normal noise.
    fn push_features(&self, id: u64, values: &mut Vec<f32>) {
        let key = self.noise.fold(id);
        let start = values.len();
        for pair in 0..self.features.div_ceil(2) {
            let (a, b) = normal_pair(key.draw(pair as u64));
            values.push(a);
            if 2 * pair + 1 < self.features {
                values.push(b);
            }
        }
        if self.classes > 0 {
            let first = (self.class_of)(id) as usize * self.features;
            let mean = &self.means[first..first + self.features];
            values[start..].iter_mut().zip(mean).for_each(|(value, mean)| *value += mean);
        }
    }

    fn split(&self, id: u64) -> &'static str {
        let place = self.order.at(id);
        let names = ["train", "val", "test"];
        self.split_ends.iter().position(|&end| place < end).map_or("none", |i| names[i])
    }
}

/// Returns two standard normal numbers from 64 random bits (Box–Muller in single precision; the tail ends near 6.7).
#[inline]
fn normal_pair(bits: u64) -> (f32, f32) {
    const SCALE: f32 = 1.0 / (1u64 << 32) as f32;
    let radius = (-2.0 * (((bits >> 32) as f32 + 0.5) * SCALE).ln()).max(0.0).sqrt();
    let (sin, cos) = (bits as u32 as f32 * SCALE * std::f32::consts::TAU).sin_cos();
    (radius * cos, radius * sin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_standard_normal_and_uncorrelated() {
        let key = Key::new(9, Purpose::GenerateNodes);
        let pairs: Vec<(f64, f64)> =
            (0..100_000).map(|i| normal_pair(key.draw(i))).map(|(a, b)| (f64::from(a), f64::from(b))).collect();
        let mean = |f: &dyn Fn(&(f64, f64)) -> f64| pairs.iter().map(f).sum::<f64>() / 1e5;
        for (name, got, want) in [
            ("mean", mean(&|p| p.0 + p.1), 0.0),
            ("variance of the first", mean(&|p| p.0 * p.0), 1.0),
            ("variance of the second", mean(&|p| p.1 * p.1), 1.0),
            ("covariance", mean(&|p| p.0 * p.1), 0.0),
            ("fourth moment", mean(&|p| p.0.powi(4)) / 3.0, 1.0),
        ] {
            assert!((got - want).abs() < 0.04, "{name}: {got}");
        }
        assert!(normal_pair(u64::MAX).0.is_finite() && normal_pair(0).0.is_finite());
    }
}
