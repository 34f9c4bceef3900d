//! Outputs for pairs of nodes, from their concatenated rows.

use candle_core::Tensor;

use super::error::Result;
use super::params::ParamBuilder;
use super::perceptron::Perceptron;
use gnnflow_kernels::dense::elementwise::Activation;
use gnnflow_kernels::pairs::Pairs;

/// A perceptron over the concatenated rows of both ends: head, then tail.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use gnnflow_nn::pair_head::PairHead;
/// use gnnflow_nn::params::ParamBuilder;
/// use gnnflow_kernels::pairs::Pairs;
///
/// let mut params = ParamBuilder::new(1, &Device::Cpu);
/// let head = PairHead::new(16, 3, 2, &mut params)?;
/// let pairs = Pairs { heads: vec![0, 4], tails: vec![1, 1], relations: vec![0, 0], positives: 2, ..Pairs::default() };
/// let x = Tensor::ones((5, 16), DType::F32, &Device::Cpu)?;
/// assert_eq!(head.forward(&x, &pairs)?.dims(), [2, 3]);
/// # Ok::<(), gnnflow_nn::Error>(())
/// ```
#[derive(Debug)]
pub struct PairHead(Perceptron);

impl PairHead {
    /// Creates `layers` linear maps from rows of `width` numbers to `outputs`, with ReLU and `width` columns in
    /// between: parameters `mlp.0.weight`, `mlp.0.bias`, and so on.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn new(width: usize, outputs: usize, layers: usize, params: &mut ParamBuilder) -> Result<Self> {
        let dims = Perceptron::dims(2 * width, width, outputs, layers);
        Ok(Self(Perceptron::new(&dims, Activation::Relu, params)?))
    }

    /// Computes the outputs of pairs: `x [rows, width]` → `[pairs, outputs]`.
    ///
    /// # Errors
    /// When a pair refers to a missing row, or rows have another width.
    pub fn forward(&self, x: &Tensor, pairs: &Pairs) -> Result<Tensor> {
        let rows = |positions: &[u32]| x.index_select(&Tensor::new(positions, x.device())?, 0);
        let both = Tensor::cat(&[rows(&pairs.heads)?, rows(&pairs.tails)?], 1)?;
        self.0.forward(&both, None, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Var};

    #[test]
    fn pair_head_equals_a_naive_perceptron() {
        let numbers = |n: usize, c: f32| (0..n).map(|i| (i as f32 * c).sin()).collect::<Vec<_>>();
        let values = numbers(4 * 3, 0.7);
        let pairs = Pairs { heads: vec![0, 2, 2], tails: vec![1, 2, 0], relations: vec![0; 3], ..Pairs::default() };
        let mut params = ParamBuilder::new(5, &Device::Cpu);
        let head = PairHead::new(3, 2, 2, &mut params).unwrap();
        let params = params.finish();
        let of = |name: &str| params.get(name).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let names = ["mlp.0.weight", "mlp.0.bias", "mlp.1.weight", "mlp.1.bias"];
        let [w, b, v, c] = names.map(of);
        let naive = |x: &[f32]| -> Vec<f64> {
            let one = |i: usize| {
                let at = |place: u32| x[3 * place as usize..][..3].iter().map(|&x| f64::from(x));
                let both: Vec<f64> = at(pairs.heads[i]).chain(at(pairs.tails[i])).collect();
                let map = |w: &[f32], b: &[f32], x: &[f64]| -> Vec<f64> {
                    let row = |(w, b): (&[f32], &f32)| {
                        w.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum::<f64>() + f64::from(*b)
                    };
                    w.chunks(x.len()).zip(b).map(row).collect()
                };
                let hidden: Vec<f64> = map(&w, &b, &both).into_iter().map(|h| h.max(0.0)).collect();
                map(&v, &c, &hidden)
            };
            (0..3).flat_map(one).collect()
        };
        let x = Var::from_tensor(&Tensor::from_vec(values.clone(), (4, 3), &Device::Cpu).unwrap()).unwrap();
        let found = head.forward(&x, &pairs).unwrap();
        let sum = found.sum_all().unwrap();
        let found = found.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert!(found.iter().zip(naive(&values)).all(|(&f, e)| (f64::from(f) - e).abs() < 1e-5));
        let gradients = sum.backward().unwrap();
        let gradient = gradients.get(&x).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for i in 0..12 {
            let moved = |by: f32| {
                let mut values = values.clone();
                values[i] += by;
                naive(&values).iter().sum::<f64>()
            };
            let expected = (moved(1e-3) - moved(-1e-3)) / 2e-3;
            assert!((f64::from(gradient[i]) - expected).abs() < 2e-3, "{i}");
        }
    }
}
