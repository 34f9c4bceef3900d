//! What the ends of held-out edges are ranked among.

use std::sync::Arc;

use gnnflow_data::dump::{CandidateTable, Candidates as Given};
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_dataflow::sample::node_groups::NodeGroups;
use gnnflow_kernels::pairs::Edge;

use crate::config::Link;
use crate::context::edge_columns::show;
use crate::error::Error;
use crate::runtime::job::Job;

/// What the ends of held-out edges are ranked among.
#[derive(Clone, Debug)]
pub(crate) enum Candidates {
    /// All nodes of the end's type.
    All,
    /// So many nodes, drawn for each end under the key; those that are known are left out.
    Drawn(usize, Key),
    /// The nodes that the user gives, tails alone; all but the tail itself count.
    Given(Arc<Given>),
}

impl Candidates {
    /// As the pipeline says, for the edges `held_out` here.
    ///
    /// # Errors
    /// When the user's table cannot be read, or has none for an edge.
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

    /// The candidates for an end of `edge`; `None` where all nodes of its type are.
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

    /// Whether they are the user's, and count as they are.
    pub(crate) fn are_given(&self) -> bool {
        matches!(self, Self::Given(_))
    }

    /// Whether heads are looked for too.
    pub(crate) fn replace_heads(&self) -> bool {
        !self.are_given()
    }

    /// How many an end has at most, where not all nodes.
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
