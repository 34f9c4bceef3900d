//! Feature rows on a device that batches read, and the rows of a batch among them.

use candle_core::Tensor;
use gnnflow_dataflow::batch::mini_batch::MiniBatch;
use gnnflow_dataflow::fetch::cache::CacheCounts;
use gnnflow_dataflow::fetch::fetch_rows::FeatureView;
use gnnflow_nn::ops::{RowNumbers, gather_rows};
use gnnflow_nn::tensors::tensor;
use gnnflow_nn::{SampledBatch, Upload};

use crate::error::Error;

/// The number of a node whose row is not on the device.
pub(super) const ABSENT: u32 = u32::MAX;

/// Rows of nodes on the model's device.
pub(super) struct HeldRows {
    /// `[held, columns]`
    pub(super) rows: Tensor,
    /// By node, the number of its row, or [`ABSENT`]; `None` if each node's id is the number of its row.
    pub(super) numbers: Option<Vec<u32>>,
    /// Where the other rows are.
    pub(super) features: FeatureView,
}

/// Which rows of a batch are on the device.
pub(super) struct BatchOnDevice {
    /// The rows that all batches read.
    held: Tensor,
    /// The others.
    more: Option<Tensor>,
    /// For each node of the batch, the number of its row in both.
    numbers: RowNumbers,
}

impl BatchOnDevice {
    /// Returns the rows of the batch.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub(super) fn gather(&self) -> Result<Tensor, Error> {
        Ok(gather_rows(&self.held, self.more.as_ref(), &self.numbers).map_err(gnnflow_nn::Error::from)?)
    }
}

impl HeldRows {
    /// Whether the device has the rows of all nodes of the graph.
    pub(super) fn has_all(&self) -> bool {
        self.numbers.is_none()
    }

    /// Returns the rows of a batch that was sampled on the device, which has all rows. Also counts them.
    ///
    /// # Panics
    /// If the device does not have all rows.
    pub(super) fn of_sampled(&self, sampled: &SampledBatch) -> (BatchOnDevice, CacheCounts) {
        assert!(self.has_all(), "all rows are on the device");
        let counts = CacheCounts { hits: sampled.nodes().elem_count() as u64, misses: 0 };
        let numbers = sampled.row_numbers();
        (BatchOnDevice { held: self.rows.clone(), more: None, numbers }, counts)
    }

    /// Starts to read the rows of these nodes from disk, if they may be there. Not those that are on the device.
    pub(super) fn read_ahead(&self, nodes: &[u32]) {
        let FeatureView { source, halo, .. } = &self.features;
        if source.reads_ahead() {
            let is_missing =
                |node: &u32| self.numbers.as_ref().is_some_and(|numbers| numbers[*node as usize] == ABSENT);
            let missing: Vec<u32> = nodes.iter().copied().filter(is_missing).collect();
            source.will_need(&missing);
            halo.iter().for_each(|halo| halo.will_need(&missing));
        }
    }

    /// Copies the rows of a batch that are not on the device to it. Also counts those that are, and the others.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub(super) fn of_batch(
        &self,
        batch: &mut MiniBatch,
        upload: Option<&Upload>,
    ) -> Result<(BatchOnDevice, CacheCounts), Error> {
        let device = self.rows.device();
        let mut missing = Vec::new();
        let numbers = match &self.numbers {
            None => RowNumbers::new(&batch.nodes, device, upload)?,
            Some(numbers) => {
                let held = self.rows.dims()[0] as u32;
                let number = |(position, &node): (usize, &u32)| match numbers[node as usize] {
                    ABSENT => {
                        missing.push(position as u32);
                        held + missing.len() as u32 - 1
                    }
                    number => number,
                };
                let of_batch: Vec<u32> = batch.nodes.iter().enumerate().map(number).collect();
                RowNumbers::new(&of_batch, device, upload)?
            }
        };
        let misses = missing.len() as u64;
        let counts = CacheCounts { hits: batch.nodes.len() as u64 - misses, misses };
        let copy = |missing: Vec<u32>| -> Result<Tensor, Error> {
            let rows = self.features.rows_at(batch, &missing);
            Ok(match upload {
                Some(upload) => upload.rows(&rows, missing.len())?,
                None => tensor(rows, missing.len(), device)?,
            })
        };
        let more = Some(missing).filter(|missing| !missing.is_empty()).map(copy).transpose()?;
        Ok((BatchOnDevice { held: self.rows.clone(), more, numbers }, counts))
    }
}
