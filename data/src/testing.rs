//! Small graphs and their dumps, for the tests of this crate and of the crates above.
//!
//! This module is not behind a feature. With a feature, `cargo run` and `cargo test` would each build all crates
//! separately.

pub mod corpus;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use arrow::array::{
    ArrayRef, Float32Array, Int64Array, LargeStringArray, ListArray, RecordBatch, StringArray, UInt16Array,
};
use arrow::datatypes::{Field, Float32Type};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

use crate::dataset::{FileInfo, FileKind, Manifest};
use crate::error::{Error, Result};
use crate::ids::NodeIds;
use crate::partitioner::{AddEdges, Assignment, ConsumeKeys, EdgeKey, Goal, GraphStream, Partitioner, VisitEdges};
use crate::rng::{Key, Purpose};
use crate::source::{Columns, GraphSource};

/// A graph in memory.
#[derive(Clone, Debug)]
pub struct TestGraph {
    /// The name of the shape.
    pub name: &'static str,
    /// Number of nodes.
    pub nodes: u32,
    /// `(source, destination)`, in the order of the dump.
    pub edges: Vec<(u32, u32)>,
}

/// Returns one graph of each shape that has caused a bug before.
pub fn graphs() -> Vec<TestGraph> {
    let graph = |name, nodes, edges: &[(u32, u32)]| TestGraph { name, nodes, edges: edges.to_vec() };
    vec![
        graph("empty", 0, &[]),
        graph("one node", 1, &[]),
        graph("self-loop", 1, &[(0, 0)]),
        graph("multi-edge", 3, &[(0, 1), (0, 1), (1, 0), (2, 1), (0, 1), (1, 1), (1, 1)]),
        graph("isolated", 6, &[(1, 4), (4, 1)]),
        TestGraph { name: "star", nodes: 40, edges: (1..40).map(|leaf| (leaf, 0)).collect() },
        TestGraph { name: "path", nodes: 30, edges: (0..29).map(|node| (node, node + 1)).collect() },
        TestGraph {
            name: "two components",
            nodes: 10,
            edges: (0..5)
                .flat_map(|a| (0..5).flat_map(move |b| [(a, b), (a + 5, b + 5)]))
                .filter(|(a, b)| a != b)
                .collect(),
        },
        power_law(200, 1500, 1),
    ]
}

/// Returns a random graph in which few nodes have most of the edges. It has duplicate edges and self-loops.
pub fn power_law(nodes: u32, edges: u64, seed: u64) -> TestGraph {
    let key = Key::new(seed, Purpose::GenerateEdges);
    let end = |i: u64| (f64::from(nodes) * key.unit(i).powi(3)) as u32;
    TestGraph { name: "power law", nodes, edges: (0..edges).map(|i| (end(2 * i), end(2 * i + 1))).collect() }
}

/// The form of the ids in a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdStyle {
    /// `0, 1, 2, …`.
    Dense,
    /// Integers far apart, in no order.
    Sparse,
    /// Strings.
    Text,
}

impl IdStyle {
    /// Returns the ids of nodes.
    pub fn ids(self, nodes: impl IntoIterator<Item = u32>) -> ArrayRef {
        let nodes = nodes.into_iter();
        match self {
            Self::Dense => Arc::new(nodes.map(i64::from).collect::<Int64Array>()),
            Self::Sparse => Arc::new(nodes.map(|node| self.sparse(node)).collect::<Int64Array>()),
            Self::Text => Arc::new(nodes.map(|node| Some(self.text(node))).collect::<LargeStringArray>()),
        }
    }

    /// Returns the id of a node as text.
    pub fn text(self, node: u32) -> String {
        match self {
            Self::Dense => node.to_string(),
            Self::Sparse => self.sparse(node).to_string(),
            Self::Text => format!("node-{:x}", node * 37),
        }
    }

    fn sparse(self, node: u32) -> i64 {
        (i64::from(node) * 7919 - 1000) * if node.is_multiple_of(2) { 1 } else { -1 }
    }
}

/// Splits of the nodes and rows that [`TestGraph::dump`] writes, by their number modulo 5.
const SPLIT_WORDS: [&str; 5] = ["train", "train", "val", "test", "none"];

/// Width of the features that [`TestGraph::dump`] writes.
pub const FEATURES: usize = 3;

impl TestGraph {
    /// Writes the graph as a dump of several small files into `dir`, which must exist.
    ///
    /// Node `v` has features `[v, v / 2, -1]`, label `v % 3` (−1 if `v % 7 == 6`), type `v % 2`, and a split by `v % 5`
    /// (0, 1 train, 2 val, 3 test, 4 none). Edge row `r` has weight `r / 4`, type `"t0"`, `"t1"` or `"t2"` by `r % 3`, time
    /// `1000 + r`, edge features `[r, -r]`, the split of node `r`, and class `"c0"`, `"c1"` or `"c2"` by `r % 3` (null if
    /// `r % 7 == 6`).
    ///
    /// # Errors
    /// When a folder cannot be created.
    ///
    /// # Panics
    /// When a file cannot be written.
    pub fn dump(&self, dir: &Path, ids: IdStyle) -> Result<GraphSource> {
        let (nodes, edges) = (dir.join("nodes"), dir.join("edges"));
        for folder in [&nodes, &edges] {
            std::fs::create_dir_all(folder).map_err(Error::io(folder, "create"))?;
        }
        let all: Vec<u32> = (0..self.nodes).collect();
        for (i, part) in pieces(&all).into_iter().enumerate() {
            let feature = |&v: &u32| Some([v as f32, v as f32 / 2.0, -1.0].map(Some));
            let split = |v: &u32| Some(SPLIT_WORDS[*v as usize % 5]);
            let label = |&v: &u32| if v % 7 == 6 { -1 } else { i64::from(v % 3) };
            let columns: Vec<(&str, ArrayRef)> = vec![
                ("node_id", ids.ids(part.iter().copied())),
                ("x", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(part.iter().map(feature)))),
                ("label", Arc::new(part.iter().map(label).collect::<Int64Array>())),
                ("split", Arc::new(part.iter().map(split).collect::<StringArray>())),
                ("kind", Arc::new(part.iter().map(|v| *v as u16 % 2).collect::<UInt16Array>())),
            ];
            write_parquet(&nodes.join(format!("part-{i}.parquet")), columns, 16);
        }
        let rows: Vec<usize> = (0..self.edges.len()).collect();
        for (i, part) in pieces(&rows).into_iter().enumerate() {
            let float = |f: fn(f32) -> f32| Arc::new(part.iter().map(|&r| f(r as f32)).collect::<Float32Array>());
            let columns: Vec<(&str, ArrayRef)> = vec![
                ("src", ids.ids(part.iter().map(|&r| self.edges[r].0))),
                ("dst", ids.ids(part.iter().map(|&r| self.edges[r].1))),
                ("weight", float(|r| r / 4.0)),
                ("etype", Arc::new(part.iter().map(|r| Some(format!("t{}", r % 3))).collect::<StringArray>())),
                ("ts", Arc::new(part.iter().map(|&r| 1000 + r as i64).collect::<Int64Array>())),
                ("esplit", Arc::new(part.iter().map(|r| Some(SPLIT_WORDS[r % 5])).collect::<StringArray>())),
                (
                    "eclass",
                    Arc::new(part.iter().map(|r| (r % 7 != 6).then(|| format!("c{}", r % 3))).collect::<StringArray>()),
                ),
                ("up", float(|r| r)),
                ("down", float(|r| -r)),
            ];
            write_parquet(&edges.join(format!("part-{i}.parquet")), columns, 64);
        }
        let columns = Columns {
            features: vec!["x".into()],
            label: Some("label".into()),
            split: Some("split".into()),
            ..Columns::default()
        };
        Ok(GraphSource { columns, ..GraphSource::new(nodes, edges) })
    }
}

/// Splits a slice into two pieces of different lengths.
fn pieces<T>(all: &[T]) -> [&[T]; 2] {
    let (first, second) = all.split_at(all.len() / 3);
    [first, second]
}

/// Writes one Parquet file.
///
/// # Panics
/// When the file cannot be written.
pub fn write_parquet(path: &Path, columns: Vec<(&str, ArrayRef)>, rows_per_group: usize) {
    let field = |(name, array): &(&str, ArrayRef)| Field::new(*name, array.data_type().clone(), true);
    let schema = arrow::datatypes::Schema::new(columns.iter().map(field).collect::<Vec<_>>());
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    let batch = RecordBatch::try_new(Arc::new(schema), arrays).expect("columns of one length");
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(rows_per_group)).build();
    let file = File::create(path).expect("a file can be created");
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).expect("a schema that Parquet knows");
    writer.write(&batch).and_then(|()| writer.close().map(drop)).expect("a file can be written");
}

/// Returns a list column of floats.
pub fn float_lists(rows: &[Vec<f32>]) -> ArrayRef {
    let rows = rows.iter().map(|row| Some(row.iter().map(|&x| Some(x)).collect::<Vec<_>>()));
    Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))
}

/// Assigns node `v` to part `v % parts`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Modulo;

impl Partitioner for Modulo {
    fn name(&self) -> &str {
        "modulo"
    }

    fn assign(&self, _: &dyn GraphStream, goal: &Goal) -> Result<Assignment> {
        let parts = u64::from(goal.parts);
        Ok(Assignment::computed(move |node| (node % parts) as u32))
    }
}

/// A graph in memory as a stream for partitioners: the reference implementation.
#[derive(Clone, Debug)]
pub struct TestStream {
    /// The graph.
    pub graph: TestGraph,
    /// Whether each row is an edge in both directions.
    pub undirected: bool,
    /// Splits; one per node.
    pub splits: Vec<u8>,
    /// Node types; one per node, or empty.
    pub types: Vec<u16>,
    /// The users' ids: `0, 1, 2, …`.
    pub ids: Arc<NodeIds>,
    /// Number of edges in each call of a visitor.
    pub chunk: usize,
    /// Names of the passes so far, in order.
    pub passes: RefCell<Vec<String>>,
    /// The bytes that were stored with `save`.
    pub saved: RefCell<HashMap<String, Vec<u8>>>,
}

impl TestGraph {
    /// Returns the graph as an undirected stream without splits and types.
    pub fn stream(&self) -> TestStream {
        TestStream {
            graph: self.clone(),
            undirected: true,
            splits: vec![0; self.nodes as usize],
            types: Vec::new(),
            ids: Arc::new(NodeIds::dense(self.nodes)),
            chunk: 7,
            passes: RefCell::default(),
            saved: RefCell::default(),
        }
    }
}

impl GraphStream for TestStream {
    fn num_nodes(&self) -> u64 {
        u64::from(self.graph.nodes)
    }

    fn num_edges(&self) -> u64 {
        self.graph.edges.len() as u64
    }

    fn undirected(&self) -> bool {
        self.undirected
    }

    fn splits(&self) -> &[u8] {
        &self.splits
    }

    fn node_types(&self) -> &[u16] {
        &self.types
    }

    fn node_ids(&self) -> &NodeIds {
        &self.ids
    }

    fn for_each_edges(&self, pass: &str, visit: &mut VisitEdges<'_>) -> Result<()> {
        self.passes.borrow_mut().push(pass.into());
        self.graph.edges.chunks(self.chunk).try_for_each(visit)
    }

    fn accumulate(&self, pass: &str, _: &[AtomicU32], visit: &AddEdges<'_>) -> Result<()> {
        self.passes.borrow_mut().push(pass.into());
        // Last chunk first: the order must not matter.
        self.graph.edges.chunks(self.chunk).rev().for_each(visit);
        Ok(())
    }

    fn count_keys(&self, pass: &str, _: u64, key: &EdgeKey<'_>, consume: &mut ConsumeKeys<'_>) -> Result<()> {
        self.passes.borrow_mut().push(pass.into());
        let mut counts = BTreeMap::new();
        for key in self.graph.edges.iter().filter_map(|&(src, dst)| key(src, dst)) {
            *counts.entry(key).or_insert(0) += 1;
        }
        counts.into_iter().collect::<Vec<_>>().chunks(self.chunk).try_for_each(consume)
    }

    fn once(&self, pass: &str, work: &mut dyn FnMut() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
        self.passes.borrow_mut().push(pass.into());
        work()
    }

    fn load(&self, name: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.saved.borrow().get(name).cloned())
    }

    fn save(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.saved.borrow_mut().insert(name.into(), bytes.to_vec());
        Ok(())
    }
}

/// Recomputes the checksums in the manifest of the prepared dataset `dir` from its current files. Tests use it for
/// damage that checksums must not find.
///
/// # Errors
/// When a file cannot be read or written, or the manifest is not one.
///
/// # Panics
/// When a file is shorter than its headers.
pub fn reseal(dir: &Path) -> Result<()> {
    let mut manifest = Manifest::read(dir)?;
    for (number, part) in manifest.partitions.iter_mut().enumerate() {
        let files = [
            (FileKind::Topology, Some(&mut part.topology)),
            (FileKind::Nodes, Some(&mut part.node_columns)),
            (FileKind::Features, part.features.as_mut()),
            (FileKind::Halo, part.halo.as_mut()),
        ];
        for (kind, info) in files {
            let Some(info) = info else { continue };
            let path = dir.join(format!("part-{number:05}")).join(kind.name());
            let bytes = std::fs::read(&path).map_err(Error::io(&path, "read"))?;
            let (start, end) = (info.body.0 as usize, info.body.1 as usize);
            let headers = [&bytes[..start], &bytes[end..]].concat();
            *info = FileInfo {
                bytes: bytes.len() as u64,
                crc32: crc32fast::hash(&bytes),
                headers_crc32: crc32fast::hash(&headers),
                ..*info
            };
        }
    }
    let path = dir.join(Manifest::FILE);
    std::fs::write(&path, manifest.to_json()?).map_err(Error::io(&path, "write"))
}

/// In-neighbors of every node, in ascending order.
pub type Adjacency = Vec<Vec<u32>>;

/// Returns a graph of `nodes` nodes with 0 to `most` in-edges each. Self-loops and multi-edges occur. The last node has
/// all nodes as in-neighbors.
pub fn random_graph(nodes: u32, most: u64) -> Adjacency {
    let key = Key::new(u64::from(nodes), Purpose::GenerateEdges);
    let mut graph: Adjacency = (0..nodes)
        .map(|v| {
            let key = key.fold(u64::from(v));
            let mut neighbors: Vec<u32> =
                (1..=key.below(0, most + 1)).map(|i| key.below(i, u64::from(nodes)) as u32).collect();
            neighbors.sort_unstable();
            neighbors
        })
        .collect();
    if let Some(hub) = graph.last_mut() {
        *hub = (0..nodes).collect();
    }
    graph
}

/// Returns the 0.999 quantile of the chi-square distribution (Wilson–Hilferty approximation).
pub fn chi_square_limit(freedom: f64) -> f64 {
    let spread = 2.0 / (9.0 * freedom);
    freedom * (1.0 - spread + 3.09 * spread.sqrt()).powi(3)
}
