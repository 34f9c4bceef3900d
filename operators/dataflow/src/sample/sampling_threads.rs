//! The threads of a worker that sample.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

use super::draw::Draw;
use crate::batch::mini_batch::MiniBatch;
use crate::trace::pool::PoolTrace;
use gnnflow_kernels::compact::Compactor;

/// The sampling threads of one worker.
pub struct SamplingThreads {
    pool: RwLock<Arc<ThreadPool>>,
    /// Compactors for reuse.
    compactors: Mutex<Vec<Compactor>>,
    trace: OnceLock<Arc<PoolTrace>>,
}

impl SamplingThreads {
    /// Starts `threads` threads.
    ///
    /// # Errors
    /// When the system cannot start them.
    pub fn start(threads: usize) -> Result<Self, ThreadPoolBuildError> {
        Ok(Self { pool: RwLock::new(Arc::new(pool(threads)?)), compactors: Mutex::default(), trace: OnceLock::new() })
    }

    /// Changes the number of threads. The old threads finish the tasks that they have.
    ///
    /// # Errors
    /// When the system cannot start the threads. The old ones stay in use then.
    pub fn resize(&self, threads: usize) -> Result<(), ThreadPoolBuildError> {
        if threads != self.threads() {
            let new = Arc::new(pool(threads)?);
            self.trace.get().into_iter().for_each(|trace| trace.add_pool(&new));
            *self.pool.write().unwrap_or_else(PoisonError::into_inner) = new;
        }
        Ok(())
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.pool().current_num_threads()
    }

    /// Records the jobs that begin later. Only the first call has an effect.
    pub fn record(&self, trace: Arc<PoolTrace>) {
        self.trace.get_or_init(|| {
            trace.add_pool(&self.pool());
            trace
        });
    }

    /// Runs `work` on the threads and waits for its result. `name` is that of traces.
    pub fn install<R: Send>(&self, name: &str, work: impl FnOnce() -> R + Send) -> R {
        self.pool().install(|| self.traced(name, work))
    }

    /// Runs `work` on the calling thread, one of the pool.
    fn traced<R>(&self, name: &str, work: impl FnOnce() -> R) -> R {
        match self.trace.get() {
            Some(trace) => trace.record(name, work),
            None => work(),
        }
    }

    pub(super) fn pool(&self) -> Arc<ThreadPool> {
        Arc::clone(&self.pool.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Samples all hops of a batch on the calling thread, one of the pool. Returns the time taken.
    pub(super) fn sample(&self, batch: &mut MiniBatch, hops: &[Draw]) -> Duration {
        self.traced("sample_batch", || self.sample_hops(batch, hops))
    }

    fn sample_hops(&self, batch: &mut MiniBatch, hops: &[Draw]) -> Duration {
        let start = Instant::now();
        let Some(nodes) = hops.first().map(|hop| hop.graph.num_nodes()) else { return Duration::ZERO };
        let spare = self.compactors.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut compactor = spare.unwrap_or_else(|| Compactor::new(nodes));
        compactor.start(&batch.nodes);
        hops.iter().for_each(|hop| hop.add_hop(batch, &mut compactor));
        self.compactors.lock().unwrap_or_else(PoisonError::into_inner).push(compactor);
        start.elapsed()
    }
}

fn pool(threads: usize) -> Result<ThreadPool, ThreadPoolBuildError> {
    ThreadPoolBuilder::new().num_threads(threads.max(1)).thread_name(|i| format!("sample-{i}")).build()
}
