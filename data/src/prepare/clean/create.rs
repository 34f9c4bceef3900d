//! `unknown_nodes = "create"`: creates nodes for unknown ids of edges, after those of the dump, in ascending order of ids.
//!
//! One pass over source and destination ids. Each reading thread finds the unknown ids of its chunk; with a dictionary on disk, a join
//! finds those of a process. Every process gets all of them, sorts them (on disk if necessary), and writes them to a file. A resumed
//! preparation reuses that file, and a later pass copies it into the dataset.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::distinct::{Distinct, read_key, write_key};
use crate::dataset::IdKind;
use crate::dump::{EdgeChunk, EdgeReader};
use crate::error::{Error, Result};
use crate::group::{Destination, ProcessGroup};
use crate::ids::{Groups, Id, Ids, NodeIds, UNKNOWN};
use crate::prepare::ends::add_ends;
use crate::prepare::journal::Journal;
use crate::progress::Progress;

/// Name of the pass in the journal.
const CREATED: &str = "created";
/// Number of created ids per read.
pub(in crate::prepare) const BATCH: usize = 8192;
/// Approximate size of a message of ids in bytes.
const PIECE: usize = 128 << 10;

/// The inputs of the search for unknown ids.
pub(in crate::prepare) struct Search<'a, C> {
    pub(in crate::prepare) processes: &'a C,
    pub(in crate::prepare) edges: &'a EdgeReader,
    pub(in crate::prepare) scratch: &'a Path,
    pub(in crate::prepare) journal: &'a Journal,
    /// Approximate memory for sorting, in bytes.
    pub(in crate::prepare) memory: u64,
    pub(in crate::prepare) progress: &'a dyn Progress,
}

/// The ids of created nodes, on disk.
pub(in crate::prepare) struct Created {
    path: PathBuf,
    kind: IdKind,
    count: u64,
    /// Positions in the file of every [`BATCH`]-th id.
    starts: Vec<u64>,
}

/// Adds the ids that only edges name to `ids`. Its dictionary may then take `limit(nodes)` bytes of memory.
pub(in crate::prepare) fn create<C: ProcessGroup>(
    search: &Search<'_, C>,
    ids: &mut NodeIds,
    limit: impl Fn(u64) -> u64,
) -> Result<Created> {
    let path = search.scratch.join(format!("created-{}", search.processes.rank()));
    let count = match search.journal.completed::<u64>(CREATED)? {
        Some(count) => count,
        None => {
            let count = search.run(ids, &path)?;
            search.journal.finish(CREATED, &count)?;
            count
        }
    };
    let (nodes, most) = (ids.rows() as u64 + count, u64::from(u32::MAX) - 1);
    if nodes > most {
        return Err(Error::TooLarge { what: "number of nodes with created ones".into(), found: nodes, limit: most });
    }
    let mut created = Created { path, kind: search.edges.id_kind(), count, starts: Vec::new() };
    if count > 0 {
        ids.reserve(count as usize, limit(nodes))?;
        created.find_batches()?;
        for batch in 0..created.starts.len() {
            if ids.push(&created.batch(batch)?)?.is_some() {
                return Err(created.invalid());
            }
        }
        if ids.check()?.is_some() {
            return Err(created.invalid());
        }
    }
    Ok(created)
}

impl<C: ProcessGroup> Search<'_, C> {
    /// Writes the unknown ids to `path` in ascending order. Returns their number.
    fn run(&self, ids: &NodeIds, path: &Path) -> Result<u64> {
        let Self { processes, edges, scratch, progress, .. } = *self;
        progress.stage("looking for unknown ids", Some(edges.rows()), "edges");
        let mut all = Distinct::new(self.memory, scratch);
        match ids.groups() {
            None => {
                let produce = |unit: usize, send: &mut dyn FnMut(Destination, Vec<u8>) -> bool| {
                    let map = |chunk: EdgeChunk| Ok((chunk.src.len() as u64, unknown(&chunk, ids)?));
                    edges.read_pairs(unit, map, &mut |(rows, keys)| {
                        progress.advance(rows);
                        keys.is_empty() || send(Destination::All, keys)
                    })
                };
                processes.exchange(edges.units(), &produce, &mut |_, keys: Vec<u8>| add_keys(&mut all, &keys))?;
            }
            Some(groups) => {
                let own = self.own_unknown(ids, &groups)?;
                let produce =
                    |_: usize, send: &mut dyn FnMut(Destination, Vec<u8>) -> bool| send_keys(&own, scratch, send);
                processes.exchange(processes.size(), &produce, &mut |_, keys: Vec<u8>| add_keys(&mut all, &keys))?;
            }
        }
        progress.done();
        write_keys(all, File::create(path).map_err(Error::io(path, "create"))?, path)
    }

    /// Finds the unknown ids of this process's units by a join with the dictionary on disk. Returns an unnamed file.
    fn own_unknown(&self, ids: &NodeIds, groups: &Groups) -> Result<File> {
        let Self { processes, edges, scratch, progress, .. } = *self;
        let mut join = ids.join(groups)?;
        add_ends(processes, edges, groups, &mut join, progress)?;
        let mut own = Distinct::new(self.memory, scratch);
        join.for_each_unknown(&mut |id| match id {
            Id::Int(id) => own.add(&sortable(id)),
            Id::Text(id) => own.add(id),
        })?;
        let file = tempfile::tempfile_in(scratch).map_err(Error::io(scratch, "create a temporary file in"))?;
        let clone = file.try_clone().map_err(Error::io(scratch, "open a temporary file in"))?;
        write_keys(own, clone, scratch)?;
        Ok(file)
    }
}

/// Sends the keys in a file to all processes.
fn send_keys(mut file: &File, scratch: &Path, send: &mut dyn FnMut(Destination, Vec<u8>) -> bool) -> Result<()> {
    let fail = || Error::io(scratch, "read a temporary file in");
    file.seek(SeekFrom::Start(0)).map_err(fail())?;
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut piece = Vec::new();
    while let Some(key) = read_key(&mut reader).map_err(fail())? {
        write_key(&mut piece, &key).map_err(fail())?;
        if piece.len() > PIECE && !send(Destination::All, std::mem::take(&mut piece)) {
            return Ok(());
        }
    }
    if !piece.is_empty() {
        send(Destination::All, piece);
    }
    Ok(())
}

fn add_keys(all: &mut Distinct, keys: &[u8]) -> Result<()> {
    let mut rest = keys;
    while let Some(key) = read_key(&mut rest).map_err(|e| Error::Bug(e.to_string()))? {
        all.add(&key)?;
    }
    Ok(())
}

/// Writes keys to a file in ascending order. Returns their number.
fn write_keys(keys: Distinct, file: File, path: &Path) -> Result<u64> {
    let mut writer = BufWriter::with_capacity(1 << 20, file);
    let mut count = 0;
    keys.finish(|key| {
        count += 1;
        write_key(&mut writer, key).map_err(Error::io(path, "write"))
    })?;
    writer.flush().map_err(Error::io(path, "write"))?;
    Ok(count)
}

/// Returns the distinct unknown ids of a chunk, each after its length.
fn unknown(chunk: &EdgeChunk, ids: &NodeIds) -> Result<Vec<u8>> {
    let mut keys = Vec::new();
    let write = |key: &[u8], keys: &mut Vec<u8>| {
        keys.extend_from_slice(&(key.len() as u32).to_le_bytes());
        keys.extend_from_slice(key);
    };
    let (src_rows, dst_rows) = (ids.rows_of(&chunk.src)?, ids.rows_of(&chunk.dst)?);
    let positions = |rows: Vec<u32>| rows.into_iter().enumerate().filter(|(_, row)| *row == UNKNOWN).map(|(i, _)| i);
    match (&chunk.src, &chunk.dst) {
        (Ids::Int(src), Ids::Int(dst)) => {
            let mut some: Vec<i64> =
                positions(src_rows).map(|i| src[i]).chain(positions(dst_rows).map(|i| dst[i])).collect();
            some.sort_unstable();
            some.dedup();
            some.into_iter().for_each(|id| write(&sortable(id), &mut keys));
        }
        (Ids::Text(src), Ids::Text(dst)) => {
            let mut some: Vec<&str> =
                positions(src_rows).map(|i| src.value(i)).chain(positions(dst_rows).map(|i| dst.value(i))).collect();
            some.sort_unstable();
            some.dedup();
            some.into_iter().for_each(|id| write(id.as_bytes(), &mut keys));
        }
        // Both columns have been checked to be of one kind.
        _ => {}
    }
    Ok(keys)
}

/// Returns bytes that sort like the numbers.
fn sortable(id: i64) -> [u8; 8] {
    (id as u64 ^ 1 << 63).to_be_bytes()
}

impl Created {
    /// Number of ids.
    pub(in crate::prepare) fn count(&self) -> u64 {
        self.count
    }

    fn invalid(&self) -> Error {
        Error::Damaged { path: self.path.clone(), reason: "it is not a list of ids".into() }
    }

    fn open(&self, at: u64) -> Result<BufReader<File>> {
        let mut file = File::open(&self.path).map_err(Error::io(&self.path, "open"))?;
        file.seek(SeekFrom::Start(at)).map_err(Error::io(&self.path, "read"))?;
        Ok(BufReader::with_capacity(1 << 20, file))
    }

    /// Finds the starts of the batches.
    fn find_batches(&mut self) -> Result<()> {
        let mut reader = self.open(0)?;
        let mut at = 0;
        for i in 0..self.count {
            if i % BATCH as u64 == 0 {
                self.starts.push(at);
            }
            let mut length = [0; 4];
            reader.read_exact(&mut length).map_err(Error::io(&self.path, "read"))?;
            let length = u32::from_le_bytes(length);
            reader.seek_relative(i64::from(length)).map_err(Error::io(&self.path, "read"))?;
            at += 4 + u64::from(length);
        }
        Ok(())
    }

    /// Returns at most [`BATCH`] ids, from id `batch * BATCH` on.
    pub(in crate::prepare) fn batch(&self, batch: usize) -> Result<Ids> {
        let start = *self.starts.get(batch).ok_or_else(|| Error::Bug(format!("no batch {batch} of created ids")))?;
        let mut reader = self.open(start)?;
        let mut keys = Vec::with_capacity(BATCH);
        while keys.len() < BATCH {
            match read_key(&mut reader).map_err(Error::io(&self.path, "read"))? {
                Some(key) => keys.push(key),
                None => break,
            }
        }
        let ids = match self.kind {
            IdKind::Int => {
                let id = |key: Vec<u8>| key[..].try_into().ok().map(|key| (u64::from_be_bytes(key) ^ 1 << 63) as i64);
                keys.into_iter().map(id).collect::<Option<Vec<_>>>().map(|ids| Ids::Int(ids.into()))
            }
            IdKind::Text => {
                let id = |key: Vec<u8>| String::from_utf8(key).ok();
                let ids = keys.into_iter().map(id).collect::<Option<Vec<_>>>();
                ids.map(|ids| Ids::Text(ids.into_iter().map(Some).collect()))
            }
        };
        ids.ok_or_else(|| self.invalid())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sortable_bytes_keep_the_order_of_numbers() {
        let ids = [i64::MIN, -300, -1, 0, 1, 255, 256, i64::MAX];
        assert!(ids.map(sortable).is_sorted());
    }
}
