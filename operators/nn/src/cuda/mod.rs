//! The operations of [`super::ops`] on a GPU, with the kernels of `operators/nn/cuda`.
//!
//! All operations of a device run in order on one stream, for any calling thread. [`Upload`] copies on another one. Memory comes from the driver's
//! pool, which keeps freed memory. Kernels sum floats in a fixed order, so equal inputs give equal bits. A shape that does not fit its
//! block is an error before any launch.

mod attention;
mod call;
mod edges;
mod elementwise;
mod gather;
mod heads;
mod integers;
mod kernels;
mod linear;
mod loss;
mod put_rows;
mod sample;
mod segment;
mod threads;
mod timer;
mod upload;

pub(super) use attention::{
    attention_logits, attention_logits_backward, attention_softmax, attention_softmax_backward,
};
pub(super) use edges::{edge_add, edge_softmax, edge_softmax_backward, edge_sum};
pub(super) use elementwise::{activate, activate_backward, add_bias, column_sum};
pub(super) use gather::gather_rows;
pub(super) use heads::{head_dot, head_dot_rows, head_dot_vectors, head_mean, head_mean_backward};
pub(super) use integers::{by_source, destinations, inverse_degrees, with_self_loops};
pub(super) use linear::{linear, matmul};
pub(super) use loss::{
    binary_cross_entropy, binary_cross_entropy_backward, cross_entropy, cross_entropy_backward, log_softmax,
    log_softmax_backward, sigmoid_focal_loss, sigmoid_focal_loss_backward,
};
pub(super) use put_rows::put_rows;
pub(super) use sample::{Hop, Topology};
pub(super) use segment::{
    argmax, pick, pick_backward, segment_reduce, segment_reduce_backward, weighted_sum, weighted_sum_rows,
    weighted_sum_weights,
};

pub(super) use timer::{Time, Timer};
pub(super) use upload::{Upload, Uploaded, Uploads};

use candle_core::cuda_backend::cudarc::driver::sys;
use candle_core::cuda_backend::{CudaError, WrapErr};
use candle_core::{CudaDevice, Device};

use super::device_memory::DeviceMemory;

/// The oldest compute capability for which kernels are compiled: Ampere.
const OLDEST: (i32, i32) = (8, 0);

/// Opens the GPU with this number, from 0. On failure, returns the reason in one line.
pub(super) fn open(number: u16) -> Result<Device, String> {
    check(number)?;
    let device = Device::new_cuda_with_stream(usize::from(number)).map_err(|error| explain(&error))?;
    prepare(device.as_cuda_device().map_err(|error| explain(&error))?).map_err(|error| explain(&error))?;
    Ok(device)
}

/// Checks that there is a GPU with this number that the kernels support.
fn check(number: u16) -> Result<(), String> {
    let attribute = |device, attribute| {
        let mut value = 0;
        // SAFETY: the pointer is valid for one integer.
        let result = unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, device) };
        result.result().map(|()| value).map_err(|error| format!("the NVIDIA driver reports {:?}", error.0))
    };
    let (mut count, mut device) = (0, 0);
    // SAFETY: the pointers are valid for one integer each.
    unsafe {
        sys::cuInit(0).result().map_err(|error| explain_driver(error.0))?;
        sys::cuDeviceGetCount(&raw mut count).result().map_err(|error| explain_driver(error.0))?;
        if count == 0 {
            return Err(explain_driver(sys::cudaError_enum::CUDA_ERROR_NO_DEVICE));
        }
        if i32::from(number) >= count {
            let all = if count == 1 {
                "one GPU, cuda:0".to_owned()
            } else {
                format!("{count} GPUs, cuda:0 to cuda:{}", count - 1)
            };
            return Err(format!("there is no GPU {number}; this process sees {all}"));
        }
        sys::cuDeviceGet(&raw mut device, i32::from(number)).result().map_err(|error| explain_driver(error.0))?;
    }
    let major = attribute(device, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(device, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    if (major, minor) < OLDEST {
        return Err(format!(
            "the GPU has compute capability {major}.{minor}, and the kernels need {}.{} (Ampere) or newer; use train.device = \"cpu\"",
            OLDEST.0, OLDEST.1
        ));
    }
    Ok(())
}

/// Explains an error of the driver at start-up.
fn explain_driver(code: sys::CUresult) -> String {
    match code {
        sys::cudaError_enum::CUDA_ERROR_NO_DEVICE => {
            "there is no NVIDIA driver (libcuda.so.1), or it finds no GPU on this machine".to_owned()
        }
        code => format!("the NVIDIA driver reports {code:?}"),
    }
}

/// Switches events off that order several streams, and configures the memory pool to keep freed memory.
fn prepare(device: &CudaDevice) -> candle_core::Result<()> {
    // SAFETY: all operations are on one stream, and `Upload` orders its stream by events of its own.
    unsafe { device.disable_event_tracking() };
    if let Some(pool) = pool(device)? {
        let mut keep_all = u64::MAX;
        let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the pointer is valid for one value of the type that the driver expects.
        unsafe { sys::cuMemPoolSetAttribute(pool, threshold, (&raw mut keep_all).cast()).result().w()? };
    }
    Ok(())
}

/// Returns the pool from which tensors are allocated; `None` if the device has none.
fn pool(device: &CudaDevice) -> candle_core::Result<Option<sys::CUmemoryPool>> {
    let stream = device.cuda_stream();
    let context = stream.context();
    if !context.has_async_alloc() {
        return Ok(None);
    }
    let mut pool: sys::CUmemoryPool = std::ptr::null_mut();
    context.bind_to_thread().w()?;
    // SAFETY: the pointer is valid for one pool.
    unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, context.cu_device()).result().w()? };
    Ok(Some(pool))
}

/// Describes a GPU for reports: its name, compute capability and memory, and the driver's CUDA version.
pub(super) fn describe(device: &CudaDevice) -> candle_core::Result<String> {
    let stream = device.cuda_stream();
    let context = stream.context();
    let (major, minor) = context.compute_capability().w()?;
    let gib = context.total_mem().w()? as f64 / (1u64 << 30) as f64;
    let mut version = 0;
    // SAFETY: the pointer is valid for one integer.
    unsafe { sys::cuDriverGetVersion(&raw mut version).result().w()? };
    let (cuda, point) = (version / 1000, version % 1000 / 10);
    let name = context.name().w()?;
    Ok(format!("{name}, compute capability {major}.{minor}, {gib:.0} GiB, driver for CUDA {cuda}.{point}"))
}

/// Returns the memory of the GPU.
pub(super) fn memory(device: &CudaDevice) -> candle_core::Result<DeviceMemory> {
    let (free, total) = device.cuda_stream().context().mem_get_info().w()?;
    let peak = |pool| {
        let (mut bytes, most) = (0u64, sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH);
        // SAFETY: the pointer is valid for one value of the type that the driver writes.
        unsafe { sys::cuMemPoolGetAttribute(pool, most, (&raw mut bytes).cast()).result().w()? };
        Ok::<_, candle_core::Error>(bytes)
    };
    Ok(DeviceMemory { free: free as u64, total: total as u64, peak: pool(device)?.map(peak).transpose()? })
}

/// Makes the peak the memory that tensors take now.
#[cfg(test)]
pub(super) fn reset_peak_memory(device: &CudaDevice) {
    let (mut zero, most) = (0u64, sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH);
    // SAFETY: the pointer is valid for one value of the type that the driver expects.
    unsafe {
        sys::cuMemPoolSetAttribute(pool(device).unwrap().unwrap(), most, (&raw mut zero).cast()).result().unwrap()
    };
}

/// Explains an error at start-up to the user.
fn explain(error: &candle_core::Error) -> String {
    match error {
        candle_core::Error::WithBacktrace { inner, .. } => explain(inner),
        candle_core::Error::Cuda(error) => match error.downcast_ref::<CudaError>() {
            Some(CudaError::Cuda(error)) => explain_driver(error.0),
            Some(CudaError::Cublas(_)) => missing("cuBLAS", "libcublas.so.13 and libcublasLt.so.13"),
            Some(CudaError::Curand(_)) => missing("cuRAND", "libcurand.so.10"),
            _ => error.to_string(),
        },
        other => other.to_string(),
    }
}

fn missing(library: &str, files: &str) -> String {
    format!(
        "{library} does not start; put {files} on the loader's path or into GNNFLOW_CUDA_LIB_DIR (docs/book/src/gpu.md)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn startup_errors_are_one_line_with_the_cause() {
        let driver = |code| candle_core::Error::from(CudaError::Cuda(cudarc_error(code)));
        let no_device = explain(&driver(sys::cudaError_enum::CUDA_ERROR_NO_DEVICE));
        assert!(no_device.contains("libcuda.so.1") && !no_device.contains('\n'), "{no_device}");
        let memory = explain(&driver(sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY));
        assert!(memory.ends_with("CUDA_ERROR_OUT_OF_MEMORY"), "{memory}");
    }

    fn cudarc_error(code: sys::CUresult) -> candle_core::cuda_backend::cudarc::driver::DriverError {
        candle_core::cuda_backend::cudarc::driver::DriverError(code)
    }
}
