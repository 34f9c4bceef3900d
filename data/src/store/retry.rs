//! Retries of requests after temporary failures.

use std::time::{Duration, Instant};

use super::failure::Failure;
use crate::error::Fault;

/// The first pause. Pauses double.
const FIRST: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(5);

/// The retries of one request.
pub(super) struct Retries {
    limit: Duration,
    since: Instant,
    tries: u32,
    pause: Duration,
}

impl Retries {
    /// Creates retries that end when no data has arrived for `limit`.
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, since: Instant::now(), tries: 1, pause: FIRST }
    }

    /// Restarts the time limit, because data has arrived.
    pub(super) fn progress(&mut self) {
        *self = Self::new(self.limit);
    }

    /// Pauses after a temporary failure.
    ///
    /// # Errors
    /// When the failure is permanent or the time limit is reached.
    pub(super) async fn pause(&mut self, failure: Failure) -> Result<(), Failure> {
        let Failure::Temporary(reason) = failure else { return Err(failure) };
        let spent = self.since.elapsed();
        if spent + self.pause > self.limit {
            let (tries, seconds) = (self.tries, spent.as_secs_f64());
            let times = if tries == 1 { "once".to_owned() } else { format!("{tries} times") };
            let problem = format!(
                "{reason}; tried {times} in {seconds:.1} s; check the network and the endpoint, or increase the limit (graph.retry)"
            );
            return Err(Failure::Permanent { problem, fault: Fault::Cluster });
        }
        // Pauses vary, so that readers that failed together do not retry together.
        let share = f64::from(Instant::now().duration_since(self.since).subsec_nanos() % 1000) / 1000.0;
        tokio::time::sleep(self.pause.mul_f64(0.5 + share / 2.0)).await;
        self.pause = (self.pause * 2).min(LONGEST);
        self.tries += 1;
        Ok(())
    }
}
