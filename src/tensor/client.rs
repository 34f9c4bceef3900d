//! A graph worker's tensor workers: launched beside it, called up where they listen, or come by themselves.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use gnnflow_nn::model::ModelSpec;
use gnnflow_pipelines::Error as PipelineError;
use gnnflow_pipelines::config::Tensor;
use gnnflow_pipelines::parameters::ParameterService;
use gnnflow_pipelines::tensor::{Again, Enlisted, TensorWorker, TensorWorkers};
use tokio::runtime::Runtime;

use super::auth::{Guard, Known};
use super::parameters::Parameters;
use super::roll::Roll;
use super::runtime;
use super::server::{bound, serve};
use super::service::{Serves, Service};
use super::way::Met;
use crate::cluster::{ClusterError, Secret, random_hex};

/// How long a worker that listens elsewhere is left alone before it is called up again.
const AGAIN: Duration = Duration::from_secs(3);
/// How long one that was launched is, at first; twice as long each time, and at most so long.
const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(10);

/// Tensor workers over Flight.
pub(crate) struct FlightWorkers {
    settings: Tensor,
    /// Where those listen that the pipeline names.
    hosts: Vec<String>,
    /// How many are launched. There are no hosts then.
    launched: usize,
    /// Whether this is the run's first process.
    first: bool,
    secret: Option<Secret>,
    /// Of this process: versions of parameters are told apart by it.
    run: String,
    /// How this process can be reached by who fetches parameters: an address in their direction.
    towards: Option<String>,
    runtime: Option<Runtime>,
    server: Mutex<String>,
    children: Mutex<Vec<Option<Child>>>,
    roll: Arc<Roll>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether `host` is this machine, and nothing but it.
pub(super) fn is_here(host: &str) -> bool {
    host.to_socket_addrs().is_ok_and(|mut addresses| addresses.all(|address| address.ip().is_loopback()))
}

/// The address of this machine in the direction of another.
pub(super) fn own_address(towards: &str) -> Option<IpAddr> {
    let there: SocketAddr = towards.to_socket_addrs().ok()?.next()?;
    let any = if there.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).ok()?;
    // Nothing is sent: the system only says which way it would go.
    socket.connect(there).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

impl FlightWorkers {
    /// Those that `settings` ask for; `secret` is the run's. `across` is another process's address, where the run has several machines; `first`
    /// says whether this is its first process.
    ///
    /// # Errors
    /// When they would have to be reached over a network without a secret.
    pub(crate) fn new(
        settings: &Tensor,
        secret: Option<Secret>,
        across: Option<String>,
        first: bool,
    ) -> Result<Self, crate::Error> {
        let hosts = settings.hosts.clone().unwrap_or_default();
        let keyed = hosts.iter().map(|host| ("hosts", host)).chain(settings.accept.iter().map(|host| ("accept", host)));
        let far = keyed.clone().find(|(_, host)| !is_here(host));
        if let (Some((key, far)), None) = (far, &secret) {
            let message = format!(
                "train.tensor_workers.{key}: {far} is not this machine: a secret is needed, in GNNFLOW_SECRET or cluster.secret_file"
            );
            return Err(ClusterError::Usage(message).into());
        }
        let towards = far.or_else(|| keyed.clone().find(|(key, _)| *key == "accept")).map(|(_, host)| host.clone());
        let secret = match secret {
            // Nobody else is to ask those that are launched.
            None if hosts.is_empty() && settings.accept.is_none() => Some(Secret::random()?),
            secret => secret,
        };
        let launched = settings.workers.unwrap_or(0);
        Ok(Self {
            roll: Arc::new(Roll::new(launched + hosts.len())),
            settings: settings.clone(),
            hosts,
            launched,
            first,
            secret,
            run: random_hex(8)?,
            towards: towards.or(across),
            runtime: Some(runtime("tensor-client")?),
            server: Mutex::default(),
            children: Mutex::new((0..launched).map(|_| None).collect()),
        })
    }

    fn runtime(&self) -> Result<&Runtime, String> {
        self.runtime.as_ref().ok_or_else(|| "the process is ending".to_owned())
    }

    /// Launches a worker, in place of the one that there was, and says where it listens.
    fn launch(&self, worker: usize, limit: Duration) -> Result<String, String> {
        if let Some(mut before) = lock(&self.children).get_mut(worker).and_then(Option::take) {
            // It may only have stopped answering.
            let _ = before.kill();
            let _ = before.wait();
        }
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["tensor-worker", "--listen", "127.0.0.1:0", "--until-input-ends", "--threads"])
            .arg(self.settings.threads.to_string());
        for inherited in ["GNNFLOW_LISTEN_FD", "GNNFLOW_HOPELESS_FD", "GNNFLOW_RANK", "GNNFLOW_SIZE", "GNNFLOW_SECRET"]
        {
            command.env_remove(inherited);
        }
        if let Some(secret) = &self.secret {
            command.env("GNNFLOW_SECRET", secret.to_text());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("cannot be launched: {error}"))?;
        let stdout = child.stdout.take();
        // It ends when its input does: with the child here, or with this process.
        if let Some(place) = lock(&self.children).get_mut(worker) {
            *place = Some(child);
        }
        let (say, said) = mpsc::channel();
        let reader = std::thread::Builder::new().name("tensor-launch".into()).spawn(move || {
            let mut line = String::new();
            if let Some(stdout) = stdout {
                let _ = BufReader::new(stdout).read_line(&mut line);
            }
            let _ = say.send(line);
        });
        reader.map_err(|error| format!("cannot be launched: {error}"))?;
        let line = said.recv_timeout(limit).map_err(|_| "did not say in time where it listens".to_owned())?;
        let address = line.trim().strip_prefix("listening at ");
        address.map(str::to_owned).ok_or_else(|| "ended before it listened".to_owned())
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

impl TensorWorkers for FlightWorkers {
    fn count(&self) -> usize {
        self.launched + self.hosts.len()
    }

    fn name(&self, worker: usize) -> String {
        match (self.hosts.get(worker), self.roll.member(worker)) {
            (Some(host), _) => host.clone(),
            (None, Some((listens, _))) => listens.to_string(),
            (None, None) => format!("{worker} on this machine"),
        }
    }

    fn serve(&self, parameters: Arc<ParameterService>) -> Result<String, PipelineError> {
        let machine = |error: &dyn std::fmt::Display| {
            PipelineError::Machine(format!("cannot serve parameters to tensor workers: {error}"))
        };
        let ip = self.towards.as_deref().and_then(own_address);
        let ip = ip.unwrap_or_else(|| IpAddr::from([127, 0, 0, 1]));
        let (listener, address) = bound(&[(ip, 0).into()]).map_err(|error| machine(&error))?;
        let guard = Guard::new(self.secret.clone()).map_err(|status| machine(&status.message()))?;
        let parameters = Arc::new(Parameters { service: parameters });
        let serves = Serves::Parameters(parameters, Arc::clone(&self.roll));
        let service = Service { guard: Arc::new(guard), serves };
        let runtime = self.runtime().map_err(|error| machine(&error))?;
        if let Some(enlist) = self.settings.accept.as_ref().filter(|_| self.first) {
            let found = enlist.to_socket_addrs().and_then(|found| bound(&found.collect::<Vec<_>>()));
            let cannot = |error: std::io::Error| {
                let message = "train.tensor_workers.accept: the run's first process cannot listen at";
                PipelineError::Machine(format!(
                    "{message} {enlist}: {error}; give an address of its machine, with a free port"
                ))
            };
            runtime.spawn(serve(found.map_err(cannot)?.0, service.clone()));
        }
        runtime.spawn(serve(listener, service));
        *lock(&self.server) = address.to_string();
        Ok(address.to_string())
    }

    fn watch(&self, servers: &[String], told: Box<dyn Fn(Enlisted) + Send + Sync>) {
        if self.settings.accept.is_some() {
            self.roll.open(servers, lock(&self.server).clone(), told.into());
        }
    }

    fn meet(
        &self,
        worker: usize,
        model: &ModelSpec,
        servers: &[String],
        limit: Duration,
    ) -> Result<Arc<dyn TensorWorker>, String> {
        let address = match (self.hosts.get(worker), self.roll.member(worker)) {
            (Some(host), _) => host.clone(),
            (None, Some((listens, true))) => listens.to_string(),
            (None, Some((_, false))) => return Err("has left".to_owned()),
            (None, None) => self.launch(worker, limit)?,
        };
        let sent = serde_json::to_string(model).and_then(|text| serde_json::from_str::<ModelSpec>(&text));
        if sent.as_ref().ok() != Some(model) {
            return Err("cannot be told of this model: a number has more digits than JSON keeps".to_owned());
        }
        let runtime = self.runtime()?;
        let known = runtime.block_on(Known::connect(&address, self.secret.as_ref(), limit))?;
        Ok(Arc::new(Met {
            runtime: runtime.handle().clone(),
            known,
            model: model.clone(),
            run: self.run.clone(),
            servers: servers.to_vec(),
            own: lock(&self.server).clone(),
        }))
    }

    fn again(&self, worker: usize, times: u32) -> Again {
        if worker < self.launched {
            let doubled = 1 << (times.max(1) - 1).min(16);
            return match times <= self.settings.relaunch() {
                true => Again::Started((FIRST * doubled).min(LONGEST)),
                false => Again::Never,
            };
        }
        match self.roll.member(worker) {
            Some((_, false)) => Again::Never,
            _ => Again::CalledUp(AGAIN),
        }
    }

    fn end(&self) {
        self.roll.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launched_workers_are_started_again_so_often_and_ever_later() {
        let settings = Tensor { workers: Some(2), relaunch: Some(7), ..Tensor::default() };
        let workers = FlightWorkers::new(&settings, None, None, true).unwrap();
        let after: Vec<Again> = (1..=8).map(|times| workers.again(1, times)).collect();
        let seconds = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0].map(|after| Again::Started(Duration::from_secs_f64(after)));
        assert_eq!(after[..7], seconds);
        assert_eq!(after[7], Again::Never);
        let hosts = Tensor { hosts: Some(vec!["127.0.0.1:1".into()]), ..Tensor::default() };
        let workers = FlightWorkers::new(&hosts, None, None, true).unwrap();
        assert_eq!(workers.again(0, 1000), Again::CalledUp(AGAIN));
    }

    #[test]
    fn nobody_is_asked_over_a_network_without_a_secret() {
        for (key, settings) in [
            ("train.tensor_workers.hosts", Tensor { hosts: Some(vec!["192.0.2.1:7000".into()]), ..Tensor::default() }),
            ("train.tensor_workers.accept", Tensor { accept: Some("192.0.2.1:7000".into()), ..Tensor::default() }),
        ] {
            let error = FlightWorkers::new(&settings, None, None, true).err().unwrap();
            assert!(error.to_string().contains(key) && error.exit_code() == 2, "{error}");
        }
    }
}
