//! Holds the items of a time until all workers have sent theirs.
//!
//! *In*: items. *Out*: the same items. *Kept per time*: the items that wait. *Capabilities*: held with them.
//!
//! Items of a time pass when the frontier has passed it: no worker can send another one.

use std::collections::BTreeMap;

use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::operator::Operator;

use super::waits::{Cause, Reported};
use crate::time::MessageTime;

/// Holds items until all items of their time have arrived, at all workers.
pub trait Barrier<'scope> {
    /// Holds each item until all items of its time have arrived, at all workers.
    ///
    /// # Example
    /// ```
    /// use gnnflow_dataflow::flow::barrier::Barrier;
    /// use timely::dataflow::operators::{ToStream, core::Inspect};
    ///
    /// timely::example(|scope| {
    ///     (0..8u64).to_stream(scope).container::<Vec<u64>>().barrier().inspect(|n| println!("{n}, and all others have arrived"));
    /// });
    /// ```
    fn barrier(self) -> Self;
}

impl<'scope, D: 'static> Barrier<'scope> for StreamVec<'scope, u64, D> {
    fn barrier(self) -> Self {
        self.unary_frontier::<CapacityContainerBuilder<Vec<D>>, _, _, _>(Pipeline, "barrier", move |initial, _| {
            drop(initial);
            type Held<D> = BTreeMap<u64, (Capability<u64>, Vec<D>)>;
            let held = Reported::new("barrier", Held::<D>::new(), |held, wait| {
                held.values()
                    .for_each(|(time, items)| items.iter().for_each(|_| wait(*time.time(), Cause::EarlierTimes)));
            });
            move |(input, frontier), output| {
                let mut held = held.borrow_mut();
                input.for_each(|time, items| {
                    let (_, waiting) =
                        held.entry(*time.time()).or_insert_with(|| (time.retain(output.output_index()), Vec::new()));
                    waiting.append(items);
                });
                while let Some(first) = held.first_entry().filter(|first| !frontier.less_equal(first.key())) {
                    let (time, mut items) = first.remove();
                    output.session(&time).give_iterator(items.drain(..));
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use timely::dataflow::operators::core::Inspect;
    use timely::dataflow::operators::{Input, Probe, probe};

    use super::*;

    #[test]
    fn items_pass_after_all_of_their_time_have_arrived_at_1_2_and_4_workers() {
        for workers in [1, 2, 4] {
            // The number of items sent so far, by time.
            let sent: Arc<Vec<AtomicU64>> = Arc::new((0..20).map(|_| AtomicU64::new(0)).collect());
            let all = Arc::clone(&sent);
            timely::execute(timely::Config::process(workers), move |worker| {
                let (probe, peers, seen) = (probe::Handle::new(), worker.peers() as u64, Arc::clone(&all));
                let mut input = worker.dataflow::<u64, _, _>(|scope| {
                    let (input, stream) = scope.new_input::<Vec<u64>>();
                    let checked = stream.barrier().inspect(move |&round: &u64| {
                        assert_eq!(
                            seen[round as usize].load(Ordering::SeqCst),
                            3 * peers,
                            "items of all workers have arrived"
                        );
                    });
                    checked.probe_with(&probe);
                    input
                });
                for round in 0..20u64 {
                    for _ in 0..3 {
                        all[round as usize].fetch_add(1, Ordering::SeqCst);
                        input.send(round);
                        worker.step();
                    }
                    input.advance_to(round + 1);
                }
                input.close();
                worker.step_while(|| probe.less_than(&u64::MAX));
            })
            .unwrap();
            assert!(sent.iter().all(|count| count.load(Ordering::SeqCst) == 3 * workers as u64));
        }
    }
}
