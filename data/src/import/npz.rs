//! Sparse matrices that SciPy has saved with `scipy.sparse.save_npz` (CSR, CSC, COO). Many benchmark graphs are
//! archives of the same arrays under `adj_…`, with `attr_…` or `attr_matrix` and `labels`; they are read too.
//!
//! Entry `(i, j)` is an edge from `i` to `j`. Its value is the weight, unless all values are 1. Nodes are numbered from
//! 0.

use std::path::Path;

use super::archive::Npz;
use super::columns::{self, Column, Count, Section};
use super::labels::{LabelStyle, Labels};
use super::matrix::Matrix;
use super::metis::node_arrays;
use super::npy::{Array, Item};
use super::rows::{Buffer, Rows};
use super::{EDGES, Found, Import, NODES, Recipe};
use crate::error::{Error, Result};
use crate::generate::table::Output;
use crate::progress::Progress;

/// Number of items per read.
const BLOCK: u64 = 1 << 16;

pub(super) fn import(import: &Import, output: &mut Output, progress: &dyn Progress) -> Result<Found> {
    let path = &import.paths[0];
    let npz = Npz::open(path)?;
    let prefix = if !npz.has("shape") && npz.has("adj_shape") { "adj_" } else { "" };
    let name = |array: &str| format!("{prefix}{array}");
    let shape = npz.array(&name("shape"))?.all_ints()?;
    let nodes = match shape[..] {
        [rows, columns] if rows == columns && rows >= 0 => rows as u64,
        _ => return Err(npz.fail(format!("its matrix has shape {shape:?}; an adjacency matrix is square"))),
    };
    if nodes >= u64::from(u32::MAX) {
        return Err(Error::TooLarge { what: "number of nodes".into(), found: nodes, limit: u64::from(u32::MAX) - 1 });
    }
    let format = match npz.has(&name("format")) {
        true => npz.array(&name("format"))?.string()?,
        false => "csr".into(),
    };

    let mut recipe = Recipe {
        title: format!("Imported from a sparse matrix ({format}): entry (i, j) is an edge from i to j."),
        undirected: import.undirected.unwrap_or(false),
        ..Recipe::default()
    };
    let mut columns: Vec<Box<dyn Column>> = vec![Box::new(Count { name: "node_id", next: 0 })];
    columns.extend(node_arrays(import, nodes, "the matrix has", &mut recipe)?);
    inside(&npz, import, nodes, &mut recipe, &mut columns)?;
    columns::write(output, NODES, vec![Section { rows: nodes, columns }], import.file_rows, progress)?;

    let edges = MatrixEdges { import, path, npz: &npz, prefix, nodes, format };
    let rows = edges.run(output, &mut recipe, progress)?;
    let mut notes = Vec::new();
    if import.undirected.is_none() {
        notes.push("edges are directed; use --undirected if the matrix has only one half".into());
    }
    Ok(Found { nodes, edges: rows, recipe, notes, skipped: None })
}

/// Adds features and labels of the same archive, unless the user gives others.
fn inside(
    npz: &Npz,
    import: &Import,
    nodes: u64,
    recipe: &mut Recipe,
    columns: &mut Vec<Box<dyn Column>>,
) -> Result<()> {
    let by = "the matrix has";
    if import.arrays.features.is_none() {
        let features = match () {
            () if npz.has("attr_indptr") => Some(Matrix::sparse("features", npz, "attr_", nodes, by)?),
            () if npz.has("attr_matrix") => Some(Matrix::dense("features", npz.array("attr_matrix")?, nodes, by)?),
            () => None,
        };
        if let Some(features) = features {
            recipe.features = features.width;
            columns.push(Box::new(features));
        }
    }
    if import.arrays.labels.is_none() && npz.has("labels") {
        let labels = Labels::array(npz.array("labels")?, false, nodes, by)?;
        recipe.label = Some(labels.style != LabelStyle::Value);
        columns.push(Box::new(labels));
    }
    Ok(())
}

struct MatrixEdges<'a> {
    import: &'a Import,
    path: &'a Path,
    npz: &'a Npz,
    prefix: &'a str,
    nodes: u64,
    format: String,
}

impl MatrixEdges<'_> {
    fn array(&self, name: &str) -> Result<Array> {
        self.npz.array(&format!("{}{name}", self.prefix))
    }

    fn run(&self, output: &mut Output, recipe: &mut Recipe, progress: &dyn Progress) -> Result<u64> {
        let mut values = self.weights()?;
        recipe.weight = values.is_some();
        let mut columns = vec![("src".to_string(), Buffer::int()), ("dst".to_string(), Buffer::int())];
        if values.is_some() {
            columns.push(("weight".into(), Buffer::float()));
        }
        let mut rows = Rows::begin(output, EDGES, columns, self.import.file_rows)?;
        let mut ends = match self.format.as_str() {
            "csr" | "csc" => Ends::Compressed {
                starts: self.starts()?,
                others: self.array("indices")?,
                last: 0,
                node: -1,
                left: 0,
                by_columns: self.format == "csc",
            },
            "coo" => Ends::Pairs { src: self.array("row")?, dst: self.array("col")? },
            other => {
                let reason = format!("a matrix in format {other:?}; save tocsr() of it");
                return Err(Error::File { path: self.path.into(), reason });
            }
        };
        let total = match &ends {
            Ends::Compressed { others, .. } => others.len(),
            Ends::Pairs { src, dst } if src.len() == dst.len() => src.len(),
            Ends::Pairs { src, dst } => {
                return Err(self.npz.fail(format!("its entries have {} rows and {} columns", src.len(), dst.len())));
            }
        };
        if let Some(values) = &values
            && values.len() != total
        {
            return Err(values.wrong(format!("has {} items for {total} entries", values.len())));
        }
        progress.stage("importing edges", Some(total), "edges");
        let (mut src, mut dst, mut weights) = (Vec::new(), Vec::new(), Vec::new());
        let mut left = total;
        while left > 0 {
            let block = left.min(BLOCK).min(rows.rows_to_fill() as u64) as usize;
            ends.read(block, &mut src, &mut dst)?;
            let invalid = src.iter().chain(&dst).find(|&&node| !(0..self.nodes as i64).contains(&node));
            if let Some(node) = invalid {
                return Err(self
                    .npz
                    .fail(format!("an entry has node {node}, but the matrix has {} nodes", self.nodes)));
            }
            rows.ints(0, src.iter().copied());
            rows.ints(1, dst.iter().copied());
            if let Some(values) = &mut values {
                values.floats(block, &mut weights)?;
                rows.floats(2, &weights);
            }
            rows.end_rows(block)?;
            progress.advance(block as u64);
            left -= block as u64;
        }
        ends.finish()?;
        let written = rows.finish(output)?;
        progress.done();
        Ok(written)
    }

    /// Returns the weights, or `None` if all of them are 1.
    fn weights(&self) -> Result<Option<Array>> {
        if !self.npz.has(&format!("{}data", self.prefix)) {
            return Ok(None);
        }
        let mut values = self.array("data")?;
        if values.item == Item::Bool {
            return Ok(None);
        }
        let (mut left, mut some) = (values.len(), Vec::new());
        while left > 0 {
            let block = left.min(BLOCK) as usize;
            values.floats(block, &mut some)?;
            if some.iter().any(|&value| value != 1.0) {
                return self.array("data").map(Some);
            }
            left -= block as u64;
        }
        Ok(None)
    }

    /// Returns the row or column pointers without the first, which is 0.
    fn starts(&self) -> Result<Array> {
        let mut starts = self.array("indptr")?;
        if starts.len() != self.nodes + 1 {
            let nodes = self.nodes;
            return Err(starts.wrong(format!("has {} items; {nodes} nodes need {}", starts.len(), nodes + 1)));
        }
        let mut first = Vec::new();
        starts.ints(1, None, &mut first)?;
        if first[0] != 0 {
            return Err(starts.wrong("does not begin with 0"));
        }
        Ok(starts)
    }
}

/// Sources and destinations of the entries, in storage order.
enum Ends {
    Compressed { starts: Array, others: Array, last: i64, node: i64, left: i64, by_columns: bool },
    Pairs { src: Array, dst: Array },
}

impl Ends {
    fn read(&mut self, block: usize, src: &mut Vec<i64>, dst: &mut Vec<i64>) -> Result<()> {
        match self {
            Self::Pairs { src: from, dst: to } => {
                from.ints(block, None, src)?;
                to.ints(block, None, dst)
            }
            Self::Compressed { starts, others, last, node, left, by_columns } => {
                let (own, other) = if *by_columns { (dst, src) } else { (src, dst) };
                others.ints(block, None, other)?;
                own.clear();
                let mut end = Vec::new();
                while own.len() < block {
                    if *left == 0 {
                        starts.ints(1, None, &mut end).map_err(|_| {
                            starts.wrong(format!("ends at {last}, but there are {} entries", others.len()))
                        })?;
                        *node += 1;
                        if end[0] < *last {
                            return Err(starts.wrong(format!("decreases at item {}", *node + 1)));
                        }
                        *left = end[0] - *last;
                        *last = end[0];
                        continue;
                    }
                    let some = (block - own.len()).min(*left as usize);
                    own.extend(std::iter::repeat_n(*node, some));
                    *left -= some as i64;
                }
                Ok(())
            }
        }
    }

    fn finish(self) -> Result<()> {
        let Self::Compressed { mut starts, others, mut last, mut node, left, .. } = self else { return Ok(()) };
        let mut more = Vec::new();
        let mut rest = starts.left();
        while rest > 0 {
            let block = rest.min(BLOCK) as usize;
            starts.ints(block, None, &mut more)?;
            for &end in &more {
                node += 1;
                if end < last {
                    return Err(starts.wrong(format!("decreases at item {}", node + 1)));
                }
                last = end;
            }
            rest -= block as u64;
        }
        match left == 0 && last as u64 == others.len() {
            true => Ok(()),
            false => Err(starts.wrong(format!("ends at {last}, but there are {} entries", others.len()))),
        }
    }
}
