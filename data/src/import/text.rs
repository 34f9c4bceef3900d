//! Edge lists as text: SNAP (`#` comments, blanks), KONECT (`%` comments), MatrixMarket, CSV and TSV.

use std::collections::HashSet;
use std::path::Path;

use super::distinct::{DistinctInts, DistinctTexts};
use super::header::{Expected, named, position};
use super::records::{Delimiter, FILL_IN, Records, float, int, show};
use super::rows::{Buffer, Rows};
use super::text_nodes::Nodes;
use super::text_sample::Sample;
use super::{EDGES, EmptyIds, Found, Import, NODES, Recipe, Skipped, TextOptions};
use crate::dataset::IdKind;
use crate::error::{Error, Result};
use crate::generate::table::Output;
use crate::pipeline_file::MANY_EDGE_TYPES;
use crate::progress::Progress;
use crate::usual_names::{DST, SRC};

/// Positions of the columns in one file.
struct Layout {
    src: usize,
    dst: usize,
    weight: Option<usize>,
    time: Option<usize>,
    edge_type: Option<usize>,
    features: Vec<usize>,
}

impl Layout {
    fn of(sample: &Sample, import: &Import) -> Result<Self> {
        let options = &import.text;
        let src = sample.find(options.src.as_ref(), SRC, Some(0))?.unwrap_or(0);
        let dst = sample.find(options.dst.as_ref(), DST, Some(1))?.unwrap_or(1);
        if src == dst {
            let (path, name) = (sample.path.display(), sample.name(src));
            let reason = format!("{path}: both ends of the edges are column \"{name}\"; name two different columns");
            return Err(Error::Setting { key: "--src, --dst", reason });
        }
        let optional = |wanted: &Option<String>| wanted.as_ref().map(|wanted| sample.column(wanted)).transpose();
        let named = |name: &str| options_named(sample, name);
        let weight = optional(&options.weight)?.or_else(|| named("weight"));
        let time = optional(&options.time)?.or_else(|| named("time").or_else(|| named("timestamp")));
        Ok(Self {
            src,
            dst,
            weight: weight.filter(|column| ![src, dst].contains(column)),
            time: time.filter(|column| ![src, dst].contains(column)),
            edge_type: optional(&options.edge_type)?,
            features: sample.columns(&options.edge_features)?,
        })
    }

    /// Returns the fields of each column of the edge table.
    fn fields(&self) -> Vec<Vec<usize>> {
        let single = [Some(self.src), Some(self.dst), self.weight, self.time, self.edge_type];
        let features = Some(&self.features).filter(|features| !features.is_empty()).cloned();
        single.into_iter().flatten().map(|field| vec![field]).chain(features).collect()
    }

    /// Returns which columns exist. It must be the same for all files.
    fn shape(&self) -> (bool, bool, bool, usize) {
        (self.weight.is_some(), self.time.is_some(), self.edge_type.is_some(), self.features.len())
    }

    /// Returns a note if the file has several columns, and neither the user nor usual names say which are the ends.
    fn guess(&self, sample: &Sample, options: &TextOptions) -> Option<String> {
        let usual = |names: &[&str], column: usize| names.contains(&sample.name(column).to_lowercase().as_str());
        let src = options.src.is_some() || usual(SRC, self.src);
        let dst = options.dst.is_some() || usual(DST, self.dst);
        let [from, to] = [self.src, self.dst].map(|column| sample.name(column));
        (sample.header.is_some() && sample.width > 2 && !(src && dst)).then(|| {
            let path = sample.path.display();
            format!("{path}: edges go from column \"{from}\" to column \"{to}\" (--src and --dst choose others)")
        })
    }
}

fn options_named(sample: &Sample, name: &str) -> Option<usize> {
    sample.header.iter().flatten().position(|found| found.to_lowercase() == name)
}

/// The edge files of an import, as the first lines of the first file show them.
pub(super) struct Edges<'a> {
    import: &'a Import,
    /// The first file.
    pub(super) sample: Sample,
    layout: Layout,
    pub(super) kind: IdKind,
    pub(super) recipe: Recipe,
}

impl<'a> Edges<'a> {
    pub(super) fn open(import: &'a Import, notes: &mut Vec<String>) -> Result<Self> {
        let options = &import.text;
        let sample = Self::sample(&import.paths[0], options)?;
        let layout = Layout::of(&sample, import)?;
        let kind = options.ids.unwrap_or_else(|| match sample.id_kind(layout.src) {
            IdKind::Int => sample.id_kind(layout.dst),
            IdKind::Text => IdKind::Text,
        });
        let undirected = import.undirected.or(sample.undirected).unwrap_or(false);
        let recipe = Recipe {
            title: "Imported from an edge list.".into(),
            undirected,
            reverse_edges: layout.edge_type.is_some() && !undirected,
            keep_duplicates: layout.time.is_some(),
            weight: layout.weight.is_some(),
            time: layout.time.is_some(),
            edge_type: layout.edge_type.is_some(),
            edge_features: !layout.features.is_empty(),
            ..Recipe::default()
        };
        if import.undirected.is_none() && sample.undirected.is_none() {
            notes.push("edges are directed; use --undirected if each row is an edge in both directions".into());
        }
        Ok(Self { import, sample, layout, kind, recipe })
    }

    fn sample(path: &Path, options: &TextOptions) -> Result<Sample> {
        let TextOptions { src, dst, weight, time, edge_type, edge_features, .. } = options;
        let expected = Expected {
            usual: &[SRC, DST],
            named: named(&[src, dst, weight, time, edge_type], edge_features),
            ids: vec![position(src.as_ref(), 0), position(dst.as_ref(), 1)],
            blanks: false,
        };
        Sample::take(path, options, expected)
    }

    /// Returns the columns of the edge table, and the pass that fills them.
    pub(super) fn columns(&self) -> (Vec<(String, Buffer)>, Pass) {
        let (kind, recipe, options) = (self.kind, &self.recipe, &self.import.text);
        let mut columns = vec![("src".to_string(), Buffer::ids(kind)), ("dst".to_string(), Buffer::ids(kind))];
        let mut next = 2;
        let mut add = |exists: bool, name: &str, buffer: Buffer| {
            exists.then(|| {
                columns.push((name.to_string(), buffer));
                next += 1;
                next - 1
            })
        };
        let pass = Pass {
            kind,
            weight: add(recipe.weight, "weight", Buffer::float()),
            time: add(recipe.time, "time", Buffer::int()),
            edge_type: add(recipe.edge_type, "edge_type", Buffer::text()),
            features: add(recipe.edge_features, "edge_features", Buffer::matrix(self.layout.features.len())),
            edge_types: HashSet::new(),
            ids: options.nodes.is_empty().then(|| (DistinctInts::default(), DistinctTexts::default())),
            rounded: false,
            empty_ids: options.empty_ids,
            skipped: Skipped::default(),
        };
        (columns, pass)
    }

    /// Returns the fields of each column of the edge table in the first file.
    pub(super) fn fields(&self) -> Vec<Vec<usize>> {
        self.layout.fields()
    }

    /// Reads at most `limit` rows of a file.
    pub(super) fn file(
        &self,
        path: &Path,
        pass: &mut Pass,
        rows: &mut Rows,
        limit: u64,
        notes: &mut Vec<String>,
        progress: &dyn Progress,
    ) -> Result<()> {
        let sample = Self::sample(path, &self.import.text)?;
        let own = Layout::of(&sample, self.import)?;
        if sample.rows.is_empty() {
            notes.push(format!("{}: it has no edges", path.display()));
            return Ok(());
        }
        if own.shape() != self.layout.shape() {
            let reason = format!("its columns differ from those of {}", self.import.paths[0].display());
            return Err(Error::File { path: path.into(), reason });
        }
        notes.extend(sample.guess.clone());
        notes.extend(own.guess(&sample, &self.import.text));
        pass.file(&sample, &own, rows, limit, progress)?;
        notes.extend(pass.skipped.add_columns(&sample, &own.fields().concat()));
        Ok(())
    }
}

pub(super) fn import(import: &Import, output: &mut Output, progress: &dyn Progress) -> Result<Found> {
    let mut notes = Vec::new();
    let edge_files = Edges::open(import, &mut notes)?;
    let (columns, mut pass) = edge_files.columns();
    let mut rows = Rows::begin(output, EDGES, columns, import.file_rows)?;
    let bytes = import.paths.iter().filter_map(|path| path.metadata().ok()).map(|meta| meta.len()).sum();
    progress.stage("importing edges", Some(bytes), "bytes");
    for path in &import.paths {
        edge_files.file(path, &mut pass, &mut rows, u64::MAX, &mut notes, progress)?;
    }
    let edges = rows.finish(output)?;
    progress.done();
    if pass.rounded {
        notes.push("times with decimals were rounded down".into());
    }

    let Edges { sample, kind, mut recipe, .. } = edge_files;
    recipe.edge_types = pass.edge_types.len();
    let mut skipped = pass.skipped;
    let nodes = match pass.ids {
        Some((ints, texts)) => write_edge_ids(import, output, kind, ints, texts, progress)?,
        None => Nodes::open(import, kind)?.import(output, &mut recipe, &mut skipped, &mut notes, progress)?,
    };
    if let Some((wanted_nodes, wanted_edges)) = sample.counts
        && import.paths.len() == 1
        && (wanted_edges != edges || (wanted_nodes != nodes && import.text.nodes.is_empty()))
    {
        notes.push(format!(
            "{}: its comments say {wanted_nodes} nodes and {wanted_edges} edges, its lines have {nodes} and {edges}",
            import.paths[0].display()
        ));
    }
    Ok(Found { nodes, edges, recipe, notes, skipped: Some(skipped) })
}

/// Reads rows of edges. Its numbers are positions in the edge table.
pub(super) struct Pass {
    kind: IdKind,
    weight: Option<usize>,
    time: Option<usize>,
    edge_type: Option<usize>,
    features: Option<usize>,
    /// The edge types, until there are many.
    edge_types: HashSet<String>,
    /// The distinct ids of the edges, if there is no node file.
    ids: Option<(DistinctInts, DistinctTexts)>,
    rounded: bool,
    empty_ids: EmptyIds,
    pub(super) skipped: Skipped,
}

impl Pass {
    fn file(
        &mut self,
        sample: &Sample,
        layout: &Layout,
        rows: &mut Rows,
        limit: u64,
        progress: &dyn Progress,
    ) -> Result<()> {
        let mut records = Records::open(&sample.path, sample.delimiter, Some(progress))?;
        records.names = sample.header.clone().unwrap_or_default();
        for _ in 0..sample.preamble() {
            records.advance()?;
        }
        let strict = matches!(sample.delimiter, Delimiter::Char(_));
        let mut left = limit;
        while left > 0 && records.advance()? {
            left -= 1;
            if strict && records.len() != sample.width {
                let (found, width) = (records.len(), sample.width);
                return Err(records.wrong(format!("{found} fields, but the lines before have {width}")));
            }
            if !self.skipped.skips(&records, &[layout.src, layout.dst], self.empty_ids)? {
                self.row(&records, layout, rows)?;
            }
        }
        self.skipped.add_lines(&records);
        Ok(())
    }

    fn row(&mut self, records: &Records<'_>, layout: &Layout, rows: &mut Rows) -> Result<()> {
        for (column, field) in [(0, layout.src), (1, layout.dst)] {
            self.end(records, rows, column, field)?;
        }
        if let (Some(column), Some(field)) = (self.weight, layout.weight) {
            rows.float(column, records.float(field, "weight")?);
        }
        if let (Some(column), Some(field)) = (self.time, layout.time) {
            let time = self.time(records, field)?;
            rows.int(column, time);
        }
        if let (Some(column), Some(field)) = (self.edge_type, layout.edge_type) {
            let edge_type = records.text(field)?;
            rows.text(column, edge_type);
            if self.edge_types.len() <= MANY_EDGE_TYPES && !self.edge_types.contains(edge_type) {
                self.edge_types.insert(edge_type.to_owned());
            }
        }
        if let Some(column) = self.features {
            for &field in &layout.features {
                rows.float(column, records.float(field, "feature")?);
            }
        }
        rows.end_rows(1)
    }

    /// Reads one end of an edge.
    fn end(&mut self, records: &Records, rows: &mut Rows, column: usize, field: usize) -> Result<()> {
        match self.kind {
            IdKind::Int => {
                let id = match records.get(field).and_then(int) {
                    Some(id) => id,
                    None => {
                        let reason = match records.get(field) {
                            Some(id) => format!(
                                "id {} is not an integer, but the ids before it are; use --ids text for strings",
                                show(id)
                            ),
                            None => return records.int(field, "id").map(drop),
                        };
                        return Err(records.wrong(reason));
                    }
                };
                rows.int(column, id);
                if let Some((ints, _)) = &mut self.ids {
                    ints.insert(id);
                }
            }
            IdKind::Text => {
                let id = records.text(field)?;
                rows.text(column, id);
                if let Some((_, texts)) = &mut self.ids {
                    texts.insert(id);
                }
            }
        }
        Ok(())
    }

    fn time(&mut self, records: &Records, field: usize) -> Result<i64> {
        let text = records.get(field).unwrap_or_default();
        if let Some(time) = int(text) {
            return Ok(time);
        }
        let number = float(text).and_then(|_| std::str::from_utf8(text).ok()?.parse::<f64>().ok());
        let number = number.filter(|number| number.abs() < 9e15);
        let number = number.ok_or_else(|| match records.get(field) {
            Some([]) => records.empty(field, "time", FILL_IN),
            Some(text) => {
                records.wrong(format!("time {} is not a number; use a number, such as seconds since 1970", show(text)))
            }
            None => records.wrong(format!("{} fields, but field {} is the time", records.len(), field + 1)),
        })?;
        self.rounded = true;
        Ok(number.floor() as i64)
    }
}

/// Writes the ids of the edges as the node table.
fn write_edge_ids(
    import: &Import,
    output: &mut Output,
    kind: IdKind,
    ints: DistinctInts,
    texts: DistinctTexts,
    progress: &dyn Progress,
) -> Result<u64> {
    progress.stage("writing nodes", None, "nodes");
    let mut rows = Rows::begin(output, NODES, vec![("node_id".into(), Buffer::ids(kind))], import.file_rows)?;
    match kind {
        IdKind::Int => {
            for id in ints.finish() {
                rows.int(0, id);
                rows.end_rows(1)?;
            }
        }
        IdKind::Text => {
            for id in texts.finish() {
                rows.text(0, &id);
                rows.end_rows(1)?;
            }
        }
    }
    let nodes = rows.finish(output)?;
    progress.advance(nodes);
    progress.done();
    Ok(nodes)
}
