//! The tasks of partition-parallel training; see [`crate::engine::partition_local`].

use std::sync::Arc;

use super::builder::Builder;
use super::graph::TaskId;
use super::recording::WorkerRecord;
use crate::outputs::work_log::Round;

/// Adds all recorded rounds: epochs of all partitions, and an average.
pub(super) fn build(builder: &mut Builder<'_>) {
    let workers = &builder.recording.workers;
    let rounds = workers[0].rounds.len();
    let sent: f64 = workers.iter().map(WorkerRecord::sums_per_round).sum();
    let bytes = builder.summed_bytes(sent);
    let mut before: Vec<TaskId> = Vec::new();
    for round in 0..rounds {
        let mut ready = Vec::new();
        for process in builder.processes() {
            let mut last = before.clone();
            for worker in builder.workers(process) {
                last = train(builder, process, worker, round, &last);
            }
            ready.push(last);
        }
        let reducing: f64 = builder.recording.workers.iter().map(|worker| worker.rounds[round].reducing).sum();
        let has = builder.all_reduce(bytes, reducing, &ready);
        let end = builder.graph.join(has.into_iter().flatten().collect::<Vec<_>>());
        builder.graph.epochs.push(end);
        before = vec![end];
    }
}

/// Adds the epochs of a recorded worker. Returns its last task.
fn train(
    builder: &mut Builder<'_>,
    process: usize,
    worker: &WorkerRecord,
    round: usize,
    before: &[TaskId],
) -> Vec<TaskId> {
    let name: Arc<str> = "step".into();
    let Round { first_epoch, worker_cpu, sampling_cpu, reducing, .. } = worker.rounds[round];
    // All batches of a round have one time: the number of its first epoch.
    let jobs = worker.jobs(0, first_epoch).iter().filter(|job| *job.name == *name);
    let (count, cpu) = jobs.fold((0, 0.0), |(count, cpu), job| (count + job.count, cpu + job.cpu_seconds));
    let each = |seconds: f64| seconds / count as f64;
    let mut done: Vec<TaskId> = Vec::new();
    for step in 0..count as usize {
        let oldest = step.checked_sub(worker.window).map_or_else(|| before.to_vec(), |oldest| vec![done[oldest]]);
        let sampling = builder.sampling(process, each(sampling_cpu), oldest);
        let sampled = builder.worker(process, each(worker_cpu - reducing), [sampling]);
        done.push(builder.job(process, (&name, each(cpu)), false, [sampled]));
    }
    done.last().map_or_else(|| before.to_vec(), |&last| vec![last])
}
