//! Finds the sources and destinations (ends) of edges. With a dictionary on disk, one additional pass looks up all ids.
//!
//! That pass is a [join](crate::ids). Each process stores the ids of its own units and looks them up. The result is a file with the node
//! rows of both ends of edge row `r` at byte `8 r`, which later passes read.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::journal::Journal;
use crate::dump::{EdgeChunk, EdgeReader};
use crate::error::{Error, Result};
use crate::group::{Destination, ProcessGroup};
use crate::ids::{Groups, Join, NodeIds, UNKNOWN, read_rows};
use crate::progress::Progress;
use crate::source::UnknownNodes;

/// Name of the pass in the journal, and of its file.
const ENDS: &str = "ends";

/// The ends of all edges, on disk.
pub(super) struct Ends {
    path: PathBuf,
    file: File,
    /// Number of rows of the dump that name an unknown node.
    unknown: u64,
}

impl Ends {
    /// Looks up the ends of all edges. Returns `None` if the dictionary is in memory, because other passes then look ids up.
    ///
    /// # Errors
    /// Errors of files, or the first edge of this process with an unknown node unless `policy` is [`UnknownNodes::Drop`].
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
        if let Some(unknown) = journal.completed::<u64>(ENDS)? {
            let file = File::open(&path).map_err(Error::io(&path, "open"))?;
            return Ok(Some(Self { path, file, unknown }));
        }
        let open = File::options().create(true).truncate(true).read(true).write(true).open(&path);
        let file = open.map_err(Error::io(&path, "create"))?;
        progress.stage("sorting ids of edges", Some(edges.rows()), "edges");
        let mut join = ids.join(&groups)?;
        add_ends(processes, edges, &groups, &mut join, progress)?;
        progress.done();
        progress.stage("looking up ids", None, "");
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

    /// Number of rows of the dump that name an unknown node, in all processes.
    pub(super) fn unknown_rows(&self) -> u64 {
        self.unknown
    }

    /// Opens the file once more. If no row names an unknown node, it equals the file of all pairs.
    pub(super) fn open_file(&self) -> Result<(PathBuf, File)> {
        Ok((self.path.clone(), File::open(&self.path).map_err(Error::io(&self.path, "open"))?))
    }

    /// Returns the rows of both ends, one after another, of `count` edges from `first` on.
    pub(super) fn rows(&self, first: u64, count: usize) -> Result<Vec<u32>> {
        read_rows((&self.file, &self.path), 2 * first, 2 * count)
    }
}

/// Adds both ends of every edge of this process to `join`. Those of row `r` have positions `2 r` and `2 r + 1`.
pub(super) fn add_ends<C: ProcessGroup>(
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

/// Returns the error for the unknown end at `position`.
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

/// Finds the nodes of edges.
#[derive(Clone, Copy)]
pub(super) struct FindEnds<'a> {
    pub(super) edges: &'a EdgeReader,
    pub(super) ids: &'a NodeIds,
    /// The ends of all edges, if the dictionary is on disk.
    pub(super) ends: Option<&'a Ends>,
    pub(super) policy: UnknownNodes,
}

impl FindEnds<'_> {
    /// Returns the node indexes of both ends of the edges of a chunk; [`UNKNOWN`] for unknown nodes, if the policy is to drop their edges,
    /// and for dropped nodes.
    pub(super) fn indexes(&self, chunk: &EdgeChunk) -> Result<[Vec<u32>; 2]> {
        let mut found = match self.ends {
            None => [self.ids.rows_of(&chunk.src)?, self.ids.rows_of(&chunk.dst)?],
            Some(ends) => {
                let rows = ends.rows(chunk.first_row, chunk.src.len())?;
                [0, 1].map(|side| rows.iter().skip(side).step_by(2).copied().collect())
            }
        };
        if self.ids.has_dropped() {
            // The pass before nodes were dropped has already found unknown ids.
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

    /// Returns those pairs of a chunk whose ends are known. The policy decides whether other edges are errors.
    pub(super) fn pairs(&self, chunk: &EdgeChunk) -> Result<Vec<(u32, u32)>> {
        let [src, dst] = self.indexes(chunk)?;
        Ok(src.into_iter().zip(dst).filter(|&(src, dst)| src != UNKNOWN && dst != UNKNOWN).collect())
    }
}
