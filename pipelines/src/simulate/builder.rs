//! What the graphs of all schedules share: processes with several recorded workers, and sums over partitions.

use std::ops::Range;
use std::sync::Arc;

use gnnflow_dataflow::graph::placement::Placement;

use super::cluster::Cluster;
use super::graph::{Graph, Task, TaskId, Thread, Work};
use super::recording::{Recording, WorkerRecord};

/// Bytes of a piece of a sum; see [`gnnflow_dataflow::collective::all_reduce`].
const PIECE: f64 = 128.0 * 1024.0;

/// The graph that is being built.
pub(super) struct Builder<'a> {
    pub(super) graph: Graph,
    pub(super) recording: &'a Recording,
    /// Recorded workers on simulated processes.
    placement: Placement,
    /// Compute threads of each process.
    pub(super) threads: usize,
    names: Names,
}

struct Names {
    worker: Arc<str>,
    sampling: Arc<str>,
    sums: Arc<str>,
    message: Arc<str>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(recording: &'a Recording, cluster: &Cluster) -> Self {
        let names = Names {
            worker: "worker thread".into(),
            sampling: "sampling threads".into(),
            sums: "sums over partitions".into(),
            message: "".into(),
        };
        let placement = Placement::new(recording.processes(), cluster.processes);
        Self { graph: Graph::default(), recording, placement, threads: cluster.threads, names }
    }

    pub(super) fn processes(&self) -> Range<usize> {
        0..self.placement.workers()
    }

    /// Returns the processes other than `process`.
    pub(super) fn others(&self, process: usize) -> impl Iterator<Item = usize> + use<> {
        self.processes().filter(move |&other| other != process)
    }

    /// Returns the recorded workers whose partitions a process has.
    pub(super) fn workers(&self, process: usize) -> impl Iterator<Item = &'a WorkerRecord> + use<'a> {
        let recording = self.recording;
        self.ranks(process).map(move |rank| &recording.workers[rank])
    }

    pub(super) fn ranks(&self, process: usize) -> Range<usize> {
        self.placement.parts_of(process)
    }

    /// Returns what the workers of `from` sent to those of `to`, by `sent`.
    pub(super) fn bytes(&self, from: usize, to: usize, sent: impl Fn(&WorkerRecord, usize) -> f64) -> f64 {
        self.workers(from).map(|worker| self.ranks(to).map(|rank| sent(worker, rank)).sum::<f64>()).sum()
    }

    /// Adds work of the worker thread.
    pub(super) fn worker(&mut self, process: usize, cpu: f64, after: impl IntoIterator<Item = TaskId>) -> TaskId {
        let work = Work::Cpu { thread: Thread::Worker, cpu, alone: cpu };
        let name = Arc::clone(&self.names.worker);
        self.graph.add(Task { process, name, work, urgent: false }, after)
    }

    /// Adds work of the sampling threads, which share it: batches of several steps are sampled at the same time.
    pub(super) fn sampling(&mut self, process: usize, cpu: f64, after: impl IntoIterator<Item = TaskId>) -> TaskId {
        let alone = cpu / self.recording.sampling_threads as f64;
        let work = Work::Cpu { thread: Thread::Sampling, cpu, alone };
        let name = Arc::clone(&self.names.sampling);
        self.graph.add(Task { process, name, work, urgent: false }, after)
    }

    /// Adds a job of the compute thread that takes `cpu` seconds of all its threads.
    pub(super) fn job(
        &mut self,
        process: usize,
        (name, cpu): (&Arc<str>, f64),
        urgent: bool,
        after: impl IntoIterator<Item = TaskId>,
    ) -> TaskId {
        let work = Work::Cpu { thread: Thread::Compute, cpu, alone: self.alone(name, cpu, self.threads as f64) };
        self.graph.add(Task { process, name: Arc::clone(name), work, urgent }, after)
    }

    /// Adds a job that takes `cpu` seconds. It is one of `jobs` jobs of its process that may run at the same time, and share the compute threads.
    pub(super) fn one_of(
        &mut self,
        jobs: usize,
        process: usize,
        (name, cpu): (&Arc<str>, f64),
        after: impl IntoIterator<Item = TaskId>,
    ) -> TaskId {
        let at_once = jobs.min(self.threads);
        if at_once <= 1 {
            return self.job(process, (name, cpu), false, after);
        }
        let alone = self.alone(name, cpu, self.threads as f64 / at_once as f64);
        let work = Work::Cpu { thread: Thread::Jobs, cpu, alone };
        self.graph.add(Task { process, name: Arc::clone(name), work, urgent: false }, after)
    }

    /// Returns the seconds of a job of `cpu` seconds on `threads` threads.
    fn alone(&self, name: &str, cpu: f64, threads: f64) -> f64 {
        let part = self.recording.parallel_part(name);
        cpu * (1.0 - part + part / threads)
    }

    /// Adds messages to another process.
    pub(super) fn send(
        &mut self,
        [process, to]: [usize; 2],
        bytes: f64,
        trips: f64,
        after: impl IntoIterator<Item = TaskId>,
    ) -> TaskId {
        let (name, work) = (Arc::clone(&self.names.message), Work::Send { to, bytes, trips });
        self.graph.add(Task { process, name, work, urgent: true }, after)
    }

    /// Adds a sum of a vector of `bytes` over all partitions. The contributions of each process are complete when the tasks of `ready` have ended.
    /// `reducing` are the seconds of all additions. Returns, by process, the tasks after which it has the sum.
    pub(super) fn all_reduce(&mut self, bytes: f64, reducing: f64, ready: &[Vec<TaskId>]) -> Vec<Vec<TaskId>> {
        let (processes, recorded) = (self.processes(), self.recording.processes() as f64);
        let partitions = self.recording.parts as f64 / recorded;
        let pieces = (bytes / PIECE).ceil().max(1.0) as usize;
        // The pieces go to the processes in turn.
        let share = |process: usize| {
            (0..pieces).filter(|piece| piece % processes.len() == process).count() as f64 / pieces as f64
        };
        let mut has = vec![Vec::new(); processes.len()];
        for owner in processes.clone().filter(|&owner| share(owner) > 0.0) {
            let mut arrived = ready[owner].clone();
            for from in self.others(owner) {
                let bytes = bytes * share(owner) * partitions * self.ranks(from).len() as f64;
                arrived.push(self.send([from, owner], bytes, 1.0, ready[from].iter().copied()));
            }
            let cpu = reducing * share(owner);
            let work = Work::Cpu { thread: Thread::Worker, cpu, alone: cpu };
            let name = Arc::clone(&self.names.sums);
            let sum = self.graph.add(Task { process: owner, name, work, urgent: true }, arrived);
            has[owner].push(sum);
            for to in self.others(owner) {
                let sent = self.send([owner, to], bytes * share(owner), 1.0, [sum]);
                has[to].push(sent);
            }
        }
        has
    }

    /// Returns the length of the summed vector in bytes, of which `sent` bytes were sent by all recorded workers in one sum.
    pub(super) fn summed_bytes(&self, sent: f64) -> f64 {
        let recorded = self.recording.processes() as f64;
        let copies = (recorded - 1.0) * (self.recording.parts as f64 / recorded + 1.0);
        if copies > 0.0 { sent / copies } else { 0.0 }
    }
}
