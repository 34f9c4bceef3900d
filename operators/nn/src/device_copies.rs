//! Arrays of a block on a device, each made on first use.

use std::sync::{Mutex, PoisonError};

use candle_core::Tensor;

use super::error::Result;

/// Edges of a row from which on a GPU sums it with more reads in flight: `LONG_ROW` of `cuda/rows.cuh`.
pub(crate) const LONG_ROW: u32 = 512;

/// The edges of rows, as `u32` tensors.
#[derive(Clone, Debug)]
pub(crate) struct RowEdges {
    /// `[rows + 1]`
    pub(crate) indptr: Tensor,
    /// `[num_edges]`: the node at the other end of each edge.
    pub(crate) indices: Tensor,
    /// The rows with at least 512 edges; `None` if there are none.
    pub(crate) long_rows: Option<Tensor>,
}

/// An array that is made on first use.
#[derive(Debug)]
pub(super) struct Once<T>(Mutex<Option<T>>);

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T: Clone> Once<T> {
    /// Returns the array, if it has been made.
    pub(super) fn made(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the array.
    #[cfg(feature = "cuda")]
    pub(super) fn set(&self, made: T) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
    }

    pub(super) fn get(&self, make: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*held {
            Some(made) => Ok(made.clone()),
            None => Ok(held.insert(make()?).clone()),
        }
    }
}

/// The copies of a block's arrays on one device.
#[derive(Debug, Default)]
pub(super) struct Copies {
    pub(super) by_destination: Once<RowEdges>,
    pub(super) by_source: Once<RowEdges>,
    pub(super) edges_by_source: Once<Tensor>,
    pub(super) destinations: Once<Tensor>,
    pub(super) inverse_degrees: Once<Tensor>,
}
