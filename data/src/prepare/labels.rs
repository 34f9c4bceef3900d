//! Counts the labels of nodes: all of them, and again after nodes were dropped.

use std::collections::BTreeMap;

use arrow::array::LargeStringArray;

use crate::dataset::{Encoding, LabelInfo, LabelKind, ListForm};
use crate::dump::{NodeChunk, NodeReader, RawLabels};
use crate::error::{Error, Result};
use crate::ids::NodeIds;

/// The form of labels in the dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LabelForm {
    /// The same as in the dataset.
    Plain,
    /// Names; the dataset stores their ranks.
    Names,
    /// Lists of one flag per class.
    Flags,
    /// Lists of classes.
    Lists,
}

/// Counts labels.
pub(super) struct LabelScan {
    labeled: u64,
    counts: Vec<u64>,
    names: BTreeMap<String, u64>,
    /// Whether other names are refused.
    all_named: bool,
    lists: ListScan,
    /// What lists are, if it is known.
    form: Option<ListForm>,
    /// The number of classes, if it is known.
    classes: Option<u32>,
}

/// Determines whether lists are flags or classes.
#[derive(Default)]
struct ListScan {
    /// Length of the first list.
    width: Option<usize>,
    /// Whether lists have different lengths, or a value is neither 0 nor 1.
    not_flags: bool,
    /// Number of ones at each position.
    flags: Vec<u64>,
}

impl LabelScan {
    /// Creates counts of 0. If the tables are encoded like a dataset whose classes have names, labels must be these names.
    pub(super) fn new(encoding: Option<&Encoding>) -> Self {
        let labels = encoding.and_then(|encoding| encoding.labels.as_ref());
        let names: BTreeMap<String, u64> =
            labels.into_iter().flat_map(|labels| &labels.names).map(|name| (name.clone(), 0)).collect();
        let all_named = !names.is_empty();
        let form = encoding.and_then(|encoding| encoding.label_lists);
        let classes = labels.map(|labels| labels.count);
        Self { labeled: 0, counts: Vec::new(), names, all_named, lists: ListScan::default(), form, classes }
    }

    pub(super) fn add(&mut self, chunk: &NodeChunk, nodes: &NodeReader) -> Result<()> {
        match &chunk.labels {
            None => {}
            Some(RawLabels::Int(labels)) => {
                for &label in labels.iter().filter(|&&label| label >= 0) {
                    self.labeled += 1;
                    increment(&mut self.counts, label as usize);
                }
            }
            Some(RawLabels::Float(labels)) => {
                self.labeled += labels.iter().filter(|label| !label.is_nan()).count() as u64;
            }
            Some(RawLabels::Text(labels)) => {
                for (row, name) in labels.iter().enumerate() {
                    let Some(name) = name else { continue };
                    self.labeled += 1;
                    match self.names.get_mut(name) {
                        Some(count) => *count += 1,
                        None if self.all_named => {
                            let known = self.names.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
                            return Err(Error::Value {
                                place: chunk.origin.place(row, nodes.label_name()),
                                value: format!("{name:?}"),
                                wanted: format!("a class of the dataset in graph.encode_like ({known})"),
                            });
                        }
                        None => drop(self.names.insert(name.to_string(), 1)),
                    }
                }
            }
            Some(RawLabels::List { starts, items }) => {
                for (row, ends) in starts.windows(2).enumerate() {
                    let list = &items[ends[0]..ends[1]];
                    self.labeled += 1;
                    let width = *self.lists.width.get_or_insert(list.len());
                    let same = width == list.len();
                    if !same && nodes.labels_are_flags() {
                        let place = chunk.origin.place(row, nodes.label_name());
                        return Err(Error::Width { place, found: list.len(), expected: width });
                    }
                    let classes = self.classes.filter(|_| self.form == Some(ListForm::Flags));
                    if let Some(classes) = classes.filter(|classes| *classes > 0)
                        && (list.len() != classes as usize || list.iter().any(|&flag| flag > 1))
                    {
                        return Err(Error::Value {
                            place: chunk.origin.place(row, nodes.label_name()),
                            value: format!("{list:?}"),
                            wanted: format!(
                                "a list of {classes} flags, 0 or 1, like the labels of the dataset in graph.encode_like"
                            ),
                        });
                    }
                    self.lists.not_flags |= !same || list.iter().any(|&value| value > 1);
                    for (position, &value) in list.iter().enumerate() {
                        increment(&mut self.counts, value as usize);
                        if value == 1 && !self.lists.not_flags {
                            increment(&mut self.lists.flags, position);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn finish(mut self, kind: LabelKind, wanted: Option<u32>) -> Result<(LabelInfo, LabelForm)> {
        let (mut names, mut form) = (Vec::new(), LabelForm::Plain);
        match kind {
            LabelKind::Value => self.counts.clear(),
            LabelKind::Class if !self.names.is_empty() => {
                form = LabelForm::Names;
                (names, self.counts) = self.names.into_iter().unzip();
            }
            LabelKind::Class => {}
            LabelKind::Multi => {
                let width = self.lists.width.unwrap_or(0);
                let flags = match self.form {
                    Some(form) => form == ListForm::Flags,
                    None => {
                        !self.lists.not_flags && width > 1 && wanted.is_none_or(|classes| classes as usize == width)
                    }
                };
                form = if flags { LabelForm::Flags } else { LabelForm::Lists };
                if flags {
                    self.counts = self.lists.flags;
                    self.counts.resize(self.classes.map_or(width, |classes| width.max(classes as usize)), 0);
                }
            }
        }
        let found = self.counts.len() as u64;
        let classes = match (kind, wanted) {
            (LabelKind::Value, _) => 1,
            (_, Some(wanted)) if found > u64::from(wanted) => {
                let reason = format!("is {wanted}, but the labels have {found} classes; set it to at least {found}");
                return Err(Error::Setting { key: "graph.num_classes", reason });
            }
            (_, Some(wanted)) => wanted,
            (_, None) => found as u32,
        };
        if kind != LabelKind::Value {
            self.counts.resize(classes as usize, 0);
        }
        let lists = match form {
            LabelForm::Plain | LabelForm::Names => None,
            LabelForm::Flags => Some(ListForm::Flags),
            LabelForm::Lists => Some(ListForm::Classes),
        };
        Ok((LabelInfo { kind, classes, names, labeled: self.labeled, counts: self.counts, lists }, form))
    }
}

fn increment(counts: &mut Vec<u64>, at: usize) {
    if counts.len() <= at {
        counts.resize(at + 1, 0);
    }
    counts[at] += 1;
}

/// Counts the labels of the remaining nodes. The classes do not change, even if some have no nodes left.
pub(super) fn recount(nodes: &NodeReader, ids: &NodeIds, info: &mut LabelInfo, form: LabelForm) -> Result<()> {
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
        Some(RawLabels::Float(labels)) => {
            *labeled += (0..labels.len()).filter(|&row| !labels[row].is_nan() && remains(row)).count() as u64;
        }
        Some(RawLabels::Text(labels)) => {
            let classes = named_classes(labels, names)?.into_iter().enumerate();
            for (_, class) in classes.filter(|&(row, class)| class >= 0 && remains(row)) {
                *labeled += 1;
                counts[class as usize] += 1;
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

/// Returns the ranks of `values` among the sorted `names`, which contain all of them.
pub(super) fn ranks(values: &LargeStringArray, names: &[String]) -> Result<Vec<u32>> {
    values.iter().map(|value| rank(value, names)).collect()
}

/// Returns the classes of labels that are names: their ranks among the sorted `names`, or -1 for null.
pub(super) fn named_classes(labels: &LargeStringArray, names: &[String]) -> Result<Vec<i32>> {
    let class = |label: Option<&str>| match label {
        None => Ok(-1),
        label => rank(label, names).map(|rank| rank as i32),
    };
    labels.iter().map(class).collect()
}

fn rank(value: Option<&str>, names: &[String]) -> Result<u32> {
    let found = value.and_then(|value| names.binary_search_by(|name| name.as_str().cmp(value)).ok());
    found.map(|rank| rank as u32).ok_or_else(|| Error::Bug("a name is missing from the first pass".into()))
}
