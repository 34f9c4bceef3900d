//! The process group of a timely cluster. Every pass is a dataflow.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use gnnflow_data::group::{Consume, Destination, Message, ProcessGroup, Produce};
use gnnflow_data::{Error, Result};
use timely::dataflow::operators::{Probe, probe};
use timely::scheduling::{Activator, SyncActivator};
use timely::worker::Worker;

use super::deliver::{Deliver, Delivery};
use super::units::{Activators, Read, Readers, Units};
use super::unpack_time;
use crate::flow::waits::{Cause, Reported};

/// Messages that fit in the channel of a reading thread.
const READ_AHEAD: usize = 2;
/// Longest wait of an idle worker, so that it keeps reporting.
const PARK: Duration = Duration::from_millis(10);

/// The state of a worker loop, for stall detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopState {
    /// A turn of the worker loop.
    Turn,
    /// A message was consumed, on this or another worker.
    Progress,
    /// Outside the loop until the next turn.
    Away,
}

/// The processes of a timely cluster as a process group, with one worker per process.
pub struct WorkerGroup<'a> {
    worker: RefCell<&'a mut Worker>,
    rank: usize,
    size: usize,
    threads: usize,
    report: Box<dyn Fn(LoopState) + 'a>,
}

/// What a pass waits for: the end of the first unit that is not complete.
struct Awaited {
    rank: usize,
    size: usize,
    /// The unit and its chunk.
    time: Option<u64>,
}

impl<'a> WorkerGroup<'a> {
    /// Creates the group of `worker`. Each process reads with `threads` threads. `report` is called at
    /// every turn of the worker loop, on progress, and when the loop is left.
    pub fn new(worker: &'a mut Worker, threads: usize, report: impl Fn(LoopState) + 'a) -> Self {
        report(LoopState::Away);
        let (rank, size) = (worker.index(), worker.peers());
        Self { worker: RefCell::new(worker), rank, size, threads: threads.max(1), report: Box::new(report) }
    }
}

impl ProcessGroup for WorkerGroup<'_> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn exchange<T: Message>(&self, units: usize, produce: &Produce<'_, T>, consume: &mut Consume<'_, T>) -> Result<()> {
        let mut worker = self.worker.borrow_mut();
        let own_units: Vec<usize> = (self.rank..units).step_by(self.size).collect();
        let threads = self.threads.min(own_units.len());
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..threads).map(|_| sync_channel::<Read<T>>(READ_AHEAD)).unzip();
        let channels = Rc::new(RefCell::new(receivers));
        let first_error = Rc::new(RefCell::new(None));
        let delivery: Delivery<T> = Rc::new(RefCell::new(VecDeque::new()));
        let (reader, deliverer) = (Rc::new(Cell::new(None)), Rc::new(Cell::new(None)));
        let consumed = probe::Handle::new();
        let readers = Readers {
            units: own_units.clone(),
            channels: channels.clone(),
            first_error: first_error.clone(),
            local: Rc::default(),
        };
        let (set_reader, set_deliverer) = (reader.clone(), deliverer.clone());
        worker.dataflow::<u64, _, _>(|scope| {
            let local = readers.local.clone();
            scope
                .units(readers, &consumed, move |activators| set_reader.set(Some(activators)))
                .deliver(local, delivery.clone(), move |activator| set_deliverer.set(Some(activator)))
                .probe_with(&consumed);
        });
        let no_operator = || Error::Bug("an operator was not built".into());
        let activators: Activators = reader.take().ok_or_else(no_operator)?;
        let deliver_activator: Activator = deliverer.take().ok_or_else(no_operator)?;

        std::thread::scope(|scope| {
            let start = |(thread, sender): (usize, SyncSender<Read<T>>)| {
                let own_units = &own_units;
                let wake = activators.threads.clone();
                let reads = move || {
                    let mine = own_units.iter().skip(thread).step_by(threads);
                    mine.copied().all(|unit| read(unit, produce, &sender, &wake))
                };
                let started = std::thread::Builder::new().name(format!("read-{thread}")).spawn_scoped(scope, reads);
                started.map(drop).map_err(|source| Error::Threads { what: "the threads that read", source })
            };
            let awaited = Reported::new(
                "read units",
                Awaited { rank: self.rank, size: self.size, time: None },
                |awaited, wait| {
                    let Some(time) = awaited.time else { return };
                    let reader = unpack_time(time).0 % awaited.size;
                    wait(
                        time,
                        if reader == awaited.rank { Cause::Thread } else { Cause::Workers(vec![reader as u32]) },
                    );
                },
            );
            let started = senders.into_iter().enumerate().try_for_each(start);
            let mut turn = || -> Result<()> {
                let mut frontier = None;
                while !consumed.done() {
                    (self.report)(LoopState::Turn);
                    worker.step_or_park(Some(PARK));
                    if let Some(error) = first_error.borrow_mut().take() {
                        return Err(error);
                    }
                    loop {
                        let Some(delivered) = delivery.borrow_mut().pop_front() else { break };
                        consume(delivered.unit, delivered.message?)?;
                        (self.report)(LoopState::Progress);
                        drop(delivered.hold);
                        deliver_activator.activate();
                    }
                    let now = consumed.with_frontier(|frontier| frontier.first().copied());
                    if now != frontier {
                        frontier = now;
                        awaited.borrow_mut().time = now;
                        (self.report)(LoopState::Progress);
                        activators.worker.activate();
                    }
                }
                Ok(())
            };
            let result = started.and_then(|()| turn());
            // Ends the threads that wait for a free channel.
            channels.borrow_mut().clear();
            (self.report)(LoopState::Away);
            result
        })
    }
}

/// Reads one unit on a reading thread. Returns whether the thread continues.
fn read<T: Message>(unit: usize, produce: &Produce<'_, T>, sender: &SyncSender<Read<T>>, wake: &SyncActivator) -> bool {
    let mut open = true;
    let send = |read: Read<T>| {
        let open = sender.send(read).is_ok();
        let _ = wake.activate();
        open
    };
    let end = produce(unit, &mut |to: Destination, message: T| {
        open = send(Ok(Some((to, message))));
        open
    });
    let whole = end.is_ok();
    open && send(end.map(|()| None)) && whole
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use gnnflow_data::group::SingleProcess;

    use super::*;

    /// Runs `work` on `workers` workers and returns their results.
    fn run_on<R: Send + 'static>(
        workers: usize,
        work: impl Fn(&WorkerGroup<'_>) -> R + Send + Sync + 'static,
    ) -> Vec<R> {
        let run = move |worker: &mut Worker| {
            let result = work(&WorkerGroup::new(worker, 2, |_| ()));
            if workers == 1 {
                // The dataflow of a failed pass never completes; the program then ends the process.
                worker.installed_dataflows().into_iter().for_each(|dataflow| worker.drop_dataflow(dataflow));
            }
            result
        };
        timely::execute(timely::Config::process(workers), run).unwrap().join().into_iter().map(Result::unwrap).collect()
    }

    type Received = Vec<(usize, u64)>;

    /// Unit `u` has `u % 5` messages for all, and one for process `u / 3 % size`.
    fn exchange_units<C: ProcessGroup>(processes: &C, units: usize) -> (Received, Received) {
        let (mut all, mut one) = (Vec::new(), Vec::new());
        let size = processes.size();
        let produce = |unit: usize, send: &mut dyn FnMut(Destination, Vec<u64>) -> bool| {
            (0..unit as u64 % 5).all(|i| send(Destination::All, vec![0, 10 * unit as u64 + i]));
            send(Destination::Rank(unit / 3 % size), vec![1, unit as u64]);
            Ok(())
        };
        processes
            .exchange(units, &produce, &mut |unit, message: Vec<u64>| {
                if message[0] == 0 { &mut all } else { &mut one }.push((unit, message[1]));
                Ok(())
            })
            .unwrap();
        (all, one)
    }

    #[test]
    fn all_workers_receive_all_messages_in_the_order_of_units() {
        for units in [0, 1, 7, 100] {
            let (expected, mine) = exchange_units(&SingleProcess, units);
            for workers in [1, 2, 4] {
                let found = run_on(workers, move |processes| exchange_units(processes, units));
                let mut ones = Vec::new();
                for (rank, (all, one)) in found.into_iter().enumerate() {
                    assert_eq!(all, expected, "{units} units, worker {rank} of {workers}");
                    assert!(one.is_sorted() && one.iter().all(|(unit, _)| unit / 3 % workers == rank));
                    ones.extend(one);
                }
                ones.sort_unstable();
                assert_eq!(ones, mine);
            }
        }
    }

    /// The bytes of one rank, different for each rank.
    fn own(rank: usize, len: usize) -> Vec<u8> {
        (0..len).map(|i| (i + 7 * rank) as u8).collect()
    }

    #[test]
    fn collectives_equal_a_local_loop() {
        // Zero bytes, one byte, one message, more messages than the window.
        for len in [0, 1, 128 << 10, 3_000_001] {
            for workers in [1, 2, 4] {
                let found = run_on(workers, move |processes| {
                    let rank = processes.rank();
                    let cells: Vec<AtomicU32> = (0..len as u32 / 10).map(AtomicU32::new).collect();
                    let add = &mut || {
                        for (i, cell) in (0u32..).zip(&cells) {
                            cell.fetch_add(i * rank as u32, Ordering::Relaxed);
                        }
                        Ok(())
                    };
                    processes.all_reduce_counts(&cells, add).unwrap();
                    let gathered = processes.all_gather(own(rank, len + rank)).unwrap();
                    let broadcast = processes.broadcast((rank == 0).then(|| own(rank, len))).unwrap();
                    processes.barrier().unwrap();
                    (cells.into_iter().map(AtomicU32::into_inner).collect::<Vec<_>>(), gathered, broadcast)
                });
                let expected: Vec<_> = (0..workers).map(|rank| own(rank, len + rank)).collect();
                let sum = (0..workers as u32).sum::<u32>();
                for (cells, gathered, broadcast) in found {
                    assert!((0u32..).zip(&cells).all(|(i, &cell)| cell == i + sum.wrapping_mul(i)));
                    assert!(gathered == expected && broadcast == own(0, len), "{len} bytes, {workers} workers");
                }
            }
        }
    }

    #[test]
    fn error_of_a_reading_thread_ends_the_pass() {
        let found = run_on(1, |processes| {
            let produce = |unit: usize, send: &mut dyn FnMut(Destination, Vec<u8>) -> bool| {
                while unit < 3 && send(Destination::All, vec![unit as u8]) && unit == 9 {}
                if unit == 3 { Err(Error::Bug("unit 3".into())) } else { Ok(()) }
            };
            let mut consumed_units = Vec::new();
            let end = processes.exchange(10, &produce, &mut |unit, _: Vec<u8>| {
                consumed_units.push(unit);
                Ok(())
            });
            (consumed_units, end.unwrap_err().to_string())
        });
        assert!(found[0].1.contains("unit 3"), "{found:?}");
        assert!(found[0].0.iter().all(|&unit| unit < 3));
    }
}
