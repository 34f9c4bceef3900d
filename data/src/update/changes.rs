//! Reads batches of changes one after the other, for programs that keep a graph in memory.

use std::ops::Range;

use crate::dataset::{Dataset, IdKind, InputFile, TypeInfo};
use crate::error::{Error, Result};
use crate::progress::Silent;
use crate::source::{Duplicates, GraphSource, SelfLoops};

use super::assign::{BALANCE, choose};
use super::ids::{EarlierNodes, NewIds};
use super::input::{Input, files, source};
use super::policy::{Change, EdgeKey, net};
use super::touched::{Event, Events};
use super::{Batch, Missing};

/// Reads batches of changes of a dataset, which stays as it is.
///
/// Nodes are numbered by the global ids of the dataset, followed by the new nodes in the order of batches and rows. New nodes are assigned to
/// partitions as by one [`update`](super::update()) for each batch.
#[derive(Debug)]
pub struct ChangeReader {
    dataset: Dataset,
    source: GraphSource,
    balance: f64,
    /// The nodes that batches have added and removed.
    earlier: EarlierNodes,
    /// The partitions of the added ones.
    owners: Vec<usize>,
    /// The number of nodes of each partition.
    sizes: Vec<u64>,
}

/// A change of the in-edges of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedEdge {
    /// The edge, by numbers of nodes.
    pub key: EdgeKey,
    /// Whether it is added or removed.
    pub change: Change,
    /// The row of the table of added or removed edges.
    pub row: u32,
    /// Whether this is the reverse of a row of an undirected graph.
    pub mirror: bool,
}

/// A batch of changes.
pub struct Changes {
    /// Its files, with digests.
    pub files: Vec<InputFile>,
    /// The ids of the new nodes.
    pub ids: NewIds,
    /// The partitions of the new nodes.
    pub partitions: Vec<usize>,
    /// The features of the new nodes, one row of the dataset's layout each.
    pub features: Vec<u8>,
    /// Nodes that get other features, by their numbers, ascending, and these features.
    pub changed_features: Vec<(u32, Vec<u8>)>,
    /// The number of nodes that get other features, labels or splits.
    pub nodes_changed: u64,
    /// The removed nodes, ascending; some of them may be new ones of the batch. `edges` does not list the edges that are removed with them.
    pub removed: Vec<u32>,
    /// The changed edges, sorted by key; of one key, removals precede additions, in the order of rows.
    pub edges: Vec<ChangedEdge>,
    /// The first row that removes an edge of an unknown node.
    unknown: Option<u32>,
    /// The first row that removes a node which does not exist.
    missing_node: Option<u32>,
    input: Input,
}

impl ChangeReader {
    /// Creates a reader for changes of `dataset`.
    ///
    /// # Errors
    /// If the dataset was prepared with settings that changes cannot maintain, see [`update`](super).
    pub fn new(dataset: &Dataset) -> Result<Self> {
        let source = source(dataset)?;
        if source.self_loops == SelfLoops::Add {
            let reason = "nodes cannot be followed with added self-loops; use `gnnflow update` and `gnnflow refresh`";
            return Err(Error::Setting { key: "graph.self_loops", reason: reason.into() });
        }
        let (manifest, book) = (dataset.manifest(), dataset.book());
        Ok(Self {
            balance: manifest.settings["partition"]["balance"]["nodes"].as_f64().unwrap_or(BALANCE),
            earlier: EarlierNodes::new(manifest.ids),
            owners: Vec::new(),
            sizes: (0..book.parts()).map(|part| book.range(part).end - book.range(part).start).collect(),
            dataset: dataset.clone(),
            source,
        })
    }

    /// The policy on duplicate edges.
    pub fn duplicates(&self) -> Duplicates {
        self.source.duplicates
    }

    /// Returns the partitions of all new nodes so far.
    pub fn partitions(&self) -> &[usize] {
        &self.owners
    }

    /// Reads a batch. It counts as applied when it is given to [`ChangeReader::apply`].
    ///
    /// # Errors
    /// When the input is invalid (with its place) or cannot be read.
    pub fn read(&self, batch: &Batch) -> Result<Changes> {
        let mut input =
            Input::read(&self.dataset, &self.source, std::slice::from_ref(batch), Some(&self.earlier), &Silent)?;
        self.check_types(&input)?;
        input.check_some_are_left(self.sizes.iter().sum(), std::slice::from_ref(batch))?;
        let Events { rows, missing } = Events::of(&self.source, &input);
        let before = self.dataset.book().nodes() as u32 + self.earlier.added();
        let partitions = self.choose(&rows, before..before + input.nodes.len() as u32)?;
        let ids = match self.dataset.manifest().ids {
            IdKind::Int => NewIds::Int(std::mem::take(&mut input.nodes.ids)),
            IdKind::Text => {
                NewIds::Text((0..input.nodes.len()).map(|node| input.nodes.text(node).to_owned()).collect())
            }
        };
        let edge = |&Event { key, change, row, mirror, .. }: &Event| ChangedEdge { key, change, row, mirror };
        let values = input.values.of(0..before, self.dataset.manifest());
        let changed_features = values.filter_map(|(node, values)| Some((node, values.features?.to_vec()))).collect();
        Ok(Changes {
            changed_features,
            nodes_changed: input.values.len() as u64,
            removed: std::mem::take(&mut input.removed),
            files: std::mem::take(&mut input.files).into_iter().flatten().collect(),
            ids,
            partitions,
            features: std::mem::take(&mut input.nodes.features),
            edges: rows.iter().map(edge).collect(),
            unknown: missing.first().map(|(_, row)| *row),
            missing_node: input.missing_nodes.first().map(|(_, row)| *row),
            input,
        })
    }

    /// Makes the new and removed nodes of a batch known to later ones.
    pub fn apply(&mut self, changes: &Changes) {
        for &part in &changes.partitions {
            self.sizes[part] += 1;
        }
        self.owners.extend(&changes.partitions);
        for &node in &changes.removed {
            if let Some(part) = self.partition_of(node) {
                self.sizes[part] -= 1;
            }
        }
        self.earlier.apply(&changes.ids, &changes.removed);
    }

    /// Refuses types that the dataset does not have: no trained model fits them.
    fn check_types(&self, input: &Input) -> Result<()> {
        let manifest = self.dataset.manifest();
        let wanted = "a type that the dataset has: follow adds no types; use `gnnflow update` and train again";
        let count = |types: &Option<TypeInfo>| types.as_ref().map_or(u32::from(u16::MAX), |types| types.count);
        let edge_types = count(&manifest.edge_columns.edge_type);
        let rows = input.batches.iter().filter_map(|batch| batch.added.as_ref());
        for rows in rows {
            if let Some(row) = rows.types.iter().position(|&of| u32::from(of) >= edge_types) {
                let mut place = rows.place(row);
                place.column = self.source.columns.edge_type.clone().unwrap_or_default();
                return Err(Error::Value { place, value: rows.types[row].to_string(), wanted: wanted.into() });
            }
        }
        let node_types = count(&manifest.node_types);
        match input.nodes.types.iter().position(|&of| u32::from(of) >= node_types) {
            None => Ok(()),
            Some(node) => {
                let (place, value) = (input.nodes.place(node), input.nodes.types[node].to_string());
                Err(Error::Value { place, value, wanted: wanted.into() })
            }
        }
    }

    /// Chooses the partitions of new nodes. An edge of a new node has no copies yet.
    fn choose(&self, rows: &[Event], numbers: Range<u32>) -> Result<Vec<usize>> {
        let new = rows.iter().filter(|event| event.key.dst.max(event.key.src) >= numbers.start);
        let new: Vec<(EdgeKey, Change)> = new.map(|event| (event.key, event.change)).collect();
        let outcomes = net(self.source.duplicates, &Default::default(), &[new]);
        let added = outcomes.iter().flat_map(|(key, outcome)| (0..outcome.added).map(|_| (key.dst, key.src)));
        choose(self.sizes.clone(), |node| self.partition_of(node), numbers, added, self.balance)
    }

    fn partition_of(&self, node: u32) -> Option<usize> {
        let book = self.dataset.book();
        match u64::from(node).checked_sub(book.nodes()) {
            None => book.owner(u64::from(node)),
            Some(new) => self.owners.get(new as usize).copied(),
        }
    }
}

/// Returns the files of a batch, with digests.
///
/// # Errors
/// If a file cannot be read.
pub fn batch_files(batch: &Batch) -> Result<Vec<InputFile>> {
    files(batch)
}

impl Changes {
    /// Returns the error for rows that remove nodes or edges which do not exist, if there are any: of the first such node; or of the edge of the smaller
    /// of `row` and the first row with an unknown node. `None` if `missing` ignores them.
    ///
    /// # Errors
    /// If the file cannot be read again.
    pub fn missing(&self, row: Option<u32>, missing: Missing) -> Result<Option<Error>> {
        if missing == Missing::Ignore {
            return Ok(None);
        }
        if let Some(row) = self.missing_node {
            return self.input.missing_node(0, row).map(Some);
        }
        row.into_iter().chain(self.unknown).min().map(|row| self.input.missing_edge(0, row)).transpose()
    }

    /// Returns the error for a row that adds an edge which exists.
    ///
    /// # Errors
    /// If the file cannot be read again.
    pub fn duplicate_edge(&self, row: u32) -> Result<Error> {
        self.input.duplicate(0, row)
    }
}
