//! Lets items travel at a later time than that at which they were made.
//!
//! *In*: items. *Out*: the same items, at once, at the times that they are given. *Kept*: nothing. *Capabilities*: delayed as the
//! items are.
//!
//! Whoever waits for the earlier time then does not wait for them.

use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;

/// Giving items later times.
pub trait AdvanceTimes<'scope, D> {
    /// Sends each item on at the time that `map_async` says, or at its own where that is not later.
    ///
    /// # Example
    /// ```
    /// use gnnflow_dataflow::flow::advance_times::AdvanceTimes;
    /// use timely::dataflow::operators::{Inspect, ToStream};
    ///
    /// timely::example(|scope| {
    ///     let numbers = (0..8u64).to_stream(scope).container::<Vec<u64>>();
    ///     numbers.advance_times(|&n| n % 3).inspect_time(|time, n| assert_eq!(*time, n % 3));
    /// });
    /// ```
    fn advance_times(self, later: impl Fn(&D) -> u64 + 'static) -> Self;
}

impl<'scope, D: 'static> AdvanceTimes<'scope, D> for StreamVec<'scope, u64, D> {
    fn advance_times(self, later: impl Fn(&D) -> u64 + 'static) -> Self {
        self.unary::<CapacityContainerBuilder<Vec<D>>, _, _, _>(Pipeline, "advance_times", move |initial, _| {
            drop(initial);
            move |input, output| {
                input.for_each(|time, items| {
                    let own = *time.time();
                    for item in items.drain(..) {
                        let at = time.delayed(&later(&item).max(own), output.output_index());
                        output.session(&at).give(item);
                    }
                });
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use timely::dataflow::operators::{Input, Inspect, Probe, probe};

    use super::*;

    #[test]
    fn items_travel_at_later_times_and_hold_nobody_before_them() {
        for workers in [1, 2, 4] {
            timely::execute(timely::Config::process(workers), |worker| {
                let (probe, seen) = (probe::Handle::new(), Rc::new(RefCell::new(Vec::new())));
                let told = Rc::clone(&seen);
                let mut input = worker.dataflow::<u64, _, _>(|scope| {
                    let (input, stream) = scope.new_input::<Vec<u64>>();
                    stream
                        .advance_times(|&item| item)
                        .inspect_time(move |&time, &item: &u64| told.borrow_mut().push((time, item)))
                        .probe_with(&probe);
                    input
                });
                input.advance_to(2);
                [1, 2, 5, 9].into_iter().for_each(|item| input.send(item));
                input.close();
                worker.step_while(|| probe.less_than(&u64::MAX));
                assert_eq!(*seen.borrow(), [(2, 1), (2, 2), (5, 5), (9, 9)]);
            })
            .unwrap();
        }
    }
}
