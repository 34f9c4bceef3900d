//! Turning a worker's loop until its dataflows have come far enough.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use timely::dataflow::operators::probe;
use timely::worker::Worker;

use crate::error::Error;
use crate::runtime::job::Runtime;

/// The first error of an operator, on its way to the loop that turns the worker.
#[derive(Clone, Default)]
pub(crate) struct FirstError(Rc<RefCell<Option<Error>>>);

impl FirstError {
    /// The value, or nothing and the error kept.
    pub(crate) fn capture<T>(&self, result: Result<T, Error>) -> Option<T> {
        result.map_err(|error| self.0.borrow_mut().get_or_insert(error).to_string()).ok()
    }

    /// The error that was kept, if any.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.0.borrow_mut().take().map_or(Ok(()), Err)
    }
}

/// Turns the loop until `probe` has passed every time before `tick`.
///
/// # Errors
/// The first error that an operator kept in `errors`.
pub(crate) fn run_until(
    worker: &mut Worker,
    runtime: &dyn Runtime,
    errors: &FirstError,
    probe: &probe::Handle<u64>,
    tick: u64,
) -> Result<(), Error> {
    let frontier = || probe.with_frontier(|frontier| frontier.first().copied());
    let mut reached = frontier();
    while probe.less_than(&tick) {
        step(worker, runtime, errors)?;
        let now = frontier();
        if now != reached {
            reached = now;
            runtime.progressed();
        }
    }
    Ok(())
}

/// Turns the loop once.
pub(crate) fn step(worker: &mut Worker, runtime: &dyn Runtime, errors: &FirstError) -> Result<(), Error> {
    runtime.turned();
    // A bound on the wait: the loop must show that it lives, and looks for errors.
    worker.step_or_park(Some(Duration::from_millis(10)));
    errors.check()
}
