//! Counts the degrees of a dump in one pass over its edges.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use arrow::array::{Array, ArrayRef};
use serde::Serialize;

use super::Table;
use crate::convert::{is_int, is_text, to_i64, to_text};
use crate::error::{Error, Result};
use crate::progress::Progress;

/// Degrees of the rows, without mirroring or dropping. A node's degree is the number of row ends with its id.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Degrees {
    /// Nodes with at least one edge.
    pub nodes_with_edges: u64,
    /// Nodes of the node table without an edge; `None` without a node table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolated: Option<u64>,
    /// Rows whose ends are the same node.
    pub self_loops: u64,
    /// Mean degree of the nodes with edges.
    pub mean: f64,
    /// Largest degree.
    pub max: u64,
    /// Largest number of rows with one source.
    pub max_out: u64,
    /// Largest number of rows with one destination.
    pub max_in: u64,
    /// Numbers of nodes with degree 1, 2–3, 4–7, …
    pub histogram: Vec<Bin>,
}

/// A bin of a histogram of degrees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bin {
    /// Smallest degree of the bin.
    pub from: u64,
    /// Largest degree of the bin.
    pub to: u64,
    /// Number of nodes.
    pub nodes: u64,
}

/// Limit of distinct ids for counting by hash.
const MAX_HASHED: usize = 1 << 26;

/// Numbers of rows with a node as source and as destination.
#[derive(Clone, Copy, Default)]
struct Ends {
    out: u32,
    into: u32,
}

enum Counts {
    /// Ids are `base..base + len`.
    Dense { base: i64, ends: Vec<Ends> },
    /// Counts by hash of the id. A collision, which merges two ids, is unlikely below 2^30 nodes.
    Hashed { by_hash: HashMap<u64, Ends>, hasher: RandomState },
}

/// Counts degrees, or adds a note with the reason why not.
pub(super) fn count(
    edges: &Table,
    nodes: Option<u64>,
    progress: &dyn Progress,
    notes: &mut Vec<String>,
) -> Result<Option<Degrees>> {
    let Some(mut counts) = Counts::for_table(edges, notes) else { return Ok(None) };
    let (mut self_loops, mut nulls, mut full) = (0, 0u64, false);
    edges.scan(&["src", "dst"], progress, |batch| {
        let columns = ["src", "dst"].map(|name| batch.column_by_name(name).cloned());
        let [Some(src), Some(dst)] = columns else { return Err(Error::Bug("a projected column is missing".into())) };
        nulls += (0..src.len()).filter(|&i| src.is_null(i) || dst.is_null(i)).count() as u64;
        if !full {
            self_loops += counts.add(&src, &dst)?;
            full = counts.is_full();
        }
        Ok(())
    })?;
    if nulls > 0 {
        notes.push(format!("{}: {nulls} rows without source or destination", edges.name));
    }
    if full {
        notes.push(format!("{}: more than {MAX_HASHED} distinct ids, so degrees are not counted", edges.name));
        return Ok(None);
    }
    Ok(Some(counts.summary(nodes, self_loops)))
}

impl Counts {
    fn for_table(edges: &Table, notes: &mut Vec<String>) -> Option<Self> {
        let columns = [edges.column("src")?, edges.column("dst")?];
        let kinds = columns.map(|column| (is_int(&column.arrow_type), is_text(&column.arrow_type)));
        if kinds != [(true, false); 2] && kinds != [(false, true); 2] {
            let types = columns.map(|column| column.data_type.as_str()).join(" and ");
            notes.push(format!("{}: ids are {types}, so degrees are not counted", edges.name));
            return None;
        }
        let ranges = columns[0].integer_range().zip(columns[1].integer_range());
        let span = ranges.and_then(|(a, b)| {
            let base = a.0.min(b.0);
            Some((base, a.1.max(b.1).checked_sub(base)?.checked_add(1)?))
        });
        match span {
            Some((base, len)) if len as u64 <= edges.rows.saturating_mul(4).max(1 << 20) && len <= 1 << 32 => {
                Some(Self::Dense { base, ends: vec![Ends::default(); len as usize] })
            }
            _ => Some(Self::Hashed { by_hash: HashMap::new(), hasher: RandomState::new() }),
        }
    }

    /// Counts one batch, without rows that have a null. Returns the number of self-loops.
    fn add(&mut self, src: &ArrayRef, dst: &ArrayRef) -> Result<u64> {
        let integers = is_int(src.data_type());
        let mut self_loops = 0;
        match self {
            Self::Dense { base, ends } => {
                let (src, dst) = (to_i64(src)?, to_i64(dst)?);
                for (src, dst) in src.iter().zip(&dst).filter_map(|(src, dst)| src.zip(dst)) {
                    self_loops += u64::from(src == dst);
                    // An id outside contradicts the file's statistics; it is not counted.
                    let place = |id: i64| usize::try_from(id.wrapping_sub(*base)).ok();
                    if let Some(node) = place(src).and_then(|i| ends.get_mut(i)) {
                        node.out = node.out.saturating_add(1);
                    }
                    if let Some(node) = place(dst).and_then(|i| ends.get_mut(i)) {
                        node.into = node.into.saturating_add(1);
                    }
                }
            }
            Self::Hashed { by_hash, hasher } => {
                let hashes = |column: &ArrayRef| -> Result<Vec<Option<u64>>> {
                    Ok(if integers {
                        to_i64(column)?.iter().map(|id| id.map(|id| hasher.hash_one(id))).collect()
                    } else {
                        to_text(column)?.iter().map(|id| id.map(|id| hasher.hash_one(id))).collect()
                    })
                };
                for (src, dst) in hashes(src)?.into_iter().zip(hashes(dst)?).filter_map(|(src, dst)| src.zip(dst)) {
                    self_loops += u64::from(src == dst);
                    let node = by_hash.entry(src).or_default();
                    node.out = node.out.saturating_add(1);
                    let node = by_hash.entry(dst).or_default();
                    node.into = node.into.saturating_add(1);
                }
            }
        }
        Ok(self_loops)
    }

    fn is_full(&self) -> bool {
        matches!(self, Self::Hashed { by_hash, .. } if by_hash.len() > MAX_HASHED)
    }

    fn summary(&self, nodes: Option<u64>, self_loops: u64) -> Degrees {
        let mut histogram = [0u64; 34];
        let (mut sum, mut max, mut max_out, mut max_in) = (0u64, 0, 0, 0);
        let mut add = |node: &Ends| {
            let degree = u64::from(node.out) + u64::from(node.into);
            if degree > 0 {
                histogram[degree.ilog2() as usize] += 1;
                sum += degree;
                max = max.max(degree);
                max_out = max_out.max(u64::from(node.out));
                max_in = max_in.max(u64::from(node.into));
            }
        };
        match self {
            Self::Dense { ends, .. } => ends.iter().for_each(&mut add),
            Self::Hashed { by_hash, .. } => by_hash.values().for_each(&mut add),
        }
        let with = histogram.iter().sum::<u64>();
        Degrees {
            nodes_with_edges: with,
            isolated: nodes.and_then(|nodes| nodes.checked_sub(with)),
            self_loops,
            mean: sum as f64 / with.max(1) as f64,
            max,
            max_out,
            max_in,
            histogram: bins(&histogram),
        }
    }
}

/// Returns bins by powers of two, up to the last non-empty one.
pub(super) fn bins(by_power: &[u64]) -> Vec<Bin> {
    let used = by_power.iter().rposition(|&nodes| nodes > 0).map_or(0, |last| last + 1);
    let bin = |(power, &nodes): (usize, &u64)| Bin { from: 1 << power, to: (2 << power) - 1, nodes };
    by_power[..used].iter().enumerate().map(bin).collect()
}
