//! OGB downloads with nodes and edges of several types (ogbn-mag).
//!
//! ```text
//! raw/num-node-dict.csv.gz                                    types in the first line, numbers of nodes in the second
//!     triplet-type-list.csv.gz                                source type, relation, destination type in each line
//!     relations/S___R___D/{edge,num-edge-list}.csv.gz
//!     node-feat/T/{node-feat,node_year}.csv.gz  node-label/T/node-label.csv.gz
//! split/<how>/T/{train,valid,test}.csv.gz   mapping/T_entidx2name.csv.gz
//! ```
//!
//! All nodes go into one table, ordered by type name. `node_id` counts over all types, `local_id` is the number within
//! the type, and `node_type` is the name of the type. A type without features gets zeros, one without labels gets −1.
//!
//! All edges go into one table; their type is `S___R___D`.

use std::path::{Path, PathBuf};

use super::columns::{self, Column, Constant, Count, Ints, Names, Section, Splits};
use super::labels::{LabelSource, LabelStyle, Labels};
use super::matrix::{Matrix, Source};
use super::ogb_edges::Pairs;
use super::ogb_files::{
    after_header, check_nodes, find, in_mapping, mapping, missing, one_number, open, required, text_matrix,
};
use super::rows::{Buffer, Rows};
use super::text_rows::TextRows;
use super::{EDGES, Found, Import, NODES, Recipe, ogb_split};
use crate::error::{Error, Result};
use crate::generate::table::Output;
use crate::progress::Progress;

/// Nodes of one type.
struct NodeType {
    name: String,
    nodes: u64,
    first: u64,
}

pub(super) fn import(import: &Import, output: &mut Output, progress: &dyn Progress) -> Result<Found> {
    let dir = &import.paths[0];
    let raw = dir.join("raw");
    let types = node_types(&raw)?;
    let nodes: u64 = types.iter().map(|of| of.nodes).sum();
    let relations = relations(&raw, &types)?;
    let split = ogb_split::folder(import, dir)?;
    let mapping = mapping(import, dir)?;
    let mut recipe = Recipe {
        title: "Imported from an OGB download with several types; node_id counts over all types.".into(),
        undirected: import.undirected == Some(true),
        reverse_edges: import.undirected != Some(true),
        node_type: true,
        edge_type: true,
        edge_types: relations.len(),
        split: split.is_some(),
        ..Recipe::default()
    };

    let sections = Tables { raw: &raw, types: &types, mapping, split }.sections(&mut recipe)?;
    columns::write(output, NODES, sections, import.file_rows, progress)?;

    let columns = vec![
        ("src".to_string(), Buffer::int()),
        ("dst".to_string(), Buffer::int()),
        ("edge_type".to_string(), Buffer::text()),
    ];
    let mut rows = Rows::begin(output, EDGES, columns, import.file_rows)?;
    progress.stage(
        "importing edges",
        Some(relations.iter().fold(0, |sum, relation| sum.saturating_add(relation.edges))),
        "edges",
    );
    let mut notes = Vec::new();
    for relation in &relations {
        let ends = relation.ends.map(|end| &types[end]);
        let path = required(&relation.dir, "edge", "the edges")?;
        let mut pairs = Pairs {
            records: open(&path)?,
            edges: relation.edges,
            nodes: ends.map(|end| end.nodes),
            first: ends.map(|end| end.first as i64),
            rows_read: 0,
        };
        pairs.read(&mut rows, None, |rows| rows.text(2, &relation.name), progress)?;
        for name in ["edge-feat", "edge_reltype"] {
            if let Some(path) = find(&relation.dir, name) {
                notes.push(format!("{}: the file was ignored", path.display()));
            }
        }
    }
    let edges = rows.finish(output)?;
    progress.done();
    if import.undirected.is_none() {
        notes.push("edges are directed; use --undirected if each row is an edge in both directions".into());
    }
    Ok(Found { nodes, edges, recipe, notes, skipped: None })
}

fn node_types(raw: &Path) -> Result<Vec<NodeType>> {
    let path = required(raw, "num-node-dict", "the numbers of nodes")?;
    let mut records = open(&path)?;
    records.advance()?;
    let names: Vec<String> = (0..records.len()).map(|i| records.text(i).map(String::from)).collect::<Result<_>>()?;
    records.advance()?;
    let mut types = Vec::new();
    for (i, name) in names.into_iter().enumerate() {
        let nodes = records.int(i, "number of nodes")?;
        let nodes = u64::try_from(nodes).map_err(|_| records.wrong(format!("{nodes} nodes of type {name}")))?;
        types.push(NodeType { name, nodes, first: 0 });
    }
    types.sort_by(|a, b| a.name.cmp(&b.name));
    let mut first = 0;
    for of in &mut types {
        of.first = first;
        first = check_nodes(first + of.nodes)?;
    }
    Ok(types)
}

/// Edges of one type.
struct Relation {
    name: String,
    dir: PathBuf,
    edges: u64,
    /// Node types of source and destination.
    ends: [usize; 2],
}

fn relations(raw: &Path, types: &[NodeType]) -> Result<Vec<Relation>> {
    let path = required(raw, "triplet-type-list", "the types of edges")?;
    let mut records = open(&path)?;
    let mut relations = Vec::new();
    while records.advance()? {
        let [src, relation, dst] = [records.text(0)?, records.text(1)?, records.text(2)?];
        let of = |name: &str| {
            let known = types.iter().position(|of| of.name == name);
            known.ok_or_else(|| records.wrong(format!("node type \"{name}\" is not in num-node-dict")))
        };
        let name = format!("{src}___{relation}___{dst}");
        let dir = raw.join("relations").join(&name);
        if !dir.is_dir() {
            return Err(missing(raw, &format!("relations/{name}/"), "edges of that type", None));
        }
        let edges = one_number(&required(&dir, "num-edge-list", "the number of edges")?, "number of edges")?;
        relations.push(Relation { ends: [of(src)?, of(dst)?], name, dir, edges });
    }
    relations.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(relations)
}

struct Tables<'a> {
    raw: &'a Path,
    types: &'a [NodeType],
    mapping: Option<PathBuf>,
    split: Option<PathBuf>,
}

impl Tables<'_> {
    /// Returns the columns of each type. A column that any type has exists for all types.
    fn sections(&self, recipe: &mut Recipe) -> Result<Vec<Section>> {
        let by = |of: &NodeType| format!("num-node-dict.csv.gz says for {}", of.name);
        let mut features = Vec::new();
        let mut labels = Vec::new();
        for of in self.types {
            let dir = self.raw.join("node-feat").join(&of.name);
            features.push(text_matrix("features", &dir, "node-feat", of.nodes, &by(of))?);
            let path = find(&self.raw.join("node-label").join(&of.name), "node-label");
            let read = |path: PathBuf| Labels::text(open(&path)?, open(&path)?, of.nodes, &by(of));
            labels.push(path.map(read).transpose()?);
        }
        let widths: Vec<usize> = features.iter().flatten().map(|matrix| matrix.width).collect();
        if let [first, rest @ ..] = &widths[..] {
            if let Some(other) = rest.iter().find(|width| *width != first) {
                let reason =
                    format!("types with {first} and with {other} features; only those of one width can be imported");
                return Err(Error::File { path: self.raw.join("node-feat"), reason });
            }
            recipe.features = *first;
        }
        let style = labels.iter().flatten().map(|labels| labels.style).next();
        recipe.label = style.map(|style| style != LabelStyle::Value);
        if let Some(other) = labels.iter().flatten().find(|labels| Some(labels.style) != style) {
            let path = match &other.source {
                LabelSource::Text(source) => source.records.path().into(),
                _ => self.raw.join("node-label"),
            };
            return Err(Error::File {
                path,
                reason: "its labels are of another kind than those of other node types".into(),
            });
        }
        let years = self.types.iter().any(|of| self.year(of).is_some());

        let mut sections = Vec::new();
        for ((of, features), labels) in self.types.iter().zip(features).zip(labels) {
            let mut columns: Vec<Box<dyn Column>> = vec![
                Box::new(Count { name: "node_id", next: of.first as i64 }),
                Box::new(Count { name: "local_id", next: 0 }),
                Box::new(Constant { name: "node_type", value: of.name.clone() }),
            ];
            let rows = |records| TextRows::new(records, of.nodes, &by(of));
            if let Some(folder) = &self.mapping {
                let path = in_mapping(folder, &format!("{}_entidx2name", of.name));
                let records = path.map(|path| after_header(&path)).transpose()?;
                columns.push(Box::new(Names { source: records.map(rows) }));
            }
            if recipe.features > 0 {
                let zeros = Matrix { name: "features", width: recipe.features, source: Source::Zeros };
                columns.push(Box::new(features.unwrap_or(zeros)));
            }
            if let Some(style) = style {
                columns.push(Box::new(labels.unwrap_or(Labels { style, source: LabelSource::None })));
            }
            if years {
                let records = self.year(of).map(|path| open(&path)).transpose()?;
                columns.push(Box::new(Ints { name: "node_year".into(), source: records.map(rows) }));
            }
            if let Some(folder) = &self.split {
                let own = folder.join(&of.name);
                let split = match own.is_dir() {
                    true => ogb_split::read(&own, of.nodes)?,
                    false => vec![crate::dataset::split::NONE; of.nodes as usize],
                };
                columns.push(Box::new(Splits { of: split, at: 0 }));
            }
            sections.push(Section { rows: of.nodes, columns });
        }
        Ok(sections)
    }

    fn year(&self, of: &NodeType) -> Option<PathBuf> {
        find(&self.raw.join("node-feat").join(&of.name), "node_year")
    }
}
