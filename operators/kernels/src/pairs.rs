//! The pairs of nodes that a batch scores: edges of the graph, and negatives.

/// A directed edge between nodes of the graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Edge {
    /// Global id of its source.
    pub head: u32,
    /// Global id of its destination.
    pub tail: u32,
    /// Its type; 0 if edges have no types.
    pub relation: u16,
}

/// Scored pairs of a batch, as positions of their nodes among its seeds: the positives, then the negatives of each
/// positive in order. If all positives share their negatives, only the positives are listed; see [`Pairs::shared`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pairs {
    /// The head of each pair.
    pub heads: Vec<u32>,
    /// The tail of each pair.
    pub tails: Vec<u32>,
    /// The relation of each pair.
    pub relations: Vec<u16>,
    /// The number of pairs that are edges of the graph.
    pub positives: usize,
    /// The number of negatives per positive.
    pub negatives: usize,
    /// The negatives of all positives, if they are shared.
    pub shared: Option<Shared>,
    /// The class of each positive in edge classification; otherwise empty.
    pub labels: Vec<u32>,
}

/// Negative nodes shared by all positives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shared {
    /// Their positions among the seeds.
    pub nodes: Vec<u32>,
    /// Whether they replace tails, else heads.
    pub tails: bool,
}

impl Pairs {
    /// Returns the number of listed pairs.
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Returns whether no pair is listed.
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }
}
