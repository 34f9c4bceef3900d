//! Rows on their way to other workers, at most as many at once as there are permits.
//!
//! *In*: what blocks of rows are to be made of. *Out*: at the receiver, one unit for each block that has been put where it belongs.
//! *Kept per time*: what waits to be made. *Capabilities*: held with it, and with blocks until they have been put.
//!
//! ```text
//! in → limit_in_flight → cut (compute thread) → scatter → put (compute thread) ─┬→ out
//!        ↑                                                  │
//!        └────────────── receipt, to the sender ────────────┘
//! ```
//!
//! A channel of timely takes whatever it is given, and so does a slow receiver's memory. Here a block is made only when there is
//! permit for it, and keeps that permit until its receiver says that it has been put: whatever a stage moves, a worker of *n* has at most
//! `window` own blocks and `(n − 1) · window` of others. Receipts are headers without rows; like timely's own messages about progress,
//! no meter counts them.
//!
//! Blocks are cut and put ahead of whatever else waits for the compute thread: both are short, and others wait for them.

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

/// Blocks that are made when a permit is free for them.
pub trait PacedScatter<'scope, D, K> {
    /// Makes a block of each item with `cut`, brings it to the worker of its header's `to`, and hands it to `put` there; of each
    /// worker's blocks at most `window` are on their way. A block's `from` must be the worker that cuts it. Items go in turn: no
    /// block may wait for a later one. What comes with an item (a permit of an operator before this one) is dropped when it is its turn.
    ///
    /// # Example
    /// ```
    /// use gnnflow_dataflow::ghost::paced_scatter::PacedScatter;
    /// use gnnflow_dataflow::flow::compute_thread::ComputeThread;
    /// use gnnflow_dataflow::wire::{Header, Rows, WireBlock};
    /// use timely::dataflow::operators::{ToStream, core::Inspect};
    ///
    /// timely::example(|scope| {
    ///     // The compute thread owns the table that rows are copied from, and put into.
    ///     let table = ComputeThread::start("table", || [1.0f32, 2.0, 0.0, 0.0]).unwrap();
    ///     let cut = |table: &mut [f32; 4], row: u32| {
    ///         let header = Header { seq: row + 2, ..Header::default() };
    ///         WireBlock::new(header, Vec::new(), Vec::new(), Rows::F32(vec![table[row as usize]]))
    ///     };
    ///     let put = |table: &mut [f32; 4], block: &WireBlock| {
    ///         table[block.header().seq as usize] = block.rows_f32().unwrap()[0];
    ///     };
    ///     let rows = [(0u32, ()), (1, ())].to_stream(scope).container::<Vec<(u32, ())>>();
    ///     let told = rows.paced_scatter(1, &table, Default::default(), cut, put);
    ///     told.inspect(move |()| println!("{:?}", table.call(|table| *table)));
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
        let receipts = self
            .limit_in_flight_fifo(Rc::clone(&permits))
            .map(|(item, _)| item)
            .on_thread("paced scatter: cut", compute_thread.with_priority(), cut)
            .scatter(meter)
            .on_thread("paced scatter: put", compute_thread.with_priority(), move |state, block: WireBlock| {
                put(state, &block);
                let Header { from, to, .. } = block.header();
                Header { to: from, from: to, ..Header::default() }
            });
        // Whether receipts have come is nothing that anybody but the sender waits for.
        receipts
            .clone()
            .unary::<NoopBuilder<WireBlock>, _, _, _>(Pipeline, "paced scatter: receipt", move |_, _| {
                move |input, output| {
                    input.for_each(|time, headers: &mut Vec<Header>| {
                        for header in headers.drain(..) {
                            let mut receipt = WireBlock::new(header, Vec::new(), Vec::new(), Rows::None);
                            output.session_with_builder(&time).give_container(&mut receipt);
                        }
                    });
                }
            })
            .sink(to_destination(), "paced scatter: permits", move |(input, _)| {
                input.for_each(|_, _: &mut WireBlock| permits.release());
            });
        receipts.unary::<CapacityContainerBuilder<Vec<()>>, _, _, _>(Pipeline, "paced scatter: told", |_, _| {
            |input, output| {
                input.for_each(|time, headers: &mut Vec<Header>| {
                    output.session(&time).give_iterator(headers.drain(..).map(drop));
                });
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use timely::dataflow::operators::core::Inspect;
    use timely::dataflow::operators::{Input, Probe, probe};

    use super::*;

    /// Blocks of each sender on their way, and the most that there were; and all that have come.
    #[derive(Default)]
    struct Way {
        now: AtomicUsize,
        most: AtomicUsize,
        come: AtomicUsize,
    }

    #[test]
    fn no_more_blocks_are_on_their_way_than_have_room_and_all_come_at_1_2_and_4_workers() {
        const BLOCKS: u32 = 60;
        const WINDOW: usize = 5;
        for workers in [1, 2, 4] {
            let ways: Arc<Vec<Way>> = Arc::new((0..workers).map(|_| Way::default()).collect());
            let shared = Arc::clone(&ways);
            let guards = timely::execute(timely::Config::process(workers), move |worker| {
                let (me, peers) = (worker.index() as u32, worker.peers() as u32);
                let (probe, compute_thread) = (probe::Handle::new(), ComputeThread::start("rows", || ()).unwrap());
                let told = Rc::new(std::cell::Cell::new(0));
                let (cut_ways, put_ways, seen) = (Arc::clone(&shared), Arc::clone(&shared), Rc::clone(&told));
                let mut input = worker.dataflow::<u64, _, _>(|scope| {
                    let (input, items) = scope.new_input::<Vec<(u32, ())>>();
                    let cut = move |(): &mut (), item: u32| {
                        let way = &cut_ways[me as usize];
                        way.most.fetch_max(way.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        let header = Header { to: item % peers, from: me, seq: item, ..Header::default() };
                        WireBlock::new(header, Vec::new(), Vec::new(), Rows::F32(vec![item as f32; 4]))
                    };
                    let put = move |(): &mut (), block: &WireBlock| {
                        // Whoever receives is slow.
                        std::thread::sleep(std::time::Duration::from_micros(200));
                        let header = block.header();
                        assert_eq!((header.to, block.rows_f32().unwrap()), (me, &[header.seq as f32; 4][..]));
                        let way = &put_ways[header.from as usize];
                        way.now.fetch_sub(1, Ordering::SeqCst);
                        way.come.fetch_add(1, Ordering::SeqCst);
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
                told.get()
            })
            .unwrap();
            let told: u32 = guards.join().into_iter().map(Result::unwrap).sum();
            assert_eq!(told, 3 * BLOCKS * workers as u32);
            for way in &*ways {
                assert_eq!(way.come.load(Ordering::SeqCst), 3 * BLOCKS as usize);
                let most = way.most.load(Ordering::SeqCst);
                assert!(most <= WINDOW && most > 1, "{most} of {workers} workers' blocks at once");
            }
        }
    }
}
