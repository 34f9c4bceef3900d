//! The memory of the GPU: compared with the plan before training, and measured after it.

use candle_core::Device;

use crate::config;
use crate::error::Error;
use crate::plan::{DeviceNeeds, Fit};
use crate::runtime::job::Job;

/// Compares what training needs of a GPU with its memory. Warns if it does not fit by an estimate.
///
/// # Errors
/// When it does not fit by exact numbers, or the driver fails.
pub(super) fn check(job: &Job, rank: usize, device: &Device, needs: Option<DeviceNeeds>) -> Result<(), Error> {
    let Some(needs) = needs.filter(|_| job.trains()) else { return Ok(()) };
    let Some(found) = gnnflow_nn::device_memory(device)? else { return Ok(()) };
    let sharing = match job.config.train.as_ref().map(|train| train.device) {
        Some(config::Device::CudaOfRank) => 1,
        _ => job.local(rank),
    };
    match needs.compare(found, sharing) {
        Fit::Yes => Ok(()),
        Fit::Perhaps(reason) => {
            // Once for each GPU.
            if sharing == 1 || job.numbers_on_host[rank] == 0 {
                job.runtime.warn(&reason);
            }
            Ok(())
        }
        Fit::No(reason) => Err(Error::Machine(reason)),
    }
}

/// Returns the most memory of a GPU that this process has used; 0 without a GPU, or if the driver does not count it.
pub(super) fn peak(device: &Device) -> u64 {
    gnnflow_nn::device_memory(device).ok().flatten().and_then(|memory| memory.peak).unwrap_or(0)
}
