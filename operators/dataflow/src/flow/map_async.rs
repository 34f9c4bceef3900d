//! Work that is answered when it is done, in whatever order.
//!
//! *In*: items. *Out*: one result per item, as they come. *Kept*: one capability per outstanding item. *Capabilities*: held from an
//! item's arrival until its result has left; an answer, from whatever thread, re-activates the operator.
//!
//! [`background`](super::compute_thread) is the same for one thread that answers in order.

use std::collections::HashMap;
use std::sync::mpsc;

use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;
use timely::progress::Timestamp;
use timely::scheduling::SyncActivator;

/// The place for the result of one item. While nobody has given it, the item's time is not over.
pub struct Completer<R> {
    item: u64,
    answers: mpsc::Sender<(u64, R)>,
    wake: SyncActivator,
}

impl<R> Completer<R> {
    /// Gives the result.
    pub fn give(self, result: R) {
        // A dropped receiver or worker means that the dataflow is being torn down.
        if self.answers.send((self.item, result)).is_ok() {
            let _ = self.wake.activate();
        }
    }
}

/// Work with results to come.
pub trait MapAsync<'scope, T: Timestamp, D> {
    /// Calls `begin` with each item and the place for its result, which anybody may give at any time.
    ///
    /// # Example
    /// ```
    /// use gnnflow_dataflow::flow::map_async::MapAsync;
    /// use timely::dataflow::operators::{ToStream, core::Inspect};
    ///
    /// timely::example(|scope| {
    ///     (0..8u64).to_stream(scope).container::<Vec<u64>>()
    ///         .map_async("square", |n, reply| drop(std::thread::spawn(move || reply.give(n * n))))
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
        let scope = self.scope();
        self.unary_frontier::<CapacityContainerBuilder<Vec<R>>, _, _, _>(Pipeline, name, move |initial, info| {
            drop(initial);
            // Must be made on the worker's own thread: it remembers whom to wake.
            let wake = scope.worker().sync_activator_for(info.address.to_vec());
            let (answers, results) = mpsc::channel::<(u64, R)>();
            let (mut held, mut next) = (HashMap::new(), 0);
            move |(input, _frontier), output| {
                input.for_each(|time, items| {
                    for item in items.drain(..) {
                        held.insert(next, time.retain(output.output_index()));
                        begin(item, Completer { item: next, answers: answers.clone(), wake: wake.clone() });
                        next += 1;
                    }
                });
                while let Ok((item, result)) = results.try_recv() {
                    let time = held.remove(&item).expect("one capability per item, answered once");
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
    fn results_leave_at_their_items_times_in_the_order_of_answers_at_1_2_and_4_workers() {
        for workers in [1, 2, 4] {
            let outputs = timely::execute(timely::Config::process(workers), move |worker| {
                let probe = probe::Handle::new();
                let replies = Rc::new(RefCell::new(Vec::new()));
                let kept = Rc::clone(&replies);
                let (mut input, captured) = worker.dataflow::<u64, _, _>(|scope| {
                    let (input, stream) = scope.new_input::<u64>();
                    let squares = stream.map_async("square", move |n, reply| kept.borrow_mut().push((n, reply)));
                    (input, squares.probe_with(&probe).capture())
                });
                for n in 0..10 {
                    input.send(n);
                    input.advance_to(n + 1);
                }
                while replies.borrow().len() < 10 {
                    worker.step();
                }
                assert!(probe.less_than(&1), "nothing is over before it is answered");
                // Last first, from other threads.
                for (n, reply) in replies.borrow_mut().drain(..).rev() {
                    std::thread::spawn(move || reply.give(n * n)).join().unwrap();
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
