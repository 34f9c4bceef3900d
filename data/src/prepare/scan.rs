//! The first pass over the nodes: reads ids, splits, labels and types.

use std::collections::BTreeMap;

use arrow::array::LargeStringArray;

use super::clean::{Created, NodeSet, recount};
use crate::dataset::{LabelInfo, LabelKind, SplitCounts, TypeInfo, split};
use crate::dump::{NodeChunk, NodeReader, RawLabels, Types};
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

/// The form of labels in the dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LabelForm {
    /// The same as in the dataset.
    Plain,
    /// Names; the dataset stores their ranks.
    Names,
    /// Lists of one flag per class.
    Flags,
    /// Lists of classes.
    Lists,
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
        let count = |which| self.splits.iter().filter(|&&split| split == which).count() as u64;
        SplitCounts {
            none: count(split::NONE),
            train: count(split::TRAIN),
            val: count(split::VAL),
            test: count(split::TEST),
        }
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
    let mut labels = LabelScan::default();
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
            (None, Some(RawLabels::Int(labels))) if draw => {
                splits.extend(labels.iter().map(|&label| u8::from(label >= 0)))
            }
            (None, _) => splits.resize(splits.len() + length, u8::from(draw)),
        }
        progress.advance(length as u64);
        Ok(())
    })?;
    if let Some(pair) = ids.check()? {
        return Err(duplicate(nodes, pair, ids.show(pair.second)?));
    }
    progress.done();
    let labels = nodes.label_kind().map(|kind| labels.finish(kind, source.num_classes)).transpose()?;
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

/// Counts labels.
#[derive(Default)]
struct LabelScan {
    labeled: u64,
    counts: Vec<u64>,
    names: BTreeMap<String, u64>,
    lists: ListScan,
}

/// Determines whether lists are flags or classes.
#[derive(Default)]
struct ListScan {
    /// Length of the first list.
    width: Option<usize>,
    /// Whether lists have different lengths, or a value is neither 0 nor 1.
    not_flags: bool,
    /// Number of ones at each position.
    flags: Vec<u64>,
}

impl LabelScan {
    fn add(&mut self, chunk: &NodeChunk, nodes: &NodeReader) -> Result<()> {
        match &chunk.labels {
            None => {}
            Some(RawLabels::Int(labels)) => {
                for &label in labels.iter().filter(|&&label| label >= 0) {
                    self.labeled += 1;
                    increment(&mut self.counts, label as usize);
                }
            }
            Some(RawLabels::Float(labels)) => self.labeled += labels.len() as u64,
            Some(RawLabels::Text(labels)) => {
                for name in labels.iter().flatten() {
                    self.labeled += 1;
                    match self.names.get_mut(name) {
                        Some(count) => *count += 1,
                        None => drop(self.names.insert(name.to_string(), 1)),
                    }
                }
            }
            Some(RawLabels::List { starts, items }) => {
                for (row, ends) in starts.windows(2).enumerate() {
                    let list = &items[ends[0]..ends[1]];
                    self.labeled += 1;
                    let width = *self.lists.width.get_or_insert(list.len());
                    let same = width == list.len();
                    if !same && nodes.labels_are_flags() {
                        let place = chunk.origin.place(row, nodes.label_name());
                        return Err(Error::Width { place, found: list.len(), expected: width });
                    }
                    self.lists.not_flags |= !same || list.iter().any(|&value| value > 1);
                    for (position, &value) in list.iter().enumerate() {
                        increment(&mut self.counts, value as usize);
                        if value == 1 && !self.lists.not_flags {
                            increment(&mut self.lists.flags, position);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn finish(mut self, kind: LabelKind, wanted: Option<u32>) -> Result<(LabelInfo, LabelForm)> {
        let (mut names, mut form) = (Vec::new(), LabelForm::Plain);
        match kind {
            LabelKind::Value => self.counts.clear(),
            LabelKind::Class if !self.names.is_empty() => {
                form = LabelForm::Names;
                (names, self.counts) = self.names.into_iter().unzip();
            }
            LabelKind::Class => {}
            LabelKind::Multi => {
                let width = self.lists.width.unwrap_or(0);
                let flags =
                    !self.lists.not_flags && width > 1 && wanted.is_none_or(|classes| classes as usize == width);
                form = if flags { LabelForm::Flags } else { LabelForm::Lists };
                if flags {
                    self.counts = self.lists.flags;
                    self.counts.resize(width, 0);
                }
            }
        }
        let found = self.counts.len() as u64;
        let classes = match (kind, wanted) {
            (LabelKind::Value, _) => 1,
            (_, Some(wanted)) if found > u64::from(wanted) => {
                let reason = format!("is {wanted}, but the labels have {found} classes; set it to at least {found}");
                return Err(Error::Setting { key: "graph.num_classes", reason });
            }
            (_, Some(wanted)) => wanted,
            (_, None) => found as u32,
        };
        if kind != LabelKind::Value {
            self.counts.resize(classes as usize, 0);
        }
        Ok((LabelInfo { kind, classes, names, labeled: self.labeled, counts: self.counts }, form))
    }
}

fn increment(counts: &mut Vec<u64>, at: usize) {
    if counts.len() <= at {
        counts.resize(at + 1, 0);
    }
    counts[at] += 1;
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

/// Returns the ranks of `values` among the sorted `names`, which contain all of them.
pub(super) fn ranks(values: &LargeStringArray, names: &[String]) -> Result<Vec<u32>> {
    let rank = |value: Option<&str>| {
        let found = value.and_then(|value| names.binary_search_by(|name| name.as_str().cmp(value)).ok());
        found.map(|rank| rank as u32).ok_or_else(|| Error::Bug("a name is missing from the first pass".into()))
    };
    values.iter().map(rank).collect()
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
