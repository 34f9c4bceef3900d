//! Random changes of the graph in the folder `graph`, and the results of the nodes that they reach.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float32Array, Int64Array, RecordBatch, StringArray};
use arrow::compute::take_record_batch;
use arrow::datatypes::Int64Type;
use arrow::util::display::array_value_to_string;
use gnnflow_data::rng::{Key, Purpose};

use super::{TestDir, read};

/// Each node's prediction and embedding, as text.
pub type Results = BTreeMap<i64, (String, String)>;

/// Numbers of changes.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    pub removed_edges: usize,
    pub added_edges: usize,
    pub new_nodes: usize,
    /// Nodes with new values.
    pub new_values: usize,
    pub removed_nodes: usize,
}

impl Counts {
    pub const NONE: Self = Self { removed_edges: 0, added_edges: 0, new_nodes: 0, new_values: 0, removed_nodes: 0 };
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Edge {
    src: i64,
    dst: i64,
    /// 0 if edges have no types.
    kind: i64,
}

/// Draws changes of a graph.
pub struct Changes {
    /// Edges to larger ids that have not been removed. In an undirected graph, too, no two of them are the same edge.
    edges: Vec<Edge>,
    /// Number of types of edges; 0 without types.
    types: usize,
    nodes: Vec<i64>,
    /// Removed nodes that have not been added again.
    gone: Vec<i64>,
    /// The smallest id that no node has had.
    next: i64,
    key: Key,
    written: usize,
}

impl Changes {
    pub fn new(place: &TestDir, seed: u64) -> Self {
        let edges = read(place, "graph/edges.parquet");
        let ints = |name: &str| -> Option<Vec<i64>> {
            Some(edges.column_by_name(name)?.as_primitive::<Int64Type>().values().to_vec())
        };
        let (src, dst, kinds) = (ints("src").unwrap(), ints("dst").unwrap(), ints("kind"));
        let types = kinds.iter().flatten().max().map_or(0, |&largest| largest as usize + 1);
        let kind = |row: usize| kinds.as_ref().map_or(0, |kinds| kinds[row]);
        let edges = (0..src.len()).map(|row| Edge { src: src[row], dst: dst[row], kind: kind(row) });
        let edges: BTreeSet<Edge> = edges.filter(|edge| edge.src < edge.dst).collect();
        let next = read(place, "graph/nodes.parquet").num_rows() as i64;
        let key = Key::new(seed, Purpose::GenerateEdges);
        let (edges, nodes) = (edges.into_iter().collect(), (0..next).collect());
        Self { edges, types, nodes, gone: Vec::new(), next, key, written: 0 }
    }

    /// Draws a number below `below`.
    fn draw(&mut self, below: usize) -> usize {
        self.key = self.key.fold(1);
        self.key.below(0, below as u64) as usize
    }

    /// Draws one of the nodes.
    fn node(&mut self) -> i64 {
        let at = self.draw(self.nodes.len());
        self.nodes[at]
    }

    /// Draws an edge to `dst`.
    fn edge_to(&mut self, dst: i64) -> Edge {
        let kind = if self.types > 0 { self.draw(self.types) as i64 } else { 0 };
        Edge { src: self.node(), dst, kind }
    }

    /// Draws numbers of changes, with an added edge at least.
    pub fn counts(&mut self) -> Counts {
        Counts {
            removed_edges: self.draw(6),
            added_edges: 1 + self.draw(6),
            new_nodes: self.draw(4),
            new_values: self.draw(4),
            removed_nodes: self.draw(3),
        }
    }

    /// Returns the columns of a table of edges. If edges have types, their features are drawn.
    fn columns(&mut self, edges: &[Edge]) -> Vec<(&'static str, ArrayRef)> {
        let ints = |of: &dyn Fn(&Edge) -> i64| Arc::new(Int64Array::from_iter_values(edges.iter().map(of))) as ArrayRef;
        let mut columns = vec![("src", ints(&|edge| edge.src)), ("dst", ints(&|edge| edge.dst))];
        if self.types > 0 {
            let features: Vec<f32> = edges.iter().map(|_| self.draw(100) as f32 / 100.0).collect();
            columns.push(("kind", ints(&|edge| edge.kind)));
            columns.push(("w", Arc::new(Float32Array::from(features))));
        }
        columns
    }

    /// Writes changes as tables in `folder`. The first new node has the id of a removed one, if there is any. The
    /// second is removed again if nodes are removed.
    pub fn write(&mut self, place: &TestDir, folder: &str, counts: Counts) {
        let _ = std::fs::remove_dir_all(place.path(folder));
        std::fs::create_dir_all(place.path(folder)).unwrap();
        let file = |name: &str| format!("{folder}/{name}.parquet");
        let first_nodes = read(place, "graph/nodes.parquet");
        if counts.removed_edges > 0 {
            let mut gone = Vec::new();
            for _ in 0..counts.removed_edges {
                let at = self.draw(self.edges.len());
                gone.push(self.edges.swap_remove(at));
            }
            place.parquet(&file("remove"), self.columns(&gone));
        }
        let again: Vec<i64> = if counts.new_nodes > 0 { self.gone.pop().into_iter().collect() } else { Vec::new() };
        let count = (counts.new_nodes - again.len()) as i64;
        let new_nodes: Vec<i64> = again.into_iter().chain(self.next..self.next + count).collect();
        self.next += count;
        self.nodes.extend(&new_nodes);
        if !new_nodes.is_empty() {
            let rows = first_nodes.slice(self.written, new_nodes.len());
            place.parquet(&file("nodes"), with_ids(&rows, new_nodes.clone()));
        }
        let nodes: BTreeSet<i64> = (0..counts.new_values).map(|_| self.node()).collect();
        if !nodes.is_empty() {
            // The values of other nodes; without labels and splits in every second table. A node keeps its type.
            let (all, shift) = (first_nodes.num_rows() as i64, 1 + self.written as i64);
            let rows: Int64Array = nodes.iter().map(|node| (node + shift) % all).collect();
            let rows = take_record_batch(&first_nodes, &rows).unwrap();
            let left_out: &[&str] =
                if self.written.is_multiple_of(2) { &["node_type"] } else { &["node_type", "label", "split"] };
            let mut columns = with_ids(&rows, nodes.into_iter().collect());
            columns.retain(|(name, _)| !left_out.contains(name));
            place.parquet(&file("values"), columns);
        }
        if counts.removed_nodes > 0 {
            let gone: BTreeSet<i64> = (0..counts.removed_nodes).map(|_| self.node()).collect();
            let gone: BTreeSet<i64> = gone.into_iter().chain(new_nodes.get(1).copied()).collect();
            self.nodes.retain(|node| !gone.contains(node));
            self.edges.retain(|edge| !gone.contains(&edge.src) && !gone.contains(&edge.dst));
            self.gone.extend(&gone);
            let gone: Int64Array = gone.into_iter().collect();
            place.parquet(&file("remove_nodes"), vec![("node_id", Arc::new(gone) as ArrayRef)]);
        }
        // Each new node has an edge.
        let stay: Vec<i64> = new_nodes.into_iter().filter(|node| !self.gone.contains(node)).collect();
        let mut edges: Vec<Edge> = stay.into_iter().map(|node| self.edge_to(node)).collect();
        for _ in 0..counts.added_edges {
            let dst = self.node();
            edges.push(self.edge_to(dst));
        }
        if !edges.is_empty() {
            // Some of them are removed again later.
            self.edges.extend(edges.iter().filter(|edge| edge.src < edge.dst));
            self.edges.sort_unstable();
            self.edges.dedup();
            place.parquet(&file("edges"), self.columns(&edges));
        }
        self.written += 1;
    }
}

/// Returns the columns of rows of a table of nodes, with other ids.
pub fn with_ids(rows: &RecordBatch, ids: Vec<i64>) -> Vec<(&str, ArrayRef)> {
    let ids: ArrayRef = Arc::new(Int64Array::from(ids));
    let columns =
        named_columns(rows).map(|(name, column)| (name, if name == "node_id" { ids.clone() } else { column }));
    columns.collect()
}

fn named_columns(table: &RecordBatch) -> impl Iterator<Item = (&str, ArrayRef)> {
    let fields = table.schema_ref().fields().iter().map(|field| field.name().as_str());
    fields.zip(table.columns().iter().cloned())
}

/// Gives types to the nodes and edges of the graph in `graph`, and a feature to its edges.
pub fn add_types(place: &TestDir, key: Key) {
    let [nodes, edges] = ["nodes", "edges"].map(|table| read(place, &format!("graph/{table}.parquet")));
    let types = (0..nodes.num_rows() as u64).map(|row| ["author", "paper"][key.fold(1).below(row, 2) as usize]);
    let types: ArrayRef = Arc::new(StringArray::from_iter_values(types));
    place.parquet("graph/nodes.parquet", named_columns(&nodes).chain([("node_type", types)]).collect());
    let rows = 0..edges.num_rows() as u64;
    let kinds: Int64Array = rows.clone().map(|row| key.fold(2).below(row, 3) as i64).collect();
    let features = Float32Array::from_iter_values(rows.map(|row| key.fold(3).unit(row) as f32));
    let more: [(&str, ArrayRef); 2] = [("kind", Arc::new(kinds)), ("w", Arc::new(features))];
    place.parquet("graph/edges.parquet", named_columns(&edges).chain(more).collect());
}

/// Updates `dataset` with the tables in `folder`.
pub fn update(place: &TestDir, dataset: &str, folder: &str, more: &[&str]) {
    let tables = [
        ("--nodes", "nodes"),
        ("--values", "values"),
        ("--remove", "remove"),
        ("--remove-nodes", "remove_nodes"),
        ("--edges", "edges"),
    ];
    let tables = tables.map(|(option, name)| (option, format!("{folder}/{name}.parquet")));
    let existing = tables.iter().filter(|(_, file)| place.path(file).exists());
    let options: Vec<&str> = existing.flat_map(|(option, file)| [*option, file]).collect();
    place.succeed(&[&["update", dataset, "--quiet"], &options[..], more].concat());
}

/// Returns the results in the folder `out`.
pub fn results(place: &TestDir, out: &str) -> Results {
    let [predictions, embeddings] =
        ["predictions", "embeddings"].map(|file| read(place, &format!("{out}/{file}.parquet")));
    let text = |batch: &RecordBatch, name: &str, row: usize| {
        array_value_to_string(batch.column_by_name(name).unwrap(), row).unwrap()
    };
    let ids = predictions.column_by_name("node_id").unwrap().as_primitive::<Int64Type>().values();
    let of = |row: usize| (text(&predictions, "prediction", row), text(&embeddings, "embedding", row));
    ids.iter().enumerate().map(|(row, &id)| (id, of(row))).collect()
}

/// Checks a table of changed results beside all results before and after the change. Returns its number of rows.
pub fn check_changed(place: &TestDir, table: &str, (before, after): (&Results, &Results), what: &str) -> usize {
    let table = read(place, table);
    let column = |name: &str| table.column_by_name(name).unwrap();
    let ids = column("node_id").as_primitive::<Int64Type>().values();
    for (row, id) in ids.iter().enumerate() {
        let text = |name: &str| array_value_to_string(column(name), row).unwrap();
        match after.get(id) {
            Some(results) => assert_eq!((text("prediction"), text("embedding")), *results, "{what}: node {id}"),
            None => {
                assert!(column("prediction").is_null(row) && column("embedding").is_null(row), "{what}: node {id}");
                assert!(before.contains_key(id), "{what}: node {id} never had results");
            }
        }
        match before.get(id) {
            Some((prediction, _)) => assert_eq!(text("old_prediction"), *prediction, "{what}: node {id}"),
            None => assert!(column("old_prediction").is_null(row), "{what}: node {id}"),
        }
    }
    let listed: BTreeSet<i64> = ids.iter().copied().collect();
    assert_eq!(listed.len(), ids.len(), "{what}: a node is listed twice");
    let changed = after.iter().filter(|(id, results)| before.get(id) != Some(results));
    assert!(changed.map(|(id, _)| *id).collect::<BTreeSet<_>>().is_subset(&listed), "{what}");
    assert!(before.keys().filter(|id| !after.contains_key(id)).all(|id| listed.contains(id)), "{what}: removed nodes");
    ids.len()
}

/// Changes a bit in every 4 bytes of the files with stored rows (`f32`) or with their checksums (`crc32`), of all stages and four partitions.
pub fn damage(place: &TestDir, extension: &str) {
    let model = std::fs::read_dir(place.path("dataset.layers")).unwrap().next().unwrap().unwrap().path();
    for part in 0..4 {
        for file in std::fs::read_dir(model.join(format!("part-0000{part}"))).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_some_and(|of| of == extension) {
                let mut bytes = std::fs::read(&path).unwrap();
                bytes.iter_mut().step_by(4).for_each(|byte| *byte ^= 4);
                // In place: a process that opens the file meanwhile finds its length.
                File::options().write(true).open(&path).unwrap().write_all_at(&bytes, 0).unwrap();
            }
        }
    }
}
