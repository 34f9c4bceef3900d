//! `gnnflow simulate`: predicts the time of an epoch on another cluster from the recorded work of a run.
//!
//! A traced run records the CPU time of its jobs and the bytes of its messages by epoch and step
//! ([`work_log`](crate::outputs::work_log)). The dataflow of its schedule tells which of them wait for which. These tasks are then run on a described
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
        return Err(Error::Usage(format!("{hosts} hosts for {processes} processes; each host needs one")));
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
