//! What becomes of edges that come and go, under the policy on duplicates.
//!
//! *In*: what has happened to each edge: how often it stood before, and the rows of every batch that name it, as one growing
//! collection: a batch is a time. *Out*: an [`Outcome`] for every edge and batch that names it, once. *Kept*: the rows by edge.
//!
//! Only edges that a batch names are looked at again when it comes.

use differential_dataflow::VecCollection;
use differential_dataflow::lattice::Lattice;
use gnnflow_data::source::Duplicates;
use gnnflow_data::update::{Change, EdgeKey, Outcome, settle};
use serde::{Deserialize, Serialize};
use timely::progress::Timestamp;

/// What has happened to an edge. How often is the record's multiplicity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum History {
    /// It stood there before.
    Present,
    /// A row of this batch names it.
    Row(u32, Change),
}

/// What becomes of edges.
pub trait Net<'scope, T: Timestamp> {
    /// The outcomes of all batches so far.
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
    ///         // It was there, and is added again: one row is dropped.
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
