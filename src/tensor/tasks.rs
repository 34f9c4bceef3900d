//! What a tensor worker does: tasks, for whoever asks. It holds nothing but parameters and models of late, which may be thrown away at any time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_flight::FlightData;
use candle_core::Device;
use gnnflow_data::error::FEWER_THREADS;
use gnnflow_data::rng::Key;
use gnnflow_nn::Model;
use gnnflow_nn::model::{ModelSpec, split_row};
use gnnflow_pipelines::tensor::{NodeGradient, TensorTask, Work};
use gnnflow_pipelines::{Error as PipelineError, Registry};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use super::auth::Known;
use super::desk::{Desk, PATIENCE, in_time, pieces, read};
use super::matrices::Matrices;
use super::parameters::fetch;
use super::wire::{self, Asks, One, Question};
use crate::Error;
use crate::cluster::Secret;

/// Versions of parameters, and models, that are kept.
const KEPT: usize = 8;

/// The state of a tensor worker.
pub(super) struct Tasks {
    secret: Option<Secret>,
    registry: Registry,
    threads: rayon::ThreadPool,
    kept: Mutex<Kept>,
    done: AtomicU64,
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
    config: ModelSpec,
    version: Version,
    model: Model,
}

impl Tasks {
    pub(super) fn new(secret: Option<Secret>, registry: Registry, threads: usize) -> Result<Self, Error> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("compute-{i}")).build();
        let threads = pool.map_err(|error| {
            PipelineError::Machine(format!("cannot start {threads} compute threads: {error}; {FEWER_THREADS}"))
        })?;
        Ok(Self { secret, registry, threads, kept: Mutex::default(), done: AtomicU64::new(0) })
    }

    /// How many tasks have been done.
    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers one question: task by task, each as soon as its rows are there and it has been computed.
    pub(super) async fn answer(
        self: Arc<Self>,
        heard: Streaming<FlightData>,
        say: mpsc::Sender<Result<FlightData, Status>>,
    ) {
        if let Err(why) = self.answered(heard, say.clone()).await {
            let _ = tokio::time::timeout(PATIENCE, say.send(Err(Status::invalid_argument(why)))).await;
        }
    }

    async fn answered(
        self: Arc<Self>,
        mut heard: Streaming<FlightData>,
        say: mpsc::Sender<Result<FlightData, Status>>,
    ) -> Result<(), String> {
        let first = in_time(heard.message()).await?.map_err(|status| status.message().to_owned())?;
        let question = wire::question(&first.ok_or("no task")?)?;
        let (give, given) = pieces();
        let read = read(Matrices::new(heard), question.asks, question.tasks.clone(), give);
        let computed = async {
            let weights = in_time(Arc::clone(&self).weights(question.clone())).await??;
            let worker = Arc::clone(&self);
            let computed = tokio::task::spawn_blocking(move || {
                worker.compute(question, &weights, &mut Desk { given, say, runtime: Handle::current() })
            });
            computed.await.map_err(|_| "the task cannot be done".to_owned())?
        };
        match futures_util::future::join(read, computed).await {
            (Err(Some(why)), _) => Err(why),
            // Who computes wants nothing any more where nobody could be given rows, and says why.
            (Ok(()) | Err(None), computed) => computed,
        }
    }

    /// Does the tasks of a question one after another, on this thread and those of the pool.
    fn compute(&self, question: Question, weights: &[f32], desk: &mut Desk) -> Result<(), String> {
        let Question { model, run, version, index, asks, tasks, .. } = question;
        let loaded = self.model(model, (run, version), weights)?;
        let model = &loaded.model;
        let all = if index > model.num_layers() {
            Err(format!("no node task {index} in a model of {} layers", model.num_layers()))
        } else {
            tasks.into_iter().try_for_each(|one| self.one(model, (index, asks), one, desk))
        };
        let mut kept = self.kept();
        if kept.models.len() == KEPT {
            kept.models.remove(0);
        }
        kept.models.push(loaded);
        all
    }

    /// Does one task, and answers it.
    fn one(&self, model: &Model, (index, asks): (usize, Asks), one: One, desk: &mut Desk) -> Result<(), String> {
        let may = asks == Asks::Forward && model.task_works_by_row(index, one.key.is_some());
        if one.half.is_some() && (one.half != split_row(one.count) || !may) {
            return Err(format!("node task {index} of {} rows cannot be done in such halves", one.count));
        }
        let key = one.key.map(Key::from_bits);
        let mut last = None;
        for piece in one.pieces() {
            let (count, rows) = (piece.len(), desk.rows()?);
            let result = match asks {
                Asks::Forward => {
                    let task = TensorTask { index, count, rows, key, work: Work::Forward };
                    self.threads.install(|| task.run_from_row(model, piece.start))
                }
                asks => {
                    // In place of what is to come.
                    let of_rows = asks != (Asks::Backward { of_rows: false });
                    let work = Work::Backward { gradient: NodeGradient::default(), of_rows };
                    let task = TensorTask { index, count, rows, key, work };
                    self.threads.install(|| task.run_when(model, |_| desk.late().map_err(PipelineError::Input)))
                }
            };
            let result = result.map_err(|error| error.to_string())?;
            desk.say(wire::result(&result, count)?)?;
            last = Some(result);
        }
        self.done.fetch_add(1, Ordering::Relaxed);
        last.map_or(Ok(()), |result| desk.say(wire::end_of(&result)?))
    }

    /// A model with these parameters: one that is free, or a new one.
    fn model(&self, config: ModelSpec, version: Version, weights: &[f32]) -> Result<Loaded, String> {
        let free = {
            let mut kept = self.kept();
            let fits = |loaded: &Loaded| loaded.config == config;
            let exact = kept.models.iter().position(|loaded| fits(loaded) && loaded.version == version);
            let at = exact.or_else(|| kept.models.iter().position(fits));
            at.map(|at| kept.models.remove(at))
        };
        let mut loaded = match free {
            Some(loaded) if loaded.version == version => return Ok(loaded),
            Some(loaded) => loaded,
            None => {
                let model = Model::build(&config, self.registry.layers(), &Device::Cpu, 0);
                Loaded { model: model.map_err(|error| error.to_string())?, config, version: version.clone() }
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
