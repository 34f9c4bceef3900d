//! Random changes of the graph of `planted`, and the results of the nodes that they reach.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, UInt32Array};
use arrow::datatypes::Int64Type;
use arrow::util::display::array_value_to_string;
use gnnflow_data::rng::{Key, Purpose};

use super::{TestDir, read};

/// Each node's prediction and embedding, as text.
pub type Results = BTreeMap<i64, (String, String)>;

/// Draws changes of a graph.
pub struct Changes {
    /// The edges that have not been removed.
    edges: Vec<(i64, i64)>,
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
        let ends = ["src", "dst"]
            .map(|name| edges.column_by_name(name).unwrap().as_primitive::<Int64Type>().values().to_vec());
        let edges: BTreeSet<(i64, i64)> = ends[0].iter().copied().zip(ends[1].iter().copied()).collect();
        let key = Key::new(seed, Purpose::GenerateEdges);
        let nodes = (0..1500).collect();
        Self { edges: edges.into_iter().collect(), nodes, gone: Vec::new(), next: 1500, key, written: 0 }
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

    /// Writes changes that remove edges, add edges, add nodes, give nodes new values and remove nodes, as tables in `folder`. The first new node has the id
    /// of a removed one, if there is any.
    pub fn write(&mut self, place: &TestDir, folder: &str, [removed, added, new, values, removed_nodes]: [usize; 5]) {
        let _ = std::fs::remove_dir_all(place.path(folder));
        std::fs::create_dir_all(place.path(folder)).unwrap();
        let file = |name: &str| format!("{folder}/{name}.parquet");
        let ids = |ids: Vec<i64>| Arc::new(Int64Array::from(ids)) as ArrayRef;
        let ends = |edges: Vec<(i64, i64)>| {
            let (src, dst) = edges.into_iter().unzip();
            vec![("src", ids(src)), ("dst", ids(dst))]
        };
        if removed > 0 {
            let gone = (0..removed).map(|_| {
                let at = self.draw(self.edges.len());
                self.edges.swap_remove(at)
            });
            place.parquet(&file("remove"), ends(gone.collect()));
        }
        let again: Vec<i64> = if new > 0 { self.gone.pop().into_iter().collect() } else { Vec::new() };
        let count = (new - again.len()) as i64;
        let new_nodes: Vec<i64> = again.into_iter().chain(self.next..self.next + count).collect();
        self.next += count;
        self.nodes.extend(&new_nodes);
        if new > 0 {
            let old = read(place, "graph/nodes.parquet").slice(self.written, new);
            let names: Vec<String> = old.schema().fields().iter().map(|field| field.name().clone()).collect();
            let columns = names.iter().zip(old.columns()).map(|(name, column)| match name.as_str() {
                "node_id" => ("node_id", ids(new_nodes.clone())),
                name => (name, Arc::clone(column)),
            });
            place.parquet(&file("nodes"), columns.collect());
        }
        let nodes: BTreeSet<i64> = (0..values).map(|_| self.node()).collect();
        if !nodes.is_empty() {
            // The values of other nodes; without labels and splits in every second table.
            let old = read(place, "graph/nodes.parquet");
            let rows = nodes.iter().map(|node| ((node + 1 + self.written as i64) % 1500) as u32);
            let rows = UInt32Array::from_iter_values(rows);
            let names: Vec<String> = old.schema().fields().iter().map(|field| field.name().clone()).collect();
            let kept = |name: &str| self.written.is_multiple_of(2) || !["label", "split"].contains(&name);
            let columns = names.iter().zip(old.columns()).filter(|(name, _)| kept(name));
            let columns = columns.map(|(name, column)| match name.as_str() {
                "node_id" => ("node_id", ids(nodes.iter().copied().collect())),
                name => (name, arrow::compute::take(column, &rows, None).unwrap()),
            });
            place.parquet(&file("values"), columns.collect());
        }
        if removed_nodes > 0 {
            // Of later ones, some are new.
            let gone: BTreeSet<i64> = (0..removed_nodes).map(|_| self.node()).collect();
            let gone: BTreeSet<i64> = gone.into_iter().chain(new_nodes.get(1).copied()).collect();
            self.nodes.retain(|node| !gone.contains(node));
            self.edges.retain(|(src, dst)| !gone.contains(src) && !gone.contains(dst));
            self.gone.extend(&gone);
            place.parquet(&file("remove_nodes"), vec![("node_id", ids(gone.into_iter().collect()))]);
        }
        // Each new node has an edge.
        let stay: Vec<i64> = new_nodes.into_iter().filter(|node| !self.gone.contains(node)).collect();
        let mut pairs: Vec<(i64, i64)> = stay.into_iter().map(|node| (self.node(), node)).collect();
        pairs.extend((0..added).map(|_| (self.node(), self.node())));
        if !pairs.is_empty() {
            // Some of them are removed again later.
            self.edges.extend(pairs.iter().filter(|(src, dst)| src < dst));
            self.edges.sort_unstable();
            self.edges.dedup();
            place.parquet(&file("edges"), ends(pairs));
        }
        self.written += 1;
    }
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
