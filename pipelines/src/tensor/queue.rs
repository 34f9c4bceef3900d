//! Tasks that wait for a tensor worker, or are with one; and which of them go together in one call.
//!
//! A call takes what waits, up to [`BATCH`] bytes of what is like the first one (the same node task, the same question, the same
//! weights), but no more than its share where other workers are free too. Small tasks wait until there is a call full of them, as long
//! as more are about to come, but never longer than [`HOLD`]. Each is computed by itself, answered by itself, and given out again by
//! itself; only the way is shared.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Answer;
use crate::error::Error;
use crate::runtime::tensor_task::TensorTask;
use gnnflow_nn::parameter_versions::ParameterVersion;

/// Bytes of rows that are sent in one call, where it has more than one task: beyond that, a call costs little beside its rows.
pub(crate) const BATCH: usize = 256 << 10;
/// Tasks of a call at most.
pub(crate) const MOST: usize = 64;
/// How long a task waits at most for others to share a call with.
pub(super) const HOLD: Duration = Duration::from_millis(5);
/// Calls that are timed before any is called late, and how many are remembered.
const TIMED: usize = 8;
const REMEMBERED: usize = 64;
/// No call is late earlier.
const EARLIEST: Duration = Duration::from_millis(50);
/// How often a task is given out at most.
const COPIES: usize = 3;

/// Who is told what becomes of a task.
pub(super) type Then = Box<dyn FnOnce(Result<Answer<TensorTask>, Error>) + Send>;

/// Tasks by their numbers.
#[derive(Default)]
pub(super) struct Queue {
    /// Those that nobody has been given, the oldest first.
    waiting: VecDeque<u64>,
    calls: BTreeMap<u64, Call>,
    next: u64,
    /// How long a task took, of late.
    times: VecDeque<Duration>,
    /// Bytes of the rows of all of them, and the most that there were.
    bytes: [u64; 2],
}

struct Call {
    task: Arc<TensorTask>,
    choice: ParameterVersion,
    then: Then,
    with: Vec<Given>,
    /// When it was put here.
    put: Instant,
}

/// Who has a task.
struct Given {
    worker: usize,
    since: Instant,
    /// How many tasks stand before it in its call.
    behind: u32,
}

/// A task as it is given out.
pub(super) struct Order {
    pub(super) number: u64,
    pub(super) task: Arc<TensorTask>,
    pub(super) choice: ParameterVersion,
}

impl Queue {
    /// Puts a task behind the others.
    pub(super) fn push(&mut self, task: TensorTask, choice: ParameterVersion, then: Then) {
        let number = self.next;
        self.next += 1;
        self.waiting.push_back(number);
        self.bytes[0] += task.bytes() as u64;
        self.bytes[1] = self.bytes[1].max(self.bytes[0]);
        self.calls.insert(number, Call { task: Arc::new(task), choice, then, with: Vec::new(), put: Instant::now() });
    }

    /// Whether there are tasks that nobody has.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether what waits fills a call.
    pub(super) fn has_full_call(&self) -> bool {
        let waiting = self.waiting.iter().filter_map(|number| self.calls.get(number));
        self.waiting.len() >= MOST || waiting.map(|call| call.task.bytes()).sum::<usize>() >= BATCH
    }

    /// Whether a task has waited for others, by `now`, as long as it may.
    pub(super) fn has_held(&self, now: Instant) -> bool {
        let held = |number| self.calls.get(number).is_some_and(|call: &Call| now.duration_since(call.put) >= HOLD);
        self.waiting.front().is_some_and(held)
    }

    /// Whether a task still waits for an answer.
    pub(super) fn is_open(&self, number: u64) -> bool {
        self.calls.contains_key(&number)
    }

    /// The most bytes that the rows of all tasks here had at once.
    pub(super) fn most_bytes(&self) -> u64 {
        self.bytes[1]
    }

    /// The tasks of a worker's next call: of those that wait the first one and some like it, its share where `free` other workers could
    /// take some too. Nothing when none waits.
    pub(super) fn take(&mut self, worker: usize, free: usize) -> Vec<Order> {
        // Somebody who was taken for lost may have answered meanwhile.
        let calls = &self.calls;
        self.waiting.retain(|number| calls.contains_key(number));
        let share = self.waiting.len().div_ceil(free + 1).min(MOST);
        let Some(number) = self.waiting.pop_front() else { return Vec::new() };
        let (first, mut numbers) = (&calls[&number], vec![number]);
        let mut bytes = first.task.bytes();
        self.waiting.retain(|number| {
            let call = &calls[number];
            let all = bytes + call.task.bytes();
            let alike = call.choice == first.choice && call.task.is_like(&first.task);
            let joins = alike && numbers.len() < share && all <= BATCH;
            if joins {
                bytes = all;
                numbers.push(*number);
            }
            !joins
        });
        self.give(worker, &numbers)
    }

    /// A task that takes so long elsewhere, `factor` times the median, that this worker shall try too.
    pub(super) fn take_late(&mut self, worker: usize, factor: f64) -> Vec<Order> {
        if self.times.len() < TIMED {
            return Vec::new();
        }
        let mut times: Vec<Duration> = self.times.iter().copied().collect();
        times.sort_unstable();
        let bound = times[times.len() / 2].mul_f64(factor).max(EARLIEST);
        let is_late = |given: &Given| given.worker != worker && given.since.elapsed() > bound * (given.behind + 1);
        let late = |call: &Call| !call.with.is_empty() && call.with.len() < COPIES && call.with.iter().all(is_late);
        let number = self.calls.iter().find(|(_, call)| late(call)).map(|(&number, _)| number);
        number.map_or_else(Vec::new, |number| self.give(worker, &[number]))
    }

    fn give(&mut self, worker: usize, numbers: &[u64]) -> Vec<Order> {
        let since = Instant::now();
        let mut orders = Vec::with_capacity(numbers.len());
        for (behind, &number) in (0..).zip(numbers) {
            if let Some(call) = self.calls.get_mut(&number) {
                call.with.push(Given { worker, since, behind });
                orders.push(Order { number, task: Arc::clone(&call.task), choice: call.choice });
            }
        }
        orders
    }

    /// An answer has come: who waits for it, unless somebody else was faster.
    pub(super) fn answered(&mut self, worker: usize, number: u64) -> Option<Then> {
        let call = self.calls.remove(&number)?;
        self.bytes[0] -= call.task.bytes() as u64;
        if let Some(given) = call.with.iter().find(|given| given.worker == worker) {
            if self.times.len() == REMEMBERED {
                self.times.pop_front();
            }
            self.times.push_back(given.since.elapsed() / (given.behind + 1));
        }
        Some(call.then)
    }

    /// A worker is gone: what only it had waits again, before all others. How many these are.
    pub(super) fn lose(&mut self, worker: usize) -> usize {
        let mut again = Vec::new();
        for (&number, call) in &mut self.calls {
            let had = call.with.len();
            call.with.retain(|given| given.worker != worker);
            if had > 0 && call.with.is_empty() {
                again.push(number);
            }
        }
        again.iter().rev().for_each(|&number| self.waiting.push_front(number));
        again.len()
    }

    /// All tasks, which nobody is left for, with who waits for them.
    pub(super) fn give_back(&mut self) -> Vec<(TensorTask, Then)> {
        self.waiting.clear();
        self.bytes[0] = 0;
        let calls = std::mem::take(&mut self.calls).into_values();
        let own = |task: Arc<TensorTask>| Arc::try_unwrap(task).unwrap_or_else(|shared| (*shared).clone());
        calls.map(|call| (own(call.task), call.then)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::tensor_task::{NodeRows, Work, matrix};

    fn task(index: usize, numbers: usize) -> TensorTask {
        let rows = NodeRows { held: Some(matrix(vec![0.0; numbers], 1)), ..NodeRows::default() };
        TensorTask { index, count: numbers, rows, key: None, work: Work::Forward }
    }

    fn queue(tasks: &[(usize, usize, u64)]) -> Queue {
        let mut queue = Queue::default();
        for &(index, numbers, version) in tasks {
            queue.push(task(index, numbers), ParameterVersion { version, server: 0 }, Box::new(|_| ()));
        }
        queue
    }

    fn numbers(orders: &[Order]) -> Vec<u64> {
        orders.iter().map(|order| order.number).collect()
    }

    #[test]
    fn what_is_alike_goes_together_and_order_is_kept() {
        // Another node task, and other weights, go by themselves.
        let mut queue = queue(&[(0, 8, 1), (0, 8, 1), (1, 8, 1), (0, 8, 2), (0, 8, 1), (1, 8, 1)]);
        let taken: Vec<Vec<u64>> = (0..4).map(|worker| numbers(&queue.take(worker, 0))).collect();
        assert_eq!(taken, [vec![0, 1, 4], vec![2, 5], vec![3], vec![]]);
    }

    #[test]
    fn a_call_has_no_more_than_a_batch_of_bytes_and_its_share() {
        // Numbers of 4 bytes: two of these are more than a batch.
        let large = BATCH / 4 / 2 + 1;
        let mut queue = queue(&[(0, large, 1), (0, large, 1), (0, 4, 1), (0, 4, 1), (0, 4, 1), (0, BATCH, 1)]);
        assert_eq!(numbers(&queue.take(0, 0)), [0, 2, 3, 4]);
        assert_eq!(numbers(&queue.take(0, 0)), [1]);
        assert_eq!(numbers(&queue.take(0, 0)), [5], "what is larger than a batch is sent all the same");
        let mut queue = self::queue(&[(0, 4, 1); 7]);
        assert_eq!(numbers(&queue.take(0, 2)), [0, 1, 2], "two others are free");
        assert_eq!(numbers(&queue.take(1, 1)), [3, 4]);
        assert_eq!(numbers(&queue.take(2, 0)), [5, 6]);
        assert_eq!(self::queue(&[(0, 4, 1); 2 * MOST]).take(0, 0).len(), MOST);
        assert_eq!(queue.most_bytes(), 7 * 4 * 4);
    }

    #[test]
    fn a_call_is_full_by_bytes_or_by_tasks_and_none_waits_for_ever() {
        let full = |tasks: &[(usize, usize, u64)]| queue(tasks).has_full_call();
        assert!(!full(&[]) && !full(&[(0, 4, 1); MOST - 1]) && full(&[(0, 4, 1); MOST]));
        assert!(full(&[(0, BATCH / 4, 1)]) && !full(&[(0, BATCH / 8, 1)]) && full(&[(0, BATCH / 8, 1); 2]));
        let before = Instant::now();
        let mut queue = queue(&[(0, 4, 1)]);
        let later = Instant::now() + HOLD;
        assert!(!queue.has_held(before) && queue.has_held(later));
        queue.take(0, 0);
        assert!(!queue.has_held(later), "it waits no more");
    }

    #[test]
    fn who_is_lost_gives_back_what_nobody_else_has() {
        let mut queue = queue(&[(0, 4, 1); 4]);
        assert_eq!(numbers(&queue.take(0, 1)), [0, 1]);
        assert_eq!(numbers(&queue.take(1, 0)), [2, 3]);
        assert!(queue.answered(0, 0).is_some() && queue.answered(1, 0).is_none(), "whoever is first counts");
        assert!(!queue.is_open(0) && queue.is_open(1));
        assert_eq!(queue.lose(0), 1);
        assert_eq!(numbers(&queue.take(1, 0)), [1]);
        assert_eq!(queue.lose(0), 0);
        assert_eq!(queue.give_back().len(), 3);
        assert!(!queue.has_waiting() && queue.take(1, 0).is_empty());
    }

    #[test]
    fn each_task_of_a_call_is_late_by_itself() {
        let mut queue = queue(&[(0, 4, 1); 12]);
        for number in 0..TIMED as u64 {
            assert!(queue.take_late(1, 1.0).is_empty(), "nothing to compare with");
            queue.give(0, &[number]);
            queue.waiting.pop_front();
            assert!(queue.answered(0, number).is_some());
        }
        assert_eq!(numbers(&queue.take(0, 0)).len(), 4);
        std::thread::sleep(EARLIEST * 2 + EARLIEST / 2);
        assert_eq!(numbers(&queue.take_late(1, 1.0)), [8]);
        assert_eq!(numbers(&queue.take_late(1, 1.0)), [9], "one stands before it in its call");
        assert!(queue.take_late(0, 1.0).is_empty(), "who has it does not try twice");
    }
}
