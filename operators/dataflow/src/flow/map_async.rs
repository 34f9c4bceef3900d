//! Maps items to results that other threads produce later, in any order.
//!
//! *In*: items. *Out*: one result per item, in order of completion. *Kept*: one capability per outstanding item. *Capabilities*: held
//! from an item's arrival until its result is sent. A result, from any thread, activates the operator.
//!
//! [`on_thread`](super::compute_thread) does the same with one thread, which completes items in order.

use std::any::Any;
use std::collections::HashMap;
use std::sync::mpsc;

use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::operator::Operator;
use timely::progress::Timestamp;
use timely::scheduling::SyncActivator;

use super::waits::{Cause, Reported};
use crate::time::MessageTime;

/// Completes one item. The frontier does not pass the item's time before it is used.
pub struct Completer<R> {
    item: u64,
    results: mpsc::Sender<(u64, R)>,
    wake: SyncActivator,
}

impl<R> Completer<R> {
    /// Sends the result to the operator.
    pub fn give(self, result: R) {
        // The receiver or the worker is dropped when the dataflow ends.
        if self.results.send((self.item, result)).is_ok() {
            let _ = self.wake.activate();
        }
    }
}

/// Maps items to results that are produced later.
pub trait MapAsync<'scope, T: Timestamp, D> {
    /// Calls `begin` with each item and a [`Completer`], which any thread may use at any time.
    ///
    /// # Example
    /// ```
    /// use gnnflow_dataflow::flow::map_async::MapAsync;
    /// use timely::dataflow::operators::{ToStream, core::Inspect};
    ///
    /// timely::example(|scope| {
    ///     (0..8u64).to_stream(scope).container::<Vec<u64>>()
    ///         .map_async("square", |n, done| drop(std::thread::spawn(move || done.give(n * n))))
    ///         .inspect(|square| println!("{square}"));
    /// });
    /// ```
    fn map_async<R, F>(self, name: &str, begin: F) -> StreamVec<'scope, T, R>
    where
        R: Send + 'static,
        F: FnMut(D, Completer<R>) + 'static;
}

impl<'scope, T: Timestamp, D: 'static> MapAsync<'scope, T, D> for StreamVec<'scope, T, D> {
    fn map_async<R, F>(self, name: &str, mut begin: F) -> StreamVec<'scope, T, R>
    where
        R: Send + 'static,
        F: FnMut(D, Completer<R>) + 'static,
    {
        let (scope, operator) = (self.scope(), name.to_owned());
        self.unary_frontier::<CapacityContainerBuilder<Vec<R>>, _, _, _>(Pipeline, name, move |initial, info| {
            drop(initial);
            // Made on the worker's own thread, which it wakes.
            let wake = scope.worker().sync_activator_for(info.address.to_vec());
            let (sender, results) = mpsc::channel::<(u64, R)>();
            let held = Reported::new(operator, HashMap::<u64, Capability<T>>::new(), |held, wait| {
                // Reports have the times of an epoch and a step only.
                let times = held.values().filter_map(|held| (held.time() as &dyn Any).downcast_ref::<u64>());
                times.for_each(|time| wait(*time, Cause::Thread));
            });
            let mut next = 0;
            move |(input, _frontier), output| {
                let mut held = held.borrow_mut();
                input.for_each(|time, items| {
                    for item in items.drain(..) {
                        held.insert(next, time.retain(output.output_index()));
                        begin(item, Completer { item: next, results: sender.clone(), wake: wake.clone() });
                        next += 1;
                    }
                });
                while let Ok((item, result)) = results.try_recv() {
                    let time = held.remove(&item).expect("one capability per item, completed once");
                    output.session(&time).give(result);
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use timely::dataflow::operators::vec::Input;
    use timely::dataflow::operators::{Capture, Probe, capture::Extract, probe};

    use super::*;

    #[test]
    fn results_have_the_times_of_their_items_at_1_2_and_4_workers() {
        for workers in [1, 2, 4] {
            let outputs = timely::execute(timely::Config::process(workers), move |worker| {
                let probe = probe::Handle::new();
                let completers = Rc::new(RefCell::new(Vec::new()));
                let waiting = Rc::clone(&completers);
                let (mut input, captured) = worker.dataflow::<u64, _, _>(|scope| {
                    let (input, stream) = scope.new_input::<u64>();
                    let squares = stream.map_async("square", move |n, done| waiting.borrow_mut().push((n, done)));
                    (input, squares.probe_with(&probe).capture())
                });
                for n in 0..10 {
                    input.send(n);
                    input.advance_to(n + 1);
                }
                while completers.borrow().len() < 10 {
                    worker.step();
                }
                assert!(probe.less_than(&1), "the frontier waits for results");
                // Last first, from other threads.
                for (n, done) in completers.borrow_mut().drain(..).rev() {
                    std::thread::spawn(move || done.give(n * n)).join().unwrap();
                }
                drop(input);
                while !probe.done() {
                    worker.step();
                }
                captured
            })
            .unwrap();
            for captured in outputs.join() {
                let mut all = captured.unwrap().extract();
                all.sort();
                assert_eq!(all, (0..10u64).map(|n| (n, vec![n * n])).collect::<Vec<_>>());
            }
        }
    }
}
