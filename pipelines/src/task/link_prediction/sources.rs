//! The sources of recommendations, and their known tails.

use std::collections::BTreeSet;
use std::sync::Arc;

use gnnflow_data::dataset::Dataset;
use gnnflow_dataflow::sample::node_groups::NodeGroups;
use gnnflow_kernels::pairs::Edge;

use crate::error::Error;
use crate::task::target_edges::TargetRules;

/// What is recommended: to nodes of one type, nodes of one type, by one relation. Types are groups of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TailKind {
    pub(crate) relation: u16,
    pub(crate) heads: usize,
    pub(crate) tails: usize,
}

/// The sources of recommendations: all nodes of types that have target edges.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    /// Maximum length of a list.
    pub(crate) length: usize,
    pub(crate) nodes: Arc<NodeGroups>,
    /// The relations and types of target edges, ascending.
    pub(crate) kinds: Vec<TailKind>,
    rules: TargetRules,
}

impl Sources {
    /// Finds the relations and types of the target edges of all partitions.
    ///
    /// # Errors
    /// When the dataset cannot be read.
    pub(crate) fn find(
        length: usize,
        dataset: &Dataset,
        rules: &TargetRules,
        nodes: &Arc<NodeGroups>,
    ) -> Result<Self, Error> {
        let mut kinds = BTreeSet::new();
        for_each_edge(dataset, rules, |Edge { head, tail, relation }| {
            kinds.insert(TailKind { relation, heads: nodes.group_of(head), tails: nodes.group_of(tail) });
        })?;
        let (kinds, rules) = (kinds.into_iter().collect(), rules.clone());
        Ok(Self { length, nodes: Arc::clone(nodes), kinds, rules })
    }

    /// Returns the tails of each of `heads`, ascending, in target edges of any split, ascending, with the node itself: also in a graph with
    /// self-loops, nothing is recommended to itself.
    ///
    /// # Errors
    /// When the dataset cannot be read.
    pub(crate) fn known_tails(
        &self,
        dataset: &Dataset,
        kind: &TailKind,
        heads: &[u32],
    ) -> Result<Vec<Vec<u32>>, Error> {
        let mut known: Vec<Vec<u32>> = heads.iter().map(|&head| vec![head]).collect();
        for_each_edge(dataset, &self.rules, |edge| {
            if edge.relation == kind.relation
                && let Ok(source) = heads.binary_search(&edge.head)
            {
                known[source].push(edge.tail);
            }
        })?;
        for tails in &mut known {
            tails.sort_unstable();
            tails.dedup();
        }
        Ok(known)
    }
}

/// Calls `each` with every target edge.
fn for_each_edge(dataset: &Dataset, rules: &TargetRules, mut each: impl FnMut(Edge)) -> Result<(), Error> {
    for part in 0..dataset.manifest().parts() {
        rules.for_each_target(&dataset.topology(part)?, dataset.book().range(part).start as u32, &mut each);
    }
    Ok(())
}
