//! The policy on duplicates: which copies of edges a change adds and removes.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::source::Duplicates;

/// Identity of an edge: both ends and, if edges have types, the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EdgeKey {
    /// The destination.
    pub dst: u32,
    /// The source.
    pub src: u32,
    /// The type; 0 if edges have no types.
    pub edge_type: u16,
}

/// The change that a row of a batch makes. In each batch, removals precede additions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Change {
    /// Removes the edge.
    Remove,
    /// Adds the edge.
    Add,
}

/// Effect of a batch on an edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Outcome {
    /// The batch, from 0.
    pub batch: u32,
    /// Number of removed copies: the first ones.
    pub removed: u32,
    /// Number of removals without a copy: the last rows.
    pub missing: u32,
    /// Number of added copies: the first rows.
    pub added: u32,
    /// Number of additions that were dropped because the edge exists: the last rows.
    pub dropped: u32,
}

/// Applies the policy on duplicates to the history of one edge with `present` copies. `rows` are sorted triples
/// `(batch, change, number of rows)`.
///
/// With [`Duplicates::Keep`], every row adds or removes one copy. Otherwise an edge has one copy or none, and equal
/// rows of a batch count once.
///
/// ```
/// use gnnflow_data::source::Duplicates;
/// use gnnflow_data::update::Change::{Add, Remove};
/// use gnnflow_data::update::settle;
///
/// let history = [(0, Add, 2), (1, Remove, 1), (1, Add, 1)];
/// let dropped = settle(Duplicates::Drop, 0, &history);
/// assert_eq!((dropped[0].added, dropped[0].dropped), (1, 1));
/// assert_eq!((dropped[1].removed, dropped[1].added), (1, 1));
/// ```
pub fn settle(duplicates: Duplicates, present: u32, rows: &[(u32, Change, u32)]) -> Vec<Outcome> {
    let keep = duplicates == Duplicates::Keep;
    let mut copies = present;
    let mut outcomes: Vec<Outcome> = Vec::new();
    for &(batch, change, count) in rows {
        if outcomes.last().is_none_or(|last| last.batch != batch) {
            outcomes.push(Outcome { batch, ..Outcome::default() });
        }
        let Some(outcome) = outcomes.last_mut() else { continue };
        match change {
            Change::Remove => {
                outcome.removed = if keep { count.min(copies) } else { copies };
                outcome.missing = match (keep, copies) {
                    (true, _) => count - outcome.removed,
                    (false, 0) => count,
                    (false, _) => 0,
                };
                copies -= outcome.removed;
            }
            Change::Add => {
                outcome.added = match (keep, copies) {
                    (true, _) => count,
                    (false, 0) => 1,
                    (false, _) => 0,
                };
                outcome.dropped = count - outcome.added;
                copies += outcome.added;
            }
        }
    }
    outcomes
}

/// Applies `batches` to edges that have `present` copies. Returns one [`Outcome`] for each edge and each batch that has it, sorted, as computed by
/// [`settle`].
pub(super) fn net(
    duplicates: Duplicates,
    present: &HashMap<EdgeKey, u32>,
    batches: &[Vec<(EdgeKey, Change)>],
) -> Vec<(EdgeKey, Outcome)> {
    let mut rows: BTreeMap<EdgeKey, BTreeMap<(u32, Change), u32>> = BTreeMap::new();
    for (batch, changes) in (0..).zip(batches) {
        for &(key, change) in changes {
            *rows.entry(key).or_default().entry((batch, change)).or_default() += 1;
        }
    }
    let mut all = Vec::with_capacity(rows.len());
    for (key, rows) in rows {
        let rows: Vec<_> = rows.into_iter().map(|((batch, change), count)| (batch, change, count)).collect();
        let outcomes = settle(duplicates, present.get(&key).copied().unwrap_or(0), &rows);
        all.extend(outcomes.into_iter().map(|outcome| (key, outcome)));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::Change::{Add, Remove};
    use super::*;

    #[test]
    fn settle_counts_copies_only_with_kept_duplicates() {
        let rows = [(0, Remove, 3), (0, Add, 2), (2, Remove, 1)];
        let outcome = |batch, removed, missing, added, dropped| Outcome { batch, removed, missing, added, dropped };
        assert_eq!(settle(Duplicates::Keep, 2, &rows), [outcome(0, 2, 1, 2, 0), outcome(2, 1, 0, 0, 0)]);
        assert_eq!(settle(Duplicates::Drop, 1, &rows), [outcome(0, 1, 0, 1, 1), outcome(2, 1, 0, 0, 0)]);
        assert_eq!(settle(Duplicates::Drop, 0, &rows), [outcome(0, 0, 3, 1, 1), outcome(2, 1, 0, 0, 0)]);
    }
}
