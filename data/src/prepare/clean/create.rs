//! `unknown_nodes = "create"`: ids that only edges name become nodes, after those of the dump, by ascending id.
//!
//! One pass over the edges' ends: each reading thread finds the unknown ids of its chunk, every process gets all of them and sorts
//! them, on disk when they are many. They end in a file, which a preparation that was killed finds again.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::Path;

use super::distinct::{Distinct, read_key, write_key};
use crate::dataset::IdKind;
use crate::dump::{EdgeChunk, EdgeReader, Ids};
use crate::error::{Error, Result};
use crate::id_map::IdMap;
use crate::prepare::crew::{Crew, To};
use crate::prepare::journal::Journal;
use crate::progress::Progress;

/// Name of the pass in the journal.
const CREATED: &str = "created";
/// Ids that enter the map at a time.
const BATCH: usize = 4096;

/// Adds the ids that only edges name to `ids`; returns how many there were. Sorts in about `memory` bytes.
pub(in crate::prepare) fn create<C: Crew>(
    crew: &C,
    edges: &EdgeReader,
    ids: &mut IdMap,
    scratch: &Path,
    journal: &Journal,
    memory: u64,
    progress: &dyn Progress,
) -> Result<u64> {
    let path = scratch.join(format!("created-{}", crew.rank()));
    let count = match journal.agreed::<u64>(CREATED)? {
        Some(count) => count,
        None => {
            let count = find(crew, edges, ids, scratch, &path, memory, progress)?;
            journal.finish(CREATED, &count)?;
            count
        }
    };
    let (nodes, limit) = (ids.rows() as u64 + count, u64::from(u32::MAX) - 1);
    if nodes > limit {
        return Err(Error::TooLarge { what: "number of nodes, created ones included".into(), found: nodes, limit });
    }
    if count > 0 {
        ids.reserve(count as usize);
        add(ids, edges.id_kind(), &path)?;
    }
    Ok(count)
}

/// Writes the unknown ids to `path`, ascending.
fn find<C: Crew>(
    crew: &C,
    edges: &EdgeReader,
    ids: &IdMap,
    scratch: &Path,
    path: &Path,
    memory: u64,
    progress: &dyn Progress,
) -> Result<u64> {
    progress.stage("looking for unknown ids", Some(edges.rows()), "edges");
    let produce = |unit: usize, send: &mut dyn FnMut(To, Vec<u8>) -> bool| {
        let map = |chunk: EdgeChunk| Ok((chunk.src.len() as u64, unknown(&chunk, ids)));
        edges.read_pairs(unit, map, &mut |(rows, keys)| {
            progress.advance(rows);
            keys.is_empty() || send(To::All, keys)
        })
    };
    let mut all = Distinct::new(memory, scratch);
    crew.pass(edges.units(), &produce, &mut |_, keys: Vec<u8>| {
        let mut rest = &keys[..];
        while let Some(key) = read_key(&mut rest).map_err(|e| Error::Bug(e.to_string()))? {
            all.add(&key)?;
        }
        Ok(())
    })?;
    progress.done();
    let mut writer = BufWriter::new(File::create(path).map_err(Error::io(path, "create"))?);
    let mut count = 0;
    all.finish(|key| {
        count += 1;
        write_key(&mut writer, key).map_err(Error::io(path, "write"))
    })?;
    writer.flush().map_err(Error::io(path, "write"))?;
    Ok(count)
}

/// The unknown ids of a chunk, each once and after its length.
fn unknown(chunk: &EdgeChunk, ids: &IdMap) -> Vec<u8> {
    let mut keys = Vec::new();
    let write = |key: &[u8], keys: &mut Vec<u8>| {
        keys.extend_from_slice(&(key.len() as u32).to_le_bytes());
        keys.extend_from_slice(key);
    };
    match (&chunk.src, &chunk.dst) {
        (Ids::Int(src), Ids::Int(dst)) => {
            let mut some: Vec<i64> =
                src.iter().chain(dst.iter()).copied().filter(|&id| ids.index_of_int(id).is_none()).collect();
            some.sort_unstable();
            some.dedup();
            some.into_iter().for_each(|id| write(&sortable(id), &mut keys));
        }
        (Ids::Text(src), Ids::Text(dst)) => {
            let all = src.iter().chain(dst.iter()).flatten();
            let mut some: Vec<&str> = all.filter(|id| ids.index_of_text(id).is_none()).collect();
            some.sort_unstable();
            some.dedup();
            some.into_iter().for_each(|id| write(id.as_bytes(), &mut keys));
        }
        // Both columns were checked to be of one kind.
        _ => {}
    }
    keys
}

/// Bytes whose order is that of the numbers.
fn sortable(id: i64) -> [u8; 8] {
    (id as u64 ^ 1 << 63).to_be_bytes()
}

/// Reads the file into the map.
fn add(ids: &mut IdMap, kind: IdKind, path: &Path) -> Result<()> {
    let fail = || Error::io(path, "read");
    let mut reader = BufReader::with_capacity(1 << 20, File::open(path).map_err(Error::io(path, "open"))?);
    let broken = || Error::Damaged { path: path.to_path_buf(), reason: "not a list of ids".into() };
    let mut batch: Vec<Vec<u8>> = Vec::with_capacity(BATCH);
    loop {
        let key = read_key(&mut reader).map_err(fail())?;
        let end = key.is_none();
        batch.extend(key);
        if batch.len() == BATCH || end {
            let some = match kind {
                IdKind::Int => {
                    let id =
                        |key: &Vec<u8>| key[..].try_into().ok().map(|key| (u64::from_be_bytes(key) ^ 1 << 63) as i64);
                    Ids::Int(batch.iter().map(id).collect::<Option<Vec<_>>>().ok_or_else(broken)?.into())
                }
                IdKind::Text => {
                    let id = |key: &Vec<u8>| String::from_utf8(key.clone()).ok().map(Some);
                    Ids::Text(
                        batch.iter().map(id).collect::<Option<Vec<_>>>().ok_or_else(broken)?.into_iter().collect(),
                    )
                }
            };
            ids.push(&some).map_err(|_| broken())?;
            batch.clear();
        }
        if end {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_sort_as_numbers_do() {
        let ids = [i64::MIN, -300, -1, 0, 1, 255, 256, i64::MAX];
        assert!(ids.map(sortable).is_sorted());
    }
}
