//! Collective operations between workers, and the loop that drives their dataflows.
//!
//! Every operation is collective: all workers call it, in the same order, with values of the same type. It returns when its result is here;
//! only [`Collectives::barrier`] waits until the dataflow has reported that the round is complete everywhere.

pub(crate) mod driver;
pub(crate) mod payload;
#[cfg(test)]
pub(crate) mod tests;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use bytemuck::Pod;
use gnnflow_dataflow::collective::all_reduce::{AllReduce, Contribution, Reduced};
use gnnflow_dataflow::ghost::scatter::Scatter;
use gnnflow_dataflow::graph::placement::Placement;
use gnnflow_dataflow::wire::meter::Meter;
use gnnflow_dataflow::wire::{Header, MESSAGE_BYTES, Rows, WireBlock};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::InputHandle;
use timely::dataflow::operators::core::Inspect;
use timely::dataflow::operators::{Input, Probe, probe};
use timely::worker::Worker;

pub(crate) use self::driver::{Driver, FirstError};
pub(crate) use self::payload::{Json, List, Payload, Value};
use crate::error::Error;

/// Words of a partition in one round: 128 KB. Longer values take more rounds.
pub(crate) const ROUND_WORDS: usize = 16 << 10;
/// Blocks of one worker in flight in [`Collectives::all_to_all`].
const WINDOW: u64 = 32;

/// The vector of a partition, if it has one.
pub(crate) type PartitionRows = Option<Arc<Vec<f32>>>;

/// The collective operations of a worker.
pub(crate) struct Collectives {
    /// A dataflow for each length of vectors, built when it is first used; of length 0 for values alone.
    reductions: BTreeMap<usize, Reduction>,
    placement: Placement,
    rank: usize,
    meter: Rc<Meter>,
}

/// A message of [`Collectives::all_to_all`]: its sender and its words.
type Arrived = (usize, Vec<u32>);

impl Collectives {
    /// The collectives of the worker of rank `rank`. `meter` counts their messages.
    pub(crate) fn new(placement: Placement, rank: usize, meter: Rc<Meter>) -> Self {
        Self { reductions: BTreeMap::new(), placement, rank, meter }
    }

    /// Returns the values of all workers, by rank.
    ///
    /// # Errors
    /// If the program ends the run; [`Error::Bug`] if the values of the workers have different types.
    pub(crate) fn all_gather<T: Payload>(&mut self, driver: &mut Driver<'_>, own: &T) -> Result<Vec<T>, Error> {
        let (placement, own) = (self.placement, own.to_words());
        let words = self.gather(driver, T::WORDS, self.of_worker(Some(own)), None)?.1;
        (0..placement.workers()).map(|rank| T::from_words(&words[placement.parts_of(rank).start])).collect()
    }

    /// Returns the values of all partitions, by partition; `own` is called for those of this worker.
    ///
    /// # Errors
    /// As [`Collectives::all_gather`].
    pub(crate) fn all_gather_parts<T: Payload>(
        &mut self,
        driver: &mut Driver<'_>,
        mut own: impl FnMut(usize) -> T,
    ) -> Result<Vec<T>, Error> {
        let own = self.placement.parts_of(self.rank).map(|part| own(part).to_words()).collect();
        self.gather(driver, T::WORDS, own, None)?.1.iter().map(|words| T::from_words(words)).collect()
    }

    /// Returns the element-wise sums of the workers' counts. All workers must have equally many.
    ///
    /// # Errors
    /// As [`Collectives::all_gather`].
    pub(crate) fn all_reduce_counts(&mut self, driver: &mut Driver<'_>, own: &[u64]) -> Result<Vec<u64>, Error> {
        let own_words = self.of_worker(Some(own.to_vec()));
        let mut sums = vec![0u64; own.len()];
        for words in self.gather(driver, Some(own.len()), own_words, None)?.1 {
            sums.iter_mut().zip(words).for_each(|(sum, word)| *sum += word);
        }
        Ok(sums)
    }

    /// Returns the sum of the partitions' vectors of `len` numbers, added in partition order; zeros if no partition has one.
    ///
    /// # Errors
    /// As [`Collectives::all_gather`].
    pub(crate) fn all_reduce_rows(
        &mut self,
        driver: &mut Driver<'_>,
        len: usize,
        mut own: impl FnMut(usize) -> PartitionRows,
    ) -> Result<Vec<f32>, Error> {
        Ok(self.all_reduce_rows_with(driver, len, |part| (own(part), ()))?.0)
    }

    /// [`Collectives::all_reduce_rows`] and [`Collectives::all_gather_parts`] in one.
    ///
    /// # Errors
    /// As [`Collectives::all_gather`].
    pub(crate) fn all_reduce_rows_with<T: Payload>(
        &mut self,
        driver: &mut Driver<'_>,
        len: usize,
        own: impl FnMut(usize) -> (PartitionRows, T),
    ) -> Result<(Vec<f32>, Vec<T>), Error> {
        let own = self.placement.parts_of(self.rank).map(own);
        let (rows, words) = own.map(|(rows, value)| (rows, value.to_words())).unzip();
        let (sum, words) = self.gather(driver, T::WORDS, words, Some((len, rows)))?;
        Ok((sum, words.iter().map(|words| T::from_words(words)).collect::<Result<_, _>>()?))
    }

    /// Returns the value of worker 0; `root` is `Some` there, and is not read elsewhere.
    ///
    /// # Errors
    /// As [`Collectives::all_gather`]; [`Error::Bug`] if worker 0 has no value.
    pub(crate) fn broadcast<T: Payload>(&mut self, driver: &mut Driver<'_>, root: Option<T>) -> Result<T, Error> {
        let root = root.filter(|_| self.rank == 0);
        if root.is_none() && self.rank == 0 {
            return Err(Error::Bug("a broadcast has no value at its root".into()));
        }
        let own = self.of_worker(root.map(|root| root.to_words()));
        T::from_words(&self.gather(driver, T::WORDS, own, None)?.1[0])
    }

    /// Waits until all workers have called it, and no message of its round is on its way.
    ///
    /// # Errors
    /// As [`Collectives::all_gather`].
    pub(crate) fn barrier(&mut self, driver: &mut Driver<'_>) -> Result<(), Error> {
        self.all_gather(driver, &0u64)?;
        let round = &self.reductions[&0];
        driver.run_until(&round.probe, *round.input.time(), &FirstError::default())
    }

    /// Sends lists of values to other workers, in messages of bounded size, with few messages in flight. `send` sends values.
    /// `receive` gets the rank of a sender and some of its values. Messages of one sender may arrive in any order.
    ///
    /// # Errors
    /// Those of `send` and `receive` in this worker; as [`Collectives::all_gather`].
    pub(crate) fn all_to_all<T: Pod>(
        &mut self,
        driver: &mut Driver<'_>,
        send: impl FnOnce(&mut Sender<'_, '_, T>) -> Result<(), Error>,
        mut receive: impl FnMut(usize, &[T]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        const { assert!(size_of::<T>().is_multiple_of(4) && align_of::<T>() <= 4, "values are sent as 32-bit words") };
        let (mut input, probe) = (InputHandle::new_with_builder(), probe::Handle::new());
        // Senders and words of messages that the receiver does not have yet.
        let arrived: Rc<RefCell<Vec<Arrived>>> = Rc::default();
        let (queue, meter) = (Rc::clone(&arrived), Rc::clone(&self.meter));
        driver.worker.dataflow::<u64, _, _>(|scope| {
            let blocks = scope.input_from(&mut input).scatter(meter);
            let queued = blocks.inspect(move |block: &WireBlock| {
                queue.borrow_mut().push((block.header().from as usize, block.ids().to_vec()));
            });
            queued.probe_with(&probe);
        });
        let mut receive = || {
            let arrived = arrived.take();
            arrived.iter().try_for_each(|(from, words)| receive(*from, bytemuck::cast_slice(words)))
        };
        let (rank, filling) = (self.rank, vec![Vec::new(); self.placement.workers()]);
        let mut sender =
            Sender { driver, input, probe, receive: &mut receive, rank, filling, sent: 0, values: PhantomData };
        send(&mut sender)?;
        sender.finish()
    }

    /// The words of a value of this worker, as those of its first partition; other partitions have none.
    fn of_worker(&self, words: Option<Vec<u64>>) -> Vec<Vec<u64>> {
        let mut all = vec![Vec::new(); self.placement.parts_of(self.rank).len()];
        if let (Some(first), Some(words)) = (all.first_mut(), words) {
            *first = words;
        }
        all
    }

    /// Returns the sum of the partitions' vectors, if there are any, and all partitions' words. `own` has the words of this
    /// worker's partitions; `len` is their number, if it is equal everywhere. Otherwise the last round is the first in which
    /// no partition has [`ROUND_WORDS`] words.
    fn gather(
        &mut self,
        driver: &mut Driver<'_>,
        len: Option<usize>,
        own: Vec<Vec<u64>>,
        rows: Option<(usize, Vec<PartitionRows>)>,
    ) -> Result<(Vec<f32>, Vec<Vec<u64>>), Error> {
        let first_part = self.placement.parts_of(self.rank).start as u32;
        let mut all = vec![Vec::new(); self.placement.parts()];
        if len == Some(0) && rows.is_none() {
            return Ok((Vec::new(), all));
        }
        let (row_len, mut rows) = rows.unwrap_or_default();
        rows.resize(own.len(), None);
        let (mut sum, mut done) = (None, 0);
        loop {
            let end = done + ROUND_WORDS;
            let contributions =
                (first_part..).zip(&own).zip(&mut rows).map(|((partition, words), rows)| Contribution {
                    partition,
                    vector: rows.take(),
                    words: words[done.min(words.len())..end.min(words.len())].to_vec(),
                });
            let row_len = if sum.is_none() { row_len } else { 0 };
            let reduction = self.reductions.entry(row_len);
            let reduction =
                reduction.or_insert_with(|| Reduction::build(driver.worker, self.placement, row_len, &self.meter));
            let round = reduction.round(driver, contributions)?;
            sum.get_or_insert(round.sum);
            let longest = round.words.iter().map(Vec::len).max().unwrap_or(0);
            all.iter_mut().zip(round.words).for_each(|(all, words)| all.extend(words));
            done = end;
            if len.map_or(longest < ROUND_WORDS, |len| done >= len) {
                return Ok((sum.unwrap_or_default(), all));
            }
        }
    }
}

/// A dataflow of rounds. Each partition contributes once per round.
struct Reduction {
    input: InputHandle<u64, CapacityContainerBuilder<Vec<Contribution>>>,
    probe: probe::Handle<u64>,
    reduced: Rc<RefCell<Option<Reduced>>>,
}

impl Reduction {
    /// Builds it for vectors of `len` numbers.
    fn build(worker: &mut Worker, placement: Placement, len: usize, meter: &Rc<Meter>) -> Self {
        let (mut input, probe) = (InputHandle::new_with_builder(), probe::Handle::new());
        let result: Rc<RefCell<Option<Reduced>>> = Rc::default();
        let reduced = Rc::clone(&result);
        worker.dataflow::<u64, _, _>(|scope| {
            scope
                .input_from(&mut input)
                .all_reduce(placement.parts(), len, Rc::clone(meter))
                .inspect(move |round| *reduced.borrow_mut() = Some(round.clone()))
                .probe_with(&probe);
        });
        Self { input, probe, reduced: result }
    }

    /// Returns the result of the next round. It does not wait for the end of the round at other workers: no worker can have the result of a
    /// later round before this one has contributed to it.
    fn round(
        &mut self,
        driver: &mut Driver<'_>,
        contributions: impl Iterator<Item = Contribution>,
    ) -> Result<Reduced, Error> {
        contributions.for_each(|contribution| self.input.send(contribution));
        let next = self.input.time() + 1;
        self.input.advance_to(next);
        self.input.flush();
        let reduced = driver.run_until_some(&self.probe, next, &mut || self.reduced.take());
        reduced.ok_or_else(|| Error::Bug("a round ended without result".into()))
    }
}

/// The sending half of [`Collectives::all_to_all`].
pub(crate) struct Sender<'a, 'd, T> {
    driver: &'a mut Driver<'d>,
    input: InputHandle<u64, CapacityContainerBuilder<Vec<WireBlock>>>,
    probe: probe::Handle<u64>,
    /// Gives the messages that have arrived to the receiver; called after each turn of the loop.
    receive: &'a mut dyn FnMut() -> Result<(), Error>,
    rank: usize,
    /// By receiver, values that do not fill a message yet.
    filling: Vec<Vec<u32>>,
    /// Messages that this worker has sent.
    sent: u64,
    values: PhantomData<T>,
}

impl<T: Pod> Sender<'_, '_, T> {
    /// Sends a value to the worker of rank `to`.
    ///
    /// # Errors
    /// As [`Collectives::all_to_all`].
    pub(crate) fn send(&mut self, to: usize, value: T) -> Result<(), Error> {
        self.filling[to].extend_from_slice(bytemuck::cast_slice(&[value]));
        if 4 * self.filling[to].len() >= MESSAGE_BYTES { self.send_message(to) } else { Ok(()) }
    }

    /// Sends a message. Waits until at most [`WINDOW`] of this worker's messages are unacknowledged.
    fn send_message(&mut self, to: usize) -> Result<(), Error> {
        let header = Header { to: to as u32, from: self.rank as u32, ..Header::default() };
        let words = std::mem::take(&mut self.filling[to]);
        self.input.send(WireBlock::new(header, Vec::new(), words, Rows::None));
        self.sent += 1;
        self.input.advance_to(self.sent);
        self.input.flush();
        self.driver.worker.step();
        (self.receive)()?;
        // Other workers' times hold the frontier, too, until these close their input. So the slowest worker bounds all.
        self.driver.run_with(&self.probe, self.sent.saturating_sub(WINDOW), self.receive)
    }

    /// Sends the values that are left, and receives until all workers have sent all.
    fn finish(mut self) -> Result<(), Error> {
        for to in 0..self.filling.len() {
            if !self.filling[to].is_empty() {
                self.send_message(to)?;
            }
        }
        self.input.close();
        self.driver.run_with(&self.probe, u64::MAX, self.receive)
    }
}
