//! The run of one worker: trains, evaluates, computes all nodes with the best model, and writes the results. Or it computes results with the model
//! of an earlier run.

mod best_models;
mod checkpoints;
mod chosen;
mod compute_thread;
mod device_memory;
mod empty_classes;
mod engine;
mod finish;
mod follow;
mod live;
mod load_model;
mod loss_watch;
pub(crate) mod prepare;
mod refresh;
mod sampled;
mod tensor_workers;
mod trace;

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable};
use gnnflow_data::format::plural;
use gnnflow_dataflow::flow::compute_thread::ComputeThread;
use gnnflow_dataflow::graph::placement::Placement;
use gnnflow_dataflow::storage::{Place, RowStore};
use gnnflow_dataflow::wire::meter::{self, Meter};
use gnnflow_nn::alloc::KeepForSteps;
use gnnflow_nn::model::Stage;
use timely::worker::Worker;

use self::compute_thread::Watch;
use self::engine::{EngineSetup, Sampling, open_batches};
use self::live::Live;
use self::loss_watch::LossWatch;
use self::trace::Trace;
use crate::checkpoint::Progress;
use crate::checkpoint::folder::Position;
use crate::collectives::{Collectives, Driver};
use crate::compute::{ComputeState, ComputeTime, Replica};
use crate::config;
use crate::config::{CheckpointEvery, Metric};
use crate::context;
use crate::context::feature_store::FeatureStore;
use crate::context::threads::Split;
use crate::context::{ModelInputs, WorkerContext};
use crate::engine::inference::{EdgesOf, Inference, reserve_stores};
use crate::engine::no_training::NoTraining;
use crate::engine::pause::Pause;
use crate::engine::{Engine, EpochPart, EpochSums, Round};
use crate::error::Error;
use crate::evaluate::edge_evaluation::EdgeEvaluation;
use crate::evaluate::{Evaluation, evaluate};
use crate::outputs::run_folder::{RunFolder, keep_earlier_run};
use crate::outputs::summary::Summary;
use crate::plan::{Plan, RowsInMemory};
use crate::refresh::Refresh;
use crate::refresh::layer_store::LayerStore;
use crate::runtime::job::{Feed, InNeighbors, Job, Scope, Work};
use crate::runtime::records::EpochRecord;
use crate::runtime::stage::Stage as RunStage;
use crate::task::{self, Task};

/// Runs `job` on `worker`. The pipeline must have `[model]` and `[train]`. The first worker returns the summary.
///
/// # Errors
/// The first error of the data, this machine or the pipeline.
pub fn run_worker(worker: &mut Worker, job: &Job) -> Result<Option<Summary>, Error> {
    let (Some(model), Some(train)) = (&job.config.model, &job.config.train) else {
        return Err(Error::Bug("a worker needs [model] and [train]".into()));
    };
    let network = model.network(&train.schedule);
    let mut driver = Driver { worker, runtime: &*job.runtime };
    if let Work::Follow { model, feed, .. } = &job.work {
        return Run::follow_feed(&mut driver, job, (model, feed), (&network, train));
    }
    let mut run = Run::start(&mut driver, job, &network, train)?;
    if job.trains() {
        run.train(&mut driver)?;
    }
    run.finish(&mut driver)
}

struct Run<'a> {
    job: &'a Job,
    train: &'a config::Train,
    context: WorkerContext,
    task: Task,
    compute_thread: ComputeThread<ComputeState>,
    training: Box<dyn Engine>,
    pause: Rc<Pause>,
    inference: Inference,
    /// The stored rows that the job refreshes.
    refresh: Option<Refresh>,
    /// The rows that are copied into memory: features, before the results of all nodes are computed.
    rows_in_memory: RowsInMemory,
    /// The graph that batches of changes change.
    live: Option<Live>,
    /// Evaluation of tasks on edges.
    edges: Option<EdgeEvaluation>,
    /// The last evaluation, and its epoch.
    last: Option<(u32, Evaluation)>,
    collectives: Collectives,
    /// `Some` at the first worker of a job that trains.
    folder: Option<RunFolder>,
    progress: Progress,
    /// The sums of the steps of an epoch that an earlier process has trained.
    resumed_part: Option<EpochSums>,
    /// Parameters and the optimizer's state after the best epoch.
    best: Option<Replica>,
    /// The best epoch whose learned rows are on disk.
    best_rows_saved: Option<u32>,
    /// The position of the last checkpoint.
    checkpoint_at: Option<Position>,
    metric: Metric,
    /// Times of training epochs, without evaluation.
    spent: StageTimes,
    /// Rounds of messages and steps so far.
    rounds: (u64, u64),
    trained: Duration,
    /// Time of evaluation in training.
    evaluated: Duration,
    split: Split,
    trace: Option<Trace>,
}

/// Nanoseconds by stage.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
struct StageTimes {
    sample: u64,
    fetch: u64,
    forward: u64,
    backward: u64,
    reduce: u64,
    step: u64,
    device: u64,
}

impl StageTimes {
    fn now(of: &Meter, spent: ComputeTime) -> Self {
        let nanoseconds = |time: Duration| time.as_nanos() as u64;
        let [sample, fetch, reduce] =
            [meter::Stage::Sample, meter::Stage::Fetch, meter::Stage::Reduce].map(|stage| nanoseconds(of.spent(stage)));
        let [forward, backward, step, device] =
            [spent.forward, spent.backward, spent.step, spent.device].map(nanoseconds);
        Self { sample, fetch, forward, backward, reduce, step, device }
    }

    fn add_since(&mut self, before: Self, after: Self) {
        let [before, after]: [[u64; 7]; 2] = [before, after].map(bytemuck::cast);
        let totals: &mut [u64; 7] = bytemuck::cast_mut(self);
        totals.iter_mut().enumerate().for_each(|(i, total)| *total += after[i] - before[i]);
    }
}

impl<'a> Run<'a> {
    fn start(
        driver: &mut Driver<'_>,
        job: &'a Job,
        model: &'a config::Model,
        train: &'a config::Train,
    ) -> Result<Self, Error> {
        let mut trace = train.trace.then(|| Trace::start(driver.worker)).transpose()?;
        job.runtime.stage(RunStage::Opening);
        let busy = job.runtime.busy("opening the dataset");
        let (rank, workers) = (driver.worker.index(), driver.worker.peers());
        let parts = FeatureStore::open(job, rank, workers)?;
        let hosted = Placement::new(job.dataset.manifest().parts(), workers).parts_of(rank);
        let (task, examples) = task::open(job, train, &parts, hosted)?;
        let built = context::model(job, rank, (model, train), task.objective().width())?;
        let needs = ModelInputs::of(&built);
        let (degrees, params) = (needs.degrees, built.params().flat_len());
        let (stages, embedding_stage) = (built.stages(), built.embedding_stage());
        let (trained, network) = (built.params().trained_len(), built.spec().clone());
        let mut context = WorkerContext::open(job, rank, workers, parts, task.edge_filter(), needs)?;
        context.train_nodes = examples.counts().to_vec();
        if let Some(trace) = &trace {
            context.sampling.record(trace.of_sampling_threads());
            context.meter.record();
        }
        drop(busy);
        let Plan { window, jobs, tables_mapped, rows_in_memory, processes, .. } =
            Plan::of_job(job, workers, job.local(rank), examples.targets())?;
        device_memory::check(job, rank, built.device(), processes[rank].device)?;
        let shares = context.parts.shares_any();
        let mut collectives = Collectives::new(context.placement, rank, Rc::clone(&context.other_meter));
        let sampling = job
            .trains()
            .then(|| Sampling::open(driver, job, &context, &mut collectives, (model, train), &examples))
            .transpose()?;
        let split = match train.is_full_graph() || !job.trains() {
            true => Split { sampling: 1, compute: job.threads }, // nothing is sampled
            false if train.samples_on_device() => Split { sampling: 1, compute: job.threads },
            false if train.device.is_gpu() => Split::beside_gpu(job.threads),
            false => Split::planned(job.threads),
        };
        context.sample_on(split.sampling)?;
        let at_once = jobs.min(split.compute);
        trace.iter_mut().for_each(|trace| trace.set_work(window, at_once, shares));
        let watch = Watch::new(&job.runtime, trace.as_ref().map(Trace::of_compute_thread));
        let (threads, observer) = ((split.compute, jobs), Box::new(watch.clone()));
        let compute = ComputeState::new(built, task.objective(), (model, train), threads, observer)?;
        let compute_thread = compute_thread::start(compute, watch)?;
        let (runtime, first) = (Arc::clone(&job.runtime), context.worker == 0);
        let pause = Rc::new(Pause::open(driver, &mut collectives, runtime, train, first, window)?);
        let (training, edges): (Box<dyn Engine>, _) = match sampling {
            None => (Box::new(NoTraining::default()), examples.of_edges()),
            Some(sampling) => {
                let (batches, edges) = open_batches(&context, &task, train, examples)?;
                let setup = EngineSetup {
                    job,
                    train,
                    context: &context,
                    compute_thread: &compute_thread,
                    batches,
                    sampling,
                    model: network.clone(),
                    degrees,
                    params,
                    width: task.objective().width(),
                    window,
                    jobs,
                    pause: Rc::clone(&pause),
                    tables_mapped,
                    rows_in_memory,
                    device_needs: processes[rank].device,
                };
                (setup.open(driver, &mut collectives)?, edges)
            }
        };
        let infer = job.config.infer.clone().unwrap_or_default();
        let refresh = match &job.work {
            Work::Infer { model: of_run, scope: Scope::Changed(folder), neighbors: InNeighbors::All }
            | Work::Follow { model: of_run, feed: Feed { layers: folder, .. }, .. } => {
                let store = LayerStore::open(job, &context, (of_run, &network, &stages), folder)?;
                let read = |stage: &Stage| Stage { edges: stage.edges && model.uses_edges(), ..stage.clone() };
                Some(Refresh { store, stages: stages.iter().map(read).collect(), degrees })
            }
            _ => None,
        };
        let live = match &job.work {
            Work::Follow { room, .. } => Some(Live::open(driver.worker, job, &mut context, (needs, *room))?),
            _ => None,
        };
        let stores = match (&refresh, &live) {
            (Some(Refresh { store, .. }), Some(_)) => store.copies(&context.graph, rank, &stages)?,
            (Some(Refresh { store, .. }), None) => store.rows(&context, &stages)?,
            (None, _) => {
                // Each row of some nodes would take a large page in memory.
                let all = job.trains() || matches!(&job.work, Work::Infer { scope: Scope::All, .. });
                layer_rows(job, &context, &stages, rows_in_memory == RowsInMemory::All && all)?
            }
        };
        let edges_of = match &live {
            _ if !model.uses_edges() => {
                sampled::check_unused(job)?;
                EdgesOf::NoGraph
            }
            Some(live) => EdgesOf::Live(Rc::clone(&live.graph)),
            None => match &job.work {
                Work::Infer { neighbors: InNeighbors::Sampled(fanouts), .. } => {
                    EdgesOf::Sampled(sampled::by_stage(&context, &stages, fanouts, train.seed)?.into())
                }
                _ => EdgesOf::Dataset,
            },
        };
        let inference = Inference::build(
            driver.worker,
            &context,
            (&stages, stores, embedding_stage),
            edges_of,
            degrees,
            (infer.batch, jobs),
            &compute_thread,
        );
        let (results, scores) = (inference.results(), infer.writes_scores());
        let edges = edges
            .map(|edges| EdgeEvaluation::build(driver.worker, &context, results, edges, &compute_thread, scores))
            .transpose()?
            .flatten();
        let metric = train.metric.unwrap_or(task.objective().metric());
        let mut run = Self {
            job,
            train,
            context,
            task,
            compute_thread,
            training,
            pause,
            inference,
            refresh,
            rows_in_memory,
            live,
            edges,
            last: None,
            collectives,
            folder: None,
            progress: Progress::default(),
            resumed_part: None,
            best: None,
            best_rows_saved: None,
            checkpoint_at: None,
            metric,
            spent: StageTimes::default(),
            rounds: (0, 0),
            trained: Duration::ZERO,
            evaluated: Duration::ZERO,
            split,
            trace,
        };
        match &job.work {
            Work::Infer { model, .. } | Work::Follow { model, .. } => run.load_model(driver, model)?,
            Work::Train { resume, from } => {
                run.warn_of_empty_classes(driver)?;
                let resumed = *resume && run.resume(driver, params, trained)?;
                if let Some(from) = from.as_ref().filter(|_| !resumed) {
                    run.start_from(driver, from, &network)?;
                }
                if run.context.worker == 0 {
                    run.folder = Some(run.open_folder()?);
                }
            }
        }
        Ok(run)
    }

    /// Opens the run folder at the first worker.
    fn open_folder(&self) -> Result<RunFolder, Error> {
        let Job { run_dir, config, runtime, .. } = self.job;
        let (done, wanted) = (self.progress.epochs, self.train.epochs());
        if done > 0 && done as usize >= wanted {
            runtime.say(&format!(
                "note: {} has a checkpoint of epoch {done}, and train.epochs is {wanted}: no epoch is trained, and the \
                 outputs are written again",
                run_dir.display()
            ));
        } else if let Some(part) = &self.progress.part {
            let steps = plural(part.steps as usize, "step");
            runtime.say(&format!("note: the run continues after {steps} of epoch {}", done + 1));
        }
        if done > 0 || self.progress.part.is_some() {
            return RunFolder::resume(run_dir, config, done);
        }
        if self.job.resumes() {
            runtime.say(&format!("note: {} has no checkpoint; the run begins with epoch 1", run_dir.display()));
        }
        keep_earlier_run(run_dir, |line| runtime.say(line))?;
        RunFolder::create(run_dir, config)
    }

    /// Trains to the last epoch, or until early stopping. If a signal is to leave a checkpoint, signals wait until the last one is written.
    fn train(&mut self, driver: &mut Driver<'_>) -> Result<(), Error> {
        if !self.train.checkpoint_on_signal {
            return self.train_epochs(driver);
        }
        let deferred = driver.runtime.defer_signals();
        // No process ends before the first worker has written the checkpoint.
        let trained = self.train_epochs(driver).and_then(|()| self.collectives.barrier(driver));
        match &trained {
            Ok(()) => drop(deferred),
            // The error says more than the signal.
            Err(_) => std::mem::forget(deferred),
        }
        trained
    }

    fn train_epochs(&mut self, driver: &mut Driver<'_>) -> Result<(), Error> {
        let _kept = KeepForSteps::start();
        let begin = Instant::now();
        let epochs = self.train.epochs() as u32;
        let (first, mut last_written, mut cpu_before) = (self.progress.epochs, None, None);
        let mut watch = LossWatch::new(self.train.task != config::Task::NodeRegression);
        while self.progress.epochs < epochs && !self.stops_early() {
            let epoch = self.progress.epochs;
            let before = StageTimes::now(&self.context.meter, self.compute_thread.call(ComputeState::report)?);
            let (train, seed_lr) = (self.train, self.train.optimizer.lr());
            let lr = |epoch: u32| train.lr_schedule.at(epoch as usize, train.epochs(), seed_lr);
            if let Some(rows) = &self.context.embeddings {
                rows.set_learning_rate(train.lr_schedule.at(
                    epoch as usize,
                    train.epochs(),
                    rows.config().optimizer.lr(),
                ));
            }
            let trace = self.trace.as_ref();
            let cpu = cpu_before.take().or_else(|| trace.map(|trace| trace.cpu_so_far(&self.context.meter)));
            let round = self.training.train_round(driver, epoch, &lr);
            // Such a round has several epochs.
            let overlaps =
                matches!(&train.schedule, config::Schedule::FullGraph(full) if full.mode == config::Mode::Async);
            let or_later = if overlaps { " or later" } else { "" };
            let (done, part) = match round.map_err(|error| error.at(format_args!("epoch {}{}", epoch + 1, or_later)))? {
                Round::Epochs(done) => (done, None),
                Round::Part(part) => (Vec::new(), Some(part)),
            };
            if let Some(EpochPart { sums, .. }) = &part {
                // A checkpoint of a loss that is not finite would replace a better one.
                watch.check_finite(epoch as usize + 1, sums.loss)?;
            }
            self.progress.part = part;
            // Work of an earlier process is in no trace.
            let earlier = if done.is_empty() { None } else { self.resumed_part.take() };
            if done.is_empty() {
                cpu_before = cpu;
            } else if earlier.is_some() {
                cpu_before = None;
            } else if let Some((trace, before)) = self.trace.as_mut().zip(cpu) {
                trace.end_of_round(before, epoch, &done, &self.context.meter);
            }
            let after = StageTimes::now(&self.context.meter, self.compute_thread.call(ComputeState::report)?);
            self.spent.add_since(before, after);
            if epoch == first && !done.is_empty() && !train.is_full_graph() && !train.device.is_gpu() {
                self.split_threads(self.spent)?;
            }
            // Parameters are available only after the last epoch of a round. Evaluation and checkpoints that are due within
            // the round take place there.
            let end = epoch + done.len() as u32;
            let due = |every: usize| every > 0 && (epoch + 1..=end).any(|epoch| epoch.is_multiple_of(every as u32));
            self.progress.blocks = self.training.blocks().0;
            let (mut before_rounds, mut before_steps) = earlier.map_or((0, 0), |sums| (sums.rounds, sums.steps));
            for sums in done {
                let (rounds, steps) = (sums.rounds - before_rounds, sums.steps - before_steps);
                self.rounds = (self.rounds.0 + rounds, self.rounds.1 + steps);
                (before_rounds, before_steps) = (0, 0);
                self.progress.epochs += 1;
                self.progress.seconds.push(sums.seconds);
                let last = self.progress.epochs == end;
                let mut record = self.record(&sums);
                let evaluated = due(train.evaluate_every) || (train.evaluate_every > 0 && end == epochs);
                if last && evaluated {
                    let begin = Instant::now();
                    driver.runtime.stage(RunStage::Evaluating { epoch: self.progress.epochs as usize });
                    let evaluation = self.evaluate(driver);
                    let done = self.progress.epochs;
                    let evaluation =
                        evaluation.map_err(|error| error.at(format_args!("evaluation after epoch {done}")))?;
                    record.best = self.save_if_best(&evaluation)?;
                    self.keep_if_among_best(driver, &evaluation)?;
                    record.metric = evaluation.name_of(self.metric).map(str::to_owned);
                    self.last = Some((self.progress.epochs, evaluation.clone()));
                    self.evaluated += begin.elapsed();
                    record.evaluate_seconds = Some(begin.elapsed().as_secs_f64());
                    (record.train, record.val, record.test) = (evaluation.train, evaluation.val, evaluation.test);
                }
                if let Some(warning) = watch.check(record.epoch, record.loss)?.filter(|_| self.folder.is_some()) {
                    driver.runtime.warn(&warning);
                }
                if let Some(folder) = &mut self.folder {
                    let parameters = match train.histograms && last {
                        true => self.compute_thread.call(|compute: &mut ComputeState| {
                            compute.with_model(|model| model.params().export()).map_err(Error::from)
                        })?,
                        false => Vec::new(),
                    };
                    folder.epoch(&record, &parameters)?;
                }
                driver.runtime.epoch(&record);
            }
            let wanted = self.pause.wanted(driver, &mut self.collectives)?;
            let steps_due = matches!(train.checkpoint_every, CheckpointEvery::Steps(_));
            if due(train.checkpoint_every.epochs()) || steps_due || wanted.checkpoint || wanted.stop {
                self.checkpoint(driver)?;
                self.pause.checkpoint_written();
                last_written = Some(self.progress.epochs);
            }
            if wanted.stop {
                return self.pause_here(driver, Error::Stopped);
            }
            let written = self.checkpoint_at == Some(self.progress.position());
            let unfinished = self.progress.epochs < epochs && !self.stops_early();
            if written && unfinished && self.job.runtime.is_reduced() {
                let returned = u64::from(self.job.runtime.has_returned());
                if self.collectives.all_reduce_counts(driver, &[returned])?[0] > 0 {
                    return self.pause_here(driver, Error::Rejoin);
                }
            }
        }
        if last_written != Some(self.progress.epochs) {
            self.checkpoint(driver)?;
        }
        self.trained = begin.elapsed();
        Ok(())
    }

    /// Ends the run after a checkpoint, with the error that `reason` makes of what is done.
    fn pause_here(&mut self, driver: &mut Driver<'_>, reason: fn(String) -> Error) -> Result<(), Error> {
        // The first worker writes the checkpoint, and the others wait for its error.
        if self.folder.is_none() {
            self.collectives.barrier(driver)?;
        }
        let epochs = self.progress.epochs;
        Err(reason(match &self.progress.part {
            Some(part) => format!("{} of epoch {}", plural(part.steps as usize, "step"), epochs + 1),
            None => format!("epoch {epochs}"),
        }))
    }

    fn lr(&self, epoch: usize) -> f64 {
        self.train.lr_schedule.at(epoch, self.train.epochs(), self.train.optimizer.lr())
    }

    /// Splits the threads by the measured times of an epoch.
    fn split_threads(&mut self, spent: StageTimes) -> Result<(), Error> {
        let compute = (spent.forward + spent.backward + spent.step) as f64 / 1e9;
        self.split = Split::measured(self.job.threads, self.split, spent.sample as f64 / 1e9, compute);
        let Split { sampling, compute } = self.split;
        self.context.sample_on(sampling)?;
        self.compute_thread.call(move |state| state.set_threads(compute))
    }

    /// Returns whether the validation metric has not improved for `early_stop` epochs.
    fn stops_early(&self) -> bool {
        let best = self.progress.best.map_or(0, |(epoch, _)| epoch);
        self.train.early_stop.is_some_and(|patience| (self.progress.epochs - best) as usize >= patience)
    }

    fn record(&self, sums: &EpochSums) -> EpochRecord {
        EpochRecord {
            epoch: self.progress.epochs as usize,
            loss: sums.loss / sums.examples.max(1) as f64,
            lr: self.lr(self.progress.epochs as usize - 1),
            steps: sums.steps as usize,
            seconds: sums.seconds,
            ..EpochRecord::default()
        }
    }

    /// Computes the results of all nodes with the current parameters, and returns their metrics.
    fn evaluate(&mut self, driver: &mut Driver<'_>) -> Result<Evaluation, Error> {
        if !self.training.evaluate_into(driver, self.inference.results())? {
            self.infer_all(driver)?;
        }
        self.evaluate_results(driver)
    }

    /// Computes the results of all nodes with the current parameters.
    fn infer_all(&mut self, driver: &mut Driver<'_>) -> Result<(), Error> {
        if self.rows_in_memory >= RowsInMemory::Features {
            self.context.parts.copy_to_memory(self.job);
        }
        self.inference.pass(driver)
    }

    /// Returns the metrics of the results of all nodes.
    fn evaluate_results(&mut self, driver: &mut Driver<'_>) -> Result<Evaluation, Error> {
        if let Some(edges) = &mut self.edges {
            return edges.evaluate(driver, &self.context, &mut self.collectives);
        }
        let logits = self.inference.results().clone();
        evaluate(driver, &self.context, &mut self.collectives, &self.compute_thread, self.task.nodes()?, &logits)
    }

    /// Saves the parameters and the optimizer's state if this epoch is better than all earlier ones, and returns whether it is. All workers have equal
    /// metrics and decide equally.
    fn save_if_best(&mut self, evaluation: &Evaluation) -> Result<bool, Error> {
        let Some(worth) = evaluation.worth(self.metric) else { return Ok(false) };
        let better = self.progress.best.is_none_or(|(_, best)| worth > best);
        if better {
            self.progress.best = Some((self.progress.epochs, worth));
            self.best = Some(self.compute_thread.call(|compute| compute.replica()));
            if let Some(rows) = &self.context.embeddings {
                let _busy = self.job.runtime.busy("copying the best learned rows");
                rows.save_best()?;
            }
        }
        Ok(better)
    }
}

/// Reserves rows for the layers of exact inference, in memory if wanted and possible, otherwise in the scratch folder.
///
/// # Errors
/// When there is no space in the scratch folder.
fn layer_rows(
    job: &Job,
    context: &WorkerContext,
    stages: &[Stage],
    in_memory: bool,
) -> Result<Vec<Arc<RowStore>>, Error> {
    if in_memory {
        match reserve_stores(context, stages, &Place::Memory) {
            Ok(stores) => return Ok(stores),
            Err(error) => {
                job.runtime.say(&format!("note: layers are in files, where reading takes longer: {error}"));
            }
        }
    }
    let folder = &context.scratch;
    reserve_stores(context, stages, &Place::Folder(folder.clone()))
        .map_err(Error::io("reserve space for layers in", folder))
}
