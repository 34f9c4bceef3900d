//! New nodes, converted to the storage format of the dataset.

use crate::dataset::{Manifest, split};
use crate::dump::{NodeChunk, NodeReader};
use crate::error::{Error, Location, Result};
use crate::ids::Ids;
use crate::progress::Progress;

use super::ids::{NONE, UpdateIds};
use super::node_columns::{Values, append_features, append_labels, check, check_features, count_labels, label_size};
use super::type_codes::TypeCodes;

/// The new nodes of all batches, in the order of their rows.
pub(super) struct NewNodes {
    /// Numbers of the ids.
    numbers: Vec<u32>,
    batches: Vec<u32>,
    /// Integer ids, or the end of each string.
    pub(super) ids: Vec<i64>,
    /// The strings, concatenated.
    pub(super) texts: String,
    /// Labels as in `nodes.arrow`, `label_size` bytes per node.
    pub(super) labels: Vec<u8>,
    pub(super) label_size: usize,
    pub(super) splits: Vec<u8>,
    pub(super) types: Vec<u16>,
    /// Features as in `features.arrow`.
    pub(super) features: Vec<u8>,
    /// The reader of each batch with nodes, and the number of nodes before it.
    readers: Vec<(NodeReader, usize)>,
}

impl NewNodes {
    pub(super) fn new(manifest: &Manifest) -> Self {
        Self {
            numbers: Vec::new(),
            batches: Vec::new(),
            ids: Vec::new(),
            texts: String::new(),
            labels: Vec::new(),
            label_size: label_size(manifest),
            splits: Vec::new(),
            types: Vec::new(),
            features: Vec::new(),
            readers: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(super) fn read(
        &mut self,
        reader: NodeReader,
        batch: u32,
        manifest: &Manifest,
        update_ids: &mut UpdateIds,
        progress: &dyn Progress,
    ) -> Result<()> {
        let before = self.len();
        if reader.rows() > 0 {
            check(&reader, manifest)?;
            check_features(&reader, manifest, "a new node")?;
            reader.for_each(Ok, |chunk| {
                progress.advance(chunk.ids.len() as u64);
                self.append(chunk, batch, manifest, &reader, update_ids)
            })?;
        }
        self.readers.push((reader, before));
        Ok(())
    }

    fn append(
        &mut self,
        mut chunk: NodeChunk,
        batch: u32,
        manifest: &Manifest,
        reader: &NodeReader,
        update_ids: &mut UpdateIds,
    ) -> Result<()> {
        let rows = chunk.ids.len();
        update_ids.number(&chunk.ids, &mut self.numbers);
        self.batches.resize(self.batches.len() + rows, batch);
        match &chunk.ids {
            Ids::Int(ids) => self.ids.extend_from_slice(ids),
            Ids::Text(ids) => {
                for id in ids.iter().flatten() {
                    self.texts.push_str(id);
                    self.ids.push(self.texts.len() as i64);
                }
            }
        }
        append_labels(&chunk, reader, manifest, &mut self.labels)?;
        match &chunk.split {
            Some(split) => self.splits.extend_from_slice(split),
            None => self.splits.resize(self.splits.len() + rows, split::NONE),
        }
        if let Some(found) = &chunk.types {
            let mut codes = TypeCodes::new(manifest.node_types.as_ref(), false);
            self.types.extend(codes.of(found, |row| chunk.origin.place(row, reader.id_name()))?);
        }
        append_features(&mut chunk, reader, manifest, &mut self.features)
    }

    /// Checks that nodes from `old` on can be numbered.
    pub(super) fn check_count(&self, old: u32) -> Result<()> {
        let total = u64::from(old) + self.len() as u64;
        let limit = u64::from(u32::MAX) - 1;
        if total > limit {
            return Err(Error::TooLarge { what: "number of nodes".into(), found: total, limit });
        }
        Ok(())
    }

    /// Adds the new nodes of a batch to `nodes`, the nodes of all ids. They are numbered from `old` on.
    pub(super) fn add_batch(&self, batch: u32, old: u32, nodes: &mut [u32]) -> Result<()> {
        let own = self.batches.partition_point(|&of| of < batch)..self.batches.partition_point(|&of| of <= batch);
        for new in own {
            let number = self.numbers[new];
            let known = nodes[number as usize];
            if known != NONE {
                let (place, id) = (self.place(new), self.show(new));
                return Err(match known.checked_sub(old) {
                    None => Error::NodeExists { place, id },
                    Some(first) => Error::DuplicateNode { id, first: u64::from(first), second: place },
                });
            }
            nodes[number as usize] = old + new as u32;
        }
        Ok(())
    }

    pub(super) fn place(&self, node: usize) -> Box<Location> {
        let at = self.readers.partition_point(|(_, before)| *before <= node) - 1;
        let (reader, before) = &self.readers[at];
        reader.place((node - before) as u64, reader.id_name())
    }

    fn show(&self, node: usize) -> String {
        match self.texts.is_empty() {
            true => self.ids[node].to_string(),
            false => format!("{:?}", self.text(node)),
        }
    }

    /// Returns the id of a node if ids are strings.
    pub(super) fn text(&self, node: usize) -> &str {
        let start = if node == 0 { 0 } else { self.ids[node - 1] as usize };
        &self.texts[start..self.ids[node] as usize]
    }

    /// Adds a node to the manifest's counts.
    pub(super) fn count(&self, node: usize, manifest: &mut Manifest) {
        manifest.nodes += 1;
        manifest.splits.add(self.splits[node]);
        if let (Some(types), Some(&of)) = (&mut manifest.node_types, self.types.get(node)) {
            types.count = types.count.max(u32::from(of) + 1);
        }
        if let Some(info) = &mut manifest.labels {
            count_labels(&self.labels[node * self.label_size..(node + 1) * self.label_size], info, true);
        }
    }

    /// Replaces values of a node.
    pub(super) fn set(&mut self, node: usize, values: Values<'_>) {
        let replace = |all: &mut [u8], value: Option<&[u8]>| {
            if let Some(value) = value {
                all[node * value.len()..(node + 1) * value.len()].copy_from_slice(value);
            }
        };
        replace(&mut self.features, values.features);
        replace(&mut self.labels, values.label);
        if let Some(split) = values.split {
            self.splits[node] = split;
        }
    }
}
