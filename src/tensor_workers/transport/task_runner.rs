//! Runs node tasks at a tensor worker, for any authenticated client. Its only state is a cache of recent parameters and models.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_flight::FlightData;
use candle_core::Device;
use gnnflow_data::error::FEWER_THREADS;
use gnnflow_data::rng::Key;
use gnnflow_nn::Model;
use gnnflow_nn::device::describe;
use gnnflow_nn::model::{ModelSpec, split_row};
use gnnflow_nn::node_task::{NodeGradient, NodeTask, Work};
use gnnflow_pipelines::{Error as PipelineError, Registry, config};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use super::call_buffer::{CallBuffer, STEP_TIMEOUT, in_time, pieces, read_pieces};
use super::client::{Client, connect};
use super::device_kind::DeviceKind;
use super::matrices::Matrices;
use super::parameters::fetch;
use super::wire::{self, CallHeader, TaskHeader, TaskKind};
use crate::cluster::Secret;
use crate::error::Error;

/// Maximum number of versions of parameters, and of models, in the cache.
const CACHED: usize = 8;

/// Runs the tasks of a tensor worker.
pub(super) struct TaskRunner {
    secret: Option<Secret>,
    registry: Registry,
    device: Device,
    kind: DeviceKind,
    threads: rayon::ThreadPool,
    cache: Mutex<Cache>,
    done: AtomicU64,
}

/// Parameters by run and version.
type Version = (String, u64);

#[derive(Default)]
struct Cache {
    /// Servers of parameters, by address.
    servers: HashMap<String, Client>,
    /// The most recently fetched last.
    parameters: Vec<(Version, Arc<Vec<f32>>)>,
    models: Vec<LoadedModel>,
}

/// A model that holds one version of the parameters.
struct LoadedModel {
    config: ModelSpec,
    version: Version,
    model: Model,
}

impl TaskRunner {
    /// Opens the device and starts the threads.
    ///
    /// # Errors
    /// If the device cannot be used, or the system has no threads left.
    pub(super) fn new(
        secret: Option<Secret>,
        registry: Registry,
        device: config::Device,
        threads: usize,
    ) -> Result<Self, Error> {
        let opened = gnnflow_nn::device(&device.to_string()).map_err(PipelineError::from)?;
        let model = device.is_gpu().then(|| describe(&opened));
        let (kind, device) = (DeviceKind::of(device, model), opened);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("compute-{i}")).build();
        let threads = pool.map_err(|error| {
            PipelineError::Machine(format!("cannot start {threads} compute threads: {error}; {FEWER_THREADS}"))
        })?;
        Ok(Self { secret, registry, device, kind, threads, cache: Mutex::default(), done: AtomicU64::new(0) })
    }

    /// Returns the kind of device that computes.
    pub(super) fn kind(&self) -> &DeviceKind {
        &self.kind
    }

    /// Returns the number of tasks done.
    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves one call: runs each task as soon as its rows are there, and sends its result.
    pub(super) async fn serve(
        self: Arc<Self>,
        requests: Streaming<FlightData>,
        responses: mpsc::Sender<Result<FlightData, Status>>,
    ) {
        if let Err(error) = self.try_serve(requests, responses.clone()).await {
            let _ = tokio::time::timeout(STEP_TIMEOUT, responses.send(Err(Status::invalid_argument(error)))).await;
        }
    }

    async fn try_serve(
        self: Arc<Self>,
        mut requests: Streaming<FlightData>,
        responses: mpsc::Sender<Result<FlightData, Status>>,
    ) -> Result<(), String> {
        let first = in_time(requests.message()).await?.map_err(|status| status.message().to_owned())?;
        let call = wire::call_header(&first.ok_or("the call is empty")?)?;
        self.kind.check(&call.device)?;
        let (sender, pieces) = pieces();
        let read = read_pieces(Matrices::new(requests), call.kind, call.tasks.clone(), sender);
        let computed = async {
            let parameters = in_time(Arc::clone(&self).parameters(call.clone())).await??;
            let runner = Arc::clone(&self);
            let computed = tokio::task::spawn_blocking(move || {
                let mut buffer = CallBuffer { pieces, responses, runtime: Handle::current() };
                runner.run_call(call, &parameters, &mut buffer)
            });
            computed.await.map_err(|_| "the worker panicked in a task".to_owned())?
        };
        match futures_util::future::join(read, computed).await {
            (Err(Some(error)), _) => Err(error),
            // If the computing thread has ended early, it has an error.
            (Ok(()) | Err(None), computed) => computed,
        }
    }

    /// Runs the tasks of a call one after another, on this thread and those of the pool.
    fn run_call(&self, call: CallHeader, parameters: &[f32], buffer: &mut CallBuffer) -> Result<(), String> {
        let CallHeader { model, run, version, index, kind, tasks, .. } = call;
        let loaded = self.model(model, (run, version), parameters)?;
        let model = &loaded.model;
        let result = if index > model.num_layers() {
            Err(format!("a model of {} layers has no node task {index}", model.num_layers()))
        } else {
            tasks.into_iter().try_for_each(|task| self.run_task(model, (index, kind), task, buffer))
        };
        let mut cache = self.cache();
        if cache.models.len() == CACHED {
            cache.models.remove(0);
        }
        cache.models.push(loaded);
        result
    }

    /// Runs one task and sends its result.
    fn run_task(
        &self,
        model: &Model,
        (index, kind): (usize, TaskKind),
        task: TaskHeader,
        buffer: &mut CallBuffer,
    ) -> Result<(), String> {
        let splittable =
            kind.is_forward() && self.kind == DeviceKind::Cpu && model.task_works_by_row(index, task.key.is_some());
        if task.split.is_some() && (task.split != split_row(task.count) || !splittable) {
            return Err(format!("node task {index} of {} rows cannot be split like this", task.count));
        }
        let key = task.key.map(Key::from_bits);
        let mut last = None;
        for range in task.ranges() {
            let (count, rows) = (range.len(), buffer.rows()?);
            let result = match kind {
                TaskKind::Forward { held } => {
                    let task = NodeTask { index, count, rows, key, work: Work::Forward { held } };
                    self.threads.install(|| task.run_from_row(model, range.start))
                }
                kind => {
                    // A placeholder: the targets or gradients have not arrived yet.
                    let of_rows = kind != (TaskKind::Backward { of_rows: false });
                    let work = Work::Backward { gradient: NodeGradient::default(), of_rows };
                    let task = NodeTask { index, count, rows, key, work };
                    self.threads.install(|| task.run_when(model, |_| buffer.work().map_err(gnnflow_nn::Error::Input)))
                }
            };
            let result = result.map_err(|error| error.to_string())?;
            buffer.send(wire::result(&result, count)?)?;
            last = Some(result);
        }
        self.done.fetch_add(1, Ordering::Relaxed);
        last.map_or(Ok(()), |result| buffer.send(vec![wire::end_of(&result)?]))
    }

    /// Returns a model that holds these parameters: a cached one that no call uses, or a new one.
    fn model(&self, config: ModelSpec, version: Version, parameters: &[f32]) -> Result<LoadedModel, String> {
        let free = {
            let mut cache = self.cache();
            let fits = |loaded: &LoadedModel| loaded.config == config;
            let exact = cache.models.iter().position(|loaded| fits(loaded) && loaded.version == version);
            let index = exact.or_else(|| cache.models.iter().position(fits));
            index.map(|index| cache.models.remove(index))
        };
        let mut loaded = match free {
            Some(loaded) if loaded.version == version => return Ok(loaded),
            Some(loaded) => loaded,
            None => {
                let model = Model::build(&config, self.registry.layers(), &self.device, 0);
                LoadedModel { model: model.map_err(|error| error.to_string())?, config, version: version.clone() }
            }
        };
        if parameters.len() != loaded.model.params().flat_len() {
            let (found, wanted) = (parameters.len(), loaded.model.params().flat_len());
            return Err(format!("got {found} parameters for a model that has {wanted}"));
        }
        loaded.model.params_mut().set_from(parameters).map_err(|error| error.to_string())?;
        loaded.version = version;
        Ok(loaded)
    }

    /// Returns the parameters of a call: cached, or fetched from the first of its servers that has them.
    async fn parameters(self: Arc<Self>, call: CallHeader) -> Result<Arc<Vec<f32>>, String> {
        let version = (call.run, call.version);
        let found = {
            let cache = self.cache();
            cache.parameters.iter().find(|(cached, _)| *cached == version).map(|(_, flat)| Arc::clone(flat))
        };
        if let Some(flat) = found {
            return Ok(flat);
        }
        let mut last_error = "the call names no server of its parameters".to_owned();
        for server in call.servers {
            match self.fetch(&server, call.encrypt, version.1).await {
                Ok(flat) => {
                    let (flat, mut cache) = (Arc::new(flat), self.cache());
                    if cache.parameters.len() == CACHED {
                        cache.parameters.remove(0);
                    }
                    cache.parameters.push((version, Arc::clone(&flat)));
                    return Ok(flat);
                }
                Err(error) => last_error = format!("parameters from {server}: {error}"),
            }
        }
        Err(last_error)
    }

    async fn fetch(&self, server: &str, encrypt: Option<bool>, version: u64) -> Result<Vec<f32>, String> {
        let client = self.cache().servers.get(server).cloned();
        let client = match client {
            Some(client) => client,
            None => {
                let client = connect(server, self.secret.as_ref(), encrypt, STEP_TIMEOUT).await?;
                let mut cache = self.cache();
                if cache.servers.len() > 100 {
                    cache.servers.clear(); // mostly of runs that are over
                }
                cache.servers.insert(server.to_owned(), client.clone());
                client
            }
        };
        let found = fetch(&client, version).await;
        if found.is_err() {
            self.cache().servers.remove(server);
        }
        found
    }
}
