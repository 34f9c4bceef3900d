//! A table whose columns get roles one after another.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use serde::Serialize;

use super::column::Column;
use crate::error::{Error, Result};
use crate::inspect;
use crate::source::{RETRY, expand};

/// Number of rows that are read.
const FIRST: usize = 1000;

/// A table, and the roles of its columns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Roles {
    /// `nodes` or `edges`.
    pub table: &'static str,
    /// Files and folders.
    pub paths: Vec<PathBuf>,
    /// Number of rows.
    pub rows: u64,
    /// The columns in order.
    pub columns: Vec<RoleOf>,
}

/// The role of a column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RoleOf {
    /// The column.
    pub name: String,
    /// Its Arrow type.
    #[serde(rename = "type")]
    pub data_type: String,
    /// The key of `graph.columns` that names it; `None` if it is not used.
    pub role: Option<&'static str>,
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |of: fn(&RoleOf) -> &str| self.columns.iter().map(|c| of(c).chars().count()).max().unwrap_or(0);
        let (names, types) = (width(|column| &column.name), width(|column| &column.data_type));
        writeln!(f, "{}: {}", self.table, crate::format::counted(self.rows, "row"))?;
        for RoleOf { name, data_type, role } in &self.columns {
            writeln!(f, "  {name:names$}  {data_type:types$}  {}", role.unwrap_or("not used"))?;
        }
        Ok(())
    }
}

/// A table in which columns are looked for.
pub(super) struct Table {
    name: &'static str,
    paths: Vec<PathBuf>,
    facts: inspect::Table,
    first: RecordBatch,
    /// By column.
    roles: BTreeMap<String, &'static str>,
    /// Columns that the user names. They get their roles from options only.
    named: Vec<String>,
    /// What was guessed, and why columns are not used.
    pub(super) notes: Vec<String>,
}

impl Table {
    /// Opens the files. `setting` names them.
    ///
    /// # Errors
    /// A file that is missing or is not Parquet; a table without rows.
    pub(super) fn open(name: &'static str, paths: &[PathBuf], setting: &'static str) -> Result<Self> {
        let mut notes = Vec::new();
        let files = expand(paths, setting, RETRY)?;
        let facts = inspect::Table::read(name.into(), files, setting, &mut notes)?;
        let first = facts.first(FIRST)?.ok_or_else(|| Error::File {
            path: paths.first().cloned().unwrap_or_default(),
            reason: format!("there are no {name} in it"),
        })?;
        Ok(Self { name, paths: paths.to_vec(), facts, first, roles: BTreeMap::new(), named: Vec::new(), notes })
    }

    /// Keeps columns for the options that name them.
    pub(super) fn reserve(&mut self, named: Vec<String>) {
        self.named = named;
    }

    /// Number of rows.
    pub(super) fn rows(&self) -> u64 {
        self.facts.rows
    }

    fn path(&self) -> &Path {
        self.paths.first().map_or(Path::new(""), PathBuf::as_path)
    }

    fn column<'a>(&'a self, facts: &'a inspect::Column) -> Option<Column<'a>> {
        Some(Column::new(facts, self.first.column_by_name(&facts.name)?, self.facts.rows))
    }

    /// Returns the columns without a role.
    pub(super) fn others(&self) -> Vec<(String, Column<'_>)> {
        let free = self.facts.columns.iter().filter(|facts| !self.roles.contains_key(&facts.name));
        free.filter_map(|facts| Some((facts.name.clone(), self.column(facts)?))).collect()
    }

    /// Whether there is a column of this name that has no role.
    pub(super) fn leaves_out(&self, name: &str) -> bool {
        self.facts.column(name).is_some() && !self.roles.contains_key(name)
    }

    /// Gives a role to a column, and the columns that have it together.
    pub(super) fn give(&mut self, role: &'static str, name: &str) {
        self.roles.insert(name.into(), role);
    }

    /// Gives `role` to the column that has one of the `usual` names and passes `check`. Returns its name and the result of the check. A
    /// column that does not pass becomes a note.
    pub(super) fn find<T>(
        &mut self,
        role: &'static str,
        usual: &[&str],
        check: impl Fn(&Column<'_>) -> std::result::Result<T, String>,
    ) -> Option<(String, T)> {
        for usual in usual {
            let free = |name: &String| name.to_lowercase() == *usual && !self.named.contains(name);
            let other = self.others().into_iter().find(|(name, _)| free(name));
            match other.map(|(name, column)| (name, check(&column))) {
                Some((name, Ok(found))) => {
                    self.give(role, &name);
                    return Some((name, found));
                }
                Some((name, Err(reason))) => self.not(&name, role, &reason),
                None => {}
            }
        }
        None
    }

    /// As [`Table::find`], for the column that the user named with `option`, if any.
    ///
    /// # Errors
    /// No such column, or one that does not pass.
    pub(super) fn find_named<T>(
        &mut self,
        role: &'static str,
        option: (&'static str, Option<&String>),
        usual: &[&str],
        check: impl Fn(&Column<'_>) -> std::result::Result<T, String>,
    ) -> Result<Option<(String, T)>> {
        let (option, Some(name)) = option else { return Ok(self.find(role, usual, check)) };
        let facts = self.facts.column(name).ok_or_else(|| Error::MissingColumn {
            path: self.path().into(),
            role,
            column: name.clone(),
            available: self.names(),
        })?;
        let refuse = |reason: String| Error::Setting { key: option, reason };
        if let Some(other) = self.roles.get(name) {
            return Err(refuse(format!("the column \"{name}\" is already used as {other}; name another one")));
        }
        let column = self.column(facts).ok_or_else(|| Error::Bug(format!("column {name} was not read")))?;
        let found =
            check(&column).map_err(|reason| refuse(format!("the column \"{name}\" cannot be used: {reason}")))?;
        self.give(role, name);
        Ok(Some((name.clone(), found)))
    }

    /// Returns the columns without a role that pass `check`, with quotes.
    pub(super) fn candidates<T>(&self, check: impl Fn(&Column<'_>) -> std::result::Result<T, String>) -> Vec<String> {
        let others = self.others().into_iter().filter(|(_, column)| check(column).is_ok());
        others.map(|(name, _)| format!("\"{name}\"")).collect()
    }

    /// Notes that -1 is not a class, if a column of classes has it.
    pub(super) fn note_minus_one(&mut self, column: Option<&String>) {
        let Some(facts) = column.and_then(|name| self.facts.column(name)) else { return };
        if facts.integer_range().is_some_and(|(min, _)| min == -1) {
            let hint = "has -1, which means no label; if it is a class, number the classes from 0";
            self.notes.push(format!("{}: \"{}\" {hint}", self.name, facts.name));
        }
    }

    /// Returns the error that no column is recognized as `what`, which an option can name.
    pub(super) fn not_recognized(&self, what: &str, option: &str) -> Error {
        let (path, names) = (self.path().to_owned(), self.names().join("\", \""));
        let reason = format!("no column is recognized as {what}; name it with {option}. The columns are \"{names}\"");
        Error::File { path, reason }
    }

    /// Notes why a column is not used.
    pub(super) fn not(&mut self, name: &str, role: &str, reason: &str) {
        self.notes.push(format!("{}: \"{name}\" is not used as {role}: {reason}", self.name));
    }

    fn names(&self) -> Vec<String> {
        self.facts.columns.iter().map(|column| column.name.clone()).collect()
    }

    /// Returns the columns with their roles.
    pub(super) fn roles(&self) -> Roles {
        let role = |column: &inspect::Column| RoleOf {
            name: column.name.clone(),
            data_type: column.data_type.clone(),
            role: self.roles.get(&column.name).copied(),
        };
        let columns = self.facts.columns.iter().map(role).collect();
        Roles { table: self.name, paths: self.paths.clone(), rows: self.facts.rows, columns }
    }
}
