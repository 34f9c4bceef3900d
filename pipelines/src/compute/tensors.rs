//! Rows as tensors, and tensors as rows.

use candle_core::backprop::GradStore;
use candle_core::{Storage, Tensor, Var};
use gnnflow_kernels::matrix::{Matrix, Values};
use gnnflow_nn::Model;

use crate::error::Error;

/// The matrix as a tensor on the model's device.
pub(crate) fn tensor(matrix: Matrix, rows: usize, model: &Model) -> Result<Tensor, Error> {
    let (shape, device) = ((rows, matrix.dim), model.device());
    let tensor = match matrix.values {
        Values::F32(values) => Tensor::from_vec(values, shape, device),
        Values::F16(values) => Tensor::from_vec(values, shape, device),
        Values::Bf16(values) => Tensor::from_vec(values, shape, device),
    };
    Ok(tensor.map_err(gnnflow_nn::Error::from)?)
}

/// What the first layer reads, and the variable that it is where rows are learnt.
pub(super) fn input(matrix: Matrix, rows: usize, model: &Model, learnt: bool) -> Result<(Tensor, Option<Var>), Error> {
    match matrix {
        Matrix { dim, values: Values::F32(values) } if learnt => {
            let var = Var::from_vec(values, (rows, dim), model.device());
            let var = var.map_err(gnnflow_nn::Error::from)?;
            Ok((var.as_tensor().clone(), Some(var)))
        }
        matrix => Ok((tensor(matrix, rows, model)?, None)),
    }
}

/// The gradient of the rows that a batch has read; zeros where the loss does not depend on them.
pub(super) fn row_gradients(gradients: &GradStore, rows: &Var) -> Result<Vec<f32>, Error> {
    let mut values = Vec::new();
    match gradients.get(rows) {
        Some(gradient) => read(gradient, |found| values.extend_from_slice(found))?,
        None => values.resize(rows.elem_count(), 0.0),
    }
    Ok(values)
}

/// Calls `f` with the numbers of `tensor`.
pub(crate) fn read(tensor: &Tensor, f: impl FnOnce(&[f32])) -> Result<(), Error> {
    let read = || {
        let tensor = tensor.to_device(&candle_core::Device::Cpu)?.contiguous()?;
        let (storage, layout) = tensor.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else { candle_core::bail!("a tensor on the CPU has its storage there") };
        let (start, end) = layout.contiguous_offsets().unwrap_or((0, tensor.elem_count()));
        f(&storage.as_slice::<f32>()?[start..end]);
        Ok(())
    };
    Ok(read().map_err(gnnflow_nn::Error::from)?)
}
