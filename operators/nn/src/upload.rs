//! Asynchronous copies to a GPU.

use candle_core::{Device, Shape, Tensor, WithDType};
use gnnflow_kernels::matrix::{Matrix, Values};

use super::error::Result;

/// Copies numbers to a GPU on a second stream, through page-locked memory. The copies run at the same time as earlier operations. On the CPU, it
/// copies at once.
///
/// Operations must not read the copies before [`Uploaded::wait`]: the numbers are not there yet.
///
/// ```
/// use candle_core::Device;
/// use gnnflow_nn::Upload;
///
/// let upload = Upload::new(&Device::Cpu)?;
/// let tensor = upload.integers(&[1, 2, 3])?;
/// upload.end()?.wait()?;
/// assert_eq!(tensor.to_vec1::<u32>()?, [1, 2, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Upload {
    device: Device,
    #[cfg(feature = "cuda")]
    second_stream: Option<super::cuda::Upload>,
}

impl std::fmt::Debug for Upload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upload").field("device", &self.device.location()).finish_non_exhaustive()
    }
}

/// Every copy fails when the device is out of memory.
impl Upload {
    /// Prepares copies to `device`: on a GPU, 12 MiB of page-locked memory and a stream.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) when the host has no such memory, or the driver fails.
    pub fn new(device: &Device) -> Result<Self> {
        Ok(Self {
            #[cfg(feature = "cuda")]
            second_stream: match device {
                Device::Cuda(device) => Some(super::cuda::Upload::new(device).map_err(|error| {
                    let why = format!(
                        "cannot reserve 12 MiB of the host's memory for copies ({:?}); end other programs that lock memory, or use \
                         train.device = \"cpu\"",
                        error.0
                    );
                    super::error::Error::Device { name: "cuda".into(), why }
                })?),
                _ => None,
            },
            device: device.clone(),
        })
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Copies integers: `[numbers]`.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn integers(&self, numbers: &[u32]) -> Result<Tensor> {
        self.copy(numbers, numbers.len().into())
    }

    /// Copies floats, row by row, to a tensor of `shape`.
    ///
    /// # Errors
    /// When the device is out of memory, or `shape` has another number of elements.
    pub fn floats(&self, numbers: &[f32], shape: impl Into<Shape>) -> Result<Tensor> {
        self.copy(numbers, shape.into())
    }

    /// Copies a matrix of `rows` rows: `[rows, columns]`.
    ///
    /// # Errors
    /// When the device is out of memory, or the matrix has another number of rows.
    pub fn rows(&self, matrix: &Matrix, rows: usize) -> Result<Tensor> {
        let shape = (rows, matrix.dim).into();
        match &matrix.values {
            Values::F32(values) => self.copy(values, shape),
            Values::F16(values) => self.copy(values, shape),
            Values::Bf16(values) => self.copy(values, shape),
        }
    }

    #[cfg(feature = "cuda")]
    fn copy<T: super::cuda::Uploads>(&self, numbers: &[T], shape: Shape) -> Result<Tensor> {
        match &self.second_stream {
            Some(stream) if !numbers.is_empty() && shape.elem_count() == numbers.len() => {
                Ok(stream.copy(numbers, shape)?)
            }
            _ => in_order(numbers, shape, &self.device),
        }
    }

    #[cfg(not(feature = "cuda"))]
    fn copy<T: WithDType>(&self, numbers: &[T], shape: Shape) -> Result<Tensor> {
        in_order(numbers, shape, &self.device)
    }

    /// Returns the end of all copies since the last call.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn end(&self) -> Result<Uploaded> {
        Ok(Uploaded {
            #[cfg(feature = "cuda")]
            second_stream: self.second_stream.as_ref().map(super::cuda::Upload::end).transpose()?,
        })
    }
}

/// Copies numbers to a device, after its earlier operations.
pub(crate) fn in_order<T: WithDType>(numbers: &[T], shape: Shape, device: &Device) -> Result<Tensor> {
    if !numbers.is_empty() || shape.elem_count() > 0 || device.is_cpu() {
        return Ok(Tensor::from_slice(numbers, shape, device)?);
    }
    // A GPU cannot allocate an empty tensor; the one extra number is never read.
    let one: Vec<usize> = shape.dims().iter().map(|&length| length.max(1)).collect();
    let mut tensor = Tensor::zeros(one, T::DTYPE, device)?;
    for (dim, &length) in shape.dims().iter().enumerate() {
        tensor = tensor.narrow(dim, 0, length)?;
    }
    Ok(tensor)
}

/// The end of some copies to a GPU. It keeps what was copied until operations wait for it.
#[derive(Debug)]
pub struct Uploaded {
    #[cfg(feature = "cuda")]
    second_stream: Option<super::cuda::Uploaded>,
}

impl Uploaded {
    /// Lets all operations after this call wait for the copies. The calling thread does not wait.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn wait(self) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Some(stream) = self.second_stream {
            stream.wait()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_have_all_numbers_in_their_type() {
        let upload = Upload::new(&Device::Cpu).unwrap();
        let halves = [1.0, -2.5, 0.0, 4.0, 8.0, 0.5].map(half::bf16::from_f32);
        let matrix = Matrix { dim: 2, values: Values::Bf16(halves.to_vec()) };
        let (rows, none) = (upload.rows(&matrix, 3).unwrap(), upload.integers(&[]).unwrap());
        upload.end().unwrap().wait().unwrap();
        assert_eq!(rows.to_vec2::<half::bf16>().unwrap().concat(), halves);
        assert_eq!(none.dims(), [0]);
        assert!(upload.rows(&matrix, 2).is_err());
    }

    /// The emulator makes copies as late as the waits allow, and refuses to free memory before.
    #[cfg(feature = "cuda")]
    #[test]
    fn copies_on_a_gpu_are_there_after_the_wait() {
        let Some(device) = crate::emulator::gpu("upload::tests::copies_on_a_gpu_are_there_after_the_wait") else {
            return;
        };
        let upload = Upload::new(&device).unwrap();
        // Several slots, and some of them twice.
        let numbers: Vec<u32> = (0..5_000_000).collect();
        let (long, short) = (upload.integers(&numbers).unwrap(), upload.integers(&[7]).unwrap());
        assert_ne!(short.to_vec1::<u32>().unwrap(), [7], "the copy is early, so this test cannot find a missing wait");
        upload.end().unwrap().wait().unwrap();
        assert_eq!(long.to_vec1::<u32>().unwrap(), numbers);
        assert_eq!(short.to_vec1::<u32>().unwrap(), [7]);
        // In any order, tensors and ends may be dropped before the copies are complete.
        drop(upload.integers(&numbers).unwrap());
        let end = upload.end().unwrap();
        let later = upload.integers(&[8]).unwrap();
        drop(later);
        drop(end);
        drop(upload.floats(&[1.0; 9], (3, 3)).unwrap());
        drop(upload);
        assert_eq!(Tensor::zeros(5, candle_core::DType::F32, &device).unwrap().to_vec1::<f32>().unwrap(), [0.0; 5]);
        let none = Upload::new(&device).unwrap();
        assert!(none.floats(&[], 3).is_err() && none.floats(&[], (0, 2)).unwrap().dims() == [0, 2]);
    }
}
