//! New values of nodes, for every form of columns.

use arrow::array::{Float64Array, ListArray};
use arrow::datatypes::Int64Type;

use super::*;
use crate::source::{FeatureDtype, Normalize};
use crate::testing::power_law;

const NODES: u32 = 20;

/// Returns the columns of some nodes, without their ids. A node has other values in each version.
type ColumnsOf = fn(&[(u32, u32)]) -> Vec<(&'static str, ArrayRef)>;

fn write(path: &Path, nodes: &[(u32, u32)], columns_of: ColumnsOf) {
    let ids = IdStyle::Text.ids(nodes.iter().map(|(node, _)| *node));
    write_parquet(path, [vec![("node_id", ids)], columns_of(nodes)].concat(), 8);
}

/// Prepares `NODES` nodes with columns in two partitions with halo features, and gives some of them new values. Returns the folder, the dataset
/// before, and the update, if the dataset then equals one that is prepared from the changed table.
fn change(columns_of: ColumnsOf, settings: impl FnOnce(&mut GraphSource)) -> (tempfile::TempDir, Dataset, Updated) {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes: Vec<(u32, u32)> = (0..NODES).map(|node| (node, 0)).collect();
    let table = dir.path().join("nodes.parquet");
    write(&table, &nodes, columns_of);
    let edges = dir.path().join("edges.parquet");
    write_rows(&edges, IdStyle::Text, &Dump::of(&power_law(NODES, 80, 3)).rows);
    let has = |name: &str| columns_of(&[(0, 0)]).iter().any(|(column, _)| *column == name).then(|| name.to_owned());
    let columns = Columns {
        features: has("x").into_iter().collect(),
        label: has("label"),
        split: has("split"),
        ..Columns::default()
    };
    let mut source = GraphSource { columns, ..GraphSource::new(table.clone(), edges) };
    settings(&mut source);
    let parts: Vec<u16> = (0..NODES).map(|node| node as u16 % 2).collect();
    let out = dir.path().join("out");
    let before = prepared(&source, parts.clone(), &out, 2);

    let changed = [(4, 1), (18, 1), (0, 1)];
    let values = dir.path().join("values.parquet");
    write(&values, &changed, columns_of);
    let updated = in_place(&out, &[Batch { values: vec![values], ..Batch::default() }]).unwrap();
    assert_eq!(updated.counts.nodes_changed, 3);
    for (node, version) in changed {
        nodes[node as usize].1 = version;
    }
    write(&table, &nodes, columns_of);
    let expected = prepared(&source, parts, &dir.path().join("expected"), 2);
    assert!(bytes(&out, 2) == bytes(&dir.path().join("expected"), 2), "other bytes than a preparation");
    let manifest = expected.manifest();
    assert_eq!(updated.manifest.labels, manifest.labels);
    assert_eq!(updated.manifest.splits, manifest.splits);
    assert_eq!(updated.manifest.partitions, manifest.partitions);
    (dir, before, updated)
}

fn lists(rows: impl Iterator<Item = Vec<i64>>) -> ArrayRef {
    let rows = rows.map(|row| Some(row.into_iter().map(Some).collect::<Vec<_>>()));
    Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(rows))
}

fn features(nodes: &[(u32, u32)]) -> Vec<(&'static str, ArrayRef)> {
    let rows = nodes.iter().map(|&(node, version)| vec![node as f32 + 0.3, 1.0 / (version as f32 + 3.0), -2.0]);
    vec![("x", float_lists(&rows.collect::<Vec<_>>()))]
}

/// Two classes; each table of changes has only lists that could be flags.
fn lists_of_classes(nodes: &[(u32, u32)]) -> Vec<(&'static str, ArrayRef)> {
    let row = |&(node, version): &(u32, u32)| match version {
        0 => vec![i64::from(node) % 2],
        _ => vec![0, 1],
    };
    vec![("label", lists(nodes.iter().map(row)))]
}

fn lists_of_flags(nodes: &[(u32, u32)]) -> Vec<(&'static str, ArrayRef)> {
    let row = |&(node, version): &(u32, u32)| (0..3).map(|class| i64::from((node + version) % 3 >= class)).collect();
    vec![("label", lists(nodes.iter().map(row)))]
}

fn names(nodes: &[(u32, u32)]) -> Vec<(&'static str, ArrayRef)> {
    let name = |&(node, version): &(u32, u32)| [Some("wasp"), Some("ant"), None][(node + version) as usize % 3];
    vec![("label", Arc::new(nodes.iter().map(name).collect::<StringArray>()))]
}

fn numbers(nodes: &[(u32, u32)]) -> Vec<(&'static str, ArrayRef)> {
    let number = |&(node, version): &(u32, u32)| ((node + version) % 3 > 0).then(|| f64::from(node) / 7.0 - 1.0);
    vec![("label", Arc::new(nodes.iter().map(number).collect::<Float64Array>()))]
}

fn splits(nodes: &[(u32, u32)]) -> Vec<(&'static str, ArrayRef)> {
    let split = |&(node, version): &(u32, u32)| ["train", "val", "test", "none"][(node + version) as usize % 4];
    vec![("split", Arc::new(nodes.iter().map(|node| Some(split(node))).collect::<StringArray>()))]
}

#[test]
fn labels_and_splits_of_every_form_equal_a_preparation() {
    for columns_of in [lists_of_classes, lists_of_flags, names, numbers, splits] {
        let (_dir, _, updated) = change(columns_of, |_| {});
        // Labels and splits affect no outputs.
        assert_eq!(updated.affected, 0);
    }
}

#[test]
fn features_of_every_form_equal_a_preparation() {
    for dtype in [FeatureDtype::F32, FeatureDtype::F16, FeatureDtype::Bf16] {
        for normalize in [Normalize::None, Normalize::Row] {
            let (_dir, _, updated) = change(features, |source| {
                source.feature_dtype = vec![dtype];
                source.normalize_features = normalize;
            });
            assert!(updated.affected >= 3);
        }
    }
}

#[test]
fn only_files_with_the_changed_columns_are_written() {
    for (columns_of, written) in [
        (
            (|nodes| [features(nodes), names(nodes)].concat()) as ColumnsOf,
            &["nodes.arrow", "features.arrow", "halo.arrow"][..],
        ),
        (names, &["nodes.arrow"]),
        (features, &["features.arrow", "halo.arrow"]),
    ] {
        // All changed nodes are in partition 0, and partition 1 has copies of their features.
        let (_dir, before, updated) = change(columns_of, |_| {});
        let digest = |info: crate::dataset::FileInfo| info;
        let files = |dataset: &crate::dataset::Manifest, part: usize| {
            let part = &dataset.partitions[part];
            let (features, halo) = (part.features.map(digest), part.halo.map(digest));
            [
                ("topology.arrow", Some(part.topology)),
                ("nodes.arrow", Some(part.node_columns)),
                ("features.arrow", features),
                ("halo.arrow", halo),
            ]
        };
        let mut changed = Vec::new();
        for part in 0..2 {
            let files = files(before.manifest(), part).into_iter().zip(files(&updated.manifest, part));
            changed.extend(files.filter(|(before, after)| before != after).map(|((name, _), _)| (part, name)));
        }
        let of_part = |name: &str| if name == "halo.arrow" { 1 } else { 0 };
        let mut expected: Vec<_> = written.iter().map(|name| (of_part(name), *name)).collect();
        expected.sort_by_key(|(part, _)| *part);
        assert_eq!(changed, expected);
        let parts: std::collections::BTreeSet<usize> = expected.iter().map(|(part, _)| *part).collect();
        assert_eq!(updated.rewritten, parts.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn table_without_rows_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let source = Dump::of(&power_law(40, 100, 2)).write(&dir.path().join("dump"), IdStyle::Dense);
    let out = dir.path().join("out");
    prepared(&source, (0..40).map(|node| node as u16 % 2).collect(), &out, 2);
    let before = Dataset::open(&out).unwrap().manifest().clone();
    let path = dir.path().join("values.parquet");
    let update = |columns: &[&str]| {
        write_columns(&path, IdStyle::Dense, &[], &Versions::default(), |name| columns.contains(&name));
        in_place(&out, &[Batch { values: vec![path.clone()], ..Batch::default() }])
    };
    assert_eq!(update(&["x", "label", "split"]).unwrap().manifest, before);
    let error = update(&["x", "kind"]).unwrap_err().to_string();
    assert!(error.ends_with("values.parquet: a node keeps its type; leave the column \"kind\" out"), "{error}");
}

#[test]
fn lists_of_another_form_are_refused() {
    let (dir, _, _) = change(lists_of_flags, |_| {});
    let path = dir.path().join("values.parquet");
    let ids = || ("node_id", IdStyle::Text.ids([4, 5]));
    for list in [vec![2], vec![0, 1, 2]] {
        write_parquet(&path, vec![ids(), ("label", lists([vec![1, 0, 0], list.clone()].into_iter()))], 8);
        let error = in_place(&dir.path().join("out"), &[Batch { values: vec![path.clone()], ..Batch::default() }]);
        let error = error.unwrap_err().to_string();
        let wanted =
            format!("row 1 (row group 0): {list:?} is not a list of 3 flags, 0 or 1, like the dataset's labels");
        assert!(error.contains(&wanted), "{error}");
    }
}

#[test]
fn dataset_without_such_columns_is_refused() {
    let (dir, _, _) = change(splits, |_| {});
    let path = dir.path().join("values.parquet");
    write_parquet(&path, vec![("node_id", IdStyle::Text.ids([4])), ("label", IdStyle::Dense.ids([1]))], 8);
    let error = in_place(&dir.path().join("out"), &[Batch { values: vec![path], ..Batch::default() }]).unwrap_err();
    let wanted = "it has none of the columns split; a table of new values has the id and at least one of them";
    assert!(error.to_string().ends_with(wanted), "{error}");
}

#[test]
fn standardized_features_keep_the_means_and_deviations_of_the_preparation() {
    let dir = tempfile::tempdir().unwrap();
    let dump = Dump::of(&power_law(40, 100, 2));
    let plain = dump.write(&dir.path().join("dump"), IdStyle::Dense);
    let source = GraphSource { normalize_features: crate::source::Normalize::Standard, ..plain };
    let out = dir.path().join("out");
    let before = prepared(&source, (0..40).map(|node| node as u16 % 2).collect(), &out, 2);
    let scales = before.manifest().features.scales.clone();
    // Means and deviations of 0 to 39, of their halves, and of equal values.
    let expected = [(19.5, 1.0 / 133.25f64.sqrt()), (9.75, 2.0 / 133.25f64.sqrt()), (-1.0, 0.0)];
    for (scale, (mean, factor)) in scales.iter().zip(expected) {
        assert!((scale.mean() - mean).abs() < 1e-12 && (scale.factor() - factor).abs() < 1e-12, "{scale:?}");
    }
    // New nodes, other features and removed nodes, in two updates.
    let file = |name: &str| dir.path().join(name);
    let versions = Versions { features: [(3, 2), (41, 1)].into(), ..Versions::default() };
    write_nodes(&file("new"), IdStyle::Dense, 40..43);
    write_columns(&file("values"), IdStyle::Dense, &[3, 41], &versions, |name| name == "x");
    write_columns(&file("gone"), IdStyle::Dense, &[7, 42], &versions, |_| false);
    let first = Batch { nodes: vec![file("new")], ..Batch::default() };
    let second = Batch { values: vec![file("values")], remove_nodes: vec![file("gone")], ..Batch::default() };
    in_place(&out, &[first]).unwrap();
    in_place(&out, &[second]).unwrap();
    let after = Dataset::open(&out).unwrap();
    assert_eq!(after.manifest().features.scales, scales);
    let mut seen = 0;
    for part in 0..2 {
        let (nodes, features) = (after.nodes(part).unwrap(), after.features(part).unwrap());
        for local in 0..nodes.len() {
            let node: u32 = nodes.ids().display(local).to_string().parse().unwrap();
            let version = versions.features.get(&node).copied().unwrap_or(0);
            let raw = [node as f32, node as f32 / 2.0, version as f32 - 1.0];
            let mut row = [0.0; 3];
            features.row_to_f32(local, &mut row);
            for ((value, raw), scale) in row.into_iter().zip(raw).zip(&scales) {
                let expected = ((f64::from(raw) - scale.mean()) * scale.factor()) as f32;
                assert_eq!(value, expected, "node {node}");
            }
            seen += 1;
        }
    }
    assert_eq!(seen, 41);
}

#[test]
fn features_differ_also_if_their_file_is_equal() {
    let dir = tempfile::tempdir().unwrap();
    let dump = Dump::of(&power_law(40, 100, 2));
    let source = dump.write(&dir.path().join("dump"), IdStyle::Dense);
    let out = dir.path().join("out");
    let before = prepared(&source, vec![0; 40], &out, 1);
    let snapshot = dir.path().join("snapshot");
    before.link_partition(0, &snapshot).unwrap();
    before.write_snapshot_manifest(&snapshot).unwrap();
    // Node 38 goes, node 39 gets its features, and the new node 40 those of node 39.
    let file = |name: &str| dir.path().join(name);
    let row = |node: u32| float_lists(&[vec![node as f32, node as f32 / 2.0, -1.0]]);
    let ids = |node: u32| IdStyle::Dense.ids([node]);
    write_columns(&file("gone"), IdStyle::Dense, &[38], &Versions::default(), |_| false);
    write_parquet(&file("values"), vec![("node_id", ids(39)), ("x", row(38))], 8);
    let more: [(&str, ArrayRef); 3] = [
        ("label", Arc::new(Int64Array::from(vec![1]))),
        ("split", Arc::new(StringArray::from(vec!["train"]))),
        ("kind", Arc::new(UInt16Array::from(vec![1]))),
    ];
    write_parquet(&file("new"), [vec![("node_id", ids(40)), ("x", row(39))], more.to_vec()].concat(), 8);
    let (nodes, values, remove_nodes) = (vec![file("new")], vec![file("values")], vec![file("gone")]);
    in_place(&out, &[Batch { nodes, values, remove_nodes, ..Batch::default() }]).unwrap();
    let (after, before) = (Dataset::open(&out).unwrap(), Dataset::open(&snapshot).unwrap());
    let digest = |dataset: &Dataset| dataset.manifest().partitions[0].features;
    assert_eq!(digest(&after), digest(&before), "the files are equal");
    let removed = after.removed_since(&before, 0).unwrap().unwrap();
    assert_eq!(removed, [38]);
    assert_eq!(after.differences(&before, 0, &[removed]).unwrap().features, [38, 39]);
}
