//! A user's weights of nodes in the loss.

use std::collections::HashMap;
use std::path::PathBuf;

use super::node_lookup::{NodeLookup, with_own_key};
use super::table::{Chunk, Table};
use super::values;
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::source::{RETRY, expand};

/// Maximum number of rows of a chunk.
const CHUNK: usize = 1 << 16;
const NODE: &str = "node_id";
const WEIGHT: &str = "weight";

/// The files of a user's weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeWeightTable {
    /// Parquet files, folders of them, or URLs, as in [`GraphSource::nodes`](crate::GraphSource::nodes).
    pub files: Vec<PathBuf>,
}

impl NodeWeightTable {
    /// The key of a pipeline that names the files.
    pub const ROLE: &str = "train.classes.node_weights";

    /// Returns the weights of the nodes that `keep` selects, by global id. The table has the columns `node_id`, with ids as in
    /// the node files, and `weight`.
    ///
    /// # Errors
    /// A missing or broken file or column, a null, an id that is not the id of a node, an id twice, a weight that is negative
    /// or not finite; each with its place.
    pub fn read(&self, dataset: &Dataset, keep: impl Fn(u32) -> bool) -> Result<HashMap<u32, f32>> {
        let table = Table::open(&expand(&self.files, Self::ROLE, RETRY)?, Self::ROLE)?;
        let own = |error| with_own_key(error, Self::ROLE);
        values::id_kind(&table, NODE, Self::ROLE, Some(dataset.manifest().ids)).map_err(own)?;
        let is_number = |found: &_| if values::is_number(found) { Ok(()) } else { Err("numbers".into()) };
        table.column_type(WEIGHT, Self::ROLE, is_number).map_err(own)?;
        let nodes = NodeLookup::of(dataset)?;
        let read = |chunk: Chunk| {
            let ids = nodes.column(&chunk, NODE)?;
            let weights = values::floats(&chunk.origin, chunk.column(WEIGHT)?, WEIGHT)?;
            let wrong = |row: usize, column: &str, value: String, wanted: &str| {
                Err(Error::Value { place: chunk.origin.place(row, column), value, wanted: wanted.into() })
            };
            if let Some(row) = weights.iter().position(|&weight| weight < 0.0) {
                return wrong(row, WEIGHT, weights[row].to_string(), "a weight of at least 0");
            }
            Ok((chunk, ids, weights))
        };
        let mut all = HashMap::new();
        table.scan(&[NODE, WEIGHT], CHUNK, read, |(chunk, ids, weights)| {
            for (row, (&node, &weight)) in ids.iter().zip(weights.iter()).enumerate() {
                if keep(node) && all.insert(node, weight).is_some() {
                    let (place, value) = (chunk.origin.place(row, NODE), values::ids(&chunk, NODE)?.show(row));
                    return Err(Error::Value { place, value, wanted: "one row per node".into() });
                }
            }
            Ok(())
        })?;
        Ok(all)
    }
}
