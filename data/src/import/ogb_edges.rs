//! The edges of an OGB download: a text file or an array.

use super::archive::Npz;
use super::columns::Column;
use super::matrix::Matrix;
use super::records::Records;
use super::rows::Rows;
use crate::error::{Error, Result};
use crate::format::plural;
use crate::progress::Progress;

/// Number of rows per read.
const BLOCK: u64 = 1 << 16;

/// Edges as text, with two node numbers per line.
pub(super) struct Pairs {
    pub(super) records: Records<'static>,
    /// Expected number of edges.
    pub(super) edges: u64,
    /// Number of source nodes and of destination nodes.
    pub(super) nodes: [u64; 2],
    /// Offsets that are added to source numbers and destination numbers.
    pub(super) first: [i64; 2],
    pub(super) rows_read: u64,
}

impl Pairs {
    /// Reads all edges into columns 0 and 1, and features into column 2. `more` fills the other columns of a row.
    pub(super) fn read(
        &mut self,
        rows: &mut Rows,
        mut features: Option<&mut Matrix>,
        more: impl Fn(&mut Rows),
        progress: &dyn Progress,
    ) -> Result<()> {
        while self.rows_read < self.edges {
            let block = (self.edges - self.rows_read).min(BLOCK).min(rows.rows_to_fill() as u64) as usize;
            for _ in 0..block {
                if !self.records.advance()? {
                    let reason =
                        format!("has {} edges, but num-edge-list says {}; was it cut off?", self.rows_read, self.edges);
                    return Err(Error::File { path: self.records.path().into(), reason });
                }
                if self.records.len() != 2 {
                    return Err(self
                        .records
                        .wrong(format!("{} instead of two nodes", plural(self.records.len(), "field"))));
                }
                for end in 0..2 {
                    let node = self.records.int(end, "node")?;
                    if !(0..self.nodes[end] as i64).contains(&node) {
                        let reason = format!("node {node}, but there are {} nodes", self.nodes[end]);
                        return Err(self.records.wrong(reason));
                    }
                    rows.int(end, node + self.first[end]);
                }
                more(rows);
                self.rows_read += 1;
            }
            if let Some(features) = &mut features {
                rows.floats(2, &features.values(block)?);
            }
            rows.end_rows(block)?;
            progress.advance(block as u64);
        }
        match (self.records.advance()?, features) {
            (true, _) => Err(self.records.wrong(format!("too many edges: num-edge-list says {}", self.edges))),
            (false, Some(features)) => features.end(),
            (false, None) => Ok(()),
        }
    }
}

/// Reads edges from an array of two rows, at two positions concurrently.
pub(super) fn array_edges(
    npz: &Npz,
    nodes: u64,
    edges: u64,
    rows: &mut Rows,
    mut features: Option<&mut Matrix>,
    progress: &dyn Progress,
) -> Result<()> {
    let mut src = npz.array("edge_index")?;
    if src.shape != [2, edges] {
        return Err(src.wrong(format!("has shape {:?}, but num_edges_list says [2, {edges}]", src.shape)));
    }
    let mut dst = npz.array("edge_index")?;
    dst.skip(edges)?;
    let (mut from, mut to, mut left) = (Vec::new(), Vec::new(), edges);
    while left > 0 {
        let block = left.min(BLOCK).min(rows.rows_to_fill() as u64) as usize;
        src.ints(block, None, &mut from)?;
        dst.ints(block, None, &mut to)?;
        if let Some(node) = from.iter().chain(&to).find(|&&node| !(0..nodes as i64).contains(&node)) {
            return Err(src.wrong(format!("has node {node}, but there are {nodes} nodes")));
        }
        rows.ints(0, from.iter().copied());
        rows.ints(1, to.iter().copied());
        if let Some(features) = &mut features {
            rows.floats(2, &features.values(block)?);
        }
        rows.end_rows(block)?;
        progress.advance(block as u64);
        left -= block as u64;
    }
    Ok(())
}
