//! Moves items to later times.
//!
//! *In*: items. *Out*: the same items at once, at the times that a function gives them. *Kept*: nothing. *Capabilities*: delayed to
//! the items' new times.
//!
//! Operators that wait for the earlier time then do not wait for these items.

use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;

use crate::time::MessageTime;

/// Moves items to later times.
pub trait AdvanceTimes<'scope, D> {
    /// Sends each item at the time that `later` returns for it, or at its own time if that is later.
    ///
    /// # Example
    /// ```
    /// use gnnflow_dataflow::flow::advance_times::AdvanceTimes;
    /// use timely::dataflow::operators::{Inspect, ToStream};
    ///
    /// timely::example(|scope| {
    ///     let numbers = (0..8u64).to_stream(scope).container::<Vec<u64>>();
    ///     numbers.advance_times(|&n| n % 3).inspect_core(|event| {
    ///         if let Ok((stamp, numbers)) = event {
    ///             numbers.iter().for_each(|n| assert_eq!(stamp.elements(), [n % 3]));
    ///         }
    ///     });
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
    fn items_travel_at_the_later_of_both_times_at_1_2_and_4_workers() {
        for workers in [1, 2, 4] {
            timely::execute(timely::Config::process(workers), |worker| {
                let (probe, seen) = (probe::Handle::new(), Rc::new(RefCell::new(Vec::new())));
                let outputs = Rc::clone(&seen);
                let mut input = worker.dataflow::<u64, _, _>(|scope| {
                    let (input, stream) = scope.new_input::<Vec<u64>>();
                    stream
                        .advance_times(|&item| item)
                        .inspect_core(move |event| {
                            if let Ok((stamp, items)) = event {
                                let &time = stamp.expect_singleton();
                                outputs.borrow_mut().extend(items.iter().map(|&item| (time, item)));
                            }
                        })
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
