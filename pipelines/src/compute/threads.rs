//! The threads that jobs of the compute thread run on.

use gnnflow_data::error::FEWER_THREADS;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::Error;

/// The threads of jobs.
pub(super) enum Threads {
    /// The caller's thread alone. Moving each job to another thread and waiting for it would take longer than short jobs.
    Caller,
    /// A pool of several threads.
    Several(ThreadPool),
}

thread_local! {
    /// A pool that has no thread but this one.
    static ALONE: ThreadPool = ThreadPoolBuilder::new()
        .num_threads(1)
        .use_current_thread()
        .build()
        .expect("a pool that starts no thread can be built on a thread that is in no other pool");
}

impl Threads {
    /// Starts `threads` threads.
    ///
    /// # Errors
    /// [`Error::Machine`] if the system cannot start a thread.
    pub(super) fn start(threads: usize) -> Result<Self, Error> {
        if threads == 1 {
            return Ok(Self::Caller);
        }
        let pool = ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("compute-{i}")).build();
        pool.map(Self::Several).map_err(|error| {
            Error::Machine(format!("cannot start {threads} compute threads: {error}; {FEWER_THREADS}"))
        })
    }

    pub(super) fn count(&self) -> usize {
        match self {
            Self::Caller => 1,
            Self::Several(pool) => pool.current_num_threads(),
        }
    }

    /// Runs `work`, and the parallel loops in it, on these threads.
    pub(super) fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match self {
            Self::Caller => ALONE.with(|pool| pool.install(work)),
            Self::Several(pool) => pool.install(work),
        }
    }

    /// Runs `work` once on each thread that was started. The caller is not one of them.
    pub(super) fn for_each_started(&self, work: impl Fn() + Sync) {
        if let Self::Several(pool) = self {
            pool.broadcast(|_| work());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::Thread;

    use rayon::prelude::*;

    use super::*;

    /// Returns the threads that a loop runs on.
    fn of_loop(threads: &Threads) -> Vec<Thread> {
        threads.install(|| (0..100).into_par_iter().map(|_| std::thread::current()).collect())
    }

    #[test]
    fn one_thread_is_the_caller_and_several_are_a_pool() {
        let [one, three] = [1, 3].map(|threads| Threads::start(threads).unwrap());
        assert_eq!([one.count(), three.count()], [1, 3]);
        for _ in 0..2 {
            assert!(of_loop(&one).iter().all(|thread| thread.id() == std::thread::current().id()));
            assert!(of_loop(&three).iter().all(|thread| thread.name().unwrap().starts_with("compute-")));
        }
        // On another thread, it is that thread.
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let all = of_loop(&one);
                assert!(all.iter().all(|thread| thread.id() == std::thread::current().id()));
            });
            other.join().unwrap();
        });
    }
}
