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
use super::ogb_edges::{Pairs, array_edges};
use super::ogb_files::{
    after_header, check_nodes, find, in_mapping, mapping, missing, one_number, open, required, text_matrix,
};
use super::rows::{Buffer, Rows};
use super::text_rows::TextRows;
use super::{EDGES, Found, Import, NODES, Recipe, ogb_split, ogb_types};
use crate::error::Result;
use crate::generate::table::Output;
use crate::progress::Progress;

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
        columns.push(Box::new(Names { source: Some(TextRows::new(after_header(&path)?, nodes, by)) }));
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
    Ok(Found { nodes, edges: written, recipe, notes, skipped: None })
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
                        let source = Some(TextRows::new(open(&path)?, nodes, self.count_source()));
                        more.push(Box::new(Ints { name: name.into(), source }));
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
