//! The loop of a worker that drives its dataflows.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use gnnflow_dataflow::flow::waits::waits;
use gnnflow_dataflow::time;
use gnnflow_dataflow::trace::causes;
use timely::dataflow::operators::probe;
use timely::worker::Worker;

use crate::error::Error;
use crate::runtime::job::Runtime;

/// The first error of an operator, for the loop that drives the worker.
#[derive(Clone, Default)]
pub(crate) struct FirstError(Rc<RefCell<Option<Error>>>);

impl FirstError {
    /// Returns the value, or stores the error if it is the first.
    pub(crate) fn capture<T>(&self, result: Result<T, Error>) -> Option<T> {
        result.map_err(|error| self.0.borrow_mut().get_or_insert(error).to_string()).ok()
    }

    /// Returns the stored error, if any.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.0.borrow_mut().take().map_or(Ok(()), Err)
    }
}

/// A worker, and the program around it.
pub(crate) struct Driver<'a> {
    pub(crate) worker: &'a mut Worker,
    pub(crate) runtime: &'a dyn Runtime,
}

impl Driver<'_> {
    /// Runs the worker's dataflows until `probe` has passed all times before `time`. Reports turns of the loop and changes of
    /// the frontier to the runtime, whose stall detector ends the wait.
    ///
    /// # Errors
    /// The first error in `errors`.
    pub(crate) fn run_until(
        &mut self,
        probe: &probe::Handle<u64>,
        time: u64,
        errors: &FirstError,
    ) -> Result<(), Error> {
        self.run_with(probe, time, &mut || errors.check())
    }

    /// [`Driver::run_until`], which calls `after_turn` after each turn of the loop.
    pub(super) fn run_with(
        &mut self,
        probe: &probe::Handle<u64>,
        time: u64,
        after_turn: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        while probe.less_than(&time) {
            self.turn_towards(probe);
            after_turn()?;
        }
        Ok(())
    }

    /// Runs the worker's dataflows until `take` returns a value, or until `probe` has passed all times before `time`.
    pub(super) fn run_until_some<T>(
        &mut self,
        probe: &probe::Handle<u64>,
        time: u64,
        take: &mut dyn FnMut() -> Option<T>,
    ) -> Option<T> {
        loop {
            if let Some(value) = take() {
                self.runtime.progressed();
                return Some(value);
            }
            if !probe.less_than(&time) {
                return None;
            }
            self.turn_towards(probe);
        }
    }

    /// Runs one turn of the loop. Reports if it has moved the frontier of `probe`.
    fn turn_towards(&mut self, probe: &probe::Handle<u64>) {
        let frontier = || probe.with_frontier(|frontier| frontier.first().copied());
        let before = frontier();
        self.turn(before);
        if frontier() != before {
            self.runtime.progressed();
        }
    }

    /// Runs one turn of the loop.
    ///
    /// # Errors
    /// As [`Driver::run_until`].
    pub(crate) fn step(&mut self, errors: &FirstError) -> Result<(), Error> {
        self.turn(None);
        errors.check()
    }

    /// Lets the dataflows do what is ready, without waiting.
    ///
    /// # Errors
    /// As [`Driver::run_until`].
    pub(crate) fn poll(&mut self, errors: &FirstError) -> Result<(), Error> {
        self.report(None);
        self.worker.step();
        errors.check()
    }

    /// Reports a turn of the loop and, in a stalled run, what the worker waits for: the end of `frontier`, and the items of operators.
    fn report(&self, frontier: Option<u64>) {
        self.runtime.turned();
        if self.runtime.waits_wanted() {
            let frontier = frontier.map(|time| format!("its worker waits for the end of time {}", time::text(time)));
            self.runtime.set_waits(frontier.into_iter().chain(waits().iter().map(ToString::to_string)).collect());
        }
    }

    fn turn(&mut self, frontier: Option<u64>) {
        self.report(frontier);
        causes::note(self.worker);
        // The wait is bounded, because the loop must report turns and check for errors.
        self.worker.step_or_park(Some(Duration::from_millis(10)));
    }
}
