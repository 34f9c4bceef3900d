//! `gnnflow simulate`: predicts the time of an epoch on another cluster from the recorded work of a run.
//!
//! A traced run records the CPU time of its jobs and the bytes of its messages by epoch and step
//! (`trace/worker-N-work.json`). The dataflow of its schedule tells which of them wait for which. These tasks are then run on a described
//! cluster, one after another on each thread, in simulated time.
//!
//! | file | content |
//! |---|---|
//! | [`cluster`] | hosts, cores, the network |
//! | `recording` | the work of a run |
//! | `graph`, `timeline` | tasks and what they wait for; when each of them runs |
//! | `builder`, `mini_batch`, `partition_local`, `stages` | the tasks of each schedule |
//! | [`critical_path`] | what determines the time |

mod builder;
pub mod cluster;
pub mod critical_path;
mod graph;
mod mini_batch;
mod partition_local;
mod recording;
mod stages;
mod timeline;

use self::builder::Builder;
use self::cluster::Cluster;
use self::critical_path::{PathPart, critical_path};
use self::recording::Dataflow;
pub use self::recording::Recording;
use crate::error::Error;
use gnnflow_data::format::plural;

/// The simulated epochs.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Prediction {
    /// Mean seconds of an epoch.
    pub epoch_seconds: f64,
    /// Parts of the critical path of an epoch (their mean), the longest first.
    pub critical_path: Vec<PathPart>,
}

/// Simulates the recorded epochs on `cluster`.
///
/// # Errors
/// [`Error::Usage`] if the cluster has more processes than the run, or more hosts than processes.
pub fn simulate(recording: &Recording, cluster: &Cluster) -> Result<Prediction, Error> {
    let (recorded, processes, hosts) = (recording.processes(), cluster.processes, cluster.hosts.len());
    if !(1..=recorded).contains(&processes) {
        return Err(Error::Usage(format!(
            "{processes} processes cannot be simulated, because the run has {recorded}; record a run with `--processes {processes}` \
             (a machine with fewer cores will do)"
        )));
    }
    if !(1..=processes).contains(&hosts) {
        let (hosts, processes) = (plural(hosts, "host"), plural(processes, "process"));
        return Err(Error::Usage(format!("{hosts} for {processes}; each host needs one")));
    }
    if hosts > 1 && recording.shares_features && recording.dataflow == Dataflow::MiniBatch {
        return Err(Error::Usage(format!(
            "{hosts} hosts cannot be simulated: the processes of the run shared features, and sent no messages for them; record a run \
             with `--set partition.features=partitioned`"
        )));
    }
    let mut builder = Builder::new(recording, cluster);
    match recording.dataflow {
        Dataflow::MiniBatch => mini_batch::build(&mut builder),
        Dataflow::PartitionParallel => partition_local::build(&mut builder),
        Dataflow::Stages(synchrony) => stages::build(&mut builder, synchrony),
    }
    let graph = builder.graph;
    let ran = timeline::run(&graph, cluster);
    let epochs = recording.seconds().len() as f64;
    let end = graph.epochs.last().map_or(0.0, |&last| ran[last].end as f64 / 1e9);
    let mut critical_path = critical_path(&graph, &ran, cluster);
    critical_path.iter_mut().for_each(|part| part.seconds /= epochs);
    Ok(Prediction { epoch_seconds: end / epochs, critical_path })
}

#[cfg(test)]
mod tests {
    use super::cluster::Host;
    use super::*;
    use crate::engine::APPLY;
    use crate::engine::stages::synchrony::{BackwardRows, Synchrony};
    use crate::outputs::trace_table::SentTo;
    use crate::outputs::work_log::{JobWork, Round, SentFor, SentWork, WorkLog};

    const STEPS: u32 = 4;
    const EPOCHS: u32 = 2;

    /// The CPU seconds of the job of a worker at a step.
    fn job(rank: usize, epoch: u32, step: u32) -> f64 {
        f64::from((7 * (rank as u32 + 1) * (step + 1) + 3 * epoch) % 5 + 1)
    }

    /// The work of two workers whose dataflow takes no time. `name` names the jobs; each step sends `bytes` for `purpose`.
    fn record(dataflow: Dataflow, name: &str, sent: Option<(SentFor, u64)>) -> Recording {
        Recording::from_logs(dataflow, logs(dataflow, name, sent).into())
    }

    fn logs(dataflow: Dataflow, name: &str, sent: Option<(SentFor, u64)>) -> [WorkLog; 2] {
        let steps = || (1..=EPOCHS).flat_map(|epoch| (0..STEPS).map(move |step| (epoch, step)));
        let log = |rank: usize| {
            let job = |(epoch, step)| JobWork {
                epoch,
                step,
                name: name.into(),
                count: 1,
                cpu_seconds: job(rank, epoch, step),
                ..JobWork::default()
            };
            let apply =
                |(epoch, step)| JobWork { epoch, step, name: APPLY.into(), cpu_seconds: 0.5, ..JobWork::default() };
            let sent = steps().filter_map(|(epoch, step)| {
                let (purpose, bytes) = sent?;
                Some(SentWork { epoch, step, purpose, to: 1 - rank, sent: SentTo { messages: 1, bytes } })
            });
            let round =
                |first_epoch| Round { first_epoch, seconds: vec![1.0], steps: vec![STEPS.into()], ..Round::default() };
            let applied = steps().filter(|&(_, step)| dataflow == Dataflow::MiniBatch || step + 1 == STEPS);
            WorkLog {
                cores: 2,
                window: 2,
                at_once: 1,
                shares_features: false,
                rounds: (0..=EPOCHS).map(round).collect(),
                jobs: steps().map(job).chain(applied.map(apply)).collect(),
                sent: sent.collect(),
            }
        };
        [log(0), log(1)]
    }

    fn cluster(processes: usize) -> Cluster {
        let hosts = vec![Host { cores: 8, speed: 1.0 }; processes];
        Cluster { hosts, processes, threads: 1, bandwidth: 1000.0, latency: 0.0 }
    }

    /// Sums `of` over all steps, and divides by the epochs.
    fn per_epoch(of: impl Fn(u32, u32) -> f64) -> f64 {
        let steps = (1..=EPOCHS).flat_map(|epoch| (0..STEPS).map(move |step| (epoch, step)));
        steps.map(|(epoch, step)| of(epoch, step)).sum::<f64>() / f64::from(EPOCHS)
    }

    fn seconds(recording: &Recording, cluster: &Cluster) -> f64 {
        simulate(recording, cluster).unwrap().epoch_seconds
    }

    #[track_caller]
    fn assert_near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-6, "{found}, expected {expected}");
    }

    #[test]
    fn step_of_batches_ends_with_the_slowest_process() {
        let recording = record(Dataflow::MiniBatch, "gradient", None);
        let slowest = |epoch, step| job(0, epoch, step).max(job(1, epoch, step)) + 0.5;
        assert_near(seconds(&recording, &cluster(2)), per_epoch(slowest));
        // Jobs of inference have the times of epochs, and are not simulated.
        let mut logs = logs(Dataflow::MiniBatch, "gradient", None);
        for log in &mut logs {
            let chunk = |job: &JobWork| JobWork { name: "layer".into(), cpu_seconds: 7.0, ..job.clone() };
            let chunks: Vec<JobWork> = log.jobs.iter().map(chunk).collect();
            log.jobs.extend(chunks);
        }
        let with_inference = Recording::from_logs(Dataflow::MiniBatch, logs.into());
        assert_near(seconds(&with_inference, &cluster(2)), per_epoch(slowest));
        assert_eq!(with_inference.unknown_scaling(), ["apply", "gradient"]);
        // One process with both partitions applies the sum once.
        let sum = |epoch, step| job(0, epoch, step) + job(1, epoch, step) + 0.5;
        assert_near(seconds(&recording, &cluster(1)), per_epoch(sum));
    }

    #[test]
    fn jobs_of_several_partitions_run_at_the_same_time() {
        let recording = record(Dataflow::MiniBatch, "gradient", None);
        // One process has both partitions, and two threads.
        let slowest = |epoch, step| job(0, epoch, step).max(job(1, epoch, step)) + 0.5 * (0.3 + 0.7 / 2.0);
        assert_near(seconds(&recording, &Cluster { threads: 2, ..cluster(1) }), per_epoch(slowest));
        // Of four threads, each job has two. They share 70 % of it.
        let half =
            |epoch, step| job(0, epoch, step).max(job(1, epoch, step)) * (0.3 + 0.7 / 2.0) + 0.5 * (0.3 + 0.7 / 4.0);
        assert_near(seconds(&recording, &Cluster { threads: 4, ..cluster(1) }), per_epoch(half));
    }

    #[test]
    fn node_tasks_of_intervals_run_beside_the_compute_thread() {
        let dataflow = Dataflow::Stages(Synchrony::Pipelined);
        let [mut log, _] = logs(dataflow, "forward 1", None);
        let tasks: Vec<JobWork> = log.jobs.iter().filter(|job| job.name == "forward 1").cloned().collect();
        log.jobs.retain(|job| job.name != "forward 1");
        for task in &tasks {
            // Two intervals: gathering takes a second each, the node tasks three, and scattering half a second.
            let part = |name: &str, cpu_seconds| JobWork {
                name: format!("forward 1{name}"),
                count: 2,
                cpu_seconds,
                ..task.clone()
            };
            log.jobs.extend([part(": gather", 2.0), part("", 6.0), part(": scatter", 1.0)]);
        }
        let mut recording = Recording::from_logs(dataflow, vec![log]);
        let stage = |seconds: f64| seconds * f64::from(STEPS) + 0.5;
        let one = cluster(1);
        assert_near(seconds(&recording, &one), stage(9.0));
        // On two threads, gathering and scattering take 65 % of their time. The second interval is gathered while the first one is computed.
        let expected = f64::from(STEPS) * (2.0 * 0.65 + 3.0 + 0.5 * 0.65) + 0.5 * 0.65;
        let two = Cluster { threads: 2, ..one };
        assert_near(seconds(&recording, &two), expected);
        // Asynchronous training runs one job at a time, of which two threads share 70 %.
        let stale = Synchrony::Stale { epochs: 0, backward: BackwardRows::Stale };
        recording.dataflow = Dataflow::Stages(stale);
        assert_near(seconds(&recording, &two), (9.0 * f64::from(STEPS) + 0.5) * 0.65);
    }

    #[test]
    fn sums_of_gradients_are_sent_twice() {
        // 2 partitions: a vector of 1,000 bytes, whose only piece is summed by the first process.
        let recording = record(Dataflow::MiniBatch, "gradient", Some((SentFor::Sums, 1000)));
        // The first process begins the next step a second before the second one does.
        let mut begin = [0.0, 0.0];
        let mut total = 0.0;
        for epoch in 1..=EPOCHS {
            for at in 0..STEPS {
                let sum = (begin[0] + job(0, epoch, at)).max(begin[1] + job(1, epoch, at) + 1.0);
                begin = [sum + 0.5, sum + 1.5];
            }
            total = begin[1];
            begin = [total, total];
        }
        assert_near(seconds(&recording, &cluster(2)), total / f64::from(EPOCHS));
    }

    #[test]
    fn rows_of_the_next_step_arrive_while_a_step_is_computed() {
        let recording = record(Dataflow::MiniBatch, "gradient", Some((SentFor::Rows, 500)));
        let slowest = |epoch, step| job(0, epoch, step).max(job(1, epoch, step)) + 0.5;
        // Only the first batch of an epoch is waited for: half a second.
        assert_near(seconds(&recording, &cluster(2)), per_epoch(slowest) + 0.5);
    }

    #[test]
    fn stages_end_together_and_asynchronous_ones_do_not() {
        let recording = |synchrony| record(Dataflow::Stages(synchrony), "forward 1", None);
        let slowest = |epoch, step| job(0, epoch, step).max(job(1, epoch, step));
        assert_near(seconds(&recording(Synchrony::Pipelined), &cluster(2)), per_epoch(slowest) + 0.5);
        let of = |rank| move |epoch, step| job(rank, epoch, step);
        let alone = (1..=EPOCHS).map(|epoch| {
            let work = |rank| (0..STEPS).map(|step| of(rank)(epoch, step)).sum::<f64>();
            work(0).max(work(1))
        });
        let stale = Synchrony::Stale { epochs: 0, backward: BackwardRows::Stale };
        assert_near(seconds(&recording(stale), &cluster(2)), alone.sum::<f64>() / f64::from(EPOCHS) + 0.5);
    }

    #[test]
    fn rows_between_partitions_of_one_process_are_copied_twice() {
        let dataflow = Dataflow::Stages(Synchrony::Pipelined);
        let mut logs = logs(dataflow, "forward 1", None);
        for log in &mut logs {
            let cut = |job: &JobWork| JobWork { name: stages::CUT.into(), cpu_seconds: 0.25, ..job.clone() };
            let cuts: Vec<JobWork> = log.jobs.iter().filter(|job| job.name == "forward 1").map(cut).collect();
            log.jobs.extend(cuts);
        }
        let slowest = |epoch, step| job(0, epoch, step).max(job(1, epoch, step)) + 2.0 * 0.25;
        let recording = Recording::from_logs(dataflow, logs.into());
        assert_near(seconds(&recording, &cluster(2)), per_epoch(slowest) + 0.5);
    }

    #[test]
    fn critical_path_is_the_whole_time() {
        let recording = record(Dataflow::MiniBatch, "gradient", Some((SentFor::Sums, 1000)));
        let Prediction { epoch_seconds, critical_path } = simulate(&recording, &cluster(2)).unwrap();
        assert_near(critical_path.iter().map(|part| part.seconds).sum(), epoch_seconds);
        assert_eq!(critical_path[0].name, "gradient");
    }
}
