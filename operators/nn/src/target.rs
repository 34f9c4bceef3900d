//! The device to which arrays are copied, and the order of the copies.

use candle_core::{Device, Shape, Tensor};

use super::error::Result;
use super::upload::{Upload, in_order};

/// How arrays come to a device.
#[derive(Clone, Copy)]
pub(crate) enum Target<'a> {
    /// After the earlier operations of the device.
    InOrder(&'a Device),
    /// On a second stream, at the same time as earlier operations.
    Async(&'a Upload),
}

impl<'a> Target<'a> {
    /// To `device`, which is also that of `upload`.
    pub(crate) fn new(device: &'a Device, upload: Option<&'a Upload>) -> Self {
        upload.map_or(Self::InOrder(device), Self::Async)
    }

    pub(crate) fn device(&self) -> &Device {
        match self {
            Self::InOrder(device) => device,
            Self::Async(upload) => upload.device(),
        }
    }

    pub(crate) fn integers(&self, numbers: &[u32]) -> Result<Tensor> {
        match self {
            Self::InOrder(device) => in_order(numbers, numbers.len().into(), device),
            Self::Async(upload) => upload.integers(numbers),
        }
    }

    /// Copies floats: `shape` is that of the tensor.
    pub(crate) fn floats(&self, numbers: Vec<f32>, shape: impl Into<Shape>) -> Result<Tensor> {
        match self {
            Self::InOrder(device) if numbers.is_empty() => in_order(&numbers, shape.into(), device),
            Self::InOrder(device) => Ok(Tensor::from_vec(numbers, shape.into(), device)?),
            Self::Async(upload) => upload.floats(&numbers, shape.into()),
        }
    }
}
