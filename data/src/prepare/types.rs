//! The pass over the edges' types, where there are any: which there are.

use std::collections::BTreeSet;

use super::crew::{Crew, To};
use super::scan::ranks;
use crate::dataset::TypeInfo;
use crate::dump::{EdgeReader, Types};
use crate::error::{Error, Result};
use crate::progress::Progress;

/// Types of edges are below this.
const LIMIT: usize = u16::MAX as usize;

/// Finds the types of all edges: names in their order, or as many as the largest number needs.
pub(super) fn edge_types<C: Crew>(crew: &C, edges: &EdgeReader, progress: &dyn Progress) -> Result<TypeInfo> {
    let (mut names, mut count) = (BTreeSet::new(), 0);
    progress.stage("reading edge types", Some(edges.rows()), "edges");
    // A parcel is the largest number plus one (four bytes), and the names, each after a line feed.
    let produce = |unit: usize, send: &mut dyn FnMut(To, Vec<u8>) -> bool| {
        let (mut own, mut most) = (BTreeSet::new(), 0u32);
        edges.read_types(unit, Ok, &mut |types| {
            match &types {
                Types::Code(codes) => most = codes.iter().fold(most, |most, &code| most.max(u32::from(code) + 1)),
                Types::Name(texts) => {
                    for text in texts.iter().flatten() {
                        if !own.contains(text) {
                            own.insert(text.to_string());
                        }
                    }
                }
            }
            own.len() <= LIMIT
        })?;
        let mut parcel = most.to_le_bytes().to_vec();
        for name in &own {
            parcel.extend_from_slice(&(name.len() as u32).to_le_bytes());
            parcel.extend_from_slice(name.as_bytes());
        }
        send(To::All, parcel);
        Ok(())
    };
    crew.pass(edges.units(), &produce, &mut |unit, parcel: Vec<u8>| {
        let mut rest = &parcel[..];
        count = count.max(number(&mut rest)?);
        while !rest.is_empty() {
            let length = number(&mut rest)? as usize;
            let (name, after) = rest.split_at_checked(length).ok_or_else(broken)?;
            names.insert(String::from_utf8_lossy(name).into_owned());
            rest = after;
        }
        if names.len() > LIMIT {
            let (found, limit) = (names.len() as u64, LIMIT as u64);
            return Err(Error::TooLarge { what: "number of edge types".into(), found, limit });
        }
        progress.advance(edges.unit_rows(unit));
        Ok(())
    })?;
    progress.done();
    if names.is_empty() {
        return Ok(TypeInfo { count, names: Vec::new() });
    }
    let names: Vec<String> = names.into_iter().collect();
    Ok(TypeInfo { count: names.len() as u32, names })
}

fn number(bytes: &mut &[u8]) -> Result<u32> {
    let (first, rest) = bytes.split_first_chunk::<4>().ok_or_else(broken)?;
    *bytes = rest;
    Ok(u32::from_le_bytes(*first))
}

fn broken() -> Error {
    Error::Bug("a parcel of edge types is broken".into())
}

/// Codes of the types of some edges.
pub(super) fn codes(types: Option<&Types>, info: Option<&TypeInfo>) -> Result<Vec<u16>> {
    match (types, info) {
        (Some(Types::Code(codes)), _) => Ok(codes.clone()),
        (Some(Types::Name(names)), Some(info)) => {
            Ok(ranks(names, &info.names)?.into_iter().map(|rank| rank as u16).collect())
        }
        _ => Ok(Vec::new()),
    }
}
