//! The number of jobs that a process runs at the same time.

use gnnflow_dataflow::graph::placement::Placement;

use super::Sizes;
use super::full_graph::FullGraphPlan;
use crate::config::{Config, Mode};
use crate::context::machine;

/// Returns the most jobs of a process that may run at the same time: one for each thread, if there are as many partitions that compute
/// batches, or intervals of nodes.
pub(super) fn most(
    config: &Config,
    full_graph: Option<&FullGraphPlan>,
    sizes: &Sizes,
    placement: Placement,
    local: usize,
) -> usize {
    let Some(train) = &config.train else { return 1 };
    // A GPU runs one job at a time, tensor workers take the place of threads, and a worker trains one partition after another. Asynchronous
    // intervals of one process would read stale rows of each other, without need.
    let is_async = train.schedule.full_graph_options().is_some_and(|options| options.mode == Mode::Async);
    if train.device.is_gpu() || train.tensor_workers.is_some() || train.schedule.is_partition_parallel() || is_async {
        return 1;
    }
    let items = |parts: std::ops::Range<usize>| match full_graph {
        Some(full_graph) => parts.map(|part| full_graph.intervals_of(sizes.parts[part].nodes)).sum(),
        None => parts.len(),
    };
    let most = (0..placement.workers()).map(|rank| items(placement.parts_of(rank))).max().unwrap_or(1);
    most.clamp(1, train.threads(local))
}

/// Returns a quarter of this machine's memory, divided by its `local` processes.
pub(super) fn quarter(local: usize) -> u64 {
    machine::memory() / 4 / local.max(1) as u64
}

/// Returns the largest number of jobs up to `most` whose memory fits. `needs` returns the bytes that a process needs for a number of jobs. Without
/// `train.memory`, all processes of this machine may take three quarters of its memory, and a third of that for further jobs.
pub(super) fn fitting(config: &Config, most: usize, local: usize, needs: impl Fn(usize) -> u64) -> usize {
    let given = config.train.as_ref().and_then(|train| train.memory);
    let limit = given.map_or_else(|| (needs(1) + quarter(local)).min(3 * quarter(local)), |memory| memory.0);
    (2..=most).rev().find(|&jobs| needs(jobs) <= limit).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Registered;

    #[test]
    fn as_many_jobs_as_fit_into_memory() {
        let config = |memory: &str| {
            let text = format!("[graph]\ngenerate = {{ nodes = 100 }}\n[model]\n[train]\n{memory}");
            Config::parse(&text, std::path::Path::new("/p.toml"), &[], &Registered::default()).unwrap()
        };
        let jobs = |memory, most| fitting(&config(memory), most, 1, |jobs| 100 + 10 * jobs as u64);
        assert_eq!([jobs("memory = '150B'", 8), jobs("memory = '115B'", 8), jobs("memory = '1MiB'", 8)], [5, 1, 8]);
        assert_eq!([jobs("", 8), jobs("", 1)], [8, 1]);
    }
}
