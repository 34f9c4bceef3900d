//! Graph neural networks on candle: operations, layers, models, losses, optimizers, metrics and devices.
//!
//! Call [`init`] first in `main`. candle runs its own element-wise operations on spinning threads, which slow down
//! other busy threads. The operations of this crate run on rayon's current pool. The bits of results do not depend
//! on the number of threads.

pub mod alloc;
mod check_device;
#[cfg(feature = "cuda")]
mod cuda;
pub mod device;
mod device_block;
mod device_copies;
mod device_memory;
mod device_topology;
#[cfg(all(test, feature = "cuda"))]
mod emulator;
pub mod error;
pub mod graph_block;
pub mod initial;
pub mod layers;
pub mod loss;
pub mod metrics;
pub mod model;
pub mod node_targets;
pub mod node_task;
pub mod ops;
pub mod optimizer;
pub mod pair_head;
pub mod parameter_versions;
pub mod params;
pub mod perceptron;
pub mod profile;
mod score_bins;
mod target;
pub mod tensors;
mod upload;

pub use check_device::{Comparison, DeviceReport, Rate, check_device, device_rates};
pub use device::{device, device_memory};
pub use device_memory::DeviceMemory;
pub use device_topology::{DeviceTopology, SampledBatch};
pub use error::{Error, Result};
pub use graph_block::GraphBlock;
pub use layers::{Layer, LayerInfo, Pass};
pub use model::{JumpingKnowledge, KindOptions, LayerSpec, Model, ModelSpec, Norm, Registry};
pub use params::{ParamBuilder, Params};
pub use profile::{ModelProfile, TaskProfile};
pub use upload::{Upload, Uploaded};

/// Prepares the process for computing. Call it first in `main`, while the process has one thread.
///
/// Sets `CANDLE_NUM_THREADS` to 1 unless it is set, so that candle starts no spinning threads. Does nothing when the
/// process has several threads or they cannot be counted; candle's own operations may then be slower.
pub fn init() {
    let threads = std::fs::read_dir("/proc/self/task").map_or(usize::MAX, |tasks| tasks.count());
    if threads == 1 && std::env::var_os("CANDLE_NUM_THREADS").is_none() {
        // SAFETY: the process has one thread, so no other thread reads the environment.
        unsafe { std::env::set_var("CANDLE_NUM_THREADS", "1") };
    }
}
