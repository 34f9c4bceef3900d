//! Errors, with their place, their cause and a remedy.
//!
//! Every message is one line. Variants carry the path, row group, row and column (a [`Location`]) of the invalid value.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::format::counted;

/// Result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Remedy for a thread that the system cannot start.
pub const FEWER_THREADS: &str = "raise the limits on threads and memory (ulimit -u, ulimit -v), or use fewer threads (train.threads, RAYON_NUM_THREADS)";

/// The party at fault for an error. It decides the exit code of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The command line or the pipeline file.
    Usage,
    /// The user's data.
    Input,
    /// This machine: disk, memory, port, device.
    Machine,
    /// Another process or the network.
    Cluster,
    /// A bug in gnnflow.
    Bug,
}

impl Fault {
    /// Returns the exit code of a program that ends with this fault.
    ///
    /// ```
    /// use gnnflow_data::Fault;
    /// assert_eq!([Fault::Usage, Fault::Input, Fault::Machine, Fault::Cluster, Fault::Bug].map(Fault::exit_code), [2, 3, 4, 5, 70]);
    /// ```
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Usage => 2,
            Self::Input => 3,
            Self::Machine => 4,
            Self::Cluster => 5,
            Self::Bug => 70,
        }
    }
}

/// One value in a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The Parquet file, or its URL.
    pub path: PathBuf,
    /// The row group within the file, from 0.
    pub row_group: usize,
    /// The row within the file, from 0.
    pub row: u64,
    /// The column.
    pub column: String,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, row_group, row, column } = self;
        write!(f, "{}, column \"{column}\", row {row} (row group {row_group})", path.display())
    }
}

/// Everything that can go wrong between a dump and a prepared dataset.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder that the user named does not exist.
    #[error("{}: there is no such file or folder ({role})", path.display())]
    Missing {
        /// The path that was named.
        path: PathBuf,
        /// The setting that names it, such as "graph.nodes".
        role: &'static str,
    },
    /// A folder or list without any Parquet file.
    #[error("{}: no *.parquet file in it ({role})", path.display())]
    NoFiles {
        /// The folder, or an empty path when the list itself is empty.
        path: PathBuf,
        /// The setting that names it.
        role: &'static str,
    },
    /// Not a Parquet file, or one that is cut off or damaged.
    #[error("{}: not a complete Parquet file: {reason}; check that it was copied to the end", path.display())]
    NotParquet {
        /// The file.
        path: PathBuf,
        /// The message of the reader.
        reason: String,
    },
    /// A text file instead of a Parquet file.
    #[error("{} is not a Parquet file, but looks like text; convert it with `{}`", path.display(), import_command(path, role))]
    LooksLikeText {
        /// The file.
        path: PathBuf,
        /// The setting that names it.
        role: &'static str,
    },
    /// An object in a store, or the store itself, that cannot be read.
    #[error("{}: {problem}", url.display())]
    Remote {
        /// Its URL.
        url: PathBuf,
        /// The problem and the remedy.
        problem: String,
        /// The party at fault: the input if the object is missing, refused or changing; the network if it cannot be
        /// reached.
        fault: Fault,
    },
    /// A column that the settings name is not in the file.
    #[error("{}: no column \"{column}\" (graph.columns.{role}); {}", path.display(), hint(column, available))]
    MissingColumn {
        /// The file.
        path: PathBuf,
        /// The key of `columns` that names it.
        role: &'static str,
        /// The requested name.
        column: String,
        /// The columns of the file.
        available: Vec<String>,
    },
    /// A column has a type that is not possible for its role.
    #[error("{}: column \"{column}\" is {found}, but graph.columns.{role} needs {wanted}", path.display())]
    ColumnType {
        /// The file.
        path: PathBuf,
        /// The key of `columns` that names it.
        role: &'static str,
        /// The column.
        column: String,
        /// Its Arrow type.
        found: String,
        /// The expected type.
        wanted: String,
    },
    /// A null where a value is needed.
    #[error("{place}: null; every row needs a value here")]
    Null {
        /// The place of the value.
        place: Box<Location>,
    },
    /// NaN or an infinity.
    #[error("{place}: {value} is not a finite number{hint}")]
    NotFinite {
        /// The place of the value.
        place: Box<Location>,
        /// The value.
        value: f64,
        /// Empty, or the remedy.
        hint: &'static str,
    },
    /// A row whose list has another length than the rows before.
    #[error("{place}: {found} values, but the rows before have {expected}")]
    Width {
        /// The place of the value.
        place: Box<Location>,
        /// Width of this row.
        found: usize,
        /// Width of the rows before.
        expected: usize,
    },
    /// A value out of its domain (a label out of range, an unknown split name, a negative type, …).
    #[error("{place}: {value} is not {wanted}")]
    Value {
        /// The place of the value.
        place: Box<Location>,
        /// The value, as text.
        value: String,
        /// The expected value.
        wanted: String,
    },
    /// Two nodes with one id.
    #[error("{second}: node id {id} was already used in row {first}; every node needs a different id")]
    DuplicateNode {
        /// The id.
        id: String,
        /// The row, over all node files, that used the id first.
        first: u64,
        /// The place of the second occurrence.
        second: Box<Location>,
    },
    /// An edge with an end that is not a node.
    #[error(
        "{place}: {id} is not the id of a node; add the node to the node files, or set graph.unknown_nodes to \"drop\" or \"create\""
    )]
    UnknownNode {
        /// The place of the value.
        place: Box<Location>,
        /// The unknown id.
        id: String,
    },
    /// `isolated = "fail"`, and the graph has isolated nodes.
    #[error("node {id}{} no edge to or from another node; set graph.isolated to \"drop\" or \"keep\"", and_others_have(*others))]
    Isolated {
        /// The id of the first isolated node.
        id: String,
        /// Number of further isolated nodes.
        others: u64,
    },
    /// `duplicates = "fail"`, and the edges have duplicates.
    #[error("{place}: the edge {src} → {dst} is already in {first}; set graph.duplicates to \"drop\" or \"keep\"")]
    DuplicateEdge {
        /// The place of the second occurrence.
        place: Box<Location>,
        /// The place of the first occurrence, as text.
        first: String,
        /// Source id.
        src: String,
        /// Destination id.
        dst: String,
    },
    /// An update removes an edge that does not exist.
    #[error("{place}: there is no edge {src} → {dst} to remove; use --missing ignore to skip such rows")]
    MissingEdge {
        /// The place of the value.
        place: Box<Location>,
        /// Source id.
        src: String,
        /// Destination id.
        dst: String,
    },
    /// An update removes a node that does not exist.
    #[error("{place}: there is no node {id} to remove; use --missing ignore to skip such rows")]
    MissingNode {
        /// The place of the value.
        place: Box<Location>,
        /// The id.
        id: String,
    },
    /// An update removes all nodes.
    #[error("{}: no node of the dataset would be left; leave at least one of them out of this table", path.display())]
    AllNodesRemoved {
        /// The last table of removed nodes.
        path: PathBuf,
    },
    /// An update adds a node that exists.
    #[error(
        "{place}: node {id} is already in the dataset; remove this row; to change the node, use --values (in a batch, values.parquet)"
    )]
    NodeExists {
        /// The place of the value.
        place: Box<Location>,
        /// The node's id.
        id: String,
    },
    /// `self_loops = "fail"`, and the edges have self-loops.
    #[error("{place}: node {id} has an edge to itself; set graph.self_loops to \"keep\" or \"drop\"")]
    SelfLoop {
        /// The place of the value.
        place: Box<Location>,
        /// The node's id.
        id: String,
    },
    /// A quantity exceeds a limit of the format.
    #[error("{what} is {found}, but gnnflow supports at most {limit}")]
    TooLarge {
        /// The quantity.
        what: String,
        /// Its value.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// A process that other processes wait for gives no sign of life.
    #[error("{}: {owner} holds this lock, but has given no sign of life for {seconds} s; stop that process, and start again", path.display())]
    Silent {
        /// The lock file.
        path: PathBuf,
        /// The process, as it names itself.
        owner: String,
        /// How long the others have waited.
        seconds: u64,
    },
    /// A setting with an invalid value.
    #[error("{key}: {reason}")]
    Setting {
        /// The key, as in the pipeline file.
        key: &'static str,
        /// The reason.
        reason: String,
    },
    /// A partitioner failed.
    #[error("partition method \"{method}\": {reason}")]
    Partitioner {
        /// Its name.
        method: String,
        /// The reason.
        reason: String,
        /// The party at fault.
        fault: Fault,
    },
    /// A line of a text file does not follow the format.
    #[error("{}:{line}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The problem and the remedy.
        reason: String,
    },
    /// A file cannot be imported, or has the wrong columns for its use.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file, or a folder that lacks one.
        path: PathBuf,
        /// The problem and the remedy.
        reason: String,
    },
    /// The folder is not a prepared dataset.
    #[error("{}: not a prepared dataset: {reason}", path.display())]
    NotADataset {
        /// The folder.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The dataset was written by a version of gnnflow with another layout.
    #[error("{}: prepared with schema version {found}, but this gnnflow reads {expected}; run `gnnflow prepare` again", path.display())]
    SchemaVersion {
        /// The manifest.
        path: PathBuf,
        /// Version in the manifest.
        found: u64,
        /// Version of this build.
        expected: u64,
    },
    /// A file of a prepared dataset differs from the manifest.
    #[error(
        "{}: damaged: {reason}; restore the file from a copy, or delete the dataset's folder and run `gnnflow prepare` again",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// The output folder exists and is not a prepared dataset. It stays unchanged.
    #[error("{}: exists and is not a prepared dataset; choose another folder, or move this one away", path.display())]
    Occupied {
        /// The folder.
        path: PathBuf,
    },
    /// A folder of copies instead of the dataset itself.
    #[error("{}: the folder has copies of some files of the dataset {}; name that dataset instead", path.display(), origin.display())]
    Copies {
        /// The folder.
        path: PathBuf,
        /// The folder or URL of the dataset.
        origin: PathBuf,
    },
    /// The dataset to prepare has been updated since. It stays unchanged.
    #[error(
        "{}: the dataset was updated after it was prepared, and preparing it again would lose the changes; to use it as it is, name it in \
         graph.dataset instead of the graph's files; to prepare it without the changes, delete the folder, or choose another one with \
         partition.out",
        path.display()
    )]
    Updated {
        /// The folder.
        path: PathBuf,
    },
    /// The memory budget of a preparation is too small.
    #[error(
        "partition.memory is {}, but preparing this graph ({nodes} nodes, {edges} edges) by \"{method}\" needs {}MiB; use that or more{}",
        crate::format::bytes(*memory), needed.div_ceil(1 << 20), smaller_plan(*planned)
    )]
    Budget {
        /// Number of nodes.
        nodes: u64,
        /// Number of edge rows.
        edges: u64,
        /// The partitioner's name.
        method: String,
        /// Needed bytes.
        needed: u64,
        /// Budget in bytes.
        memory: u64,
        /// Whether the partitioner needs less with a smaller `partition.method_memory`.
        planned: bool,
    },
    /// An operating system error.
    #[error("{}: cannot {action}: {source}{}", path.display(), remedy(source))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The failed action, as a verb.
        action: &'static str,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The operating system could not start a thread.
    #[error("cannot start {what}: {source}; {}", FEWER_THREADS)]
    Threads {
        /// The threads.
        what: &'static str,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A violated invariant.
    #[error("bug in gnnflow: {0}; please report it")]
    Bug(String),
}

impl Error {
    /// Returns the party at fault.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Setting { .. } | Self::Budget { .. } => Fault::Usage,
            Self::Partitioner { fault, .. } | Self::Remote { fault, .. } => *fault,
            // The system has read the file; its content is wrong.
            Self::Io { source, .. } if source.kind() == std::io::ErrorKind::InvalidData => Fault::Input,
            Self::Io { .. } | Self::Threads { .. } => Fault::Machine,
            Self::Silent { .. } => Fault::Cluster,
            Self::Bug(_) => Fault::Bug,
            _ => Fault::Input,
        }
    }

    /// Returns a function for `map_err`: it makes an error of the operating system for `action` on `path`.
    pub fn io(path: impl AsRef<Path>, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { path: path.as_ref().to_path_buf(), action, source }
    }
}

/// Returns the command that converts a text file to Parquet.
fn import_command(path: &Path, role: &str) -> String {
    let edges = if role == "graph.nodes" { "EDGES --nodes " } else { "" };
    format!("gnnflow import {edges}{} --out DIR", path.display())
}

/// Returns `" has"` for 0 further nodes, else `" and <others> others have"`.
fn and_others_have(others: u64) -> String {
    if others == 0 { " has".into() } else { format!(" and {} have", counted(others, "other")) }
}

/// Returns the other remedy for a small memory budget.
fn smaller_plan(planned: bool) -> &'static str {
    if planned { ", or a smaller partition.method_memory, which changes the partitions" } else { "" }
}

/// Returns a remedy for an error of the operating system, to append to its message; empty for most.
pub fn remedy(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            "; free some space or choose another disk"
        }
        std::io::ErrorKind::PermissionDenied => "; check the permissions",
        _ => "",
    }
}

/// Returns a "did you mean" hint and the list of columns.
fn hint(wanted: &str, available: &[String]) -> String {
    let list = available.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    let all = if list.is_empty() { "it has no columns".into() } else { format!("it has {list}") };
    match closest(wanted, available.iter().map(String::as_str)) {
        Some(name) => format!("did you mean \"{name}\"? {all}"),
        None => all,
    }
}

/// Returns the name closest to `wanted`, if it is close enough to be a typing error.
///
/// ```
/// use gnnflow_data::error::closest;
/// assert_eq!(closest("lable", ["node_id", "label"]), Some("label"));
/// assert_eq!(closest("lable", ["node_id", "weight"]), None);
/// ```
pub fn closest<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = 1 + wanted.chars().count() / 4;
    let distance = |name: &str| strsim::damerau_levenshtein(&wanted.to_lowercase(), &name.to_lowercase());
    names.into_iter().map(|name| (distance(name), name)).filter(|&(d, _)| d <= limit).min().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_column_error_lists_columns_and_suggests_the_closest() {
        let error = Error::MissingColumn {
            path: "nodes.parquet".into(),
            role: "label",
            column: "lable".into(),
            available: vec!["node_id".into(), "label".into()],
        };
        assert_eq!(
            error.to_string(),
            "nodes.parquet: no column \"lable\" (graph.columns.label); did you mean \"label\"? it has \"node_id\", \"label\""
        );
        assert_eq!(error.fault().exit_code(), 3);
    }

    #[test]
    fn full_disk_is_a_machine_fault_with_a_remedy() {
        let error = Error::io("out", "write")(std::io::Error::from(std::io::ErrorKind::StorageFull));
        assert!(error.to_string().ends_with("free some space or choose another disk"), "{error}");
        assert_eq!(error.fault(), Fault::Machine);
    }
}
