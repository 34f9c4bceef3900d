//! The tasks of full-graph and tensor-parallel training; see [`crate::engine::stages`].

use std::sync::Arc;

use super::builder::Builder;
use super::graph::TaskId;
use super::recording::WorkerRecord;
use crate::engine::APPLY;
use crate::engine::stages::program::{GATHER, SCATTER};
use crate::engine::stages::synchrony::Synchrony;
use crate::outputs::work_log::{JobWork, SentFor};

/// Jobs that copy rows into messages, and out of them.
pub(super) const CUT: &str = "paced scatter: cut";
const PUT: &str = "paced scatter: put";
/// Maximum number of parts into which the intervals of a stage are grouped.
const PARTS: usize = 8;

/// Adds all recorded epochs.
pub(super) fn build(builder: &mut Builder<'_>, synchrony: Synchrony) {
    let first = &builder.recording.workers[0];
    let epochs: Vec<(usize, u32)> = first
        .rounds
        .iter()
        .enumerate()
        .flat_map(|(round, work)| (0..work.seconds.len() as u32).map(move |epoch| (round, work.first_epoch + epoch)))
        .collect();
    // By epoch, its end; the first one begins at once.
    let mut ends: Vec<Vec<TaskId>> = vec![Vec::new()];
    for (round, epoch) in epochs {
        // Epochs overlap only within a round.
        let starts_round = builder.recording.workers[0].rounds[round].first_epoch == epoch;
        let behind = if starts_round { 0 } else { synchrony.staleness() as usize };
        let before = ends[(ends.len() - 1).saturating_sub(behind)].clone();
        let last = self::epoch(builder, (round, epoch), synchrony, &before);
        let end = builder.graph.join(last);
        builder.graph.epochs.push(end);
        ends.push(vec![end]);
    }
}

/// Adds an epoch that begins after `before`. Returns its last tasks.
fn epoch(
    builder: &mut Builder<'_>,
    (round, epoch): (usize, u32),
    synchrony: Synchrony,
    before: &[TaskId],
) -> Vec<TaskId> {
    let stages = (0..).take_while(|&stage| is_stage(builder, epoch, stage)).count() as u32;
    let mut gates: Vec<Vec<TaskId>> = builder.processes().map(|_| before.to_vec()).collect();
    let mut all = Vec::new();
    let mut computed = Vec::new();
    for stage in 0..stages {
        let (jobs, stored) = self::stage(builder, (epoch, stage), synchrony, &gates);
        all.extend(stored.iter().copied());
        computed = jobs;
        gates = if synchrony.is_stale() {
            computed.clone()
        } else {
            let end = builder.graph.join(computed.iter().flatten().copied().chain(stored).collect::<Vec<_>>());
            frontier(builder, end)
        };
    }
    let rounds = &builder.recording.workers;
    let share = 1.0 / rounds[0].rounds[round].seconds.len() as f64;
    let reducing: f64 = rounds.iter().map(|worker| worker.rounds[round].reducing * share).sum();
    let last = (epoch, stages.saturating_sub(1));
    let sums = |worker: &WorkerRecord| {
        (0..builder.recording.processes()).map(|to| worker.sent(last, SentFor::Sums, to)).sum::<f64>()
    };
    let bytes = builder.summed_bytes(rounds.iter().map(sums).sum());
    let has = builder.all_reduce(bytes, reducing, &computed);
    let apply: Arc<str> = APPLY.into();
    for (process, has) in has.into_iter().enumerate() {
        let cpu = builder
            .workers(process)
            .map(|worker| cpu(worker.jobs(epoch, last.1), |job| *job.name == *APPLY))
            .sum::<f64>();
        let cpu = cpu / builder.ranks(process).len() as f64;
        // The dataflow's own work is small, and most of it overlaps. It grows with the processes, and not with the partitions of each.
        let dataflow: f64 = builder.workers(process).map(|worker| worker.rounds[round].worker_cpu * share).sum();
        let dataflow = dataflow / builder.ranks(process).len() as f64;
        let applied = builder.job(process, (&apply, cpu), false, has);
        all.extend([applied, builder.worker(process, dataflow, before.iter().copied())]);
    }
    all.extend(computed.into_iter().flatten());
    all
}

/// Tells whether an epoch has a stage with this number.
fn is_stage(builder: &Builder<'_>, epoch: u32, stage: u32) -> bool {
    builder.recording.workers.iter().any(|worker| worker.jobs(epoch, stage).iter().any(is_own))
}

/// Tells whether a job computes the stage itself.
fn is_own(job: &JobWork) -> bool {
    ![CUT, PUT, APPLY].contains(&&*job.name)
}

/// Adds a stage. Each process begins it after its `gates`. Returns the jobs of each process, and the tasks after which all rows are stored.
fn stage(
    builder: &mut Builder<'_>,
    at: (u32, u32),
    synchrony: Synchrony,
    gates: &[Vec<TaskId>],
) -> (Vec<Vec<TaskId>>, Vec<TaskId>) {
    let (mut computed, mut stored, mut held) = (gates.to_vec(), Vec::new(), Vec::new());
    for process in builder.processes() {
        let works = builder.workers(process).filter_map(|worker| StageWork::of(worker.jobs(at.0, at.1)));
        // Asynchronous training runs one job at a time.
        let at_once = if synchrony.is_stale() { 1 } else { works.map(|work| work.items).sum() };
        for worker in builder.workers(process) {
            let Some(work) = StageWork::of(worker.jobs(at.0, at.1)) else { continue };
            // Enough parts for all threads.
            let parts = work.items.clamp(1, PARTS.max(builder.threads));
            let cpu = |name: &str| cpu(worker.jobs(at.0, at.1), |job| job.name == name) / parts as f64;
            for _ in 0..parts {
                let gates = gates[process].iter().copied();
                let ended = match &work.around {
                    None => builder.job(process, (&work.name, cpu(&work.name)), false, gates),
                    Some([gather, scatter]) => {
                        let gathered = builder.job(process, (gather, cpu(gather)), false, gates);
                        let task = builder.one_of(at_once, process, (&work.name, cpu(&work.name)), [gathered]);
                        builder.job(process, (scatter, cpu(scatter)), true, [task])
                    }
                };
                computed[process].push(ended);
                held.push((process, worker, ended, parts));
            }
        }
    }
    let barrier = (synchrony == Synchrony::Barrier)
        .then(|| builder.graph.join(computed.iter().flatten().copied().collect::<Vec<_>>()));
    for (process, worker, job, parts) in held {
        stored.extend(scatter(builder, process, worker, at, barrier.unwrap_or(job), parts));
    }
    (computed, stored)
}

/// The own jobs of a process in a stage.
struct StageWork {
    /// The name of the node tasks, or of the jobs of a chunk.
    name: Arc<str>,
    /// The names of the jobs that gather the rows of an interval, and that store and send them. A chunk has none.
    around: Option<[Arc<str>; 2]>,
    /// Number of intervals, or of jobs of a chunk.
    items: usize,
}

impl StageWork {
    fn of(jobs: &[JobWork]) -> Option<Self> {
        let own = jobs.iter().filter(|job| is_own(job));
        let count =
            |is: &dyn Fn(&JobWork) -> bool| own.clone().filter(|job| is(job)).map(|job| job.count as usize).sum();
        let gather = own.clone().find_map(|job| job.name.strip_suffix(GATHER));
        match (gather, own.clone().next()) {
            (Some(name), _) => {
                let items = count(&|job| job.name.ends_with(GATHER));
                let around = [GATHER, SCATTER].map(|end| format!("{name}{end}").into());
                Some(Self { name: name.into(), around: Some(around), items })
            }
            (None, Some(job)) => Some(Self { name: (&*job.name).into(), around: None, items: count(&|_| true) }),
            (None, None) => None,
        }
    }
}

/// Adds the messages of one of `parts` parts of a worker's stage, after `job`. Returns the tasks after which their rows are stored.
fn scatter(
    builder: &mut Builder<'_>,
    process: usize,
    worker: &WorkerRecord,
    at: (u32, u32),
    job: TaskId,
    parts: usize,
) -> Vec<TaskId> {
    let (cut, put): (Arc<str>, Arc<str>) = (CUT.into(), PUT.into());
    let bytes = |rank: usize| worker.sent(at, SentFor::Rows, rank) / parts as f64;
    let all: f64 = (0..builder.recording.processes()).map(bytes).sum();
    // Storing the rows of a message takes about as long as copying them into it.
    let copying = cpu(worker.jobs(at.0, at.1), |job| *job.name == *CUT) / parts as f64;
    if all == 0.0 {
        // Partitions of one process send each other rows, too.
        return match copying > 0.0 {
            true => vec![builder.job(process, (&cut, 2.0 * copying), true, [job])],
            false => Vec::new(),
        };
    }
    let mut stored = Vec::new();
    for to in builder.processes() {
        let sent: f64 = builder.ranks(to).map(bytes).sum();
        if sent == 0.0 {
            continue;
        }
        let cut = builder.job(process, (&cut, copying * sent / all), true, [job]);
        let message = builder.send([process, to], sent, 1.0, [cut]);
        stored.push(builder.job(to, (&put, copying * sent / all), true, [message]));
    }
    stored
}

/// Adds the news to all processes that a stage has ended. Returns the gates of the next one.
fn frontier(builder: &mut Builder<'_>, end: TaskId) -> Vec<Vec<TaskId>> {
    let last = builder.processes().end;
    let mut news = |process| builder.send([(process + 1) % last, process], 0.0, 1.0, [end]);
    (0..last).map(|process| vec![news(process)]).collect()
}

/// Returns the CPU time of the jobs that `is` selects.
fn cpu(jobs: &[JobWork], is: impl Fn(&JobWork) -> bool) -> f64 {
    jobs.iter().filter(|job| is(job)).map(|job| job.cpu_seconds).sum()
}
