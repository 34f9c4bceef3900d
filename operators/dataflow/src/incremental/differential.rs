//! Runs the dataflows of a dataset's update to completion.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use differential_dataflow::VecCollection;
use differential_dataflow::input::InputSession;
use gnnflow_data::source::Duplicates;
use gnnflow_data::update::{Change, EdgeKey, Incremental, Outcome};
use gnnflow_data::{Error, Result};
use timely::dataflow::operators::probe;
use timely::worker::Worker;

use super::affected::Affected;
use super::net::{History, Net};

/// [`Incremental`] by differential dataflow, on some threads of this process.
#[derive(Clone, Copy, Debug)]
pub struct Differential {
    /// Workers, at least one.
    pub workers: usize,
}

impl Incremental for Differential {
    fn net(
        &self,
        duplicates: Duplicates,
        present: &[(EdgeKey, u32)],
        batches: &[Vec<(EdgeKey, Change)>],
    ) -> Result<Vec<(EdgeKey, Outcome)>> {
        let (present, batches) = (Arc::new(present.to_vec()), Arc::new(batches.to_vec()));
        self.run(move |worker| {
            let mut history = InputSession::new();
            let (index, peers) = (worker.index(), worker.peers());
            let found = Found::default();
            worker.dataflow::<u64, _, _>(|scope| found.collect(history.to_collection(scope).net(duplicates)));
            for &(edge, copies) in present.iter().skip(index).step_by(peers) {
                history.update((edge, History::Present), copies as isize);
            }
            for (batch, rows) in (0u32..).zip(batches.iter()) {
                history.advance_to(u64::from(batch) + 1);
                history.flush();
                for &(edge, change) in rows.iter().skip(index).step_by(peers) {
                    history.insert((edge, History::Row(batch, change)));
                }
            }
            drop(history);
            found.finish(worker)
        })
    }

    fn affected(&self, edges: &[(u32, u32)], changed: &[u32], steps: u32) -> Result<Vec<(u32, u32)>> {
        let (edges, changed) = (Arc::new(edges.to_vec()), Arc::new(changed.to_vec()));
        self.run(move |worker| {
            let (mut all, mut from) = (InputSession::new(), InputSession::new());
            let (index, peers) = (worker.index(), worker.peers());
            let found = Found::default();
            worker.dataflow::<u64, _, _>(|scope| {
                let from = from.to_collection(scope);
                found.collect(all.to_collection(scope).affected_in_steps(from, steps as usize));
            });
            edges.iter().skip(index).step_by(peers).for_each(|&edge| all.insert(edge));
            changed.iter().skip(index).step_by(peers).for_each(|&node| from.insert(node));
            drop((all, from));
            found.finish(worker)
        })
    }
}

impl Differential {
    /// Runs `work` at all workers. Returns the records with a positive sum of multiplicities, sorted.
    fn run<D: Ord + Send + 'static>(
        &self,
        work: impl Fn(&mut Worker) -> Vec<(D, isize)> + Send + Sync + 'static,
    ) -> Result<Vec<D>> {
        let config = timely::Config::process(self.workers.max(1));
        let guards = timely::execute(config, work).map_err(Error::Bug)?;
        let mut all = Vec::new();
        for found in guards.join() {
            all.extend(found.map_err(Error::Bug)?);
        }
        all.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        all.dedup_by(|(later, more), (first, count)| {
            let same = later == first;
            if same {
                *count += *more;
            }
            same
        });
        Ok(all.into_iter().filter(|(_, count)| *count > 0).map(|(record, _)| record).collect())
    }
}

/// The changes of a collection at one worker.
struct Found<D> {
    changes: Rc<RefCell<Vec<(D, isize)>>>,
    probe: probe::Handle<u64>,
}

impl<D> Default for Found<D> {
    fn default() -> Self {
        Self { changes: Rc::default(), probe: probe::Handle::new() }
    }
}

impl<D: differential_dataflow::Data> Found<D> {
    fn collect(&self, collection: VecCollection<'_, u64, D>) {
        let changes = self.changes.clone();
        collection
            .inspect(move |(record, _, diff)| changes.borrow_mut().push((record.clone(), *diff)))
            .probe_with(&self.probe);
    }

    /// Steps the worker until the dataflow is complete. Returns the changes.
    fn finish(self, worker: &mut Worker) -> Vec<(D, isize)> {
        while !self.probe.done() {
            worker.step_or_park(None);
        }
        self.changes.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnnflow_data::rng::{Key, Purpose};
    use gnnflow_data::update::Direct;

    #[test]
    fn outcomes_equal_naive_loops_at_1_2_and_4_workers() {
        let key = Key::new(5, Purpose::GenerateEdges);
        let edge = |i: u64| EdgeKey {
            dst: key.below(3 * i, 12) as u32,
            src: key.below(3 * i + 1, 12) as u32,
            edge_type: key.below(3 * i + 2, 2) as u16,
        };
        let mut present: Vec<(EdgeKey, u32)> = (0..60).map(|i| (edge(i), 1 + i as u32 % 3)).collect();
        present.sort_unstable();
        present.dedup_by_key(|(edge, _)| *edge);
        let change = |i: u64| if i.is_multiple_of(3) { Change::Remove } else { Change::Add };
        let batches: Vec<Vec<(EdgeKey, Change)>> =
            (0..4).map(|batch| (0..90).map(|i| (edge(100 + 90 * batch + i), change(i / 2))).collect()).collect();
        for duplicates in [Duplicates::Drop, Duplicates::Keep, Duplicates::Fail] {
            let present: Vec<_> = match duplicates {
                Duplicates::Keep => present.clone(),
                _ => present.iter().map(|&(edge, _)| (edge, 1)).collect(),
            };
            let expected = Direct.net(duplicates, &present, &batches).unwrap();
            assert!(expected.iter().any(|(_, outcome)| outcome.missing > 0 && outcome.added > 0));
            for workers in [1, 2, 4] {
                let found = Differential { workers }.net(duplicates, &present, &batches).unwrap();
                assert_eq!(found, expected, "{duplicates:?}, {workers} workers");
            }
        }
        assert_eq!(Differential { workers: 2 }.net(Duplicates::Drop, &[], &[]).unwrap(), []);
    }

    #[test]
    fn steps_equal_a_breadth_first_search() {
        let key = Key::new(6, Purpose::GenerateEdges);
        let edges: Vec<(u32, u32)> =
            (0..150).map(|i| (key.below(2 * i, 80) as u32, key.below(2 * i + 1, 80) as u32)).collect();
        for steps in 0..4 {
            let expected = Direct.affected(&edges, &[3, 40, 79], steps).unwrap();
            for workers in [1, 3] {
                assert_eq!(Differential { workers }.affected(&edges, &[3, 40, 79], steps).unwrap(), expected);
            }
        }
    }
}
