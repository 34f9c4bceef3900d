//! The number of permits in use on a worker.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use timely::container::CapacityContainerBuilder;
use timely::logging_core::Logger;
use timely::worker::Worker;

use super::counter::Counter;

/// Receives the number of permits in use when it changes.
pub type PermitLog = Logger<PermitLogBuilder>;

type PermitLogBuilder = CapacityContainerBuilder<Vec<(Duration, u64)>>;

/// The log stream of permits.
const PERMITS: &str = "gnnflow/permits";

/// Records the permits of dataflows of `worker` that are built later, by [`Worker::timer`]. Flush as for [`super::worker`].
/// Returns `None` if timely's logging is disabled.
pub fn record(worker: &Worker) -> Option<Rc<RefCell<Counter>>> {
    let mut register = worker.log_register()?;
    let counter = Rc::new(RefCell::new(Counter::default()));
    let recorded = Rc::clone(&counter);
    register.insert::<PermitLogBuilder, _>(PERMITS, move |_, events| {
        let mut counter = recorded.borrow_mut();
        events.iter_mut().flat_map(|events| events.drain(..)).for_each(|(time, used)| counter.add(time, used));
    });
    Some(counter)
}

/// Returns the log of permits, if they are recorded.
pub(crate) fn log(worker: &Worker) -> Option<PermitLog> {
    worker.log_register()?.get::<PermitLogBuilder>(PERMITS)
}
