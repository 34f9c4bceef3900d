//! A small graph for link prediction.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Int64Array, ListArray, StringArray};
use arrow::datatypes::Float32Type;
use gnnflow_data::rng::{Key, Purpose};

use super::TestDir;

pub const NODES: u64 = 240;
/// The number of draws, including repeated edges and self-loops.
const EDGES: u64 = 2400;

/// A line of `[graph]` with the columns of edge types and splits.
pub const TYPED: &str = "columns = { edge_type = 'kind', edge_split = 'part' }";

/// An edge of the dump: source, destination, type, split.
pub type Row = (i64, i64, &'static str, &'static str);

/// Draws distinct edges, three in four within one of six groups of nodes. Node ids are 1000, 1001, …
fn edges(held_out: bool) -> Vec<Row> {
    let key = Key::new(5, Purpose::GenerateEdges);
    let mut seen = HashSet::new();
    let edge = |e: u64| {
        let (key, head) = (key.fold(e), key.below(e, NODES));
        let tail = if key.below(0, 4) < 3 { key.below(1, NODES / 6) * 6 + head % 6 } else { key.below(1, NODES) };
        let kind = ["likes", "knows"][key.below(2, 2) as usize];
        let split =
            ["train", "train", "train", "train", "val", "test"][if held_out { key.below(3, 6) as usize } else { 0 }];
        (1000 + head as i64, 1000 + tail as i64, kind, split)
    };
    (0..EDGES).map(edge).filter(|&(head, tail, ..)| head != tail && seen.insert((head, tail))).collect()
}

/// Returns 1 if both ends of an edge are in one group, else 0.
fn in_one_group(edge: &Row) -> i64 {
    i64::from((edge.0 - edge.1) % 6 == 0)
}

/// Writes a dump whose node features show the groups with noise. Returns the edges.
pub fn dump(place: &TestDir, held_out: bool) -> Vec<Row> {
    let key = Key::new(5, Purpose::GenerateNodes);
    let value = |v: u64, i: u64| 0.3 * key.fold(v).normal(i) as f32 + f32::from(u8::from(v % 6 == i));
    let rows = (0..NODES).map(|v| Some((0..8).map(move |i| Some(value(v, i)))));
    let kinds = (0..NODES).map(|v| ["a", "b"][usize::from(v >= 100)]);
    place.parquet(
        "nodes.parquet",
        vec![
            ("node_id", Arc::new(Int64Array::from_iter_values((0..NODES).map(|v| 1000 + v as i64)))),
            ("features", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))),
            ("kind", Arc::new(StringArray::from_iter_values(kinds))),
        ],
    );
    let edges = edges(held_out);
    let words = |word: &dyn Fn(&Row) -> &'static str| Arc::new(StringArray::from_iter_values(edges.iter().map(word)));
    place.parquet(
        "edges.parquet",
        vec![
            ("src", Arc::new(Int64Array::from_iter_values(edges.iter().map(|edge| edge.0)))),
            ("dst", Arc::new(Int64Array::from_iter_values(edges.iter().map(|edge| edge.1)))),
            ("kind", words(&|edge| edge.2)),
            ("part", words(&|edge| edge.3)),
            ("alike", Arc::new(Int64Array::from_iter_values(edges.iter().map(in_one_group)))),
        ],
    );
    edges
}
