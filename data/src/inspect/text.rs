//! Formats inspections as text.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use serde_json::Value;

use super::dataset::part_bytes;
use super::{Bin, Column, Degrees, Dump, InDegrees, Inspection, Labels, Prepared, Table};
use crate::dataset::{LabelInfo, SplitCounts};
use crate::format::{bytes_in_tenths, count, counted};

impl Display for Inspection {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let lines = match self {
            Self::Dump(dump) => dump.to_string(),
            Self::Dataset(dataset) => dataset.to_string(),
        };
        f.write_str(lines.trim_end())
    }
}

fn short(value: &Value) -> String {
    let text = match value {
        Value::String(text) => format!("\"{text}\""),
        other => other.to_string(),
    };
    if text.chars().count() <= 24 { text } else { text.chars().take(23).chain(['…']).collect() }
}

fn line(f: &mut Formatter<'_>, name: &str, rest: impl Display) -> fmt::Result {
    writeln!(f, "{name:<10} {rest}")
}

/// Writes rows of cells with aligned columns. The first column is left-aligned, the others right-aligned.
fn grid(f: &mut Formatter<'_>, rows: &[Vec<String>]) -> fmt::Result {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|row| row.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        write!(f, " ")?;
        for (c, cell) in row.iter().enumerate() {
            match c {
                0 => write!(f, " {cell:<width$}", width = widths[c])?,
                _ => write!(f, "  {cell:>width$}", width = widths[c])?,
            }
        }
        writeln!(f)?;
    }
    Ok(())
}

impl Display for Dump {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        line(f, "dump", self.path.display())?;
        for table in &self.tables {
            table.fmt(f)?;
        }
        for (title, labels) in [("labels", &self.labels), ("edge labels", &self.edge_labels)] {
            labels.as_ref().map_or(Ok(()), |labels| line(f, title, labels))?;
        }
        for (title, splits) in [("splits", &self.splits), ("edge splits", &self.edge_splits)] {
            let Some(splits) = splits else { continue };
            let parts: Vec<_> = splits.iter().map(|(name, nodes)| format!("{name} {}", count(*nodes))).collect();
            line(f, title, parts.join(", "))?;
        }
        if let Some(degrees) = &self.degrees {
            degrees.fmt(f)?;
        }
        self.notes.iter().try_for_each(|note| line(f, "note", note))
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            name, files, rows, row_groups, largest_row_group, bytes, columns, created_by, recipe, made_by, ..
        } = self;
        let groups = format!("{} (largest {})", counted(*row_groups, "row group"), counted(*largest_row_group, "row"));
        let parts = [counted(*files as u64, "file"), counted(*rows, "row"), groups, bytes_in_tenths(*bytes)];
        line(f, "table", format_args!("{name}: {}", parts.join(", ")))?;
        if let Some((maker, note)) = made_by {
            let from = |value: &Value| match value {
                Value::Array(names) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
                other => other.as_str().unwrap_or_default().to_string(),
            };
            let kind = note["kind"].as_str().map_or_else(String::new, |kind| format!(" {kind}"));
            let source = match (&note["from"], &note["fingerprint"]) {
                (Value::Null, Value::String(dataset)) => format!("dataset {}", &dataset[..dataset.len().min(12)]),
                (files, _) => from(files),
            };
            line(f, "  made by", format_args!("gnnflow {maker}{kind} from {source}"))?;
        } else if let Some(recipe) = recipe {
            line(f, "  made by", format_args!("gnnflow generate {}", short_recipe(recipe)))?;
        } else if let Some(program) = created_by {
            line(f, "  made by", program)?;
        }
        grid(f, &columns.iter().map(column_cells).collect::<Vec<_>>())
    }
}

fn short_recipe(recipe: &Value) -> String {
    let settings = recipe["settings"].as_object().into_iter().flatten();
    let settings: Vec<_> = settings.filter(|(_, v)| !v.is_null()).map(|(k, v)| format!("{k} {v}")).collect();
    format!("{}: {}", recipe["generator"].as_str().unwrap_or("?"), settings.join(", "))
}

fn column_cells(column: &Column) -> Vec<String> {
    let nulls = column.nulls.map_or_else(String::new, |nulls| counted(nulls, "null"));
    let range = match (&column.min, &column.max) {
        (Some(min), Some(max)) if !min.is_null() => format!("{} … {}", short(min), short(max)),
        _ => String::new(),
    };
    vec![column.name.clone(), column.data_type.clone(), nulls, range, bytes_in_tenths(column.bytes)]
}

impl Display for Labels {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Classes { counts, unlabeled } => {
                write!(f, "one of {}; {} without a label", classes(counts), count(*unlabeled))
            }
            Self::MultiLabel { counts, unlabeled } => {
                write!(f, "any of {}; {} without a label", classes(counts), count(*unlabeled))
            }
            Self::Values { min, max, mean, unlabeled } => {
                write!(f, "values {min} … {max}, mean {mean:.4}; {} without a label", count(*unlabeled))
            }
        }
    }
}

fn classes(counts: &BTreeMap<i64, u64>) -> String {
    list_classes(counts.iter().map(|(class, nodes)| (class.to_string(), *nodes)))
}

/// Returns the size of each split.
fn split_sizes(splits: &SplitCounts) -> String {
    let SplitCounts { none, train, val, test } = *splits;
    let sizes = [("train", train), ("val", val), ("test", test), ("none", none)];
    sizes.map(|(name, size)| format!("{name} {}", count(size))).join(", ")
}

/// Returns a colon and the size of each class; empty for values.
fn label_counts(labels: &LabelInfo) -> String {
    let name = |class: usize| labels.names.get(class).cloned().unwrap_or_else(|| class.to_string());
    let counts: Vec<_> = labels.counts.iter().enumerate().map(|(class, &nodes)| (name(class), nodes)).collect();
    if counts.is_empty() { String::new() } else { format!(": {}", list_classes(counts.into_iter())) }
}

/// Returns the number of classes and the sizes of the first twelve.
fn list_classes(counts: impl ExactSizeIterator<Item = (String, u64)>) -> String {
    let total = counted(counts.len() as u64, "class");
    let dots = if counts.len() > 12 { ", …" } else { "" };
    let first: Vec<_> = counts.take(12).map(|(class, nodes)| format!("{class}: {}", count(nodes))).collect();
    format!("{total} ({}{dots})", first.join(", "))
}

impl Display for Degrees {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { nodes_with_edges, isolated, self_loops, mean, max, max_out, max_in, histogram } = self;
        let isolated = isolated.map_or_else(String::new, |n| format!(", {} isolated", count(n)));
        let nodes = format!("{} with edges{isolated}, {}", count(*nodes_with_edges), counted(*self_loops, "self-loop"));
        let most = format!("largest {} (out {}, in {})", count(*max), count(*max_out), count(*max_in));
        line(f, "degrees", format_args!("without mirroring: {nodes}; mean {mean:.2}, {most}"))?;
        bars(f, histogram)
    }
}

impl Display for InDegrees {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { zero, mean, max, histogram } = self;
        line(
            f,
            "in-degrees",
            format_args!("mean {mean:.2}, largest {}; {} without in-edges", count(*max), counted(*zero, "node")),
        )?;
        bars(f, histogram)
    }
}

fn bars(f: &mut Formatter<'_>, histogram: &[Bin]) -> fmt::Result {
    let most = histogram.iter().map(|bin| bin.nodes).max().unwrap_or(0).max(1);
    let rows: Vec<_> = histogram
        .iter()
        .map(|bin| {
            let range =
                if bin.from == bin.to { count(bin.from) } else { format!("{}–{}", count(bin.from), count(bin.to)) };
            let length = (bin.nodes * 40).div_ceil(most) as usize;
            (range, count(bin.nodes), "▪".repeat(length))
        })
        .collect();
    let width = |cell: &dyn Fn(&(String, String, String)) -> usize| rows.iter().map(cell).max().unwrap_or(0);
    let (first, second) = (width(&|row| row.0.chars().count()), width(&|row| row.1.chars().count()));
    rows.iter().try_for_each(|(range, nodes, bar)| {
        let text = format!("  {range:>first$}  {nodes:>second$}  {bar}");
        writeln!(f, "{}", text.trim_end())
    })
}

impl Display for Prepared {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let m = &self.manifest;
        line(f, "dataset", format_args!("{} ({})", self.path.display(), bytes_in_tenths(self.bytes)))?;
        line(
            f,
            "made from",
            format_args!("{}, fingerprint {:.16}", counted(m.inputs.len() as u64, "file"), m.fingerprint),
        )?;
        let ids =
            serde_json::to_value(m.ids).ok().and_then(|kind| kind.as_str().map(str::to_owned)).unwrap_or_default();
        line(f, "nodes", format_args!("{} with {ids} ids", count(m.nodes)))?;
        let mirrored = if m.undirected { "mirrored" } else { "not mirrored" };
        let dropped = format!("{} dropped as duplicates", count(m.duplicates_dropped));
        let loops = counted(m.self_loops, "self-loop");
        let edges = count(m.edges);
        line(f, "edges", format_args!("{edges} from {}, {mirrored}; {dropped}; {loops}", counted(m.edge_rows, "row")))?;
        let c = &m.cleaning;
        let changed = [
            (c.nodes_created, "nodes created"),
            (c.outside_core, "nodes outside the core dropped"),
            (c.outside_component, "nodes outside the largest component dropped"),
            (c.isolated_dropped, "isolated nodes dropped"),
            (c.edges_dropped, "rows of edges dropped with them"),
            (m.unknown_dropped, "rows of edges with unknown nodes dropped"),
        ];
        let changed: Vec<_> = changed.iter().filter(|(number, _)| *number > 0).collect();
        for (i, (number, what)) in changed.into_iter().enumerate() {
            line(f, if i == 0 { "cleaning" } else { "" }, format_args!("{} {what}", count(*number)))?;
        }
        if let (Some(all), Some(largest)) = (c.components, c.largest_component) {
            line(f, "", format_args!("{}, the largest of {}", counted(all, "component"), counted(largest, "node")))?;
        }
        let extra = &m.edge_columns;
        let features = (extra.features > 0).then(|| counted(extra.features as u64, "feature"));
        if let Some(types) = &extra.edge_type {
            line(f, "", format_args!("of {}", counted(u64::from(types.count), "type")))?;
        }
        let carried = [extra.weight.then(|| "a weight".to_owned()), extra.time.then(|| "a time".to_owned()), features];
        let carried: Vec<_> = carried.into_iter().flatten().collect();
        if !carried.is_empty() {
            line(f, "", format_args!("each with {}", carried.join(", ")))?;
        }
        if let Some(splits) = &extra.split {
            line(f, "edge splits", split_sizes(splits))?;
        }
        if let Some(labels) = &extra.label {
            line(
                f,
                "edge labels",
                format_args!("{} labeled{}", counted(labels.labeled, "edge"), label_counts(labels)),
            )?;
        }
        let normalize = format!("{:?}", m.features.normalize).to_lowercase();
        match m.features.dim {
            0 => line(f, "features", "none")?,
            dim => {
                let layout = m.features.layout();
                let stored = layout.dtype().map_or_else(
                    || format!("{} ({layout})", count(dim as u64)),
                    |dtype| format!("{} × {}", count(dim as u64), dtype.word()),
                );
                line(f, "features", format_args!("{stored}, normalization: {normalize}"))?;
            }
        }
        if let Some(labels) = &m.labels {
            let kind = format!("{:?}", labels.kind).to_lowercase();
            let all = label_counts(labels);
            line(f, "labels", format_args!("{kind}, {} labeled{all}", counted(labels.labeled, "node")))?;
        }
        line(f, "splits", split_sizes(&m.splits))?;
        line(f, "partition", format_args!("{}, {}", m.method, counted(m.parts() as u64, "part")))?;
        if let Some(quality) = &self.quality {
            let (cut, replication, balance) = (quality.edge_cut, quality.replication_factor, quality.balance);
            let train = if balance.train > 0.0 { format!(", train {:.3}", balance.train) } else { String::new() };
            let balance = format!("nodes {:.3}, edges {:.3}{train}", balance.nodes, balance.edges);
            line(f, "", format_args!("edge cut {cut:.4}, replication factor {replication:.4}"))?;
            line(f, "", format_args!("largest part over the mean: {balance}"))?;
        }
        let header = ["part", "nodes", "edges", "train", "size"].map(str::to_owned).to_vec();
        let part = |(i, p): (usize, &crate::dataset::PartitionInfo)| {
            vec![i.to_string(), count(p.nodes), count(p.edges), count(p.train), bytes_in_tenths(part_bytes(p))]
        };
        let shown = m.partitions.iter().enumerate().take(64).map(part);
        grid(f, &std::iter::once(header).chain(shown).collect::<Vec<_>>())?;
        if m.parts() > 64 {
            writeln!(f, "  … and {} more", m.parts() - 64)?;
        }
        self.in_degrees.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_list_has_count_and_sizes() {
        assert_eq!(list_classes([("a".to_owned(), 1)].into_iter()), "1 class (a: 1)");
        assert_eq!(
            list_classes([("a".to_owned(), 1), ("b".to_owned(), 2000)].into_iter()),
            "2 classes (a: 1, b: 2,000)"
        );
    }
}
