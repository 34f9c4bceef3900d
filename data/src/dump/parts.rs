//! A user's own assignment: a table of nodes and parts.

use std::path::PathBuf;

use super::table::{Chunk, Origin, Table};
use super::values;
use crate::convert::is_int;
use crate::error::{Error, Fault, Result, closest};
use crate::format::counted;
use crate::ids::{Finder, Ids, NodeIds, UNKNOWN};
use crate::source::{RETRY, expand};
use crate::store::DumpFile;

/// Maximum number of rows of a chunk.
const CHUNK: usize = 1 << 16;

/// The files and columns of a user's own assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartTable {
    /// Parquet files, folders of them, or URLs, as in [`GraphSource::nodes`](crate::GraphSource::nodes).
    pub files: Vec<PathBuf>,
    /// Name of the column of node ids.
    pub id: String,
    /// Name of the column of parts: integers from 0.
    pub part: String,
}

impl Default for PartTable {
    /// No files, columns `node_id` and `part`.
    fn default() -> Self {
        Self { files: Vec::new(), id: "node_id".into(), part: "part".into() }
    }
}

impl PartTable {
    /// The key of a pipeline that names the files.
    pub const ROLE: &str = "partition.file";

    /// Returns the files. Replaces folders by the Parquet files in them.
    ///
    /// # Errors
    /// If a path does not exist, or there is no file.
    pub fn files(&self) -> Result<Vec<DumpFile>> {
        if self.files.is_empty() {
            return Err(Error::NoFiles { path: PathBuf::new(), role: Self::ROLE });
        }
        expand(&self.files, Self::ROLE, RETRY)
    }

    /// Returns the part of every node of `ids`, by index. All parts are below `parts`. Rows may be in any order.
    ///
    /// # Errors
    /// A missing or broken file or column; a null, an unknown or repeated id, or a part out of range, each with its place; nodes without
    /// a row.
    pub fn read(&self, ids: &NodeIds, parts: u32) -> Result<Vec<u16>> {
        let table = Table::open(&self.files()?, Self::ROLE)?;
        values::id_kind(&table, &self.id, "id", None).map_err(|error| with_own_keys(error, "id"))?;
        let int = |found: &_| if is_int(found) { Ok(()) } else { Err("integers".to_string()) };
        table.column_type(&self.part, "part", int).map_err(|error| with_own_keys(error, "part"))?;

        let mut part_of = vec![0; ids.len()];
        let mut has_part = vec![0u64; ids.len().div_ceil(64)];
        let finder = ids.finder(&mut |add| {
            let names = |chunk: Chunk| Ok((chunk.origin.first_row(), values::ids(&chunk, &self.id)?));
            table.scan(&[&self.id], CHUNK, names, |(first, names)| add(first, &names))
        })?;
        let read = |chunk: Chunk| self.rows(&chunk, &finder, parts);
        table.scan(&[&self.id, &self.part], CHUNK, read, |rows: Rows| {
            for (row, (&known, &part)) in rows.known.iter().zip(&rows.parts).enumerate() {
                // Ignores the rows of nodes that a filter of the preparation has dropped.
                let Some(node) = ids.index_of_row(known) else { continue };
                let (word, bit) = (&mut has_part[node as usize / 64], 1 << (node % 64));
                if *word & bit != 0 {
                    let place = rows.origin.place(row, &self.id);
                    return Err(Error::Value {
                        place,
                        value: rows.names.show(row),
                        wanted: "unique; keep one row per node".into(),
                    });
                }
                *word |= bit;
                part_of[node as usize] = part;
            }
            Ok(())
        })?;
        let missing = |&node: &u32| has_part[node as usize / 64] >> (node % 64) & 1 == 0;
        match (0..ids.len() as u32).find(missing) {
            None => Ok(part_of),
            Some(first) => {
                let count = (0..ids.len() as u32).filter(missing).count();
                let others =
                    if count > 1 { format!(" and {} have", counted(count as u64 - 1, "other")) } else { " has".into() };
                let files = self.files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ");
                Err(failed(format!("{files}: node {}{others} no row; add one row per node", ids.show(first)?)))
            }
        }
    }

    /// Returns the nodes and parts of a chunk.
    fn rows(&self, chunk: &Chunk, finder: &Finder<'_>, parts: u32) -> Result<Rows> {
        let origin = chunk.origin.clone();
        let names: Ids = values::ids(chunk, &self.id)?;
        let known = finder.rows(origin.first_row(), &names)?;
        if let Some(row) = known.iter().position(|&known| known == UNKNOWN) {
            let (place, value) = (origin.place(row, &self.id), names.show(row));
            return Err(Error::Value { place, value, wanted: "the id of a node".into() });
        }
        let codes = values::all_ints(&origin, chunk.column(&self.part)?, &self.part)?;
        if let Some(row) = codes.iter().position(|part| !(0..i64::from(parts)).contains(part)) {
            let wanted = format!("a part in 0..{parts} (partition.parts)");
            return Err(Error::Value { place: origin.place(row, &self.part), value: codes[row].to_string(), wanted });
        }
        Ok(Rows { origin, names, known, parts: codes.iter().map(|&part| part as u16).collect() })
    }
}

struct Rows {
    origin: Origin,
    names: Ids,
    /// The nodes' rows in the dump.
    known: Vec<u32>,
    parts: Vec<u16>,
}

fn failed(reason: String) -> Error {
    Error::Partitioner { method: "file".into(), reason, fault: Fault::Input }
}

/// Replaces the keys of a dump's columns in an error by those of `partition.file_columns`.
fn with_own_keys(error: Error, role: &str) -> Error {
    match error {
        Error::MissingColumn { path, column, available, .. } => {
            let meant = closest(&column, available.iter().map(String::as_str))
                .map_or_else(String::new, |name| format!(" did you mean \"{name}\"?"));
            let path = path.display();
            failed(format!(
                "{path}: no column \"{column}\" (partition.file_columns.{role});{meant} it has {available:?}"
            ))
        }
        Error::ColumnType { path, column, found, wanted, .. } => {
            let path = path.display();
            failed(format!("{path}: column \"{column}\" is {found}, but partition.file_columns.{role} needs {wanted}"))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{IdStyle, write_parquet};
    use arrow::array::{ArrayRef, Int8Array, Int64Array, StringArray};
    use std::sync::Arc;

    fn map(style: IdStyle, nodes: u32, limit: u64, dir: &std::path::Path) -> NodeIds {
        let array = style.ids(0..nodes);
        let ids = match style {
            IdStyle::Text => Ids::Text(arrow::array::AsArray::as_string::<i64>(&array).clone()),
            _ => Ids::Int(arrow::array::AsArray::as_primitive::<arrow::datatypes::Int64Type>(&array).values().clone()),
        };
        let mut map = NodeIds::new(nodes as usize, limit, dir);
        assert_eq!(map.push(&ids).unwrap().or(map.check().unwrap()), None);
        map
    }

    /// Reads a table of these columns.
    fn read(ids: &NodeIds, columns: Vec<(&str, ArrayRef)>) -> Result<Vec<u16>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("own.parquet");
        write_parquet(&path, columns, 4);
        let name = dir.path().display().to_string();
        PartTable { files: vec![path], ..PartTable::default() }
            .read(ids, 3)
            .map_err(|error| error.to_string().replace(&name, "DIR"))
    }

    #[test]
    fn parts_are_read_for_any_kind_of_ids_and_order() {
        for style in [IdStyle::Dense, IdStyle::Sparse, IdStyle::Text] {
            let columns: Vec<(&str, ArrayRef)> = vec![
                ("node_id", style.ids((0..10).rev())),
                ("part", Arc::new((0..10).rev().map(|node| node % 3).collect::<Int8Array>())),
            ];
            let parts: Vec<u16> = (0..10).map(|node| node % 3).collect();
            let dir = tempfile::tempdir().unwrap();
            for limit in [0, u64::MAX] {
                assert_eq!(read(&map(style, 10, limit, dir.path()), columns.clone()), Ok(parts.clone()));
            }
        }
    }

    #[test]
    fn invalid_rows_are_refused_with_their_place() {
        let dir = tempfile::tempdir().unwrap();
        let ids = map(IdStyle::Dense, 6, u64::MAX, dir.path());
        // Ids out of order and a limit of 0 bytes put the dictionary on disk.
        let mut on_disk = NodeIds::new(6, 0, dir.path());
        assert_eq!(on_disk.push(&Ids::Int(vec![0, 1, 2, 3, 5, 4].into())).unwrap(), None);
        assert_eq!(on_disk.check().unwrap(), None);
        let ints = |values: &[i64]| Arc::new(Int64Array::from(values.to_vec())) as ArrayRef;
        let some = |values: [Option<i64>; 6]| Arc::new(Int64Array::from(values.to_vec())) as ArrayRef;
        let (all, parts) = (ints(&[0, 1, 2, 3, 4, 5]), ints(&[0, 1, 2, 0, 1, 2]));
        let cases = [
            (
                ("node_id", ints(&[0, 1, 2, 3, 4, 7])),
                ("part", parts.clone()),
                "DIR/own.parquet, column \"node_id\", row 5 (row group 1): 7 is not the id of a node",
            ),
            (
                ("node_id", ints(&[0, 1, 2, 3, 2, 5])),
                ("part", parts.clone()),
                "DIR/own.parquet, column \"node_id\", row 4 (row group 1): 2 is not unique; keep one row per node",
            ),
            (
                ("node_id", all.clone()),
                ("part", ints(&[0, 1, 3, 0, 1, 2])),
                "DIR/own.parquet, column \"part\", row 2 (row group 0): 3 is not a part in 0..3 (partition.parts)",
            ),
            (
                ("node_id", all.clone()),
                ("part", ints(&[0, 1, 2, 0, -1, 2])),
                "DIR/own.parquet, column \"part\", row 4 (row group 1): -1 is not a part in 0..3 (partition.parts)",
            ),
            (
                ("node_id", all.clone()),
                ("part", some([Some(0), None, Some(0), Some(0), Some(0), Some(0)])),
                "DIR/own.parquet, column \"part\", row 1 (row group 0): null; every row needs a value here",
            ),
            (
                ("node_id", ints(&[0, 4])),
                ("part", ints(&[0, 0])),
                "partition method \"file\": DIR/own.parquet: node 1 and 3 others have no row; add one row per node",
            ),
            (
                ("node_id", all.clone()),
                ("parts", parts.clone()),
                "partition method \"file\": DIR/own.parquet: no column \"part\" (partition.file_columns.part); did you mean \"parts\"? \
                 it has [\"node_id\", \"parts\"]",
            ),
            (
                ("node_id", all),
                ("part", Arc::new(StringArray::from(vec!["a"; 6]))),
                "partition method \"file\": DIR/own.parquet: column \"part\" is Utf8, but partition.file_columns.part needs integers",
            ),
            (
                ("node_id", Arc::new(StringArray::from(vec!["0"; 6]))),
                ("part", parts),
                "DIR/own.parquet, column \"node_id\", row 0 (row group 0): \"0\" is not the id of a node",
            ),
        ];
        for (id, part, message) in cases {
            for ids in [&ids, &on_disk] {
                assert_eq!(read(ids, vec![id.clone(), part.clone()]), Err(message.into()));
            }
        }
    }

    #[test]
    fn missing_file_error_names_the_key() {
        let error = PartTable::default().files().unwrap_err().to_string();
        assert!(error.contains("partition.file"), "{error}");
        let none = PartTable { files: vec!["/no/such.parquet".into()], ..PartTable::default() };
        let error = none.read(&NodeIds::dense(1), 1).unwrap_err().to_string();
        assert_eq!(error, "/no/such.parquet: there is no such file or folder (partition.file)");
    }
}
