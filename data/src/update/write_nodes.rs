//! Writes `nodes.arrow` and `features.arrow` of a partition with new or removed nodes, or new values: the old rows, then the new ones.

use std::path::Path;

use arrow::array::Array;
use arrow::datatypes::Schema;

use crate::dataset::ipc::{IpcFile, Region, Span, align};
use crate::dataset::{
    Dataset, FEATURES, FileInfo, IdColumn, LabelKind, NODES, feature_field, nodes_schema, part_folder,
};
use crate::error::Result;

use super::new_nodes::NewNodes;
use super::node_columns::{Values, label_bytes};

const BUFFER: usize = 1 << 20;

/// What changes in the nodes of a partition.
pub(super) struct NodeChanges<'a> {
    pub(super) new: &'a NewNodes,
    /// The new nodes that follow the old ones.
    pub(super) members: &'a [u32],
    /// The new values of old nodes, by local id, ascending.
    pub(super) values: Vec<(usize, Values<'a>)>,
    /// The removed nodes, by old local id, ascending; they have no new values.
    pub(super) gone: Vec<usize>,
}

impl NodeChanges<'_> {
    /// Whether ids, labels or splits change.
    pub(super) fn change_columns(&self) -> bool {
        let other = |(_, values): &(usize, Values<'_>)| values.label.is_some() || values.split.is_some();
        self.change_rows() || self.values.iter().any(other)
    }

    pub(super) fn change_features(&self) -> bool {
        self.change_rows() || self.values.iter().any(|(_, values)| values.features.is_some())
    }

    /// Whether there are new or removed rows.
    fn change_rows(&self) -> bool {
        !self.members.is_empty() || !self.gone.is_empty()
    }

    /// Writes the old rows of `size` bytes without those of removed nodes, and some of them replaced by others.
    fn write_old<'b>(
        &self,
        region: &mut Region,
        old: &[u8],
        size: usize,
        others: impl Iterator<Item = (usize, &'b [u8])>,
    ) -> Result<()> {
        let mut others: Vec<(usize, &[u8])> = others.chain(self.gone.iter().map(|&row| (row, &[][..]))).collect();
        others.sort_unstable_by_key(|(row, _)| *row);
        let mut at = 0;
        for (row, other) in others {
            region.write(&old[at..row * size])?;
            region.write(other)?;
            at = (row + 1) * size;
        }
        region.write(&old[at..])
    }
}

/// Writes `features.arrow` of partition `part` below `dir`.
pub(super) fn write_features(
    dataset: &Dataset,
    part: usize,
    changes: &NodeChanges<'_>,
    dir: &Path,
) -> Result<FileInfo> {
    let manifest = dataset.manifest();
    let layout = manifest.features.layout();
    let n = manifest.partitions[part].nodes + changes.members.len() as u64 - changes.gone.len() as u64;
    let (field, items) = feature_field(&layout);
    let file = IpcFile::create(&dir.join(part_folder(part)).join(FEATURES), Schema::new(vec![field]))?;
    let mut region = file.region(0, BUFFER);
    let (row, old) = (layout.row_bytes(), dataset.features(part)?);
    let values = changes.values.iter().filter_map(|(local, values)| Some((*local, values.features?)));
    changes.write_old(&mut region, old.bytes(), row, values)?;
    for &member in changes.members {
        region.write(&changes.new.features[member as usize * row..(member as usize + 1) * row])?;
    }
    let buffers = [Span::NONE, Span::NONE, region.span()];
    file.finish(&[n, n * items], &buffers, vec![region])
}

/// Writes `nodes.arrow` of partition `part` below `dir`.
pub(super) fn write_columns(dataset: &Dataset, part: usize, changes: &NodeChanges<'_>, dir: &Path) -> Result<FileInfo> {
    let NodeChanges { new, members, values, gone } = changes;
    let (manifest, old) = (dataset.manifest(), &dataset.nodes(part)?);
    let n = (old.len() + members.len() - gone.len()) as u64;
    let none = std::iter::empty;
    let file = IpcFile::create(
        &dir.join(part_folder(part)).join(NODES),
        nodes_schema(manifest.ids, manifest.labels.as_ref(), manifest.node_types.is_some(), false),
    )?;
    let mut columns = Columns { file: &file, next: 0, regions: Vec::new() };
    let (mut lengths, mut buffers) = (vec![n], vec![Span::NONE]);

    let mut texts = Vec::new();
    let ids = columns.add(|region| match old.ids() {
        IdColumn::Int(ids) => {
            changes.write_old(region, bytemuck::cast_slice(ids), size_of::<i64>(), none())?;
            members.iter().try_for_each(|&member| region.write(&new.ids[member as usize].to_le_bytes()))
        }
        IdColumn::Text(ids) => {
            let kept = (0..ids.len()).filter(|local| gone.binary_search(local).is_err());
            texts.extend(members.iter().map(|&member| new.text(member as usize)));
            let lengths = kept.map(|local| ids.value_length(local));
            let mut end = 0i64;
            region.write(&end.to_le_bytes())?;
            lengths.chain(texts.iter().map(|text| text.len() as i64)).try_for_each(|length| {
                end += length;
                region.write(&end.to_le_bytes())
            })
        }
    })?;
    buffers.push(ids);
    let label_size = new.label_size;
    let labels = manifest.labels.as_ref().map(|info| -> Result<_> {
        let span = match label_size {
            0 => Span::NONE,
            _ => columns.add(|region| {
                let others = values.iter().filter_map(|(local, values)| Some((*local, values.label?)));
                changes.write_old(region, label_bytes(old.labels()), label_size, others)?;
                members
                    .iter()
                    .map(|&member| member as usize * label_size)
                    .try_for_each(|start| region.write(&new.labels[start..start + label_size]))
            })?,
        };
        Ok((info, span))
    });
    let split = columns.add(|region| {
        let splits: Vec<(usize, [u8; 1])> =
            values.iter().filter_map(|(local, values)| Some((*local, [values.split?]))).collect();
        changes.write_old(region, old.split(), 1, splits.iter().map(|(local, split)| (*local, &split[..])))?;
        members.iter().try_for_each(|&member| region.write(&[new.splits[member as usize]]))
    });
    let (labels, split) = (labels.transpose()?, split?);
    let types = old.node_types().map(|types| {
        columns.add(|region| {
            changes.write_old(region, bytemuck::cast_slice(types), size_of::<u16>(), none())?;
            members.iter().try_for_each(|&member| region.write(&new.types[member as usize].to_le_bytes()))
        })
    });
    let types = types.transpose()?;
    if let IdColumn::Text(ids) = old.ids() {
        let ends = ids.value_offsets();
        buffers.push(columns.add(|region| {
            let mut start = ends[0];
            for &local in gone {
                region.write(&ids.value_data()[start as usize..ends[local] as usize])?;
                start = ends[local + 1];
            }
            region.write(&ids.value_data()[start as usize..ends[ids.len()] as usize])?;
            texts.iter().try_for_each(|text| region.write(text.as_bytes()))
        })?);
    }
    if let Some((info, span)) = labels {
        lengths.push(n);
        if info.kind == LabelKind::Multi {
            lengths.push(n * u64::from(info.classes));
            buffers.push(Span::NONE);
        }
        buffers.extend([Span::NONE, span]);
    }
    lengths.push(n);
    buffers.extend([Span::NONE, split]);
    if let Some(types) = types {
        lengths.push(n);
        buffers.extend([Span::NONE, types]);
    }
    let regions = columns.regions;
    file.finish(&lengths, &buffers, regions)
}

/// Writes columns one after the other.
struct Columns<'a> {
    file: &'a IpcFile,
    next: u64,
    regions: Vec<Region>,
}

impl Columns<'_> {
    fn add(&mut self, write: impl FnOnce(&mut Region) -> Result<()>) -> Result<Span> {
        let mut region = self.file.region(self.next, BUFFER);
        write(&mut region)?;
        let span = region.span();
        self.next = align(span.offset + span.length);
        self.regions.push(region);
        Ok(span)
    }
}
