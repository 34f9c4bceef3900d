//! Lets only so many items be under way at once, earlier times first.
//!
//! *In*: items. *Out*: the same items, each when there is room for it. *Kept per time*: the items that wait. *Capabilities*:
//! held with them.
//!
//! It stands before what is large (a batch's features), so that memory is bounded per worker however many partitions it
//! hosts. Items of a time are admitted only when no item of an earlier time can still arrive: later ones could otherwise
//! take all room while they wait, further on, for the earlier ones. Where items wait for nobody further on, they may be
//! admitted in turn.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::operator::Operator;
use timely::scheduling::Activator;

/// Room for items under way.
pub struct Room {
    free: Cell<usize>,
    waiting: RefCell<Option<Activator>>,
}

impl Room {
    /// Room for `items` at once.
    ///
    /// # Panics
    /// When `items` is 0: nothing would ever be admitted.
    pub fn new(items: usize) -> Self {
        assert!(items > 0, "room for nothing");
        Self { free: Cell::new(items), waiting: RefCell::default() }
    }

    /// An admitted item is through.
    pub fn leave(&self) {
        self.free.set(self.free.get() + 1);
        if let Some(waiting) = &*self.waiting.borrow() {
            waiting.activate();
        }
    }
}

/// Admission into a bounded room of the same worker.
pub trait Admit<'scope, D> {
    /// Admits each item when there is room for it; whoever is done with one calls [`Room::leave`].
    ///
    /// # Example
    /// ```
    /// use std::rc::Rc;
    /// use gnnflow_dataflow::flow::permits::{Admit, Room};
    /// use timely::dataflow::operators::{ToStream, core::Inspect};
    ///
    /// timely::example(|scope| {
    ///     let room = Rc::new(Room::new(2));
    ///     (0..8u64).to_stream(scope).container::<Vec<u64>>()
    ///         .admit(Rc::clone(&room))
    ///         .inspect(move |n| { println!("{n} is under way"); room.leave() });
    /// });
    /// ```
    fn admit(self, room: Rc<Room>) -> Self;

    /// The same for items that wait for nobody once they are admitted: in the order in which they come, whatever their times.
    ///
    /// # Example
    /// ```
    /// use std::rc::Rc;
    /// use gnnflow_dataflow::flow::permits::{Admit, Room};
    /// use timely::dataflow::operators::{ToStream, core::Inspect};
    ///
    /// timely::example(|scope| {
    ///     let room = Rc::new(Room::new(2));
    ///     (0..8u64).to_stream(scope).container::<Vec<u64>>()
    ///         .admit_in_turn(Rc::clone(&room))
    ///         .inspect(move |n| { println!("{n} is on its way"); room.leave() });
    /// });
    /// ```
    fn admit_in_turn(self, room: Rc<Room>) -> Self;
}

impl<'scope, D: 'static> Admit<'scope, D> for StreamVec<'scope, u64, D> {
    fn admit(self, room: Rc<Room>) -> Self {
        let scope = self.scope();
        self.unary_frontier::<CapacityContainerBuilder<Vec<D>>, _, _, _>(Pipeline, "admit", move |initial, info| {
            drop(initial);
            *room.waiting.borrow_mut() = Some(scope.activator_for(info.address));
            let mut held: BTreeMap<u64, (Capability<u64>, VecDeque<D>)> = BTreeMap::new();
            move |(input, frontier), output| {
                input.for_each(|time, items| {
                    let (_, waiting) = held
                        .entry(*time.time())
                        .or_insert_with(|| (time.retain(output.output_index()), VecDeque::new()));
                    waiting.extend(items.drain(..));
                });
                while room.free.get() > 0 {
                    let Some(mut first) = held.first_entry().filter(|first| !frontier.less_than(first.key())) else {
                        break;
                    };
                    let (time, waiting) = first.get_mut();
                    if let Some(item) = waiting.pop_front() {
                        room.free.set(room.free.get() - 1);
                        output.session(&*time).give(item);
                    }
                    if waiting.is_empty() {
                        first.remove();
                    }
                }
            }
        })
    }

    fn admit_in_turn(self, room: Rc<Room>) -> Self {
        let scope = self.scope();
        self.unary::<CapacityContainerBuilder<Vec<D>>, _, _, _>(Pipeline, "admit in turn", move |initial, info| {
            drop(initial);
            *room.waiting.borrow_mut() = Some(scope.activator_for(info.address));
            let mut held: VecDeque<(Capability<u64>, VecDeque<D>)> = VecDeque::new();
            move |input, output| {
                input.for_each(|time, items| {
                    held.push_back((time.retain(output.output_index()), items.drain(..).collect()));
                });
                while let Some((time, waiting)) = held.front_mut() {
                    let count = waiting.len().min(room.free.get());
                    if count > 0 {
                        room.free.set(room.free.get() - count);
                        output.session(&*time).give_iterator(waiting.drain(..count));
                    }
                    if !waiting.is_empty() {
                        break;
                    }
                    held.pop_front();
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use timely::dataflow::operators::core::Inspect;
    use timely::dataflow::operators::vec::Input;
    use timely::dataflow::operators::{Probe, probe};

    use super::*;

    #[test]
    fn no_more_than_fit_are_under_way_and_earlier_times_go_first() {
        timely::execute_directly(|worker| {
            let (room, admitted) = (Rc::new(Room::new(2)), Rc::new(RefCell::new(Vec::new())));
            let probe = probe::Handle::new();
            let (mut early, mut late) = worker.dataflow::<u64, _, _>(|scope| {
                use timely::dataflow::operators::core::Concat;
                let ((early, first), (late, second)) = (scope.new_input::<u64>(), scope.new_input::<u64>());
                let admitted = admitted.clone();
                let inspect = move |&n: &u64| admitted.borrow_mut().push(n);
                first.concat(second).admit(Rc::clone(&room)).inspect(inspect).probe_with(&probe);
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
            room.leave();
            settle();
            assert_eq!(*admitted.borrow(), [0, 1, 2]);
            room.leave();
            settle();
            assert_eq!(admitted.borrow().len(), 3, "time 0 is not over");
            early.advance_to(9);
            settle();
            assert_eq!(*admitted.borrow(), [0, 1, 2, 10]);
            for _ in 0..3 {
                room.leave();
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
    fn in_turn_no_more_than_fit_are_under_way_whatever_their_times() {
        timely::execute_directly(|worker| {
            let (room, admitted) = (Rc::new(Room::new(2)), Rc::new(RefCell::new(Vec::new())));
            let probe = probe::Handle::new();
            let mut input = worker.dataflow::<u64, _, _>(|scope| {
                let ((input, items), admitted) = (scope.new_input::<u64>(), admitted.clone());
                let inspect = move |&n: &u64| admitted.borrow_mut().push(n);
                items.admit_in_turn(Rc::clone(&room)).inspect(inspect).probe_with(&probe);
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
            room.leave();
            room.leave();
            settle();
            assert_eq!(*admitted.borrow(), [0, 1, 2, 3], "time 1 need not be over");
            assert!(!probe.less_than(&1) && probe.less_than(&2));
            room.leave();
            input.close();
            while !probe.done() {
                worker.step();
            }
            assert_eq!(*admitted.borrow(), [0, 1, 2, 3, 4]);
        });
    }
}
