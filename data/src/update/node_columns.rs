//! Labels and features of an update's nodes, converted to the storage format of the dataset.

use crate::dataset::{LabelInfo, LabelKind, Labels, ListForm, Manifest};
use crate::dump::{NodeChunk, NodeReader, RawLabels};
use crate::error::{Error, Location, Result};
use crate::prepare::Scale;
use crate::source::Normalize;

/// The new values of a node, as in the dataset's files. `None` keeps the old value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Values<'a> {
    pub(super) features: Option<&'a [u8]>,
    pub(super) label: Option<&'a [u8]>,
    pub(super) split: Option<u8>,
}

/// Returns the bytes of a node's label in `nodes.arrow`.
pub(super) fn label_size(manifest: &Manifest) -> usize {
    match &manifest.labels {
        None => 0,
        Some(info) if info.kind == LabelKind::Multi => info.classes as usize,
        Some(_) => 4,
    }
}

/// Checks that the columns of `reader` fit the dataset.
pub(super) fn check(reader: &NodeReader, manifest: &Manifest) -> Result<()> {
    let place = |column: &str| reader.place(0, column);
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
    Ok(())
}

/// Checks that features of `what` can be stored like those of the dataset.
pub(super) fn check_features(reader: &NodeReader, manifest: &Manifest, what: &str) -> Result<()> {
    let (found, expected) = (reader.feature_width(), manifest.features.dim);
    let place = || reader.place(0, &reader.feature_names());
    if found != expected {
        return Err(Error::Width { place: place(), found, expected });
    }
    let of_types = manifest.inputs.iter().any(|file| file.role == "nodes" && file.row_type.is_some());
    let reason = match manifest.features.normalize {
        _ if expected == 0 => return Ok(()),
        Normalize::Standard if manifest.features.scales.is_empty() => {
            "an older version of gnnflow has standardized the features, and the dataset does not have their means"
        }
        _ if of_types => "each type of nodes has its own features",
        Normalize::None | Normalize::Row | Normalize::Standard => return Ok(()),
    };
    let wanted = format!("possible, because {reason}; prepare the changed dump");
    Err(Error::Value { place: place(), value: what.into(), wanted })
}

/// Appends the features of a chunk, as in `features.arrow`.
pub(super) fn append_features(
    chunk: &mut NodeChunk,
    reader: &NodeReader,
    manifest: &Manifest,
    into: &mut Vec<u8>,
) -> Result<()> {
    let mut features = std::mem::take(&mut chunk.features);
    Scale::of(&manifest.features).apply(&mut features, chunk.feature_block.clone());
    let bytes = manifest.features.layout().narrow(&features).map_err(|i| Error::NotFinite {
        place: chunk.origin.place(i / manifest.features.dim.max(1), &reader.feature_names()),
        value: f64::from(features[i]),
        hint: " when stored with the dataset's feature dtype",
    })?;
    into.extend_from_slice(&bytes);
    Ok(())
}

/// Appends the labels of a chunk, as in `nodes.arrow`.
pub(super) fn append_labels(
    chunk: &NodeChunk,
    reader: &NodeReader,
    manifest: &Manifest,
    into: &mut Vec<u8>,
) -> Result<()> {
    let (Some(labels), Some(info)) = (&chunk.labels, &manifest.labels) else { return Ok(()) };
    append(labels, info, |row| chunk.origin.place(row, reader.label_name()), into)
}

fn append(
    labels: &RawLabels,
    info: &LabelInfo,
    place: impl Fn(usize) -> Box<Location>,
    into: &mut Vec<u8>,
) -> Result<()> {
    match labels {
        RawLabels::Int(labels) if info.names.is_empty() => into.extend_from_slice(bytemuck::cast_slice(labels)),
        RawLabels::Int(labels) => {
            let (value, wanted) = (labels.first().copied().unwrap_or(0), "the name of a class of the dataset");
            return Err(Error::Value { place: place(0), value: value.to_string(), wanted: wanted.into() });
        }
        RawLabels::Text(labels) => {
            for (row, name) in labels.iter().enumerate() {
                let Some(name) = name else {
                    into.extend_from_slice(&(-1i32).to_le_bytes());
                    continue;
                };
                let class = info.names.iter().position(|class| class == name).ok_or_else(|| Error::Value {
                    place: place(row),
                    value: format!("{name:?}"),
                    wanted: "a class of the dataset; prepare the changed dump to add classes".into(),
                })?;
                into.extend_from_slice(&(class as i32).to_le_bytes());
            }
        }
        RawLabels::Float(labels) => into.extend_from_slice(bytemuck::cast_slice(labels)),
        RawLabels::List { starts, items } => {
            let classes = info.classes as usize;
            let refused = |row: usize, wanted: String| {
                let list = &items[starts[row]..starts[row + 1]];
                Error::Value { place: place(row), value: format!("{list:?}"), wanted }
            };
            for (row, ends) in starts.windows(2).enumerate() {
                let list = &items[ends[0]..ends[1]];
                let start = into.len();
                into.resize(start + classes, 0);
                match info.lists {
                    Some(ListForm::Flags) if list.len() == classes && list.iter().all(|&flag| flag <= 1) => {
                        into[start..].iter_mut().zip(list).for_each(|(to, &flag)| *to = flag as u8);
                    }
                    Some(ListForm::Flags) => {
                        return Err(refused(
                            row,
                            format!("a list of {classes} flags, 0 or 1, like the dataset's labels"),
                        ));
                    }
                    Some(ListForm::Classes) => list.iter().for_each(|&class| into[start + class as usize] = 1),
                    None => {
                        let reason = "the dataset does not say whether such lists are flags or classes";
                        return Err(refused(row, format!("possible, because {reason}; prepare it again")));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Returns labels as in `nodes.arrow`.
pub(super) fn label_bytes(labels: &Labels) -> &[u8] {
    match labels {
        Labels::None => &[],
        Labels::Class(values) => bytemuck::cast_slice(values),
        Labels::Value(values) => bytemuck::cast_slice(values),
        Labels::Multi(flags, _) => flags,
    }
}

/// Counts labels, given as in `nodes.arrow`, in the dataset's counts: adds them, or takes them away.
pub(super) fn count_labels(labels: &[u8], info: &mut LabelInfo, adds: bool) {
    let count = |number: &mut u64| if adds { *number += 1 } else { *number = number.saturating_sub(1) };
    match info.kind {
        LabelKind::Value => {
            let value = |label: &[u8]| f32::from_le_bytes([label[0], label[1], label[2], label[3]]);
            labels.chunks_exact(4).filter(|label| !value(label).is_nan()).for_each(|_| count(&mut info.labeled));
        }
        LabelKind::Class => {
            for label in labels.chunks_exact(4) {
                let class = i32::from_le_bytes([label[0], label[1], label[2], label[3]]);
                if let Some(of_class) = info.counts.get_mut(class as usize) {
                    count(&mut info.labeled);
                    count(of_class);
                }
            }
        }
        LabelKind::Multi => {
            for flags in labels.chunks_exact((info.classes as usize).max(1)) {
                count(&mut info.labeled);
                let set = info.counts.iter_mut().zip(flags).filter(|(_, flag)| **flag != 0);
                set.for_each(|(of_class, _)| count(of_class));
            }
        }
    }
}
