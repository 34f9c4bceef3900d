//! Calls a function whenever the frontier moves.
//!
//! *In*: items. *Out*: the same items at once. *Kept per time*: nothing. *Capabilities*: none.
//!
//! The frontier covers all workers: a time that it has passed is complete everywhere. A gate opened by it opens only when no
//! worker is behind.

use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;

/// Observes the frontier.
pub trait OnFrontier<'scope> {
    /// Calls `moved` with the frontier's time whenever it moves, and with `u64::MAX` when the stream ends. Items may still arrive
    /// at that time, but not before it.
    ///
    /// # Example
    /// ```
    /// use gnnflow_dataflow::flow::on_frontier::OnFrontier;
    /// use timely::dataflow::operators::ToStream;
    ///
    /// timely::example(|scope| {
    ///     (0..8u64).to_stream(scope).container::<Vec<u64>>().on_frontier(|time| println!("all before {time} is done"));
    /// });
    /// ```
    fn on_frontier(self, moved: impl FnMut(u64) + 'static) -> Self;
}

impl<'scope, D: 'static> OnFrontier<'scope> for StreamVec<'scope, u64, D> {
    fn on_frontier(self, mut moved: impl FnMut(u64) + 'static) -> Self {
        self.unary_frontier::<CapacityContainerBuilder<Vec<D>>, _, _, _>(Pipeline, "on_frontier", move |initial, _| {
            drop(initial);
            let mut last = 0;
            move |(input, frontier), output| {
                input.for_each(|time, items| output.session(&time).give_iterator(items.drain(..)));
                let now = frontier.frontier().first().copied().unwrap_or(u64::MAX);
                if now > last {
                    last = now;
                    moved(now);
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use timely::dataflow::operators::Input;
    use timely::dataflow::operators::core::Exchange;

    use super::*;

    #[test]
    fn the_frontier_never_passes_the_slowest_of_1_2_and_4_workers() {
        for workers in [1, 2, 4] {
            timely::execute(timely::Config::process(workers), |worker| {
                let frontiers = Rc::new(RefCell::new(vec![0]));
                let seen = Rc::clone(&frontiers);
                let mut input = worker.dataflow::<u64, _, _>(|scope| {
                    let (input, stream) = scope.new_input::<Vec<u64>>();
                    stream.exchange(|&n| n).on_frontier(move |time| seen.borrow_mut().push(time));
                    input
                });
                for round in 0..20u64 {
                    input.send(round);
                    input.advance_to(round + 1);
                    while *frontiers.borrow().last().unwrap() <= round {
                        worker.step();
                        // Workers are at most one round ahead of the frontier.
                        assert!(*frontiers.borrow().last().unwrap() <= round + 1);
                    }
                }
                input.close();
                while *frontiers.borrow().last().unwrap() != u64::MAX {
                    worker.step();
                }
                assert!(frontiers.borrow().is_sorted());
            })
            .unwrap()
            .join()
            .into_iter()
            .for_each(Result::unwrap);
        }
    }
}
