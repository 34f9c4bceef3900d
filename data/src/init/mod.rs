//! Writes a pipeline file for a Parquet dump.
//!
//! Columns are recognized by their names, their types and their first values. Only footers and the first 1000 rows of each table are read.

mod column;
mod direction;
mod find;
mod pipeline;
mod recognize;
mod roles;
mod table;
mod task;

pub use recognize::ColumnNames;
pub use roles::LabelKind;
pub use table::{RoleOf, Roles};
pub use task::Task;

use std::path::{Path, PathBuf};

use serde::Serialize;

use self::direction::Reversed;
use self::pipeline::Pipeline;
use self::recognize::{Content, recognize};
use self::table::Table;
use crate::dump::{EdgeReader, NodeReader};
use crate::error::{Error, Result};
use crate::fs;
use crate::pipeline_file::{folder_name, run_name};
use crate::source::{Columns, Duplicates, GraphSource, Normalize};

/// Settings of `gnnflow init`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Init {
    /// A folder with the tables that `nodes` and `edges` do not name.
    pub folder: Option<PathBuf>,
    /// Files or folders of nodes, or their URLs.
    pub nodes: Vec<PathBuf>,
    /// Files or folders of edges, or their URLs.
    pub edges: Vec<PathBuf>,
    /// The pipeline file. It must not exist.
    pub out: PathBuf,
    /// Columns that the user names.
    pub columns: ColumnNames,
    /// The task; `None`: by the labels.
    pub task: Option<Task>,
}

/// What was recognized, and what the pipeline file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Initialized {
    /// The pipeline file.
    pub pipeline_path: PathBuf,
    /// The table of nodes.
    pub nodes: Roles,
    /// The table of edges.
    pub edges: Roles,
    /// The task.
    pub task: Task,
    /// The kind of the label of nodes.
    pub label: Option<LabelKind>,
    /// Features per node.
    pub features: usize,
    /// The kind of the model.
    pub model: &'static str,
    /// Whether the model learns a row for each node, because nodes have no features.
    pub learned_rows: bool,
    /// What was guessed, and why columns are not used.
    pub notes: Vec<String>,
}

impl std::fmt::Display for Initialized {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { nodes, edges, model, .. } = self;
        let (path, task) = (self.pipeline_path.display(), self.task.word());
        let rows = if self.learned_rows { " on learned rows" } else { "" };
        write!(
            f,
            "{nodes}{edges}{path}: {task} with {model}{rows}; look at the plan with `gnnflow run {path} --dry-run`"
        )
    }
}

impl Init {
    /// Reads the tables and writes the pipeline file.
    ///
    /// # Errors
    /// A file that exists; missing or broken tables; ids or ends of edges that are not recognized; a task without labels.
    pub fn run(&self) -> Result<Initialized> {
        if self.out.exists() {
            let reason = format!("{} exists; name another file, or delete this one first", self.out.display());
            return Err(Error::Setting { key: "--out", reason });
        }
        if self.folder.is_some() && !self.nodes.is_empty() && !self.edges.is_empty() {
            let reason = "--nodes and --edges name both tables; leave the folder out".into();
            return Err(Error::Setting { key: "DIR", reason });
        }
        let mut nodes = Table::open("nodes", &self.paths(&self.nodes, "nodes")?, "graph.nodes")?;
        let mut edges = Table::open("edges", &self.paths(&self.edges, "edges")?, "graph.edges")?;
        let (columns, content) = recognize(&mut nodes, &mut edges, &self.columns, self.task)?;
        let task = self.task(&content, &columns, &edges)?;
        let (tables, mut notes) = ([nodes.roles(), edges.roles()], [&nodes.notes[..], &edges.notes[..]].concat());
        let source = source(&tables, columns, &content, task);
        // The readers check the types of the columns in all files.
        let reader = NodeReader::open(&source)?;
        EdgeReader::open(&source, Some(reader.id_kind()))?;
        notes.extend(guesses(&source, &content, task));
        let left_out = left_out(&nodes, &source);
        let pipeline = Pipeline {
            out: &self.out,
            name: self.name(),
            source: self.relative(source)?,
            content,
            task,
            sizes: [nodes.rows(), edges.rows()],
            left_out,
            notes: &notes,
        };
        let (model, learned_rows) = (pipeline.model(), pipeline.learns_rows());
        fs::write_atomic(&self.out, pipeline.text().as_bytes()).map_err(Error::io(&self.out, "write"))?;
        let [nodes, edges] = tables;
        let (label, features) = (content.label, content.features);
        let pipeline_path = self.out.clone();
        Ok(Initialized { pipeline_path, nodes, edges, task, label, features, model, learned_rows, notes })
    }

    /// Returns the files that the user named, or else those in the folder.
    fn paths(&self, named: &[PathBuf], name: &'static str) -> Result<Vec<PathBuf>> {
        match &self.folder {
            _ if !named.is_empty() => Ok(named.to_vec()),
            Some(folder) => find::find(folder, name),
            None => {
                let reason = format!("name a folder with both tables, or the {name} with --{name}");
                Err(Error::Setting { key: "DIR", reason })
            }
        }
    }

    /// Returns the task that the user names, or else the one of the labels.
    fn task(&self, content: &Content, columns: &Columns, edges: &Table) -> Result<Task> {
        let lacks = |reason: &str| Err(Error::Setting { key: "--task", reason: reason.into() });
        let (label, edge_label) = (content.label, columns.edge_label.is_some());
        match self.task {
            Some(Task::NodeClassification) if !matches!(label, Some(LabelKind::Class | LabelKind::Classes)) => {
                lacks("nodes have no column of classes; name it with --label, or use another task")
            }
            Some(Task::NodeRegression) if label != Some(LabelKind::Number) => lacks(
                "nodes have no column of floats to predict (integers are classes; to predict them, store them as floats); name \
                 it with --label, or use another task",
            ),
            Some(Task::EdgeClassification) if !edge_label => match &edges.candidates(roles::class)[..] {
                [] => lacks("edges have no column of classes (integers, strings or booleans); use another task"),
                some => {
                    lacks(&format!("edges have no column \"label\"; name one with --edge-label: {}", some.join(", ")))
                }
            },
            Some(task) => Ok(task),
            None => Ok(match label.filter(|_| self.columns.edge_label.is_none() || self.columns.label.is_some()) {
                Some(LabelKind::Number) => Task::NodeRegression,
                Some(_) => Task::NodeClassification,
                None if edge_label => Task::EdgeClassification,
                None => Task::LinkPrediction,
            }),
        }
    }

    /// Returns the name of the run: that of the pipeline file or, if it is `pipeline.toml`, of the folder.
    fn name(&self) -> Option<String> {
        match self.out.file_stem()? {
            stem if stem != "pipeline" => run_name(stem),
            _ => folder_name(self.folder.as_ref()?),
        }
    }

    /// Makes the paths of the tables relative to the pipeline file.
    fn relative(&self, mut source: GraphSource) -> Result<GraphSource> {
        let folder: &Path = fs::folder_of(&self.out);
        for path in source.nodes.iter_mut().chain(&mut source.edges) {
            *path = find::relative(path, folder)?;
        }
        Ok(source)
    }
}

/// Returns the graph. Edges have a direction if they have types, or if the task learns from rows in one direction. Then they get reverse
/// types. Other edges are read in both directions.
fn source([nodes, edges]: &[Roles; 2], columns: Columns, content: &Content, task: Task) -> GraphSource {
    let directed = content.edge_types > 0 || directed(&columns, content, task).is_some();
    let no_split = !task.is_of_edges() && columns.split.is_none();
    let separate = columns.time.is_some() && (directed || content.reversed != Reversed::Always);
    GraphSource {
        nodes: nodes.paths.clone(),
        edges: edges.paths.clone(),
        undirected: !directed,
        reverse_edges: directed,
        duplicates: if separate { Duplicates::Keep } else { Duplicates::Drop },
        normalize_features: if content.single_features { Normalize::Standard } else { Normalize::None },
        split_fractions: no_split.then_some([0.6, 0.2, 0.2]),
        columns,
        ..GraphSource::new("", "")
    }
}

/// Returns why rows of edges without types are examples of one direction, for tasks on edges.
fn directed(columns: &Columns, content: &Content, task: Task) -> Option<&'static str> {
    match content.reversed {
        _ if task == Task::EdgeClassification => Some("rows have labels"),
        _ if task != Task::LinkPrediction => None,
        Reversed::Always => None,
        Reversed::Sometimes => Some("some rows, but not all, also occur reversed"),
        Reversed::Never => columns.edge_split.as_ref().map(|_| "rows have splits"),
    }
}

/// Returns the columns of nodes that a pipeline reads by default, but that are not used.
fn left_out(nodes: &Table, source: &GraphSource) -> Vec<&'static str> {
    let named = |role: &&str| match *role {
        "features" => !source.columns.features.is_empty(),
        "label" => source.columns.label.is_some(),
        _ => source.columns.split.is_some() || source.split_fractions.is_some(),
    };
    ["features", "label", "split"].into_iter().filter(|role| !named(role) && nodes.leaves_out(role)).collect()
}

/// Returns the guesses that concern the whole graph.
fn guesses(source: &GraphSource, content: &Content, task: Task) -> Vec<String> {
    let direction = match directed(&source.columns, content, task).filter(|_| content.edge_types == 0) {
        Some(reason) => format!(
            "edges have a direction, because {reason}: only rows are examples, and reverse edges pass messages; if rows are \
             edges in both directions, replace graph.reverse_edges by graph.undirected"
        ),
        None if source.reverse_edges => {
            "edges: every type also gets a reverse type; for one direction, remove graph.reverse_edges".into()
        }
        None if content.reversed == Reversed::Always => {
            "edges: all rows also occur reversed, and the two rows are one edge; for one direction, set graph.undirected = \
             false"
                .into()
        }
        None => "edges: each row is an edge in both directions; for one direction, set graph.undirected = false".into(),
    };
    let mut notes = vec![direction];
    if source.split_fractions.is_some() {
        notes.push("nodes: there is no split, so it is drawn (graph.split_fractions)".into());
    }
    if task.is_of_edges() && source.columns.edge_split.is_none() {
        notes.push("edges: there is no split, so it is drawn (split_fractions)".into());
    }
    if task == Task::LinkPrediction && source.columns.label.is_none() {
        notes.push(
            "nodes have no label, so edges are predicted; --label and --edge-label name a column, --task another task"
                .into(),
        );
    }
    notes
}
