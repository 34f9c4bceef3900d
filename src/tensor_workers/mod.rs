//! Tensor workers: stateless processes that run node tasks for graph workers (Dorylus, section 6).
//!
//! [`scheduler`] decides which worker runs which task. [`transport`] launches and connects workers, sends tasks and parameters, and is
//! the program of a worker. The training engine knows neither, only the trait `gnnflow_pipelines::executor::TaskExecutor`.
//!
//! This module needs the cargo feature `tensor-workers`, which is on by default; without it, `absent.rs` replaces this module.

mod scheduler;
pub(crate) mod transport;

use std::sync::Arc;

use gnnflow_nn::device::describe;
use gnnflow_pipelines::config::{Device, Tensor};
use gnnflow_pipelines::executor::ExecutorFactory;
use gnnflow_pipelines::{Config, Error as PipelineError};

use crate::cluster::{Secret, USER_SECRET, is_launched};
use crate::console::Console;
use crate::error::Error;
use transport::FlightWorkers;
pub(crate) use transport::{Limits, RegisterAt, default_listen_address, listen};

/// Checks that this build has tensor workers, which is true here.
#[expect(clippy::unnecessary_wraps, reason = "`absent.rs` has the same function, with errors")]
pub(crate) fn check(_: &Config) -> Result<(), Error> {
    Ok(())
}

/// The tensor workers of a pipeline.
pub(crate) struct TensorWorkers {
    settings: Tensor,
    /// The device of launched workers.
    device: Device,
    /// The GPU that all workers must have: that of this process, or of launched workers.
    gpu: Option<String>,
    secret: Option<Secret>,
    encrypt: Option<bool>,
    /// Address of a process of the run on another machine.
    remote: Option<String>,
    /// Whether this is the run's first process.
    first: bool,
}

impl TensorWorkers {
    /// Reads the settings of `config`; `None` if it has no tensor workers. `run_secret` is the secret of the run's processes, and `number` that of
    /// this process among those of its host.
    ///
    /// # Errors
    /// If the user's secret cannot be read.
    pub(crate) fn new(
        config: &Config,
        run_secret: Option<Secret>,
        remote: Option<String>,
        first: bool,
        number: usize,
    ) -> Result<Option<Self>, Error> {
        let Some(train) = &config.train else { return Ok(None) };
        let Some(settings) = train.tensor_workers.clone() else { return Ok(None) };
        let (own, device) = (train.device.of_process(number), settings.device(train.device).of_process(number));
        let own = if own.is_gpu() {
            Some(describe(&gnnflow_nn::device(&own.to_string()).map_err(PipelineError::from)?))
        } else {
            None
        };
        // Launched workers would end one after another without it.
        let launched = if device.is_gpu() && settings.workers.is_some() {
            let key =
                |error: gnnflow_nn::Error| PipelineError::Machine(format!("train.tensor_workers.device: {error}"));
            Some(describe(&gnnflow_nn::device(&device.to_string()).map_err(key)?))
        } else {
            None
        };
        if let (Some(own), Some(launched)) = (&own, &launched)
            && own != launched
        {
            let message = format!(
                "is {launched}, and the process computes on {own}, with other rounding errors; use GPUs of one model and driver"
            );
            return Err(config.problem("train.tensor_workers.device", message).into());
        }
        let gpu = own.or(launched);
        // Launched workers get the secret of the run; other workers have the user's.
        let elsewhere = settings.hosts.is_some() || settings.accept.is_some();
        let secret = if elsewhere { user_secret(config)? } else { run_secret };
        Ok(Some(Self { settings, device, gpu, secret, encrypt: config.cluster.encrypt, remote, first }))
    }

    /// Makes the executor factory of a run. Messages of the scheduler go to `console`.
    ///
    /// # Errors
    /// If the settings or this machine do not allow tensor workers.
    pub(crate) fn factory(&self, console: Console) -> Result<Arc<dyn ExecutorFactory>, PipelineError> {
        let Self { settings, device, gpu, secret, encrypt, remote, first } = self;
        let device = (*device, gpu.clone());
        let workers = FlightWorkers::new(settings, device, secret.clone(), *encrypt, remote.clone(), *first, console);
        let workers = workers.map_err(|error| match error {
            Error::Pipeline(error) => error,
            Error::Cluster(error) if error.exit_code() == 2 => PipelineError::Usage(error.to_string()),
            Error::Cluster(error) => PipelineError::Machine(error.to_string()),
        })?;
        Ok(Arc::new(workers))
    }
}

/// Returns the user's own secret. A child of `--processes` has the run's secret under the usual name, and the user's under another.
fn user_secret(config: &Config) -> Result<Option<Secret>, Error> {
    let child = is_launched();
    let environment = |name: &str| std::env::var(if child { USER_SECRET } else { name }).ok();
    Ok(Secret::find(environment, config.cluster.secret_file.as_deref())?)
}
