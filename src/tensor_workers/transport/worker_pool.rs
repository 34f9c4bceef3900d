//! A graph worker's pool of tensor workers: launched on its machine, listening at addresses in the pipeline, or registered.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, ToSocketAddrs};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use gnnflow_nn::model::ModelSpec;
use gnnflow_nn::parameter_versions::ParameterVersions;
use gnnflow_pipelines::Error as PipelineError;
use gnnflow_pipelines::config::{Device, Tensor};
use gnnflow_pipelines::executor::{ExecutorFactory, ExecutorSetup, TaskExecutor};
use tokio::runtime::Runtime;

use super::address::{is_local, own_address};
use super::client::connect;
use super::connection::Connection;
use super::device_kind::{DeviceKind, kind_of};
use super::parameters::ParameterServer;
use super::registry::WorkerRegistry;
use super::runtime;
use super::server::{bind, serve};
use super::service::{Role, Service};
use crate::cluster::{ClusterError, LISTENER, NOTICE_FD, RESTARTED, Secret, random_hex};
use crate::console::Console;
use crate::tensor_workers::scheduler::{RegistryEvent, Retry, TaskScheduler, TensorWorker, WorkerPool};

/// Time before a lost worker of `hosts` is connected again.
const RECONNECT: Duration = Duration::from_secs(3);
/// Initial and maximum time before a lost worker is launched again. The time doubles with each loss.
const RELAUNCH: Duration = Duration::from_millis(200);
const MAX_RELAUNCH: Duration = Duration::from_secs(10);

/// Tensor workers over Arrow Flight.
pub(crate) struct FlightWorkers {
    settings: Tensor,
    /// Addresses of the workers that the pipeline names.
    hosts: Vec<String>,
    /// Number of launched workers. If not 0, there are no hosts.
    launched: usize,
    /// The device of launched workers.
    device: Device,
    /// The kind of device on which all workers must compute.
    kind: Mutex<DeviceKind>,
    /// Workers that compute on another one.
    refused: Mutex<BTreeSet<usize>>,
    /// Whether this is the run's first process.
    first: bool,
    secret: Option<Secret>,
    /// The key `cluster.encrypt`.
    encrypt: Option<bool>,
    /// A random name of this process's run: it separates its versions of parameters from those of other runs.
    run: String,
    /// An address of a machine that fetches parameters: the network interface toward it serves them.
    toward: Option<String>,
    runtime: Option<Runtime>,
    server: Mutex<String>,
    children: Mutex<Vec<Option<Child>>>,
    registry: Arc<WorkerRegistry>,
    console: Console,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FlightWorkers {
    /// Makes the pool of `settings`, of workers that compute on `device`; on GPUs of the model `gpu` only, if it is given. `secret` is the run's, and `encrypt` the key `cluster.encrypt`. `remote` is the address of a process on another machine, if there is
    /// one. `first` says whether this is the run's first process. Messages go to `console`.
    ///
    /// # Errors
    /// If workers would be reached over a network without a secret.
    pub(crate) fn new(
        settings: &Tensor,
        (device, gpu): (Device, Option<String>),
        secret: Option<Secret>,
        encrypt: Option<bool>,
        remote: Option<String>,
        first: bool,
        console: Console,
    ) -> Result<Self, crate::error::Error> {
        let hosts = settings.hosts.clone().unwrap_or_default();
        let keyed = hosts.iter().map(|host| ("hosts", host)).chain(settings.accept.iter().map(|host| ("accept", host)));
        let remote_host = keyed.clone().find(|(_, host)| !is_local(host));
        if let (Some((key, host)), None) = (remote_host, &secret) {
            let message = format!(
                "train.tensor_workers.{key}: {host} is not this machine; give a secret, in GNNFLOW_SECRET or cluster.secret_file"
            );
            return Err(ClusterError::Usage(message).into());
        }
        if encrypt == Some(true) && secret.is_none() && keyed.clone().next().is_some() {
            let message = "cluster.encrypt needs a shared secret, from which the keys follow; give one, in GNNFLOW_SECRET or cluster.secret_file";
            return Err(ClusterError::Usage(message.into()).into());
        }
        let toward =
            remote_host.or_else(|| keyed.clone().find(|(key, _)| *key == "accept")).map(|(_, host)| host.clone());
        let secret = match secret {
            // Only this process may use the workers that it launches.
            None if hosts.is_empty() && settings.accept.is_none() => Some(Secret::random()?),
            secret => secret,
        };
        let (launched, kind) = (settings.workers.unwrap_or(0), DeviceKind::of(device, gpu));
        Ok(Self {
            registry: Arc::new(WorkerRegistry::new(launched + hosts.len(), kind.clone())),
            settings: settings.clone(),
            hosts,
            launched,
            device,
            kind: Mutex::new(kind),
            refused: Mutex::default(),
            first,
            secret,
            encrypt,
            run: random_hex(8)?,
            toward: toward.or(remote),
            runtime: Some(runtime("tensor-client")?),
            server: Mutex::default(),
            children: Mutex::new((0..launched).map(|_| None).collect()),
            console,
        })
    }

    fn runtime(&self) -> Result<&Runtime, String> {
        self.runtime.as_ref().ok_or_else(|| "the process is ending".to_owned())
    }

    /// Launches a worker in place of the last one, and returns its address.
    fn launch(&self, worker: usize, limit: Duration) -> Result<String, String> {
        if let Some(mut last) = lock(&self.children).get_mut(worker).and_then(Option::take) {
            // It may still run, but not answer.
            let _ = last.kill();
            let _ = last.wait();
        }
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["tensor-worker", "--listen", "127.0.0.1:0", "--until-input-ends", "--threads"])
            .arg(self.settings.threads.to_string())
            .args(["--device", &self.device.to_string()]);
        for inherited in [LISTENER, NOTICE_FD, RESTARTED, "GNNFLOW_RANK", "GNNFLOW_SIZE", "GNNFLOW_SECRET"] {
            command.env_remove(inherited);
        }
        if let Some(secret) = &self.secret {
            command.env("GNNFLOW_SECRET", secret.to_text());
        }
        // A signal to the run does not reach them; they end with their input.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("cannot be launched: {error}"))?;
        let stdout = child.stdout.take();
        // It ends when its input ends: when `Child` is dropped, or this process ends.
        if let Some(slot) = lock(&self.children).get_mut(worker) {
            *slot = Some(child);
        }
        let (sender, receiver) = mpsc::channel();
        let reader = std::thread::Builder::new().name("tensor-launch".into()).spawn(move || {
            let mut line = String::new();
            if let Some(stdout) = stdout {
                let _ = BufReader::new(stdout).read_line(&mut line);
            }
            let _ = sender.send(line);
        });
        reader.map_err(|error| format!("cannot be launched: {error}"))?;
        let line = receiver.recv_timeout(limit).map_err(|_| "did not start in time".to_owned())?;
        let address = line.trim().strip_prefix("listening at ");
        address.map(str::to_owned).ok_or_else(|| "ended during its start".to_owned())
    }
}

impl Drop for FlightWorkers {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        for child in self.children.get_mut().unwrap_or_else(PoisonError::into_inner).iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl WorkerPool for FlightWorkers {
    fn count(&self) -> usize {
        self.launched + self.hosts.len()
    }

    fn name(&self, worker: usize) -> String {
        match (self.hosts.get(worker), self.registry.member(worker)) {
            (Some(host), _) => host.clone(),
            (None, Some((listens, _))) => listens.to_string(),
            (None, None) => format!("{worker} on this machine"),
        }
    }

    fn watch(&self, servers: &[String], on_event: Box<dyn Fn(RegistryEvent) + Send + Sync>) {
        if self.settings.accept.is_some() {
            self.registry.open(servers, lock(&self.server).clone(), on_event.into());
        }
    }

    fn connect(
        &self,
        worker: usize,
        model: &ModelSpec,
        servers: &[String],
        limit: Duration,
    ) -> Result<Arc<dyn TensorWorker>, String> {
        let address = match (self.hosts.get(worker), self.registry.member(worker)) {
            (Some(host), _) => host.clone(),
            (None, Some((listens, true))) => listens.to_string(),
            (None, Some((_, false))) => return Err("has left".to_owned()),
            (None, None) => self.launch(worker, limit)?,
        };
        let sent = serde_json::to_string(model).and_then(|text| serde_json::from_str::<ModelSpec>(&text));
        if sent.as_ref().ok() != Some(model) {
            return Err("cannot receive this model: JSON does not keep all digits of one of its numbers".to_owned());
        }
        let runtime = self.runtime()?;
        let mut client = runtime.block_on(connect(&address, self.secret.as_ref(), self.encrypt, limit))?;
        let asked = async { tokio::time::timeout(limit, kind_of(&mut client)).await };
        let kind = runtime.block_on(asked).map_err(|_| "did not name its device in time".to_owned())??;
        let wanted = {
            let mut wanted = lock(&self.kind);
            if let Err(error) = kind.check(&wanted) {
                lock(&self.refused).insert(worker);
                return Err(error);
            }
            // The others must have the GPU of the first one.
            *wanted = kind;
            wanted.clone()
        };
        Ok(Arc::new(Connection {
            runtime: runtime.handle().clone(),
            client,
            model: model.clone(),
            run: self.run.clone(),
            device: wanted,
            encrypt: self.encrypt,
            servers: servers.to_vec(),
            own: lock(&self.server).clone(),
        }))
    }

    fn retry(&self, worker: usize, times: u32) -> Retry {
        if lock(&self.refused).contains(&worker) {
            return Retry::Never;
        }
        if worker < self.launched {
            let doubled = 1 << (times.max(1) - 1).min(16);
            if times > self.settings.relaunch() {
                return Retry::Never;
            }
            return Retry::Relaunch((RELAUNCH * doubled).min(MAX_RELAUNCH));
        }
        match self.registry.member(worker) {
            Some((_, false)) => Retry::Never,
            _ => Retry::Reconnect(RECONNECT),
        }
    }

    fn end(&self) {
        self.registry.end();
    }
}

impl ExecutorFactory for FlightWorkers {
    fn serve(&self, parameters: Arc<ParameterVersions>) -> Result<String, PipelineError> {
        let machine = |error: &dyn std::fmt::Display| {
            PipelineError::Machine(format!("cannot serve parameters to tensor workers: {error}"))
        };
        let ip = self.toward.as_deref().and_then(own_address);
        let ip = ip.unwrap_or_else(|| IpAddr::from([127, 0, 0, 1]));
        let (listener, address) = bind(&[(ip, 0).into()]).map_err(|error| machine(&error))?;
        let parameters = Arc::new(ParameterServer { versions: parameters });
        let role = Role::GraphWorker(parameters, Arc::clone(&self.registry));
        let service = Service { role };
        let runtime = self.runtime().map_err(|error| machine(&error))?;
        if let Some(accept) = self.settings.accept.as_ref().filter(|_| self.first) {
            let found = accept.to_socket_addrs().and_then(|found| bind(&found.collect::<Vec<_>>()));
            let cannot = |error: std::io::Error| {
                let problem = "train.tensor_workers.accept: the run's first process cannot listen at";
                PipelineError::Machine(format!(
                    "{problem} {accept}: {error}; give an address of its machine, with a free port"
                ))
            };
            runtime.spawn(serve(found.map_err(cannot)?.0, self.secret.clone(), service.clone()));
        }
        runtime.spawn(serve(listener, self.secret.clone(), service));
        *lock(&self.server) = address.to_string();
        Ok(address.to_string())
    }

    fn gpu(&self) -> String {
        match &*lock(&self.kind) {
            DeviceKind::Gpu(Some(model)) => model.clone(),
            _ => String::new(),
        }
    }

    fn start(self: Arc<Self>, setup: ExecutorSetup) -> Result<Box<dyn TaskExecutor>, PipelineError> {
        let (settings, console) = (self.settings.clone(), self.console.clone());
        Ok(Box::new(TaskScheduler::start(self, settings, console, setup)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_of_launched_workers_doubles_its_delay_and_ends() {
        let settings = Tensor { workers: Some(2), relaunch: Some(7), ..Tensor::default() };
        let workers =
            FlightWorkers::new(&settings, (Device::Cpu, None), None, None, None, true, Console::silent()).unwrap();
        let after: Vec<Retry> = (1..=8).map(|times| workers.retry(1, times)).collect();
        let seconds = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0].map(|after| Retry::Relaunch(Duration::from_secs_f64(after)));
        assert_eq!(after[..7], seconds);
        assert_eq!(after[7], Retry::Never);
        let hosts = Tensor { hosts: Some(vec!["127.0.0.1:1".into()]), ..Tensor::default() };
        let workers =
            FlightWorkers::new(&hosts, (Device::Cpu, None), None, None, None, true, Console::silent()).unwrap();
        assert_eq!(workers.retry(0, 1000), Retry::Reconnect(RECONNECT));
    }

    #[test]
    fn new_with_another_machine_needs_a_secret() {
        for (key, settings) in [
            ("train.tensor_workers.hosts", Tensor { hosts: Some(vec!["192.0.2.1:7000".into()]), ..Tensor::default() }),
            ("train.tensor_workers.accept", Tensor { accept: Some("192.0.2.1:7000".into()), ..Tensor::default() }),
        ] {
            let error = FlightWorkers::new(&settings, (Device::Cpu, None), None, None, None, true, Console::silent())
                .err()
                .unwrap();
            assert!(error.to_string().contains(key) && error.exit_code() == 2, "{error}");
        }
    }
}
