//! The end of a run: exact inference with the best model, and all outputs.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bytemuck::{Pod, Zeroable};
use gnnflow_data::format::{hex, plural};
use gnnflow_data::process_memory::high_water_mark;
use gnnflow_dataflow::fetch::cache::CacheCounts;
use gnnflow_dataflow::flow::compute_thread::ComputeThread;
use gnnflow_nn::Model;
use gnnflow_nn::alloc::ReturnAtOnce;
use gnnflow_nn::optimizer::State;
use gnnflow_nn::params::Param;

use super::{Run, StageTimes, device_memory, refresh};
use crate::collectives::{self, Driver};
use crate::compute::ComputeState;
use crate::config;
use crate::config::RankAmong;
use crate::context::WorkerContext;
use crate::engine::no_training::NoTraining;
use crate::engine::{Engine, Staleness};
use crate::error::Error;
use crate::evaluate::edge_evaluation::EdgeEvaluation;
use crate::evaluate::{Evaluation, node_predictions, recommendations};
use crate::model_file::{self, Description, Provenance, ValidationMetric, optimizer_file};
use crate::outputs;
use crate::outputs::embedding_rows::EmbeddingRows;
use crate::outputs::output_nodes::OutputNodes;
use crate::outputs::run_folder::{CHANGES, NODE_EMBEDDINGS, RECOMMENDATIONS, remove_old_results};
use crate::outputs::summary::{CacheUse, Chosen, EmbeddingUse, Refreshed, SCHEMA, Seconds, Summary, Value, WorkerUse};
use crate::outputs::table::TableForm;
use crate::outputs::trace_table::SentTo;
use crate::refresh::Refresh;
use crate::refresh::layer_store::WritingRows;
use crate::runtime::job::{InNeighbors, Job, Scope, Work};
use crate::runtime::records::{ByClass, Scores, TensorUse};
use crate::runtime::stage::Stage;

/// The counts of a worker.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct WorkerReport {
    bytes: u64,
    messages: u64,
    peak_rss_bytes: u64,
    device_peak_bytes: u64,
    spent: StageTimes,
    cache_hits: u64,
    cache_misses: u64,
    device_cache_hits: u64,
    device_cache_misses: u64,
    /// Bytes of training steps.
    step_bytes: u64,
    step_messages: u64,
    stale: Staleness,
    rows_moved: u64,
    table_bytes: u64,
    edge_numbers: u64,
    embedding_bytes: u64,
    copied_bytes: u64,
    tensor: TensorUse,
}

impl collectives::Value for WorkerReport {}

/// The counts of all workers.
struct Reports(Vec<WorkerReport>);

impl Reports {
    fn sum(&self, of: fn(&WorkerReport) -> u64) -> u64 {
        self.0.iter().map(of).sum()
    }

    fn most(&self, of: fn(&WorkerReport) -> u64) -> u64 {
        self.0.iter().map(of).max().unwrap_or(0)
    }

    /// Returns the seconds of each stage of the slowest worker.
    fn seconds(&self) -> Seconds {
        let slowest = |of: fn(&WorkerReport) -> u64| self.most(of) as f64 / 1e9;
        Seconds {
            sample: slowest(|worker| worker.spent.sample),
            fetch: slowest(|worker| worker.spent.fetch),
            forward: slowest(|worker| worker.spent.forward),
            backward: slowest(|worker| worker.spent.backward),
            reduce: slowest(|worker| worker.spent.reduce),
            step: slowest(|worker| worker.spent.step),
            device: slowest(|worker| worker.spent.device),
            ..Seconds::default()
        }
    }

    /// Returns the maximum and the mean of the staleness.
    fn staleness(&self) -> (u64, f64) {
        let [sum, batches] = [self.sum(|worker| worker.stale.sum), self.sum(|worker| worker.stale.batches)];
        (self.most(|worker| worker.stale.most), sum as f64 / batches.max(1) as f64)
    }

    fn cache(&self) -> CacheUse {
        CacheUse::new(self.sum(|worker| worker.cache_hits), self.sum(|worker| worker.cache_misses))
    }

    fn device_cache(&self) -> CacheUse {
        CacheUse::new(self.sum(|worker| worker.device_cache_hits), self.sum(|worker| worker.device_cache_misses))
    }

    fn tensor(&self) -> TensorUse {
        TensorUse {
            workers: self.sum(|worker| worker.tensor.workers),
            calls: self.sum(|worker| worker.tensor.calls),
            seconds: self.0.iter().map(|worker| worker.tensor.seconds).sum(),
            again: self.sum(|worker| worker.tensor.again),
            lost: self.sum(|worker| worker.tensor.lost),
            tasks: self.sum(|worker| worker.tensor.tasks),
            local: self.sum(|worker| worker.tensor.local),
            relaunched: self.sum(|worker| worker.tensor.relaunched),
            row_bytes_max: self.most(|worker| worker.tensor.row_bytes_max),
        }
    }
}

/// The counts of the engine that has trained.
struct EngineUse {
    cached: Option<CacheCounts>,
    /// Of rows that a GPU holds.
    held: Option<CacheCounts>,
    rows: Option<[u64; 2]>,
    staleness: Option<Staleness>,
    tensor: Option<TensorUse>,
}

impl EngineUse {
    fn of(engine: &dyn Engine, compute_thread: &ComputeThread<ComputeState>) -> Self {
        let held = compute_thread.call(|compute| compute.held_counts());
        let (cached, rows, staleness, tensor) = (engine.cached(), engine.rows(), engine.staleness(), engine.tensor());
        Self { cached, held, rows, staleness, tensor }
    }
}

/// The results of inference.
pub(super) struct Inferred {
    pub(super) evaluation: Evaluation,
    /// The nodes that have results.
    pub(super) nodes: OutputNodes,
    pub(super) refreshed: Option<Refreshed>,
    /// The rows of layers that a refresh has changed.
    pub(super) writing: Option<WritingRows>,
    pub(super) chosen: Option<Chosen>,
}

/// The SHA-256 of the files written.
#[derive(Default)]
pub(super) struct Digests {
    predictions: Option<String>,
    /// Learned rows.
    rows: String,
    model: Option<String>,
}

impl Run<'_> {
    /// Returns what this process has sent, by rank.
    fn sent(&self) -> Vec<SentTo> {
        let WorkerContext { meter, other_meter, placement, .. } = &self.context;
        let mut sums = vec![SentTo::default(); placement.workers()];
        for sent in [meter, other_meter].map(|meter| meter.by_destination()) {
            for (sum, sent) in sums.iter_mut().zip(sent) {
                sum.messages += sent.messages;
                sum.bytes += sent.bytes;
            }
        }
        sums
    }

    fn report(&self, trained: &EngineUse) -> WorkerReport {
        let WorkerContext { meter, other_meter, embeddings, .. } = &self.context;
        let [cache, device_cache] =
            [trained.cached, trained.held].map(|counts| counts.map_or([0; 2], |counts| [counts.hits, counts.misses]));
        let [table_bytes, edge_numbers] = trained.rows.unwrap_or_default();
        WorkerReport {
            bytes: meter.bytes() + other_meter.bytes(),
            messages: meter.messages() + other_meter.messages(),
            peak_rss_bytes: high_water_mark(),
            device_peak_bytes: self
                .compute_thread
                .call(|compute| compute.with_model(|model| device_memory::peak(model.device()))),
            spent: self.spent,
            cache_hits: cache[0],
            cache_misses: cache[1],
            device_cache_hits: device_cache[0],
            device_cache_misses: device_cache[1],
            step_bytes: meter.bytes(),
            step_messages: meter.messages(),
            stale: trained.staleness.unwrap_or_default(),
            rows_moved: embeddings.as_ref().map_or(0, |rows| rows.updated()),
            table_bytes,
            edge_numbers,
            embedding_bytes: embeddings.as_ref().map_or(0, |rows| rows.reserved()),
            copied_bytes: self.job.dataset.copied_bytes().unwrap_or(0),
            tensor: trained.tensor.unwrap_or_default(),
        }
    }

    /// Computes all nodes with the best model and writes all outputs.
    pub(super) fn finish(mut self, driver: &mut Driver<'_>) -> Result<Option<Summary>, Error> {
        let begin = Instant::now();
        let trained = EngineUse::of(&*self.training, &self.compute_thread);
        self.free_engine(driver)?;
        // Its files are locked until all workers have written their results.
        let refresh = self.refresh.take();
        let Inferred { evaluation, nodes, refreshed, writing, chosen } = self.infer(driver, refresh.as_ref())?;
        let digests = self.write_outputs(driver, &nodes, &evaluation)?;
        if let Some((Refresh { store, .. }, writing)) = refresh.as_ref().zip(writing) {
            store.complete(driver, &mut self.collectives, self.job, writing)?;
        }
        let infer_seconds = begin.elapsed().as_secs_f64();
        if let Some(trace) = &self.trace {
            trace.write(driver.worker, self.context.placement, &self.job.run_dir, self.sent(), &self.context.meter)?;
        }
        let reports = Reports(self.collectives.all_gather(driver, &self.report(&trained))?);
        drop(refresh);
        // The scratch files are unlinked already.
        let _ = std::fs::remove_dir(&self.context.scratch);
        if self.context.worker > 0 {
            return Ok(None);
        }
        let of_training = self.summary(&trained, &reports, evaluation, digests, infer_seconds);
        let summary = Summary { refreshed, chosen, ..of_training };
        summary.write(&self.job.run_dir)?;
        Ok(Some(summary))
    }

    /// Computes the results of the nodes of the job, and evaluates them.
    fn infer(&mut self, driver: &mut Driver<'_>, refresh: Option<&Refresh>) -> Result<Inferred, Error> {
        driver.runtime.stage(Stage::Inference);
        let nodes = OutputNodes::all(self.job.dataset.manifest());
        let chosen = self.chosen_nodes(driver)?;
        if self.context.worker == 0 && !self.job.trains() {
            remove_old_results(&self.job.run_dir, &self.job.config, !self.predicts_nothing())?;
        }
        if let Some(refresh) = refresh {
            let refresh::Outcome { refreshed, changes, writing } = self.refresh(driver, refresh)?;
            if let Some(changes) = changes {
                let parts = Arc::clone(&self.context.parts);
                let ids = |part: usize, locals: &mut dyn Iterator<Item = usize>| outputs::ids(&parts, part, locals);
                let form = TableForm::of(self.job.config.infer.as_ref());
                self.write_changes(driver, &changes, &ids, (self.job.run_dir.join(CHANGES), form))?;
            }
            let evaluation = self.evaluate_results(driver)?;
            let (refreshed, writing) = (Some(refreshed), Some(writing));
            return Ok(Inferred { evaluation, nodes, refreshed, writing, chosen: None });
        }
        match chosen {
            Some(own) if self.edges.is_some() => return self.infer_sources(driver, own),
            Some(own) => return self.infer_chosen(driver, own),
            None => {}
        }
        let evaluation = match self.predicts_nothing() {
            false => self.evaluate_best(driver)?,
            true => {
                self.infer_all(driver)?;
                Evaluation::default()
            }
        };
        Ok(Inferred { evaluation, nodes, refreshed: None, writing: None, chosen: None })
    }

    /// Drops the engine, because inference needs the memory of its tables. They are free when its dataflow has ended: when the worker has received
    /// the last messages of all workers about it, which precede those of the second barrier.
    fn free_engine(&mut self, driver: &mut Driver<'_>) -> Result<(), Error> {
        self.training = Box::new(NoTraining::default());
        self.compute_thread.call(|compute| {
            compute.free_rows();
            compute.free_edges();
        });
        if self.train.is_full_graph() && self.job.trains() {
            self.collectives.barrier(driver)?;
            self.collectives.barrier(driver)?;
            // The allocator would keep it for a second.
            drop(ReturnAtOnce::start());
        }
        Ok(())
    }

    /// Computes all nodes with the best model by exact inference, and evaluates it. The results of the last epoch's evaluation are kept if it is
    /// the best and they were computed in the same way.
    fn evaluate_best(&mut self, driver: &mut Driver<'_>) -> Result<Evaluation, Error> {
        let best = self.progress.best.map_or(self.progress.epochs, |(epoch, _)| epoch);
        let is_exact = !self.train.is_full_graph();
        let last = self.last.take().filter(|(epoch, _)| is_exact && *epoch == best && best == self.progress.epochs);
        if let Some((_, evaluation)) = last {
            return Ok(evaluation);
        }
        self.restore_best(driver)?;
        self.evaluate(driver)
    }

    /// Restores the parameters and the learned rows of the best epoch.
    fn restore_best(&mut self, driver: &mut Driver<'_>) -> Result<(), Error> {
        let Some(best) = self.best.clone() else { return Ok(()) };
        self.compute_thread.call(move |compute| compute.set_params(best.params))?;
        if let Some(rows) = &self.context.embeddings {
            let busy = driver.runtime.busy("copying the best learned rows");
            rows.restore_best()?;
            drop(busy);
            // No worker requests rows before all have restored theirs.
            self.collectives.barrier(driver)?;
        }
        Ok(())
    }

    /// Writes all files but the summary, with the results of `nodes`.
    fn write_outputs(
        &mut self,
        driver: &mut Driver<'_>,
        nodes: &OutputNodes,
        evaluation: &Evaluation,
    ) -> Result<Digests, Error> {
        driver.runtime.stage(Stage::Writing);
        let mut digests = Digests { predictions: self.write_predictions(driver, nodes)?, ..Digests::default() };
        if self.job.config.infer.as_ref().is_some_and(|infer| infer.embeddings) {
            self.write_embeddings(driver, nodes)?;
        }
        if let Some(recommender) = self.edges.as_mut().and_then(EdgeEvaluation::recommender) {
            let rows = recommender.recommend(driver, self.job, &self.context, nodes)?;
            let path = self.job.run_dir.join(RECOMMENDATIONS);
            recommendations::write(driver, self.job, (&self.context, &mut self.collectives), &rows, path)?;
        }
        let epoch = self.progress.best.map_or(self.progress.epochs, |(epoch, _)| epoch);
        if self.job.trains() {
            let optimizer = match &self.best {
                Some(best) => best.optimizer.clone(),
                None => self.compute_thread.call(|compute| compute.optimizer_state()),
            };
            let folder = self.job.run_dir.clone();
            let of_model = self.write_model(driver, nodes, (evaluation, epoch), optimizer, &folder)?;
            return Ok(Digests { predictions: digests.predictions, ..of_model });
        }
        if self.context.worker == 0 {
            digests.model = Some(model_file::digest(&self.parameters()?));
        }
        Ok(digests)
    }

    fn parameters(&self) -> Result<Vec<Param>, Error> {
        Ok(self.compute_thread.call(|compute| compute.with_model(|model| model.params().export()))?)
    }

    /// Writes the model with its learned rows and the state of the optimizer into `folder`. It is of this epoch, which has this evaluation.
    pub(super) fn write_model(
        &self,
        driver: &mut Driver<'_>,
        nodes: &OutputNodes,
        (evaluation, epoch): (&Evaluation, u32),
        optimizer: State,
        folder: &Path,
    ) -> Result<Digests, Error> {
        let mut digests = Digests::default();
        if let Some(rows) = &self.context.embeddings {
            let (dim, rows) = (rows.dim(), rows.read()?);
            let rows = (EmbeddingRows::EXACT, dim, |node| rows.row(node));
            // Warm start reads one file.
            let table = (folder.join(NODE_EMBEDDINGS), TableForm::one_file(self.job.config.infer.as_ref()));
            digests.rows =
                outputs::embeddings(driver, &self.context, (self.job.dataset.manifest(), nodes), rows, table)?;
        }
        if self.context.worker == 0 {
            let params = self.parameters()?;
            digests.model = Some(model_file::digest(&params));
            let description = Description {
                task: self.train.task,
                model: self.compute_thread.call(|compute| compute.with_model(|model| model.spec().clone())),
                dataset: self.job.dataset.manifest(),
                provenance: self.provenance(evaluation, epoch),
                learned_rows: self.context.embeddings.is_some(),
            };
            model_file::write(&params, description, folder)?;
            optimizer_file::write(&params, (self.train.optimizer.word(), &optimizer), folder)?;
        }
        Ok(digests)
    }

    /// Returns where the model after `epoch` epochs comes from, which has this evaluation.
    fn provenance(&self, evaluation: &Evaluation, epoch: u32) -> Provenance {
        let metric = |val: &Scores| {
            let name = evaluation.name_of(self.metric)?;
            Some(ValidationMetric { name: name.to_owned(), value: val.value(name)? })
        };
        Provenance {
            build: self.job.build.clone(),
            pipeline: self.job.config.name.clone(),
            pipeline_sha256: self.job.config.fingerprint(),
            seed: self.train.seed,
            epoch,
            metric: evaluation.val.as_ref().and_then(metric),
        }
    }

    /// Writes the predictions, if the pipeline has them, and returns their SHA-256.
    fn write_predictions(&self, driver: &mut Driver<'_>, nodes: &OutputNodes) -> Result<Option<String>, Error> {
        let infer = self.job.config.infer.as_ref().filter(|infer| infer.predictions && !self.predicts_nothing());
        let Some(infer) = infer else { return Ok(None) };
        let path = self.job.run_dir.join("predictions.parquet");
        let written = match &self.edges {
            Some(edges) => edges.predictions(driver, self.job, &self.context, path)?,
            None => {
                let (task, logits) = (self.task.nodes()?, self.inference.results());
                node_predictions::predictions(
                    driver,
                    self.job,
                    &self.context,
                    &**task,
                    (nodes, logits),
                    infer.scores,
                    path,
                )?
            }
        };
        Ok(Some(written))
    }

    /// Writes the input rows of the last layer or, for tasks on edges, the results that the decoder reads.
    fn write_embeddings(&self, driver: &mut Driver<'_>, nodes: &OutputNodes) -> Result<(), Error> {
        let carried = self.compute_thread.call(|compute| compute.with_model(Model::carried_dim));
        let (rows, carried) = match self.edges {
            Some(_) => (self.inference.results(), 0),
            None => (self.inference.embeddings(), carried),
        };
        let path = self.job.run_dir.join("embeddings.parquet");
        let (dim, rows) = (rows.width() - carried, rows.read()?);
        let infer = self.job.config.infer.as_ref();
        let rows = (EmbeddingRows::of(infer), dim, |node| &rows.row(node)[..dim]);
        let table = (path, TableForm::of(infer));
        outputs::embeddings(driver, &self.context, (self.job.dataset.manifest(), nodes), rows, table)?;
        Ok(())
    }

    fn summary(
        &self,
        trained: &EngineUse,
        reports: &Reports,
        evaluation: Evaluation,
        digests: Digests,
        infer_seconds: f64,
    ) -> Summary {
        let steps = self.rounds.1.max(1) as f64;
        let (stale_most, stale_mean) = reports.staleness();
        // The staleness of learned rows in batches is counted in steps, and is part of `node_embeddings`.
        let rows_are_stale = self.context.embeddings.is_some() && !self.train.is_full_graph();
        let stale = trained.staleness.filter(|_| !rows_are_stale);
        let has_rows = trained.rows.is_some();
        let of_worker = |worker: &WorkerReport| WorkerUse {
            bytes_per_step: worker.step_bytes as f64 / steps,
            table_bytes: has_rows.then_some(worker.table_bytes),
            edge_numbers: has_rows.then_some(worker.edge_numbers),
            embedding_bytes: self.context.embeddings.as_ref().map(|_| worker.embedding_bytes),
            copied_bytes: self.job.dataset.copied_bytes().map(|_| worker.copied_bytes),
            device_peak_bytes: Some(worker.device_peak_bytes).filter(|&bytes| bytes > 0),
        };
        let tensor = trained.tensor.map(|_| reports.tensor());
        let (seconds, workers) = (self.trained.as_secs_f64(), self.context.placement.workers());
        let value = self.job.config.price.as_ref().filter(|_| self.job.trains());
        let value = value.map(|price| Value::new(price, seconds, workers, tensor.as_ref()));
        Summary {
            schema: SCHEMA,
            name: self.job.config.name.clone(),
            seed: self.train.seed,
            task: self.train.task.to_string(),
            schedule: self.train.schedule.to_string(),
            auto_schedule: self.job.config.auto_schedule().cloned(),
            partitions: self.job.dataset.manifest().parts(),
            processes: workers,
            threads: self.job.threads,
            sampling_threads: self.split.sampling,
            compute_threads: self.split.compute,
            from_model: self.job.starts_from().map(|model| model.sha256.clone()),
            epochs: self.progress.epochs as usize,
            best_epoch: self.progress.best.map(|(epoch, _)| epoch as usize),
            train: evaluation.train,
            val: evaluation.val,
            test: evaluation.test,
            positive_class: evaluation.by_class.values().find_map(ByClass::positive),
            by_class: evaluation.by_class,
            notes: notes(self.job, self.train, if self.job.resumes() { 0 } else { self.rounds.1 }),
            seconds: Seconds {
                prepare: self.job.prepare_seconds,
                train: seconds,
                evaluate: self.evaluated.as_secs_f64(),
                infer: infer_seconds,
                per_epoch: self.progress.seconds.clone(),
                ..reports.seconds()
            },
            bytes_sent: reports.sum(|worker| worker.bytes),
            messages_sent: reports.sum(|worker| worker.messages),
            rounds_per_step: self.rounds.0 as f64 / steps,
            bytes_per_step: reports.sum(|worker| worker.step_bytes) as f64 / steps,
            messages_per_step: reports.sum(|worker| worker.step_messages) as f64 / steps,
            cache: trained.cached.map(|_| reports.cache()),
            device_cache: Some(reports.device_cache()).filter(|found| found.hits + found.misses > 0),
            staleness_max: stale.map(|_| stale_most),
            staleness_mean: stale.map(|_| stale_mean),
            tensor,
            value,
            node_embeddings: self.context.embeddings.as_ref().filter(|_| self.job.trains()).map(|rows| EmbeddingUse {
                dim: rows.dim(),
                rows_moved: reports.sum(|worker| worker.rows_moved),
                staleness_max: if rows_are_stale { stale_most } else { 0 },
                staleness_mean: if rows_are_stale { stale_mean } else { 0.0 },
                sha256: digests.rows,
            }),
            refreshed: None,
            chosen: None,
            workers: reports.0.iter().map(of_worker).collect(),
            peak_rss_bytes: reports.0.iter().map(|worker| worker.peak_rss_bytes).collect(),
            model_sha256: digests.model,
            predictions_sha256: digests.predictions,
            blocks_sha256: (self.train.hash_blocks && self.job.trains()).then(|| hex(&self.progress.blocks)),
            device: self.train.device.to_string(),
            versions: [("gnnflow".to_owned(), env!("CARGO_PKG_VERSION").to_owned())].into(),
        }
    }
}

/// Training of fewer steps gets a note.
const FEW_STEPS: u64 = 30;

/// Returns remarks on results that may be unexpected. `steps` are those of a run from the first epoch; 0 for a resumed run.
fn notes(job: &Job, train: &config::Train, steps: u64) -> Vec<String> {
    let mut notes = Vec::new();
    if let Work::Infer { neighbors: InNeighbors::Sampled(fanouts), .. } = &job.work
        && fanouts.iter().any(|fanout| *fanout >= 0)
    {
        let fanouts: Vec<String> = fanouts.iter().map(i64::to_string).collect();
        notes.push(format!(
            "results are computed from samples of in-neighbors (--fanouts {}) and are not exact",
            fanouts.join(",")
        ));
    }
    if (1..FEW_STEPS).contains(&steps) {
        let (epochs, steps) = (plural(train.epochs(), "epoch"), plural(steps as usize, "training step"));
        let verb = if train.epochs() == 1 { "has" } else { "have" };
        let smaller = if train.is_full_graph() { "" } else { ", or make train.batch smaller" };
        notes.push(format!("{epochs} {verb} only {steps}; raise train.epochs{smaller}"));
    }
    if train.sampler.is_temporal() {
        let later_edges = "evaluation, predictions and embeddings read all edges, including edges later than a node's time; \
                           sampler = \"temporal\" leaves later edges out in training only";
        notes.push(later_edges.to_owned());
    }
    let link = train.link();
    // Nothing is ranked for a list of sources.
    let is_list = matches!(&job.work, Work::Infer { scope: Scope::Listed(_), .. });
    let ranks = train.predicts_links() && !is_list && !job.holds_out_no_edges();
    if job.holds_out_no_edges() && !is_list {
        let without = if train.predicts_links() { "predictions and metrics" } else { "metrics" };
        notes.push(format!(
            "the dataset is not that of the run, or has changed since, and has no split column (graph.columns.edge_split): no edge is held out, and there are no {without}"
        ));
    }
    let candidates = link.eval_negative_dstnode.as_ref().filter(|_| job.is_on_training_data());
    if let (true, None, RankAmong::Count(count)) = (ranks, candidates, link.rank_among()) {
        notes.push(format!(
            "held-out edges are ranked among {count} drawn nodes; num_negative_edges_eval = \"all\" ranks them among all nodes"
        ));
    }
    notes
}
