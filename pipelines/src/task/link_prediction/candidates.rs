//! The candidate ends of held-out edges.

use std::sync::Arc;

use gnnflow_data::dump::{CandidateTable, Candidates as Given};
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_dataflow::sample::node_groups::NodeGroups;
use gnnflow_kernels::pairs::Edge;

use crate::config::Link;
use crate::context::edge_columns::show;
use crate::error::Error;
use crate::runtime::job::Job;

/// The candidates among which the ends of held-out edges are ranked.
#[derive(Clone, Debug)]
pub(crate) enum Candidates {
    /// All nodes of the end's type.
    All,
    /// A number of nodes drawn per end with the key, without known ones.
    Drawn(usize, Key),
    /// The user's nodes, for tails only. All count except the tail itself.
    Given(Arc<Given>),
}

impl Candidates {
    /// Opens the configured candidates for the edges `held_out` here.
    ///
    /// # Errors
    /// When the user's table cannot be read, or has no row for an edge.
    pub(crate) fn open<'a>(
        job: &Job,
        link: &Link,
        seed: u64,
        mut held_out: impl Iterator<Item = &'a Edge>,
    ) -> Result<Self, Error> {
        if let Some(count) = link.num_negative_edges_eval {
            return Ok(Self::Drawn(count, Key::new(seed, Purpose::Negative).fold_str("evaluation")));
        }
        let Some(files) = &link.eval_negative_dstnode else { return Ok(Self::All) };
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

    /// Returns the candidates for an end of `edge`; `None` for all nodes of its type.
    pub(crate) fn of(&self, edge: &Edge, tail: bool, nodes: &NodeGroups) -> Option<Vec<u32>> {
        match self {
            Self::All => None,
            Self::Drawn(count, key) => {
                let words = [edge.head, edge.tail, u32::from(edge.relation), u32::from(!tail)];
                let key = words.into_iter().fold(*key, |key, word| key.fold(u64::from(word)));
                let group = nodes.group_of(if tail { edge.tail } else { edge.head });
                Some((0..*count as u64).map(|j| nodes.draw(group, key, j)).collect())
            }
            Self::Given(given) => Some(of(given, edge).cloned().unwrap_or_default()),
        }
    }

    /// Tells whether the user gives the candidates. Known ends are then not left out.
    pub(crate) fn are_given(&self) -> bool {
        matches!(self, Self::Given(_))
    }

    /// Tells whether heads are ranked, too.
    pub(crate) fn replace_heads(&self) -> bool {
        !self.are_given()
    }

    /// Returns the maximum number of candidates per end, unless these are all nodes.
    pub(crate) fn each(&self) -> Option<usize> {
        match self {
            Self::All => None,
            Self::Drawn(count, _) => Some(*count),
            Self::Given(given) => match &**given {
                Given::OfSources(all) => all.values().map(Vec::len).max(),
                Given::OfEdges(all) => all.values().map(Vec::len).max(),
            },
        }
    }
}

fn of<'a>(given: &'a Given, edge: &Edge) -> Option<&'a Vec<u32>> {
    match given {
        Given::OfSources(all) => all.get(&edge.head),
        Given::OfEdges(all) => all.get(&(edge.head, edge.tail)),
    }
}
