//! The dump as partitioners see it.

use crate::dump::{EdgeChunk, EdgeReader};
use crate::error::{Error, Result};
use crate::id_map::IdMap;
use crate::partitioner::{GraphStream, VisitEdges};
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

    fn for_each_edges(&self, visit: &mut VisitEdges<'_>) -> Result<()> {
        let pairs = |chunk: EdgeChunk| {
            let [src, dst] = ends(&chunk, self.edges, self.ids)?;
            Ok(src.into_iter().zip(dst).collect::<Vec<_>>())
        };
        self.edges.for_each_pair(pairs, |pairs| {
            visit(&pairs)?;
            self.progress.advance(pairs.len() as u64);
            Ok(())
        })
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
