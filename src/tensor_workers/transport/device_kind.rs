//! The kind of device on which a tensor worker computes. All workers of a run have the same kind, because rounding errors depend on it.

use arrow_flight::Action;
use gnnflow_pipelines::config::Device;
use serde::{Deserialize, Serialize};

use super::client::{Client, describe};

/// Name of the action that asks a tensor worker for the kind of its device.
pub(super) const KIND_ACTION: &str = "device";

/// The kind of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum DeviceKind {
    #[default]
    Cpu,
    /// A GPU of this model; `None` for any.
    Gpu(Option<String>),
}

impl DeviceKind {
    /// Returns the kind of a device, of which `description` names the model.
    pub(super) fn of(device: Device, description: Option<String>) -> Self {
        if device.is_gpu() { Self::Gpu(description) } else { Self::Cpu }
    }

    /// Checks that a worker that computes on `self` fits a run whose workers must compute on `wanted`.
    ///
    /// # Errors
    /// If it does not fit.
    pub(super) fn check(&self, wanted: &Self) -> Result<(), String> {
        match (self, wanted) {
            (Self::Cpu, Self::Gpu(_)) => Err("the worker computes on the CPU, and the workers of this run compute on GPUs; start it with --device cuda, or set \
                                              train.tensor_workers.device = \"cpu\""
                .into()),
            (Self::Gpu(_), Self::Cpu) => Err("the worker computes on a GPU, and the workers of this run compute on the CPU; start it without \
                                              --device, or set train.tensor_workers.device = \"cuda\""
                .into()),
            (Self::Gpu(Some(own)), Self::Gpu(Some(wanted))) if own != wanted => Err(format!(
                "the worker computes on another GPU ({own}) than the processes of this run ({wanted}), with other rounding errors; use GPUs of one \
                 model and driver"
            )),
            _ => Ok(()),
        }
    }
}

/// Asks a tensor worker for the kind of its device.
///
/// # Errors
/// If it does not answer.
pub(super) async fn kind_of(client: &mut Client) -> Result<DeviceKind, String> {
    let action = Action { r#type: KIND_ACTION.to_owned(), body: Vec::new().into() };
    let response = client.do_action(action).await.map_err(|status| describe(&status))?;
    let message = response.into_inner().message().await.map_err(|status| describe(&status))?;
    let body = message.ok_or("sent no device")?.body;
    serde_json::from_slice(&body).map_err(|error| format!("sent a malformed device: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_fit_only_runs_on_their_kind_of_device() {
        let gpu = |model: &str| DeviceKind::of(Device::Cuda(1), Some(model.to_owned()));
        let any = DeviceKind::of(Device::Cuda(0), None);
        for (own, wanted, words) in [
            (gpu("a"), gpu("a"), None),
            (gpu("a"), any.clone(), None),
            (DeviceKind::Cpu, DeviceKind::of(Device::Cpu, None), None),
            (DeviceKind::Cpu, any, Some("--device cuda")),
            (gpu("a"), DeviceKind::Cpu, Some("train.tensor_workers.device")),
            (gpu("a"), gpu("b"), Some("another GPU (a) than the processes of this run (b)")),
        ] {
            let error = own.check(&wanted).err();
            assert!(
                error.as_deref().map(|error| words.is_some_and(|words| error.contains(words))) != Some(false),
                "{error:?}"
            );
            assert_eq!(error.is_some(), words.is_some(), "{own:?} {wanted:?}");
        }
    }
}
