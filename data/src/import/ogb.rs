//! Node-property datasets of the Open Graph Benchmark (Hu et al. 2020), as its loader downloads and unpacks them.
//!
//! ```text
//! raw/edge.csv.gz  num-node-list.csv.gz  num-edge-list.csv.gz              required
//!     node-feat.csv.gz  node-label.csv.gz  edge-feat.csv.gz  node_*.csv.gz  optional
//! raw/data.npz  node-label.npz                                             the same as arrays (papers100M)
//! raw/triplet-type-list.csv.gz  relations/…                                nodes and edges of several types (mag): ogb_types.rs
//! split/<how>/{train,valid,test}.csv.gz                                    required, unless --without split
//! mapping/nodeidx2….csv.gz                                                 required, unless --without mapping
//! ```
//!
//! A node's id is its number in the download. The column `original_id` has its original name.

use std::path::{Path, PathBuf};

use super::archive::Npz;
use super::columns::{self, ArrayInts, Column, Count, Ints, Names, Section, Splits};
use super::labels::{LabelStyle, Labels};
use super::matrix::Matrix;
use super::records::{Delimiter, Records, int};
use super::rows::{Buffer, Rows};
use super::{EDGES, Found, Import, NODES, OgbPart, Recipe, ogb_split, ogb_types};
use crate::error::{Error, Result};
use crate::format::plural;
use crate::generate::table::Output;
use crate::progress::Progress;

pub(super) const COMMA: Delimiter = Delimiter::Char(b',');

/// Number of rows per read.
const BLOCK: u64 = 1 << 16;

/// Finds file `name` in folder `dir`, compressed or not.
pub(super) fn find(dir: &Path, name: &str) -> Option<PathBuf> {
    let files = [".csv.gz", ".csv", ".csv.zst"].map(|extension| dir.join(format!("{name}{extension}")));
    files.into_iter().find(|path| path.is_file())
}

/// Returns an error about a missing file. `without` is the value of `--without` that makes it optional.
pub(super) fn missing(dir: &Path, name: &str, what: &str, without: Option<&str>) -> Error {
    let or = without.map(|part| format!(", or ignore this part (--without {part})")).unwrap_or_default();
    let reason = format!("{name} is missing ({what}), so the OGB download is not complete; fetch it again{or}");
    Error::File { path: dir.into(), reason }
}

pub(super) fn required(dir: &Path, name: &str, what: &str) -> Result<PathBuf> {
    find(dir, name).ok_or_else(|| missing(dir, &format!("{name}.csv.gz"), what, None))
}

pub(super) fn open(path: &Path) -> Result<Records<'static>> {
    Records::open(path, COMMA, None)
}

/// Returns the only number of a list with one number per graph.
pub(super) fn one_number(path: &Path, what: &str) -> Result<u64> {
    let mut records = open(path)?;
    if !records.advance()? {
        return Err(Error::File { path: path.into(), reason: format!("is empty; it must have the {what}") });
    }
    let number = records.int(0, what)?;
    let number = u64::try_from(number).map_err(|_| records.wrong(format!("{number} is not a valid {what}")))?;
    match records.advance()? {
        true => Err(records.wrong("a second graph; only datasets of one graph (ogbn-…) can be imported")),
        false => Ok(number),
    }
}

pub(super) fn check_nodes(nodes: u64) -> Result<u64> {
    let limit = u64::from(u32::MAX) - 1;
    match nodes <= limit {
        true => Ok(nodes),
        false => Err(Error::TooLarge { what: "number of nodes".into(), found: nodes, limit }),
    }
}

pub(super) fn import(import: &Import, output: &mut Output, progress: &dyn Progress) -> Result<Found> {
    let dir = &import.paths[0];
    let raw = dir.join("raw");
    if !raw.is_dir() {
        return Err(missing(dir, "raw/", "the folder with edges and features", None));
    }
    if find(&raw, "triplet-type-list").is_some() {
        return ogb_types::import(import, output, progress);
    }
    let arrays = raw.join("data.npz");
    let binary = find(&raw, "edge").is_none() && arrays.is_file();
    let source = if binary { Raw::Arrays(Npz::open(&arrays)?) } else { Raw::Text(raw.clone()) };
    let (nodes, edges) = source.counts()?;
    let split = ogb_split::folder(import, dir)?;
    let mapping = mapping(import, dir)?;

    let mut notes = Vec::new();
    let undirected = import.undirected.unwrap_or_else(|| {
        let known = known_undirected(dir);
        if known.is_none() {
            notes.push("edges are directed; use --undirected if each row is an edge in both directions".into());
        }
        known.unwrap_or(false)
    });
    let mut recipe = Recipe {
        title: "Imported from an OGB download; ids are its node numbers.".into(),
        undirected,
        ..Recipe::default()
    };

    let by = source.count_source();
    let mut columns: Vec<Box<dyn Column>> = vec![Box::new(Count { name: "node_id", next: 0 })];
    if let Some(path) = mapping.and_then(|folder| in_mapping(&folder, "nodeidx2")) {
        let source = Some(after_header(&path)?);
        columns.push(Box::new(Names { rows: nodes, source, count_source: by.into(), rows_read: 0 }));
    }
    if let Some(features) = source.features(nodes)? {
        recipe.features = features.width;
        columns.push(Box::new(features));
    }
    if let Some(labels) = source.labels(&raw, nodes)? {
        recipe.label = Some(labels.style != LabelStyle::Value);
        columns.push(Box::new(labels));
    }
    columns.extend(source.more(nodes)?);
    if let Some(folder) = split {
        recipe.split = true;
        columns.push(Box::new(Splits { of: ogb_split::read(&folder, nodes)?, at: 0 }));
    }
    columns::write(output, NODES, vec![Section { rows: nodes, columns }], import.file_rows, progress)?;

    let mut features = source.edge_features(edges)?;
    recipe.edge_features = features.is_some();
    let mut columns = vec![("src".to_string(), Buffer::int()), ("dst".to_string(), Buffer::int())];
    if let Some(features) = &features {
        columns.push(("edge_features".into(), Buffer::matrix(features.width)));
    }
    let mut rows = Rows::begin(output, EDGES, columns, import.file_rows)?;
    progress.stage("importing edges", Some(edges), "edges");
    match &source {
        Raw::Text(raw) => {
            let path = required(raw, "edge", "the edges")?;
            let mut pairs = Pairs { records: open(&path)?, edges, nodes: [nodes; 2], first: [0; 2], rows_read: 0 };
            pairs.read(&mut rows, features.as_mut(), |_| {}, progress)?;
        }
        Raw::Arrays(npz) => array_edges(npz, nodes, edges, &mut rows, features.as_mut(), progress)?,
    }
    let written = rows.finish(output)?;
    progress.done();
    Ok(Found { nodes, edges: written, recipe, notes })
}

/// Returns whether the OGB loader adds the reverse of every edge, from the dataset's name; `None` for unknown datasets.
fn known_undirected(dir: &Path) -> Option<bool> {
    let name = std::fs::canonicalize(dir).ok()?.file_name()?.to_string_lossy().to_lowercase();
    let is = |names: &[&str]| names.iter().any(|known| name.contains(known));
    if is(&["products", "proteins"]) {
        return Some(true);
    }
    is(&["arxiv", "papers100m", "mag"]).then_some(false)
}

/// Returns the folder of names; `None` with `--without mapping`.
pub(super) fn mapping(import: &Import, dir: &Path) -> Result<Option<PathBuf>> {
    let folder = dir.join("mapping");
    if import.without.contains(&OgbPart::Mapping) {
        return Ok(None);
    }
    match folder.is_dir() {
        true => Ok(Some(folder)),
        false => Err(missing(dir, "mapping/", "the folder with the original names of nodes", Some("mapping"))),
    }
}

/// Returns the first file of a folder whose name starts with `begin`.
pub(super) fn in_mapping(folder: &Path, begin: &str) -> Option<PathBuf> {
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    found.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(begin) && name.contains(".csv")
    });
    found.sort();
    found.into_iter().next()
}

/// Opens a table of numbers and names, and skips its header if it has one.
pub(super) fn after_header(path: &Path) -> Result<Records<'static>> {
    let mut records = open(path)?;
    let named = records.advance()? && records.get(0).and_then(int).is_none();
    if named { Ok(records) } else { open(path) }
}

/// The two forms of `raw/`.
enum Raw {
    Text(PathBuf),
    Arrays(Npz),
}

impl Raw {
    fn count_source(&self) -> &'static str {
        match self {
            Self::Text(_) => "num-node-list.csv.gz says",
            Self::Arrays(_) => "num_nodes_list says",
        }
    }

    fn counts(&self) -> Result<(u64, u64)> {
        let (nodes, edges) = match self {
            Self::Text(raw) => {
                required(raw, "edge", "the edges")?;
                let nodes = one_number(&required(raw, "num-node-list", "the number of nodes")?, "number of nodes")?;
                (nodes, one_number(&required(raw, "num-edge-list", "the number of edges")?, "number of edges")?)
            }
            Self::Arrays(npz) => {
                let one = |name: &str| {
                    let array = npz.array(name)?;
                    match array.len() {
                        1 => Ok(array.all_ints()?[0].max(0) as u64),
                        graphs => {
                            Err(array.wrong(format!("has {graphs} graphs; only datasets of one can be imported")))
                        }
                    }
                };
                (one("num_nodes_list")?, one("num_edges_list")?)
            }
        };
        Ok((check_nodes(nodes)?, edges))
    }

    fn features(&self, nodes: u64) -> Result<Option<Matrix>> {
        match self {
            Self::Text(raw) => text_matrix("features", raw, "node-feat", nodes, self.count_source()),
            Self::Arrays(npz) if npz.has("node_feat") => {
                Matrix::dense("features", npz.array("node_feat")?, nodes, self.count_source()).map(Some)
            }
            Self::Arrays(_) => Ok(None),
        }
    }

    fn labels(&self, raw: &Path, nodes: u64) -> Result<Option<Labels>> {
        let by = self.count_source();
        let arrays = raw.join("node-label.npz");
        if let Some(path) = find(raw, "node-label") {
            return Labels::text(open(&path)?, open(&path)?, nodes, by).map(Some);
        }
        match arrays.is_file() {
            true => Labels::array(Npz::open(&arrays)?.array("node_label")?, true, nodes, by).map(Some),
            false => Ok(None),
        }
    }

    /// Returns further columns of the nodes: year, species.
    fn more(&self, nodes: u64) -> Result<Vec<Box<dyn Column>>> {
        let mut more: Vec<Box<dyn Column>> = Vec::new();
        for name in ["node_year", "node_species"] {
            match self {
                Self::Text(raw) => {
                    if let Some(path) = find(raw, name) {
                        more.push(Box::new(Ints {
                            name: name.into(),
                            rows: nodes,
                            source: Some(open(&path)?),
                            count_source: self.count_source().into(),
                            rows_read: 0,
                        }));
                    }
                }
                Self::Arrays(npz) if npz.has(name) => {
                    let array = npz.array(name)?;
                    if array.len() != nodes {
                        return Err(array.wrong(format!(
                            "has {} items, but {} {nodes}",
                            array.len(),
                            self.count_source()
                        )));
                    }
                    more.push(Box::new(ArrayInts { name: name.into(), array }));
                }
                Self::Arrays(_) => {}
            }
        }
        Ok(more)
    }

    fn edge_features(&self, edges: u64) -> Result<Option<Matrix>> {
        match self {
            Self::Text(raw) => text_matrix("edge_features", raw, "edge-feat", edges, "num-edge-list.csv.gz says"),
            Self::Arrays(npz) if npz.has("edge_feat") => {
                Matrix::dense("edge_features", npz.array("edge_feat")?, edges, "num_edges_list says").map(Some)
            }
            Self::Arrays(_) => Ok(None),
        }
    }
}

pub(super) fn text_matrix(column: &'static str, dir: &Path, name: &str, rows: u64, by: &str) -> Result<Option<Matrix>> {
    let Some(path) = find(dir, name) else { return Ok(None) };
    Matrix::text(column, open(&path)?, open(&path)?, rows, by).map(Some)
}

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
fn array_edges(
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
