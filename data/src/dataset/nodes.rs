//! `nodes.arrow`: the user's id, label, split, type and time of each core node of a partition.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    Array, ArrowPrimitiveType, FixedSizeListArray, LargeStringArray, PrimitiveArray, RecordBatch, UInt8Array,
};
use arrow::buffer::ScalarBuffer;
use arrow::datatypes::{DataType, Field, Float32Type, Int32Type, Int64Type, Schema, UInt8Type, UInt16Type};

use super::manifest::{IdKind, LabelInfo, LabelKind, Manifest};
use super::mapped::column;
use super::split;
use crate::error::{Error, Result};

/// Names of the columns of `nodes.arrow`.
pub(crate) mod names {
    pub(crate) const ID: &str = "id";
    pub(crate) const LABEL: &str = "label";
    pub(crate) const SPLIT: &str = "split";
    pub(crate) const NODE_TYPE: &str = "node_type";
    pub(crate) const TIME: &str = "time";
}

/// Returns the schema of `nodes.arrow`.
pub(crate) fn schema(ids: IdKind, labels: Option<&LabelInfo>, types: bool, times: bool) -> Schema {
    let id = match ids {
        IdKind::Int => DataType::Int64,
        IdKind::Text => DataType::LargeUtf8,
    };
    let mut fields = vec![Field::new(names::ID, id, false)];
    if let Some(info) = labels {
        let label = match info.kind {
            LabelKind::Class => DataType::Int32,
            LabelKind::Value => DataType::Float32,
            LabelKind::Multi => {
                DataType::FixedSizeList(Arc::new(Field::new("item", DataType::UInt8, false)), info.classes as i32)
            }
        };
        fields.push(Field::new(names::LABEL, label, false));
    }
    fields.push(Field::new(names::SPLIT, DataType::UInt8, false));
    if types {
        fields.push(Field::new(names::NODE_TYPE, DataType::UInt16, false));
    }
    if times {
        fields.push(Field::new(names::TIME, DataType::Int64, false));
    }
    Schema::new(fields)
}

/// Small columns of the core nodes of one partition. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Nodes {
    ids: Ids,
    labels: Labels,
    split: ScalarBuffer<u8>,
    types: Option<ScalarBuffer<u16>>,
    times: Option<ScalarBuffer<i64>>,
}

#[derive(Clone, Debug)]
enum Ids {
    Int(ScalarBuffer<i64>),
    Text(LargeStringArray),
}

/// Labels in memory, for [`Nodes::new`].
#[derive(Clone, Debug)]
pub enum Labels {
    /// There are none.
    None,
    /// One class per node; −1 = unlabeled.
    Class(ScalarBuffer<i32>),
    /// One 0 or 1 per node and class, row by row; and the number of classes.
    Multi(ScalarBuffer<u8>, usize),
    /// One number per node.
    Value(ScalarBuffer<f32>),
}

/// The user's ids.
#[derive(Clone, Copy, Debug)]
pub enum IdColumn<'a> {
    /// Integers.
    Int(&'a [i64]),
    /// Strings.
    Text(&'a LargeStringArray),
}

impl IdColumn<'_> {
    /// Number of ids.
    pub fn len(&self) -> usize {
        match self {
            Self::Int(ids) => ids.len(),
            Self::Text(ids) => ids.len(),
        }
    }

    /// Whether there are no ids.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the id of local node `local` for messages.
    pub fn display(&self, local: usize) -> impl fmt::Display {
        match self {
            Self::Int(ids) => ids[local].to_string(),
            Self::Text(ids) => ids.value(local).to_string(),
        }
    }
}

impl Nodes {
    /// Creates nodes in memory with ids `0..`, for tests and generated graphs.
    ///
    /// # Panics
    /// If the lengths of `labels` and `split` differ.
    pub fn new(split: Vec<u8>, labels: Labels) -> Self {
        let n = split.len();
        let valid = match &labels {
            Labels::None => true,
            Labels::Class(values) => values.len() == n,
            Labels::Multi(values, classes) => values.len() == n * classes,
            Labels::Value(values) => values.len() == n,
        };
        assert!(valid, "one label per node");
        Self { ids: Ids::Int((0..n as i64).collect()), labels, split: split.into(), types: None, times: None }
    }

    /// Reads the columns of `nodes.arrow`. If `check`, compares every value with the manifest.
    pub(super) fn from_batch(batch: &RecordBatch, path: &Path, manifest: &Manifest, check: bool) -> Result<Self> {
        let ids = match manifest.ids {
            IdKind::Int => Ids::Int(values::<Int64Type>(batch, path, names::ID)?),
            IdKind::Text => Ids::Text(column(batch, path, names::ID)?),
        };
        let labels = match &manifest.labels {
            None => Labels::None,
            Some(info) => match info.kind {
                LabelKind::Class => Labels::Class(values::<Int32Type>(batch, path, names::LABEL)?),
                LabelKind::Value => Labels::Value(values::<Float32Type>(batch, path, names::LABEL)?),
                LabelKind::Multi => {
                    let list: FixedSizeListArray = column(batch, path, names::LABEL)?;
                    let flags = list.values().as_any().downcast_ref::<UInt8Array>();
                    let classes = info.classes as usize;
                    let flags = flags.filter(|f| list.value_length() as usize == classes && f.null_count() == 0);
                    let flags = flags.ok_or_else(|| Error::Damaged {
                        path: path.to_path_buf(),
                        reason: format!("its labels are {}, but the manifest says {classes} flags", list.data_type()),
                    })?;
                    Labels::Multi(flags.values().clone(), classes)
                }
            },
        };
        let split = values::<UInt8Type>(batch, path, names::SPLIT)?;
        let types = manifest.node_types.as_ref().map(|_| values::<UInt16Type>(batch, path, names::NODE_TYPE));
        let times = manifest.node_times.then(|| values::<Int64Type>(batch, path, names::TIME));
        let nodes = Self { ids, labels, split, types: types.transpose()?, times: times.transpose()? };
        if check {
            nodes.check(manifest).map_err(|reason| Error::Damaged { path: path.to_path_buf(), reason })?;
        }
        Ok(nodes)
    }

    /// Checks that labels, splits and types are in the ranges of the manifest, because they are used as indexes.
    fn check(&self, manifest: &Manifest) -> std::result::Result<(), String> {
        let classes = manifest.num_classes();
        match &self.labels {
            Labels::Class(labels) => {
                let known = -1..classes as i64;
                if let Some(label) = labels.iter().find(|&&label| !known.contains(&i64::from(label))) {
                    return Err(format!("label {label} is not among the {classes} classes"));
                }
            }
            Labels::Multi(flags, _) => {
                if let Some(flag) = flags.iter().find(|&&flag| flag > 1) {
                    return Err(format!("a label flag is {flag}, but must be 0 or 1"));
                }
            }
            Labels::None | Labels::Value(_) => {}
        }
        if let Some(which) = self.split.iter().find(|&&which| which > split::TEST) {
            return Err(format!("{which} is not a split"));
        }
        let count = manifest.node_types.as_ref().map_or(0, |types| types.count);
        if let Some(found) = self.node_types().unwrap_or_default().iter().find(|&&found| u32::from(found) >= count) {
            return Err(format!("type {found} is not among the {count} types of nodes"));
        }
        Ok(())
    }

    /// Number of core nodes.
    pub fn len(&self) -> usize {
        self.split.len()
    }

    /// Whether the partition has no core node.
    pub fn is_empty(&self) -> bool {
        self.split.is_empty()
    }

    /// Split of each node, see [`split`].
    pub fn split(&self) -> &[u8] {
        &self.split
    }

    /// Returns the local ids of the nodes in split `which`, ascending.
    pub fn in_split(&self, which: u8) -> Vec<u32> {
        self.split.iter().zip(0..).filter(|&(&split, _)| split == which).map(|(_, local)| local).collect()
    }

    /// The user's ids.
    pub fn ids(&self) -> IdColumn<'_> {
        match &self.ids {
            Ids::Int(ids) => IdColumn::Int(ids),
            Ids::Text(ids) => IdColumn::Text(ids),
        }
    }

    /// The labels of any kind.
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// Class of each node, −1 = unlabeled; `None` if labels are not classes.
    pub fn class_labels(&self) -> Option<&[i32]> {
        match &self.labels {
            Labels::Class(labels) => Some(labels),
            _ => None,
        }
    }

    /// One 0 or 1 per node and class, row by row, and the number of classes; `None` for other kinds of labels.
    pub fn multi_labels(&self) -> Option<(&[u8], usize)> {
        match &self.labels {
            Labels::Multi(flags, classes) => Some((flags, *classes)),
            _ => None,
        }
    }

    /// The number to predict for each node; `None` if labels are not numbers.
    pub fn values(&self) -> Option<&[f32]> {
        match &self.labels {
            Labels::Value(values) => Some(values),
            _ => None,
        }
    }

    /// Type of each node.
    pub fn node_types(&self) -> Option<&[u16]> {
        self.types.as_deref()
    }

    /// Time of each node; `i64::MIN` for a node that only edges name.
    pub fn times(&self) -> Option<&[i64]> {
        self.times.as_deref()
    }
}

fn values<T: ArrowPrimitiveType>(batch: &RecordBatch, path: &Path, name: &str) -> Result<ScalarBuffer<T::Native>> {
    Ok(column::<PrimitiveArray<T>>(batch, path, name)?.values().clone())
}
