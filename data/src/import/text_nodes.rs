//! Node tables as text: CSV and TSV files with an id and optional features, label, split and type.

use std::path::Path;

use super::columns::split_name;
use super::records::{Delimiter, Records, class, float, show};
use super::rows::{Buffer, Rows};
use super::text_sample::{ID, Sample};
use super::{Import, NODES, Recipe};
use crate::dataset::{IdKind, split};
use crate::error::{Error, Result};
use crate::generate::table::Output;
use crate::progress::Progress;

/// Kind of the label column, from the first lines.
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

    fn used(&self) -> Vec<usize> {
        let some = [Some(self.id), self.label, self.split, self.node_type];
        some.into_iter().flatten().chain(self.features.iter().copied()).collect()
    }

    fn shape(&self) -> (usize, bool, bool, bool) {
        (self.features.len(), self.label.is_some(), self.split.is_some(), self.node_type.is_some())
    }
}

/// Writes the node table. Returns its number of rows, and the recipe with the columns of the nodes.
pub(super) fn import(
    import: &Import,
    output: &mut Output,
    kind: IdKind,
    mut recipe: Recipe,
    notes: &mut Vec<String>,
    progress: &dyn Progress,
) -> Result<(u64, Recipe)> {
    let options = &import.text;
    let take = |path: &Path| Sample::take(path, options, &[ID, &["label", "split"]]);
    let sample = take(&options.nodes[0])?;
    let layout = Layout::of(&sample, import)?;
    let label = layout.label.map(|column| label_kind(&sample, column));
    recipe.features = layout.features.len();
    recipe.label = label.map(|label| label != Label::Value);
    recipe.split = layout.split.is_some();
    recipe.node_type = layout.node_type.is_some();

    let mut columns = vec![("node_id".to_string(), Buffer::ids(kind))];
    if recipe.features > 0 {
        columns.push(("features".into(), Buffer::matrix(recipe.features)));
    }
    if let Some(label) = label {
        let buffer = match label {
            Label::Class => Buffer::int(),
            Label::Value => Buffer::float(),
            Label::Name => Buffer::text(),
        };
        columns.push(("label".into(), buffer));
    }
    for (exists, name) in [(recipe.split, "split"), (recipe.node_type, "node_type")] {
        if exists {
            columns.push((name.into(), Buffer::text()));
        }
    }
    let mut rows = Rows::begin(output, NODES, columns, import.file_rows)?;
    let bytes = options.nodes.iter().filter_map(|path| path.metadata().ok()).map(|meta| meta.len()).sum();
    progress.stage("importing nodes", Some(bytes), "bytes");
    for path in &options.nodes {
        let sample = take(path)?;
        let own = Layout::of(&sample, import)?;
        if !sample.rows.is_empty() && own.shape() != layout.shape() {
            let reason = format!("its columns differ from those of {}", options.nodes[0].display());
            return Err(Error::File { path: path.clone(), reason });
        }
        file(path, &sample, &own, (kind, label), &mut rows, progress)?;
        notes.extend(sample.others(&own.used()));
    }
    let nodes = rows.finish(output)?;
    progress.done();
    Ok((nodes, recipe))
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

fn file(
    path: &Path,
    sample: &Sample,
    layout: &Layout,
    (kind, label): (IdKind, Option<Label>),
    rows: &mut Rows,
    progress: &dyn Progress,
) -> Result<()> {
    let mut records = Records::open(path, sample.delimiter, Some(progress))?;
    for _ in 0..sample.preamble() {
        records.advance()?;
    }
    while records.advance()? {
        if matches!(sample.delimiter, Delimiter::Char(_)) && records.len() != sample.width {
            let (found, width) = (records.len(), sample.width);
            return Err(records.wrong(format!("{found} fields, but the lines before have {width}")));
        }
        match kind {
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
        if let (Some(field), Some(label)) = (layout.label, label) {
            match label {
                Label::Class => {
                    let text = records.get(field).unwrap_or_default();
                    let wrong =
                        || records.wrong(format!("label {} is not a class, but the labels before it are", show(text)));
                    rows.int(next, class(text).ok_or_else(wrong)?);
                }
                Label::Value => rows.float(next, records.float(field, "label")?),
                Label::Name => match records.text(field)? {
                    "" => return Err(records.wrong("the label is empty; a label that is a name cannot be missing")),
                    name => rows.text(next, name),
                },
            }
            next += 1;
        }
        if let Some(field) = layout.split {
            let which = match records.get(field).unwrap_or_default() {
                b"train" | b"1" => split::TRAIN,
                b"val" | b"valid" | b"validation" | b"2" => split::VAL,
                b"test" | b"3" => split::TEST,
                b"" | b"none" | b"0" => split::NONE,
                other => {
                    let reason = format!("split {}: use train, val, test or none (or 1, 2, 3, 0)", show(other));
                    return Err(records.wrong(reason));
                }
            };
            rows.text(next, split_name(which));
            next += 1;
        }
        if let Some(field) = layout.node_type {
            rows.text(next, records.text(field)?);
        }
        rows.end_rows(1)?;
    }
    Ok(())
}
