//! Sends rows to other workers, with a bound on the messages in flight.
//!
//! *In*: items from which blocks of rows are made. *Out*: at the receiver, one `()` for each block that it has stored.
//! *Kept per time*: items that wait for a permit. *Capabilities*: held with them, and with blocks until they are stored.
//!
//! ```text
//! in → limit_in_flight → cut (compute thread) → scatter → put (compute thread) ─┬→ out
//!        ↑                                                                      │
//!        └───────────────── acknowledgment, to the sender ─────────────────────┘
//! ```
//!
//! Channels of timely are unbounded, so messages to a slow receiver would fill memory. Here a block is made only when it has a
//! permit, and holds the permit until its receiver acknowledges that it has stored the rows. One of *n* workers then holds at most
//! `window` own blocks and `(n − 1) · window` blocks of others. Acknowledgments are headers without rows. The meter does not count
//! them, just as it does not count timely's progress messages.
//!
//! Both steps on the compute thread have priority over its other jobs: they are short, and other workers wait for them.

use std::rc::Rc;

use timely::container::{CapacityContainerBuilder, NoopBuilder};
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::vec::Map;

use super::scatter::Scatter;
use crate::flow::compute_thread::{ComputeThread, OnThread};
use crate::flow::permits::{LimitInFlight, Permits};
use crate::wire::meter::Meter;
use crate::wire::{Header, Rows, WireBlock, to_destination};

/// Sends rows with a bound on the messages in flight.
pub trait PacedScatter<'scope, D, K> {
    /// Makes a block of each item with `cut`, sends it to worker `to` of its header, and calls `put` with it there. At most
    /// `window` blocks of each worker are in flight. A block's `from` must be the worker that makes it. Items leave in order of
    /// arrival, so no block may wait for a later one. The second part of an item (a permit of an earlier operator) is dropped
    /// when the item leaves.
    ///
    /// # Example
    /// ```
    /// use gnnflow_dataflow::ghost::paced_scatter::PacedScatter;
    /// use gnnflow_dataflow::flow::compute_thread::ComputeThread;
    /// use gnnflow_dataflow::wire::{Header, Rows, WireBlock};
    /// use timely::dataflow::operators::{ToStream, core::Inspect};
    ///
    /// timely::example(|scope| {
    ///     // The compute thread owns the table that rows are copied from and to.
    ///     let table = ComputeThread::start("table", || [1.0f32, 2.0, 0.0, 0.0]).unwrap();
    ///     let cut = |table: &mut [f32; 4], row: u32| {
    ///         let header = Header { seq: row + 2, ..Header::default() };
    ///         WireBlock::new(header, Vec::new(), Vec::new(), Rows::F32(vec![table[row as usize]]))
    ///     };
    ///     let put = |table: &mut [f32; 4], block: &WireBlock| {
    ///         table[block.header().seq as usize] = block.rows_f32().unwrap()[0];
    ///     };
    ///     let rows = [(0u32, ()), (1, ())].to_stream(scope).container::<Vec<(u32, ())>>();
    ///     let stored = rows.paced_scatter(1, &table, Default::default(), cut, put);
    ///     stored.inspect(move |()| println!("{:?}", table.call(|table| *table)));
    /// });
    /// ```
    fn paced_scatter<S: 'static>(
        self,
        window: usize,
        compute_thread: &ComputeThread<S>,
        meter: Rc<Meter>,
        cut: impl FnMut(&mut S, D) -> WireBlock + Send + Clone + 'static,
        put: impl FnMut(&mut S, &WireBlock) + Send + Clone + 'static,
    ) -> StreamVec<'scope, u64, ()>;
}

impl<'scope, D: Send + 'static, K: 'static> PacedScatter<'scope, D, K> for StreamVec<'scope, u64, (D, K)> {
    fn paced_scatter<S: 'static>(
        self,
        window: usize,
        compute_thread: &ComputeThread<S>,
        meter: Rc<Meter>,
        cut: impl FnMut(&mut S, D) -> WireBlock + Send + Clone + 'static,
        mut put: impl FnMut(&mut S, &WireBlock) + Send + Clone + 'static,
    ) -> StreamVec<'scope, u64, ()> {
        let permits = Rc::new(Permits::new(window));
        let acknowledgments = self
            .limit_in_flight_fifo(Rc::clone(&permits))
            .map(|(item, _)| item)
            .on_thread("paced scatter: cut", compute_thread.with_priority(), cut)
            .scatter(meter)
            .on_thread("paced scatter: put", compute_thread.with_priority(), move |state, block: WireBlock| {
                put(state, &block);
                let Header { from, to, .. } = block.header();
                Header { to: from, from: to, ..Header::default() }
            });
        // The frontier of the output does not wait for acknowledgments.
        acknowledgments
            .clone()
            .unary::<NoopBuilder<WireBlock>, _, _, _>(Pipeline, "paced scatter: acknowledge", move |_, _| {
                move |input, output| {
                    input.for_each(|time, headers: &mut Vec<Header>| {
                        for header in headers.drain(..) {
                            let mut block = WireBlock::new(header, Vec::new(), Vec::new(), Rows::None);
                            output.session_with_builder(&time).give_container(&mut block);
                        }
                    });
                }
            })
            .sink(to_destination(), "paced scatter: permits", move |(input, _)| {
                input.for_each(|_, _: &mut WireBlock| permits.release());
            });
        acknowledgments.unary::<CapacityContainerBuilder<Vec<()>>, _, _, _>(
            Pipeline,
            "paced scatter: stored",
            |_, _| {
                |input, output| {
                    input.for_each(|time, headers: &mut Vec<Header>| {
                        output.session(&time).give_iterator(headers.drain(..).map(drop));
                    });
                }
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use timely::dataflow::operators::core::Inspect;
    use timely::dataflow::operators::{Input, Probe, probe};

    use super::*;

    /// One sender's blocks: in flight now, most in flight so far, arrived.
    #[derive(Default)]
    struct Sender {
        now: AtomicUsize,
        most: AtomicUsize,
        arrived: AtomicUsize,
    }

    #[test]
    fn blocks_in_flight_are_limited_and_all_arrive_at_1_2_and_4_workers() {
        const BLOCKS: u32 = 60;
        const WINDOW: usize = 5;
        for workers in [1, 2, 4] {
            let senders: Arc<Vec<Sender>> = Arc::new((0..workers).map(|_| Sender::default()).collect());
            let shared = Arc::clone(&senders);
            let guards = timely::execute(timely::Config::process(workers), move |worker| {
                let (me, peers) = (worker.index() as u32, worker.peers() as u32);
                let (probe, compute_thread) = (probe::Handle::new(), ComputeThread::start("rows", || ()).unwrap());
                let stored = Rc::new(std::cell::Cell::new(0));
                let (cut_senders, put_senders, seen) = (Arc::clone(&shared), Arc::clone(&shared), Rc::clone(&stored));
                let mut input = worker.dataflow::<u64, _, _>(|scope| {
                    let (input, items) = scope.new_input::<Vec<(u32, ())>>();
                    let cut = move |(): &mut (), item: u32| {
                        let sender = &cut_senders[me as usize];
                        sender.most.fetch_max(sender.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        let header = Header { to: item % peers, from: me, seq: item, ..Header::default() };
                        WireBlock::new(header, Vec::new(), Vec::new(), Rows::F32(vec![item as f32; 4]))
                    };
                    let put = move |(): &mut (), block: &WireBlock| {
                        // A slow receiver.
                        std::thread::sleep(std::time::Duration::from_micros(200));
                        let header = block.header();
                        assert_eq!((header.to, block.rows_f32().unwrap()), (me, &[header.seq as f32; 4][..]));
                        let sender = &put_senders[header.from as usize];
                        sender.now.fetch_sub(1, Ordering::SeqCst);
                        sender.arrived.fetch_add(1, Ordering::SeqCst);
                    };
                    items
                        .paced_scatter(WINDOW, &compute_thread, Default::default(), cut, put)
                        .inspect(move |()| seen.set(seen.get() + 1))
                        .probe_with(&probe);
                    input
                });
                for time in 0..3 {
                    input.advance_to(time);
                    (0..BLOCKS).for_each(|item| input.send((item, ())));
                }
                input.close();
                while !probe.done() {
                    worker.step_or_park(Some(std::time::Duration::from_millis(1)));
                }
                stored.get()
            })
            .unwrap();
            let stored: u32 = guards.join().into_iter().map(Result::unwrap).sum();
            assert_eq!(stored, 3 * BLOCKS * workers as u32);
            for sender in &*senders {
                assert_eq!(sender.arrived.load(Ordering::SeqCst), 3 * BLOCKS as usize);
                let most = sender.most.load(Ordering::SeqCst);
                assert!(most <= WINDOW && most > 1, "{most} of {workers} workers' blocks at once");
            }
        }
    }
}
