//! The tensor worker: does tasks for whoever proves the secret, and holds nothing but parameters and models of late.

use std::collections::HashMap;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arrow_flight::FlightData;
use arrow_flight::flight_service_server::FlightServiceServer;
use candle_core::Device;
use gnnflow_operators::compute::Model;
use gnnflow_operators::compute::model::ModelSpec;
use gnnflow_pipelines::tensor::{NodeRows, TensorTask, Work};
use gnnflow_pipelines::{Error as PipelineError, Registry};
use tokio::sync::{mpsc, oneshot};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Status, Streaming};

use super::auth::{Guard, Known};
use super::parameters::fetch;
use super::runtime;
use super::service::{Serves, Service};
use super::wire::{self, Asks, Matrices, Question};
use crate::Error;
use crate::cluster::{ClusterError, Secret};

/// Versions of parameters, and models, that are kept.
const KEPT: usize = 8;
/// How long anybody is waited for: for rows of a task that has begun, for parameters.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a tensor worker may take, and when it ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Threads of arithmetic.
    pub(crate) threads: usize,
    /// Whether it ends with its standard input: with the process that launched it, however that ends.
    pub(crate) with_input: bool,
}

/// Listens at `address` and does tasks until the process is ended. `told` is given the address once it listens.
///
/// # Errors
/// When the address cannot be listened at, or may not be without a secret.
pub(crate) fn listen(
    address: &str,
    secret: Option<Secret>,
    registry: Registry,
    limits: Limits,
    told: impl FnOnce(SocketAddr) -> Result<(), Error>,
) -> Result<(), Error> {
    let wrong = |problem: String| ClusterError::Usage(format!("--listen {address}: {problem}"));
    let found = address.to_socket_addrs().map_err(|error| wrong(format!("expected HOST:PORT ({error})")))?;
    let addresses: Vec<SocketAddr> = found.collect();
    if secret.is_none() && !addresses.iter().all(|address| address.ip().is_loopback()) {
        let message = "others can reach it: give a secret of 16 bytes or more, in GNNFLOW_SECRET or with --secret-file";
        return Err(wrong(message.into()).into());
    }
    let listener = TcpListener::bind(&addresses[..])
        .map_err(|error| PipelineError::Machine(format!("cannot listen at {address}: {error}")))?;
    let machine = |error: std::io::Error| PipelineError::Machine(format!("cannot listen at {address}: {error}"));
    listener.set_nonblocking(true).map_err(machine)?;
    let local = listener.local_addr().map_err(machine)?;
    let tasks = Arc::new(Tasks::new(secret.clone(), registry, limits.threads)?);
    let guard = Guard::new(secret).map_err(|status| PipelineError::Machine(status.message().to_owned()))?;
    let runtime = runtime("tensor-flight")?;
    told(local)?;
    if limits.with_input {
        std::thread::spawn(|| {
            let _ = std::io::stdin().read(&mut [0]);
            std::process::exit(0);
        });
    }
    let service = Service { guard: Arc::new(guard), serves: Serves::Tasks(tasks) };
    runtime.block_on(serve(listener, service)).map_err(|error| PipelineError::Machine(error).into())
}

/// Serves on a listening socket until the end.
pub(super) async fn serve(listener: TcpListener, service: Service) -> Result<(), String> {
    let listener = tokio::net::TcpListener::from_std(listener).map_err(|error| error.to_string())?;
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let server = Server::builder().initial_stream_window_size(1 << 20).initial_connection_window_size(4 << 20);
    let mut server = server;
    let served = server.add_service(FlightServiceServer::new(service)).serve_with_incoming(incoming).await;
    served.map_err(|error| format!("a tensor worker's server ended: {error}"))
}

/// The state of a tensor worker: what may be thrown away at any time.
pub(super) struct Tasks {
    secret: Option<Secret>,
    registry: Registry,
    threads: rayon::ThreadPool,
    kept: Mutex<Kept>,
}

/// Parameters by run and version.
type Version = (String, u64);

#[derive(Default)]
struct Kept {
    /// Servers of parameters, by address.
    servers: HashMap<String, Known>,
    /// The latest last.
    parameters: Vec<(Version, Arc<Vec<f32>>)>,
    models: Vec<Loaded>,
}

/// A model with parameters in it.
struct Loaded {
    spec: ModelSpec,
    version: Version,
    model: Model,
}

impl Tasks {
    fn new(secret: Option<Secret>, registry: Registry, threads: usize) -> Result<Self, Error> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("compute-{i}")).build();
        let threads =
            pool.map_err(|error| PipelineError::Machine(format!("cannot start {threads} compute threads: {error}")))?;
        Ok(Self { secret, registry, threads, kept: Mutex::default() })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers one question.
    pub(super) async fn answer(
        self: Arc<Self>,
        heard: Streaming<FlightData>,
        say: mpsc::Sender<Result<FlightData, Status>>,
    ) {
        let answer = match tokio::time::timeout(PATIENCE, self.done(heard)).await {
            Ok(answer) => answer.map_err(Status::invalid_argument),
            Err(_) => Err(Status::deadline_exceeded("the task's rows, or its parameters, did not come in time")),
        };
        match answer {
            Ok(messages) => {
                for message in messages {
                    if say.send(Ok(message)).await.is_err() {
                        return; // nobody listens any more
                    }
                }
            }
            Err(status) => drop(say.send(Err(status)).await),
        }
    }

    async fn done(self: Arc<Self>, mut heard: Streaming<FlightData>) -> Result<Vec<FlightData>, String> {
        let first = heard.message().await.map_err(|status| status.message().to_owned())?;
        let question = wire::question(&first.ok_or("no task")?)?;
        let weights = tokio::spawn(Arc::clone(&self).weights(question.clone()));
        let mut matrices = Matrices::new(heard);
        let mut rows = NodeRows::default();
        for _ in 0..question.rows {
            let (name, matrix) = matrices.next().await?.ok_or("fewer rows than were said")?;
            if matrix_rows(&matrix) != question.count && matrix.dim > 0 {
                return Err(format!("{} rows for {} nodes", matrix_rows(&matrix), question.count));
            }
            wire::place_row(&mut rows, name, matrix)?;
        }
        let weights = weights.await.map_err(|error| error.to_string())??;
        // The way forwards begins; what it is compared with comes meanwhile.
        let (give, late) = oneshot::channel::<Result<Work, String>>();
        let (asks, count) = (question.asks, question.count);
        let worker = Arc::clone(&self);
        let computed = tokio::task::spawn_blocking(move || worker.compute(question, rows, &weights, late));
        if asks != Asks::Forward {
            let all = async {
                let mut parts = Vec::new();
                while let Some(part) = matrices.next().await? {
                    parts.push(part);
                }
                wire::work(asks, parts)
            };
            let _ = give.send(all.await);
        }
        let result = computed.await.map_err(|_| "the task cannot be done".to_owned())??;
        wire::answer(&result, count)
    }

    /// Does a task, on this thread and those of the pool.
    fn compute(
        &self,
        question: Question,
        rows: NodeRows,
        weights: &[f32],
        late: oneshot::Receiver<Result<Work, String>>,
    ) -> Result<gnnflow_pipelines::tensor::TensorResult, String> {
        let key = wire::key(&question);
        let Question { model, run, version, index, count, asks, .. } = question;
        let loaded = self.model(model, (run, version), weights)?;
        let work = match asks {
            Asks::Forward => Work::Forward,
            // In place of what is to come.
            _ => Work::Backward { gradient: Default::default(), of_rows: asks != (Asks::Backward { of_rows: false }) },
        };
        let task = TensorTask { index, count, rows, key, work };
        let wait = |_: Work| match late.blocking_recv() {
            Ok(Ok(work)) => Ok(work),
            Ok(Err(why)) => Err(PipelineError::Input(why)),
            Err(_) => Err(PipelineError::Input("what a task is compared with did not come".into())),
        };
        if index > loaded.model.num_layers() {
            return Err(format!("no node task {index} in a model of {} layers", loaded.model.num_layers()));
        }
        let result = self.threads.install(|| task.run_when(&loaded.model, wait));
        let mut kept = self.kept();
        if kept.models.len() == KEPT {
            kept.models.remove(0);
        }
        kept.models.push(loaded);
        result.map_err(|error| error.to_string())
    }

    /// A model with these parameters: one that is free, or a new one.
    fn model(&self, spec: ModelSpec, version: Version, weights: &[f32]) -> Result<Loaded, String> {
        let free = {
            let mut kept = self.kept();
            let fits = |loaded: &Loaded| loaded.spec == spec;
            let exact = kept.models.iter().position(|loaded| fits(loaded) && loaded.version == version);
            let at = exact.or_else(|| kept.models.iter().position(fits));
            at.map(|at| kept.models.remove(at))
        };
        let mut loaded = match free {
            Some(loaded) if loaded.version == version => return Ok(loaded),
            Some(loaded) => loaded,
            None => {
                let model = Model::build(&spec, self.registry.layers(), &Device::Cpu, 0);
                Loaded { model: model.map_err(|error| error.to_string())?, spec, version: version.clone() }
            }
        };
        if weights.len() != loaded.model.params().flat_len() {
            let (found, wanted) = (weights.len(), loaded.model.params().flat_len());
            return Err(format!("{found} parameters for a model that has {wanted}"));
        }
        loaded.model.params_mut().set_from(weights).map_err(|error| error.to_string())?;
        loaded.version = version;
        Ok(loaded)
    }

    /// The parameters of a question: kept, or fetched from the first of its servers that has them.
    async fn weights(self: Arc<Self>, question: Question) -> Result<Arc<Vec<f32>>, String> {
        let version = (question.run, question.version);
        let found = {
            let kept = self.kept();
            kept.parameters.iter().find(|(kept, _)| *kept == version).map(|(_, flat)| Arc::clone(flat))
        };
        if let Some(flat) = found {
            return Ok(flat);
        }
        let mut why = "nobody serves the parameters".to_owned();
        for server in question.servers {
            match self.fetched(&server, version.1).await {
                Ok(flat) => {
                    let (flat, mut kept) = (Arc::new(flat), self.kept());
                    if kept.parameters.len() == KEPT {
                        kept.parameters.remove(0);
                    }
                    kept.parameters.push((version, Arc::clone(&flat)));
                    return Ok(flat);
                }
                Err(error) => why = format!("parameters from {server}: {error}"),
            }
        }
        Err(why)
    }

    async fn fetched(&self, server: &str, version: u64) -> Result<Vec<f32>, String> {
        let known = self.kept().servers.get(server).cloned();
        let known = match known {
            Some(known) => known,
            None => {
                let known = Known::connect(server, self.secret.as_ref(), PATIENCE).await?;
                let mut kept = self.kept();
                if kept.servers.len() > 100 {
                    kept.servers.clear(); // of runs that are over
                }
                kept.servers.insert(server.to_owned(), known.clone());
                known
            }
        };
        let found = fetch(&known, version).await;
        if found.is_err() {
            self.kept().servers.remove(server);
        }
        found
    }
}

fn matrix_rows(matrix: &gnnflow_operators::fetch::matrix::Matrix) -> usize {
    matrix.bytes().len().checked_div(matrix.row_bytes()).unwrap_or(0)
}
