//! The edges as pairs of node indexes on disk, so that a dump is decoded once however many passes a partitioner makes.
//!
//! Every process keeps the pairs of its own units (row groups), each at the place that its row number gives: eight bytes an
//! edge, written and read by position, never mapped, so that they count as the system's cache and not as this process's memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::crew::{Crew, To};
use super::stream::known_pairs;
use crate::dump::EdgeReader;
use crate::error::{Error, Result};
use crate::id_map::IdMap;
use crate::progress::Progress;
use crate::source::UnknownNodes;

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
}

impl Pairs {
    /// Where they lie in the scratch folder.
    pub(super) fn path(scratch: &Path, rank: usize) -> PathBuf {
        scratch.join(format!("pairs-{rank}"))
    }

    /// Reads the dump, and writes its pairs.
    pub(super) fn write<C: Crew>(
        crew: &C,
        edges: &EdgeReader,
        ids: &IdMap,
        unknown: UnknownNodes,
        scratch: &Path,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let path = Self::path(scratch, crew.rank());
        let open = File::options().create(true).truncate(true).read(true).write(true).open(&path);
        let file = open.map_err(Error::io(&path, "create"))?;
        let mut units = Vec::with_capacity(edges.units());
        let mut start = 0;
        for unit in 0..edges.units() {
            units.push(Stretch { start, count: 0 });
            start += edges.unit_rows(unit);
        }
        progress.stage("reading edges", Some(edges.rows()), "edges");
        let produce = |unit: usize, send: &mut dyn FnMut(To, Vec<u64>) -> bool| {
            let mut count = 0;
            let mut failed = None;
            edges.read_pairs(unit, |chunk| known_pairs(&chunk, edges, ids, unknown), &mut |pairs: Vec<(
                u32,
                u32,
            )>| {
                let words: Vec<u64> = pairs.iter().map(|&(src, dst)| word(src, dst)).collect();
                let at = 8 * (units[unit].start + count);
                failed = file.write_all_at(bytemuck::cast_slice(&words), at).map_err(Error::io(&path, "write")).err();
                count += words.len() as u64;
                failed.is_none()
            })?;
            failed.map_or(Ok(()), Err)?;
            send(To::All, vec![count]);
            Ok(())
        };
        let mut counts = vec![0; units.len()];
        crew.pass(edges.units(), &produce, &mut |unit, count: Vec<u64>| {
            counts[unit] = count[0];
            progress.advance(edges.unit_rows(unit));
            Ok(())
        })?;
        progress.done();
        units.iter_mut().zip(counts).for_each(|(unit, count)| unit.count = count);
        Ok(Self { path, file, units })
    }

    /// Opens what an earlier preparation wrote.
    pub(super) fn open(scratch: &Path, rank: usize, units: Vec<Stretch>) -> Result<Self> {
        let path = Self::path(scratch, rank);
        let file = File::open(&path).map_err(Error::io(&path, "open"))?;
        Ok(Self { path, file, units })
    }

    /// What [`Pairs::open`] needs to know.
    pub(super) fn stretches(&self) -> &[Stretch] {
        &self.units
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

fn word(src: u32, dst: u32) -> u64 {
    u64::from(dst) << 32 | u64::from(src)
}
