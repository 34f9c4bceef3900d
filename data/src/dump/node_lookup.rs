//! Finds nodes by the user's ids, for tables besides the dump.

use std::collections::HashMap;

use arrow::array::Array;

use super::table::Chunk;
use super::values;
use crate::dataset::{Dataset, IdColumn};
use crate::error::{Error, Result};
use crate::ids::Ids;

/// Global ids by the user's ids.
pub(super) enum NodeLookup {
    Int(HashMap<i64, u32>),
    Text(HashMap<String, u32>),
}

impl NodeLookup {
    pub(super) fn of(dataset: &Dataset) -> Result<Self> {
        let (mut ints, mut texts) = (HashMap::new(), HashMap::new());
        for part in 0..dataset.manifest().parts() {
            let (nodes, first) = (dataset.nodes(part)?, dataset.book().range(part).start as u32);
            match nodes.ids() {
                IdColumn::Int(ids) => ints.extend(ids.iter().copied().zip(first..)),
                IdColumn::Text(ids) => texts.extend((0..ids.len()).map(|i| ids.value(i).to_owned()).zip(first..)),
            }
        }
        Ok(if texts.is_empty() { Self::Int(ints) } else { Self::Text(texts) })
    }

    /// Returns the global ids of a column of ids.
    ///
    /// # Errors
    /// A null, or an id that is not the id of a node.
    pub(super) fn column(&self, chunk: &Chunk, name: &str) -> Result<Vec<u32>> {
        let ids = values::ids(chunk, name)?;
        let find = |i: usize| match (self, &ids) {
            (Self::Int(nodes), Ids::Int(ids)) => nodes.get(&ids[i]).copied(),
            (Self::Text(nodes), Ids::Text(ids)) => nodes.get(ids.value(i)).copied(),
            _ => None,
        };
        let unknown = |i: usize| Error::Value {
            place: chunk.origin.place(i, name),
            value: ids.show(i),
            wanted: "the id of a node".into(),
        };
        (0..ids.len()).map(|i| find(i).ok_or_else(|| unknown(i))).collect()
    }
}

/// Replaces the keys of a dump's columns in an error by the key of the user's table.
pub(super) fn with_own_key(error: Error, role: &'static str) -> Error {
    let (path, reason) = match error {
        Error::MissingColumn { path, column, available, .. } => {
            (path, format!("no column \"{column}\" ({role}); it has {available:?}"))
        }
        Error::ColumnType { path, column, found, wanted, .. } => {
            (path, format!("column \"{column}\" is {found}, but {role} needs {wanted}"))
        }
        other => return other,
    };
    Error::File { path, reason }
}
