//! A user's list of nodes.

use std::collections::HashMap;
use std::path::PathBuf;

use arrow::array::Array;

use super::node_lookup::with_own_key;
use super::table::{Chunk, Table};
use super::values;
use crate::dataset::{Dataset, IdColumn};
use crate::error::{Error, Result};
use crate::ids::Ids;
use crate::source::{RETRY, expand};

/// Maximum number of rows of a chunk.
const CHUNK: usize = 1 << 16;
const NODE: &str = "node_id";

/// The files of a user's list of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeListTable {
    /// Parquet files, folders of them, or URLs, as in [`GraphSource::nodes`](crate::GraphSource::nodes).
    pub files: Vec<PathBuf>,
}

/// Listed ids whose nodes are not found yet, each with the number of a row that has it.
#[derive(Default)]
struct Listed {
    ints: HashMap<i64, u64>,
    texts: HashMap<String, u64>,
}

impl NodeListTable {
    /// The option of a command that names the files.
    pub const ROLE: &str = "--nodes";

    /// Returns the nodes by global id, ascending, each once. The table has the column `node_id`, with ids as in the node files. Memory grows with the
    /// list and not with the dataset.
    ///
    /// # Errors
    /// A missing or broken file or column, a null, or an id that is not the id of a node; each with its place.
    pub fn read(&self, dataset: &Dataset) -> Result<Vec<u32>> {
        let table = Table::open(&expand(&self.files, Self::ROLE, RETRY)?, Self::ROLE)?;
        let own = |error| with_own_key(error, Self::ROLE);
        values::id_kind(&table, NODE, Self::ROLE, Some(dataset.manifest().ids)).map_err(own)?;
        let mut listed = listed(&table)?;
        let mut nodes = Vec::with_capacity(listed.ints.len() + listed.texts.len());
        for part in 0..dataset.manifest().parts() {
            let (of_part, first) = (dataset.nodes(part)?, dataset.book().range(part).start as u32);
            match of_part.ids() {
                IdColumn::Int(ids) => {
                    let found = |(_, id): &(u32, &i64)| listed.ints.remove(*id).is_some();
                    nodes.extend((first..).zip(ids.iter()).filter(found).map(|(node, _)| node));
                }
                IdColumn::Text(ids) => {
                    let found = |&row: &usize| listed.texts.remove(ids.value(row)).is_some();
                    nodes.extend((0..ids.len()).filter(found).map(|row| first + row as u32));
                }
            }
        }
        let unknown = listed.ints.into_iter().map(|(id, row)| (row, id.to_string()));
        let unknown = unknown.chain(listed.texts.into_iter().map(|(id, row)| (row, format!("{id:?}"))));
        match unknown.min() {
            Some((row, value)) => {
                let dataset = dataset.dir().display();
                let wanted = format!("the id of a node of {dataset}; remove this row, or choose another dataset");
                Err(Error::Value { place: table.place(row, NODE), value, wanted })
            }
            None => Ok(nodes),
        }
    }
}

/// Reads the ids.
fn listed(table: &Table) -> Result<Listed> {
    let mut listed = Listed::default();
    let read = |chunk: Chunk| Ok((chunk.origin.first_row(), values::ids(&chunk, NODE)?));
    table.scan(&[NODE], CHUNK, read, |(first, ids)| {
        match &ids {
            Ids::Int(ids) => listed.ints.extend(ids.iter().copied().zip(first..)),
            Ids::Text(ids) => listed.texts.extend((0..ids.len()).map(|row| ids.value(row).to_owned()).zip(first..)),
        }
        Ok(())
    })?;
    Ok(listed)
}
