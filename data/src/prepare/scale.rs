//! Scaling of features: by row, or by column over the entire graph.

use std::ops::Range;

use crate::dataset::{ColumnScale, FeatureInfo};
use crate::dump::NodeReader;
use crate::error::{Error, Result};
use crate::group::{Destination, Message, ProcessGroup, put, take};
use crate::ids::NodeIds;
use crate::progress::Progress;
use crate::source::Normalize;

/// The scaling of rows.
pub(crate) enum Scale {
    None,
    /// Division by the sum of absolute values of each row; the number of columns.
    Row(usize),
    /// Mean and inverse standard deviation of each column.
    Standard(Vec<ColumnScale>),
}

impl Scale {
    /// Returns the scaling of a dataset's features.
    pub(crate) fn of(features: &FeatureInfo) -> Self {
        match features.normalize {
            Normalize::Row if features.dim > 0 => Self::Row(features.dim),
            Normalize::Standard if features.dim > 0 => Self::Standard(features.scales.clone()),
            Normalize::None | Normalize::Row | Normalize::Standard => Self::None,
        }
    }

    /// Returns the means and deviations of columns, if it has them.
    pub(super) fn columns(&self) -> &[ColumnScale] {
        match self {
            Self::Standard(scales) => scales,
            Self::None | Self::Row(_) => &[],
        }
    }

    /// Creates the scaling. For [`Normalize::Standard`], reads the features of the remaining nodes of the dump once.
    pub(super) fn new<C: ProcessGroup>(
        processes: &C,
        normalize: Normalize,
        nodes: &NodeReader,
        ids: &NodeIds,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let width = nodes.feature_width();
        if width == 0 {
            return Ok(Self::None);
        }
        match normalize {
            Normalize::None => Ok(Self::None),
            Normalize::Row => Ok(Self::Row(width)),
            Normalize::Standard => {
                let mut all = Moments::new(width);
                progress.stage("measuring features", Some(nodes.rows()), "nodes");
                let produce = |unit: usize, send: &mut dyn FnMut(Destination, Moments) -> bool| {
                    let block = nodes.feature_block(unit);
                    let moments = |first: u64, mut features: Vec<f32>| {
                        if ids.has_dropped() {
                            let rows = (0..).zip(features.chunks_exact(width));
                            let remaining = rows.filter(|(row, _)| ids.index_of_row((first + row) as u32).is_some());
                            features = remaining.flat_map(|(_, row)| row).copied().collect();
                        }
                        Ok(Moments::of(&features, width, block.clone()))
                    };
                    nodes.read_features(unit, moments, &mut |moments| send(Destination::All, moments))
                };
                processes.exchange(nodes.units(), &produce, &mut |_, chunk: Moments| {
                    all.merge(&chunk);
                    progress.advance(chunk.rows as u64);
                    Ok(())
                })?;
                progress.done();
                Ok(Self::Standard(all.scales()))
            }
        }
    }

    /// Scales whole rows, which have the values in `block`. The others stay 0.
    pub(crate) fn apply(&self, features: &mut [f32], block: Range<usize>) {
        match self {
            Self::None => {}
            Self::Row(width) => {
                for row in features.chunks_exact_mut(*width) {
                    let sum: f64 = row.iter().map(|x| f64::from(x.abs())).sum();
                    let divisor = sum.max(1.0) as f32;
                    row.iter_mut().for_each(|x| *x /= divisor);
                }
            }
            Self::Standard(scales) => {
                for row in features.chunks_exact_mut(scales.len()) {
                    for (x, scale) in row[block.clone()].iter_mut().zip(&scales[block.clone()]) {
                        *x = scale.apply(*x);
                    }
                }
            }
        }
    }
}

/// The moments of each column. They are merged in the order of the dump, so that the result does not depend on threads (update formula of
/// Chan, Golub and LeVeque).
struct Moments {
    /// Number of nodes.
    rows: f64,
    columns: Vec<Column>,
}

/// The moments of a column.
#[derive(Clone, Copy, Debug, Default)]
struct Column {
    /// Number of values.
    count: f64,
    mean: f64,
    /// Sum of squared deviations.
    squares: f64,
}

impl Message for Moments {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put(&mut bytes, &[self.rows]);
        put(&mut bytes, &self.columns.iter().flat_map(|c| [c.count, c.mean, c.squares]).collect::<Vec<_>>());
        bytes
    }

    fn decode(mut bytes: &[u8]) -> Result<Self> {
        let [rows] = take::<f64>(&mut bytes)?[..] else {
            return Err(Error::Bug("invalid moments".into()));
        };
        let columns: Vec<f64> = take(&mut bytes)?;
        let column = |c: &[f64]| Column { count: c[0], mean: c[1], squares: c[2] };
        Ok(Self { rows, columns: columns.chunks_exact(3).map(column).collect() })
    }
}

impl Moments {
    fn new(width: usize) -> Self {
        Self { rows: 0.0, columns: vec![Column::default(); width] }
    }

    /// The moments of the columns in `block`.
    fn of(features: &[f32], width: usize, block: Range<usize>) -> Self {
        let mut this = Self::new(width);
        this.rows = (features.len() / width) as f64;
        let columns = &mut this.columns[block.clone()];
        for row in features.chunks_exact(width) {
            row[block.clone()].iter().zip(&mut *columns).for_each(|(x, column)| column.mean += f64::from(*x));
        }
        for column in &mut *columns {
            column.count = this.rows;
            column.mean /= this.rows.max(1.0);
        }
        for row in features.chunks_exact(width) {
            let values = row[block.clone()].iter().zip(&mut *columns);
            values.for_each(|(x, column)| column.squares += (f64::from(*x) - column.mean).powi(2));
        }
        this
    }

    fn merge(&mut self, other: &Self) {
        for (column, other) in self.columns.iter_mut().zip(&other.columns) {
            let count = column.count + other.count;
            if count > 0.0 {
                let delta = other.mean - column.mean;
                column.mean += delta * other.count / count;
                column.squares += other.squares + delta * delta * column.count * other.count / count;
            }
            column.count = count;
        }
        self.rows += other.rows;
    }

    fn scales(&self) -> Vec<ColumnScale> {
        let scale = |column: &Column| {
            let deviation = (column.squares / column.count.max(1.0)).sqrt();
            ColumnScale::new(column.mean, if deviation > 0.0 { 1.0 / deviation } else { 0.0 })
        };
        self.columns.iter().map(scale).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_scaling_divides_by_sums_of_at_least_one() {
        let mut features = vec![1.0, -3.0, 0.25, 0.25, 0.0, 0.0];
        Scale::Row(2).apply(&mut features, 0..2);
        assert_eq!(features, [0.25, -0.75, 0.25, 0.25, 0.0, 0.0]);
    }

    #[test]
    fn merged_moments_equal_those_of_all_rows() {
        let features: Vec<f32> = (0..600).map(|i| ((i * 37) % 101) as f32 - 20.0).collect();
        let (whole, mut merged) = (Moments::of(&features, 3, 0..3), Moments::new(3));
        features.chunks(33).for_each(|chunk| merged.merge(&Moments::of(chunk, 3, 0..3)));
        for (a, b) in whole.scales().into_iter().zip(merged.scales()) {
            assert!((a.mean() - b.mean()).abs() < 1e-9 && (a.factor() - b.factor()).abs() < 1e-9);
        }
        let mut scaled = features;
        Scale::Standard(merged.scales()).apply(&mut scaled, 0..3);
        let again = Moments::of(&scaled, 3, 0..3);
        assert!(again.columns.iter().all(|c| c.mean.abs() < 1e-6 && (c.squares / 200.0 - 1.0).abs() < 1e-5));
    }
}
