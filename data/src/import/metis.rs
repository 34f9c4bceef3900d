//! METIS `.graph` format: line `v + 1` after the header lists the neighbors of node `v` (METIS manual, section 4.1.1).
//!
//! Every undirected edge occurs in two lines. It is written once, from the line of the smaller node. Nodes get ids from
//! 0, in the order of lines.
//!
//! The file is read character by character, so a line may have any length. Sums of hashes over both directions check
//! that the lines agree; they take a few bytes for any size of graph.

use std::path::Path;

use super::archive::open_array;
use super::columns::{Column, Splits};
use super::input::Input;
use super::labels::{LabelStyle, Labels};
use super::matrix::Matrix;
use super::rows::{Buffer, Rows};
use super::{EDGES, Found, Import, NODES, Recipe};
use crate::error::{Error, Result};
use crate::format::plural;
use crate::generate::row_groups::group_rows;
use crate::generate::stream::TableStream;
use crate::generate::table::Output;
use crate::progress::Progress;
use crate::rng::{Key, Purpose};

use arrow::array::{ArrayRef, Int64Array};
use arrow::datatypes::{DataType, Field, Schema};
use std::sync::Arc;

/// The fields of the header.
#[derive(Clone, Copy, Debug)]
struct Header {
    nodes: u64,
    edges: u64,
    sizes: bool,
    weights: usize,
    edge_weights: bool,
}

pub(super) fn import(import: &Import, output: &mut Output, progress: &dyn Progress) -> Result<Found> {
    let path = &import.paths[0];
    let mut tokens = Tokens { input: Input::open(path, None)?, line: 1 };
    let header = header(&mut tokens)?;
    let mut notes = Vec::new();
    let mut nodes = NodeTable::begin(import, output, &header)?;
    let mut columns = vec![("src".to_string(), Buffer::int()), ("dst".to_string(), Buffer::int())];
    if header.edge_weights {
        columns.push(("weight".into(), Buffer::float()));
    }
    let mut edges = Rows::begin(output, EDGES, columns, import.file_rows)?;

    progress.stage("importing nodes and edges", Some(header.nodes), "nodes");
    let mut symmetry = SymmetryCheck::default();
    for node in 0..header.nodes {
        tokens.begin_line(node, &header)?;
        if header.sizes {
            let size = tokens.required("a node size")?;
            nodes.extra(0, size);
        }
        for weight in 0..header.weights {
            let value = tokens.required("a node weight")?;
            nodes.extra(usize::from(header.sizes) + weight, value);
        }
        while let Some(neighbor) = tokens.number()? {
            if neighbor == 0 || neighbor > header.nodes {
                let reason = format!("there is no neighbor {neighbor}; nodes are numbered 1 to {}", header.nodes);
                return Err(tokens.wrong(reason));
            }
            let neighbor = neighbor - 1;
            if neighbor == node {
                let reason =
                    format!("node {} is its own neighbor; remove it, METIS graphs have no self-loops", node + 1);
                return Err(tokens.wrong(reason));
            }
            let weight = match header.edge_weights {
                true => tokens.number()?.ok_or_else(|| {
                    tokens.wrong("a neighbor without an edge weight; by the header, every neighbor has one")
                })?,
                false => 1,
            };
            symmetry.add(node, neighbor, weight);
            if node < neighbor {
                edges.int(0, node as i64);
                edges.int(1, neighbor as i64);
                if header.edge_weights {
                    edges.float(2, weight as f32);
                }
                edges.end_rows(1)?;
            }
        }
        nodes.end_row(node + 1 == header.nodes)?;
        if (node + 1).is_multiple_of(1 << 12) {
            progress.advance(1 << 12);
        }
    }
    progress.advance(header.nodes % (1 << 12));
    tokens.expect_end(&header)?;
    symmetry.check(path, &header)?;
    let rows = edges.finish(output)?;
    let recipe = nodes.finish(import, output, &header, &mut notes)?;
    progress.done();
    Ok(Found { nodes: header.nodes, edges: rows, recipe, notes, skipped: None })
}

fn header(tokens: &mut Tokens) -> Result<Header> {
    tokens.skip_comments()?;
    let mut numbers = Vec::new();
    while let Some(number) = tokens.number()? {
        numbers.push(number);
        if numbers.len() > 4 {
            break;
        }
    }
    let wrong = |reason: String| Err(tokens.wrong(reason));
    let (nodes, edges, format, constraints) = match numbers[..] {
        [nodes, edges] => (nodes, edges, 0, 0),
        [nodes, edges, format] => (nodes, edges, format, 0),
        [nodes, edges, format, constraints] => (nodes, edges, format, constraints),
        _ => {
            return wrong(format!(
                "{} in the header; it needs nodes and edges, and optionally format and number of node weights",
                plural(numbers.len(), "number")
            ));
        }
    };
    if format > 111 || [format / 100, format / 10 % 10, format % 10].iter().any(|digit| *digit > 1) {
        return wrong(format!(
            "format {format:03}: must be three digits of 0 and 1 (node sizes, node weights, edge weights)"
        ));
    }
    if nodes >= u64::from(u32::MAX) {
        return Err(Error::TooLarge { what: "number of nodes".into(), found: nodes, limit: u64::from(u32::MAX) - 1 });
    }
    let weighted = format / 10 % 10 == 1;
    if constraints > 1 << 10 || (!weighted && constraints > 1) {
        return wrong(format!("{constraints} node weights, but format {format:03} has none"));
    }
    Ok(Header {
        nodes,
        edges,
        sizes: format / 100 == 1,
        weights: if weighted { constraints.max(1) as usize } else { 0 },
        edge_weights: format % 10 == 1,
    })
}

/// Sums over entries with a greater neighbor, minus sums over entries with a smaller one. They are 0 when the lines
/// agree.
#[derive(Default)]
struct SymmetryCheck {
    entries: u64,
    upper: u64,
    hash: u64,
}

impl SymmetryCheck {
    #[inline]
    fn add(&mut self, node: u64, neighbor: u64, weight: u64) {
        let (low, high) = (node.min(neighbor), node.max(neighbor));
        let hash = Key::new(0, Purpose::GenerateEdges).fold(low).fold(high).draw(weight);
        self.entries += 1;
        if node < neighbor {
            self.upper += 1;
            self.hash = self.hash.wrapping_add(hash);
        } else {
            self.hash = self.hash.wrapping_sub(hash);
        }
    }

    fn check(&self, path: &Path, header: &Header) -> Result<()> {
        let fail = |reason: String| Err(Error::File { path: path.into(), reason });
        if self.entries != 2 * header.edges {
            return fail(format!(
                "its header says {} edges, but its lines have {} neighbors instead of {} (two for each edge); correct \
                 the header",
                header.edges,
                self.entries,
                2 * header.edges
            ));
        }
        if 2 * self.upper != self.entries || self.hash != 0 {
            return fail(
                "an edge is missing in the line of one of its ends, or has two weights; write each edge in both lines"
                    .into(),
            );
        }
        Ok(())
    }
}

/// The node table: ids, sizes and weights from the file; features, labels and splits from arrays.
struct NodeTable {
    table: TableStream,
    extras: Vec<Vec<i64>>,
    arrays: Vec<Box<dyn Column>>,
    recipe: Recipe,
    first: i64,
    buffered: usize,
    group: usize,
}

impl NodeTable {
    fn begin(import: &Import, output: &Output, header: &Header) -> Result<Self> {
        let mut fields = vec![Field::new("node_id", DataType::Int64, false)];
        if header.sizes {
            fields.push(Field::new("node_size", DataType::Int64, false));
        }
        for i in 0..header.weights {
            let name = if header.weights == 1 { "node_weight".into() } else { format!("node_weight_{}", i + 1) };
            fields.push(Field::new(name, DataType::Int64, false));
        }
        let extras = vec![Vec::new(); fields.len() - 1];
        let mut recipe = Recipe { undirected: true, weight: header.edge_weights, ..Recipe::default() };
        let arrays = node_arrays(import, header.nodes, "the header says", &mut recipe)?;
        fields.extend(arrays.iter().map(|column| column.field()));
        let row_bytes = 8 * (extras.len() + 1) + arrays.iter().map(|column| column.row_bytes()).sum::<usize>();
        let table = output.stream(NODES, Arc::new(Schema::new(fields)), import.file_rows)?;
        Ok(Self { table, extras, arrays, recipe, first: 0, buffered: 0, group: group_rows(row_bytes) })
    }

    fn extra(&mut self, column: usize, value: u64) {
        self.extras[column].push(value as i64);
    }

    fn end_row(&mut self, last: bool) -> Result<()> {
        self.buffered += 1;
        if self.buffered < self.group && !last {
            return Ok(());
        }
        let next = self.first + self.buffered as i64;
        let mut columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from_iter_values(self.first..next))];
        columns.extend(self.extras.iter_mut().map(|v| Arc::new(Int64Array::from(std::mem::take(v))) as ArrayRef));
        for column in &mut self.arrays {
            columns.push(column.take(self.buffered)?);
        }
        (self.first, self.buffered) = (next, 0);
        self.table.push(columns)
    }

    fn finish(
        mut self,
        import: &Import,
        output: &mut Output,
        header: &Header,
        notes: &mut Vec<String>,
    ) -> Result<Recipe> {
        self.arrays.iter_mut().try_for_each(|column| column.end())?;
        output.end(self.table)?;
        if header.weights > 0 || header.sizes {
            notes.push("node weights and sizes are columns of nodes.parquet that gnnflow does not read".into());
        }
        let mut recipe = self.recipe;
        recipe.title = "Imported from a METIS graph; ids count from 0, in the order of its lines.".into();
        if import.undirected == Some(false) {
            notes.push("each edge of a METIS graph is written once; with --directed it has one direction only".into());
            recipe.undirected = false;
        }
        Ok(recipe)
    }
}

/// Returns the columns from the user's arrays.
pub(super) fn node_arrays(
    import: &Import,
    nodes: u64,
    count_source: &str,
    recipe: &mut Recipe,
) -> Result<Vec<Box<dyn Column>>> {
    let mut columns: Vec<Box<dyn Column>> = Vec::new();
    if let Some(what) = &import.arrays.features {
        let features = Matrix::open("features", what, nodes, count_source)?;
        recipe.features = features.width;
        columns.push(Box::new(features));
    }
    if let Some(what) = &import.arrays.labels {
        let labels = Labels::array(open_array(what)?, false, nodes, count_source)?;
        recipe.label = Some(labels.style != LabelStyle::Value);
        columns.push(Box::new(labels));
    }
    if let Some(what) = &import.arrays.split {
        let mut array = open_array(what)?;
        if array.matrix()? != (nodes, 1) {
            return Err(array.wrong(format!("has shape {:?}, but {count_source} {nodes} nodes", array.shape)));
        }
        let (mut of, mut some, mut left) = (Vec::with_capacity(nodes as usize), Vec::new(), nodes);
        while left > 0 {
            let items = left.min(1 << 16) as usize;
            array.ints(items, None, &mut some)?;
            if let Some(i) = some.iter().position(|which| !(0..=3).contains(which)) {
                let reason = format!("has {}: must be 0 none, 1 train, 2 validation or 3 test", some[i]);
                return Err(array.wrong(reason));
            }
            of.extend(some.iter().map(|&which| which as u8));
            left -= items as u64;
        }
        recipe.split = true;
        columns.push(Box::new(Splits { of, at: 0 }));
    }
    Ok(columns)
}

/// The numbers of a file, line by line, without comment lines.
struct Tokens<'a> {
    input: Input<'a>,
    line: u64,
}

impl Tokens<'_> {
    /// Returns the next number of the current line, or `None` at its end. Does not consume the line break.
    #[inline]
    fn number(&mut self) -> Result<Option<u64>> {
        let mut value: Option<u64> = None;
        loop {
            let bytes = self.input.fill()?;
            let mut consumed = 0;
            let mut end = bytes.is_empty();
            let mut unexpected = None;
            for &byte in bytes {
                match byte {
                    b'0'..=b'9' => {
                        let digit = u64::from(byte - b'0');
                        let extended = value.unwrap_or(0).checked_mul(10).and_then(|value| value.checked_add(digit));
                        let Some(extended) = extended.filter(|&extended| extended <= i64::MAX as u64) else {
                            unexpected = Some(byte);
                            break;
                        };
                        value = Some(extended);
                    }
                    b' ' | b'\t' | b'\r' if value.is_none() => {}
                    b' ' | b'\t' | b'\r' | b'\n' => {
                        end = true;
                        break;
                    }
                    other => {
                        unexpected = Some(other);
                        break;
                    }
                }
                consumed += 1;
            }
            self.input.consume(consumed);
            if let Some(byte) = unexpected {
                let what = match byte {
                    b'-' | b'.' => "a number that is negative or has decimals".to_string(),
                    b'0'..=b'9' => "a number beyond 2^63".to_string(),
                    _ => format!("{:?}", char::from(byte)),
                };
                return Err(self.wrong(format!("{what} instead of a non-negative integer")));
            }
            if end {
                return Ok(value);
            }
        }
    }

    fn required(&mut self, what: &str) -> Result<u64> {
        self.number()?.ok_or_else(|| self.wrong(format!("{what} is missing; by the header, every line begins with it")))
    }

    /// Consumes the end of the current line. Returns `false` at the end of the file.
    fn end_line(&mut self) -> Result<bool> {
        loop {
            let bytes = self.input.fill()?;
            if bytes.is_empty() {
                return Ok(false);
            }
            let end = bytes.iter().position(|&byte| byte == b'\n');
            let consumed = end.map_or(bytes.len(), |end| end + 1);
            self.input.consume(consumed);
            if end.is_some() {
                self.line += 1;
                return Ok(true);
            }
        }
    }

    fn skip_comments(&mut self) -> Result<()> {
        while self.input.fill()?.first() == Some(&b'%') {
            self.end_line()?;
        }
        Ok(())
    }

    /// Advances to the line of `node`. An empty line is a node without neighbors; the last line may lack a line break.
    fn begin_line(&mut self, node: u64, header: &Header) -> Result<()> {
        let has_line = self.end_line()?;
        self.skip_comments()?;
        if has_line && !self.input.fill()?.is_empty() {
            return Ok(());
        }
        let Header { nodes, .. } = header;
        Err(Error::File {
            path: self.input.path().into(),
            reason: format!("its header says {nodes} nodes, but it has lines for {node} only; was it cut off?"),
        })
    }

    /// Checks that only empty lines and comments follow.
    fn expect_end(&mut self, header: &Header) -> Result<()> {
        while self.end_line()? {
            self.skip_comments()?;
            if self.number()?.is_some() {
                return Err(self.wrong(format!("too many lines: the header says {} nodes", header.nodes)));
            }
        }
        Ok(())
    }

    fn wrong(&self, reason: impl Into<String>) -> Error {
        Error::Line { path: self.input.path().into(), line: self.line, reason: reason.into() }
    }
}
