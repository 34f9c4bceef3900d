//! Compares real graphs with the counts that their sources publish.

use std::path::PathBuf;

use super::*;
use crate::dataset::split;
use crate::source::Columns;

/// Returns a real graph, if this machine has the folder of real graphs.
fn real(name: &str) -> Option<GraphSource> {
    let default = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data"));
    let dir = std::env::var_os("GNNFLOW_TEST_DATA").map_or(default, PathBuf::from).join(name);
    if !dir.exists() {
        println!("skipped: {} is not there", dir.display());
        return None;
    }
    let columns = Columns { label: Some("label".into()), split: Some("split".into()), ..Columns::default() };
    Some(GraphSource { columns, ..GraphSource::new(dir.join("nodes.parquet"), dir.join("edges.parquet")) })
}

#[test]
fn cora_has_published_counts() {
    let Some(mut source) = real("cora") else { return };
    source.columns.features = vec!["features".into()];
    let dir = tempfile::tempdir().unwrap();
    let dataset = prepared(&source, &dir.path().join("out"), 2).unwrap();
    let manifest = dataset.manifest();
    assert_eq!((manifest.nodes, manifest.edge_rows, manifest.edges), (2708, 10858, 10556));
    assert_eq!((manifest.features.dim, manifest.num_classes()), (1433, 7));
    let splits = manifest.splits;
    assert_eq!((splits.train, splits.val, splits.test, splits.none), (140, 500, 1000, 1068));
    // Both directions are stored, so mirroring adds no edges.
    source.undirected = true;
    let mirrored = prepared(&source, &dir.path().join("out"), 2).unwrap();
    assert_eq!(mirrored.manifest().edges, 10556);
    let train: usize = (0..2).map(|part| mirrored.nodes(part).unwrap().in_split(split::TRAIN).len()).sum();
    assert_eq!(train, 140);
    let quality = Quality::read(&dir.path().join("out")).unwrap();
    assert!((0.4..0.6).contains(&quality.edge_cut) && quality.replication_factor > 1.5, "{quality:?}");
}

#[test]
fn twitch_es_has_published_counts() {
    let Some(mut source) = real("twitch-es") else { return };
    source.columns.features = vec!["features".into()];
    (source.undirected, source.columns.split, source.split_fractions) = (true, None, Some([0.5, 0.25, 0.25]));
    let dir = tempfile::tempdir().unwrap();
    let dataset = prepared(&source, &dir.path().join("out"), 3).unwrap();
    let manifest = dataset.manifest();
    assert_eq!((manifest.nodes, manifest.edge_rows, manifest.edges), (4648, 59382, 118_764));
    assert_eq!((manifest.features.dim, manifest.num_classes()), (3170, 2));
    assert_eq!((manifest.splits.train, manifest.splits.val, manifest.splits.test), (2324, 1162, 1162));
}

#[test]
fn debian_has_published_counts() {
    let Some(mut source) = real("debian-bookworm") else { return };
    source.columns.features = vec!["features".into()];
    source.columns.edge_type = Some("etype".into());
    let dir = tempfile::tempdir().unwrap();
    let dataset = prepared(&source, &dir.path().join("out"), 4).unwrap();
    let manifest = dataset.manifest();
    assert_eq!((manifest.nodes, manifest.edge_rows), (63498, 312_503));
    assert_eq!((manifest.self_loops, manifest.features.dim, manifest.num_classes()), (108, 128, 58));
    assert_eq!(manifest.edge_columns.edge_type.as_ref().unwrap().count, 8);
    assert_eq!(manifest.edges, 312_503, "there are no duplicate relations");
    let homogeneous = GraphSource { columns: Columns { edge_type: None, ..source.columns.clone() }, ..source.clone() };
    assert_eq!(prepared(&homogeneous, &dir.path().join("out"), 4).unwrap().manifest().edges, 306_904);
    source.duplicates = Duplicates::Keep;
    let kept = prepared(&source, &dir.path().join("out"), 4).unwrap();
    assert_eq!(kept.manifest().edges, 312_503);
    let types = (0..4).flat_map(|part| kept.topology(part).unwrap().edge_types().unwrap().to_vec());
    assert!(types.into_iter().max() == Some(7));
}

#[test]
fn blogcatalog_has_many_labels() {
    let Some(mut source) = real("blogcatalog") else { return };
    source.undirected = true;
    let dir = tempfile::tempdir().unwrap();
    let dataset = prepared(&source, &dir.path().join("out"), 1).unwrap();
    let manifest = dataset.manifest();
    assert_eq!((manifest.nodes, manifest.edges, manifest.num_classes()), (10312, 667_966, 39));
    assert_eq!((manifest.features.dim, dataset.features(0).unwrap().num_rows()), (0, 10312));
    assert_eq!(dataset.nodes(0).unwrap().multi_labels().unwrap().0.len(), 10312 * 39);
}
