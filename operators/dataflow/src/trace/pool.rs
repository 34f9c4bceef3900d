//! The jobs of a pool of threads.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::spans::{Span, Spans};
use super::thread_group::{ThreadGroup, cpu_of_this_thread};

/// Records the jobs of the threads of a pool.
pub struct PoolTrace {
    zero: Instant,
    /// By the number of the thread in its pool.
    threads: Mutex<Vec<Spans>>,
    group: ThreadGroup,
}

impl PoolTrace {
    /// Creates a record whose times count from `zero`.
    pub fn new(zero: Instant) -> Self {
        Self { zero, threads: Mutex::default(), group: ThreadGroup::default() }
    }

    /// Counts the CPU time of the threads of `pool`.
    pub fn add_pool(&self, pool: &rayon::ThreadPool) {
        pool.broadcast(|_| self.group.enter());
    }

    /// Runs `job` on the calling thread, which is one of the pool.
    pub fn record<R>(&self, name: &str, job: impl FnOnce() -> R) -> R {
        let (start, cpu_before) = (self.zero.elapsed(), cpu_of_this_thread());
        let result = job();
        let (end, cpu) = (self.zero.elapsed(), cpu_of_this_thread().saturating_sub(cpu_before));
        let thread = rayon::current_thread_index().unwrap_or(0);
        let mut threads = self.threads();
        if threads.len() <= thread {
            threads.resize_with(thread + 1, Spans::default);
        }
        threads[thread].add(Span { name, start, end, cpu: Some(cpu) }, end.saturating_sub(start));
        result
    }

    /// Returns the jobs of each thread.
    pub fn threads(&self) -> MutexGuard<'_, Vec<Spans>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all threads of the pool.
    pub fn group(&self) -> &ThreadGroup {
        &self.group
    }
}
