//! Small agreements between workers: everybody tells, everybody hears all.

use std::cell::RefCell;
use std::rc::Rc;

use gnnflow_dataflow::collective::all_reduce::{AllReduce, Contribution, Reduced};
use gnnflow_dataflow::graph::placement::Placement;
use gnnflow_dataflow::wire::meter::Meter;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::InputHandle;
use timely::dataflow::operators::core::Inspect;
use timely::dataflow::operators::{Input, Probe, probe};
use timely::worker::Worker;

use crate::collectives::driver::{FirstError, run_until};
use crate::error::Error;
use crate::runtime::job::Runtime;

/// Words that one round tells at most: 128 KB.
pub(crate) const WORDS: usize = 16 << 10;

/// A dataflow of rounds of telling. All workers must hold the same rounds in the same order.
pub(crate) struct Agreement {
    input: InputHandle<u64, CapacityContainerBuilder<Vec<Contribution>>>,
    probe: probe::Handle<u64>,
    heard: Rc<RefCell<Option<Reduced>>>,
    placement: Placement,
    me: usize,
}

impl Agreement {
    /// Builds it for vectors of `length` numbers (0 where only words are told).
    pub(crate) fn build(worker: &mut Worker, placement: Placement, length: usize, meter: Rc<Meter>) -> Self {
        let (mut input, probe, heard) = (InputHandle::new_with_builder(), probe::Handle::new(), Rc::default());
        let me = worker.index();
        let told: Rc<RefCell<Option<Reduced>>> = Rc::clone(&heard);
        worker.dataflow::<u64, _, _>(|scope| {
            scope
                .input_from(&mut input)
                .all_reduce(placement.parts(), length, meter)
                .inspect(move |reduced| *told.borrow_mut() = Some(reduced.clone()))
                .probe_with(&probe);
        });
        Self { input, probe, heard, placement, me }
    }

    /// One round: `tell` says what each partition of this worker tells.
    pub(crate) fn round(
        &mut self,
        worker: &mut Worker,
        runtime: &dyn Runtime,
        mut tell: impl FnMut(usize) -> Contribution,
    ) -> Result<Reduced, Error> {
        for part in self.placement.parts_of(self.me) {
            self.input.send(tell(part));
        }
        let next = self.input.time() + 1;
        self.input.advance_to(next);
        self.input.flush();
        run_until(worker, runtime, &FirstError::default(), &self.probe, next)?;
        self.heard.take().ok_or_else(|| Error::Bug("a round of telling ended without result".into()))
    }

    /// What every partition tells, by partition; at most [`WORDS`] words each.
    pub(crate) fn by_partition(
        &mut self,
        worker: &mut Worker,
        runtime: &dyn Runtime,
        mut words: impl FnMut(usize) -> Vec<u64>,
    ) -> Result<Vec<Vec<u64>>, Error> {
        let tell = |part| Contribution { partition: part as u32, vector: None, words: words(part) };
        Ok(self.round(worker, runtime, tell)?.words)
    }

    /// What all partitions tell, one behind the other; each as much as it likes.
    pub(crate) fn lists(
        &mut self,
        worker: &mut Worker,
        runtime: &dyn Runtime,
        words: impl Fn(usize) -> Vec<u64>,
    ) -> Result<Vec<u64>, Error> {
        let parts = self.placement.parts_of(self.me);
        let own: Vec<Vec<u64>> = parts.clone().map(words).collect();
        let lengths = self.by_partition(worker, runtime, |part| vec![own[part - parts.start].len() as u64])?;
        let mut all: Vec<Vec<u64>> = vec![Vec::new(); lengths.len()];
        let longest = lengths.iter().map(|length| length[0]).max().unwrap_or(0) as usize;
        for first in (0..longest).step_by(WORDS) {
            let piece = |part: usize| {
                let own = &own[part - parts.start];
                own[first.min(own.len())..(first + WORDS).min(own.len())].to_vec()
            };
            let told = self.by_partition(worker, runtime, piece)?;
            all.iter_mut().zip(told).for_each(|(all, piece)| all.extend(piece));
        }
        Ok(all.concat())
    }

    /// What every worker tells, by worker. All must tell equally many words.
    pub(crate) fn by_worker(
        &mut self,
        worker: &mut Worker,
        runtime: &dyn Runtime,
        own: &[u64],
    ) -> Result<Vec<Vec<u64>>, Error> {
        let (me, placement) = (self.me, self.placement);
        let mut told = vec![Vec::with_capacity(own.len()); placement.workers()];
        for piece in own.chunks(WORDS) {
            let words = |part| if part == placement.parts_of(me).start { piece.to_vec() } else { Vec::new() };
            let mut round = self.by_partition(worker, runtime, words)?;
            for (worker, told) in told.iter_mut().enumerate() {
                told.append(&mut round[placement.parts_of(worker).start]);
            }
        }
        Ok(told)
    }

    /// The sums of what every worker tells, word by word.
    pub(crate) fn sums(&mut self, worker: &mut Worker, runtime: &dyn Runtime, own: &[u64]) -> Result<Vec<u64>, Error> {
        let told = self.by_worker(worker, runtime, own)?;
        Ok((0..own.len()).map(|i| told.iter().map(|words| words[i]).sum()).collect())
    }
}
