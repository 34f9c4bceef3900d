//! Holds items back until a gate opens for their time.
//!
//! *In*: items. *Out*: the same items, in time order, once the gate is open for their time. *Kept per time*: the items.
//! *Capabilities*: held with the items.
//!
//! Synchronous training has a gate between fetch and compute. Step `s + 1` may be sampled and fetched early, but is
//! computed only after step `s` has been applied.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::operator::Operator;
use timely::scheduling::Activator;

use super::waits::{Cause, Reported};
use crate::time::MessageTime;

/// The latest time whose items may pass a [`Gated`] stream of the same worker. Time 0 at first.
#[derive(Default)]
pub struct Gate {
    open: Cell<u64>,
    holder: RefCell<Option<Activator>>,
}

impl Gate {
    /// Opens the gate for items of times up to and including `time`. An open gate never closes.
    pub fn open(&self, time: u64) {
        if time > self.open.get() {
            self.open.set(time);
            if let Some(holder) = &*self.holder.borrow() {
                holder.activate();
            }
        }
    }
}

/// Holds items back at a [`Gate`].
pub trait Gated<'scope, D> {
    /// Holds each item until `gate` is open for its time.
    ///
    /// # Example
    /// ```
    /// use std::rc::Rc;
    /// use gnnflow_dataflow::flow::gate::{Gate, Gated};
    /// use timely::dataflow::operators::{ToStream, core::Inspect};
    ///
    /// timely::example(|scope| {
    ///     let gate = Rc::new(Gate::default()); // open for time 0
    ///     (0..8u64).to_stream(scope).container::<Vec<u64>>().gate(gate).inspect(|n| println!("{n} passed"));
    /// });
    /// ```
    fn gate(self, gate: Rc<Gate>) -> Self;
}

impl<'scope, D: 'static> Gated<'scope, D> for StreamVec<'scope, u64, D> {
    fn gate(self, gate: Rc<Gate>) -> Self {
        let scope = self.scope();
        self.unary_frontier::<CapacityContainerBuilder<Vec<D>>, _, _, _>(Pipeline, "gate", move |initial, info| {
            drop(initial);
            *gate.holder.borrow_mut() = Some(scope.activator_for(info.address));
            type Held<D> = BTreeMap<u64, (Capability<u64>, Vec<D>)>;
            let held = Reported::new("gate", Held::<D>::new(), |held, wait| {
                held.values()
                    .for_each(|(time, items)| items.iter().for_each(|_| wait(*time.time(), Cause::EarlierTimes)));
            });
            move |(input, _frontier), output| {
                let mut held = held.borrow_mut();
                input.for_each(|time, items| {
                    let (_, waiting) =
                        held.entry(*time.time()).or_insert_with(|| (time.retain(output.output_index()), Vec::new()));
                    waiting.append(items);
                });
                while let Some(first) = held.first_entry().filter(|first| *first.key() <= gate.open.get()) {
                    let (time, mut items) = first.remove();
                    output.session(&time).give_iterator(items.drain(..));
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
    fn items_wait_for_their_gate() {
        timely::execute_directly(|worker| {
            let (gate, passed) = (Rc::new(Gate::default()), Rc::new(RefCell::new(Vec::new())));
            let probe = probe::Handle::new();
            let mut input = worker.dataflow::<u64, _, _>(|scope| {
                let (input, stream) = scope.new_input::<u64>();
                let passed = passed.clone();
                stream.gate(gate.clone()).inspect(move |&n| passed.borrow_mut().push(n)).probe_with(&probe);
                input
            });
            for n in 0..4 {
                input.send(n);
                input.advance_to(n + 1);
            }
            (0..10).for_each(|_| {
                worker.step();
            });
            assert_eq!(*passed.borrow(), [0]);
            assert!(probe.less_than(&2) && !probe.less_than(&1));
            gate.open(2);
            (0..10).for_each(|_| {
                worker.step();
            });
            assert_eq!(*passed.borrow(), [0, 1, 2]);
            gate.open(9);
            drop(input);
            while !probe.done() {
                worker.step();
            }
            assert_eq!(*passed.borrow(), [0, 1, 2, 3]);
        });
    }
}
