//! Link prediction: scores of edges against those of negatives.

pub(crate) mod candidates;
pub(crate) mod edges;
pub(crate) mod known;
pub(crate) mod recommended;
pub(crate) mod sources;

use candle_core::Tensor;
use gnnflow_nn::loss::{binary_cross_entropy, cross_entropy};
use gnnflow_nn::ops::{pair_scores, shared_scores};

use super::objective::{Examples, Loss, Objective};
use crate::config::{LinkLoss, Metric};
use crate::error::Error;

pub(crate) use edges::LinkEdges;

/// The loss of the scores of edges and of their negatives.
pub(crate) struct LinkPrediction {
    pub(crate) width: usize,
    pub(crate) loss: LinkLoss,
}

impl Objective for LinkPrediction {
    fn width(&self) -> usize {
        self.width
    }

    fn metric(&self) -> Metric {
        Metric::Mrr
    }

    /// Binary cross-entropy is the mean over an edge and its negatives, so an edge counts once for any number of negatives.
    fn loss(&self, batch: &Examples<'_>, outputs: &Tensor) -> Result<Loss, Error> {
        let tensor = gnnflow_nn::Error::from;
        let pairs = batch.pairs.ok_or_else(|| Error::Bug("a batch of link prediction has no pairs".into()))?;
        let (positives, negatives) = (pairs.positives, pairs.negatives);
        let scores = pair_scores(outputs, batch.relations, pairs).map_err(tensor)?;
        let own = scores.narrow(0, 0, positives).and_then(|own| own.reshape((positives, 1))).map_err(tensor)?;
        // By edge, the scores of its negatives.
        let others = || match &pairs.shared {
            Some(_) => shared_scores(outputs, batch.relations, pairs),
            None => scores.narrow(0, positives, positives * negatives)?.reshape((positives, negatives)),
        };
        let logits = match negatives {
            0 => own,
            _ => others().and_then(|others| Tensor::cat(&[own, others], 1)).map_err(tensor)?,
        };
        let sum = match self.loss {
            LinkLoss::BinaryCrossEntropy => {
                let each = 1 + negatives;
                let targets: Vec<f32> = (0..positives * each).map(|i| f32::from(u8::from(i % each == 0))).collect();
                let sum = binary_cross_entropy(&logits, &targets)?;
                sum.affine(1.0 / each as f64, 0.0).map_err(tensor)?
            }
            LinkLoss::SoftmaxCrossEntropy => cross_entropy(&logits, &vec![0; positives])?,
        };
        Ok(Loss { sum, examples: positives as u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use candle_core::{Device, Var};
    use gnnflow_kernels::pairs::Pairs;

    #[test]
    fn losses_equal_their_formulas_and_gradients_finite_differences() {
        let values: Vec<f32> = (0..12).map(|i| (i as f32 * 1.7).sin()).collect();
        let pairs = Arc::new(Pairs {
            heads: vec![0, 1, 0, 0, 1, 1],
            tails: vec![1, 2, 3, 2, 3, 0],
            relations: vec![0; 6],
            positives: 2,
            negatives: 2,
            ..Pairs::default()
        });
        let score = |x: &[f32], i: usize| -> f64 {
            let (h, t) = (pairs.heads[i] as usize, pairs.tails[i] as usize);
            (0..3).map(|c| f64::from(x[3 * h + c]) * f64::from(x[3 * t + c])).sum()
        };
        let softplus = |x: f64| x.exp().ln_1p();
        let naive = |x: &[f32], kind| -> f64 {
            let one = |i: usize| {
                let (own, others) = (score(x, i), [2 + 2 * i, 3 + 2 * i].map(|j| score(x, j)));
                match kind {
                    LinkLoss::BinaryCrossEntropy => (softplus(-own) + others.map(softplus).iter().sum::<f64>()) / 3.0,
                    LinkLoss::SoftmaxCrossEntropy => {
                        (own.exp() + others.iter().map(|s| s.exp()).sum::<f64>()).ln() - own
                    }
                }
            };
            one(0) + one(1)
        };
        for kind in [LinkLoss::BinaryCrossEntropy, LinkLoss::SoftmaxCrossEntropy] {
            let x = Var::from_tensor(&Tensor::from_vec(values.clone(), (4, 3), &Device::Cpu).unwrap()).unwrap();
            let batch = Examples { seeds: &[5, 6, 7, 8], pairs: Some(&pairs), relations: None, head: None };
            let loss = LinkPrediction { width: 3, loss: kind }.loss(&batch, &x).unwrap();
            assert_eq!(loss.examples, 2);
            assert!((loss.sum.to_scalar::<f64>().unwrap() - naive(&values, kind)).abs() < 1e-5);
            let gradients = loss.sum.backward().unwrap();
            let gradient = gradients.get(&x).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            for i in 0..12 {
                let moved = |by: f32| {
                    let mut values = values.clone();
                    values[i] += by;
                    naive(&values, kind)
                };
                let expected = (moved(1e-3) - moved(-1e-3)) / 2e-3;
                assert!((f64::from(gradient[i]) - expected).abs() < 1e-3, "{kind:?} {i}");
            }
        }
    }
}
