//! Maps the ids in an update to nodes. Only these ids are in memory, never all ids of the dataset.

use std::collections::{HashMap, HashSet};

use arrow::array::Array;
use rayon::prelude::*;

use crate::dataset::{Dataset, IdColumn, IdKind};
use crate::error::{Error, Location, Result};
use crate::ids::Ids;

/// Marks an id without a node.
pub(super) const NONE: u32 = u32::MAX;

/// The ids of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewIds {
    /// Integers.
    Int(Vec<i64>),
    /// Strings.
    Text(Vec<String>),
}

/// The nodes that earlier batches have added and removed, of which the dataset does not know.
#[derive(Debug)]
pub(super) struct EarlierNodes {
    /// The number of each new node, from 0. An id that was removed and added again has the last number.
    ids: UpdateIds,
    /// The number of new nodes.
    added: u32,
    /// Removed nodes: of the dataset by global ids, followed by new ones.
    removed: HashSet<u32>,
}

impl EarlierNodes {
    pub(super) fn new(kind: IdKind) -> Self {
        Self { ids: UpdateIds::new(kind), added: 0, removed: HashSet::new() }
    }

    /// Returns the number of new nodes, removed ones included.
    pub(super) fn added(&self) -> u32 {
        self.added
    }

    /// Adds the new and removed nodes of a batch.
    pub(super) fn apply(&mut self, new: &NewIds, removed: &[u32]) {
        self.added += self.ids.extend(new, self.added);
        self.removed.extend(removed);
    }
}

/// Distinct ids, numbered in order of their first use.
#[derive(Debug)]
pub(super) enum UpdateIds {
    Int(HashMap<i64, u32>),
    Text(HashMap<Box<str>, u32>),
}

impl UpdateIds {
    pub(super) fn new(kind: IdKind) -> Self {
        match kind {
            IdKind::Int => Self::Int(HashMap::new()),
            IdKind::Text => Self::Text(HashMap::new()),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Int(map) => map.len(),
            Self::Text(map) => map.len(),
        }
    }

    /// Appends the number of each id. New ids get the next number.
    pub(super) fn number(&mut self, ids: &Ids, numbers: &mut Vec<u32>) {
        match (self, ids) {
            (Self::Int(map), Ids::Int(ids)) => {
                for &id in ids.iter() {
                    let next = map.len() as u32;
                    numbers.push(*map.entry(id).or_insert(next));
                }
            }
            (Self::Text(map), Ids::Text(ids)) => {
                for id in ids.iter().flatten() {
                    let next = map.len() as u32;
                    match map.get(id) {
                        Some(&number) => numbers.push(number),
                        None => {
                            map.insert(id.into(), next);
                            numbers.push(next);
                        }
                    }
                }
            }
            // Readers are opened with the dataset's kind of ids.
            _ => unreachable!("ids of one kind"),
        }
    }

    /// Returns the global id for each number, or [`NONE`] for unknown ids. Reads all ids of the dataset once.
    pub(super) fn find(&self, dataset: &Dataset) -> Result<Vec<u32>> {
        let mut found = vec![NONE; self.len()];
        if found.is_empty() {
            return Ok(found);
        }
        for part in 0..dataset.book().parts() {
            let nodes = dataset.nodes(part)?;
            let first = dataset.book().range(part).start as u32;
            let hits: Vec<(u32, u32)> = match (self, nodes.ids()) {
                (Self::Int(map), IdColumn::Int(ids)) => {
                    let hit = |(local, id)| map.get(id).map(|&number| (number, first + local as u32));
                    ids.par_iter().enumerate().filter_map(hit).collect()
                }
                (Self::Text(map), IdColumn::Text(ids)) => {
                    let hit = |local| map.get(ids.value(local)).map(|&number| (number, first + local as u32));
                    (0..ids.len()).into_par_iter().filter_map(hit).collect()
                }
                _ => Vec::new(),
            };
            hits.into_iter().for_each(|(number, node)| found[number as usize] = node);
        }
        Ok(found)
    }

    /// Numbers ids from `first` on. An id that is there already gets the new number. Returns the number of ids.
    fn extend(&mut self, ids: &NewIds, first: u32) -> u32 {
        let count = match (self, ids) {
            (Self::Int(map), NewIds::Int(ids)) => {
                map.extend(ids.iter().copied().zip(first..));
                ids.len()
            }
            (Self::Text(map), NewIds::Text(ids)) => {
                map.extend(ids.iter().map(|id| id.as_str().into()).zip(first..));
                ids.len()
            }
            _ => unreachable!("ids of one kind"),
        };
        count as u32
    }

    /// Corrects `nodes`, which are those of the dataset, by `earlier`. Its new nodes are numbered from `first` on.
    pub(super) fn find_earlier(&self, earlier: &EarlierNodes, first: u32, nodes: &mut [u32]) {
        fn find<'a, K: 'a>(
            own: impl Iterator<Item = (&'a K, &'a u32)>,
            get: impl Fn(&K) -> Option<u32>,
            first: u32,
            nodes: &mut [u32],
        ) {
            for (id, &number) in own {
                if let Some(node) = get(id) {
                    nodes[number as usize] = first + node;
                }
            }
        }
        match (self, &earlier.ids) {
            (Self::Int(own), Self::Int(ids)) => find(own.iter(), |id| ids.get(id).copied(), first, nodes),
            (Self::Text(own), Self::Text(ids)) => find(own.iter(), |id| ids.get(id).copied(), first, nodes),
            _ => unreachable!("ids of one kind"),
        }
        for node in nodes.iter_mut().filter(|node| earlier.removed.contains(node)) {
            *node = NONE;
        }
    }

    /// Returns the error about an id without a node, by its number.
    pub(super) fn unknown(&self, place: Box<Location>, number: u32) -> Error {
        let wanted = "the id of a node of the dataset; to add the node, use --nodes (in a batch, nodes.parquet)".into();
        Error::Value { place, value: self.show(number), wanted }
    }

    /// Returns the id with a number, for messages; a linear search.
    pub(super) fn show(&self, number: u32) -> String {
        let shown = match self {
            Self::Int(map) => map.iter().find(|(_, found)| **found == number).map(|(id, _)| id.to_string()),
            Self::Text(map) => map.iter().find(|(_, found)| **found == number).map(|(id, _)| format!("{id:?}")),
        };
        shown.unwrap_or_default()
    }
}
