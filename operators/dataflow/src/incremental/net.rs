//! The net effect of batches of changes on each edge, under the policy for duplicates.
//!
//! *In*: the [`History`] of each edge: the number of its copies before the update, and the rows of batches that contain it. A
//! batch is a time. *Out*: one [`Outcome`] for every edge and batch that contains it. *Kept*: the history of each edge.
//!
//! A batch causes work only for the edges that it contains.

use differential_dataflow::VecCollection;
use differential_dataflow::lattice::Lattice;
use gnnflow_data::source::Duplicates;
use gnnflow_data::update::{Change, EdgeKey, Outcome, settle};
use serde::{Deserialize, Serialize};
use timely::progress::Timestamp;

/// An event in the history of an edge. The multiplicity of the record is the number of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum History {
    /// The edge was present before the update.
    Present,
    /// A row of this batch changes the edge.
    Row(u32, Change),
}

/// Computes the net effect of changes.
pub trait Net<'scope, T: Timestamp> {
    /// Returns the outcomes of all batches so far.
    ///
    /// # Example
    /// ```
    /// use differential_dataflow::input::Input;
    /// use gnnflow_data::source::Duplicates;
    /// use gnnflow_data::update::{Change, EdgeKey, Outcome};
    /// use gnnflow_dataflow::incremental::net::{History, Net};
    ///
    /// timely::execute_directly(|worker| {
    ///     worker.dataflow::<u64, _, _>(|scope| {
    ///         let edge = EdgeKey { dst: 1, src: 0, edge_type: 0 };
    ///         // The edge is present and is added again: one row is dropped.
    ///         let history = [(edge, History::Present), (edge, History::Row(0, Change::Add))];
    ///         let outcome = Outcome { dropped: 1, ..Outcome::default() };
    ///         let (_, history) = scope.new_collection_from(history);
    ///         history.net(Duplicates::Drop).assert_eq(scope.new_collection_from([(edge, outcome)]).1);
    ///     });
    /// });
    /// ```
    fn net(self, duplicates: Duplicates) -> VecCollection<'scope, T, (EdgeKey, Outcome)>;
}

impl<'scope, T> Net<'scope, T> for VecCollection<'scope, T, (EdgeKey, History)>
where
    T: Timestamp + Lattice,
{
    fn net(self, duplicates: Duplicates) -> VecCollection<'scope, T, (EdgeKey, Outcome)> {
        let mut rows = Vec::new();
        self.reduce(move |_, history, outcomes| {
            let mut present = 0;
            rows.clear();
            for &(what, count) in history {
                let count = u32::try_from(count).unwrap_or(0);
                match *what {
                    History::Present => present = count,
                    History::Row(batch, change) => rows.push((batch, change, count)),
                }
            }
            outcomes.extend(settle(duplicates, present, &rows).into_iter().map(|outcome| (outcome, 1isize)));
        })
    }
}
