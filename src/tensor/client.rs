//! A graph worker's way to its tensor workers: launched beside it, or called up where they listen.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use gnnflow_data::rng::Key;
use gnnflow_operators::compute::model::ModelSpec;
use gnnflow_pipelines::Error as PipelineError;
use gnnflow_pipelines::parameters::{Choice, ParameterService};
use gnnflow_pipelines::spec::Tensor;
use gnnflow_pipelines::tensor::{TensorResult, TensorTask, TensorWorker, TensorWorkers};
use tokio::runtime::Runtime;

use super::auth::{Guard, Known, refusal};
use super::parameters::Parameters;
use super::runtime;
use super::server::serve;
use super::service::{AHEAD, Serves, Service};
use super::wire::{self, Matrices, Question};
use crate::cluster::{ClusterError, Secret, random_hex};

/// Where tensor workers are.
#[derive(Debug, Clone)]
enum Place {
    /// Launched: how many, and how many threads each has.
    Here(usize, usize),
    /// They listen there.
    There(Vec<String>),
}

/// Tensor workers over Flight.
pub(crate) struct FlightWorkers {
    place: Place,
    secret: Option<Secret>,
    /// Of this process: versions of parameters are told apart by it.
    run: String,
    /// How this process can be reached by who fetches parameters: an address in their direction.
    towards: Option<String>,
    runtime: Option<Runtime>,
    server: Mutex<Option<String>>,
    children: Mutex<Vec<Child>>,
}

impl FlightWorkers {
    /// Those that `settings` ask for; `secret` is the run's. `across` is another process's address, where the run has several machines.
    ///
    /// # Errors
    /// When they would have to be reached over a network without a secret.
    pub(crate) fn new(settings: &Tensor, secret: Option<Secret>, across: Option<String>) -> Result<Self, crate::Error> {
        let place = match &settings.hosts {
            Some(hosts) => Place::There(hosts.clone()),
            None => Place::Here(settings.workers.unwrap_or(1), settings.threads),
        };
        let local = |host: &String| {
            host.to_socket_addrs().is_ok_and(|mut addresses| addresses.all(|address| address.ip().is_loopback()))
        };
        let far = match &place {
            Place::There(hosts) => hosts.iter().find(|host| !local(host)).cloned(),
            Place::Here(..) => None,
        };
        if let (Some(far), None) = (&far, &secret) {
            let message = format!(
                "train.tensor.hosts: {far} is not this machine: a secret is needed, in GNNFLOW_SECRET or cluster.secret_file"
            );
            return Err(ClusterError::Usage(message).into());
        }
        let secret = match (&place, secret) {
            (Place::Here(..), None) => Some(Secret::random()?),
            (_, secret) => secret,
        };
        let runtime = Some(runtime("tensor-client")?);
        let (run, towards) = (random_hex(8)?, far.or(across));
        Ok(Self { place, secret, run, towards, runtime, server: Mutex::default(), children: Mutex::default() })
    }

    fn runtime(&self) -> Result<&Runtime, String> {
        self.runtime.as_ref().ok_or_else(|| "the process is ending".to_owned())
    }

    /// Launches a worker, and says where it listens.
    fn launch(&self, threads: usize, limit: Duration) -> Result<String, String> {
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["tensor-worker", "--listen", "127.0.0.1:0", "--until-input-ends", "--threads"])
            .arg(threads.to_string());
        for inherited in ["GNNFLOW_LISTEN_FD", "GNNFLOW_HOPELESS_FD", "GNNFLOW_RANK", "GNNFLOW_SIZE"] {
            command.env_remove(inherited);
        }
        if let Some(secret) = &self.secret {
            command.env("GNNFLOW_SECRET", secret.to_text());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("cannot be launched: {error}"))?;
        let stdout = child.stdout.take();
        // It ends when its input does: with the child here, or with this process.
        self.children.lock().unwrap_or_else(PoisonError::into_inner).push(child);
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
        for child in self.children.get_mut().unwrap_or_else(PoisonError::into_inner) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The address of this machine in the direction of another.
fn own_address(towards: &str) -> Option<IpAddr> {
    let there: SocketAddr = towards.to_socket_addrs().ok()?.next()?;
    let any = if there.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).ok()?;
    // Nothing is sent: the system only says which way it would go.
    socket.connect(there).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

impl TensorWorkers for FlightWorkers {
    fn count(&self) -> usize {
        match &self.place {
            Place::Here(count, _) => *count,
            Place::There(hosts) => hosts.len(),
        }
    }

    fn name(&self, worker: usize) -> String {
        match &self.place {
            Place::Here(..) => format!("{worker} on this machine"),
            Place::There(hosts) => hosts.get(worker).cloned().unwrap_or_default(),
        }
    }

    fn serve(&self, parameters: Arc<ParameterService>) -> Result<String, PipelineError> {
        let machine = |error: &dyn std::fmt::Display| {
            PipelineError::Machine(format!("cannot serve parameters to tensor workers: {error}"))
        };
        let ip = self.towards.as_deref().and_then(own_address);
        let ip = ip.unwrap_or_else(|| IpAddr::from([127, 0, 0, 1]));
        let listener = TcpListener::bind((ip, 0)).map_err(|error| machine(&error))?;
        listener.set_nonblocking(true).map_err(|error| machine(&error))?;
        let address = listener.local_addr().map_err(|error| machine(&error))?.to_string();
        let guard = Guard::new(self.secret.clone()).map_err(|status| machine(&status.message()))?;
        let serves = Serves::Parameters(Arc::new(Parameters { service: parameters }));
        let service = Service { guard: Arc::new(guard), serves };
        self.runtime().map_err(|error| machine(&error))?.spawn(serve(listener, service));
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(address.clone());
        Ok(address)
    }

    fn meet(
        &self,
        worker: usize,
        model: &ModelSpec,
        servers: &[String],
        limit: Duration,
    ) -> Result<Arc<dyn TensorWorker>, String> {
        let address = match &self.place {
            Place::Here(_, threads) => self.launch(*threads, limit)?,
            Place::There(hosts) => hosts.get(worker).cloned().ok_or("is not listed")?,
        };
        let sent = serde_json::to_string(model).and_then(|text| serde_json::from_str::<ModelSpec>(&text));
        if sent.as_ref().ok() != Some(model) {
            return Err("cannot be told of this model: a number has more digits than JSON keeps".to_owned());
        }
        let runtime = self.runtime()?;
        let known = runtime.block_on(Known::connect(&address, self.secret.as_ref(), limit))?;
        let own = self.server.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Arc::new(Met {
            runtime: runtime.handle().clone(),
            known,
            model: model.clone(),
            run: self.run.clone(),
            servers: servers.to_vec(),
            own: own.unwrap_or_default(),
        }))
    }

    fn may_come_back(&self) -> bool {
        matches!(self.place, Place::There(_))
    }
}

/// A tensor worker that knows the secret.
struct Met {
    runtime: tokio::runtime::Handle,
    known: Known,
    model: ModelSpec,
    run: String,
    servers: Vec<String>,
    own: String,
}

impl Met {
    fn question(&self, task: &TensorTask, choice: Choice, rows: usize, asks: wire::Asks) -> Question {
        let mut servers: Vec<String> = self.servers.get(choice.server).cloned().into_iter().collect();
        if !servers.contains(&self.own) {
            servers.push(self.own.clone());
        }
        Question {
            model: self.model.clone(),
            run: self.run.clone(),
            version: choice.version,
            servers,
            index: task.index,
            count: task.count,
            rows,
            key: task.key.map(Key::bits),
            asks,
        }
    }

    async fn exchange(&self, task: &TensorTask, choice: Choice) -> Result<TensorResult, String> {
        let (say, said) = tokio::sync::mpsc::channel(AHEAD);
        let said = futures_util::stream::unfold(said, |mut said: tokio::sync::mpsc::Receiver<_>| async move {
            said.recv().await.map(|message| (message, said))
        });
        let (mut client, request) = self.known.ask(said)?;
        let messages = wire::ask(task, |rows, asks| self.question(task, choice, rows, asks))?;
        let send = async move {
            for messages in messages {
                for message in messages? {
                    if say.send(message).await.is_err() {
                        return Ok(()); // it has heard enough, and says why
                    }
                }
            }
            Ok::<(), String>(())
        };
        let receive = async {
            let heard = client.do_exchange(request).await.map_err(|status| refusal(&status))?;
            let mut heard = heard.into_inner();
            let first = heard.message().await.map_err(|status| refusal(&status))?.ok_or("answered nothing")?;
            wire::read(&first, &mut Matrices::new(heard), task.count).await
        };
        let (sent, received) = futures_util::future::join(send, receive).await;
        sent.and(received)
    }
}

impl TensorWorker for Met {
    fn call(&self, task: &TensorTask, choice: Choice, limit: Duration) -> Result<TensorResult, String> {
        let late = || format!("has not answered for {} s", limit.as_secs_f64());
        let call = async { tokio::time::timeout(limit, self.exchange(task, choice)).await };
        self.runtime.block_on(call).unwrap_or_else(|_| Err(late()))
    }
}
