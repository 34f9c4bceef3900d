//! Limits the number of items in flight. Items of earlier times go first.
//!
//! *In*: items. *Out*: the same items, each when a permit is free. *Kept per time*: the items that wait. *Capabilities*:
//! held with them.
//!
//! It stands before the operators that need much memory, such as fetching features. Memory is then bounded per worker, for
//! any number of hosted partitions. An item gets a permit only when no item of an earlier time can still arrive. Otherwise
//! later items could take all permits and then wait for earlier ones. Items that do not wait for each other afterwards may
//! use the variant that keeps the order of arrival.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::operator::Operator;
use timely::scheduling::Activator;

use super::waits::{Cause, Reported};
use crate::time::MessageTime;
use crate::trace::permits::{PermitLog, log};

/// Permits for items in flight on one worker.
pub struct Permits {
    all: usize,
    free: Cell<usize>,
    /// For traces.
    log: RefCell<Option<PermitLog>>,
    waiting: RefCell<Option<Activator>>,
}

impl Permits {
    /// Allows `items` items in flight.
    ///
    /// # Panics
    /// When `items` is 0, since no item would ever pass.
    pub fn new(items: usize) -> Self {
        assert!(items > 0, "permits for nothing");
        Self { all: items, free: Cell::new(items), log: RefCell::default(), waiting: RefCell::default() }
    }

    /// Returns the permit of an item that is done.
    pub fn release(&self) {
        self.set_free(self.free.get() + 1);
        if let Some(waiting) = &*self.waiting.borrow() {
            waiting.activate();
        }
    }

    fn set_free(&self, free: usize) {
        self.free.set(free);
        if let Some(log) = &*self.log.borrow() {
            log.log((self.all - free) as u64);
        }
    }
}

/// Limits the number of items in flight on this worker.
pub trait LimitInFlight<'scope, D> {
    /// Passes each item on when a permit is free. Call [`Permits::release`] when the item is done.
    ///
    /// # Example
    /// ```
    /// use std::rc::Rc;
    /// use gnnflow_dataflow::flow::permits::{LimitInFlight, Permits};
    /// use timely::dataflow::operators::{ToStream, core::Inspect};
    ///
    /// timely::example(|scope| {
    ///     let permits = Rc::new(Permits::new(2));
    ///     (0..8u64).to_stream(scope).container::<Vec<u64>>()
    ///         .limit_in_flight(Rc::clone(&permits))
    ///         .inspect(move |n| { println!("{n} is in flight"); permits.release() });
    /// });
    /// ```
    fn limit_in_flight(self, permits: Rc<Permits>) -> Self;

    /// Like [`limit_in_flight`](Self::limit_in_flight), but passes items in order of arrival, whatever their times. Items that have a
    /// permit must not wait for items that have none.
    ///
    /// # Example
    /// ```
    /// use std::rc::Rc;
    /// use gnnflow_dataflow::flow::permits::{LimitInFlight, Permits};
    /// use timely::dataflow::operators::{ToStream, core::Inspect};
    ///
    /// timely::example(|scope| {
    ///     let permits = Rc::new(Permits::new(2));
    ///     (0..8u64).to_stream(scope).container::<Vec<u64>>()
    ///         .limit_in_flight_fifo(Rc::clone(&permits))
    ///         .inspect(move |n| { println!("{n} is in flight"); permits.release() });
    /// });
    /// ```
    fn limit_in_flight_fifo(self, permits: Rc<Permits>) -> Self;
}

impl<'scope, D: 'static> LimitInFlight<'scope, D> for StreamVec<'scope, u64, D> {
    fn limit_in_flight(self, permits: Rc<Permits>) -> Self {
        let scope = self.scope();
        self.unary_frontier::<CapacityContainerBuilder<Vec<D>>, _, _, _>(
            Pipeline,
            "limit_in_flight",
            move |initial, info| {
                drop(initial);
                *permits.waiting.borrow_mut() = Some(scope.activator_for(info.address));
                *permits.log.borrow_mut() = log(scope.worker());
                type Held<D> = BTreeMap<u64, (Capability<u64>, VecDeque<D>)>;
                let held = Reported::new("limit_in_flight", Held::<D>::new(), |held, wait| {
                    held.values()
                        .for_each(|(time, items)| items.iter().for_each(|_| wait(*time.time(), Cause::Permit)));
                });
                move |(input, frontier), output| {
                    let mut held = held.borrow_mut();
                    input.for_each(|time, items| {
                        let (_, waiting) = held
                            .entry(*time.time())
                            .or_insert_with(|| (time.retain(output.output_index()), VecDeque::new()));
                        waiting.extend(items.drain(..));
                    });
                    while permits.free.get() > 0 {
                        let Some(mut first) = held.first_entry().filter(|first| !frontier.less_than(first.key()))
                        else {
                            break;
                        };
                        let (time, waiting) = first.get_mut();
                        if let Some(item) = waiting.pop_front() {
                            permits.set_free(permits.free.get() - 1);
                            output.session(&*time).give(item);
                        }
                        if waiting.is_empty() {
                            first.remove();
                        }
                    }
                }
            },
        )
    }

    fn limit_in_flight_fifo(self, permits: Rc<Permits>) -> Self {
        let scope = self.scope();
        self.unary::<CapacityContainerBuilder<Vec<D>>, _, _, _>(
            Pipeline,
            "limit_in_flight_fifo",
            move |initial, info| {
                drop(initial);
                *permits.waiting.borrow_mut() = Some(scope.activator_for(info.address));
                *permits.log.borrow_mut() = log(scope.worker());
                type Held<D> = VecDeque<(Capability<u64>, VecDeque<D>)>;
                let held = Reported::new("limit_in_flight_fifo", Held::<D>::new(), |held, wait| {
                    held.iter().for_each(|(time, items)| items.iter().for_each(|_| wait(*time.time(), Cause::Permit)));
                });
                move |input, output| {
                    let mut held = held.borrow_mut();
                    input.for_each(|time, items| {
                        held.push_back((time.retain(output.output_index()), items.drain(..).collect()));
                    });
                    while let Some((time, waiting)) = held.front_mut() {
                        let count = waiting.len().min(permits.free.get());
                        if count > 0 {
                            permits.set_free(permits.free.get() - count);
                            output.session(&*time).give_iterator(waiting.drain(..count));
                        }
                        if !waiting.is_empty() {
                            break;
                        }
                        held.pop_front();
                    }
                }
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use timely::dataflow::operators::core::Inspect;
    use timely::dataflow::operators::vec::Input;
    use timely::dataflow::operators::{Probe, probe};

    use super::*;

    #[test]
    fn items_in_flight_are_limited_and_earlier_times_go_first() {
        timely::execute_directly(|worker| {
            let (permits, admitted) = (Rc::new(Permits::new(2)), Rc::new(RefCell::new(Vec::new())));
            let probe = probe::Handle::new();
            let (mut early, mut late) = worker.dataflow::<u64, _, _>(|scope| {
                use timely::dataflow::operators::core::Concat;
                let ((early, first), (late, second)) = (scope.new_input::<u64>(), scope.new_input::<u64>());
                let admitted = admitted.clone();
                let inspect = move |&n: &u64| admitted.borrow_mut().push(n);
                first.concat(second).limit_in_flight(Rc::clone(&permits)).inspect(inspect).probe_with(&probe);
                (early, late)
            });
            let mut settle = || (0..10).for_each(|_| _ = worker.step());
            late.advance_to(1);
            (10..14).for_each(|n| late.send(n));
            late.advance_to(9);
            settle();
            assert!(admitted.borrow().is_empty(), "an item of time 0 may still come");
            (0..3).for_each(|n| early.send(n));
            early.flush();
            settle();
            assert_eq!(*admitted.borrow(), [0, 1]);
            permits.release();
            settle();
            assert_eq!(*admitted.borrow(), [0, 1, 2]);
            permits.release();
            settle();
            assert_eq!(admitted.borrow().len(), 3, "time 0 is not over");
            early.advance_to(9);
            settle();
            assert_eq!(*admitted.borrow(), [0, 1, 2, 10]);
            for _ in 0..3 {
                permits.release();
            }
            settle();
            assert_eq!(*admitted.borrow(), [0, 1, 2, 10, 11, 12, 13]);
            drop((early, late));
            while !probe.done() {
                worker.step();
            }
        });
    }

    #[test]
    fn items_in_flight_are_limited_in_order_of_arrival() {
        timely::execute_directly(|worker| {
            let (permits, admitted) = (Rc::new(Permits::new(2)), Rc::new(RefCell::new(Vec::new())));
            let probe = probe::Handle::new();
            let mut input = worker.dataflow::<u64, _, _>(|scope| {
                let ((input, items), admitted) = (scope.new_input::<u64>(), admitted.clone());
                let inspect = move |&n: &u64| admitted.borrow_mut().push(n);
                items.limit_in_flight_fifo(Rc::clone(&permits)).inspect(inspect).probe_with(&probe);
                input
            });
            let mut settle = || (0..10).for_each(|_| _ = worker.step());
            (0..3).for_each(|n| input.send(n));
            input.advance_to(1);
            (3..5).for_each(|n| input.send(n));
            input.flush();
            settle();
            assert_eq!(*admitted.borrow(), [0, 1]);
            assert!(probe.less_than(&1), "what waits holds its time");
            permits.release();
            permits.release();
            settle();
            assert_eq!(*admitted.borrow(), [0, 1, 2, 3], "time 1 need not be over");
            assert!(!probe.less_than(&1) && probe.less_than(&2));
            permits.release();
            input.close();
            while !probe.done() {
                worker.step();
            }
            assert_eq!(*admitted.borrow(), [0, 1, 2, 3, 4]);
        });
    }
}
