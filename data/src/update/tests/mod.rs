//! Compares updates with preparations of the changed dump.

mod atomic;
mod bad_input;
mod equal;
mod values;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Int64Array, StringArray, UInt16Array};

use super::*;
use crate::dataset::{Dataset, part_folder};
use crate::partitioner::{Assignment, Goal, GraphStream, Partitioner};
use crate::prepare::{PrepareSettings, prepare};
use crate::progress::Silent;
use crate::rng::{Key, Purpose};
use crate::source::{Columns, GraphSource};
use crate::testing::{IdStyle, TestGraph, float_lists, write_parquet};

/// A row of an edge table: both ends, and a number from which all other columns follow.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Row {
    src: u32,
    dst: u32,
    stamp: usize,
}

impl Row {
    fn edge_type(&self) -> String {
        format!("t{}", self.stamp % 3)
    }
}

/// How often the values of each node have changed.
#[derive(Clone, Debug, Default)]
struct Versions {
    features: BTreeMap<u32, u32>,
    /// Of labels and splits.
    labels: BTreeMap<u32, u32>,
}

/// A dump in memory.
#[derive(Clone, Debug)]
struct Dump {
    nodes: Vec<u32>,
    versions: Versions,
    rows: Vec<Row>,
}

impl Dump {
    fn of(graph: &TestGraph) -> Self {
        let rows = graph.edges.iter().enumerate().map(|(stamp, &(src, dst))| Row { src, dst, stamp });
        Self { nodes: (0..graph.nodes).collect(), versions: Versions::default(), rows: rows.collect() }
    }

    /// Writes the dump. Returns a source without edge columns.
    fn write(&self, dir: &Path, ids: IdStyle) -> GraphSource {
        std::fs::create_dir_all(dir).unwrap();
        let (nodes, edges) = (dir.join("nodes.parquet"), dir.join("edges.parquet"));
        write_columns(&nodes, ids, &self.nodes, &self.versions, |_| true);
        write_rows(&edges, ids, &self.rows);
        let columns = Columns {
            features: vec!["x".into()],
            label: Some("label".into()),
            split: Some("split".into()),
            node_type: Some("kind".into()),
            ..Columns::default()
        };
        GraphSource { columns, num_classes: Some(3), ..GraphSource::new(nodes, edges) }
    }
}

fn write_nodes(path: &Path, ids: IdStyle, nodes: std::ops::Range<u32>) {
    write_columns(path, ids, &nodes.collect::<Vec<_>>(), &Versions::default(), |_| true);
}

/// Writes the columns of `nodes` for which `which` returns true.
fn write_columns(path: &Path, ids: IdStyle, nodes: &[u32], versions: &Versions, which: impl Fn(&str) -> bool) {
    let of = |versions: &BTreeMap<u32, u32>, node: u32| versions.get(&node).copied().unwrap_or(0);
    let row = |&v: &u32| vec![v as f32, v as f32 / 2.0, of(&versions.features, v) as f32 - 1.0];
    let features: Vec<Vec<f32>> = nodes.iter().map(row).collect();
    let labels: Vec<u32> = nodes.iter().map(|&v| v + of(&versions.labels, v)).collect();
    let split = |v: &u32| Some(["train", "val", "test", "none"][*v as usize % 4]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("node_id", ids.ids(nodes.iter().copied())),
        ("x", float_lists(&features)),
        ("label", Arc::new(labels.iter().map(|v| i64::from(v % 4) - 1).collect::<Int64Array>())),
        ("split", Arc::new(labels.iter().map(split).collect::<StringArray>())),
        ("kind", Arc::new(nodes.iter().map(|v| *v as u16 % 5).collect::<UInt16Array>())),
    ];
    write_parquet(path, columns.into_iter().filter(|(name, _)| *name == "node_id" || which(name)).collect(), 16);
}

fn write_rows(path: &Path, ids: IdStyle, rows: &[Row]) {
    let float = |f: fn(usize) -> f32| Arc::new(rows.iter().map(|row| f(row.stamp)).collect::<Float32Array>());
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("src", ids.ids(rows.iter().map(|row| row.src))),
        ("dst", ids.ids(rows.iter().map(|row| row.dst))),
        ("weight", float(|stamp| 0.25 + stamp as f32)),
        ("etype", Arc::new(rows.iter().map(|row| Some(row.edge_type())).collect::<StringArray>())),
        ("ts", Arc::new(rows.iter().map(|row| 1000 + row.stamp as i64).collect::<Int64Array>())),
        ("up", float(|stamp| stamp as f32 + 0.5)),
        ("down", float(|stamp| -(stamp as f32))),
    ];
    write_parquet(path, columns, 64);
}

/// Returns `columns` with all edge columns.
fn with_edge_columns(columns: Columns) -> Columns {
    Columns {
        weight: Some("weight".into()),
        edge_type: Some("etype".into()),
        time: Some("ts".into()),
        edge_features: vec!["up".into(), "down".into()],
        ..columns
    }
}

/// Assigns the given parts.
struct Given(Vec<u16>);

impl Partitioner for Given {
    fn name(&self) -> &str {
        "given"
    }

    fn assign(&self, _: &dyn GraphStream, _: &Goal) -> crate::Result<Assignment> {
        Ok(Assignment::Stored(self.0.clone()))
    }
}

/// Returns the first partition of a node. Partition sizes are uneven.
fn part_of(node: u32, parts: u32) -> u16 {
    (Key::new(4, Purpose::GenerateNodes).below(u64::from(node), u64::from(parts)) as u32).min(parts - 1) as u16
}

fn settings(out: &Path, parts: u32) -> PrepareSettings {
    PrepareSettings { memory: 64 << 20, halo_features: true, ..PrepareSettings::new(out, parts) }
}

fn prepared(source: &GraphSource, parts_of: Vec<u16>, out: &Path, parts: u32) -> Dataset {
    prepare(source, &Given(parts_of), &settings(out, parts), &Silent).unwrap();
    Dataset::open(out).unwrap()
}

/// Returns the bytes of all Arrow files.
fn bytes(dataset: &Path, parts: u32) -> Vec<(PathBuf, Vec<u8>)> {
    let names = ["topology.arrow", "nodes.arrow", "features.arrow", "halo.arrow"];
    let files = (0..parts as usize).flat_map(|part| names.map(|name| Path::new(&part_folder(part)).join(name)));
    let existing = files.filter(|file| dataset.join(file).exists());
    existing.map(|file| (file.clone(), std::fs::read(dataset.join(&file)).unwrap())).collect()
}

fn in_place(dataset: &Path, batches: &[Batch]) -> crate::Result<Updated> {
    update(dataset, batches, &UpdateSettings::default(), &Silent)
}
