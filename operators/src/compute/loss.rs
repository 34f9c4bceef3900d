//! Losses: sums over rows, as `f64` scalars. Divide gradients by the number of seeds of the step.

use candle_core::Tensor;

use super::error::{Error, Result};
use super::ops::{BinaryCrossEntropy, CrossEntropy};

/// `Σ −log softmax(logits)[label]` over the rows of `logits`, `[N, classes]`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use gnnflow_operators::compute::loss::cross_entropy;
///
/// let logits = Tensor::zeros((3, 2), candle_core::DType::F32, &Device::Cpu)?;
/// let loss = cross_entropy(&logits, &[0, 1, 1])?.to_scalar::<f64>()?;
/// assert!((loss - 3.0 * 2f64.ln()).abs() < 1e-12);
/// # Ok::<(), gnnflow_operators::compute::Error>(())
/// ```
///
/// # Errors
/// [`Error::Input`] when there is not a label for each row, or one is not a class.
pub fn cross_entropy(logits: &Tensor, labels: &[u32]) -> Result<Tensor> {
    let (rows, classes) = logits.dims2()?;
    if labels.len() != rows {
        return Err(Error::Input(format!("{} labels for {rows} rows of logits", labels.len())));
    }
    if let Some(label) = labels.iter().find(|&&label| label as usize >= classes) {
        return Err(Error::Input(format!("label {label} where there are {classes} classes")));
    }
    let labels = Tensor::from_slice(labels, rows, logits.device())?;
    Ok(logits.contiguous()?.apply_op2(&labels, CrossEntropy)?)
}

/// The sum of the binary cross-entropies of all logits, `[N, labels]`, and targets, row-major, each 0, 1 or between.
///
/// # Errors
/// [`Error::Input`] when there is not a target for each logit.
pub fn binary_cross_entropy(logits: &Tensor, targets: &[f32]) -> Result<Tensor> {
    if targets.len() != logits.elem_count() {
        return Err(Error::Input(format!("{} targets for {} logits", targets.len(), logits.elem_count())));
    }
    let targets = Tensor::from_slice(targets, logits.shape(), logits.device())?.to_dtype(logits.dtype())?;
    Ok(logits.contiguous()?.apply_op2(&targets, BinaryCrossEntropy)?)
}
