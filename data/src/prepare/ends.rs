//! The nodes that edges join: ids looked up in the dictionary, at once or, when it is on disk, by a pass of its own.
//!
//! That pass is a [join](crate::ids): each process spools the ends of its own units, looks them up, and leaves a file with the
//! rows of both ends of row `r` of the edges at byte `8 r`. Whatever needs them afterwards reads them there.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::journal::Journal;
use crate::dump::{EdgeChunk, EdgeReader};
use crate::error::{Error, Result};
use crate::group::{Destination, ProcessGroup};
use crate::ids::{Groups, Join, NodeIds, UNKNOWN, read_rows};
use crate::progress::Progress;
use crate::source::UnknownNodes;

/// Name of the pass in the journal, and of the file.
const ENDS: &str = "ends";

/// The ends of all edges, on disk.
pub(super) struct Ends {
    path: PathBuf,
    file: File,
    /// Rows of the dump that name an unknown node.
    unknown: u64,
}

impl Ends {
    /// Looks all ends up; `None` when the dictionary is in memory, where that is done at the edge.
    ///
    /// # Errors
    /// Besides what can go wrong with files: the first edge of this process that names an unknown node, if the policy is to fail.
    pub(super) fn look_up<C: ProcessGroup>(
        processes: &C,
        edges: &EdgeReader,
        ids: &NodeIds,
        policy: UnknownNodes,
        (scratch, journal): (&Path, &Journal),
        progress: &dyn Progress,
    ) -> Result<Option<Self>> {
        let Some(groups) = ids.groups() else { return Ok(None) };
        let path = scratch.join(format!("{ENDS}-{}", processes.rank()));
        if let Some(unknown) = journal.agreed::<u64>(ENDS)? {
            let file = File::open(&path).map_err(Error::io(&path, "open"))?;
            return Ok(Some(Self { path, file, unknown }));
        }
        let open = File::options().create(true).truncate(true).read(true).write(true).open(&path);
        let file = open.map_err(Error::io(&path, "create"))?;
        progress.stage("sorting ids of edges", Some(edges.rows()), "edges");
        let mut join = ids.join(&groups)?;
        ask_ends(processes, edges, &groups, &mut join, progress)?;
        progress.done();
        progress.stage("looking ids up", None, "");
        let mut unknown = 0;
        join.write_rows((&file, &path), |first, rows| {
            if let Some(end) = rows.iter().position(|&row| row == UNKNOWN).filter(|_| policy != UnknownNodes::Drop) {
                return Err(error_at(edges, first + end as u64)?);
            }
            unknown += rows.chunks_exact(2).filter(|ends| ends.contains(&UNKNOWN)).count() as u64;
            Ok(())
        })?;
        let unknown = processes.all_gather(vec![unknown])?.into_iter().flatten().sum();
        progress.done();
        journal.finish(ENDS, &unknown)?;
        Ok(Some(Self { path, file, unknown }))
    }

    /// Rows of the dump that name an unknown node, in all processes.
    pub(super) fn unknown_rows(&self) -> u64 {
        self.unknown
    }

    /// Another handle on the file: as long as no row names an unknown node, it is that of all pairs.
    pub(super) fn open_file(&self) -> Result<(PathBuf, File)> {
        Ok((self.path.clone(), File::open(&self.path).map_err(Error::io(&self.path, "open"))?))
    }

    /// The rows of both ends, one after the other, of `count` edges from `first` on.
    pub(super) fn rows(&self, first: u64, count: usize) -> Result<Vec<u32>> {
        read_rows((&self.file, &self.path), 2 * first, 2 * count)
    }
}

/// Asks `join` for both ends of every edge of this process: those of row `r` are at positions `2 r` and `2 r + 1`.
pub(super) fn ask_ends<C: ProcessGroup>(
    processes: &C,
    edges: &EdgeReader,
    groups: &Groups,
    join: &mut Join<'_>,
    progress: &dyn Progress,
) -> Result<()> {
    let rank = processes.rank();
    let produce = |unit: usize, send: &mut dyn FnMut(Destination, Vec<u8>) -> bool| {
        let sort = |chunk: EdgeChunk| {
            let message = groups.sort(2 * chunk.first_row, &[&chunk.src, &chunk.dst]);
            Ok((chunk.src.len() as u64, message))
        };
        edges.read_pairs(unit, sort, &mut |(rows, message)| {
            progress.advance(rows);
            send(Destination::Rank(rank), message)
        })
    };
    processes.exchange(edges.units(), &produce, &mut |_, message: Vec<u8>| join.add(&message))
}

/// The error for the unknown end at a position.
fn error_at(edges: &EdgeReader, position: u64) -> Result<Error> {
    let (row, side) = (position / 2, position as usize % 2);
    let (mut unit, mut before) = (0, 0);
    while before + edges.unit_rows(unit) <= row {
        before += edges.unit_rows(unit);
        unit += 1;
    }
    let mut error = None;
    let find = |chunk: EdgeChunk| {
        let inside = (chunk.first_row..chunk.first_row + chunk.src.len() as u64).contains(&row);
        Ok(inside.then(|| unknown_node(&chunk, edges, (row - chunk.first_row) as usize, side)))
    };
    edges.read_pairs(unit, find, &mut |found| {
        error = found;
        error.is_none()
    })?;
    error.ok_or_else(|| Error::Bug(format!("row {row} is not in its unit")))
}

fn unknown_node(chunk: &EdgeChunk, edges: &EdgeReader, row: usize, side: usize) -> Error {
    let place = chunk.origin.place(row, edges.end_names()[side]);
    Error::UnknownNode { place, id: [&chunk.src, &chunk.dst][side].show(row) }
}

/// What finds the nodes of edges.
#[derive(Clone, Copy)]
pub(super) struct FindEnds<'a> {
    pub(super) edges: &'a EdgeReader,
    pub(super) ids: &'a NodeIds,
    /// Where they are, when the dictionary is on disk.
    pub(super) ends: Option<&'a Ends>,
    pub(super) policy: UnknownNodes,
}

impl FindEnds<'_> {
    /// The node indexes of both ends of the edges of a chunk; [`UNKNOWN`] where the policy is to drop such edges, or nodes were
    /// dropped.
    pub(super) fn indexes(&self, chunk: &EdgeChunk) -> Result<[Vec<u32>; 2]> {
        let mut found = match self.ends {
            None => [self.ids.rows_of(&chunk.src)?, self.ids.rows_of(&chunk.dst)?],
            Some(ends) => {
                let rows = ends.rows(chunk.first_row, chunk.src.len())?;
                [0, 1].map(|side| rows.iter().skip(side).step_by(2).copied().collect())
            }
        };
        if self.ids.has_dropped() {
            // Edges were read before nodes were dropped, too: what is unknown besides was found then.
            for row in found.iter_mut().flatten() {
                *row = self.ids.index_of_row(*row).unwrap_or(UNKNOWN);
            }
        } else if self.policy != UnknownNodes::Drop {
            let unknown = found.each_ref().map(|rows| rows.iter().position(|&row| row == UNKNOWN));
            let first = (0..).zip(unknown).filter_map(|(side, row)| Some((row?, side))).min();
            if let Some((row, side)) = first {
                return Err(unknown_node(chunk, self.edges, row, side));
            }
        }
        Ok(found)
    }

    /// The pairs of a chunk whose ends are known; what happens to the others is the policy's.
    pub(super) fn pairs(&self, chunk: &EdgeChunk) -> Result<Vec<(u32, u32)>> {
        let [src, dst] = self.indexes(chunk)?;
        Ok(src.into_iter().zip(dst).filter(|&(src, dst)| src != UNKNOWN && dst != UNKNOWN).collect())
    }
}
