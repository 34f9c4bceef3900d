//! Connections that a listener has refused, as log lines and for errors.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of log lines about refused connections, per reason and in all. Further ones are counted.
const MAX_LOGGED_PER_REASON: usize = 3;
const MAX_LOGGED: usize = 30;

/// The refused connections of a listener. Other programs cannot fill the memory or the log.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<Refused>);

#[derive(Debug, Default)]
struct Refused {
    total: usize,
    logged: usize,
    by_reason: HashMap<String, usize>,
    /// The last one, which may be a missing rank with a wrong secret.
    last: String,
}

impl Refusals {
    fn lock(&self) -> MutexGuard<'_, Refused> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a refused connection.
    pub(super) fn add(&self, from: SocketAddr, why: &str) {
        let mut refused = self.lock();
        refused.total += 1;
        refused.last = format!("from {from}: {why}");
        // After the last log line, new reasons are not stored.
        if refused.logged >= MAX_LOGGED {
            return;
        }
        let count = refused.by_reason.entry(why.to_string()).or_default();
        *count += 1;
        if *count <= MAX_LOGGED_PER_REASON {
            refused.logged += 1;
            tracing::warn!("refused a connection from {from}: {why}");
        }
    }

    /// Returns the end of a message about missing processes: the last refused connection, if there is one.
    pub(super) fn hint(&self) -> String {
        match self.lock().last.as_str() {
            "" => String::new(),
            last => format!("; the last connection refused here was {last}"),
        }
    }

    /// Logs how many there were, if not all have a line.
    pub(super) fn log_total(&self) {
        let refused = self.lock();
        if refused.total > refused.logged {
            tracing::warn!("refused {} connections in all while the processes connected", refused.total);
        }
    }
}
