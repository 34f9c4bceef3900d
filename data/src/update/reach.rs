//! Finds the nodes that an update affects, and writes the file that lists them.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use rayon::prelude::*;

use crate::dataset::{Dataset, IdColumn, IdKind, Topology};
use crate::error::{Error, Result};

/// Rows per record batch.
const ROWS: usize = 1 << 16;

/// Returns the nodes of `dataset` whose `hops`-hop in-neighborhood has changed, ascending, each with the smallest such
/// number of hops. `features` are the nodes with other features, which are affected with 0 hops, and `edges` those with
/// other in-edges; both ascend.
///
/// Topologies hold in-edges. In an undirected graph these are the out-edges, too. In a directed graph, every hop reads all
/// topologies, except the first one if no features have changed.
pub(super) fn affected(dataset: &Dataset, features: &[u32], edges: &[u32], hops: u32) -> Result<Vec<(u32, u32)>> {
    let (book, n) = (dataset.book(), dataset.manifest().nodes as usize);
    let mut visited = Bits::new(n);
    for &node in features {
        visited.insert(node);
    }
    let mut nodes: Vec<(u32, u32)> = features.iter().map(|&node| (node, 0)).collect();
    let mut topologies: Vec<Option<Topology>> = vec![None; book.parts()];
    let mut frontier: Vec<u32> = features.to_vec();
    for step in 1..=hops {
        let mut next = Vec::new();
        if step == 1 {
            next.extend(edges.iter().filter(|&&node| visited.insert(node)));
        }
        let mut reach = |dst: u32| {
            if visited.insert(dst) {
                next.push(dst);
            }
        };
        if dataset.manifest().undirected {
            for &src in &frontier {
                let part = book.owner(u64::from(src)).ok_or_else(|| Error::Bug("a node without a partition".into()))?;
                if topologies[part].is_none() {
                    topologies[part] = Some(dataset.topology(part)?);
                }
                let local = (u64::from(src) - book.range(part).start) as usize;
                let list = topologies[part].as_ref().map_or(&[][..], |topology| topology.neighbors(local));
                list.iter().for_each(|&dst| reach(dst));
            }
        } else if !frontier.is_empty() {
            let mut from = Bits::new(n);
            for &node in &frontier {
                from.insert(node);
            }
            for part in 0..book.parts() {
                let topology = dataset.topology(part)?;
                let first = book.range(part).start as u32;
                let reads = |local: &usize| topology.neighbors(*local).iter().any(|&src| from.get(src));
                let found: Vec<usize> = (0..topology.num_nodes()).into_par_iter().filter(reads).collect();
                found.into_iter().for_each(|local| reach(first + local as u32));
            }
        }
        if next.is_empty() {
            break;
        }
        nodes.extend(next.iter().map(|&node| (node, step)));
        frontier = next;
    }
    nodes.sort_unstable();
    Ok(nodes)
}

/// A set of nodes.
struct Bits(Vec<u64>);

impl Bits {
    fn new(nodes: usize) -> Self {
        Self(vec![0; nodes / 64 + 1])
    }

    fn get(&self, node: u32) -> bool {
        self.0[node as usize / 64] & (1 << (node % 64)) != 0
    }

    /// Adds a node. Returns whether it is new.
    fn insert(&mut self, node: u32) -> bool {
        let new = !self.get(node);
        self.0[node as usize / 64] |= 1 << (node % 64);
        new
    }
}

/// Writes the columns `node_id` (the user's ids) and `hops`, in the order of the dataset.
pub(super) fn write(dataset: &Dataset, affected: &[(u32, u32)], path: &Path) -> Result<()> {
    let id = match dataset.manifest().ids {
        IdKind::Int => DataType::Int64,
        IdKind::Text => DataType::Utf8,
    };
    let schema = Schema::new(vec![Field::new("node_id", id, false), Field::new("hops", DataType::Int32, false)]);
    let schema = Arc::new(schema);
    let failed = |error: parquet::errors::ParquetError| match error {
        parquet::errors::ParquetError::External(error) => match error.downcast::<std::io::Error>() {
            Ok(error) => Error::io(path, "write")(*error),
            Err(error) => Error::Bug(error.to_string()),
        },
        error => Error::io(path, "write")(std::io::Error::other(error.to_string())),
    };
    let file = File::create(path).map_err(Error::io(path, "create"))?;
    let handle = file.try_clone().map_err(Error::io(path, "write"))?;
    let mut writer = ArrowWriter::try_new(file, schema.clone(), None).map_err(failed)?;
    let mut rest = affected;
    for part in 0..dataset.book().parts() {
        let range = dataset.book().range(part);
        let own = rest.partition_point(|(node, _)| u64::from(*node) < range.end);
        let (own, after) = rest.split_at(own);
        rest = after;
        if own.is_empty() {
            continue;
        }
        let nodes = dataset.nodes(part)?;
        for rows in own.chunks(ROWS) {
            let locals = rows.iter().map(|(node, _)| (u64::from(*node) - range.start) as usize);
            let ids: ArrayRef = match nodes.ids() {
                IdColumn::Int(ids) => Arc::new(Int64Array::from_iter_values(locals.map(|local| ids[local]))),
                IdColumn::Text(ids) => Arc::new(StringArray::from_iter_values(locals.map(|local| ids.value(local)))),
            };
            let hops = Int32Array::from_iter_values(rows.iter().map(|(_, hops)| *hops as i32));
            let batch = RecordBatch::try_new(schema.clone(), vec![ids, Arc::new(hops)]);
            writer.write(&batch.map_err(|e| Error::Bug(e.to_string()))?).map_err(failed)?;
        }
    }
    writer.close().map_err(failed)?;
    handle.sync_all().map_err(Error::io(path, "flush"))
}
