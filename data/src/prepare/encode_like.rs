//! `encode_like`: tables that are encoded like those of another dataset.

use crate::dataset::{Encoding, FeatureColumns, LabelEncoding, LabelKind, TypeInfo};
use crate::dump::{EdgeReader, NodeReader};
use crate::error::{Error, Result};
use crate::source::{GraphSource, Normalize, SelfLoops};

/// Checks that the tables can be encoded like those of the dataset that `source` names, as far as columns and settings decide it.
pub(super) fn check(source: &GraphSource, nodes: &NodeReader, edges: &EdgeReader) -> Result<()> {
    let Some(wanted) = &source.encode_like else { return Ok(()) };
    check_features(nodes.feature_columns(), &wanted.features, "feature")?;
    check_features(edges.feature_columns(), &wanted.edge_features, "edge feature")?;
    let normalize = |value: Normalize| format!("{value:?}").to_lowercase();
    let self_loops = |value: SelfLoops| format!("{value:?}").to_lowercase();
    for (key, own, wanted) in [
        ("normalize_features", normalize(source.normalize_features), normalize(wanted.normalize)),
        ("undirected", source.undirected.to_string(), wanted.undirected.to_string()),
        ("reverse_edges", source.reverse_edges.to_string(), wanted.reverse_edges.to_string()),
        ("self_loops", self_loops(source.self_loops), self_loops(wanted.self_loops)),
    ] {
        if own != wanted {
            return refuse(format!(
                "that dataset has graph.{key} = {wanted}, and this pipeline {own}; set it to {wanted}"
            ));
        }
    }
    if wanted.lacks_scales() {
        let reason = "an older version of gnnflow prepared that dataset and did not store the means of its features; prepare it again";
        return refuse(reason.into());
    }
    match (source.columns.edge_type.is_some(), wanted.table_edge_types()) {
        (true, None) => return refuse("the edges have types, and those of that dataset have none".into()),
        (false, Some(_)) => return refuse("the edges have no types, and those of that dataset have types".into()),
        (true, Some(_)) | (false, None) => {}
    }
    match (nodes.label_kind(), &wanted.labels) {
        (Some(kind), Some(labels)) => check_labels(kind, nodes.labels_are_names(), labels, source.num_classes),
        _ => Ok(()),
    }
}

fn check_features(found: FeatureColumns, wanted: &FeatureColumns, what: &str) -> Result<()> {
    match wanted.difference(&found, what) {
        None => Ok(()),
        Some([wanted, found]) => refuse(format!("that dataset has {wanted}, and the tables have {found}")),
    }
}

/// Checks labels of this kind, which are names or not.
fn check_labels(kind: LabelKind, are_names: bool, wanted: &LabelEncoding, num_classes: Option<u32>) -> Result<()> {
    let there = LabelEncoding::describe(Some(wanted));
    let here = match (kind, are_names) {
        (LabelKind::Value, _) => "numbers",
        (LabelKind::Multi, _) => "lists of classes",
        (LabelKind::Class, false) => "numbers of classes",
        (LabelKind::Class, true) => "names of classes",
    };
    // Without labels in any row, a dataset has no classes.
    if kind != wanted.kind || wanted.count > 0 && are_names == wanted.names.is_empty() {
        return refuse(format!("that dataset has {there}, and the labels of the tables are {here}"));
    }
    match num_classes {
        Some(classes) if classes != wanted.count => {
            refuse(format!("that dataset has {there}, and num_classes is {classes}; remove num_classes"))
        }
        _ => Ok(()),
    }
}

/// Returns the types of the tables' edges, as the dataset numbers them that they are encoded like. `found` are those in the tables.
pub(super) fn edge_types(found: TypeInfo, encoding: &Encoding) -> Result<TypeInfo> {
    let Some(wanted) = encoding.table_edge_types() else { return Ok(found) };
    let known = || wanted.names.join(", ");
    if let Some(name) = found.names.iter().find(|name| !wanted.names.contains(name)) {
        return refuse(format!("{name:?} is not an edge type of that dataset, which has {}", known()));
    }
    let are_numbers = found.names.is_empty();
    if are_numbers && found.count > 0 && !wanted.names.is_empty() {
        return refuse(format!("the edge types are numbers, and those of that dataset are {}", known()));
    }
    if found.count > wanted.count {
        let largest = found.count - 1;
        return refuse(format!("{largest} is not an edge type of that dataset, which has {} types", wanted.count));
    }
    Ok(wanted)
}

fn refuse<T>(reason: String) -> Result<T> {
    Err(Error::Setting { key: "graph.encode_like", reason })
}
