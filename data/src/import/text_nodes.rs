//! Node tables as text: CSV and TSV files with an id and optional features, label, split and type.

use std::path::Path;

use super::columns::split_name;
use super::header::{Expected, named, position};
use super::records::{Delimiter, Records, class, float, show};
use super::rows::{Buffer, Rows};
use super::text_sample::Sample;
use super::{Import, NODES, Recipe, Skipped, TextOptions};
use crate::dataset::{IdKind, split};
use crate::error::{Error, Result};
use crate::generate::table::Output;
use crate::progress::Progress;
use crate::usual_names::ID;

/// Kind of the label column, from the first lines. An empty label is no label: -1 for classes, and null for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    Class,
    Value,
    Name,
}

struct Layout {
    id: usize,
    features: Vec<usize>,
    label: Option<usize>,
    split: Option<usize>,
    node_type: Option<usize>,
}

impl Layout {
    fn of(sample: &Sample, import: &Import) -> Result<Self> {
        let options = &import.text;
        let id = sample.find(options.id.as_ref(), ID, Some(0))?.unwrap_or(0);
        let other = |column: Option<usize>| column.filter(|&column| column != id);
        let optional = |wanted: &Option<String>| wanted.as_ref().map(|wanted| sample.column(wanted)).transpose();
        Ok(Self {
            id,
            features: sample.columns(&options.features)?,
            label: other(sample.find(options.label.as_ref(), &["label"], None)?),
            split: other(sample.find(options.split.as_ref(), &["split"], None)?),
            node_type: optional(&options.node_type)?,
        })
    }

    /// Returns the fields of each column of the node table.
    fn fields(&self) -> Vec<Vec<usize>> {
        let features = Some(self.features.clone()).filter(|features| !features.is_empty());
        let single = [self.label, self.split, self.node_type];
        [vec![self.id]]
            .into_iter()
            .chain(features)
            .chain(single.into_iter().flatten().map(|field| vec![field]))
            .collect()
    }

    fn shape(&self) -> (usize, bool, bool, bool) {
        (self.features.len(), self.label.is_some(), self.split.is_some(), self.node_type.is_some())
    }
}

/// The node files of an import, as the first lines of the first file show them.
pub(super) struct Nodes<'a> {
    import: &'a Import,
    /// The first file.
    pub(super) sample: Sample,
    layout: Layout,
    kind: IdKind,
    label: Option<Label>,
}

impl<'a> Nodes<'a> {
    pub(super) fn open(import: &'a Import, kind: IdKind) -> Result<Self> {
        let sample = Self::sample(&import.text.nodes[0], &import.text)?;
        let layout = Layout::of(&sample, import)?;
        let label = layout.label.map(|column| label_kind(&sample, column));
        Ok(Self { import, sample, layout, kind, label })
    }

    fn sample(path: &Path, options: &TextOptions) -> Result<Sample> {
        let TextOptions { id, label, split, node_type, features, .. } = options;
        let expected = Expected {
            usual: &[ID, &["label", "split"]],
            named: named(&[id, label, split, node_type], features),
            ids: vec![position(id.as_ref(), 0)],
            blanks: false,
        };
        Sample::take(path, options, expected)
    }

    /// Returns the columns of the node table.
    pub(super) fn columns(&self) -> Vec<(String, Buffer)> {
        let mut columns = vec![("node_id".to_string(), Buffer::ids(self.kind))];
        if !self.layout.features.is_empty() {
            columns.push(("features".into(), Buffer::matrix(self.layout.features.len())));
        }
        if let Some(label) = self.label {
            let buffer = match label {
                Label::Class => Buffer::int(),
                Label::Value => Buffer::optional_float(),
                Label::Name => Buffer::optional_text(),
            };
            columns.push(("label".into(), buffer));
        }
        for (field, name) in [(self.layout.split, "split"), (self.layout.node_type, "node_type")] {
            if field.is_some() {
                columns.push((name.into(), Buffer::text()));
            }
        }
        columns
    }

    /// Returns the fields of each column of the node table in the first file.
    pub(super) fn fields(&self) -> Vec<Vec<usize>> {
        self.layout.fields()
    }

    /// Writes the node table, and adds its columns to the recipe. Returns its number of rows.
    pub(super) fn import(
        &self,
        output: &mut Output,
        recipe: &mut Recipe,
        skipped: &mut Skipped,
        notes: &mut Vec<String>,
        progress: &dyn Progress,
    ) -> Result<u64> {
        recipe.features = self.layout.features.len();
        recipe.label = self.label.map(|label| label != Label::Value);
        recipe.split = self.layout.split.is_some();
        recipe.node_type = self.layout.node_type.is_some();
        let mut rows = Rows::begin(output, NODES, self.columns(), self.import.file_rows)?;
        let paths = &self.import.text.nodes;
        let bytes = paths.iter().filter_map(|path| path.metadata().ok()).map(|meta| meta.len()).sum();
        progress.stage("importing nodes", Some(bytes), "bytes");
        for path in paths {
            self.file(path, &mut rows, u64::MAX, skipped, notes, progress)?;
        }
        let nodes = rows.finish(output)?;
        progress.done();
        Ok(nodes)
    }

    /// Reads at most `limit` rows of a file.
    pub(super) fn file(
        &self,
        path: &Path,
        rows: &mut Rows,
        limit: u64,
        skipped: &mut Skipped,
        notes: &mut Vec<String>,
        progress: &dyn Progress,
    ) -> Result<()> {
        let sample = Self::sample(path, &self.import.text)?;
        let own = Layout::of(&sample, self.import)?;
        if !sample.rows.is_empty() && own.shape() != self.layout.shape() {
            let reason = format!("its columns differ from those of {}", self.import.text.nodes[0].display());
            return Err(Error::File { path: path.into(), reason });
        }
        notes.extend(sample.guess.clone());
        let mut records = Records::open(path, sample.delimiter, Some(progress))?;
        records.names = sample.header.clone().unwrap_or_default();
        for _ in 0..sample.preamble() {
            records.advance()?;
        }
        let mut left = limit;
        while left > 0 && records.advance()? {
            left -= 1;
            if matches!(sample.delimiter, Delimiter::Char(_)) && records.len() != sample.width {
                let (found, width) = (records.len(), sample.width);
                return Err(records.wrong(format!("{found} fields, but the lines before have {width}")));
            }
            if !skipped.skips(&records, &[own.id], self.import.text.empty_ids)? {
                self.row(&records, &own, rows)?;
            }
        }
        skipped.add_lines(&records);
        notes.extend(skipped.add_columns(&sample, &own.fields().concat()));
        Ok(())
    }

    fn row(&self, records: &Records<'_>, layout: &Layout, rows: &mut Rows) -> Result<()> {
        match self.kind {
            IdKind::Int => rows.int(0, records.int(layout.id, "id")?),
            IdKind::Text => rows.text(0, records.text(layout.id)?),
        }
        let mut next = 1;
        if !layout.features.is_empty() {
            for &field in &layout.features {
                rows.float(next, records.float(field, "feature")?);
            }
            next += 1;
        }
        if let (Some(field), Some(label)) = (layout.label, self.label) {
            label.read(records, field, rows, next)?;
            next += 1;
        }
        if let Some(field) = layout.split {
            rows.text(next, split_name(split_of(records, field)?));
            next += 1;
        }
        if let Some(field) = layout.node_type {
            rows.text(next, records.text(field)?);
        }
        rows.end_rows(1)
    }
}

impl Label {
    /// Reads a label from `field` into column `column`.
    fn read(self, records: &Records<'_>, field: usize, rows: &mut Rows, column: usize) -> Result<()> {
        let text = records.get(field).unwrap_or_default();
        match self {
            Self::Class => {
                let wrong =
                    || records.wrong(format!("label {} is not a class, but the labels before it are", show(text)));
                rows.int(column, class(text).ok_or_else(wrong)?);
            }
            Self::Value | Self::Name if text.is_empty() => rows.null(column),
            Self::Value => rows.float(column, records.float(field, "label")?),
            Self::Name => rows.text(column, records.text(field)?),
        }
        Ok(())
    }
}

fn split_of(records: &Records<'_>, field: usize) -> Result<u8> {
    Ok(match records.get(field).unwrap_or_default() {
        b"train" | b"1" => split::TRAIN,
        b"val" | b"valid" | b"validation" | b"2" => split::VAL,
        b"test" | b"3" => split::TEST,
        b"" | b"none" | b"0" => split::NONE,
        other => {
            let reason = format!("split {}: use train, val, test or none (or 1, 2, 3, 0)", show(other));
            return Err(records.wrong(reason));
        }
    })
}

fn label_kind(sample: &Sample, column: usize) -> Label {
    let given = || sample.values(column).filter(|value| !value.is_empty());
    // This includes 4.0, as pandas writes classes in columns with missing values.
    if given().all(|value| class(value.as_bytes()).is_some()) {
        Label::Class
    } else if given().all(|value| float(value.as_bytes()).is_some()) {
        Label::Value
    } else {
        Label::Name
    }
}
