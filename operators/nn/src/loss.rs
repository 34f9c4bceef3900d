//! Losses, summed over rows to `f64` scalars. Divide gradients by the number of seeds of the step.

use candle_core::{DType, Tensor};

use super::error::{Error, Result};
use super::ops::softmax_loss::{BinaryCrossEntropy, CrossEntropy, SigmoidFocalLoss, log_softmax};

/// `Σ −log softmax(logits)[label]` over the rows of `logits`, `[N, classes]`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use gnnflow_nn::loss::cross_entropy;
///
/// let logits = Tensor::zeros((3, 2), candle_core::DType::F32, &Device::Cpu)?;
/// let loss = cross_entropy(&logits, &[0, 1, 1])?.to_scalar::<f64>()?;
/// assert!((loss - 3.0 * 2f64.ln()).abs() < 1e-12);
/// # Ok::<(), gnnflow_nn::Error>(())
/// ```
///
/// # Errors
/// [`Error::Input`] when there is not one label per row, or a label is not a class.
pub fn cross_entropy(logits: &Tensor, labels: &[u32]) -> Result<Tensor> {
    let labels = label_tensor(logits, labels)?;
    Ok(logits.contiguous()?.apply_op2(&labels, CrossEntropy)?)
}

/// `Σ weight · (1 − p)^gamma · −log p` over the rows of `logits`, `[N, classes]`, where `p` is the probability of the row's
/// label: the focal loss (Lin et al. 2017, section 3). With a `gamma` of 0, it is the weighted cross-entropy.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use gnnflow_nn::loss::focal_loss;
///
/// let logits = Tensor::zeros((2, 2), candle_core::DType::F32, &Device::Cpu)?;
/// let loss = focal_loss(&logits, &[0, 1], &[1.0, 3.0], 2.0)?.to_scalar::<f64>()?;
/// assert!((loss - 4.0 * 0.25 * 2f64.ln()).abs() < 1e-6);
/// # Ok::<(), gnnflow_nn::Error>(())
/// ```
///
/// # Errors
/// [`Error::Input`] when there is not one label and one weight per row, or a label is not a class.
pub fn focal_loss(logits: &Tensor, labels: &[u32], weights: &[f32], gamma: f64) -> Result<Tensor> {
    /// A probability this close to 1 counts as 1 minus this, so that the gradient is finite for every `gamma`.
    const CERTAIN: f64 = 1e-12;
    let (rows, device) = (logits.dim(0)?, logits.device());
    if weights.len() != rows {
        return Err(Error::Input(format!("{} weights for {rows} rows of logits", weights.len())));
    }
    let labels = label_tensor(logits, labels)?.unsqueeze(1)?;
    let log = log_softmax(logits)?.gather(&labels, 1)?.to_dtype(DType::F64)?;
    let weights = Tensor::from_slice(weights, (rows, 1), device)?.to_dtype(DType::F64)?;
    let mut loss = (log.neg()? * weights)?;
    if gamma > 0.0 {
        let missed = log.exp()?.affine(-1.0, 1.0)?.maximum(CERTAIN)?;
        loss = (loss * missed.powf(gamma)?)?;
    }
    Ok(loss.sum_all()?)
}

/// Returns the labels of the rows of `logits` on their device.
fn label_tensor(logits: &Tensor, labels: &[u32]) -> Result<Tensor> {
    let (rows, classes) = logits.dims2()?;
    if labels.len() != rows {
        return Err(Error::Input(format!("{} labels for {rows} rows of logits", labels.len())));
    }
    if let Some(label) = labels.iter().find(|&&label| label as usize >= classes) {
        return Err(Error::Input(format!("label {label}, but there are {classes} classes")));
    }
    Ok(Tensor::from_slice(labels, rows, logits.device())?)
}

/// Returns the summed binary cross-entropy of logits `[N, labels]` and row-major targets between 0 and 1.
///
/// # Errors
/// [`Error::Input`] when there is not one target per logit.
pub fn binary_cross_entropy(logits: &Tensor, targets: &[f32]) -> Result<Tensor> {
    if targets.len() != logits.elem_count() {
        return Err(Error::Input(format!("{} targets for {} logits", targets.len(), logits.elem_count())));
    }
    let targets = Tensor::from_slice(targets, logits.shape(), logits.device())?.to_dtype(logits.dtype())?;
    Ok(logits.contiguous()?.apply_op2(&targets, BinaryCrossEntropy)?)
}

/// `Σ |weight| · (1 − p)^gamma · −log p` over logits `x`, `[N, labels]`, and row-major weights: the focal loss of each label (Lin et
/// al. 2017). The weight of a label that a row does not have is negative, and then `p` is `sigmoid(−x)`; else it is `sigmoid(x)`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use gnnflow_nn::loss::sigmoid_focal_loss;
///
/// let logits = Tensor::zeros((2, 1), candle_core::DType::F32, &Device::Cpu)?;
/// let loss = sigmoid_focal_loss(&logits, &[3.0, -1.0], 2.0)?.to_scalar::<f64>()?;
/// assert!((loss - 4.0 * 0.25 * 2f64.ln()).abs() < 1e-6);
/// # Ok::<(), gnnflow_nn::Error>(())
/// ```
///
/// # Errors
/// [`Error::Input`] when there is not one weight per logit.
pub fn sigmoid_focal_loss(logits: &Tensor, weights: &[f32], gamma: f64) -> Result<Tensor> {
    if weights.len() != logits.elem_count() {
        return Err(Error::Input(format!("{} weights for {} logits", weights.len(), logits.elem_count())));
    }
    let weights = Tensor::from_slice(weights, logits.shape(), logits.device())?.to_dtype(logits.dtype())?;
    Ok(logits.contiguous()?.apply_op2(&weights, SigmoidFocalLoss { gamma })?)
}

/// Returns the rows of `x [N, C]` (up to rounding), with gradients times `weights`: a loss of the result is weighted.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use gnnflow_nn::loss::weigh_rows;
///
/// let x = Var::new(&[[1f32, 2.0], [3.0, 4.0]], &Device::Cpu)?;
/// let sum = weigh_rows(&x, &[0.5, 10.0])?.sqr()?.sum_all()?;
/// assert_eq!(sum.to_scalar::<f32>()?, 30.0);
/// let gradient = sum.backward()?.remove(&x).unwrap();
/// assert_eq!(gradient.to_vec2::<f32>()?, [[1.0, 2.0], [60.0, 80.0]]);
/// # Ok::<(), gnnflow_nn::Error>(())
/// ```
///
/// # Errors
/// [`Error::Input`] when there is not one weight per row.
pub fn weigh_rows(x: &Tensor, weights: &[f32]) -> Result<Tensor> {
    let rows = x.dim(0)?;
    if weights.len() != rows {
        return Err(Error::Input(format!("{} weights for {rows} rows", weights.len())));
    }
    let weights = Tensor::from_slice(weights, (rows, 1), x.device())?.to_dtype(x.dtype())?;
    let weighed = x.broadcast_mul(&weights)?;
    Ok((&weighed + (x - &weighed)?.detach())?)
}

/// `Σ (outputs − targets)²` over the rows of `outputs`, `[N, 1]`: PyTorch's `mse_loss(…, reduction="sum")`.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use gnnflow_nn::loss::squared_error;
///
/// let outputs = Var::new(&[[2f32], [0.5]], &Device::Cpu)?;
/// let loss = squared_error(&outputs, &[1.0, 1.0])?;
/// assert_eq!(loss.to_scalar::<f64>()?, 1.25);
/// assert_eq!(loss.backward()?.remove(&outputs).unwrap().to_vec2::<f32>()?, [[2.0], [-1.0]]);
/// # Ok::<(), gnnflow_nn::Error>(())
/// ```
///
/// # Errors
/// [`Error::Input`] when there is not one target per row, or rows have several columns.
pub fn squared_error(outputs: &Tensor, targets: &[f32]) -> Result<Tensor> {
    if outputs.dims() != [targets.len(), 1] {
        return Err(Error::Input(format!("{} targets for outputs of {:?}", targets.len(), outputs.dims())));
    }
    let targets = Tensor::from_slice(targets, (targets.len(), 1), outputs.device())?.to_dtype(outputs.dtype())?;
    Ok((outputs - targets)?.to_dtype(candle_core::DType::F64)?.sqr()?.sum_all()?)
}
