//! The second pass over the nodes: writes `nodes.arrow` and `features.arrow` of every partition.
//!
//! Nodes keep their order within a partition, so every column of every partition is appended to sequentially. Reading, scaling and
//! converting run in parallel; appending is in the order of the dump.

use arrow::array::LargeStringArray;
use arrow::datatypes::Schema;
use serde::{Deserialize, Serialize};

use super::clean::BATCH;
use super::labels::{LabelForm, named_classes, ranks};
use super::relabel::Relabel;
use super::scale::Scale;
use super::scan::Scan;
use crate::dataset::ipc::{IpcFile, Region, Span, align};
use crate::dataset::{
    ColumnScale, FEATURES, FileInfo, IdKind, LabelKind, NODES, feature_field, nodes_schema, part_folder, split,
};
use crate::dump::{NodeChunk, NodeReader, RawLabels, Types};
use crate::error::{Error, Result};
use crate::group::{Destination, Message, ProcessGroup, put, take};
use crate::ids::Ids;

/// The inputs of the pass.
pub(super) struct NodePass<'a> {
    pub(super) nodes: &'a NodeReader,
    pub(super) scan: &'a Scan,
    pub(super) relabel: &'a Relabel,
    pub(super) scale: &'a Scale,
    pub(super) dir: &'a std::path::Path,
    /// Bytes of memory for write buffers.
    pub(super) memory: u64,
}

/// The nodes that a process has written.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WrittenNodes {
    /// The files of its partitions.
    pub(super) files: Vec<(usize, NodeFiles)>,
    /// The means and deviations of standardized features.
    pub(super) scales: Vec<ColumnScale>,
}

/// The files of one partition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodeFiles {
    pub(crate) nodes: FileInfo,
    pub(crate) features: Option<FileInfo>,
    pub(crate) train: u64,
}

/// The open files of one partition.
struct OpenFiles {
    nodes: IpcFile,
    /// File, region, and number of Arrow items per row.
    features: Option<(IpcFile, Region, u64)>,
    ids: Region,
    /// The bytes of ids that are strings; `ids` then holds the ends of the strings.
    texts: Option<Region>,
    text_bytes: u64,
    labels: Option<Region>,
    split: Region,
    types: Option<Region>,
    times: Option<Region>,
    rows: u64,
    train: u64,
}

/// Converted nodes of a chunk.
struct Batch {
    /// Their rows in the dump; after [`NodePass::without_dropped`], their indexes. Ascending.
    nodes: Vec<u32>,
    ids: Ids,
    /// Bytes of the labels, `label_size` per node.
    labels: Vec<u8>,
    types: Vec<u16>,
    times: Vec<i64>,
    /// Bytes of the features.
    features: Vec<u8>,
}

impl Message for Batch {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.features.len() + self.labels.len() + 32 * self.nodes.len() + 64);
        put(&mut bytes, &self.nodes);
        match &self.ids {
            Ids::Int(ids) => {
                put(&mut bytes, &[0u8]);
                put(&mut bytes, ids);
            }
            Ids::Text(ids) => {
                put(&mut bytes, &[1u8]);
                put(&mut bytes, &ids.iter().map(|id| id.unwrap_or("").len() as u64).collect::<Vec<_>>());
                put(&mut bytes, ids.iter().flatten().collect::<String>().as_bytes());
            }
        }
        put(&mut bytes, &self.labels);
        put(&mut bytes, &self.types);
        put(&mut bytes, &self.times);
        put(&mut bytes, &self.features);
        bytes
    }

    fn decode(mut bytes: &[u8]) -> Result<Self> {
        let broken = || Error::Bug("a message of nodes is invalid".into());
        let nodes = take(&mut bytes)?;
        let ids = match take::<u8>(&mut bytes)?[..] {
            [0] => Ids::Int(take::<i64>(&mut bytes)?.into()),
            [1] => {
                let lengths: Vec<u64> = take(&mut bytes)?;
                let texts = String::from_utf8(take(&mut bytes)?).map_err(|_| broken())?;
                let mut rest = &texts[..];
                let mut ids = Vec::with_capacity(lengths.len());
                for length in lengths {
                    let (id, after) = rest.split_at_checked(length as usize).ok_or_else(broken)?;
                    ids.push(id);
                    rest = after;
                }
                Ids::Text(LargeStringArray::from(ids))
            }
            _ => return Err(broken()),
        };
        Ok(Self {
            nodes,
            ids,
            labels: take(&mut bytes)?,
            types: take(&mut bytes)?,
            times: take(&mut bytes)?,
            features: take(&mut bytes)?,
        })
    }
}

impl NodePass<'_> {
    /// Writes both files of every partition of this process (those with `part % size == rank`).
    pub(super) fn run<C: ProcessGroup>(
        &self,
        processes: &C,
        mut advance: impl FnMut(u64),
    ) -> Result<Vec<(usize, NodeFiles)>> {
        let own = |part: usize| processes.owns(part).then(|| self.open(part)).transpose();
        let mut parts = (0..self.relabel.book.parts()).map(own).collect::<Result<Vec<_>>>()?;
        let (label_size, row_size) = (self.label_size(), self.row_size());
        let owner = |node: u32| {
            let global = u64::from(self.relabel.global(node));
            self.relabel.book.owner(global).ok_or_else(|| Error::Bug("a node is in no partition".into()))
        };
        let size = processes.size();
        let produce = |unit: usize, send: &mut dyn FnMut(Destination, Batch) -> bool| {
            let mut failed = None;
            let mut send_split = |batch: Batch| match self.split_by_owner(self.without_dropped(batch), size, &owner) {
                Ok(by_process) => (0..).zip(by_process).all(|(to, batch)| send(Destination::Rank(to), batch)),
                Err(error) => {
                    failed = Some(error);
                    false
                }
            };
            self.nodes.read_all(unit, |chunk| self.convert(chunk), &mut send_split)?;
            failed.map_or(Ok(()), Err)
        };
        let mut append = |batch: &Batch| -> Result<()> {
            for (i, &node) in batch.nodes.iter().enumerate() {
                let part =
                    parts[owner(node)?].as_mut().ok_or_else(|| Error::Bug("a node of another process".into()))?;
                part.append(batch, i, self.scan.splits[node as usize], label_size, row_size)?;
            }
            Ok(())
        };
        processes.exchange(self.nodes.units(), &produce, &mut |_, batch: Batch| {
            append(&batch)?;
            advance(batch.nodes.len() as u64);
            Ok(())
        })?;
        self.write_created(processes, &owner, &mut append)?;
        let finish = |(part, files): (usize, Option<OpenFiles>)| files.map(|files| Ok((part, self.finish(files)?)));
        parts.into_iter().enumerate().filter_map(finish).collect()
    }

    /// Writes the nodes that only edges name, after all other nodes.
    fn write_created<C: ProcessGroup>(
        &self,
        processes: &C,
        owner: &(impl Fn(u32) -> Result<usize> + Sync),
        append: &mut impl FnMut(&Batch) -> Result<()>,
    ) -> Result<()> {
        let Some(created) = &self.scan.created else { return Ok(()) };
        let (units, size) = ((created.count() as usize).div_ceil(BATCH), processes.size());
        let produce = |unit: usize, send: &mut dyn FnMut(Destination, Batch) -> bool| {
            let batch = self.created_nodes(self.nodes.rows() as u32 + (unit * BATCH) as u32, created.batch(unit)?);
            let by_process = self.split_by_owner(self.without_dropped(batch), size, owner)?;
            (0..).zip(by_process).all(|(to, batch)| send(Destination::Rank(to), batch));
            Ok(())
        };
        processes.exchange(units, &produce, &mut |_, batch: Batch| append(&batch))
    }

    /// Returns created nodes, which have default values in all columns but the id.
    fn created_nodes(&self, first_row: u32, ids: Ids) -> Batch {
        let count = ids.len();
        let label: Vec<u8> = match &self.scan.labels {
            Some((info, _)) => match info.kind {
                LabelKind::Class => (-1i32).to_le_bytes().to_vec(),
                LabelKind::Value => f32::NAN.to_le_bytes().to_vec(),
                LabelKind::Multi => vec![0; info.classes as usize],
            },
            None => Vec::new(),
        };
        Batch {
            ids,
            nodes: (first_row..first_row + count as u32).collect(),
            labels: label.repeat(count),
            types: vec![0; if self.scan.types.is_some() { count } else { 0 }],
            times: vec![i64::MIN; if self.nodes.has_times() { count } else { 0 }],
            features: vec![0; count * self.row_size()],
        }
    }

    /// Removes dropped rows, and replaces rows by indexes.
    fn without_dropped(&self, mut batch: Batch) -> Batch {
        let ids = &self.scan.ids;
        if ids.has_dropped() {
            let remains = |&i: &usize| ids.index_of_row(batch.nodes[i]).is_some();
            batch = self.select(&batch, (0..batch.nodes.len()).filter(remains).collect());
            let index = |row: &u32| ids.index_of_row(*row);
            batch.nodes = batch.nodes.iter().filter_map(index).collect();
        }
        batch
    }

    /// Splits nodes by the processes that own their partitions.
    fn split_by_owner(&self, batch: Batch, size: usize, owner: &impl Fn(u32) -> Result<usize>) -> Result<Vec<Batch>> {
        if size == 1 {
            return Ok(vec![batch]);
        }
        let mut rows = vec![Vec::new(); size];
        for (i, &node) in batch.nodes.iter().enumerate() {
            rows[owner(node)? % size].push(i);
        }
        Ok(rows.into_iter().map(|rows| self.select(&batch, rows)).collect())
    }

    /// Returns the nodes at positions `rows`.
    fn select(&self, batch: &Batch, rows: Vec<usize>) -> Batch {
        let bytes = |bytes: &[u8], size: usize| -> Vec<u8> {
            rows.iter().flat_map(|&i| &bytes[i * size..(i + 1) * size]).copied().collect()
        };
        Batch {
            nodes: rows.iter().map(|&i| batch.nodes[i]).collect(),
            ids: match &batch.ids {
                Ids::Int(ids) => Ids::Int(rows.iter().map(|&i| ids[i]).collect()),
                Ids::Text(ids) => Ids::Text(rows.iter().map(|&i| Some(ids.value(i))).collect()),
            },
            labels: bytes(&batch.labels, self.label_size()),
            types: if batch.types.is_empty() { Vec::new() } else { rows.iter().map(|&i| batch.types[i]).collect() },
            times: if batch.times.is_empty() { Vec::new() } else { rows.iter().map(|&i| batch.times[i]).collect() },
            features: bytes(&batch.features, self.row_size()),
        }
    }

    /// Size of a node's features in bytes.
    fn row_size(&self) -> usize {
        self.nodes.feature_layout().row_bytes()
    }

    /// Size of a node's label in bytes.
    fn label_size(&self) -> usize {
        match &self.scan.labels {
            None => 0,
            Some((info, _)) if info.kind == LabelKind::Multi => info.classes as usize,
            Some(_) => 4,
        }
    }

    fn open(&self, part: usize) -> Result<OpenFiles> {
        let dir = self.dir.join(part_folder(part));
        // A killed preparation may have created it.
        std::fs::create_dir_all(&dir).map_err(Error::io(&dir, "create"))?;
        let range = self.relabel.book.range(part);
        let n = range.end - range.start;
        let text = self.nodes.id_kind() == IdKind::Text;
        let streams = self.relabel.book.parts() as u64 * 7;
        let capacity = (self.memory / streams).clamp(4 << 10, 1 << 20) as usize;

        let labels = self.scan.labels.as_ref().map(|(info, _)| info);
        let schema = nodes_schema(self.nodes.id_kind(), labels, self.scan.types.is_some(), self.nodes.has_times());
        let nodes = IpcFile::create(&dir.join(NODES), schema)?;
        let mut ids = nodes.region(0, capacity);
        let id_bytes = 8 * if text { n + 1 } else { n };
        if text {
            ids.write(&0i64.to_le_bytes())?;
        }
        let mut next = align(id_bytes);
        let mut column = |present: bool, bytes: u64| {
            present.then(|| {
                let region = nodes.region(next, capacity);
                next = align(next + bytes);
                region
            })
        };
        let labels = column(self.label_size() > 0, n * self.label_size() as u64);
        let split = column(true, n).ok_or_else(|| Error::Bug("no split column".into()))?;
        let types = column(self.scan.types.is_some(), 2 * n);
        let times = column(self.nodes.has_times(), 8 * n);
        let texts = column(text, 0);
        let features = match self.row_size() {
            0 => None,
            _ => {
                let (field, items) = feature_field(self.nodes.feature_layout());
                let file = IpcFile::create(&dir.join(FEATURES), Schema::new(vec![field]))?;
                let region = file.region(0, capacity);
                Some((file, region, items))
            }
        };
        Ok(OpenFiles { nodes, features, ids, texts, text_bytes: 0, labels, split, types, times, rows: 0, train: 0 })
    }

    fn convert(&self, chunk: NodeChunk) -> Result<Batch> {
        let mut features = chunk.features;
        self.scale.apply(&mut features, chunk.feature_block);
        let features = self.nodes.feature_layout().narrow(&features).map_err(|i| Error::NotFinite {
            place: chunk.origin.place(i / self.nodes.feature_width().max(1), &self.nodes.feature_names()),
            value: f64::from(features[i]),
            hint: " when stored as f16; set graph.feature_dtype to \"f32\" or \"bf16\"",
        })?;
        let labels = match (&chunk.labels, &self.scan.labels) {
            (Some(labels), Some((info, form))) => label_bytes(labels, *form, info.classes as usize, &info.names)?,
            _ => Vec::new(),
        };
        let types = match (&chunk.types, &self.scan.types) {
            (Some(Types::Code(codes)), _) => codes.clone(),
            (Some(Types::Name(names)), Some(info)) => {
                ranks(names, &info.names)?.into_iter().map(|rank| rank as u16).collect()
            }
            _ => Vec::new(),
        };
        let first = chunk.first_row as u32;
        let nodes = (first..first + chunk.ids.len() as u32).collect();
        Ok(Batch { nodes, ids: chunk.ids, labels, types, times: chunk.times.unwrap_or_default(), features })
    }

    fn finish(&self, part: OpenFiles) -> Result<NodeFiles> {
        let n = part.rows;
        let (mut nodes, mut buffers, mut regions) = (vec![n], vec![Span::NONE, part.ids.span()], vec![part.ids]);
        if let Some(texts) = part.texts {
            buffers.push(texts.span());
            regions.push(texts);
        }
        if let (Some(labels), Some((info, _))) = (part.labels, &self.scan.labels) {
            nodes.push(n);
            if info.kind == LabelKind::Multi {
                nodes.push(n * u64::from(info.classes));
                buffers.push(Span::NONE);
            }
            buffers.extend([Span::NONE, labels.span()]);
            regions.push(labels);
        } else if let Some((info, _)) = &self.scan.labels {
            // No classes: the lists are empty.
            nodes.extend([n, n * u64::from(info.classes)]);
            buffers.extend([Span::NONE; 3]);
        }
        nodes.push(n);
        buffers.extend([Span::NONE, part.split.span()]);
        regions.push(part.split);
        if let Some(types) = part.types {
            nodes.push(n);
            buffers.extend([Span::NONE, types.span()]);
            regions.push(types);
        }
        if let Some(times) = part.times {
            nodes.push(n);
            buffers.extend([Span::NONE, times.span()]);
            regions.push(times);
        }
        let features = part.features.map(|(file, region, items)| {
            let buffers = [Span::NONE, Span::NONE, region.span()];
            file.finish(&[n, n * items], &buffers, vec![region])
        });
        let (features, nodes) = (features.transpose()?, part.nodes.finish(&nodes, &buffers, regions)?);
        Ok(NodeFiles { nodes, features, train: part.train })
    }
}

impl OpenFiles {
    /// Appends node `i` of `batch`.
    fn append(&mut self, batch: &Batch, i: usize, split: u8, label_size: usize, row_size: usize) -> Result<()> {
        match (&batch.ids, &mut self.texts) {
            (Ids::Int(ids), _) => self.ids.write(&ids[i].to_le_bytes())?,
            (Ids::Text(ids), Some(texts)) => {
                let id = ids.value(i).as_bytes();
                texts.write(id)?;
                self.text_bytes += id.len() as u64;
                self.ids.write(&(self.text_bytes as i64).to_le_bytes())?;
            }
            (Ids::Text(_), None) => return Err(Error::Bug("there are ids of two kinds".into())),
        }
        if let Some(labels) = &mut self.labels {
            labels.write(&batch.labels[i * label_size..(i + 1) * label_size])?;
        }
        self.split.write(&[split])?;
        if let Some(types) = &mut self.types {
            types.write(&batch.types[i].to_le_bytes())?;
        }
        if let Some(times) = &mut self.times {
            times.write(&batch.times[i].to_le_bytes())?;
        }
        if let Some((_, features, _)) = &mut self.features {
            features.write(&batch.features[i * row_size..(i + 1) * row_size])?;
        }
        self.rows += 1;
        self.train += u64::from(split == split::TRAIN);
        Ok(())
    }
}

/// Returns the bytes of labels as in `nodes.arrow`.
fn label_bytes(labels: &RawLabels, form: LabelForm, classes: usize, names: &[String]) -> Result<Vec<u8>> {
    Ok(match labels {
        RawLabels::Int(labels) => bytemuck::cast_slice(labels).to_vec(),
        RawLabels::Float(labels) => bytemuck::cast_slice(labels).to_vec(),
        RawLabels::Text(labels) => bytemuck::cast_slice(&named_classes(labels, names)?).to_vec(),
        RawLabels::List { starts, items } => {
            let mut flags = vec![0; (starts.len() - 1) * classes];
            for (row, ends) in starts.windows(2).enumerate() {
                let row = &mut flags[row * classes..(row + 1) * classes];
                for (position, &value) in items[ends[0]..ends[1]].iter().enumerate() {
                    match form {
                        LabelForm::Flags => row[position] = value as u8,
                        _ => row[value as usize] = 1,
                    }
                }
            }
            flags
        }
    })
}
