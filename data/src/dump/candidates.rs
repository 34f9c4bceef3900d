//! A user's candidates for ranking: a table of sources, of candidate destinations and, optionally, of the edges that they belong to.

use std::collections::HashMap;
use std::path::PathBuf;

use super::node_lookup::{NodeLookup, with_own_key};
use super::table::{Chunk, Table};
use super::values;
use crate::dataset::Dataset;
use crate::error::Result;
use crate::source::{RETRY, expand};

/// Maximum number of rows of a chunk.
const CHUNK: usize = 1 << 16;
/// Columns: the source, the candidate and, if candidates belong to single edges, the destination of the edge.
const SRC: &str = "src";
const CANDIDATE: &str = "candidate";
const DST: &str = "dst";

/// The files of a user's candidates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CandidateTable {
    /// Parquet files, folders of them, or URLs, as in [`GraphSource::nodes`](crate::GraphSource::nodes).
    pub files: Vec<PathBuf>,
}

/// The content of such a table, in global ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Candidates {
    /// Candidates for all edges from a source.
    OfSources(HashMap<u32, Vec<u32>>),
    /// Candidates for one edge each: source, destination.
    OfEdges(HashMap<(u32, u32), Vec<u32>>),
}

impl CandidateTable {
    /// The key of a pipeline that names the files.
    pub const ROLE: &str = "train.link.eval_negative_dstnode";

    /// Returns the candidates, in the order of the rows. The table has the columns `src` and `candidate`, with ids as in the node files. If it
    /// has a column `dst`, the candidates are for the edge from `src` to `dst`.
    ///
    /// # Errors
    /// A missing or broken file or column, a null, or an id that is not the id of a node; each with its place.
    pub fn read(&self, dataset: &Dataset) -> Result<Candidates> {
        let table = Table::open(&expand(&self.files, Self::ROLE, RETRY)?, Self::ROLE)?;
        let kind = dataset.manifest().ids;
        let mut columns = vec![SRC, CANDIDATE];
        let for_edges = table.column_type(DST, Self::ROLE, |_| Ok(())).is_ok();
        if for_edges {
            columns.push(DST);
        }
        for column in &columns {
            values::id_kind(&table, column, Self::ROLE, Some(kind)).map_err(|error| with_own_key(error, Self::ROLE))?;
        }
        let nodes = NodeLookup::of(dataset)?;
        let read = |chunk: Chunk| columns.iter().map(|name| nodes.column(&chunk, name)).collect::<Result<Vec<_>>>();
        let (mut of_sources, mut of_edges) = (HashMap::<u32, Vec<u32>>::new(), HashMap::<(u32, u32), Vec<u32>>::new());
        table.scan(&columns, CHUNK, read, |rows: Vec<Vec<u32>>| {
            for (i, (&src, &candidate)) in rows[0].iter().zip(&rows[1]).enumerate() {
                match rows.get(2) {
                    Some(dst) => of_edges.entry((src, dst[i])).or_default().push(candidate),
                    None => of_sources.entry(src).or_default().push(candidate),
                }
            }
            Ok(())
        })?;
        Ok(if for_edges { Candidates::OfEdges(of_edges) } else { Candidates::OfSources(of_sources) })
    }
}
