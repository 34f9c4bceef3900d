//! What one worker does: trains, evaluates, keeps the best model, computes every node with it, and writes the results.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gnnflow_operators::compute::optimizer::State;
use gnnflow_operators::meter::{Meter, Stage};
use gnnflow_operators::placement::Placement;
use gnnflow_operators::sample::seeds::Book;
use gnnflow_operators::sync::all_reduce::Contribution;
use gnnflow_operators::sync::background::Companion;
use timely::worker::Worker;

use crate::Error;
use crate::agree::Agreement;
use crate::checkpoint::{Checkpoint, Progress};
use crate::embedding::{Generation, forget};
use crate::evaluate::{Evaluation, evaluate};
use crate::islands::Islands;
use crate::job::Job;
use crate::outputs;
use crate::plan::Plan;
use crate::run_folder::{RunFolder, checkpoints, last_checkpoint};
use crate::sampling;
use crate::schedule::inference::Inference;
use crate::schedule::mini_batch::{Batches, MiniBatchTraining, hex};
use crate::schedule::partition_parallel::{PartitionParallel, Visits};
use crate::schedule::{BlocksHash, EpochSums, Schedule};
use crate::setup::{self, LocalParts, Needs, Setup};
use crate::spec::{self, Metric};
use crate::subgraphs::Subgraphs;
use crate::summary::{CacheUse, EmbeddingUse, EpochRecord, SCHEMA, Seconds, Summary};
use crate::task;
use crate::task::link_prediction::{self, Ranking};
use crate::threads::Split;
use crate::trainer::{Spent, Trainer};

/// Does the part of `worker` in `job`, whose pipeline has `[model]` and `[train]`. The first worker returns the summary.
///
/// # Errors
/// What the data, this machine or the pipeline does not allow; the first one met.
pub fn work(worker: &mut Worker, job: &Job) -> Result<Option<Summary>, Error> {
    let (Some(model), Some(train)) = (&job.spec.model, &job.spec.train) else {
        return Err(Error::Bug("a worker needs [model] and [train]".into()));
    };
    let mut run = Run::start(worker, job, model, train)?;
    run.train(worker)?;
    run.finish(worker)
}

/// A worker's run.
struct Run<'a> {
    job: &'a Job,
    train: &'a spec::Train,
    setup: Setup,
    companion: Companion<Trainer>,
    training: Box<dyn Schedule>,
    inference: Inference,
    /// Where links are predicted.
    ranking: Option<Ranking>,
    agreement: Agreement,
    /// At the first worker.
    folder: Option<RunFolder>,
    progress: Progress,
    /// Parameters of the best epoch.
    best: Option<Vec<f32>>,
    /// The best epoch whose learnt rows are on disk.
    best_rows_saved: Option<u32>,
    metric: Metric,
    /// Of training epochs alone.
    spent: StageTimes,
    rounds: (u64, u64),
    /// Bytes and messages sent in training epochs.
    sent: [u64; 2],
    trained: Duration,
    split: Split,
}

/// Time by stage.
#[derive(Clone, Copy, Debug, Default)]
struct StageTimes([Duration; 6]);

impl StageTimes {
    fn now(meter: &Meter, spent: Spent) -> Self {
        let [sample, fetch, reduce] = [Stage::Sample, Stage::Fetch, Stage::Reduce].map(|stage| meter.spent(stage));
        Self([sample, fetch, spent.forward, spent.backward, reduce, spent.step])
    }

    fn add_since(&mut self, before: Self, after: Self) {
        for (i, total) in self.0.iter_mut().enumerate() {
            *total += after.0[i] - before.0[i];
        }
    }
}

impl<'a> Run<'a> {
    fn start(worker: &mut Worker, job: &'a Job, model: &'a spec::Model, train: &'a spec::Train) -> Result<Self, Error> {
        let parts = LocalParts::open(job, worker.index(), worker.peers())?;
        let hosted = Placement::new(job.dataset.manifest().parts(), worker.peers()).parts_of(worker.index());
        let (task, examples) = task::open(job, train, &parts, hosted)?;
        let built = setup::model(job, model, train, task.objective().width())?;
        let needs = Needs::of(&built);
        let (degrees, stages, params) = (needs.degrees, built.stages(), built.params().flat_len());
        let trained = built.params().trained_len();
        let mut setup = Setup::open(job, worker.index(), worker.peers(), parts, task, needs)?;
        setup.train_nodes = examples.counts().to_vec();
        let window = Plan::new(&job.spec, worker.peers(), worker.peers())?.window;
        let mut agreement = Agreement::build(worker, setup.placement, 0, setup.meter.clone());
        let importance = match train.sampler.as_str() {
            "fastgcn" => Some(sampling::importance(worker, &*job.host, &setup, &mut agreement)?),
            _ => None,
        };
        let choices = sampling::choices(job, &setup, model, train, importance)?;
        let subgraphs = match &examples {
            task::Source::Nodes(split) => Subgraphs::open(job, &setup, train, &split.train)?,
            task::Source::Edges(_) => None,
        };
        if let Some(subgraphs) = &subgraphs {
            subgraphs.profile(worker, &*job.host, &setup)?;
        }
        let split = Split::planned(job.threads);
        let trainer = Trainer::new(built, setup.task.objective(), (model, train), split.compute)?;
        let companion = Companion::start("companion", move || trainer)
            .map_err(|error| Error::Machine(format!("cannot start the compute thread: {error}")))?;
        let mut links = None;
        let book: Arc<dyn Book> = match examples {
            task::Source::Nodes(split) => Arc::new(setup.seed_book(train, split)?),
            task::Source::Edges(mut edges) => {
                let book = edges.book(train, &train.link());
                links = Some(edges);
                Arc::new(book)
            }
        };
        let training: Box<dyn Schedule> = match train.schedule {
            spec::Schedule::PartitionParallel => {
                let islands = Islands::open(worker, &*job.host, job, &setup, degrees)?;
                let visits = Visits { islands, book, choices, degrees, window, train: train.clone() };
                Box::new(PartitionParallel::build(worker, &setup, visits, &companion))
            }
            _ => {
                let cache = setup.cache(train).map(|cache| Rc::new(RefCell::new(cache)));
                let batches = Batches { book, choices, subgraphs, degrees, params, window, cache };
                Box::new(MiniBatchTraining::build(worker, &setup, train, batches, &companion))
            }
        };
        let nodes = job.spec.infer.as_ref().map_or_else(|| spec::Infer::default().batch, |infer| infer.batch);
        let inference = Inference::build(worker, &setup, &stages, model.uses_edges(), degrees, nodes, &companion)?;
        let ranking = links.map(|edges| {
            Ranking::build(worker, &setup, inference.results(), edges, &train.link(), train.seed, &companion)
        });
        let metric = train.metric.unwrap_or(setup.task.objective().metric());
        let mut run = Self {
            job,
            train,
            setup,
            companion,
            training,
            inference,
            ranking,
            agreement,
            folder: None,
            progress: Progress::default(),
            best: None,
            best_rows_saved: None,
            metric,
            spent: StageTimes::default(),
            rounds: (0, 0),
            sent: [0; 2],
            trained: Duration::ZERO,
            split,
        };
        if job.resume {
            run.resume(worker, params, trained)?;
        }
        if run.setup.worker == 0 {
            run.folder = Some(RunFolder::open(&job.run_dir, &job.spec, run.progress.epochs)?);
        }
        Ok(run)
    }

    /// Takes up the last checkpoint, which the first worker reads and tells.
    fn resume(&mut self, worker: &mut Worker, params: usize, trained: usize) -> Result<(), Error> {
        let host = &*self.job.host;
        let path = last_checkpoint(&self.job.run_dir);
        let checkpoint = match self.setup.worker {
            0 if path.exists() => {
                let embedding = self.setup.embeddings.as_ref().map(|rows| rows.dim());
                Some(Checkpoint::read(&path, &self.fingerprint(), params, trained, embedding)?)
            }
            _ => None,
        };
        let header = checkpoint.as_ref().map(|checkpoint| {
            let names: Vec<&String> = checkpoint.optimizer.vectors.iter().map(|(name, _)| name).collect();
            serde_json::json!([checkpoint.progress, checkpoint.optimizer.steps, names]).to_string()
        });
        let words = header.map_or_else(Vec::new, |text| text.bytes().map(u64::from).collect());
        let told =
            self.agreement.by_partition(worker, host, |part| if part == 0 { words.clone() } else { Vec::new() })?;
        let text: Vec<u8> = told[0].iter().map(|&byte| byte as u8).collect();
        if text.is_empty() {
            return Ok(()); // no checkpoint yet
        }
        let bad = |error: serde_json::Error| Error::Bug(format!("the first worker's checkpoint: {error}"));
        let (progress, steps, names): (Progress, u64, Vec<String>) = serde_json::from_slice(&text).map_err(bad)?;
        // All vectors behind one another: parameters, the optimiser's, the best parameters.
        let length = params * (1 + usize::from(progress.best.is_some())) + trained * names.len();
        let mut all = Agreement::build(worker, self.setup.placement, length, self.setup.meter.clone());
        let flat = checkpoint.map(|checkpoint| {
            let mut flat = checkpoint.params;
            checkpoint.optimizer.vectors.iter().for_each(|(_, vector)| flat.extend_from_slice(vector));
            flat.extend(checkpoint.best.iter().flatten());
            Arc::new(flat)
        });
        let reduced = all.round(worker, host, |part| Contribution {
            partition: part as u32,
            vector: flat.clone().filter(|_| part == 0),
            words: Vec::new(),
        })?;
        let mut rest = reduced.sum;
        let mut take = |len: usize| {
            let after = rest.split_off(len);
            std::mem::replace(&mut rest, after)
        };
        let values = take(params);
        let vectors = names.into_iter().map(|name| (name, take(trained))).collect();
        self.best = progress.best.is_some().then(|| take(params));
        *self.training.blocks() = BlocksHash(progress.blocks);
        self.progress = progress;
        if let Some(rows) = &self.setup.embeddings {
            let parts = self.setup.placement.parts_of(self.setup.worker);
            let (folder, generation, model) = (checkpoints(&self.job.run_dir), self.generation(), self.fingerprint());
            // SAFETY: no epoch is under way.
            unsafe { rows.load(&folder, parts, generation, &model)? };
            // Nobody asks for rows that are not there yet.
            self.agreement.by_worker(worker, host, &[0])?;
            self.best_rows_saved = generation.best;
        }
        self.companion.call(move |trainer| {
            trainer.set_params(values)?;
            trainer.load_optimizer(State { steps, vectors })
        })
    }

    /// Trains to the last epoch, or until validation has not become better for long enough.
    fn train(&mut self, worker: &mut Worker) -> Result<(), Error> {
        let host = &*self.job.host;
        let begin = Instant::now();
        let epochs = self.train.epochs as u32;
        let (first, mut last_written) = (self.progress.epochs, None);
        while self.progress.epochs < epochs && !self.is_stale() {
            let epoch = self.progress.epochs;
            let before = StageTimes::now(&self.setup.meter, self.companion.call(Trainer::report)?);
            let (train, seed_lr) = (self.train, self.train.optimizer.lr);
            let lr = |epoch: u32| train.lr_schedule.at(epoch as usize, train.epochs, seed_lr);
            let sent = self.sent_so_far();
            if let Some(rows) = &self.setup.embeddings {
                rows.set_learning_rate(train.lr_schedule.at(epoch as usize, train.epochs, rows.spec().optimizer.lr));
            }
            let done = self.training.round(worker, host, epoch, &lr)?;
            self.sent = std::array::from_fn(|i| self.sent[i] + self.sent_so_far()[i] - sent[i]);
            let after = StageTimes::now(&self.setup.meter, self.companion.call(Trainer::report)?);
            self.spent.add_since(before, after);
            if epoch == first {
                self.split_threads(self.spent)?;
            }
            // Parameters can be looked at behind the last epoch of a round: whatever was due within it is done there.
            let end = epoch + done.len() as u32;
            let due = |every: usize| every > 0 && (epoch + 1..=end).any(|epoch| epoch.is_multiple_of(every as u32));
            self.progress.blocks = self.training.blocks().0;
            for sums in done {
                self.rounds = (self.rounds.0 + sums.rounds, self.rounds.1 + sums.steps);
                self.progress.epochs += 1;
                self.progress.seconds.push(sums.seconds);
                let last = self.progress.epochs == end;
                let mut record = self.record(&sums);
                let evaluated = due(train.evaluate_every) || (train.evaluate_every > 0 && end == epochs);
                if last && evaluated {
                    let begin = Instant::now();
                    let evaluation = self.evaluate(worker)?;
                    record.best = self.consider(&evaluation)?;
                    record.evaluate_seconds = Some(begin.elapsed().as_secs_f64());
                    (record.train, record.val, record.test) = (evaluation.train, evaluation.val, evaluation.test);
                }
                if !record.loss.is_finite() {
                    let message = format!(
                        "the loss of epoch {} is {}; lower train.optimizer.lr, or scale the features \
                         (graph.normalize_features)",
                        record.epoch, record.loss
                    );
                    return Err(Error::Input(message));
                }
                if let Some(folder) = &mut self.folder {
                    folder.epoch(&record)?;
                }
                host.epoch(&record);
            }
            if due(train.checkpoint_every) {
                self.checkpoint(worker)?;
                last_written = Some(self.progress.epochs);
            }
        }
        if last_written != Some(self.progress.epochs) {
            self.checkpoint(worker)?;
        }
        self.trained = begin.elapsed();
        Ok(())
    }

    /// The learning rate of epoch `epoch`, from 0.
    fn lr(&self, epoch: usize) -> f64 {
        self.train.lr_schedule.at(epoch, self.train.epochs, self.train.optimizer.lr)
    }

    /// Bytes and messages.
    fn sent_so_far(&self) -> [u64; 2] {
        [self.setup.meter.bytes(), self.setup.meter.messages()]
    }

    /// Splits the threads anew by what an epoch spent where.
    fn split_threads(&mut self, StageTimes([sample, _, forward, backward, _, step]): StageTimes) -> Result<(), Error> {
        let compute = (forward + backward + step).as_secs_f64();
        self.split = Split::measured(self.job.threads, self.split, sample.as_secs_f64(), compute);
        let Split { sampling, compute } = self.split;
        let start = |error| Error::Machine(format!("cannot start {sampling} sampling threads: {error}"));
        self.setup.sampling.resize(sampling).map_err(start)?;
        self.companion.call(move |trainer| trainer.set_threads(compute))
    }

    /// Whether validation has not become better for `early_stop` epochs.
    fn is_stale(&self) -> bool {
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

    /// Metrics of the parameters as they are.
    fn evaluate(&mut self, worker: &mut Worker) -> Result<Evaluation, Error> {
        let host = &*self.job.host;
        self.inference.pass(worker, host)?;
        if let Some(ranking) = &mut self.ranking {
            return ranking.evaluate(worker, host, &self.setup, &mut self.agreement);
        }
        let logits = self.inference.results().clone();
        evaluate(worker, host, &self.setup, &mut self.agreement, &self.companion, &logits)
    }

    /// Keeps the parameters if no earlier epoch was as good. All workers decide alike: they have the same numbers.
    fn consider(&mut self, evaluation: &Evaluation) -> Result<bool, Error> {
        let Some(worth) = evaluation.worth(self.metric) else { return Ok(false) };
        let better = self.progress.best.is_none_or(|(_, best)| worth > best);
        if better {
            self.progress.best = Some((self.progress.epochs, worth));
            self.best = Some(self.companion.call(|trainer| trainer.params().to_vec()));
            if let Some(rows) = &self.setup.embeddings {
                // SAFETY: no epoch is under way.
                unsafe { rows.keep_best() };
            }
        }
        Ok(better)
    }

    fn fingerprint(&self) -> String {
        format!("{} {}", self.job.spec.model_fingerprint(), self.job.dataset.manifest().fingerprint)
    }

    /// The epochs whose learnt rows belong to a checkpoint.
    fn generation(&self) -> Generation {
        Generation { epochs: self.progress.epochs, best: self.progress.best.map(|(epoch, _)| epoch) }
    }

    /// Writes a checkpoint; the frontier has passed the epoch everywhere, and the parameters are the same at all workers.
    ///
    /// Learnt rows first, by whoever has them: the checkpoint before stands until all of them are there.
    fn checkpoint(&mut self, worker: &mut Worker) -> Result<(), Error> {
        let Some(rows) = self.setup.embeddings.clone() else { return self.checkpoint_shared() };
        let (host, generation) = (&*self.job.host, self.generation());
        let (folder, parts) = (checkpoints(&self.job.run_dir), self.setup.placement.parts_of(self.setup.worker));
        let with_best = self.best_rows_saved != generation.best;
        rows.save(&folder, parts.clone(), generation, with_best, &self.fingerprint())?;
        self.agreement.by_worker(worker, host, &[0])?;
        self.checkpoint_shared()?;
        self.agreement.by_worker(worker, host, &[0])?;
        self.best_rows_saved = generation.best;
        forget(&folder, Some(generation), Some(parts))
    }

    /// Writes what is the same at all workers, at the first one.
    fn checkpoint_shared(&self) -> Result<(), Error> {
        if self.folder.is_none() {
            return Ok(());
        }
        let (params, optimizer) = self.companion.call(|trainer| (trainer.params().to_vec(), trainer.optimizer_state()));
        let (progress, best) = (self.progress.clone(), self.best.clone());
        let embedding = self.setup.embeddings.as_ref().map(|rows| rows.dim());
        let checkpoint = Checkpoint { progress, params, best, optimizer, embedding };
        checkpoint.write(&last_checkpoint(&self.job.run_dir), &self.fingerprint())
    }

    /// Computes every node with the best model and writes all results.
    fn finish(mut self, worker: &mut Worker) -> Result<Option<Summary>, Error> {
        let begin = Instant::now();
        if let Some(best) = self.best.clone() {
            self.companion.call(move |trainer| trainer.set_params(best))?;
            if let Some(rows) = &self.setup.embeddings {
                // SAFETY: nothing is under way.
                unsafe { rows.take_best() };
                // Nobody asks for rows that are not those yet.
                self.agreement.by_worker(worker, &*self.job.host, &[0])?;
            }
        }
        let evaluation = self.evaluate(worker)?;
        let (mut predictions_sha256, mut model_sha256) = (None, None);
        let (manifest, host) = (self.job.dataset.manifest(), &*self.job.host);
        if let Some(infer) = &self.job.spec.infer {
            if infer.predictions {
                let (logits, path) = (self.inference.results().clone(), self.job.run_dir.join("predictions.parquet"));
                predictions_sha256 = Some(match &self.ranking {
                    Some(ranking) => link_prediction::predictions(worker, self.job, &self.setup, ranking, path)?,
                    None => outputs::predictions(worker, host, &self.setup, manifest, &logits, infer.scores, path)?,
                });
            }
            if infer.embeddings {
                let rows = match self.ranking {
                    Some(_) => self.inference.results().clone(), // they are what edges are scored by
                    None => self.inference.embeddings().clone(),
                };
                let path = self.job.run_dir.join("embeddings.parquet");
                let rows = (rows.dim(), |node| rows.row_f32(node));
                outputs::embeddings(worker, host, &self.setup, manifest, rows, path)?;
            }
        }
        let mut rows_sha256 = String::new();
        if let Some(rows) = &self.setup.embeddings {
            let path = self.job.run_dir.join("node_embeddings.parquet");
            let rows = (rows.dim(), |node| rows.row(node));
            rows_sha256 = outputs::embeddings(worker, host, &self.setup, manifest, rows, path)?;
        }
        if let Some(folder) = &self.folder {
            let params = self.companion.call(|trainer| trainer.model().params().export())?;
            model_sha256 = Some(outputs::weights(&params, &folder.path("model.safetensors"))?);
        }
        let infer_seconds = begin.elapsed().as_secs_f64();
        let own: Vec<u64> = [self.setup.meter.bytes(), self.setup.meter.messages(), peak_rss_bytes()]
            .into_iter()
            .chain(self.spent.0.iter().map(|time| time.as_nanos() as u64))
            .chain(self.training.cached().map_or([0; 2], |counts| [counts.hits, counts.misses]))
            .chain(self.sent)
            .chain(self.training.staleness().map_or([0; 3], |stale| [stale.most, stale.sum, stale.batches]))
            .chain([self.setup.embeddings.as_ref().map_or(0, |rows| rows.moved())])
            .collect();
        let told = self.agreement.by_worker(worker, host, &own)?;
        // The files of the layers are unlinked; only the folder is left.
        let _ = std::fs::remove_dir(&self.setup.scratch);
        let Some(folder) = &self.folder else { return Ok(None) };
        let sum = |i: usize| told.iter().map(|words| words[i]).sum::<u64>();
        let steps = self.rounds.1.max(1) as f64;
        let slowest = |i: usize| told.iter().map(|words| words[i]).max().unwrap_or(0) as f64 / 1e9;
        let summary = Summary {
            schema: SCHEMA,
            name: self.job.spec.name.clone(),
            seed: self.train.seed,
            partitions: manifest.parts(),
            processes: worker.peers(),
            threads: self.job.threads,
            sampling_threads: self.split.sampling,
            compute_threads: self.split.compute,
            epochs: self.progress.epochs as usize,
            best_epoch: self.progress.best.map(|(epoch, _)| epoch as usize),
            train: evaluation.train,
            val: evaluation.val,
            test: evaluation.test,
            seconds: Seconds {
                prepare: self.job.prepare_seconds,
                train: self.trained.as_secs_f64(),
                infer: infer_seconds,
                per_epoch: self.progress.seconds.clone(),
                sample: slowest(3),
                fetch: slowest(4),
                forward: slowest(5),
                backward: slowest(6),
                reduce: slowest(7),
                step: slowest(8),
            },
            bytes_sent: sum(0),
            messages_sent: sum(1),
            rounds_per_step: self.rounds.0 as f64 / steps,
            bytes_per_step: sum(11) as f64 / steps,
            messages_per_step: sum(12) as f64 / steps,
            cache: self.training.cached().map(|_| CacheUse::new(sum(9), sum(10))),
            node_embeddings: self.setup.embeddings.as_ref().map(|rows| EmbeddingUse {
                dim: rows.dim(),
                rows_moved: sum(16),
                staleness_max: told.iter().map(|words| words[13]).max().unwrap_or(0),
                staleness_mean: sum(14) as f64 / sum(15).max(1) as f64,
                sha256: rows_sha256,
            }),
            peak_rss_bytes: told.iter().map(|words| words[2]).collect(),
            model_sha256,
            predictions_sha256,
            blocks_sha256: self.train.hash_blocks.then(|| hex(&self.progress.blocks)),
            device: self.train.device.to_string(),
            versions: [("gnnflow".to_owned(), env!("CARGO_PKG_VERSION").to_owned())].into(),
        };
        folder.summary(&summary)?;
        Ok(Some(summary))
    }
}

/// The most memory that this process has had, in bytes, as the system counts it.
fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}
