//! New features, labels and splits of nodes that exist.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::path::PathBuf;

use crate::dataset::Manifest;
use crate::dump::{Files, NodeReader};
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::source::{Columns, FeatureDtype, GraphSource, RETRY, expand};

use super::ids::{NONE, UpdateIds};
use super::node_columns::{Values, append_features, append_labels, check, check_features, label_size};

/// The key of errors about the files.
const ROLE: &str = "--values";

/// The new values of all batches.
#[derive(Default)]
pub(super) struct NewValues {
    tables: Vec<ValueTable>,
    /// The last table and row with a value of each column, by node.
    latest: BTreeMap<u32, Latest>,
}

/// The new values of one batch. A missing column keeps its values.
struct ValueTable {
    reader: NodeReader,
    batch: u32,
    /// Numbers of the ids of all rows.
    ids: Vec<u32>,
    /// As in `features.arrow`.
    features: Option<Vec<u8>>,
    /// As in `nodes.arrow`.
    labels: Option<Vec<u8>>,
    splits: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Latest {
    features: Option<(usize, usize)>,
    label: Option<(usize, usize)>,
    split: Option<(usize, usize)>,
}

impl NewValues {
    /// Reads the table of a batch.
    pub(super) fn read(
        &mut self,
        paths: &[PathBuf],
        batch: u32,
        source: &GraphSource,
        manifest: &Manifest,
        update_ids: &mut UpdateIds,
        progress: &dyn Progress,
    ) -> Result<()> {
        let columns = columns_of(paths, &source.columns)?;
        let classes = manifest.labels.as_ref().map(|labels| labels.classes);
        let has_features = !columns.features.is_empty();
        let (has_labels, has_splits) = (columns.label.is_some(), columns.split.is_some());
        let mut source = GraphSource { nodes: paths.to_vec(), num_classes: classes, columns, ..source.clone() };
        if !has_features {
            source.feature_dtype = vec![FeatureDtype::F32];
        }
        let reader = NodeReader::open(&source)?;
        let (mut ids, mut features, mut labels, mut splits) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        if reader.rows() > 0 {
            check(&reader, manifest)?;
            if has_features {
                check_features(&reader, manifest, "a change of features")?;
            }
            reader.for_each(Ok, |mut chunk| {
                progress.advance(chunk.ids.len() as u64);
                update_ids.number(&chunk.ids, &mut ids);
                append_labels(&chunk, &reader, manifest, &mut labels)?;
                splits.extend(chunk.split.take().unwrap_or_default());
                if has_features { append_features(&mut chunk, &reader, manifest, &mut features) } else { Ok(()) }
            })?;
        }
        self.tables.push(ValueTable {
            reader,
            batch,
            ids,
            features: has_features.then_some(features),
            labels: has_labels.then_some(labels),
            splits: has_splits.then_some(splits),
        });
        Ok(())
    }

    /// Finds the nodes of all rows of a batch. `nodes` has the node of each id's number.
    pub(super) fn look_up(&mut self, batch: u32, nodes: &[u32], update_ids: &UpdateIds) -> Result<()> {
        let Self { tables, latest } = self;
        for (number, table) in tables.iter().enumerate().filter(|(_, table)| table.batch == batch) {
            let mut seen = BTreeMap::new();
            for (row, &id) in table.ids.iter().enumerate() {
                let node = nodes[id as usize];
                let place = || table.reader.place(row as u64, table.reader.id_name());
                if node == NONE {
                    return Err(update_ids.unknown(place(), id));
                }
                match seen.entry(node) {
                    Entry::Vacant(entry) => entry.insert(row),
                    Entry::Occupied(first) => {
                        let (id, first) = (update_ids.show(id), *first.get() as u64);
                        return Err(Error::DuplicateNode { id, first, second: place() });
                    }
                };
                let (of, at) = (latest.entry(node).or_default(), Some((number, row)));
                of.features = table.features.as_ref().and(at).or(of.features);
                of.label = table.labels.as_ref().and(at).or(of.label);
                of.split = table.splits.as_ref().and(at).or(of.split);
            }
        }
        Ok(())
    }

    /// Removes the values of the nodes from `from` on, and returns them.
    pub(super) fn split_off<'a>(
        &'a mut self,
        from: u32,
        manifest: &'a Manifest,
    ) -> impl Iterator<Item = (u32, Values<'a>)> + 'a {
        let of = self.latest.split_off(&from);
        let this = &*self;
        of.into_iter().map(move |(node, latest)| (node, this.values(latest, manifest)))
    }

    /// Removes the values of a node.
    pub(super) fn remove(&mut self, node: u32) {
        self.latest.remove(&node);
    }

    /// Returns the nodes with new values.
    pub(super) fn len(&self) -> usize {
        self.latest.len()
    }

    /// Returns the new values of nodes, ascending by node.
    pub(super) fn of<'a>(
        &'a self,
        nodes: Range<u32>,
        manifest: &'a Manifest,
    ) -> impl Iterator<Item = (u32, Values<'a>)> + Clone + 'a {
        self.latest.range(nodes).map(move |(&node, &latest)| (node, self.values(latest, manifest)))
    }

    fn values(&self, latest: Latest, manifest: &Manifest) -> Values<'_> {
        fn item(all: Option<&Vec<u8>>, row: usize, size: usize) -> Option<&[u8]> {
            all?.get(row * size..(row + 1) * size)
        }
        let features = latest.features.and_then(|(table, row)| {
            item(self.tables[table].features.as_ref(), row, manifest.features.layout().row_bytes())
        });
        let label =
            latest.label.and_then(|(table, row)| item(self.tables[table].labels.as_ref(), row, label_size(manifest)));
        let split = latest.split.and_then(|(table, row)| item(self.tables[table].splits.as_ref(), row, 1));
        Values { features, label, split: split.map(|split| split[0]) }
    }
}

/// Returns which columns the files have: the id, and the features, the label or the split.
fn columns_of(paths: &[PathBuf], columns: &Columns) -> Result<Columns> {
    let files = expand(paths, ROLE, RETRY)?;
    let table = Files::open(&files, ROLE)?;
    let path = files.first().map(|file| file.path().to_path_buf()).unwrap_or_default();
    if let Some(name) = columns.node_type.as_ref().filter(|name| table.has(name)) {
        let reason = format!("a node keeps its type; leave the column {name:?} out");
        return Err(Error::File { path, reason });
    }
    let found = |name: &Option<String>| name.clone().filter(|name| table.has(name));
    let (label, split) = (found(&columns.label), found(&columns.split));
    // Features have all columns or none: one that is missing is an error of the reader.
    let has_features = columns.features.iter().any(|name| table.has(name));
    let features = if has_features { columns.features.clone() } else { Vec::new() };
    if label.is_none() && split.is_none() && !has_features {
        let known: Vec<&str> =
            columns.features.iter().chain(&columns.label).chain(&columns.split).map(String::as_str).collect();
        let reason = match known.is_empty() {
            true => "the dataset was prepared without features, labels and a column of splits, so there are no values to change".into(),
            false => format!("it has none of the columns {}; a table of new values has the id and at least one of them", known.join(", ")),
        };
        return Err(Error::File { path, reason });
    }
    Ok(Columns {
        id: columns.id.clone(),
        features,
        label,
        split,
        node_type: None,
        node_time: None,
        ..Columns::default()
    })
}
