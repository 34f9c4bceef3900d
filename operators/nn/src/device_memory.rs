//! The memory of a GPU.

/// The memory of a GPU, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Free memory.
    pub free: u64,
    /// All memory.
    pub total: u64,
    /// The most that the tensors of this process have taken at the same time, if the driver counts it.
    pub peak: Option<u64>,
}
