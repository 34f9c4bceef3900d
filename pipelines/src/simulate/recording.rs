//! The recorded work of a run.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::path::Path;

use gnnflow_data::format::plural;

use crate::config::{Config, Mode, Registered};
use crate::engine::inference::LAYER;
use crate::engine::mini_batch::GRADIENT;
use crate::engine::stages::program::GATHER;
use crate::engine::stages::synchrony::Synchrony;
use crate::error::Error;
use crate::outputs::run_folder::RunFolder;
use crate::outputs::summary::Summary;
use crate::outputs::work_log::{JobWork, Round, SentFor, WorkLog};

/// The part of a job that all compute threads share, if the run does not tell.
const PARALLEL: f64 = 0.7;
/// Maximum number of epochs that are simulated.
const EPOCHS: usize = 5;

/// The dataflow whose tasks depend on each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dataflow {
    MiniBatch,
    PartitionParallel,
    Stages(Synchrony),
}

/// The work of a run that was traced.
pub struct Recording {
    pub(super) dataflow: Dataflow,
    /// One-way messages that follow one another before a batch is computed.
    pub(super) trips: f64,
    /// Number of partitions.
    pub(super) parts: usize,
    /// By rank.
    pub(super) workers: Vec<WorkerRecord>,
    /// The run's compute threads of each process.
    pub threads: usize,
    /// Its jobs at the same time in each process.
    at_once: usize,
    /// Its sampling threads of each process.
    pub(super) sampling_threads: usize,
    /// The cores of its machine.
    pub cores: usize,
    /// Whether processes read each other's features without messages.
    pub(super) shares_features: bool,
    /// Identifies the pipeline, without the number of epochs; see [`Config::model_fingerprint`].
    fingerprint: String,
    /// The part of each job that all compute threads share, if the run tells.
    parallel: Option<HashMap<String, f64>>,
}

/// Seconds of the jobs of one name.
#[derive(Clone, Copy, Default)]
struct JobSeconds {
    /// CPU time of all threads that took part.
    cpu: f64,
    /// Wall-clock time.
    wall: f64,
}

/// The recorded work of one process.
pub(super) struct WorkerRecord {
    /// The rounds that are simulated.
    pub(super) rounds: Vec<Round>,
    /// Maximum number of steps in flight.
    pub(super) window: usize,
    jobs: BTreeMap<(u32, u32), Vec<JobWork>>,
    sent: HashMap<(u32, u32, SentFor, usize), f64>,
    /// Bytes for sums, and the rounds of the whole run.
    sums: f64,
    all_rounds: usize,
}

impl WorkerRecord {
    fn new(log: WorkLog) -> Self {
        let WorkLog { window, rounds, jobs, sent, .. } = log;
        let mut by_time: BTreeMap<(u32, u32), Vec<JobWork>> = BTreeMap::new();
        // Inference is not simulated. Its times count from 0, too, so its jobs have the times of epochs.
        let trained = jobs.into_iter().filter(|job| job.name != LAYER);
        trained.for_each(|job| by_time.entry((job.epoch, job.step)).or_default().push(job));
        let sums = sent.iter().filter(|sent| sent.purpose == SentFor::Sums).map(|sent| sent.sent.bytes as f64).sum();
        let bytes = sent.iter().map(|sent| ((sent.epoch, sent.step, sent.purpose, sent.to), sent.sent.bytes as f64));
        let sent = bytes.collect();
        // The first round warms up.
        let all_rounds = rounds.len();
        let first = all_rounds.saturating_sub(EPOCHS).max(usize::from(all_rounds > 1));
        Self { rounds: rounds[first..].to_vec(), window, jobs: by_time, sent, sums, all_rounds }
    }

    /// Returns the jobs at a time.
    pub(super) fn jobs(&self, epoch: u32, step: u32) -> &[JobWork] {
        self.jobs.get(&(epoch, step)).map_or(&[], Vec::as_slice)
    }

    /// Returns the bytes sent to a process at a time.
    pub(super) fn sent(&self, (epoch, step): (u32, u32), purpose: SentFor, to: usize) -> f64 {
        self.sent.get(&(epoch, step, purpose, to)).copied().unwrap_or(0.0)
    }

    /// Returns the bytes sent for sums in a round.
    pub(super) fn sums_per_round(&self) -> f64 {
        self.sums / self.all_rounds.max(1) as f64
    }
}

impl Recording {
    /// Reads the work of the finished run in `run_dir`. `registered` are the names that its pipeline may use.
    ///
    /// # Errors
    /// [`Error::Input`] if the run was not traced or has not finished; [`Error::Usage`] for a run that cannot be simulated.
    pub fn open(run_dir: &Path, registered: &Registered) -> Result<Self, Error> {
        let pipeline = RunFolder::pipeline(run_dir);
        if !pipeline.exists() {
            return Err(Error::Input(format!(
                "{}: this is not a run folder: it has no pipeline.toml",
                run_dir.display()
            )));
        }
        let summary = Summary::read(run_dir)?;
        let refused = |what: &str| Err(Error::Usage(format!("{}: {what} cannot be simulated yet", run_dir.display())));
        let config = Config::load(&pipeline, &[], registered)?;
        let (Some(model), Some(train)) = (&config.model, &config.train) else {
            return Err(Error::Input(format!("{}: the run has not trained a model", run_dir.display())));
        };
        let dataflow = match &train.schedule {
            _ if model.embedding.is_some() => return refused("a run with learned rows"),
            _ if train.task.learns_edges() => return refused("a run that trains on edges"),
            _ if train.tensor_workers.is_some() => return refused("a run with tensor workers"),
            _ if train.device.is_gpu() => return refused("a run on a GPU"),
            schedule => match schedule.full_graph_options() {
                Some(options) if options.mode == Mode::Async && model.attends() => {
                    return refused("asynchronous training of a model with attention");
                }
                Some(options) => Dataflow::Stages(Synchrony::of(&options, &[])),
                // Their batches have times of their own.
                None if schedule.is_partition_parallel() && !train.operators.is_empty() => {
                    return refused("`partition-parallel` training with registered operators");
                }
                None if schedule.is_partition_parallel() => Dataflow::PartitionParallel,
                None => Dataflow::MiniBatch,
            },
        };
        let mut logs = WorkLog::read_all(run_dir, summary.processes)?;
        let complete = logs.iter().map(|log| log.rounds.len()).min().unwrap_or(0);
        logs.iter_mut().for_each(|log| log.rounds.truncate(complete));
        let cores = logs.iter().map(|log| log.cores).min().unwrap_or(1);
        let shares_features = logs.iter().any(|log| log.shares_features);
        let threads = summary.compute_threads;
        let at_once = logs.iter().map(|log| log.at_once).max().unwrap_or(1).max(1);
        let workers: Vec<WorkerRecord> = logs.into_iter().map(WorkerRecord::new).collect();
        if workers.iter().any(|worker| worker.rounds.is_empty()) {
            return Err(Error::Input(format!("{}: the run has trained no epoch", run_dir.display())));
        }
        let mut recording = Self {
            dataflow,
            trips: summary.rounds_per_step,
            parts: summary.partitions,
            workers,
            threads,
            at_once,
            sampling_threads: summary.sampling_threads.max(1),
            cores,
            shares_features,
            fingerprint: config.model_fingerprint(),
            parallel: None,
        };
        if threads > 1 && summary.processes * threads <= cores {
            let parts = recording.job_seconds().into_iter().filter_map(|(name, job)| {
                Some((name.to_owned(), shared_part(job.cpu, job.wall, recording.threads_of(name))?))
            });
            recording.parallel = Some(parts.collect());
        }
        Ok(recording)
    }

    /// Returns a recording of one partition for each process, of one thread.
    #[cfg(test)]
    pub(super) fn from_logs(dataflow: Dataflow, logs: Vec<WorkLog>) -> Self {
        let (cores, parts) = (logs[0].cores, logs.len());
        let workers = logs.into_iter().map(WorkerRecord::new).collect();
        Self {
            dataflow,
            trips: 2.0,
            parts,
            workers,
            threads: 1,
            at_once: 1,
            sampling_threads: 1,
            cores,
            shares_features: false,
            fingerprint: String::new(),
            parallel: None,
        }
    }

    /// Takes from `other`, a run of the same pipeline, how well jobs use several threads.
    ///
    /// If this run has one thread, its jobs are compared with those of `other`. The CPU time of several threads would be too long: it contains
    /// their waiting for memory, and for each other.
    ///
    /// # Errors
    /// [`Error::Usage`] if `other` does not tell, or is of another pipeline.
    pub fn scale_as(&mut self, other: Self) -> Result<(), Error> {
        if self.fingerprint != other.fingerprint {
            let message = "--scaling: the two runs have different pipelines; record both with the same file and the same settings";
            return Err(Error::Usage(message.into()));
        }
        let Some(mut parallel) = other.parallel.clone() else {
            let needed = "at least 2 threads, and a core for each thread of all processes";
            return Err(Error::Usage(format!(
                "--scaling: a run of {other} does not tell how well jobs use several threads; record a run with {needed}"
            )));
        };
        if self.threads == 1 {
            let alone = self.job_seconds();
            for (name, JobSeconds { wall, .. }) in other.job_seconds() {
                let part = |job: &JobSeconds| shared_part(job.cpu, wall, other.threads_of(name));
                if let Some(part) = alone.get(name).and_then(part) {
                    parallel.insert(name.to_owned(), part);
                }
            }
        }
        self.parallel = Some(parallel);
        Ok(())
    }

    /// Returns the mean seconds per simulated epoch of the jobs of all processes, by name.
    fn job_seconds(&self) -> HashMap<&str, JobSeconds> {
        let epochs = self.epochs();
        let count = epochs.clone().count() as f64;
        let mut totals: HashMap<&str, JobSeconds> = HashMap::new();
        // The times of jobs count epochs from 0. In `partition-parallel` training, an epoch is a step of epoch 0.
        let local = self.dataflow == Dataflow::PartitionParallel;
        let epoch = |job: &JobWork| if local { job.step } else { job.epoch } + 1;
        let jobs = self.workers.iter().flat_map(|worker| worker.jobs.values().flatten());
        for job in jobs.filter(|job| epochs.contains(&epoch(job))) {
            let total = totals.entry(&job.name).or_default();
            total.cpu += job.cpu_seconds / count;
            total.wall += job.seconds / count;
        }
        totals
    }

    /// Returns the compute threads of the jobs with this name.
    fn threads_of(&self, name: &str) -> usize {
        let gathered = || self.workers.iter().flat_map(|worker| worker.jobs.values().flatten());
        let is_task = || gathered().any(|job| job.name.strip_suffix(GATHER) == Some(name));
        match self.dataflow {
            _ if self.at_once <= 1 => self.threads,
            Dataflow::MiniBatch if name == GRADIENT => self.threads / self.at_once,
            Dataflow::Stages(_) if is_task() => self.threads / self.at_once,
            _ => self.threads,
        }
    }

    /// Returns the names of the jobs of which neither this run nor another one tells how well they use several threads, in alphabetical order.
    /// A job that had one thread does not tell, even if several jobs ran at the same time. Jobs of less than a tenth of the CPU time are left out.
    pub fn unknown_scaling(&self) -> Vec<&str> {
        let jobs = self.job_seconds();
        let all: f64 = jobs.values().map(|job| job.cpu).sum();
        let known = |name: &str| self.parallel.as_ref().is_some_and(|parts| parts.contains_key(name));
        let mut names: Vec<&str> = jobs
            .into_iter()
            .filter(|(name, job)| job.cpu >= all / 10.0 && !known(name))
            .map(|(name, _)| name)
            .collect();
        names.sort_unstable();
        names
    }

    /// Returns the number of processes of the run.
    pub fn processes(&self) -> usize {
        self.workers.len()
    }

    /// Returns the epochs that are simulated, counted from 1.
    pub fn epochs(&self) -> RangeInclusive<u32> {
        let rounds = &self.workers[0].rounds;
        let last = rounds.last().map_or(0, |round| round.first_epoch + round.seconds.len() as u32);
        rounds[0].first_epoch + 1..=last
    }

    /// Returns the measured seconds of these epochs.
    pub fn seconds(&self) -> Vec<f64> {
        self.workers[0].rounds.iter().flat_map(|round| &round.seconds).copied().collect()
    }

    /// Returns the part of the jobs with this name that all compute threads share.
    pub(super) fn parallel_part(&self, name: &str) -> f64 {
        self.parallel.as_ref().and_then(|parts| parts.get(name)).copied().unwrap_or(PARALLEL)
    }
}

/// Returns the part of a job that `threads` threads shared, by Amdahl's law: it takes `alone` seconds on one thread and `wall` on all. One thread
/// does not tell.
fn shared_part(alone: f64, wall: f64, threads: usize) -> Option<f64> {
    if threads <= 1 {
        return None;
    }
    let threads = threads as f64;
    Some(if alone > 0.0 { ((alone - wall) / alone * threads / (threads - 1.0)).clamp(0.0, 1.0) } else { 0.0 })
}

/// Describes a run in a few words.
impl std::fmt::Display for Recording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (processes, threads) = (plural(self.processes(), "process"), plural(self.threads, "thread"));
        write!(f, "{processes} of {threads} on a machine with {}", plural(self.cores, "core"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of two epochs on `threads` threads, in which a job takes `cpu` and `wall` seconds. The first epoch warms up.
    fn run(threads: usize, cpu: f64, wall: f64) -> Recording {
        let round = |first_epoch| Round { first_epoch, seconds: vec![1.0], ..Round::default() };
        let job = |(epoch, slowed)| {
            let (cpu_seconds, seconds) = (cpu * slowed, wall * slowed);
            JobWork { epoch, step: 0, name: "gradient".into(), count: 1, seconds, cpu_seconds }
        };
        let jobs = [(0, 7.0), (1, 1.0)].map(job).into();
        let log = WorkLog { cores: 8, rounds: vec![round(0), round(1)], jobs, ..WorkLog::default() };
        let mut recording = Recording::from_logs(Dataflow::MiniBatch, vec![log]);
        recording.threads = threads;
        recording.parallel = (threads > 1).then(HashMap::new);
        recording
    }

    #[test]
    fn jobs_of_several_threads_are_compared_with_those_of_one() {
        // Four threads spend 12 seconds on a job of 8, in 4 seconds: two thirds of the job are shared.
        let mut alone = run(1, 8.0, 8.0);
        assert_eq!(alone.unknown_scaling(), ["gradient"]);
        alone.scale_as(run(4, 12.0, 4.0)).unwrap();
        assert!(alone.unknown_scaling().is_empty());
        assert!((alone.parallel_part("gradient") - 2.0 / 3.0).abs() < 1e-12, "{}", alone.parallel_part("gradient"));
        assert!((alone.parallel_part("apply") - PARALLEL).abs() < 1e-12, "the other run has no such job");
        // Threads that make a job slower share none of it.
        alone.scale_as(run(4, 40.0, 10.0)).unwrap();
        assert!(alone.parallel_part("gradient").abs() < 1e-12);
        assert!(alone.scale_as(run(1, 8.0, 8.0)).is_err());
    }
}
