//! Tests every policy, on every graph, in one and three partitions, with every kind of ids.

use super::oracle::{globals, in_edges};
use super::*;
use crate::dataset::{Features, IdColumn, SplitCounts, split};
use crate::source::{Columns, FeatureDtype, Normalize};
use crate::testing::{FEATURES, IdStyle, TestGraph, graphs, power_law};

/// Compares the dataset with that of the naive program, edge by edge and node by node.
fn check(graph: &TestGraph, source: &GraphSource, ids: IdStyle, parts: u32, dir: &Path) {
    let case = format!("{}, {ids:?}, {parts} parts, {source:?}", graph.name);
    let expected = in_edges(graph, source, parts);
    let dataset = match prepared(source, &dir.join("out"), parts) {
        Ok(dataset) => dataset,
        Err(error) => {
            let refused = matches!(error, Error::DuplicateEdge { .. } | Error::SelfLoop { .. });
            return assert!(refused && expected.is_none(), "{case}: {error}");
        }
    };
    let expected = expected.unwrap_or_else(|| panic!("{case}: should have failed"));
    let (manifest, global) = (dataset.manifest(), globals(graph.nodes, parts));
    assert_eq!(manifest.edges as usize, expected.iter().map(Vec::len).sum::<usize>(), "{case}");
    assert_eq!((manifest.nodes, manifest.parts()), (u64::from(graph.nodes), parts as usize), "{case}");
    dataset.verify(&Silent).unwrap();

    let mut index = vec![0u32; graph.nodes as usize];
    global.iter().zip(0..).for_each(|(&global, v)| index[global as usize] = v);
    let (mut splits, mut classes) = (SplitCounts::default(), [0u64; 3]);
    for part in 0..parts as usize {
        let part = dataset.partition(part).unwrap();
        let topology = &part.topology;
        for (local, node) in part.range.clone().enumerate() {
            let list = &expected[node as usize];
            let sources: Vec<u32> = list.iter().map(|&(src, _)| src).collect();
            assert_eq!(topology.neighbors(local), sources, "{case}, node {node}");
            for (edge, &(_, row)) in topology.edge_range(local).zip(list) {
                let row_or = |f: &dyn Fn(usize) -> f32, added: f32| row.map_or(added, f);
                if let Some(weights) = topology.weights() {
                    assert_eq!(weights[edge], row_or(&|row| row as f32 / 4.0, 1.0), "{case}");
                }
                if let Some(types) = topology.edge_types() {
                    let count = manifest.edge_columns.edge_type.as_ref().unwrap().count;
                    assert_eq!(types[edge], row.map_or(count as u16 - 1, |row| row as u16 % 3), "{case}");
                }
                if let Some(times) = topology.times() {
                    assert_eq!(times[edge], row.map_or(0, |row| 1000 + row as i64), "{case}");
                }
                if let Some(found) = topology.splits() {
                    assert_eq!(found[edge], row.map_or(split::NONE, |row| SPLITS[row % 5]), "{case}");
                    splits.add(found[edge]);
                }
                if let Some(labels) = topology.labels() {
                    let class = row.filter(|row| row % 7 != 6).map_or(-1, |row| row as i32 % 3);
                    assert_eq!(labels[edge], class, "{case}");
                    if class >= 0 {
                        classes[class as usize] += 1;
                    }
                }
                if let Some((features, width)) = topology.edge_features() {
                    let expected = [row_or(&|row| row as f32, 0.0), row_or(&|row| -(row as f32), 0.0)];
                    assert_eq!(features[edge * width..(edge + 1) * width], expected, "{case}");
                }
            }
            // The node itself.
            let v = index[node as usize];
            assert_eq!(part.nodes.ids().display(local).to_string(), ids.text(v).trim_matches('"'), "{case}");
            assert_eq!(part.nodes.class_labels().unwrap()[local], if v % 7 == 6 { -1 } else { v as i32 % 3 });
            assert_eq!(part.nodes.split()[local], SPLITS[v as usize % 5]);
            let mut row = [0.0; FEATURES];
            part.features.row_to_f32(local, &mut row);
            assert_eq!(row, [v as f32, v as f32 / 2.0, -1.0]);
        }
        let kind = matches!(part.nodes.ids(), IdColumn::Text(_));
        assert_eq!(kind, ids == IdStyle::Text);
    }
    assert_eq!(manifest.edge_columns.split, source.columns.edge_split.as_ref().map(|_| splits), "{case}");
    if let Some(labels) = &manifest.edge_columns.label {
        assert_eq!(labels.labeled, classes.iter().sum::<u64>(), "{case}");
        assert_eq!((labels.classes, &labels.names[..]), (3, &["c0".to_string(), "c1".into(), "c2".into()][..]));
        assert_eq!(labels.counts, classes, "{case}");
    }
}

/// Splits by number modulo 5, see [`TestGraph::dump`].
const SPLITS: [u8; 5] = [split::TRAIN, split::TRAIN, split::VAL, split::TEST, split::NONE];

#[test]
fn datasets_equal_those_of_the_naive_program_for_every_policy() {
    for graph in graphs() {
        for ids in [IdStyle::Dense, IdStyle::Sparse, IdStyle::Text] {
            let dumps = tempfile::tempdir().unwrap();
            let plain = graph.dump(dumps.path(), ids).unwrap();
            for duplicates in [Duplicates::Drop, Duplicates::Keep, Duplicates::Fail] {
                for self_loops in [SelfLoops::Keep, SelfLoops::Drop, SelfLoops::Add, SelfLoops::Fail] {
                    // The kind of ids affects only the lookup of nodes, so not every combination is tested.
                    if ids != IdStyle::Dense && (duplicates, self_loops) != (Duplicates::Drop, SelfLoops::Keep) {
                        continue;
                    }
                    for (undirected, parts) in [(false, 1), (true, 3)] {
                        let dir = tempfile::tempdir().unwrap();
                        let source = GraphSource { undirected, duplicates, self_loops, ..plain.clone() };
                        check(&graph, &source, ids, parts, dir.path());
                    }
                }
            }
        }
    }
}

#[test]
fn edge_columns_stay_with_their_edges() {
    for graph in [&graphs()[3], &power_law(60, 900, 2)] {
        let dumps = tempfile::tempdir().unwrap();
        let plain = graph.dump(dumps.path(), IdStyle::Dense).unwrap();
        let columns = Columns {
            weight: Some("weight".into()),
            edge_type: Some("etype".into()),
            time: Some("ts".into()),
            edge_features: vec!["up".into(), "down".into()],
            edge_split: Some("esplit".into()),
            edge_label: Some("eclass".into()),
            ..plain.columns.clone()
        };
        for duplicates in [Duplicates::Drop, Duplicates::Keep, Duplicates::Fail] {
            for self_loops in [SelfLoops::Keep, SelfLoops::Add] {
                for (undirected, parts) in [(false, 3), (true, 1), (true, 3)] {
                    let dir = tempfile::tempdir().unwrap();
                    let columns = columns.clone();
                    let source = GraphSource { undirected, duplicates, self_loops, columns, ..plain.clone() };
                    check(graph, &source, IdStyle::Dense, parts, dir.path());
                }
            }
        }
    }
}

/// Returns all bytes of all Arrow files.
fn bytes(out: &Path, parts: usize) -> Vec<Vec<u8>> {
    let dirs = (0..parts).map(|part| out.join(crate::dataset::part_folder(part)));
    let files = dirs.flat_map(|dir| ["topology.arrow", "nodes.arrow", "features.arrow"].map(|name| dir.join(name)));
    files.map(|file| std::fs::read(file).unwrap()).collect()
}

#[test]
fn bytes_are_equal_for_any_threads_and_memory() {
    let graph = power_law(500, 20_000, 3);
    let dumps = tempfile::tempdir().unwrap();
    let plain = graph.dump(dumps.path(), IdStyle::Text).unwrap();
    let columns = Columns {
        weight: Some("weight".into()),
        edge_type: Some("etype".into()),
        edge_features: vec!["up".into()],
        edge_split: Some("esplit".into()),
        edge_label: Some("eclass".into()),
        ..plain.columns.clone()
    };
    let normalize_features = Normalize::Standard;
    let source = GraphSource { undirected: true, columns, normalize_features, ..plain };
    let mut expected = None;
    for threads in [1, 2, 3] {
        for memory in [18 << 10, 64 << 10, 1 << 30] {
            let dir = tempfile::tempdir().unwrap();
            let settings = PrepareSettings { memory, ..settings(&dir.path().join("out"), 3) };
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| prepare(&source, &Modulo, &settings, &Silent)).unwrap();
            let found = bytes(&settings.out, 3);
            let scratch = std::fs::read_dir(&settings.out).unwrap().count();
            assert_eq!(scratch, 5, "three partitions, the manifest, the report, and nothing else");
            match &expected {
                None => expected = Some(found),
                Some(expected) => assert!(*expected == found, "{threads} threads, {memory} bytes"),
            }
        }
    }
}

#[test]
fn feature_columns_are_stored_in_their_types() {
    let graph = &graphs()[6];
    let dir = tempfile::tempdir().unwrap();
    let plain = graph.dump(dir.path(), IdStyle::Dense).unwrap();
    let columns = Columns { features: vec!["kind".into(), "x".into()], ..plain.columns };
    let source = GraphSource { columns, feature_dtype: vec![FeatureDtype::F16, FeatureDtype::F32], ..plain };
    let settings = |out: &str| PrepareSettings { halo_features: true, ..PrepareSettings::new(dir.path().join(out), 2) };
    let manifest = prepare(&source, &Modulo, &settings("out"), &Silent).unwrap();
    assert_eq!(manifest.features.layout().to_string(), "1 × f16, 3 × f32");
    let dataset = Dataset::open(dir.path().join("out")).unwrap();
    for part in 0..2 {
        let (features, halo) = (dataset.features(part).unwrap(), dataset.halo(part).unwrap().unwrap());
        let offsets = dataset.book().offsets().to_vec();
        let row = |features: &Features, row: usize| {
            let mut values = [0.0; 1 + FEATURES];
            features.row_to_f32(row, &mut values);
            values
        };
        let expected = |v: u32| [(v % 2) as f32, v as f32, v as f32 / 2.0, -1.0];
        assert_eq!((features.row_bytes(), features.as_f32()), (14, None));
        // Advice to the system does not change values.
        features.read_at_random();
        features.will_need([]);
        features.will_need((0..features.num_rows()).rev().chain([0, 0]));
        // Copied rows are read from the file again.
        let mut copy = vec![0; features.bytes().len()];
        let (first, rest) = copy.split_at_mut(20);
        features.copy_bytes(20, rest);
        features.copy_bytes(0, first);
        assert_eq!(copy, features.bytes());
        let mut index = (0..graph.nodes).filter(|v| *v as usize % 2 == part);
        (0..features.num_rows()).for_each(|local| assert_eq!(row(&features, local), expected(index.next().unwrap())));
        for (at, &node) in halo.nodes().iter().enumerate() {
            let other = 1 - part;
            let v = 2 * (node - offsets[other] as u32) + other as u32;
            assert_eq!(row(halo.features().unwrap(), at), expected(v));
        }
    }
    let bad = GraphSource { feature_dtype: vec![FeatureDtype::F32; 3], ..source };
    let error = prepare(&bad, &Modulo, &settings("bad"), &Silent).unwrap_err().to_string();
    assert_eq!(error, "graph.feature_dtype: 3 types for 2 feature columns; give one type for all, or one per column");
}

#[test]
fn features_are_stored_in_the_requested_type() {
    let graph = &graphs()[6];
    for (dtype, limit) in [(FeatureDtype::F32, 0.0), (FeatureDtype::F16, 1e-3), (FeatureDtype::Bf16, 1e-2)] {
        let dir = tempfile::tempdir().unwrap();
        let plain = graph.dump(dir.path(), IdStyle::Dense).unwrap();
        let source = GraphSource { feature_dtype: vec![dtype], normalize_features: Normalize::Row, ..plain };
        let dataset = prepared(&source, &dir.path().join("out"), 2).unwrap();
        let features = dataset.features(1).unwrap();
        assert_eq!((features.layout().dtype(), features.as_f32().is_some()), (Some(dtype), dtype == FeatureDtype::F32));
        let mut row = [0.0; FEATURES];
        for local in 0..features.num_rows() {
            features.row_to_f32(local, &mut row);
            let v = (2 * local + 1) as f32;
            let sum = (1.5 * v + 1.0).max(1.0);
            for (found, expected) in row.iter().zip([v / sum, v / 2.0 / sum, -1.0 / sum]) {
                assert!((found - expected).abs() <= limit, "{dtype:?}: {row:?}");
            }
        }
    }
}
