//! What is tried again, and for how long.

use std::time::{Duration, Instant};

use super::answer::Trouble;
use crate::error::Fault;

/// The first pause,
const FIRST: Duration = Duration::from_millis(100);
/// which doubles up to this.
const LONGEST: Duration = Duration::from_secs(5);

/// One request's patience with a failing server.
pub(super) struct Patience {
    limit: Duration,
    since: Instant,
    tries: u32,
    pause: Duration,
}

impl Patience {
    /// Gives up when nothing has come for `limit`.
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, since: Instant::now(), tries: 1, pause: FIRST }
    }

    /// Something has come: the time begins anew.
    pub(super) fn progress(&mut self) {
        *self = Self::new(self.limit);
    }

    /// Waits a while when `trouble` may pass and there is time left.
    pub(super) async fn bear(&mut self, trouble: Trouble) -> Result<(), Trouble> {
        let Trouble::Passing(reason) = trouble else { return Err(trouble) };
        let spent = self.since.elapsed();
        if spent + self.pause > self.limit {
            let (tries, seconds) = (self.tries, spent.as_secs_f64());
            let times = if tries == 1 { "once".to_owned() } else { format!("{tries} times") };
            let problem = format!(
                "{reason}; tried {times} in {seconds:.1} s; check the network and the endpoint, or increase the limit (graph.retry)"
            );
            return Err(Trouble::Final { problem, fault: Fault::Cluster });
        }
        // Readers that were cut off together do not come back together.
        let share = f64::from(Instant::now().duration_since(self.since).subsec_nanos() % 1000) / 1000.0;
        tokio::time::sleep(self.pause.mul_f64(0.5 + share / 2.0)).await;
        self.pause = (self.pause * 2).min(LONGEST);
        self.tries += 1;
        Ok(())
    }
}
