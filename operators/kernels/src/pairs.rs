//! Pairs of nodes that a batch scores: edges of the graph, and pairs that stand for edges that are none.

/// A directed edge between nodes of the whole graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Edge {
    /// Global id of its source.
    pub head: u32,
    /// Global id of its destination.
    pub tail: u32,
    /// Its type; 0 where edges have none.
    pub relation: u16,
}

/// Scored pairs of a batch, by the places of their ends among its seeds: first the positives, then the negatives of the
/// first of them, of the second, and so on; or, where all positives have the same, only the positives, and [`Pairs::shared`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pairs {
    /// Where each pair begins.
    pub heads: Vec<u32>,
    /// Where it ends.
    pub tails: Vec<u32>,
    /// Its relation.
    pub relations: Vec<u16>,
    /// How many are edges of the graph.
    pub positives: usize,
    /// How many pairs that are no edges stand beside each of them.
    pub negatives: usize,
    /// The negatives of every positive, where they are the same nodes for all.
    pub shared: Option<Shared>,
    /// What is to be learned of each positive: its class; or nothing.
    pub labels: Vec<u32>,
}

/// Nodes that each positive is compared with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shared {
    /// Their places among the seeds.
    pub nodes: Vec<u32>,
    /// Whether they stand for tails, else for heads.
    pub tails: bool,
}

impl Pairs {
    /// How many pairs are listed.
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }
}
