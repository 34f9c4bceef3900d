//! The samples that an owner draws for a requester, and errors in them.

use thiserror::Error;

use super::columns::{Columns, EdgeSlices, EdgeValues};

/// Samples of some nodes: `counts[i]` in-edges of node `i`, one node after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    /// Number of in-edges per node.
    pub counts: Vec<u32>,
    /// Sources, as global ids.
    pub neighbors: Vec<u32>,
    /// The requested edge columns.
    pub values: EdgeValues,
}

impl Samples {
    /// Creates an empty value with `columns`.
    pub fn new(columns: Columns) -> Self {
        Self { values: EdgeValues::new(columns), ..Self::default() }
    }

    /// Returns the columns.
    pub fn columns(&self) -> EdgeSlices<'_> {
        self.values.view()
    }

    /// Appends the samples of further nodes, which must have the same columns.
    pub fn append(&mut self, more: &Self) {
        self.counts.extend_from_slice(&more.counts);
        self.neighbors.extend_from_slice(&more.neighbors);
        self.values.extend(more.values.view());
    }

    /// Serializes to words: all counts, then all sources, then the columns.
    pub fn into_words(self) -> Vec<u32> {
        let mut words = [self.counts, self.neighbors].concat();
        self.values.write(&mut words);
        words
    }

    /// Appends the samples of `nodes` nodes from the words of another worker's [`Samples::into_words`]. `columns` must
    /// be this value's columns. `owner` is used in the error.
    ///
    /// # Errors
    /// If the number of words does not match the counts.
    pub fn read(&mut self, owner: usize, nodes: usize, columns: Columns, words: &[u32]) -> Result<(), BadReply> {
        let (counts, rest) = words.split_at_checked(nodes).unwrap_or((words, &[]));
        let counted = counts.iter().map(|&count| u64::from(count)).sum();
        let edges = usize::try_from(counted).unwrap_or(usize::MAX).min(rest.len());
        if counts.len() != nodes || edges as u64 != counted || rest.len() != edges + columns.words(edges) {
            return Err(BadReply::Words { owner, nodes, counted, sent: words.len() });
        }
        let (neighbors, rest) = rest.split_at(edges);
        self.counts.extend_from_slice(counts);
        self.neighbors.extend_from_slice(neighbors);
        self.values.read(edges, rest);
        Ok(())
    }
}

/// An inconsistent reply of an owner.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadReply {
    /// The sum of the counts differs from the number of neighbors.
    #[error("partition {owner} sent {sent} sampled neighbors, but its counts sum to {counted}")]
    Count {
        /// The replying partition.
        owner: usize,
        /// The sum of the counts.
        counted: u64,
        /// The number of neighbors received.
        sent: u64,
    },
    /// The length of a reply does not match its counts.
    #[error("worker {owner} sent {sent} words, which do not match {counted} in-edges of {nodes} nodes")]
    Words {
        /// The replying worker.
        owner: usize,
        /// The number of requested nodes.
        nodes: usize,
        /// The sum of the counts.
        counted: u64,
        /// The number of words received.
        sent: usize,
    },
    /// A neighbor is not a node of the graph.
    #[error("partition {owner} sent node {node}, but the graph has {nodes} nodes")]
    Node {
        /// The replying partition.
        owner: usize,
        /// The largest id received.
        node: u32,
        /// The number of nodes of the graph.
        nodes: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_round_trip_through_words_and_reject_forged_ones() {
        let columns = |bits: u32| Columns { types: bits & 1 > 0, weights: bits & 2 > 0, ids: bits & 4 > 0 };
        for columns in (0..8).map(columns) {
            let mut received = Samples::new(columns);
            let mut all = Samples::new(columns);
            for (counts, edges) in [(vec![2, 0, 1], 3u32), (vec![0], 0), (vec![4], 4)] {
                let mut samples = Samples::new(columns);
                samples.counts = counts;
                samples.neighbors = (0..edges).map(|i| i * 7).collect();
                let values = &mut samples.values;
                values.types.iter_mut().for_each(|types| types.extend((0..edges).map(|i| 65_535 - i as u16)));
                values.weights.iter_mut().for_each(|weights| weights.extend((0..edges).map(|i| i as f32 / 3.0)));
                values.ids.iter_mut().for_each(|ids| ids.extend((0..edges).map(|i| (1 << 40) + u64::from(i))));
                all.append(&samples);
                let (nodes, words) = (samples.counts.len(), samples.into_words());
                let before = received.clone();
                for forged in [&words[..words.len() - 1], &[&words[..], &[0]].concat(), &[u32::MAX; 9]] {
                    assert!(received.read(1, nodes, columns, forged).is_err(), "{columns:?} {forged:?}");
                }
                assert_eq!(received, before);
                received.read(1, nodes, columns, &words).unwrap();
            }
            assert_eq!(received, all);
        }
    }
}
