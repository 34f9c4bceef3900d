//! Conversions between rows and tensors.

use crate::model::Model;
use candle_core::backprop::GradStore;
use candle_core::{Device, Storage, Tensor, Var};
use gnnflow_kernels::matrix::{Matrix, Values};

use crate::error::Result;

/// Converts a matrix of `rows` rows to a tensor on `device`.
///
/// # Errors
/// When the device is out of memory.
pub fn tensor(matrix: Matrix, rows: usize, device: &Device) -> Result<Tensor> {
    let shape = (rows, matrix.dim);
    let tensor = match matrix.values {
        Values::F32(values) => Tensor::from_vec(values, shape, device),
        Values::F16(values) => Tensor::from_vec(values, shape, device),
        Values::Bf16(values) => Tensor::from_vec(values, shape, device),
    };
    Ok(tensor?)
}

/// Returns the first layer's input rows as a tensor, and as a variable if they are learned.
///
/// # Errors
/// As [`tensor`].
pub fn input(matrix: Matrix, rows: usize, model: &Model, learned: bool) -> Result<(Tensor, Option<Var>)> {
    match matrix {
        Matrix { dim, values: Values::F32(values) } if learned => {
            let var = Var::from_vec(values, (rows, dim), model.device());
            let var = var?;
            Ok((var.as_tensor().clone(), Some(var)))
        }
        matrix => Ok((tensor(matrix, rows, model.device())?, None)),
    }
}

/// Returns the gradient of a batch's input rows; zeros if the loss does not depend on them.
///
/// # Errors
/// As [`read`].
pub fn row_gradients(gradients: &GradStore, rows: &Var) -> Result<Vec<f32>> {
    let mut values = Vec::new();
    match gradients.get(rows) {
        Some(gradient) => read(gradient, |found| values.extend_from_slice(found))?,
        None => values.resize(rows.elem_count(), 0.0),
    }
    Ok(values)
}

/// Calls `f` with the numbers of `tensor`, row by row.
///
/// # Errors
/// When the tensor cannot be copied from its device, or has no 32-bit floats.
pub fn read(tensor: &Tensor, f: impl FnOnce(&[f32])) -> Result<()> {
    let read = || -> candle_core::Result<()> {
        let tensor = tensor.to_device(&candle_core::Device::Cpu)?.contiguous()?;
        let (storage, layout) = tensor.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else { candle_core::bail!("a CPU tensor has no CPU storage") };
        let (start, end) = layout.contiguous_offsets().unwrap_or((0, tensor.elem_count()));
        f(&storage.as_slice::<f32>()?[start..end]);
        Ok(())
    };
    Ok(read()?)
}
