//! Recognizes the columns of nodes and edges by their names, types and first values.

use arrow::array::Array;

use super::column::Column;
use super::direction::Reversed;
use super::roles::{self, LabelKind};
use super::table::Table;
use super::task::Task;
use crate::dump::is_number;
use crate::error::Result;
use crate::source::Columns;
use crate::usual_names::{
    DST, EDGE_FEATURES, EDGE_LABEL, EDGE_SPLIT, EDGE_TYPE, FEATURES, ID, LABEL, NODE_TIME, NODE_TYPE, SPLIT, SRC, TIME,
    WEIGHT,
};

/// Columns that the user names. The others are recognized.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ColumnNames {
    /// Nodes: the id.
    pub id: Option<String>,
    /// Nodes: the label.
    pub label: Option<String>,
    /// Nodes: the split.
    pub split: Option<String>,
    /// Edges: the source.
    pub src: Option<String>,
    /// Edges: the destination.
    pub dst: Option<String>,
    /// Edges: the type.
    pub edge_type: Option<String>,
    /// Edges: the time.
    pub time: Option<String>,
    /// Edges: the split.
    pub edge_split: Option<String>,
    /// Edges: the label.
    pub edge_label: Option<String>,
}

impl ColumnNames {
    fn of_nodes(&self) -> Vec<String> {
        [&self.id, &self.label, &self.split].into_iter().flatten().cloned().collect()
    }

    fn of_edges(&self) -> Vec<String> {
        let Self { src, dst, edge_type, time, edge_split, edge_label, .. } = self;
        [src, dst, edge_type, time, edge_split, edge_label].into_iter().flatten().cloned().collect()
    }
}

/// What is known of a graph besides the names of its columns.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Content {
    pub(super) label: Option<LabelKind>,
    /// Values per node.
    pub(super) features: usize,
    /// Whether a feature is a column of numbers instead of lists.
    pub(super) single_features: bool,
    /// Number of edge types in the first rows; 0 if edges have no types.
    pub(super) edge_types: usize,
    /// Whether edges occur in both directions.
    pub(super) reversed: Reversed,
}

/// Recognizes the columns of both tables.
///
/// # Errors
/// Ids or ends of edges that are not recognized; a column that the user named and that is missing or not usable.
pub(super) fn recognize(
    nodes: &mut Table,
    edges: &mut Table,
    names: &ColumnNames,
    task: Option<Task>,
) -> Result<(Columns, Content)> {
    let (mut columns, mut content) = (Columns::default(), Content::default());
    edges.reserve(names.of_edges());
    nodes.reserve(names.of_nodes());
    find_edges(edges, names, &mut columns, &mut content)?;
    find_nodes(nodes, names, task, &mut columns, &mut content)?;
    Ok((columns, content))
}

fn find_edges(table: &mut Table, names: &ColumnNames, columns: &mut Columns, content: &mut Content) -> Result<()> {
    let ends = [
        ("src", ("--src", names.src.as_ref()), SRC, "the source of an edge"),
        ("dst", ("--dst", names.dst.as_ref()), DST, "the destination of an edge"),
    ];
    let mut found = Vec::new();
    for (role, option, usual, what) in ends {
        let end = table.find_named(role, option, usual, |column| roles::id(column).and_then(|()| column.texts()))?;
        found.push(end.ok_or_else(|| table.not_recognized(what, option.0))?);
    }
    if let [(src, from), (dst, to)] = &found[..] {
        content.reversed = Reversed::of(from, to, from.len() as u64 == table.rows());
        (columns.src, columns.dst) = (src.clone(), dst.clone());
    }
    let named = ("--edge-type", names.edge_type.as_ref());
    if let Some((name, types)) = table.find_named("edge_type", named, EDGE_TYPE, roles::kind)? {
        (columns.edge_type, content.edge_types) = (Some(name), types.max(2));
    }
    columns.weight = name_of(table.find("weight", WEIGHT, roles::weight));
    columns.time = name_of(table.find_named("time", ("--time", names.time.as_ref()), TIME, roles::time)?);
    let named = ("--edge-split", names.edge_split.as_ref());
    columns.edge_split = name_of(table.find_named("edge_split", named, EDGE_SPLIT, roles::split)?);
    let named = ("--edge-label", names.edge_label.as_ref());
    columns.edge_label = name_of(table.find_named("edge_label", named, EDGE_LABEL, roles::class)?);
    table.note_minus_one(columns.edge_label.as_ref());
    columns.edge_features = name_of(table.find("edge_features", EDGE_FEATURES, roles::features)).into_iter().collect();
    Ok(())
}

fn find_nodes(
    table: &mut Table,
    names: &ColumnNames,
    task: Option<Task>,
    columns: &mut Columns,
    content: &mut Content,
) -> Result<()> {
    let id = table.find_named("id", ("--id", names.id.as_ref()), ID, roles::id)?;
    columns.id = id.ok_or_else(|| table.not_recognized("the id of a node", "--id"))?.0;
    let label = |column: &Column<'_>| match task {
        Some(Task::NodeRegression) if column.is_int() => {
            Err("its integers are classes; to predict them as numbers, store them as floats".into())
        }
        _ => Ok((roles::label(column)?, column.is_whole())),
    };
    let named = ("--label", names.label.as_ref());
    if let Some((name, (kind, whole))) = table.find_named("label", named, LABEL, label)? {
        if kind == LabelKind::Number && whole {
            let hint = "has floats, so it is predicted as a number; if its values are classes, store them as integers";
            table.notes.push(format!("nodes: \"{name}\" {hint}"));
        }
        (columns.label, content.label) = (Some(name), Some(kind));
        table.note_minus_one(columns.label.as_ref());
    }
    columns.split = name_of(table.find_named("split", ("--split", names.split.as_ref()), SPLIT, roles::split)?);
    if columns.split.is_none() && table.others().iter().any(|(name, _)| name.ends_with("_mask")) {
        let hint = "masks are not read; a split is one column with train, val, test or null";
        table.notes.push(format!("nodes: {hint}"));
    }
    columns.node_type = name_of(table.find("node_type", NODE_TYPE, roles::kind));
    if columns.time.is_some() {
        columns.node_time = name_of(table.find("node_time", NODE_TIME, roles::time));
    }
    columns.features = find_features(table, content);
    Ok(())
}

fn name_of<T>(found: Option<(String, T)>) -> Option<String> {
    found.map(|(name, _)| name)
}

/// Returns the column with a usual name, or else all other columns with numbers.
fn find_features(table: &mut Table, content: &mut Content) -> Vec<String> {
    let single = |column: &Column<'_>| column.item_type().is_none();
    let check = |column: &Column<'_>| roles::features(column).map(|width| (width, single(column)));
    if let Some((name, (width, single))) = table.find("features", FEATURES, check) {
        (content.features, content.single_features) = (width, single);
        return vec![name];
    }
    let numbers = |column: &Column<'_>| column.item_type().is_some_and(is_number) || is_number(column.data_type());
    let others = table.others().into_iter().filter(|(name, column)| !is_mark(name) && numbers(column));
    let others: Vec<_> = others.map(|(name, column)| (name, check(&column))).collect();
    let mut names = Vec::new();
    for (name, checked) in others {
        match checked {
            Ok((width, single)) => {
                content.features += width;
                content.single_features |= single;
                table.give("features", &name);
                names.push(name);
            }
            Err(reason) => table.not(&name, "features", &reason),
        }
    }
    if !names.is_empty() {
        table.notes.push(format!("nodes: the features are all other columns with numbers: {}", names.join(", ")));
    }
    names
}

/// Whether a column has numbers that are no features, by its name: ids, labels, splits, types and times.
fn is_mark(name: &str) -> bool {
    let name = name.to_lowercase();
    let usual = [ID, LABEL, SPLIT, NODE_TYPE].iter().any(|names| names.contains(&name.as_str()));
    let words = ["idx", "index", "part", "partition", "time", "timestamp", "ts"].contains(&name.as_str());
    usual || words || name.starts_with("split") || ["_id", "_mask", "_at", "_ms"].iter().any(|end| name.ends_with(end))
}
