//! Counts labels again after nodes were dropped.

use crate::dataset::LabelInfo;
use crate::dump::{NodeChunk, NodeReader, RawLabels};
use crate::error::Result;
use crate::ids::NodeIds;
use crate::prepare::scan::{LabelForm, ranks};

/// Counts the labels of the remaining nodes. The classes do not change, even if some have no nodes left.
pub(in crate::prepare) fn recount(
    nodes: &NodeReader,
    ids: &NodeIds,
    info: &mut LabelInfo,
    form: LabelForm,
) -> Result<()> {
    info.labeled = 0;
    info.counts.iter_mut().for_each(|count| *count = 0);
    nodes.for_each_without_features(Ok, |chunk| add(&chunk, ids, info, form))
}

fn add(chunk: &NodeChunk, ids: &NodeIds, info: &mut LabelInfo, form: LabelForm) -> Result<()> {
    let LabelInfo { labeled, counts, names, .. } = info;
    let remains = |row: usize| ids.index_of_row((chunk.first_row + row as u64) as u32).is_some();
    match &chunk.labels {
        None => {}
        Some(RawLabels::Int(labels)) => {
            for (_, &label) in labels.iter().enumerate().filter(|(row, label)| **label >= 0 && remains(*row)) {
                *labeled += 1;
                counts[label as usize] += 1;
            }
        }
        Some(RawLabels::Float(labels)) => *labeled += (0..labels.len()).filter(|&row| remains(row)).count() as u64,
        Some(RawLabels::Text(labels)) => {
            for (_, rank) in ranks(labels, names)?.into_iter().enumerate().filter(|(row, _)| remains(*row)) {
                *labeled += 1;
                counts[rank as usize] += 1;
            }
        }
        Some(RawLabels::List { starts, items }) => {
            for (_, ends) in starts.windows(2).enumerate().filter(|(row, _)| remains(*row)) {
                *labeled += 1;
                for (position, &value) in items[ends[0]..ends[1]].iter().enumerate() {
                    match form {
                        LabelForm::Flags => counts[position] += u64::from(value == 1),
                        _ => counts[value as usize] += 1,
                    }
                }
            }
        }
    }
    Ok(())
}
