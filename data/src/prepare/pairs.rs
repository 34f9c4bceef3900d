//! The edges as pairs of node indexes on disk, so that the dump is decoded once for any number of passes of a partitioner.
//!
//! Every process stores the pairs of its own units (row groups). The row number of an edge gives its position; a pair takes eight bytes.
//! The file is read and written by position, and never mapped, so that its pages do not count as this process's memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ends::{Ends, FindEnds};
use crate::error::{Error, Result};
use crate::group::{Destination, ProcessGroup};
use crate::ids::NodeIds;
use crate::progress::Progress;

/// Maximum number of pairs that are read in one call.
pub(super) const SLICE: usize = 1 << 15;

/// The position of the first pair of a unit, and the number of pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PairRange {
    start: u64,
    count: u64,
}

/// The pairs of all edges.
pub(super) struct Pairs {
    path: PathBuf,
    file: File,
    units: Vec<PairRange>,
    /// Whether the file is that of [`Ends`], all of which are known nodes.
    shared: bool,
}

impl Pairs {
    /// Returns the path of the pairs named `name` in the scratch folder.
    fn path(scratch: &Path, name: &str, rank: usize) -> PathBuf {
        scratch.join(format!("{name}-{rank}"))
    }

    /// Reads the dump, or the known ends of its edges, and writes the pairs.
    pub(super) fn write<C: ProcessGroup>(
        processes: &C,
        find: &FindEnds<'_>,
        (scratch, name): (&Path, &str),
        progress: &dyn Progress,
    ) -> Result<Self> {
        let edges = find.edges;
        let mut units = Vec::with_capacity(edges.units());
        let mut start = 0;
        for unit in 0..edges.units() {
            units.push(PairRange { start, count: 0 });
            start += edges.unit_rows(unit);
        }
        if let Some(ends) = find.ends.filter(|ends| ends.unknown_rows() == 0 && !find.ids.has_dropped()) {
            let (path, file) = ends.open_file()?;
            units.iter_mut().zip(0..).for_each(|(range, unit)| range.count = edges.unit_rows(unit));
            return Ok(Self { path, file, units, shared: true });
        }
        progress.stage("reading edges", Some(edges.rows()), "edges");
        let starts = units.clone();
        let read = |unit: usize, write: &mut dyn FnMut(Vec<(u32, u32)>) -> Result<()>| match find.ends {
            Some(ends) => known_ends(ends, find.ids, starts[unit].start, edges.unit_rows(unit), write),
            None => {
                let mut failed = None;
                edges.read_pairs(unit, |chunk| find.pairs(&chunk), &mut |pairs| {
                    failed = write(pairs).err();
                    failed.is_none()
                })?;
                failed.map_or(Ok(()), Err)
            }
        };
        Self::write_units(processes, Self::path(scratch, name, processes.rank()), units, &read, &|unit| {
            progress.advance(edges.unit_rows(unit));
        })
        .inspect(|_| progress.done())
    }

    /// Writes those pairs whose source and destination both remain in `ids`, with their new indexes.
    pub(super) fn filter<C: ProcessGroup>(
        &self,
        processes: &C,
        ids: &NodeIds,
        (scratch, name): (&Path, &str),
        progress: &dyn Progress,
    ) -> Result<Self> {
        progress.stage("dropping edges", Some(self.len()), "edges");
        let read = |unit: usize, write: &mut dyn FnMut(Vec<(u32, u32)>) -> Result<()>| {
            let mut pairs = Vec::new();
            self.slices(unit).try_for_each(|slice| {
                self.read(slice, &mut pairs)?;
                let remaining = |&(src, dst): &(u32, u32)| ids.index_of_row(src).zip(ids.index_of_row(dst));
                write(pairs.iter().filter_map(remaining).collect())
            })
        };
        let units = self.units.iter().map(|unit| PairRange { start: unit.start, count: 0 }).collect();
        Self::write_units(processes, Self::path(scratch, name, processes.rank()), units, &read, &|unit| {
            progress.advance(self.units[unit].count);
        })
        .inspect(|_| progress.done())
    }

    /// Writes the pairs that `read` returns for the units of this process. Sends their numbers to all processes.
    fn write_units<C: ProcessGroup>(
        processes: &C,
        path: PathBuf,
        mut units: Vec<PairRange>,
        read: &ReadUnit<'_>,
        done: &dyn Fn(usize),
    ) -> Result<Self> {
        let open = File::options().create(true).truncate(true).read(true).write(true).open(&path);
        let file = open.map_err(Error::io(&path, "create"))?;
        let produce = |unit: usize, send: &mut dyn FnMut(Destination, Vec<u64>) -> bool| {
            let mut count = 0;
            read(unit, &mut |pairs: Vec<(u32, u32)>| {
                let words: Vec<u64> = pairs.iter().map(|&(src, dst)| pack(src, dst)).collect();
                let at = 8 * (units[unit].start + count);
                count += words.len() as u64;
                file.write_all_at(bytemuck::cast_slice(&words), at).map_err(Error::io(&path, "write"))
            })?;
            send(Destination::All, vec![count]);
            Ok(())
        };
        let mut counts = vec![0; units.len()];
        processes.exchange(units.len(), &produce, &mut |unit, count: Vec<u64>| {
            counts[unit] = count[0];
            done(unit);
            Ok(())
        })?;
        units.iter_mut().zip(counts).for_each(|(unit, count)| unit.count = count);
        Ok(Self { path, file, units, shared: false })
    }

    /// Removes the file unless it is shared.
    pub(super) fn remove(self) -> Result<()> {
        if self.shared {
            return Ok(());
        }
        std::fs::remove_file(&self.path).map_err(Error::io(&self.path, "remove"))
    }

    /// Opens the pairs that an earlier preparation wrote.
    pub(super) fn open((scratch, name): (&Path, &str), rank: usize, units: Vec<PairRange>) -> Result<Self> {
        let path = Self::path(scratch, name, rank);
        let file = File::open(&path).map_err(Error::io(&path, "open"))?;
        Ok(Self { path, file, units, shared: false })
    }

    /// Returns the argument for [`Pairs::open`]; `None` if the file is shared.
    pub(super) fn ranges(&self) -> Option<&[PairRange]> {
        (!self.shared).then_some(&self.units)
    }

    pub(super) fn units(&self) -> usize {
        self.units.len()
    }

    /// Number of pairs in all processes.
    pub(super) fn len(&self) -> u64 {
        self.units.iter().map(|unit| unit.count).sum()
    }

    /// Returns the slices of a unit: the first pair and the number of pairs of each.
    pub(super) fn slices(&self, unit: usize) -> impl Iterator<Item = (u64, usize)> + use<> {
        let PairRange { start, count } = self.units[unit];
        (0..count).step_by(SLICE).map(move |at| (start + at, (count - at).min(SLICE as u64) as usize))
    }

    /// Reads a slice of a unit of this process as pairs `(source, destination)`.
    pub(super) fn read(&self, (start, count): (u64, usize), into: &mut Vec<(u32, u32)>) -> Result<()> {
        let mut words = vec![0u64; count];
        let bytes = bytemuck::cast_slice_mut(&mut words);
        self.file.read_exact_at(bytes, 8 * start).map_err(Error::io(&self.path, "read"))?;
        into.clear();
        into.extend(words.into_iter().map(|word| (word as u32, (word >> 32) as u32)));
        Ok(())
    }
}

/// Passes those pairs of `count` edges from row `first` on to `write` whose source and destination are known.
fn known_ends(
    ends: &Ends,
    ids: &NodeIds,
    first: u64,
    count: u64,
    write: &mut dyn FnMut(Vec<(u32, u32)>) -> Result<()>,
) -> Result<()> {
    (0..count).step_by(SLICE).try_for_each(|at| {
        let rows = ends.rows(first + at, (count - at).min(SLICE as u64) as usize)?;
        let known = |ends: &[u32]| ids.index_of_row(ends[0]).zip(ids.index_of_row(ends[1]));
        write(rows.chunks_exact(2).filter_map(known).collect())
    })
}

/// Passes the pairs of a unit in several calls to its second argument.
type ReadUnit<'a> = dyn Fn(usize, &mut dyn FnMut(Vec<(u32, u32)>) -> Result<()>) -> Result<()> + Sync + 'a;

fn pack(src: u32, dst: u32) -> u64 {
    u64::from(dst) << 32 | u64::from(src)
}
