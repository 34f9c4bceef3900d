//! The dump as partitioners see it.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;

use crate::dump::{EdgeChunk, EdgeReader};
use crate::error::{Error, Result};
use crate::id_map::IdMap;
use crate::partitioner::{AddEdges, ConsumeKeys, EdgeKey, GraphStream, VisitEdges};
use crate::progress::Progress;

/// Edges in index space, read anew for every visit.
pub(super) struct DumpStream<'a> {
    pub(super) edges: &'a EdgeReader,
    pub(super) ids: &'a IdMap,
    pub(super) splits: &'a [u8],
    pub(super) undirected: bool,
    pub(super) progress: &'a dyn Progress,
}

impl GraphStream for DumpStream<'_> {
    fn num_nodes(&self) -> u64 {
        self.ids.len() as u64
    }

    fn num_edges(&self) -> u64 {
        self.edges.rows()
    }

    fn undirected(&self) -> bool {
        self.undirected
    }

    fn splits(&self) -> &[u8] {
        self.splits
    }

    fn node_types(&self) -> &[u16] {
        &[]
    }

    fn for_each_edges(&self, pass: &str, visit: &mut VisitEdges<'_>) -> Result<()> {
        let pairs = |chunk: EdgeChunk| {
            let [src, dst] = ends(&chunk, self.edges, self.ids)?;
            Ok(src.into_iter().zip(dst).collect::<Vec<_>>())
        };
        self.progress.stage(pass, Some(self.num_edges()), "edges");
        self.edges.for_each_pair(pairs, |pairs| {
            visit(&pairs)?;
            self.progress.advance(pairs.len() as u64);
            Ok(())
        })?;
        self.progress.done();
        Ok(())
    }

    fn accumulate(&self, pass: &str, _: &[AtomicU32], visit: &AddEdges<'_>) -> Result<()> {
        self.for_each_edges(pass, &mut |edges| {
            visit(edges);
            Ok(())
        })
    }

    fn count_keys(&self, pass: &str, _: u64, key: &EdgeKey<'_>, consume: &mut ConsumeKeys<'_>) -> Result<()> {
        let mut counts = BTreeMap::new();
        self.for_each_edges(pass, &mut |edges| {
            for key in edges.iter().filter_map(|&(src, dst)| key(src, dst)) {
                *counts.entry(key).or_insert(0) += 1;
            }
            Ok(())
        })?;
        counts.into_iter().collect::<Vec<_>>().chunks(4096).try_for_each(consume)
    }

    fn once(&self, pass: &str, work: &mut dyn FnMut() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
        self.progress.stage(pass, None, "");
        let result = work();
        self.progress.done();
        result
    }

    fn kept(&self, _: &str) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn keep(&self, _: &str, _: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// The node indexes of both ends of the edges of a chunk.
pub(super) fn ends(chunk: &EdgeChunk, edges: &EdgeReader, ids: &IdMap) -> Result<[Vec<u32>; 2]> {
    let [src, dst] = [(&chunk.src, 0), (&chunk.dst, 1)].map(|(column, which)| {
        ids.indexes(column).map_err(|row| {
            let place = chunk.origin.place(row, edges.end_names()[which]);
            (row, Error::UnknownNode { place, id: column.show(row) })
        })
    });
    match (src, dst) {
        (Ok(src), Ok(dst)) => Ok([src, dst]),
        (Err((at, error)), Err((other, _))) if at <= other => Err(error),
        (_, Err((_, error))) | (Err((_, error)), _) => Err(error),
    }
}
