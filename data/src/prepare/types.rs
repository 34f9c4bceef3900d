//! Passes over the types and labels of edges, to find their distinct values.

use std::collections::BTreeSet;

use arrow::array::LargeStringArray;

use super::labels::ranks;
use crate::dataset::{LabelInfo, LabelKind, TypeInfo};
use crate::dump::{EdgeLabels, EdgeReader, MAX_CLASSES, Types};
use crate::error::{Error, Result};
use crate::group::{Destination, ProcessGroup};
use crate::progress::Progress;

/// Maximum number of edge types.
const LIMIT: usize = u16::MAX as usize;

/// Finds the types of all edges: sorted names, or the number of codes.
pub(super) fn edge_types<C: ProcessGroup>(
    processes: &C,
    edges: &EdgeReader,
    progress: &dyn Progress,
) -> Result<TypeInfo> {
    let read = |unit: usize, add: &mut dyn FnMut(Values<'_>) -> bool| {
        edges.read_types(unit, Ok, &mut |types| match &types {
            Types::Code(codes) => add(Values::Count(codes.iter().map(|&code| u32::from(code) + 1).max().unwrap_or(0))),
            Types::Name(names) => add(Values::Names(names)),
        })
    };
    let column = Column { stage: "reading edge types", count: "number of edge types", limit: LIMIT };
    let (count, names) = distinct_values(processes, edges, &column, &read, progress)?;
    Ok(TypeInfo { count, names })
}

/// Finds the classes of all edges. Does not count them, because edges may be dropped or mirrored later.
pub(super) fn edge_labels<C: ProcessGroup>(
    processes: &C,
    edges: &EdgeReader,
    progress: &dyn Progress,
) -> Result<LabelInfo> {
    let read = |unit: usize, add: &mut dyn FnMut(Values<'_>) -> bool| {
        edges.read_labels(unit, Ok, &mut |labels| match &labels {
            EdgeLabels::Class(classes) => {
                add(Values::Count(classes.iter().map(|&class| (class + 1) as u32).max().unwrap_or(0)))
            }
            EdgeLabels::Name(names) => add(Values::Names(names)),
        })
    };
    let limit = MAX_CLASSES as usize;
    let column = Column { stage: "reading edge labels", count: "number of edge classes", limit };
    let (classes, names) = distinct_values(processes, edges, &column, &read, progress)?;
    let counts = vec![0; classes as usize];
    Ok(LabelInfo { kind: LabelKind::Class, classes, names, labeled: 0, counts, lists: None })
}

/// The values of a chunk: the largest code plus one, or names.
enum Values<'a> {
    Count(u32),
    Names(&'a LargeStringArray),
}

/// A column, for progress and messages.
struct Column {
    stage: &'static str,
    count: &'static str,
    /// Maximum number of names.
    limit: usize,
}

/// Reads a unit in chunks. The second argument adds the values of a chunk and returns whether to continue.
type Read<'a> = dyn Fn(usize, &mut dyn FnMut(Values<'_>) -> bool) -> Result<()> + Sync + 'a;

/// Returns the number of distinct values, and their sorted names if they have names.
fn distinct_values<C: ProcessGroup>(
    processes: &C,
    edges: &EdgeReader,
    column: &Column,
    read: &Read<'_>,
    progress: &dyn Progress,
) -> Result<(u32, Vec<String>)> {
    let (mut names, mut count) = (BTreeSet::new(), 0);
    progress.stage(column.stage, Some(edges.rows()), "edges");
    // A message contains the largest code plus one (four bytes), and the names, each after its length.
    let produce = |unit: usize, send: &mut dyn FnMut(Destination, Vec<u8>) -> bool| {
        let (mut own, mut most) = (BTreeSet::new(), 0u32);
        read(unit, &mut |values| {
            match values {
                Values::Count(more) => most = most.max(more),
                Values::Names(texts) => {
                    for text in texts.iter().flatten() {
                        if !own.contains(text) {
                            own.insert(text.to_string());
                        }
                    }
                }
            }
            own.len() <= column.limit
        })?;
        let mut message = most.to_le_bytes().to_vec();
        for name in &own {
            message.extend_from_slice(&(name.len() as u32).to_le_bytes());
            message.extend_from_slice(name.as_bytes());
        }
        send(Destination::All, message);
        Ok(())
    };
    processes.exchange(edges.units(), &produce, &mut |unit, message: Vec<u8>| {
        let mut rest = &message[..];
        count = count.max(number(&mut rest)?);
        while !rest.is_empty() {
            let length = number(&mut rest)? as usize;
            let (name, after) = rest.split_at_checked(length).ok_or_else(broken)?;
            names.insert(String::from_utf8_lossy(name).into_owned());
            rest = after;
        }
        if names.len() > column.limit {
            let (found, limit) = (names.len() as u64, column.limit as u64);
            return Err(Error::TooLarge { what: column.count.into(), found, limit });
        }
        progress.advance(edges.unit_rows(unit));
        Ok(())
    })?;
    progress.done();
    let names: Vec<String> = names.into_iter().collect();
    Ok((count.max(names.len() as u32), names))
}

fn number(bytes: &mut &[u8]) -> Result<u32> {
    let (first, rest) = bytes.split_first_chunk::<4>().ok_or_else(broken)?;
    *bytes = rest;
    Ok(u32::from_le_bytes(*first))
}

fn broken() -> Error {
    Error::Bug("a message of names is invalid".into())
}

/// Returns the type codes of edges.
pub(super) fn codes(types: Option<&Types>, info: Option<&TypeInfo>) -> Result<Vec<u16>> {
    match (types, info) {
        (Some(Types::Code(codes)), _) => Ok(codes.clone()),
        (Some(Types::Name(names)), Some(info)) => {
            Ok(ranks(names, &info.names)?.into_iter().map(|rank| rank as u16).collect())
        }
        _ => Ok(Vec::new()),
    }
}

/// Returns the classes of edges; −1 = unlabeled.
pub(super) fn label_codes(labels: Option<&EdgeLabels>, info: Option<&LabelInfo>) -> Result<Vec<i32>> {
    match (labels, info) {
        (Some(EdgeLabels::Class(classes)), _) => Ok(classes.clone()),
        (Some(EdgeLabels::Name(values)), Some(info)) => {
            let class = |value: Option<&str>| {
                let Some(value) = value else { return Ok(-1) };
                let found = info.names.binary_search_by(|name| name.as_str().cmp(value));
                found.map(|class| class as i32).map_err(|_| Error::Bug("a name that was not there before".into()))
            };
            values.iter().map(class).collect()
        }
        _ => Ok(Vec::new()),
    }
}
