//! New nodes, converted to the storage format of the dataset.

use crate::dataset::{LabelKind, Manifest, split};
use crate::dump::{NodeChunk, NodeReader, RawLabels};
use crate::error::{Error, Location, Result};
use crate::ids::Ids;
use crate::prepare::Scale;
use crate::progress::Progress;
use crate::source::Normalize;

use super::ids::{NONE, UpdateIds};
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
    pub(super) type_count: u32,
    /// Features as in `features.arrow`.
    pub(super) features: Vec<u8>,
    /// The reader of each batch with nodes, and the number of nodes before it.
    readers: Vec<(NodeReader, usize)>,
}

impl NewNodes {
    pub(super) fn new(manifest: &Manifest) -> Self {
        let label_size = match &manifest.labels {
            None => 0,
            Some(info) if info.kind == LabelKind::Multi => info.classes as usize,
            Some(_) => 4,
        };
        Self {
            numbers: Vec::new(),
            batches: Vec::new(),
            ids: Vec::new(),
            texts: String::new(),
            labels: Vec::new(),
            label_size,
            splits: Vec::new(),
            types: Vec::new(),
            type_count: 0,
            features: Vec::new(),
            readers: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Returns the batch that adds a node.
    pub(super) fn batch_of(&self, node: u32) -> u32 {
        self.batches[node as usize]
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
            let scale = match manifest.features.normalize {
                Normalize::Row if manifest.features.dim > 0 => Scale::Row(manifest.features.dim),
                _ => Scale::None,
            };
            reader.for_each(Ok, |chunk| {
                progress.advance(chunk.ids.len() as u64);
                self.append(chunk, batch, manifest, &reader, &scale, update_ids)
            })?;
        }
        self.readers.push((reader, before));
        Ok(())
    }

    fn append(
        &mut self,
        chunk: NodeChunk,
        batch: u32,
        manifest: &Manifest,
        reader: &NodeReader,
        scale: &Scale,
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
        let place = |row, name: &str| chunk.origin.place(row, name);
        if let Some(labels) = &chunk.labels {
            self.label(labels, manifest, |row| place(row, reader.label_name()))?;
        }
        match &chunk.split {
            Some(split) => self.splits.extend_from_slice(split),
            None => self.splits.resize(self.splits.len() + rows, split::NONE),
        }
        if let Some(found) = &chunk.types {
            let mut codes = TypeCodes::new(manifest.node_types.as_ref(), false);
            self.types.extend(codes.of(found, |row| place(row, reader.id_name()))?);
            self.type_count = self.type_count.max(codes.largest);
        }
        let mut features = chunk.features;
        scale.apply(&mut features, chunk.feature_block.clone());
        let bytes = manifest.features.layout().narrow(&features).map_err(|i| Error::NotFinite {
            place: place(i / manifest.features.dim.max(1), &reader.feature_names()),
            value: f64::from(features[i]),
            hint: " when stored with the dataset's feature dtype",
        })?;
        self.features.extend_from_slice(&bytes);
        Ok(())
    }

    fn label(&mut self, labels: &RawLabels, manifest: &Manifest, place: impl Fn(usize) -> Box<Location>) -> Result<()> {
        let Some(info) = &manifest.labels else { return Ok(()) };
        match labels {
            RawLabels::Int(labels) if info.names.is_empty() => {
                self.labels.extend_from_slice(bytemuck::cast_slice(labels))
            }
            RawLabels::Int(labels) => {
                let (value, wanted) = (labels.first().copied().unwrap_or(0), "the name of a class of the dataset");
                return Err(Error::Value { place: place(0), value: value.to_string(), wanted: wanted.into() });
            }
            RawLabels::Text(labels) => {
                for (row, name) in labels.iter().enumerate() {
                    let Some(name) = name else {
                        self.labels.extend_from_slice(&(-1i32).to_le_bytes());
                        continue;
                    };
                    let class = info.names.iter().position(|class| class == name).ok_or_else(|| Error::Value {
                        place: place(row),
                        value: format!("{name:?}"),
                        wanted: "a class of the dataset; prepare the changed dump to add classes".into(),
                    })?;
                    self.labels.extend_from_slice(&(class as i32).to_le_bytes());
                }
            }
            RawLabels::Float(labels) => self.labels.extend_from_slice(bytemuck::cast_slice(labels)),
            RawLabels::List { starts, items } => {
                let classes = info.classes as usize;
                // As in a preparation, lists are flags if all of them can be flags.
                let flags = classes > 1
                    && starts.windows(2).all(|ends| ends[1] - ends[0] == classes)
                    && items.iter().all(|&item| item <= 1);
                for ends in starts.windows(2) {
                    let start = self.labels.len();
                    self.labels.resize(start + classes, 0);
                    let into = &mut self.labels[start..];
                    for (position, &item) in items[ends[0]..ends[1]].iter().enumerate() {
                        if flags {
                            into[position] = item as u8;
                        } else if let Some(flag) = into.get_mut(item as usize) {
                            *flag = 1;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Assigns the numbers from `old` on to the new nodes.
    pub(super) fn assign_numbers(&self, old: u32, nodes: &mut [u32]) -> Result<()> {
        let total = u64::from(old) + self.len() as u64;
        let limit = u64::from(u32::MAX) - 1;
        if total > limit {
            return Err(Error::TooLarge { what: "number of nodes".into(), found: total, limit });
        }
        for (new, &number) in self.numbers.iter().enumerate() {
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

    /// Adds the nodes to the manifest's counts.
    pub(super) fn count(&self, manifest: &mut Manifest) {
        manifest.nodes += self.len() as u64;
        self.splits.iter().for_each(|&which| manifest.splits.add(which));
        if let Some(types) = &mut manifest.node_types {
            types.count = types.count.max(self.type_count);
        }
        let Some(info) = &mut manifest.labels else { return };
        match info.kind {
            LabelKind::Value => {
                let value = |label: &[u8]| f32::from_le_bytes([label[0], label[1], label[2], label[3]]);
                info.labeled += self.labels.chunks_exact(4).filter(|label| !value(label).is_nan()).count() as u64;
            }
            LabelKind::Class => {
                for label in self.labels.chunks_exact(4) {
                    let class = i32::from_le_bytes([label[0], label[1], label[2], label[3]]);
                    if let Some(count) = info.counts.get_mut(class as usize) {
                        info.labeled += 1;
                        *count += 1;
                    }
                }
            }
            LabelKind::Multi => {
                info.labeled += self.len() as u64;
                for flags in self.labels.chunks_exact(self.label_size.max(1)) {
                    info.counts.iter_mut().zip(flags).for_each(|(count, &flag)| *count += u64::from(flag));
                }
            }
        }
    }
}

/// Checks that the new nodes fit the dataset.
fn check(reader: &NodeReader, manifest: &Manifest) -> Result<()> {
    let place = |column: &str| reader.place(0, column);
    if manifest.features.normalize == Normalize::Standard && manifest.features.dim > 0 {
        let wanted = "possible, because the features are standardized over all nodes; prepare the changed dump";
        return Err(Error::Value { place: place(reader.id_name()), value: "a new node".into(), wanted: wanted.into() });
    }
    if reader.id_kind() != manifest.ids {
        let wanted = format!("of the type of the dataset's ids ({:?})", manifest.ids).to_lowercase();
        return Err(Error::Value { place: place(reader.id_name()), value: "this id".into(), wanted });
    }
    if let (Some(found), Some(info)) = (reader.label_kind(), &manifest.labels)
        && found != info.kind
    {
        let wanted = format!("a label of the dataset's kind ({:?})", info.kind).to_lowercase();
        return Err(Error::Value { place: place(reader.label_name()), value: "this label".into(), wanted });
    }
    let (found, expected) = (reader.feature_width(), manifest.features.dim);
    if found != expected {
        return Err(Error::Width { place: place(&reader.feature_names()), found, expected });
    }
    Ok(())
}
