//! Runs the tasks of a graph on a cluster: when each begins and ends, and what it waited for last.
//!
//! A thread runs one task after another: urgent ones first, then in order of their numbers. If the running tasks of a host want more cores than
//! it has, all of them slow down by the same factor. A network link carries one message after another. A message holds the sender's link, and then
//! the receiver's.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::cluster::{Cluster, Link};
use super::graph::{Graph, TaskId, Thread, Work};

/// When a task ran, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ran {
    pub(super) start: u64,
    pub(super) end: u64,
    /// The task whose end let it begin.
    pub(super) cause: Option<TaskId>,
}

/// Returns when each task of `graph` runs on `cluster`.
pub(super) fn run(graph: &Graph, cluster: &Cluster) -> Vec<Ran> {
    let mut simulation = Simulation::new(graph, cluster);
    let count = graph.tasks().len();
    (0..count).filter(|&task| graph.after(task).is_empty()).for_each(|task| simulation.begin(task, None));
    simulation.settle();
    while let Some(Reverse((now, event))) = simulation.events.pop() {
        simulation.now = now;
        match event {
            Event::Arrives(task) => simulation.end(task),
            Event::Host { host, version } if simulation.hosts[host].version == version => simulation.host_event(host),
            Event::Host { .. } => {}
        }
        simulation.settle();
    }
    simulation.ran
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A message has arrived.
    Arrives(TaskId),
    /// A task of a host ends, unless others have begun or ended since.
    Host { host: usize, version: u64 },
}

struct Simulation<'a> {
    graph: &'a Graph,
    cluster: &'a Cluster,
    now: u64,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    ran: Vec<Ran>,
    /// By task, the number of tasks that it still waits for.
    missing: Vec<usize>,
    /// By task, the tasks that wait for it.
    next: Vec<Vec<TaskId>>,
    hosts: Vec<HostState>,
    /// By process and thread.
    threads: Vec<ThreadState>,
    /// By host, when its links are free: to send, and to receive.
    links: Vec<[u64; 2]>,
    /// Hosts whose running tasks have changed.
    changed: Vec<usize>,
}

#[derive(Default)]
struct HostState {
    running: Vec<Running>,
    /// When `running` was brought up to date.
    since: u64,
    version: u64,
    speed: f64,
}

struct Running {
    task: TaskId,
    /// Nanoseconds left at normal speed.
    left: f64,
    /// Number of cores that it uses.
    cores: f64,
}

#[derive(Default)]
struct ThreadState {
    /// Number of tasks that run on it.
    running: usize,
    /// Tasks that wait for the thread: not urgent, its number.
    waiting: BinaryHeap<Reverse<(bool, TaskId)>>,
}

impl<'a> Simulation<'a> {
    fn new(graph: &'a Graph, cluster: &'a Cluster) -> Self {
        let count = graph.tasks().len();
        let mut next = vec![Vec::new(); count];
        for task in 0..count {
            graph.after(task).iter().for_each(|&before: &TaskId| next[before].push(task));
        }
        Self {
            graph,
            cluster,
            now: 0,
            events: BinaryHeap::new(),
            ran: vec![Ran::default(); count],
            missing: (0..count).map(|task| graph.after(task).len()).collect(),
            next,
            hosts: cluster.hosts.iter().map(|_| HostState { speed: 1.0, ..HostState::default() }).collect(),
            threads: (0..cluster.processes * Thread::COUNT).map(|_| ThreadState::default()).collect(),
            links: vec![[0; 2]; cluster.hosts.len()],
            changed: Vec::new(),
        }
    }

    /// Begins a task, all of whose predecessors have ended, `cause` last.
    fn begin(&mut self, id: TaskId, cause: Option<TaskId>) {
        self.ran[id] = Ran { start: self.now, end: self.now, cause };
        let task = &self.graph.tasks()[id];
        match task.work {
            Work::Join => self.end(id),
            Work::Cpu { thread, .. } => {
                let most = if thread == Thread::Jobs { self.cluster.threads } else { 1 };
                let thread = &mut self.threads[task.process * Thread::COUNT + thread as usize];
                if thread.running == most {
                    thread.waiting.push(Reverse((!task.urgent, id)));
                } else {
                    thread.running += 1;
                    self.start(id);
                }
            }
            Work::Send { to, bytes, trips } => match self.cluster.link(task.process, to, bytes, trips) {
                Link::None => self.end(id),
                Link::Loopback { cpu, latency } => {
                    let host = self.cluster.host_of(task.process);
                    self.start_on(host, Running { task: id, left: 1e9 * (cpu + latency), cores: 1.0 });
                }
                Link::Network => {
                    let [from, to] = [task.process, to].map(|process| self.cluster.host_of(process));
                    let (length, latency) = (nanoseconds(bytes / self.cluster.bandwidth), self.cluster.latency);
                    let sent = self.links[from][0].max(self.now);
                    self.links[from][0] = sent + length;
                    let received = self.links[to][1].max(sent + nanoseconds(trips * latency)) + length;
                    self.links[to][1] = received;
                    self.events.push(Reverse((received, Event::Arrives(id))));
                }
            },
        }
    }

    /// Starts a task on its thread.
    fn start(&mut self, id: TaskId) {
        let task = &self.graph.tasks()[id];
        let Work::Cpu { cpu, alone, .. } = task.work else { return };
        let cores = if alone > 0.0 { cpu / alone } else { 1.0 };
        let host = self.cluster.host_of(task.process);
        self.start_on(host, Running { task: id, left: 1e9 * alone, cores });
    }

    fn start_on(&mut self, host: usize, running: Running) {
        self.advance(host);
        self.hosts[host].running.push(running);
        self.changed.push(host);
    }

    /// Brings the running tasks of a host up to date.
    fn advance(&mut self, host: usize) {
        let state = &mut self.hosts[host];
        let passed = (self.now - state.since) as f64 * state.speed;
        state.running.iter_mut().for_each(|running| running.left -= passed);
        state.since = self.now;
    }

    /// Ends the tasks of a host that have no time left.
    fn host_event(&mut self, host: usize) {
        self.advance(host);
        self.changed.push(host);
        let ended = self.hosts[host].running.extract_if(.., |running| running.left < 1.0);
        for Running { task: id, .. } in ended.collect::<Vec<_>>() {
            self.end(id);
            let task = &self.graph.tasks()[id];
            if let Work::Cpu { thread, .. } = task.work {
                self.free(task.process * Thread::COUNT + thread as usize, id);
            }
        }
    }

    /// Starts the next task of a thread, on which `ended` has ended.
    fn free(&mut self, thread: usize, ended: TaskId) {
        match self.threads[thread].waiting.pop() {
            None => self.threads[thread].running -= 1,
            Some(Reverse((_, next))) => {
                let ran = &mut self.ran[next];
                // Without a wait for the thread, the cause is the last task that it waited for.
                if self.now > ran.start {
                    *ran = Ran { start: self.now, end: self.now, cause: Some(ended) };
                }
                self.start(next);
            }
        }
    }

    fn end(&mut self, id: TaskId) {
        self.ran[id].end = self.now;
        for at in 0..self.next[id].len() {
            let next = self.next[id][at];
            self.missing[next] -= 1;
            if self.missing[next] == 0 {
                self.begin(next, Some(id));
            }
        }
    }

    /// Computes the speed of the hosts whose tasks have changed, and when their next task ends.
    fn settle(&mut self) {
        while let Some(host) = self.changed.pop() {
            let (state, description) = (&mut self.hosts[host], self.cluster.hosts[host]);
            let (cores, wanted) =
                (description.cores as f64, state.running.iter().map(|running| running.cores).sum::<f64>());
            state.speed = description.speed * if wanted > cores { cores / wanted } else { 1.0 };
            state.version += 1;
            let least = state.running.iter().map(|running| running.left).min_by(f64::total_cmp);
            if let Some(left) = least {
                let at = self.now + (left.max(0.0) / state.speed).ceil() as u64;
                self.events.push(Reverse((at, Event::Host { host, version: state.version })));
            }
        }
    }
}

fn nanoseconds(seconds: f64) -> u64 {
    (1e9 * seconds).round() as u64
}

#[cfg(test)]
mod tests {
    use super::super::cluster::Host;
    use super::super::graph::Task;
    use super::*;

    /// Processes on hosts of their own.
    fn cluster(hosts: &[(usize, f64)]) -> Cluster {
        let hosts: Vec<Host> = hosts.iter().map(|&(cores, speed)| Host { cores, speed }).collect();
        Cluster { processes: hosts.len(), hosts, threads: 1, bandwidth: 1e6, latency: 0.5 }
    }

    /// A task that takes a second of one core.
    fn second(process: usize, thread: Thread) -> Task {
        Task { process, name: "work".into(), work: Work::Cpu { thread, cpu: 1.0, alone: 1.0 }, urgent: false }
    }

    fn send(process: usize, to: usize, bytes: f64) -> Task {
        Task { process, name: "".into(), work: Work::Send { to, bytes, trips: 1.0 }, urgent: false }
    }

    /// Returns the start and the end of each task in seconds.
    fn times(graph: &Graph, cluster: &Cluster) -> Vec<(f64, f64)> {
        run(graph, cluster).iter().map(|ran| (ran.start as f64 / 1e9, ran.end as f64 / 1e9)).collect()
    }

    #[test]
    fn thread_runs_urgent_tasks_first_and_others_in_order() {
        let mut graph = Graph::default();
        for _ in 0..3 {
            graph.add(second(0, Thread::Compute), []);
        }
        graph.add(Task { urgent: true, ..second(0, Thread::Compute) }, []);
        let expected = [(0.0, 1.0), (2.0, 3.0), (3.0, 4.0), (1.0, 2.0)];
        assert_eq!(times(&graph, &cluster(&[(8, 1.0)])), expected);
    }

    #[test]
    fn as_many_jobs_as_threads_run_at_the_same_time() {
        let mut graph = Graph::default();
        for _ in 0..4 {
            graph.add(second(0, Thread::Jobs), []);
        }
        let threads = |threads| Cluster { threads, ..cluster(&[(8, 1.0)]) };
        assert_eq!(times(&graph, &threads(3)), [(0.0, 1.0), (0.0, 1.0), (0.0, 1.0), (1.0, 2.0)]);
        assert_eq!(times(&graph, &threads(1))[3], (3.0, 4.0));
    }

    #[test]
    fn threads_share_the_cores_of_their_host() {
        let mut graph = Graph::default();
        let work = Work::Cpu { thread: Thread::Compute, cpu: 6.0, alone: 2.0 };
        graph.add(Task { work, ..second(0, Thread::Compute) }, []);
        assert_eq!(times(&graph, &cluster(&[(8, 1.0)])), [(0.0, 2.0)]);
        assert_eq!(times(&graph, &cluster(&[(8, 0.5)])), [(0.0, 4.0)]);
        graph.add(second(0, Thread::Worker), []);
        // 4 cores are wanted: with 2, all take twice the time. The first task then has half a second left, on 3 cores.
        assert_eq!(times(&graph, &cluster(&[(2, 1.0)])), [(0.0, 3.5), (0.0, 2.0)]);
    }

    #[test]
    fn messages_share_a_link_and_arrive_after_the_latency() {
        let mut graph = Graph::default();
        let first = graph.add(second(0, Thread::Worker), []);
        let sent = graph.add(send(0, 1, 2e6), [first]);
        graph.add(send(0, 1, 1e6), [first]);
        graph.add(second(1, Thread::Worker), [sent]);
        let expected = [(0.0, 1.0), (1.0, 3.5), (1.0, 4.5), (3.5, 4.5)];
        assert_eq!(times(&graph, &cluster(&[(1, 1.0); 2])), expected);
        // Inside a process, messages take no time.
        let one = Cluster { processes: 1, ..cluster(&[(1, 1.0)]) };
        let mut graph = Graph::default();
        let first = graph.add(second(0, Thread::Worker), []);
        let sent = graph.add(send(0, 0, 2e6), [first]);
        graph.join([sent]);
        assert_eq!(times(&graph, &one), [(0.0, 1.0), (1.0, 1.0), (1.0, 1.0)]);
    }

    #[test]
    fn idle_hosts_run_tasks_that_begin_together() {
        let mut graph = Graph::default();
        let first = graph.add(second(0, Thread::Worker), []);
        let sent = graph.add(send(0, 1, 0.0), [first]);
        for thread in [Thread::Worker, Thread::Compute] {
            graph.add(second(1, thread), [sent]);
        }
        assert_eq!(times(&graph, &cluster(&[(1, 1.0); 2]))[2..], [(1.5, 3.5), (1.5, 3.5)]);
    }
}
