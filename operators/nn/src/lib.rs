//! Tensors: candle operations on our kernels, layers, models, losses, optimizers, metrics, devices.
//!
//! Call [`init`] first thing in `main`: candle's own elementwise operations run on a pool of spinning threads, which stalls
//! beside other busy threads; ours run on rayon's, on as many threads as the pool that they are called in has. Every result is
//! the same, bit for bit, for any number of threads.

pub mod alloc;
mod check_device;
#[cfg(feature = "cuda")]
mod cuda;
pub mod device;
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
pub mod tensors;

pub use check_device::{Comparison, DeviceReport, check_device};
pub use device::device;
pub use error::{Error, Result};
pub use graph_block::GraphBlock;
pub use layers::{Layer, LayerInfo, Pass};
pub use model::{JumpingKnowledge, KindOptions, LayerSpec, Model, ModelSpec, Norm, Registry};
pub use params::{ParamBuilder, Params};
pub use profile::{ModelProfile, TaskProfile};

/// Prepares this process for computing; call it first thing in `main`, while there is one thread.
///
/// Keeps candle from starting its spinning threads, by setting `CANDLE_NUM_THREADS` to 1 unless it is set already. With more
/// threads than one, and where they cannot be counted, nothing is changed: results are the same, candle's own operations may be
/// slower.
pub fn init() {
    let threads = std::fs::read_dir("/proc/self/task").map_or(usize::MAX, |tasks| tasks.count());
    if threads == 1 && std::env::var_os("CANDLE_NUM_THREADS").is_none() {
        // SAFETY: this thread is the only one, so none reads the environment meanwhile.
        unsafe { std::env::set_var("CANDLE_NUM_THREADS", "1") };
    }
}
