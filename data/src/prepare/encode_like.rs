//! `encode_like`: tables that are encoded like those of another dataset.

use crate::dataset::{Encoding, FeatureColumns, LabelEncoding, LabelInfo, LabelKind, ListForm, TypeInfo};
use crate::dump::{EdgeReader, NodeReader};
use crate::error::{Error, Result};
use crate::source::GraphSource;

/// Checks that the tables can be encoded like those of the dataset that `source` names, as far as columns and settings decide it.
pub(super) fn check(source: &GraphSource, nodes: &NodeReader, edges: &EdgeReader) -> Result<()> {
    let Some(wanted) = &source.encode_like else { return Ok(()) };
    check_features(nodes.feature_columns(), &wanted.features, "feature")?;
    check_features(edges.feature_columns(), &wanted.edge_features, "edge feature")?;
    for (key, own, wanted) in [
        ("normalize_features", quoted(source.normalize_features), quoted(wanted.normalize)),
        ("undirected", source.undirected.to_string(), wanted.undirected.to_string()),
        ("reverse_edges", source.reverse_edges.to_string(), wanted.reverse_edges.to_string()),
        ("self_loops", quoted(source.self_loops), quoted(wanted.self_loops)),
    ] {
        if own != wanted {
            return refuse(format!(
                "the earlier dataset has graph.{key} = {wanted}, and this pipeline {own}; set it to {wanted}"
            ));
        }
    }
    if wanted.lacks_scales() {
        let reason = "an older version of gnnflow prepared the earlier dataset and did not store the means of its features; prepare it again";
        return refuse(reason.into());
    }
    match (source.columns.edge_type.is_some(), wanted.table_edge_types()) {
        (true, None) => return refuse("the edges have types, and those of the earlier dataset have none".into()),
        (false, Some(_)) => {
            return refuse("the edges have no types, and those of the earlier dataset have types".into());
        }
        (true, Some(_)) | (false, None) => {}
    }
    nodes.label_kind().map_or(Ok(()), |kind| check_labels(kind, nodes, wanted, source.num_classes))
}

fn check_features(found: FeatureColumns, wanted: &FeatureColumns, what: &str) -> Result<()> {
    match wanted.difference(&found, what) {
        None => Ok(()),
        Some([wanted, found]) => refuse(format!(
            "the earlier dataset has {wanted}, and the tables have {found}; give the tables these columns, or name theirs in graph.columns"
        )),
    }
}

/// Returns a word as in a pipeline file.
fn quoted(word: impl std::fmt::Debug) -> String {
    format!("{:?}", format!("{word:?}").to_lowercase())
}

/// Checks the kind of the labels, and the number of classes.
fn check_labels(kind: LabelKind, nodes: &NodeReader, wanted: &Encoding, num_classes: Option<u32>) -> Result<()> {
    let Some(labels) = &wanted.labels else { return Ok(()) };
    // Without labels in any row, a dataset has no classes.
    if labels.kind != LabelKind::Value && labels.count == 0 {
        return Ok(());
    }
    let there = LabelEncoding::describe(Some(labels));
    let are_names = nodes.labels_are_names();
    let here = match (kind, are_names) {
        (LabelKind::Value, _) => "floats",
        (LabelKind::Multi, _) => "lists",
        (LabelKind::Class, false) => "integers",
        (LabelKind::Class, true) => "strings",
    };
    if kind != labels.kind || are_names == labels.names.is_empty() {
        return refuse(format!("the earlier dataset has {there}, and the labels of the tables are {here}"));
    }
    if nodes.labels_are_flags() && wanted.label_lists == Some(ListForm::Classes) {
        return refuse("the labels are lists of flags, and those of the earlier dataset lists of classes".into());
    }
    match num_classes {
        Some(classes) if classes != labels.count => {
            refuse(format!("the earlier dataset has {there}, and num_classes is {classes}; remove num_classes"))
        }
        _ => Ok(()),
    }
}

/// Returns the types of the tables' edges, as the dataset numbers them that they are encoded like. `found` are those in the tables.
pub(super) fn edge_types(found: TypeInfo, encoding: &Encoding) -> Result<TypeInfo> {
    let Some(wanted) = encoding.table_edge_types() else { return Ok(found) };
    let there = match wanted.names.is_empty() {
        true => format!("the numbers 0 to {}", wanted.count.saturating_sub(1)),
        false => wanted.names.join(", "),
    };
    if let Some(name) = found.names.iter().find(|name| !wanted.names.contains(name)) {
        return refuse(format!("{name:?} is not an edge type of the earlier dataset, whose types are {there}"));
    }
    if !found.names.is_empty() || found.count == 0 {
        return Ok(wanted);
    }
    // Names that are the digits of the numbers may come from a type for added self-loops.
    let are_digits = (0..wanted.count).map(|code| code.to_string()).eq(wanted.names.iter().cloned());
    if !wanted.names.is_empty() && !are_digits {
        return refuse(format!("the edge types are numbers, and those of the earlier dataset are {there}"));
    }
    if found.count > wanted.count {
        let largest = found.count - 1;
        return refuse(format!("{largest} is not an edge type of the earlier dataset, whose types are {there}"));
    }
    Ok(TypeInfo { count: wanted.count, names: Vec::new() })
}

/// Returns the classes of the tables' edges, as the dataset numbers them that they are encoded like. `found` are those in the tables.
pub(super) fn edge_labels(found: LabelInfo, encoding: &Encoding) -> Result<LabelInfo> {
    // Without labels in any row, a dataset has no classes.
    let Some(wanted) = encoding.edge_labels.as_ref().filter(|labels| labels.count > 0) else { return Ok(found) };
    let there = LabelEncoding::describe(Some(wanted));
    if found.classes > 0 && found.names.is_empty() != wanted.names.is_empty() {
        let here = if found.names.is_empty() { "integers" } else { "strings" };
        return refuse(format!(
            "the edges of the earlier dataset have {there}, and the edge labels of the tables are {here}"
        ));
    }
    let largest = || (found.names.is_empty() && found.classes > wanted.count).then(|| (found.classes - 1).to_string());
    let unknown = found.names.iter().find(|name| !wanted.names.contains(name)).map(|name| format!("{name:?}"));
    match unknown.or_else(largest) {
        Some(label) => refuse(format!(
            "the edges of the earlier dataset have {there}, and the edge label {label} is none of them; remove this label, or train a model with it"
        )),
        None => Ok(wanted.info()),
    }
}

fn refuse<T>(reason: String) -> Result<T> {
    Err(Error::Setting { key: "graph.encode_like", reason })
}
