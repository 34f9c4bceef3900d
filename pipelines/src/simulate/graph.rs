//! The tasks of a run and what each of them waits for.

use std::ops::Range;
use std::sync::Arc;

/// A thread of a process that runs one task after another; or, for jobs, as many threads as there are compute threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thread {
    /// The dataflow: sampling on request, fetching, sums.
    Worker,
    /// Sampling.
    Sampling,
    /// The model.
    Compute,
    /// Jobs of the model that may run at the same time.
    Jobs,
}

impl Thread {
    pub(super) const COUNT: usize = 4;
}

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Work {
    /// `cpu` seconds of CPU time on a thread of its process, or on the threads that share its work. With a core for each of them, it takes
    /// `alone` seconds.
    Cpu { thread: Thread, cpu: f64, alone: f64 },
    /// Messages to a process, of `bytes` in all. `trips` of them follow one another.
    Send { to: usize, bytes: f64, trips: f64 },
    /// Nothing: a point that other tasks wait for.
    Join,
}

/// The number of a task. Tasks with lower numbers run first, if none is urgent.
pub(super) type TaskId = usize;

/// A task of a process.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) process: usize,
    /// What its time counts as.
    pub(super) name: Arc<str>,
    pub(super) work: Work,
    /// Whether it runs before all tasks that wait for the same thread and are not urgent.
    pub(super) urgent: bool,
}

/// Tasks, each after those that it waits for.
#[derive(Debug, Default)]
pub(super) struct Graph {
    tasks: Vec<Task>,
    /// The tasks that each task waits for, one list after another.
    after: Vec<TaskId>,
    /// The end of each task's list.
    ends: Vec<usize>,
    /// The last task of each epoch.
    pub(super) epochs: Vec<TaskId>,
}

impl Graph {
    /// Adds a task that begins when all tasks of `after` have ended.
    pub(super) fn add(&mut self, task: Task, after: impl IntoIterator<Item = TaskId>) -> TaskId {
        self.after.extend(after);
        self.ends.push(self.after.len());
        self.tasks.push(task);
        self.tasks.len() - 1
    }

    /// Adds a point in time at which all tasks of `after` have ended.
    pub(super) fn join(&mut self, after: impl IntoIterator<Item = TaskId>) -> TaskId {
        self.add(Task { process: 0, name: "".into(), work: Work::Join, urgent: false }, after)
    }

    pub(super) fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// Returns the tasks that `task` waits for.
    pub(super) fn after(&self, task: TaskId) -> &[TaskId] {
        let range: Range<usize> = task.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[task];
        &self.after[range]
    }
}
