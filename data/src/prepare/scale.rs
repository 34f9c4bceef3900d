//! Scaling of features: by row, or by column over the entire graph.

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
    Standard(Vec<(f64, f64)>),
}

impl Scale {
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
                    let moments = |first: u64, mut features: Vec<f32>| {
                        if ids.has_dropped() {
                            let rows = (0..).zip(features.chunks_exact(width));
                            let remaining = rows.filter(|(row, _)| ids.index_of_row((first + row) as u32).is_some());
                            features = remaining.flat_map(|(_, row)| row).copied().collect();
                        }
                        Ok(Moments::of(&features, width))
                    };
                    nodes.read_features(unit, moments, &mut |moments| send(Destination::All, moments))
                };
                processes.exchange(nodes.units(), &produce, &mut |_, chunk: Moments| {
                    all.merge(&chunk);
                    progress.advance(chunk.count as u64);
                    Ok(())
                })?;
                progress.done();
                Ok(Self::Standard(all.scales()))
            }
        }
    }

    /// Scales whole rows.
    pub(crate) fn apply(&self, features: &mut [f32]) {
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
                    for (x, (mean, factor)) in row.iter_mut().zip(scales) {
                        *x = ((f64::from(*x) - mean) * factor) as f32;
                    }
                }
            }
        }
    }
}

/// The count and, per column, the mean and the sum of squared deviations. They are merged in the order of the dump, so that the result
/// does not depend on threads (update formula of Chan, Golub and LeVeque).
struct Moments {
    count: f64,
    columns: Vec<(f64, f64)>,
}

impl Message for Moments {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put(&mut bytes, &[self.count]);
        put(&mut bytes, &self.columns.iter().flat_map(|&(mean, squares)| [mean, squares]).collect::<Vec<_>>());
        bytes
    }

    fn decode(mut bytes: &[u8]) -> Result<Self> {
        let [count] = take::<f64>(&mut bytes)?[..] else {
            return Err(Error::Bug("invalid moments".into()));
        };
        let columns: Vec<f64> = take(&mut bytes)?;
        Ok(Self { count, columns: columns.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect() })
    }
}

impl Moments {
    fn new(width: usize) -> Self {
        Self { count: 0.0, columns: vec![(0.0, 0.0); width] }
    }

    fn of(features: &[f32], width: usize) -> Self {
        let mut this = Self::new(width);
        this.count = (features.len() / width) as f64;
        for row in features.chunks_exact(width) {
            row.iter().zip(&mut this.columns).for_each(|(x, (sum, _))| *sum += f64::from(*x));
        }
        this.columns.iter_mut().for_each(|(sum, _)| *sum /= this.count.max(1.0));
        for row in features.chunks_exact(width) {
            row.iter()
                .zip(&mut this.columns)
                .for_each(|(x, (mean, squares))| *squares += (f64::from(*x) - *mean).powi(2));
        }
        this
    }

    fn merge(&mut self, other: &Self) {
        let count = self.count + other.count;
        if count > 0.0 {
            for ((mean, squares), (other_mean, other_squares)) in self.columns.iter_mut().zip(&other.columns) {
                let delta = other_mean - *mean;
                *mean += delta * other.count / count;
                *squares += other_squares + delta * delta * self.count * other.count / count;
            }
        }
        self.count = count;
    }

    fn scales(&self) -> Vec<(f64, f64)> {
        let scale = |&(mean, squares): &(f64, f64)| {
            let deviation = (squares / self.count.max(1.0)).sqrt();
            (mean, if deviation > 0.0 { 1.0 / deviation } else { 0.0 })
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
        Scale::Row(2).apply(&mut features);
        assert_eq!(features, [0.25, -0.75, 0.25, 0.25, 0.0, 0.0]);
    }

    #[test]
    fn merged_moments_equal_those_of_all_rows() {
        let features: Vec<f32> = (0..600).map(|i| ((i * 37) % 101) as f32 - 20.0).collect();
        let (whole, mut merged) = (Moments::of(&features, 3), Moments::new(3));
        features.chunks(33).for_each(|chunk| merged.merge(&Moments::of(chunk, 3)));
        for ((a, b), (c, d)) in whole.scales().into_iter().zip(merged.scales()) {
            assert!((a - c).abs() < 1e-9 && (b - d).abs() < 1e-9);
        }
        let mut scaled = features;
        Scale::Standard(merged.scales()).apply(&mut scaled);
        let again = Moments::of(&scaled, 3);
        assert!(again.columns.iter().all(|(mean, squares)| mean.abs() < 1e-6 && (squares / 200.0 - 1.0).abs() < 1e-5));
    }
}
