//! The queue of node tasks: which wait for a tensor worker, which are assigned, and which share a call.
//!
//! A call takes up to [`CALL_BYTES`] bytes of waiting tasks that are like the first one: the same node task, kind of work and
//! parameters. If other workers are idle, it takes only its share. Small tasks wait until they fill a call while more are
//! expected, at most [`HOLD`]. Each task has its own result, deadline and reassignment.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gnnflow_nn::node_task::NodeTask;
use gnnflow_nn::parameter_versions::ParameterVersion;
use gnnflow_pipelines::executor::{CALL_BYTES, CALL_TASKS, OnCompletion, SubmittedTask};

/// Maximum wait of a task for others to share a call with.
pub(super) const HOLD: Duration = Duration::from_millis(5);
/// Minimum number of completed tasks before any task counts as late, and maximum number of stored times.
const MIN_TIMES: usize = 8;
const MAX_TIMES: usize = 64;
/// Minimum time after which a task counts as late.
const MIN_LATE: Duration = Duration::from_millis(50);
/// Maximum number of workers that get the same task.
const MAX_COPIES: usize = 3;

/// Tasks by number.
#[derive(Default)]
pub(super) struct Queue {
    /// Unassigned tasks, the oldest first.
    waiting: VecDeque<u64>,
    tasks: BTreeMap<u64, QueuedTask>,
    next: u64,
    /// Times of recent tasks.
    times: VecDeque<Duration>,
    /// Bytes of all tasks' rows.
    bytes: u64,
    /// Maximum of `bytes` so far.
    peak_bytes: u64,
}

struct QueuedTask {
    task: Arc<NodeTask>,
    version: ParameterVersion,
    name: Arc<str>,
    time: u64,
    done: OnCompletion,
    assigned: Vec<Assignee>,
    queued_at: Instant,
}

/// A worker that has a task.
struct Assignee {
    worker: usize,
    since: Instant,
    /// Number of tasks before it in its call.
    before: u32,
}

/// A task assigned to a worker.
pub(super) struct Assignment {
    pub(super) number: u64,
    pub(super) task: Arc<NodeTask>,
    pub(super) version: ParameterVersion,
}

impl Queue {
    /// Appends a task.
    pub(super) fn push(&mut self, submitted: SubmittedTask) {
        let SubmittedTask { task, version, name, time, done } = submitted;
        let number = self.next;
        self.next += 1;
        self.waiting.push_back(number);
        self.bytes += task.bytes() as u64;
        self.peak_bytes = self.peak_bytes.max(self.bytes);
        let (task, assigned, queued_at) = (Arc::new(task), Vec::new(), Instant::now());
        self.tasks.insert(number, QueuedTask { task, version, name, time, done, assigned, queued_at });
    }

    /// Removes and returns the newest unassigned task. The oldest ones go to workers.
    pub(super) fn take(&mut self) -> Option<SubmittedTask> {
        loop {
            let number = self.waiting.pop_back()?;
            if let Some(queued) = self.tasks.remove(&number) {
                self.bytes -= queued.task.bytes() as u64;
                return Some(queued.submitted());
            }
        }
    }

    /// Returns whether there are unassigned tasks.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns whether the unassigned tasks fill a call.
    pub(super) fn has_full_call(&self) -> bool {
        let waiting = self.waiting.iter().filter_map(|number| self.tasks.get(number));
        self.waiting.len() >= CALL_TASKS || waiting.map(|queued| queued.task.bytes()).sum::<usize>() >= CALL_BYTES
    }

    /// Returns whether the oldest unassigned task has waited at least [`HOLD`] at time `now`.
    pub(super) fn has_waited(&self, now: Instant) -> bool {
        let waited = |number| {
            self.tasks.get(number).is_some_and(|queued: &QueuedTask| now.duration_since(queued.queued_at) >= HOLD)
        };
        self.waiting.front().is_some_and(waited)
    }

    /// Returns whether a task has no result yet.
    pub(super) fn is_open(&self, number: u64) -> bool {
        self.tasks.contains_key(&number)
    }

    /// Returns the maximum bytes of the rows of all queued tasks at any time.
    pub(super) fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// Assigns the tasks of a worker's next call: the oldest unassigned task and some like it. With `idle` other idle workers,
    /// only its share of them. Empty if no task waits.
    pub(super) fn assign(&mut self, worker: usize, idle: usize) -> Vec<Assignment> {
        // A worker that counted as lost may have completed some in the meantime.
        let tasks = &self.tasks;
        self.waiting.retain(|number| tasks.contains_key(number));
        let share = self.waiting.len().div_ceil(idle + 1).min(CALL_TASKS);
        let Some(number) = self.waiting.pop_front() else { return Vec::new() };
        let (first, mut numbers) = (&tasks[&number], vec![number]);
        let mut bytes = first.task.bytes();
        self.waiting.retain(|number| {
            let queued = &tasks[number];
            let all = bytes + queued.task.bytes();
            let similar = queued.version == first.version && queued.task.is_like(&first.task);
            let joins = similar && numbers.len() < share && all <= CALL_BYTES;
            if joins {
                bytes = all;
                numbers.push(*number);
            }
            !joins
        });
        self.assign_all(worker, &numbers)
    }

    /// Assigns a task that is late at all its workers to this worker too. Late: longer than `factor` times the median.
    pub(super) fn assign_late(&mut self, worker: usize, factor: f64) -> Vec<Assignment> {
        if self.times.len() < MIN_TIMES {
            return Vec::new();
        }
        let mut times: Vec<Duration> = self.times.iter().copied().collect();
        times.sort_unstable();
        let bound = times[times.len() / 2].mul_f64(factor).max(MIN_LATE);
        let is_late =
            |assignee: &Assignee| assignee.worker != worker && assignee.since.elapsed() > bound * (assignee.before + 1);
        let late = |queued: &QueuedTask| {
            !queued.assigned.is_empty() && queued.assigned.len() < MAX_COPIES && queued.assigned.iter().all(is_late)
        };
        let number = self.tasks.iter().find(|(_, queued)| late(queued)).map(|(&number, _)| number);
        number.map_or_else(Vec::new, |number| self.assign_all(worker, &[number]))
    }

    fn assign_all(&mut self, worker: usize, numbers: &[u64]) -> Vec<Assignment> {
        let since = Instant::now();
        let mut assignments = Vec::with_capacity(numbers.len());
        for (before, &number) in (0..).zip(numbers) {
            if let Some(queued) = self.tasks.get_mut(&number) {
                queued.assigned.push(Assignee { worker, since, before });
                assignments.push(Assignment { number, task: Arc::clone(&queued.task), version: queued.version });
            }
        }
        assignments
    }

    /// Removes a completed task. Returns its callback, or `None` if another worker was faster.
    pub(super) fn complete(&mut self, worker: usize, number: u64) -> Option<OnCompletion> {
        let queued = self.tasks.remove(&number)?;
        self.bytes -= queued.task.bytes() as u64;
        if let Some(assignee) = queued.assigned.iter().find(|assignee| assignee.worker == worker) {
            if self.times.len() == MAX_TIMES {
                self.times.pop_front();
            }
            self.times.push_back(assignee.since.elapsed() / (assignee.before + 1));
        }
        Some(queued.done)
    }

    /// Puts the tasks that only a lost worker had before all waiting tasks. Returns their number.
    pub(super) fn lose(&mut self, worker: usize) -> usize {
        let mut unassigned = Vec::new();
        for (&number, queued) in &mut self.tasks {
            let had = queued.assigned.len();
            queued.assigned.retain(|assignee| assignee.worker != worker);
            if had > 0 && queued.assigned.is_empty() {
                unassigned.push(number);
            }
        }
        unassigned.iter().rev().for_each(|&number| self.waiting.push_front(number));
        unassigned.len()
    }

    /// Removes all tasks and returns them with their callbacks.
    pub(super) fn take_all(&mut self) -> Vec<SubmittedTask> {
        self.waiting.clear();
        self.bytes = 0;
        std::mem::take(&mut self.tasks).into_values().map(QueuedTask::submitted).collect()
    }
}

impl QueuedTask {
    fn submitted(self) -> SubmittedTask {
        let Self { task, version, name, time, done, .. } = self;
        let task = Arc::try_unwrap(task).unwrap_or_else(|shared| (*shared).clone());
        SubmittedTask { task, version, name, time, done }
    }
}

#[cfg(test)]
mod tests {
    use gnnflow_nn::node_task::{NodeRows, Work, matrix};

    use super::*;

    fn task(index: usize, numbers: usize) -> NodeTask {
        let rows = NodeRows { held: Some(matrix(vec![0.0; numbers], 1)), ..NodeRows::default() };
        NodeTask { index, count: numbers, rows, key: None, work: Work::Forward { held: true } }
    }

    fn queue(tasks: &[(usize, usize, u64)]) -> Queue {
        let mut queue = Queue::default();
        for &(index, numbers, version) in tasks {
            let version = ParameterVersion { version, server: 0 };
            let (name, time, done): (_, _, OnCompletion) = ("task".into(), 0, Box::new(|_| ()));
            queue.push(SubmittedTask { task: task(index, numbers), version, name, time, done });
        }
        queue
    }

    fn numbers(assignments: &[Assignment]) -> Vec<u64> {
        assignments.iter().map(|assignment| assignment.number).collect()
    }

    #[test]
    fn assign_joins_similar_tasks_in_order() {
        // Another node task and other parameters get calls of their own.
        let mut queue = queue(&[(0, 8, 1), (0, 8, 1), (1, 8, 1), (0, 8, 2), (0, 8, 1), (1, 8, 1)]);
        let taken: Vec<Vec<u64>> = (0..4).map(|worker| numbers(&queue.assign(worker, 0))).collect();
        assert_eq!(taken, [vec![0, 1, 4], vec![2, 5], vec![3], vec![]]);
    }

    #[test]
    fn assign_takes_at_most_a_full_call_and_its_share() {
        // Numbers of 4 bytes: two of these tasks are larger than a full call.
        let large = CALL_BYTES / 4 / 2 + 1;
        let mut queue = queue(&[(0, large, 1), (0, large, 1), (0, 4, 1), (0, 4, 1), (0, 4, 1), (0, CALL_BYTES, 1)]);
        assert_eq!(numbers(&queue.assign(0, 0)), [0, 2, 3, 4]);
        assert_eq!(numbers(&queue.assign(0, 0)), [1]);
        assert_eq!(numbers(&queue.assign(0, 0)), [5], "a task larger than a full call gets a call of its own");
        let mut queue = self::queue(&[(0, 4, 1); 7]);
        assert_eq!(numbers(&queue.assign(0, 2)), [0, 1, 2], "two other workers are idle");
        assert_eq!(numbers(&queue.assign(1, 1)), [3, 4]);
        assert_eq!(numbers(&queue.assign(2, 0)), [5, 6]);
        assert_eq!(self::queue(&[(0, 4, 1); 2 * CALL_TASKS]).assign(0, 0).len(), CALL_TASKS);
        assert_eq!(queue.peak_bytes(), 7 * 4 * 4);
    }

    #[test]
    fn a_call_is_full_by_bytes_or_tasks_and_no_task_waits_longer_than_hold() {
        let full = |tasks: &[(usize, usize, u64)]| queue(tasks).has_full_call();
        assert!(!full(&[]) && !full(&[(0, 4, 1); CALL_TASKS - 1]) && full(&[(0, 4, 1); CALL_TASKS]));
        assert!(
            full(&[(0, CALL_BYTES / 4, 1)]) && !full(&[(0, CALL_BYTES / 8, 1)]) && full(&[(0, CALL_BYTES / 8, 1); 2])
        );
        let before = Instant::now();
        let mut queue = queue(&[(0, 4, 1)]);
        let later = Instant::now() + HOLD;
        assert!(!queue.has_waited(before) && queue.has_waited(later));
        queue.assign(0, 0);
        assert!(!queue.has_waited(later), "the task is assigned");
    }

    #[test]
    fn lose_requeues_the_tasks_of_one_worker_only() {
        let mut queue = queue(&[(0, 4, 1); 4]);
        assert_eq!(numbers(&queue.assign(0, 1)), [0, 1]);
        assert_eq!(numbers(&queue.assign(1, 0)), [2, 3]);
        assert!(queue.complete(0, 0).is_some() && queue.complete(1, 0).is_none(), "the first result counts");
        assert!(!queue.is_open(0) && queue.is_open(1));
        assert_eq!(queue.lose(0), 1);
        assert_eq!(numbers(&queue.assign(1, 0)), [1]);
        assert_eq!(queue.lose(0), 0);
        assert_eq!(queue.take_all().len(), 3);
        assert!(!queue.has_waiting() && queue.assign(1, 0).is_empty());
    }

    #[test]
    fn take_returns_the_newest_task_that_no_worker_has() {
        let mut queue = queue(&[(0, 4, 1), (1, 4, 1), (0, 4, 1), (2, 4, 1)]);
        assert_eq!(numbers(&queue.assign(0, 0)), [0, 2]);
        let mut taken = || queue.take().map(|submitted| submitted.task.index);
        assert_eq!([taken(), taken(), taken()], [Some(2), Some(1), None]);
        assert!(queue.is_open(0) && !queue.is_open(1) && !queue.has_waiting());
    }

    #[test]
    fn assign_late_judges_each_task_of_a_call_by_its_position() {
        let mut queue = queue(&[(0, 4, 1); 12]);
        for number in 0..MIN_TIMES as u64 {
            assert!(queue.assign_late(1, 1.0).is_empty(), "there is no median yet");
            queue.assign_all(0, &[number]);
            queue.waiting.pop_front();
            assert!(queue.complete(0, number).is_some());
        }
        assert_eq!(numbers(&queue.assign(0, 0)).len(), 4);
        std::thread::sleep(MIN_LATE * 2 + MIN_LATE / 2);
        assert_eq!(numbers(&queue.assign_late(1, 1.0)), [8]);
        assert_eq!(numbers(&queue.assign_late(1, 1.0)), [9], "one task is before it in its call");
        assert!(queue.assign_late(0, 1.0).is_empty(), "a worker does not get its own task twice");
    }
}
