//! The candidate ends of held-out edges.

use std::sync::Arc;

use gnnflow_data::dump::{CandidateTable, Candidates as Given};
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_dataflow::sample::node_groups::NodeGroups;
use gnnflow_kernels::pairs::Edge;

use crate::config::{Link, RankAmong};
use crate::context::edge_columns::show;
use crate::error::Error;
use crate::runtime::job::Job;

/// The candidates among which the ends of held-out edges are ranked.
#[derive(Clone, Debug)]
pub(crate) enum Candidates {
    /// All nodes of the end's type.
    All,
    /// Nodes of drawn lists, without known ones.
    Drawn(DrawnLists),
    /// The user's nodes, for tails only. All count except the tail itself.
    Given(Arc<Given>),
}

impl Candidates {
    /// Opens the configured candidates for the edges `held_out` here. A table has candidates for the edges of the training only.
    ///
    /// # Errors
    /// When the user's table cannot be read, or has no row for an edge.
    pub(crate) fn open<'a>(
        job: &Job,
        link: &Link,
        seed: u64,
        mut held_out: impl Iterator<Item = &'a Edge>,
    ) -> Result<Self, Error> {
        let Some(files) = link.eval_negative_dstnode.as_ref().filter(|_| job.is_on_training_data()) else {
            return Ok(match link.rank_among() {
                RankAmong::All => Self::All,
                RankAmong::Count(count) => {
                    Self::Drawn(DrawnLists::new(count, Key::new(seed, Purpose::Negative).fold_str("evaluation")))
                }
            });
        };
        let given = CandidateTable { files: files.0.clone() }.read(&job.dataset)?;
        if let Some(edge) = held_out.find(|edge| of(&given, edge).is_none()) {
            let (head, tail) = (show(job, edge.head)?, show(job, edge.tail)?);
            let (role, file) =
                (CandidateTable::ROLE, files.0.first().map_or("".into(), |file| file.display().to_string()));
            return Err(Error::Input(format!(
                "{file}: no row for the held-out edge from node {head} to node {tail} ({role}); add one"
            )));
        }
        Ok(Self::Given(Arc::new(given)))
    }

    /// Tells whether heads are ranked, too.
    pub(crate) fn replace_heads(&self) -> bool {
        !matches!(self, Self::Given(_))
    }

    /// Returns the maximum number of candidates that an edge has for itself.
    pub(crate) fn of_one_edge(&self) -> usize {
        let longest = match self {
            Self::All | Self::Drawn(_) => None,
            Self::Given(given) => match &**given {
                Given::OfSources(all) => all.values().map(Vec::len).max(),
                Given::OfEdges(all) => all.values().map(Vec::len).max(),
            },
        };
        longest.unwrap_or(0)
    }
}

/// Lists of candidates. Each is drawn once, uniformly from the nodes of a type. All searches from one node with one relation use the
/// same list, so that scores are products of matrices, as with `joint` negatives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrawnLists {
    count: usize,
    lists: u64,
    key: Key,
}

impl DrawnLists {
    /// Maximum number of lists for each type.
    const MOST: usize = 16;
    /// Maximum number of nodes in all lists of a type, if there are several.
    const NODES: usize = 1 << 16;

    /// Describes lists of `count` draws.
    pub(crate) fn new(count: usize, key: Key) -> Self {
        Self { count, lists: (Self::NODES / count).clamp(1, Self::MOST) as u64, key }
    }

    /// Returns the number of the list for the search from `node` for a tail or for a head.
    pub(crate) fn list_of(&self, node: u32, relation: u16, tail: bool) -> u64 {
        let words = [u64::from(node), u64::from(relation), u64::from(tail)];
        words.into_iter().fold(self.key.fold_str("list"), Key::fold).below(0, self.lists)
    }

    /// Returns the nodes of a list of `group`, distinct and ascending; all nodes if there are at most as many as draws.
    pub(crate) fn nodes(&self, group: usize, list: u64, groups: &NodeGroups) -> Vec<u32> {
        if groups.count(group) as usize <= self.count {
            let mut nodes: Vec<u32> = (0..groups.count(group)).map(|rank| groups.nth(group, rank)).collect();
            nodes.sort_unstable();
            return nodes;
        }
        let key = self.key.fold(group as u64).fold(list);
        let mut nodes: Vec<u32> = (0..self.count as u64).map(|i| groups.draw(group, key, i)).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }
}

/// Returns the candidates that the user gives for an edge.
pub(crate) fn of<'a>(given: &'a Given, edge: &Edge) -> Option<&'a Vec<u32>> {
    match given {
        Given::OfSources(all) => all.get(&edge.head),
        Given::OfEdges(all) => all.get(&(edge.head, edge.tail)),
    }
}
