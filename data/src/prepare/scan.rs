//! The first pass over the nodes: reads ids, splits, labels and types.

use std::collections::BTreeMap;

use super::clean::{Created, NodeSet};
use super::labels::{LabelForm, LabelScan, recount};
use crate::dataset::{LabelInfo, SplitCounts, TypeInfo, split};
use crate::dump::{NodeReader, Types};
use crate::error::{Error, Result};
use crate::ids::{Duplicate, NodeIds};
use crate::progress::Progress;
use crate::rng::{Key, Permutation, Purpose};
use crate::source::GraphSource;

/// The results of the first pass.
pub(super) struct Scan {
    pub(super) ids: NodeIds,
    /// The created nodes, which only edges name.
    pub(super) created: Option<Created>,
    /// One per node.
    pub(super) splits: Vec<u8>,
    /// Fractions and seed of random splits. Until they are drawn, [`split::TRAIN`] marks the nodes to be split.
    draw: Option<([f64; 3], u64)>,
    pub(super) labels: Option<(LabelInfo, LabelForm)>,
    pub(super) types: Option<TypeInfo>,
}

impl Scan {
    /// Adds created nodes, which are in no split and have type 0.
    pub(super) fn add(&mut self, created: Created) {
        self.splits.resize(self.ids.rows(), split::NONE);
        if let Some(types) = self.types.as_mut().filter(|_| created.count() > 0) {
            types.count = types.count.max(1);
        }
        self.created = Some(created);
    }

    /// Drops all nodes that are not in `remaining`.
    pub(super) fn retain(&mut self, remaining: &NodeSet, nodes: &NodeReader) -> Result<()> {
        self.ids.retain(|row| remaining.contains(row));
        let mut rows = 0..;
        self.splits.retain(|_| rows.next().is_some_and(|row| remaining.contains(row)));
        match &mut self.labels {
            Some((info, form)) => recount(nodes, &self.ids, info, *form),
            None => Ok(()),
        }
    }

    /// Draws the splits. All nodes must be known.
    pub(super) fn draw(&mut self) {
        if let Some((fractions, seed)) = self.draw.take() {
            draw_splits(&mut self.splits, fractions, seed);
        }
    }

    pub(super) fn split_counts(&self) -> SplitCounts {
        let mut counts = SplitCounts::default();
        self.splits.iter().for_each(|&which| counts.add(which));
        counts
    }
}

/// Reads all columns of the nodes except the features. `ids` is empty and has sufficient capacity.
pub(super) fn scan(
    nodes: &NodeReader,
    mut ids: NodeIds,
    source: &GraphSource,
    progress: &dyn Progress,
) -> Result<Scan> {
    let n = nodes.rows() as usize;
    let mut splits = Vec::with_capacity(n);
    let mut labels = LabelScan::new(source.encode_like.as_ref());
    let mut types = TypeScan::default();
    let draw = source.split_fractions.is_some();
    progress.stage("reading node ids", Some(nodes.rows()), "nodes");
    nodes.for_each_without_features(Ok, |chunk| {
        let length = chunk.ids.len();
        if let Some(pair) = ids.push(&chunk.ids)? {
            let i = (u64::from(pair.second) - chunk.first_row) as usize;
            return Err(duplicate(nodes, pair, chunk.ids.show(i)));
        }
        labels.add(&chunk, nodes)?;
        if let Some(more) = &chunk.types {
            types.add(more);
        }
        match (&chunk.split, &chunk.labels) {
            (Some(split), _) => splits.extend_from_slice(split),
            // If splits are drawn later, 1 marks labeled nodes.
            (None, Some(labels)) if draw => splits.extend((0..length).map(|row| u8::from(labels.has(row)))),
            (None, _) => splits.resize(splits.len() + length, u8::from(draw)),
        }
        progress.advance(length as u64);
        Ok(())
    })?;
    if let Some(pair) = ids.check()? {
        return Err(duplicate(nodes, pair, ids.show(pair.second)?));
    }
    progress.done();
    let labels = nodes.label_kind().map(|kind| labels.finish(kind, source.classes())).transpose()?;
    let draw = source.split_fractions.map(|fractions| (fractions, source.seed));
    let types = source.columns.node_type.as_ref().map(|_| types.finish());
    Ok(Scan { ids, created: None, splits, draw, labels, types })
}

/// Returns the error for two nodes with the same id.
fn duplicate(nodes: &NodeReader, pair: Duplicate, id: String) -> Error {
    let second = nodes.place(u64::from(pair.second), nodes.id_name());
    Error::DuplicateNode { id, first: u64::from(pair.first), second }
}

/// Assigns the nodes marked 1 to splits in exactly the given fractions, by their positions in a random permutation.
fn draw_splits(splits: &mut [u8], fractions: [f64; 3], seed: u64) {
    let labeled = splits.iter().filter(|&&mark| mark == 1).count() as u64;
    let order = Permutation::new(Key::new(seed, Purpose::Split), labeled);
    let mut sum = 0.0;
    let ends = fractions.map(|fraction| {
        sum += fraction;
        ((sum * labeled as f64).round() as u64).min(labeled)
    });
    for (rank, split) in (0..).zip(splits.iter_mut().filter(|mark| **mark == 1)) {
        let place = order.at(rank);
        *split = match ends.iter().position(|&end| place < end) {
            Some(which) => [split::TRAIN, split::VAL, split::TEST][which],
            None => split::NONE,
        };
    }
}

/// Collects the types of nodes.
#[derive(Default)]
struct TypeScan {
    count: u32,
    names: BTreeMap<String, ()>,
}

impl TypeScan {
    fn add(&mut self, types: &Types) {
        match types {
            Types::Code(codes) => {
                self.count = codes.iter().fold(self.count, |count, &code| count.max(u32::from(code) + 1))
            }
            Types::Name(names) => {
                for name in names.iter().flatten() {
                    if !self.names.contains_key(name) {
                        self.names.insert(name.to_string(), ());
                    }
                }
            }
        }
    }

    fn finish(self) -> TypeInfo {
        let names: Vec<String> = self.names.into_keys().collect();
        TypeInfo { count: self.count.max(names.len() as u32), names }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_splits_have_exact_fractions_of_labeled_nodes() {
        let mut splits: Vec<u8> = (0..1000).map(|i| u8::from(i % 10 != 0)).collect();
        draw_splits(&mut splits, [0.6, 0.2, 0.1], 7);
        let count = |which| splits.iter().filter(|&&s| s == which).count();
        assert_eq!([split::TRAIN, split::VAL, split::TEST].map(count), [540, 180, 90]);
        assert!(splits.iter().step_by(10).all(|&s| s == split::NONE), "unlabeled nodes are in no split");
        let mut other: Vec<u8> = (0..1000).map(|i| u8::from(i % 10 != 0)).collect();
        draw_splits(&mut other, [0.6, 0.2, 0.1], 8);
        assert_ne!(splits, other, "another seed gives other splits");
    }
}
