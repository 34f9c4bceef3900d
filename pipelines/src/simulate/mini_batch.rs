//! The tasks of mini-batch training; see [`crate::engine::mini_batch`].

use std::sync::Arc;

use super::builder::Builder;
use super::graph::TaskId;
use super::recording::WorkerRecord;
use crate::engine::APPLY;
use crate::engine::mini_batch::GRADIENT;
use crate::outputs::work_log::{Round, SentFor};

/// Adds all recorded rounds.
pub(super) fn build(builder: &mut Builder<'_>) {
    let rounds = builder.recording.workers[0].rounds.len();
    let mut before: Vec<TaskId> = Vec::new();
    for round in 0..rounds {
        let last = epoch(builder, round, &before);
        let end = builder.graph.join(last);
        builder.graph.epochs.push(end);
        before = vec![end];
    }
}

/// Adds an epoch that begins after `before`. Returns its last tasks.
fn epoch(builder: &mut Builder<'_>, round: usize, before: &[TaskId]) -> Vec<TaskId> {
    let Round { first_epoch, steps, .. } = builder.recording.workers[0].rounds[round].clone();
    let (steps, window) = (steps.first().copied().unwrap_or(0) as u32, builder.recording.workers[0].window);
    // By step, the tasks after which all processes have applied it; by process, those after which it has applied the last one.
    let mut done: Vec<Vec<TaskId>> = Vec::new();
    let mut applied: Vec<Vec<TaskId>> = builder.processes().map(|_| before.to_vec()).collect();
    for step in 0..steps {
        let oldest = (step as usize).checked_sub(window).map_or_else(|| before.to_vec(), |oldest| done[oldest].clone());
        let at = (first_epoch, step);
        let sampled = sample(builder, round, steps, &oldest);
        let mut ready = Vec::new();
        for process in builder.processes() {
            let fetched = fetch(builder, process, at, sampled[process]);
            let gate = [fetched, applied[process].clone()].concat();
            ready.push(gradients(builder, process, at, &gate));
        }
        let sums = |worker: &WorkerRecord, to: usize| worker.sent(at, SentFor::Sums, to);
        let sent: f64 = builder
            .processes()
            .flat_map(|from| builder.processes().map(move |to| (from, to)))
            .map(|(from, to)| builder.bytes(from, to, sums))
            .sum();
        let bytes = builder.summed_bytes(sent);
        let reducing = builder.recording.workers.iter().map(|worker| worker.rounds[round].reducing).sum::<f64>();
        let has = builder.all_reduce(bytes, reducing / f64::from(steps), &ready);
        let apply: Arc<str> = APPLY.into();
        for (process, has) in has.into_iter().enumerate() {
            let cpu = builder.workers(process).map(|worker| cpu(worker, at, APPLY)).sum::<f64>();
            let cpu = cpu / builder.ranks(process).len() as f64;
            applied[process] = vec![builder.job(process, (&apply, cpu), false, has)];
        }
        done.push(applied.iter().flatten().copied().collect());
    }
    done.pop().unwrap_or_else(|| before.to_vec())
}

/// Adds sampling of a step, which begins after `oldest`, and the other work of the worker threads. Returns the last task of each process.
fn sample(builder: &mut Builder<'_>, round: usize, steps: u32, oldest: &[TaskId]) -> Vec<TaskId> {
    let mut sampled = Vec::new();
    for process in builder.processes() {
        let each = |of: fn(&Round) -> f64| {
            builder.workers(process).map(|worker| of(&worker.rounds[round])).sum::<f64>() / f64::from(steps)
        };
        let (sampling, worker) = (each(|round| round.sampling_cpu), each(|round| round.worker_cpu - round.reducing));
        let sampling = builder.sampling(process, sampling, oldest.iter().copied());
        sampled.push(builder.worker(process, worker, [sampling]));
    }
    sampled
}

/// Adds the messages that bring sampled edges and rows to a process. Returns the tasks after which it has them.
fn fetch(builder: &mut Builder<'_>, process: usize, at: (u32, u32), sampled: TaskId) -> Vec<TaskId> {
    let sent =
        |worker: &WorkerRecord, to: usize| worker.sent(at, SentFor::Sampling, to) + worker.sent(at, SentFor::Rows, to);
    let mut fetched = vec![sampled];
    for other in builder.others(process) {
        let bytes = builder.bytes(other, process, sent);
        let trips = builder.recording.trips;
        fetched.push(builder.send([other, process], bytes, trips, [sampled]));
    }
    fetched
}

/// Adds the jobs of a process's batches.
fn gradients(builder: &mut Builder<'_>, process: usize, at: (u32, u32), gate: &[TaskId]) -> Vec<TaskId> {
    let name: Arc<str> = GRADIENT.into();
    let count = |worker: &WorkerRecord| {
        let jobs = worker.jobs(at.0, at.1).iter().filter(|job| job.name == GRADIENT);
        jobs.map(|job| job.count as usize).sum::<usize>().max(1)
    };
    let all = builder.workers(process).map(count).sum();
    let mut ready = gate.to_vec();
    for worker in builder.workers(process) {
        let count = count(worker);
        let cpu = cpu(worker, at, GRADIENT) / count as f64;
        for _ in 0..count {
            ready.push(builder.one_of(all, process, (&name, cpu), gate.iter().copied()));
        }
    }
    ready
}

/// Returns the CPU time of the jobs with this name at a time.
fn cpu(worker: &WorkerRecord, (epoch, step): (u32, u32), name: &str) -> f64 {
    worker.jobs(epoch, step).iter().filter(|job| job.name == name).map(|job| job.cpu_seconds).sum()
}
