//! Results of an operation or a model, as numbers in double precision.

use candle_core::{DType, Device, Result, Tensor};

/// Names of results and their numbers.
pub(super) type Found = Vec<(String, Vec<f64>)>;

/// Returns the numbers of `tensor`.
pub(super) fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}
