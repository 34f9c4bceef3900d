//! Writes `nodes.arrow` and `features.arrow` of a partition with new nodes: the old rows, then the new ones.

use std::path::Path;

use arrow::array::Array;
use arrow::datatypes::Schema;

use crate::dataset::ipc::{IpcFile, Region, Span, align};
use crate::dataset::{
    Dataset, FEATURES, FileInfo, IdColumn, LabelKind, Labels, Manifest, NODES, Nodes, feature_field, nodes_schema,
    part_folder,
};
use crate::error::Result;

use super::new_nodes::NewNodes;

const BUFFER: usize = 1 << 20;

/// Writes both files of partition `part` below `dir`, with `members` of `new` at the end.
pub(super) fn write_nodes(
    dataset: &Dataset,
    part: usize,
    new: &NewNodes,
    members: &[u32],
    dir: &Path,
) -> Result<(FileInfo, Option<FileInfo>)> {
    let manifest = dataset.manifest();
    let dir = dir.join(part_folder(part));
    let old = dataset.nodes(part)?;
    let n = (old.len() + members.len()) as u64;
    let nodes = node_columns(manifest, &old, new, members, &dir.join(NODES))?;
    let layout = manifest.features.layout();
    if layout.dim() == 0 {
        return Ok((nodes, None));
    }
    let (field, items) = feature_field(&layout);
    let file = IpcFile::create(&dir.join(FEATURES), Schema::new(vec![field]))?;
    let mut region = file.region(0, BUFFER);
    let row = layout.row_bytes();
    region.write(dataset.features(part)?.bytes())?;
    for &member in members {
        region.write(&new.features[member as usize * row..(member as usize + 1) * row])?;
    }
    let buffers = [Span::NONE, Span::NONE, region.span()];
    Ok((nodes, Some(file.finish(&[n, n * items], &buffers, vec![region])?)))
}

fn node_columns(manifest: &Manifest, old: &Nodes, new: &NewNodes, members: &[u32], path: &Path) -> Result<FileInfo> {
    let n = (old.len() + members.len()) as u64;
    let file = IpcFile::create(
        path,
        nodes_schema(manifest.ids, manifest.labels.as_ref(), manifest.node_types.is_some(), false),
    )?;
    let mut columns = Columns { file: &file, next: 0, regions: Vec::new() };
    let (mut lengths, mut buffers) = (vec![n], vec![Span::NONE]);

    let mut texts = Vec::new();
    let ids = columns.add(|region| match old.ids() {
        IdColumn::Int(ids) => {
            region.write(bytemuck::cast_slice(ids))?;
            members.iter().try_for_each(|&member| region.write(&new.ids[member as usize].to_le_bytes()))
        }
        IdColumn::Text(ids) => {
            region.write(bytemuck::cast_slice(ids.value_offsets()))?;
            texts.extend(members.iter().map(|&member| new.text(member as usize)));
            let mut end = ids.value_offsets()[ids.len()];
            texts.iter().try_for_each(|text| {
                end += text.len() as i64;
                region.write(&end.to_le_bytes())
            })
        }
    })?;
    buffers.push(ids);
    let label_size = new.label_size;
    let labels = manifest.labels.as_ref().map(|info| -> Result<_> {
        let bytes: &[u8] = match old.labels() {
            Labels::None => &[],
            Labels::Class(values) => bytemuck::cast_slice(values),
            Labels::Value(values) => bytemuck::cast_slice(values),
            Labels::Multi(flags, _) => flags,
        };
        let span = match label_size {
            0 => Span::NONE,
            _ => columns.add(|region| {
                region.write(bytes)?;
                members
                    .iter()
                    .map(|&member| member as usize * label_size)
                    .try_for_each(|start| region.write(&new.labels[start..start + label_size]))
            })?,
        };
        Ok((info, span))
    });
    let split = columns.add(|region| {
        region.write(old.split())?;
        members.iter().try_for_each(|&member| region.write(&[new.splits[member as usize]]))
    });
    let (labels, split) = (labels.transpose()?, split?);
    let types = old.node_types().map(|types| {
        columns.add(|region| {
            region.write(bytemuck::cast_slice(types))?;
            members.iter().try_for_each(|&member| region.write(&new.types[member as usize].to_le_bytes()))
        })
    });
    let types = types.transpose()?;
    if let IdColumn::Text(ids) = old.ids() {
        let ends = ids.value_offsets();
        let bytes = &ids.value_data()[ends[0] as usize..ends[ids.len()] as usize];
        buffers.push(columns.add(|region| {
            region.write(bytes)?;
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
