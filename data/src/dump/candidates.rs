//! A user's candidates for ranking: a table of sources, of candidate destinations and, optionally, of the edges that they belong to.

use std::collections::HashMap;
use std::path::PathBuf;

use arrow::array::Array;

use super::table::{Chunk, Table};
use super::values;
use crate::dataset::{Dataset, IdColumn};
use crate::error::{Error, Result};
use crate::ids::Ids;
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
            values::id_kind(&table, column, Self::ROLE, Some(kind)).map_err(with_own_keys)?;
        }
        let nodes = Nodes::of(dataset)?;
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

/// Replaces the keys of a dump's columns in an error by the key of this table.
fn with_own_keys(error: Error) -> Error {
    let (path, reason) = match error {
        Error::MissingColumn { path, column, available, .. } => {
            (path, format!("no column \"{column}\" ({}); it has {available:?}", CandidateTable::ROLE))
        }
        Error::ColumnType { path, column, found, wanted, .. } => {
            (path, format!("column \"{column}\" is {found}, but {} needs {wanted}", CandidateTable::ROLE))
        }
        other => return other,
    };
    Error::File { path, reason }
}

/// Global ids by the user's ids.
enum Nodes {
    Int(HashMap<i64, u32>),
    Text(HashMap<String, u32>),
}

impl Nodes {
    fn of(dataset: &Dataset) -> Result<Self> {
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

    fn column(&self, chunk: &Chunk, name: &str) -> Result<Vec<u32>> {
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
