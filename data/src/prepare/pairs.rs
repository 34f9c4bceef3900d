//! The edges as pairs of node indexes on disk, so that a dump is decoded once however many passes a partitioner makes.
//!
//! Every process keeps the pairs of its own units (row groups), each at the place that its row number gives: eight bytes an
//! edge, written and read by position, never mapped, so that they count as the system's cache and not as this process's memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ends::{Ends, FindEnds};
use crate::error::{Error, Result};
use crate::group::{Destination, ProcessGroup};
use crate::ids::NodeIds;
use crate::progress::Progress;

/// Pairs that are read at a time.
pub(super) const SLICE: usize = 1 << 15;

/// The pairs of one unit: where they begin, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stretch {
    start: u64,
    count: u64,
}

/// All pairs.
pub(super) struct Pairs {
    path: PathBuf,
    file: File,
    units: Vec<Stretch>,
    /// The file is that of the edges' ends, all of which are nodes.
    shared: bool,
}

impl Pairs {
    /// Where those called `name` lie in the scratch folder.
    fn path(scratch: &Path, name: &str, rank: usize) -> PathBuf {
        scratch.join(format!("{name}-{rank}"))
    }

    /// Reads the dump, or the ends of its edges where those have been looked up, and writes the pairs.
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
            units.push(Stretch { start, count: 0 });
            start += edges.unit_rows(unit);
        }
        if let Some(ends) = find.ends.filter(|ends| ends.unknown_rows() == 0 && !find.ids.has_dropped()) {
            let (path, file) = ends.open_file()?;
            units.iter_mut().zip(0..).for_each(|(stretch, unit)| stretch.count = edges.unit_rows(unit));
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
        Self::fill(processes, Self::path(scratch, name, processes.rank()), units, &read, &|unit| {
            progress.advance(edges.unit_rows(unit));
        })
        .inspect(|_| progress.done())
    }

    /// Those of the pairs whose ends are both among the rows of `ids` that were kept, by their new indexes.
    pub(super) fn keep<C: ProcessGroup>(
        &self,
        processes: &C,
        ids: &NodeIds,
        (scratch, name): (&Path, &str),
        progress: &dyn Progress,
    ) -> Result<Self> {
        progress.stage("leaving out edges", Some(self.len()), "edges");
        let read = |unit: usize, write: &mut dyn FnMut(Vec<(u32, u32)>) -> Result<()>| {
            let mut pairs = Vec::new();
            self.slices(unit).try_for_each(|slice| {
                self.read(slice, &mut pairs)?;
                let kept = |&(src, dst): &(u32, u32)| ids.index_of_row(src).zip(ids.index_of_row(dst));
                write(pairs.iter().filter_map(kept).collect())
            })
        };
        let units = self.units.iter().map(|unit| Stretch { start: unit.start, count: 0 }).collect();
        Self::fill(processes, Self::path(scratch, name, processes.rank()), units, &read, &|unit| {
            progress.advance(self.units[unit].count);
        })
        .inspect(|_| progress.done())
    }

    /// Writes what `read` gives for the units of this process, and tells everybody how much that was.
    fn fill<C: ProcessGroup>(
        processes: &C,
        path: PathBuf,
        mut units: Vec<Stretch>,
        read: &ReadUnit<'_>,
        done: &dyn Fn(usize),
    ) -> Result<Self> {
        let open = File::options().create(true).truncate(true).read(true).write(true).open(&path);
        let file = open.map_err(Error::io(&path, "create"))?;
        let produce = |unit: usize, send: &mut dyn FnMut(Destination, Vec<u64>) -> bool| {
            let mut count = 0;
            read(unit, &mut |pairs: Vec<(u32, u32)>| {
                let words: Vec<u64> = pairs.iter().map(|&(src, dst)| word(src, dst)).collect();
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

    /// Removes the file, unless others need it.
    pub(super) fn remove(self) -> Result<()> {
        if self.shared {
            return Ok(());
        }
        std::fs::remove_file(&self.path).map_err(Error::io(&self.path, "remove"))
    }

    /// Opens what an earlier preparation wrote.
    pub(super) fn open((scratch, name): (&Path, &str), rank: usize, units: Vec<Stretch>) -> Result<Self> {
        let path = Self::path(scratch, name, rank);
        let file = File::open(&path).map_err(Error::io(&path, "open"))?;
        Ok(Self { path, file, units, shared: false })
    }

    /// What [`Pairs::open`] needs to know; `None` when they have no file of their own.
    pub(super) fn stretches(&self) -> Option<&[Stretch]> {
        (!self.shared).then_some(&self.units)
    }

    /// Number of units.
    pub(super) fn units(&self) -> usize {
        self.units.len()
    }

    /// Number of pairs, of all processes.
    pub(super) fn len(&self) -> u64 {
        self.units.iter().map(|unit| unit.count).sum()
    }

    /// The slices of a unit: first pair and number of pairs of each.
    pub(super) fn slices(&self, unit: usize) -> impl Iterator<Item = (u64, usize)> + use<> {
        let Stretch { start, count } = self.units[unit];
        (0..count).step_by(SLICE).map(move |at| (start + at, (count - at).min(SLICE as u64) as usize))
    }

    /// Reads a slice of an own unit, `(source, destination)` after the other.
    pub(super) fn read(&self, (start, count): (u64, usize), into: &mut Vec<(u32, u32)>) -> Result<()> {
        let mut words = vec![0u64; count];
        let bytes = bytemuck::cast_slice_mut(&mut words);
        self.file.read_exact_at(bytes, 8 * start).map_err(Error::io(&self.path, "read"))?;
        into.clear();
        into.extend(words.into_iter().map(|word| (word as u32, (word >> 32) as u32)));
        Ok(())
    }
}

/// Gives the pairs among `count` edges from row `first` on whose ends are known to `write`.
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

/// Gives the pairs of a unit to its second argument, some at a time.
type ReadUnit<'a> = dyn Fn(usize, &mut dyn FnMut(Vec<(u32, u32)>) -> Result<()>) -> Result<()> + Sync + 'a;

fn word(src: u32, dst: u32) -> u64 {
    u64::from(dst) << 32 | u64::from(src)
}
