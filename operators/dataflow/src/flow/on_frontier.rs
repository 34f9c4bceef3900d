//! Tells how far the frontier has come.
//!
//! *In*: items. *Out*: the same items. *Kept per time*: nothing. *Capabilities*: none are held; an item leaves as it comes.
//!
//! The frontier at any worker speaks of all workers: what it has passed has been done everywhere. A gate that it opens is open only
//! when nobody is behind.

use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;

/// Hearing of the frontier.
pub trait OnFrontier<'scope> {
    /// Calls `tell` with the first time that may still come, whenever it has moved; with `u64::MAX` when nothing will.
    ///
    /// # Example
    /// ```
    /// use gnnflow_dataflow::flow::on_frontier::OnFrontier;
    /// use timely::dataflow::operators::ToStream;
    ///
    /// timely::example(|scope| {
    ///     (0..8u64).to_stream(scope).container::<Vec<u64>>().on_frontier(|tick| println!("all before {tick} is done"));
    /// });
    /// ```
    fn on_frontier(self, tell: impl FnMut(u64) + 'static) -> Self;
}

impl<'scope, D: 'static> OnFrontier<'scope> for StreamVec<'scope, u64, D> {
    fn on_frontier(self, mut tell: impl FnMut(u64) + 'static) -> Self {
        self.unary_frontier::<CapacityContainerBuilder<Vec<D>>, _, _, _>(Pipeline, "on_frontier", move |initial, _| {
            drop(initial);
            let mut told = 0;
            move |(input, frontier), output| {
                input.for_each(|time, items| output.session(&time).give_iterator(items.drain(..)));
                let now = frontier.frontier().first().copied().unwrap_or(u64::MAX);
                if now > told {
                    told = now;
                    tell(now);
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
    fn nobody_hears_of_a_time_that_another_worker_has_not_passed() {
        for workers in [1, 2, 4] {
            timely::execute(timely::Config::process(workers), |worker| {
                let heard = Rc::new(RefCell::new(vec![0]));
                let told = Rc::clone(&heard);
                let mut input = worker.dataflow::<u64, _, _>(|scope| {
                    let (input, stream) = scope.new_input::<Vec<u64>>();
                    stream.exchange(|&n| n).on_frontier(move |tick| told.borrow_mut().push(tick));
                    input
                });
                for round in 0..20u64 {
                    input.send(round);
                    input.advance_to(round + 1);
                    while *heard.borrow().last().unwrap() <= round {
                        worker.step();
                        // Everybody is at most one round ahead of whom we have heard.
                        assert!(*heard.borrow().last().unwrap() <= round + 1);
                    }
                }
                input.close();
                while *heard.borrow().last().unwrap() != u64::MAX {
                    worker.step();
                }
                assert!(heard.borrow().is_sorted());
            })
            .unwrap()
            .join()
            .into_iter()
            .for_each(Result::unwrap);
        }
    }
}
