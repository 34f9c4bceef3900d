//! The difference between the edges of a dataset and those of now, arranged by destination.
//!
//! *In*: changes of single edges, with multiplicities. *Out*: the changes of a node, read by a cursor. *Kept*: the changes that do not cancel out:
//! times before the last commit are merged, so an edge that was added and removed takes no space.
//!
//! A worker keeps the changes of its own nodes. So records are not exchanged.

use differential_dataflow::input::InputSession;
use differential_dataflow::operators::arrange::TraceAgent;
use differential_dataflow::operators::arrange::arrangement::arrange_core;
use differential_dataflow::trace::TraceReader;
use differential_dataflow::trace::cursor::{Cursor, cursor_list};
use differential_dataflow::trace::implementations::spine_fueled::SpineBatch;
use differential_dataflow::trace::implementations::{ValBatcher, ValSpine};
use serde::{Deserialize, Serialize};
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::{Probe, probe};
use timely::progress::frontier::AntichainRef;
use timely::worker::Worker;

/// Which copy of an edge a delta is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum EdgeCopy {
    /// The first copy of the dataset that is not removed yet. It is removed.
    Removed,
    /// An added copy. Copies are in the order of these numbers, after those of the dataset.
    Added(u64),
}

/// A difference between the in-edges of a node in the dataset and now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EdgeDelta {
    /// The source.
    pub src: u32,
    /// The copy.
    pub copy: EdgeCopy,
    /// The type of the edge; 0 if edges have no types.
    pub edge_type: u16,
}

/// The differences of one worker's nodes.
///
/// ```
/// use gnnflow_dataflow::incremental::edge_deltas::{EdgeCopy, EdgeDelta, EdgeDeltas};
///
/// timely::execute_directly(|worker| {
///     let mut deltas = EdgeDeltas::build(worker);
///     let added = |src| EdgeDelta { src, copy: EdgeCopy::Added(src as u64), edge_type: 0 };
///     deltas.change(7, added(3), 1);
///     deltas.change(7, added(1), 1);
///     let time = deltas.commit();
///     worker.step_while(|| deltas.probe().less_than(&time));
///     assert_eq!(deltas.of(7), [(added(1), 1), (added(3), 1)]);
///
///     deltas.change(7, added(1), -1);
///     let time = deltas.commit();
///     worker.step_while(|| deltas.probe().less_than(&time));
///     assert_eq!(deltas.of(7), [(added(3), 1)]);
///     assert_eq!(deltas.of(8), []);
/// });
/// ```
pub struct EdgeDeltas {
    input: InputSession<u64, (u32, EdgeDelta), isize>,
    trace: TraceAgent<ValSpine<u32, EdgeDelta, u64, isize>>,
    probe: probe::Handle<u64>,
}

impl EdgeDeltas {
    /// Builds the dataflow.
    pub fn build(worker: &mut Worker) -> Self {
        let (mut input, probe) = (InputSession::new(), probe::Handle::new());
        let trace = worker.dataflow::<u64, _, _>(|scope| {
            let changes = input.to_collection(scope).inner;
            let arranged = arrange_core(changes, Pipeline, "edge_deltas", ValBatcher::new);
            arranged.stream.probe_with(&probe);
            arranged.trace
        });
        Self { input, trace, probe }
    }

    /// Adds a difference of node `dst`, `times` times; a negative number takes it back.
    pub fn change(&mut self, dst: u32, delta: EdgeDelta, times: isize) {
        self.input.update((dst, delta), times);
    }

    /// Ends a group of changes, and forgets the order of all changes before. They can be read when the probe has passed the returned time.
    pub fn commit(&mut self) -> u64 {
        // Readers read the last complete time only.
        let complete = *self.input.time();
        self.trace.set_logical_compaction(AntichainRef::new(&[complete]));
        self.trace.set_physical_compaction(AntichainRef::new(&[complete]));
        self.input.advance_to(complete + 1);
        self.input.flush();
        complete + 1
    }

    /// Returns the probe of the arrangement.
    pub fn probe(&self) -> &probe::Handle<u64> {
        &self.probe
    }

    /// Returns the differences of node `dst` with their multiplicities, ascending, as of the last commit that the probe has passed.
    pub fn of(&mut self, dst: u32) -> Vec<(EdgeDelta, isize)> {
        let Some(batches) = self.trace.batches_through(AntichainRef::new(&[])) else { return Vec::new() };
        let (mut cursor, storage) = cursor_list(batches);
        cursor.seek_key(&storage, &dst);
        let mut found = Vec::new();
        if cursor.get_key(&storage) != Some(&dst) {
            return found;
        }
        while let Some(&delta) = cursor.get_val(&storage) {
            let mut sum = 0;
            cursor.map_times(&storage, |_, times| sum += *times);
            if sum != 0 {
                found.push((delta, sum));
            }
            cursor.step_val(&storage);
        }
        found
    }

    /// Returns the number of records that the arrangement keeps.
    pub fn records(&self) -> usize {
        let mut records = 0;
        self.trace.map_spans(|span| records += span.inner.as_ref().map_or(0, |batch| batch.len()));
        records
    }
}
