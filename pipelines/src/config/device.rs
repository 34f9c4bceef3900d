//! The device that computes.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// The device that computes.
///
/// ```
/// use gnnflow_pipelines::config::Device;
///
/// assert_eq!("cuda".parse(), Ok(Device::Cuda(0)));
/// assert_eq!("cuda:1".parse(), Ok(Device::Cuda(1)));
/// assert_eq!("cuda:rank".parse(), Ok(Device::CudaOfRank));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The CPU.
    Cpu,
    /// The GPU with this number, from 0, for all processes of a host.
    Cuda(u16),
    /// A GPU for each process of a host, in the order of ranks.
    CudaOfRank,
}

impl Device {
    /// Whether a GPU computes.
    pub fn is_gpu(self) -> bool {
        self != Self::Cpu
    }

    /// Returns `cpu` or `cuda`.
    pub fn kind(self) -> &'static str {
        if self.is_gpu() { "cuda" } else { "cpu" }
    }

    /// Returns the device of a process, by its number among the processes of its host.
    #[must_use]
    pub fn of_process(self, number: usize) -> Self {
        match self {
            Self::CudaOfRank => Self::Cuda(u16::try_from(number).unwrap_or(u16::MAX)),
            other => other,
        }
    }
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            "cuda:rank" => Ok(Self::CudaOfRank),
            _ => text.strip_prefix("cuda:").and_then(|number| number.parse().ok()).map(Self::Cuda).ok_or_else(|| {
                format!(
                    "expected \"cpu\", \"cuda\" for the first GPU, \"cuda:1\" for the one with this number, or \"cuda:rank\" for one for each \
                     process of a host, found {text:?}"
                )
            }),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(0) => f.write_str("cuda"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
            Self::CudaOfRank => f.write_str("cuda:rank"),
        }
    }
}

impl Serialize for Device {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Device {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for Device {
    fn schema_name() -> Cow<'static, str> {
        "Device".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "device" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_parse_their_display() {
        for value in [Device::Cpu, Device::Cuda(0), Device::Cuda(7), Device::CudaOfRank] {
            assert_eq!(value.to_string().parse(), Ok(value));
        }
        for text in ["gpu", "cuda:", "cuda:-1", "cuda:first", "CUDA", ""] {
            let error = text.parse::<Device>().unwrap_err();
            assert!(error.contains("cuda:rank") && error.ends_with(&format!("found {text:?}")), "{error}");
        }
    }

    #[test]
    fn processes_of_a_host_have_a_gpu_each_only_by_rank() {
        assert_eq!([0, 3].map(|number| Device::CudaOfRank.of_process(number)), [Device::Cuda(0), Device::Cuda(3)]);
        assert_eq!(Device::Cuda(1).of_process(3), Device::Cuda(1));
        assert_eq!(Device::Cpu.of_process(3), Device::Cpu);
    }
}
