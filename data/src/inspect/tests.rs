//! Inspects generated dumps, dumps with every kind of id, and real graphs.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, ListArray, RecordBatch, StringArray, UInt32Array};
use arrow::datatypes::Int64Type;
use parquet::arrow::ArrowWriter;

use super::*;
use crate::generate::Planted;
use crate::prepare::{PrepareSettings, prepare};
use crate::progress::Silent;
use crate::source::GraphSource;
use crate::testing::Modulo;

fn write(path: &Path, columns: Vec<(&str, ArrayRef)>) {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

fn dump(path: &Path) -> Dump {
    match inspect(path, &Silent).unwrap() {
        Inspection::Dump(dump) => *dump,
        other => panic!("{other}"),
    }
}

/// The reference implementation: degrees by id, and the number of self-loops.
fn reference(rows: &[(String, String)]) -> (HashMap<String, u64>, u64) {
    let mut degrees = HashMap::new();
    for (src, dst) in rows {
        *degrees.entry(src.clone()).or_insert(0) += 1;
        *degrees.entry(dst.clone()).or_insert(0) += 1;
    }
    (degrees, rows.iter().filter(|(src, dst)| src == dst).count() as u64)
}

#[test]
fn degrees_equal_the_reference_for_every_kind_of_id() {
    let folder = tempfile::tempdir().unwrap();
    let pairs: Vec<(u32, u32)> = (0..500u32).map(|i| (i * i % 37, i * 7 % 53)).collect();
    let text = |x: u32| format!("node-{x}");
    let rows: Vec<_> = pairs.iter().map(|&(a, b)| (text(a), text(b))).collect();
    let (expected, self_loops) = reference(&rows);
    let both = |column: &dyn Fn(Vec<u32>) -> ArrayRef| {
        let (src, dst) = pairs.iter().copied().unzip();
        vec![("src", column(src)), ("dst", column(dst))]
    };
    let far =
        |ids: Vec<u32>| Arc::new(Int64Array::from_iter_values(ids.iter().map(|&x| i64::from(x) << 40))) as ArrayRef;
    let negative =
        |ids: Vec<u32>| Arc::new(Int64Array::from_iter_values(ids.iter().map(|&x| i64::from(x) - 20))) as ArrayRef;
    let strings = |ids: Vec<u32>| Arc::new(StringArray::from_iter_values(ids.into_iter().map(text))) as ArrayRef;
    for (name, columns) in [
        ("dense", both(&|ids| Arc::new(UInt32Array::from(ids)))),
        ("negative", both(&negative)),
        ("far", both(&far)),
        ("text", both(&strings)),
    ] {
        let path = folder.path().join(format!("{name}.parquet"));
        write(&path, columns);
        let dump = dump(&path);
        let degrees = dump.degrees.unwrap();
        assert_eq!(degrees.nodes_with_edges, expected.len() as u64, "{name}");
        assert_eq!(degrees.self_loops, self_loops, "{name}");
        assert_eq!(degrees.max, *expected.values().max().unwrap(), "{name}");
        assert!((degrees.mean - 1000.0 / expected.len() as f64).abs() < 1e-9, "{name}");
        for bin in degrees.histogram {
            let nodes = expected.values().filter(|degree| (bin.from..=bin.to).contains(degree)).count() as u64;
            assert_eq!(bin.nodes, nodes, "{name}: {bin:?}");
        }
        assert_eq!(dump.notes, Vec::<String>::new());
    }
}

#[test]
fn description_of_a_generated_dump_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let graph = Planted { nodes: 3000, edges: 9000, features: 7, classes: 3, files: 2, ..Planted::default() };
    graph.write(folder.path(), &Silent).unwrap();
    let dump = dump(folder.path());
    let [nodes, edges] = &dump.tables[..] else { panic!("{} tables", dump.tables.len()) };
    assert_eq!((nodes.rows, nodes.files, edges.rows, edges.files), (3000, 2, 9000, 2));
    let id = nodes.column("node_id").unwrap();
    assert_eq!((id.min.clone(), id.max.clone(), id.nulls), (Some(0.into()), Some(2999.into()), Some(0)));
    assert_eq!(nodes.column("features").unwrap().width, Some(7));
    assert_eq!(nodes.recipe.as_ref().unwrap()["settings"]["edges"], 9000);
    let counts = [(0, 1000), (1, 1000), (2, 1000)].into();
    assert_eq!(dump.labels, Some(Labels::Classes { counts, unlabeled: 0 }));
    assert_eq!(dump.splits.as_ref().unwrap()["train"], 300);
    let degrees = dump.degrees.as_ref().unwrap();
    assert_eq!((degrees.nodes_with_edges, degrees.isolated, degrees.self_loops), (3000, Some(0), 0));
    let text = dump.to_string();
    for word in ["nodes.parquet: 2 files, 3,000 rows", "FixedSizeList<Float32>[7]", "3 classes", "train 300", "planted"]
    {
        assert!(text.contains(word), "no {word:?} in:\n{text}");
    }
    let json = serde_json::to_value(Inspection::Dump(Box::new(dump))).unwrap();
    assert_eq!((json["kind"].as_str(), json["tables"][1]["rows"].as_u64()), (Some("dump"), Some(9000)));
}

#[test]
fn labels_of_every_kind_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nodes.parquet");
    let some = |rows: &[&[i64]]| {
        rows.iter().map(|row| Some(row.iter().copied().map(Some).collect::<Vec<_>>())).collect::<Vec<_>>()
    };
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>(some(&[&[1, 2], &[], &[2]]));
    write(&path, vec![("label", Arc::new(lists))]);
    let counts = [(1, 1), (2, 2)].into();
    assert_eq!(dump(&path).labels, Some(Labels::MultiLabel { counts, unlabeled: 1 }));
    write(&path, vec![("label", Arc::new(Int64Array::from(vec![Some(3), None, Some(-1), Some(3)])))]);
    assert_eq!(dump(&path).labels, Some(Labels::Classes { counts: [(3, 2)].into(), unlabeled: 2 }));
    write(&path, vec![("label", Arc::new(arrow::array::Float32Array::from(vec![1.0, 3.0, f32::NAN])))]);
    assert_eq!(dump(&path).labels, Some(Labels::Values { min: 1.0, max: 3.0, mean: 2.0, unlabeled: 1 }));
    write(&path, vec![("label", Arc::new(StringArray::from(vec!["cat", "dog"])))]);
    let dump = dump(&path);
    assert_eq!((dump.labels, dump.notes.len()), (None, 1));
}

#[test]
fn error_names_the_missing_or_damaged_path() {
    let folder = tempfile::tempdir().unwrap();
    let error = |path: &Path| inspect(path, &Silent).unwrap_err().to_string();
    assert!(error(&folder.path().join("nope")).contains("nope"));
    assert!(error(folder.path()).contains("parquet"));
    let path = folder.path().join("edges.parquet");
    write(&path, vec![("src", Arc::new(Int64Array::from(vec![1]))), ("dst", Arc::new(Int64Array::from(vec![2])))]);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    assert!(error(&path).contains("edges.parquet"));
    std::fs::write(folder.path().join("summary.json"), "{}").unwrap();
    assert_eq!(kind(folder.path()).unwrap(), Kind::Run);
    assert!(error(folder.path()).contains("run folder"));
    let store = folder.path().join("dataset.layers");
    std::fs::create_dir_all(store.join("76b9b4c5885d6d5b/dataset")).unwrap();
    for path in [store.join("76b9b4c5885d6d5b"), store] {
        let error = error(&path);
        assert!(error.starts_with(&format!("{}: this is a layer store", path.display())), "{error}");
    }
}

#[test]
fn file_with_other_columns_adds_a_note() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("a.parquet"), vec![("x", Arc::new(Int64Array::from(vec![1])))]);
    write(&folder.path().join("b.parquet"), vec![("x", Arc::new(StringArray::from(vec!["1"])))]);
    let dump = dump(folder.path());
    assert_eq!((dump.tables[0].rows, dump.notes.len()), (2, 1));
    assert!(dump.notes[0].contains("b.parquet"));
}

#[test]
fn real_graphs_have_their_published_counts() {
    let root = std::env::var_os("GNNFLOW_TEST_DATA").map(PathBuf::from);
    let root = root.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data"));
    for (name, nodes, edges, width, classes) in [
        ("cora", 2708, 10_858, 1433, 7),
        ("debian-bookworm", 63_498, 312_503, 128, 58),
        ("blogcatalog", 10_312, 333_983, 0, 39),
    ] {
        let path = root.join(name);
        if !path.exists() {
            println!("skipped: {} does not exist", path.display());
            continue;
        }
        let dump = dump(&path);
        assert_eq!((dump.tables[0].rows, dump.tables[1].rows), (nodes, edges), "{name}");
        assert_eq!(dump.tables[0].column("features").map_or(0, |c| c.width.unwrap()), width, "{name}");
        let (Some(Labels::Classes { counts, .. } | Labels::MultiLabel { counts, .. }), Some(degrees)) =
            (&dump.labels, &dump.degrees)
        else {
            panic!("{name}: {dump}");
        };
        assert_eq!(counts.len(), classes, "{name}");
        assert_eq!(degrees.nodes_with_edges + degrees.isolated.unwrap(), nodes, "{name}");
        println!("{dump}");
    }
}

#[test]
fn description_of_a_prepared_dataset_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let (dump, out) = (folder.path().join("dump"), folder.path().join("dataset"));
    Planted { nodes: 3000, edges: 9000, features: 7, classes: 3, ..Planted::default() }.write(&dump, &Silent).unwrap();
    let mut source = GraphSource::new(dump.join("nodes.parquet"), dump.join("edges.parquet"));
    source.undirected = true;
    source.columns.features = vec!["features".into()];
    (source.columns.label, source.columns.split) = (Some("label".into()), Some("split".into()));
    let settings = PrepareSettings { memory: 1 << 20, ..PrepareSettings::new(&out, 4) };
    let manifest = prepare(&source, &Modulo, &settings, &Silent).unwrap();

    let Inspection::Dataset(found) = inspect(&out, &Silent).unwrap() else { panic!("described as a dump") };
    assert_eq!(found.manifest, manifest);
    // The degrees from the files, computed independently.
    let dataset = crate::Dataset::open(&out).unwrap();
    let degrees: Vec<usize> = (0..4)
        .flat_map(|part| {
            let topology = dataset.topology(part).unwrap();
            (0..topology.num_nodes()).map(|v| topology.neighbors(v).len()).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(found.in_degrees.zero, degrees.iter().filter(|&&degree| degree == 0).count() as u64);
    assert_eq!(found.in_degrees.max, *degrees.iter().max().unwrap() as u64);
    assert!((found.in_degrees.mean - degrees.iter().sum::<usize>() as f64 / 3000.0).abs() < 1e-9);
    for bin in &found.in_degrees.histogram {
        let nodes = degrees.iter().filter(|&&degree| (bin.from..=bin.to).contains(&(degree as u64))).count() as u64;
        assert_eq!(bin.nodes, nodes, "{bin:?}");
    }
    let on_disk = |name: &str| std::fs::metadata(out.join("part-00000").join(name)).unwrap().len();
    assert!(found.bytes > on_disk("topology.arrow") + on_disk("features.arrow"));
    let text = Inspection::Dataset(found.clone()).to_string();
    for word in
        ["3,000 with int ids", "mirrored", "7 × f32", "class, 3,000 nodes labeled", "modulo, 4 parts", "edge cut"]
    {
        assert!(text.contains(word), "no {word:?} in:\n{text}");
    }
    println!("{text}");
    let json = serde_json::to_value(Inspection::Dataset(found)).unwrap();
    assert_eq!((json["kind"].as_str(), json["manifest"]["nodes"].as_u64()), (Some("dataset"), Some(3000)));

    let file = out.join("part-00002/topology.arrow");
    std::fs::write(&file, &std::fs::read(&file).unwrap()[..100]).unwrap();
    assert!(inspect(&out, &Silent).unwrap_err().to_string().contains("topology.arrow"));
}

#[test]
fn splits_and_classes_of_edges_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let graph = crate::testing::power_law(30, 100, 4);
    let mut source = graph.dump(folder.path(), crate::testing::IdStyle::Dense).unwrap();
    source.duplicates = crate::source::Duplicates::Keep;
    (source.columns.edge_split, source.columns.edge_label) = (Some("esplit".into()), Some("eclass".into()));
    let out = folder.path().join("dataset");
    prepare(&source, &Modulo, &PrepareSettings::new(&out, 2), &Silent).unwrap();
    let text = inspect(&out, &Silent).unwrap().to_string();
    // Row `r` has split `r % 5` and class `r % 3`, except for `r % 7 == 6`.
    let class = |class: usize| (0..100).filter(|r| r % 7 != 6 && r % 3 == class).count();
    let classes = format!("86 edges labeled: 3 classes (c0: {}, c1: {}, c2: {})", class(0), class(1), class(2));
    for words in ["train 40, val 20, test 20, none 20", &classes] {
        assert!(text.lines().any(|line| line.contains("edge") && line.contains(words)), "no {words:?} in:\n{text}");
    }

    let path = folder.path().join("edges.parquet");
    let ends = || Arc::new(Int64Array::from(vec![0, 1, 2])) as ArrayRef;
    let split = Arc::new(StringArray::from(vec![Some("train"), None, Some("test")]));
    let label = Arc::new(Int64Array::from(vec![Some(1), Some(1), None]));
    write(&path, vec![("src", ends()), ("dst", ends()), ("edge_split", split), ("edge_label", label)]);
    let dump = dump(&path);
    assert_eq!(dump.edge_labels, Some(Labels::Classes { counts: [(1, 2)].into(), unlabeled: 1 }));
    assert_eq!(dump.edge_splits.as_ref().unwrap()["none"], 1);
    assert!(dump.to_string().contains("edge splits"), "{dump}");
}
