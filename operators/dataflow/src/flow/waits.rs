//! What the operators of a worker wait for, for reports of stalls.
//!
//! An operator that holds items keeps them in a `Reported` state. [`waits`] asks all operators of this worker's thread.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::{Rc, Weak};

use crate::time;

thread_local! {
    static STATES: RefCell<Vec<Weak<dyn Describe>>> = const { RefCell::new(Vec::new()) };
}

/// What an operator waits for at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The name of the operator.
    pub operator: String,
    /// The time of its items.
    pub time: u64,
    /// Its items that wait.
    pub items: usize,
    /// What they wait for.
    pub cause: Cause,
}

/// What items wait for.
///
/// In this order, a cause explains those after it: an item that waits for a thread or for another worker is why a contribution of its own partition
/// is missing; and permits are free, and earlier times end, when the items before them are done.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// A result of another thread of this process.
    Thread,
    /// The registered operator that received them and has not returned them.
    Operator,
    /// Messages of these workers.
    Workers(Vec<u32>),
    /// The contributions of these partitions.
    Partitions(Vec<u32>),
    /// The end of other items, which have all permits.
    Permit,
    /// The end of earlier times at all workers.
    EarlierTimes,
}

/// `fetch_rows: 2 items at time (3, 17) wait for rank 0`. A time is an epoch, from 0, and a step or a stage of it.
impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operator, items, cause, .. } = self;
        let (plural, wait) = if *items == 1 { ("", "waits") } else { ("s", "wait") };
        write!(f, "{operator}: {items} item{plural} at time {} {wait} for {cause}", time::text(self.time))
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |numbers: &[u32]| {
            let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
            let plural = if numbers.len() == 1 { "" } else { "s" };
            (plural, numbers.join(", "))
        };
        match self {
            Self::Workers(ranks) => {
                let (plural, ranks) = list(ranks);
                write!(f, "rank{plural} {ranks}")
            }
            Self::Partitions(parts) => {
                let (plural, parts) = list(parts);
                write!(f, "the contribution{plural} of partition{plural} {parts}")
            }
            Self::Thread => f.write_str("another thread of this process"),
            Self::Operator => f.write_str("this registered operator"),
            Self::EarlierTimes => f.write_str("the end of earlier times"),
            Self::Permit => f.write_str("the end of items in flight"),
        }
    }
}

/// The state of an operator, which describes what it waits for. Cheap to clone.
pub(crate) struct Reported<S>(Rc<Shared<S>>);

struct Shared<S> {
    operator: String,
    state: RefCell<S>,
    /// Calls its second argument for each wait.
    describe: fn(&S, &mut dyn FnMut(u64, Cause)),
}

impl<S> Clone for Reported<S> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

trait Describe {
    fn describe(&self, found: &mut Vec<Wait>);

    /// Calls `wait` for each item.
    fn each(&self, wait: &mut dyn FnMut(u64, Cause));
}

impl<S> Describe for Shared<S> {
    fn describe(&self, found: &mut Vec<Wait>) {
        // An operator that runs now does not wait.
        let Ok(state) = self.state.try_borrow() else { return };
        let mut by_time: BTreeMap<u64, Vec<(Cause, usize)>> = BTreeMap::new();
        (self.describe)(&state, &mut |time, cause| {
            let causes = by_time.entry(time).or_default();
            match causes.iter_mut().find(|(other, _)| *other == cause) {
                Some((_, items)) => *items += 1,
                None => causes.push((cause, 1)),
            }
        });
        for (time, causes) in by_time {
            let waits =
                causes.into_iter().map(|(cause, items)| Wait { operator: self.operator.clone(), time, items, cause });
            found.extend(waits);
        }
    }

    fn each(&self, wait: &mut dyn FnMut(u64, Cause)) {
        if let Ok(state) = self.state.try_borrow() {
            (self.describe)(&state, wait);
        }
    }
}

impl<S: 'static> Reported<S> {
    /// Makes the state of the operator with this name. `describe` calls its second argument with the time of each item that waits, and what it
    /// waits for.
    pub(crate) fn new(operator: impl Into<String>, state: S, describe: fn(&S, &mut dyn FnMut(u64, Cause))) -> Self {
        let shared = Rc::new(Shared { operator: operator.into(), state: RefCell::new(state), describe });
        let described: Rc<dyn Describe> = Rc::clone(&shared) as _;
        STATES.with_borrow_mut(|states| {
            states.retain(|state| state.strong_count() > 0);
            states.push(Rc::downgrade(&described));
        });
        Self(shared)
    }

    pub(crate) fn borrow_mut(&self) -> RefMut<'_, S> {
        self.0.state.borrow_mut()
    }
}

/// Returns what the operators of this thread's worker wait for, by time. Call it between two steps of the worker.
///
/// ```
/// use std::rc::Rc;
/// use gnnflow_dataflow::flow::advance_times::AdvanceTimes;
/// use gnnflow_dataflow::flow::gate::{Gate, Gated};
/// use gnnflow_dataflow::flow::waits::waits;
/// use timely::dataflow::operators::ToStream;
///
/// timely::execute_directly(|worker| {
///     let gate = Rc::new(Gate::default());
///     worker.dataflow::<u64, _, _>(|scope| {
///         [7u64].to_stream(scope).container::<Vec<u64>>().advance_times(|_| 3).gate(Rc::clone(&gate));
///     });
///     worker.step();
///     worker.step();
///     let waits: Vec<String> = waits().iter().map(ToString::to_string).collect();
///     assert_eq!(waits, ["gate: 1 item at time (0, 3) waits for the end of earlier times"]);
///     gate.open(3);
/// });
/// ```
pub fn waits() -> Vec<Wait> {
    let mut found = Vec::new();
    STATES.with_borrow(|states| {
        states.iter().filter_map(Weak::upgrade).for_each(|state| state.describe(&mut found));
    });
    found.sort_by_key(|wait| wait.time);
    found
}

/// Returns what the items of the earliest time wait for, the first in the order of [`Cause`]; `None` if no operator of this thread's worker
/// holds items. Cheaper than [`waits`].
pub fn first_cause() -> Option<Cause> {
    let mut first: Option<(u64, Cause)> = None;
    let mut wait = |time: u64, cause: Cause| {
        if first.as_ref().is_none_or(|(earliest, other)| (time, &cause) < (*earliest, other)) {
            first = Some((time, cause));
        }
    };
    STATES.with_borrow(|states| states.iter().filter_map(Weak::upgrade).for_each(|state| state.each(&mut wait)));
    first.map(|(_, cause)| cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_cause_is_that_of_the_earliest_time() {
        assert_eq!(first_cause(), None);
        type State = Vec<(u64, Cause)>;
        let describe: fn(&State, &mut dyn FnMut(u64, Cause)) =
            |items, wait| items.iter().for_each(|(time, cause)| wait(*time, cause.clone()));
        let later = Reported::new("gate", vec![(5, Cause::EarlierTimes), (6, Cause::Thread)], describe);
        assert_eq!(first_cause(), Some(Cause::EarlierTimes));
        let earlier = Reported::new("sum", vec![(4, Cause::Permit), (4, Cause::Partitions(vec![2]))], describe);
        assert_eq!(first_cause(), Some(Cause::Partitions(vec![2])));
        earlier.borrow_mut().clear();
        assert_eq!(first_cause(), Some(Cause::EarlierTimes));
        drop((later, earlier));
        assert_eq!(first_cause(), None);
    }

    #[test]
    fn equal_waits_are_counted_and_sorted_by_time() {
        type State = Vec<(u64, u32)>;
        let describe: fn(&State, &mut dyn FnMut(u64, Cause)) =
            |items, wait| items.iter().for_each(|&(time, rank)| wait(time, Cause::Workers(vec![rank])));
        let state =
            Reported::new("fetch", vec![(time::at(1, 4), 2), (time::at(0, 1), 0), (time::at(1, 4), 2)], describe);
        let gone = Reported::new("gone", vec![(0, 0)], describe);
        drop(gone);
        let texts = || waits().iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            texts(),
            ["fetch: 1 item at time (0, 1) waits for rank 0", "fetch: 2 items at time (1, 4) wait for rank 2"]
        );
        let changed = state.borrow_mut();
        assert!(waits().is_empty(), "the operator runs");
        drop(changed);
        state.borrow_mut().clear();
        assert!(waits().is_empty());
        let causes = [Cause::Partitions(vec![1, 3]), Cause::Thread, Cause::EarlierTimes, Cause::Permit];
        assert_eq!(
            causes.map(|cause| cause.to_string()),
            [
                "the contributions of partitions 1, 3",
                "another thread of this process",
                "the end of earlier times",
                "the end of items in flight"
            ]
        );
    }
}
