//! Every error in a dump gives a message of one line with its place, and leaves no files.

use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, ListArray, StringArray, TimestampMillisecondArray, UInt64Array,
};
use arrow::datatypes::Int64Type;

use super::*;
use crate::error::Fault;
use crate::source::{Columns, FeatureDtype};
use crate::testing::{IdStyle, float_lists, graphs, write_parquet};

/// A dump of three nodes in two files, and three edges.
struct Bad {
    dir: tempfile::TempDir,
    source: GraphSource,
}

fn ints(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn maybe(values: &[Option<i64>]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn texts(values: &[&str]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

fn doubles(values: &[f64]) -> ArrayRef {
    Arc::new(Float64Array::from(values.to_vec()))
}

fn int_lists(rows: &[&[i64]]) -> ArrayRef {
    let rows = rows.iter().map(|row| Some(row.iter().map(|&x| Some(x)).collect::<Vec<_>>()));
    Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(rows))
}

impl Bad {
    /// Writes a valid dump.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let source = GraphSource {
            columns: Columns {
                features: vec!["x".into()],
                label: Some("label".into()),
                split: Some("split".into()),
                weight: Some("weight".into()),
                ..Columns::default()
            },
            ..GraphSource::new(dir.path().join("nodes"), dir.path().join("edges.parquet"))
        };
        std::fs::create_dir(dir.path().join("nodes")).unwrap();
        let this = Self { dir, source };
        this.nodes("a", &[]);
        write_parquet(
            &this.path("nodes/b.parquet"),
            vec![
                ("node_id", ints(&[7])),
                ("x", float_lists(&[vec![1.0, 2.0]])),
                ("label", ints(&[1])),
                ("split", texts(&["test"])),
            ],
            1,
        );
        this.edges(&[]);
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes nodes 5 and 6 with some columns replaced, one row per row group.
    fn nodes(&self, file: &str, replaced: &[(&'static str, ArrayRef)]) {
        let good = vec![
            ("node_id", ints(&[5, 6])),
            ("x", float_lists(&[vec![1.0, 2.0], vec![3.0, 4.0]])),
            ("label", ints(&[0, -1])),
            ("split", texts(&["train", "val"])),
        ];
        write_parquet(&self.path(&format!("nodes/{file}.parquet")), replace(good, replaced), 1);
    }

    /// Writes three edges with some columns replaced, one row per row group.
    fn edges(&self, replaced: &[(&'static str, ArrayRef)]) {
        let good = vec![("src", ints(&[5, 6, 7])), ("dst", ints(&[6, 7, 5])), ("weight", doubles(&[1.0, 2.0, 3.0]))];
        write_parquet(&self.path("edges.parquet"), replace(good, replaced), 1);
    }

    /// Checks that preparing fails with message `expected`, in which `{}` is the folder, and leaves no files.
    fn refuses(&self, fault: Fault, expected: &str) {
        let error =
            prepared(&self.source, &self.path("out"), 2).err().unwrap_or_else(|| panic!("not refused: {expected}"));
        let folder = self.dir.path().display().to_string();
        assert_eq!(error.to_string(), expected.replace("{}", &folder));
        assert_eq!(error.fault(), fault, "{error}");
        assert!(!error.to_string().contains('\n'));
        let left: Vec<_> =
            std::fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        let ours = ["nodes", "edges.parquet"];
        assert!(left.iter().all(|name| ours.iter().any(|our| name == our)), "left behind: {left:?}");
    }
}

fn replace(
    good: Vec<(&'static str, ArrayRef)>,
    replaced: &[(&'static str, ArrayRef)],
) -> Vec<(&'static str, ArrayRef)> {
    let column = |(name, array): (&'static str, ArrayRef)| {
        let other = replaced.iter().find(|(other, _)| *other == name);
        (name, other.map_or(array, |(_, other)| other.clone()))
    };
    good.into_iter().map(column).collect()
}

#[test]
fn valid_dump_is_prepared() {
    let bad = Bad::new();
    let dataset = prepared(&bad.source, &bad.path("out"), 2).unwrap();
    assert_eq!((dataset.manifest().nodes, dataset.manifest().edges), (3, 3));
}

#[test]
fn missing_and_truncated_files_are_refused() {
    let mut bad = Bad::new();
    bad.source.nodes = vec![bad.path("nope.parquet")];
    bad.refuses(Fault::Input, "{}/nope.parquet: there is no such file or folder (graph.nodes)");

    bad.source.nodes = vec![bad.path("empty")];
    let empty = bad.path("nodes/empty");
    std::fs::create_dir(&empty).unwrap();
    bad.source.nodes = vec![empty];
    bad.refuses(Fault::Input, "{}/nodes/empty: no *.parquet file in it (graph.nodes)");

    // Truncated at any position, in the footer or before it.
    let bad = Bad::new();
    let path = bad.path("nodes/b.parquet");
    let whole = std::fs::read(&path).unwrap();
    for length in (0..whole.len()).step_by(17) {
        std::fs::write(&path, &whole[..length]).unwrap();
        let error = prepared(&bad.source, &bad.path("out"), 1).unwrap_err();
        assert!(matches!(error, Error::NotParquet { .. }), "{length}: {error}");
        assert!(error.to_string().contains("nodes/b.parquet: not a complete Parquet file"), "{error}");
    }
    std::fs::write(&path, "node_id,x\n5,1\n").unwrap();
    let error = prepared(&bad.source, &bad.path("out"), 1).unwrap_err();
    assert!(matches!(error, Error::LooksLikeText { .. }), "{error}");
}

#[test]
fn damaged_pages_are_no_bug() {
    let bad = Bad::new();
    let path = bad.path("edges.parquet");
    let whole = std::fs::read(&path).unwrap();
    for at in (4..whole.len()).step_by(11) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        std::fs::write(&path, bytes).unwrap();
        let out = bad.path(&format!("out-{at}"));
        if let Err(error) = prepared(&bad.source, &out, 1) {
            assert_ne!(error.fault(), Fault::Bug, "byte {at}: {error}");
            assert!(!out.exists());
        }
    }
}

#[test]
fn missing_and_mistyped_columns_are_refused() {
    let mut bad = Bad::new();
    bad.source.columns.label = Some("lable".into());
    bad.refuses(
        Fault::Input,
        "{}/nodes/a.parquet: no column \"lable\" (graph.columns.label); did you mean \"label\"? it has \"node_id\", \"x\", \"label\", \"split\"",
    );
    let mut bad = Bad::new();
    bad.source.columns.src = "from".into();
    bad.refuses(
        Fault::Input,
        "{}/edges.parquet: no column \"from\" (graph.columns.src); it has \"src\", \"dst\", \"weight\"",
    );

    let bad = Bad::new();
    bad.nodes("a", &[("x", texts(&["a", "b"]))]);
    bad.refuses(
        Fault::Input,
        "{}/nodes/a.parquet: column \"x\" is Utf8, but graph.columns.features needs numbers or lists of numbers",
    );
    let bad = Bad::new();
    bad.nodes("a", &[("label", Arc::new(TimestampMillisecondArray::from(vec![1, 2])) as ArrayRef)]);
    bad.refuses(
        Fault::Input,
        "{}/nodes/a.parquet: column \"label\" is Timestamp(ms), but graph.columns.label needs integers, strings, floats, or lists of integers or booleans",
    );
    let bad = Bad::new();
    bad.edges(&[("dst", texts(&["6", "7", "5"]))]);
    bad.refuses(
        Fault::Input,
        "{}/edges.parquet: column \"dst\" is Utf8, but graph.columns.dst needs integers, like the node ids of the first file",
    );
    let bad = Bad::new();
    bad.nodes("a", &[("node_id", doubles(&[5.0, 6.0]))]);
    bad.refuses(
        Fault::Input,
        "{}/nodes/a.parquet: column \"node_id\" is Float64, but graph.columns.id needs integers or strings",
    );
}

#[test]
fn nulls_and_infinite_numbers_are_refused() {
    let null = "null; every row needs a value here";
    let cases: [(&str, ArrayRef, &str); 2] = [
        ("node_id", maybe(&[Some(5), None]), null),
        ("x", float_lists(&[vec![1.0, 2.0], vec![f32::NAN, 4.0]]), "NaN is not a finite number"),
    ];
    for (column, array, reason) in cases {
        let bad = Bad::new();
        bad.nodes("a", &[(column, array)]);
        bad.refuses(Fault::Input, &format!("{{}}/nodes/a.parquet, column \"{column}\", row 1 (row group 1): {reason}"));
    }
    let bad = Bad::new();
    bad.edges(&[("src", maybe(&[Some(5), Some(6), None]))]);
    bad.refuses(Fault::Input, &format!("{{}}/edges.parquet, column \"src\", row 2 (row group 2): {null}"));
    let bad = Bad::new();
    bad.edges(&[("weight", doubles(&[1.0, f64::INFINITY, 2.0]))]);
    bad.refuses(Fault::Input, "{}/edges.parquet, column \"weight\", row 1 (row group 1): inf is not a finite number");

    // Inside lists, and values that are finite only before conversion.
    let bad = Bad::new();
    let rows = vec![Some(vec![Some(1.0), Some(2.0)]), Some(vec![None, Some(1.0)])];
    bad.nodes(
        "a",
        &[("x", Arc::new(ListArray::from_iter_primitive::<arrow::datatypes::Float32Type, _, _>(rows)) as ArrayRef)],
    );
    bad.refuses(Fault::Input, &format!("{{}}/nodes/a.parquet, column \"x\", row 1 (row group 1): {null}"));
    let mut bad = Bad::new();
    bad.nodes("a", &[("x", float_lists(&[vec![1.0, 2.0], vec![3.0, 70_000.0]]))]);
    bad.source.feature_dtype = vec![FeatureDtype::F16];
    bad.refuses(
        Fault::Input,
        "{}/nodes/a.parquet, column \"x\", row 1 (row group 1): 70000 is not a finite number when stored as f16; set graph.feature_dtype to \"f32\" or \"bf16\"",
    );
    let bad = Bad::new();
    bad.edges(&[("weight", doubles(&[1.0, 1e300, 2.0]))]);
    let error = prepared(&bad.source, &bad.path("out"), 1).unwrap_err().to_string();
    assert!(error.ends_with("is not a finite number when stored as 32-bit float"), "{error}");
}

#[test]
fn different_widths_are_refused() {
    let bad = Bad::new();
    bad.nodes("a", &[("x", float_lists(&[vec![1.0, 2.0], vec![3.0]]))]);
    bad.refuses(
        Fault::Input,
        "{}/nodes/a.parquet, column \"x\", row 1 (row group 1): 1 values, but the rows before have 2",
    );
    // Different widths of two files: the error is in the second.
    let bad = Bad::new();
    bad.nodes("a", &[("x", float_lists(&[vec![1.0; 3], vec![2.0; 3]]))]);
    bad.refuses(
        Fault::Input,
        "{}/nodes/b.parquet, column \"x\", row 0 (row group 0): 2 values, but the rows before have 3",
    );
    let bad = Bad::new();
    bad.nodes("a", &[("x", doubles(&[1.0, 2.0]))]);
    bad.refuses(
        Fault::Input,
        "{}/nodes/b.parquet, column \"x\", row 0 (row group 0): 2 values, but the rows before have 1",
    );
}

#[test]
fn duplicate_unknown_and_large_ids_are_refused() {
    let bad = Bad::new();
    bad.nodes("a", &[("node_id", ints(&[5, 7]))]);
    bad.refuses(
        Fault::Input,
        "{}/nodes/b.parquet, column \"node_id\", row 0 (row group 0): node id 7 was already used in row 1; every node needs a different id",
    );
    let bad = Bad::new();
    bad.edges(&[("dst", ints(&[6, 99, 98]))]);
    bad.refuses(
        Fault::Input,
        "{}/edges.parquet, column \"dst\", row 1 (row group 1): 99 is not the id of a node; add the node to the node files, or set graph.unknown_nodes to \"drop\" or \"create\"",
    );
    let bad = Bad::new();
    bad.nodes("a", &[("node_id", Arc::new(UInt64Array::from(vec![5, u64::MAX])) as ArrayRef)]);
    bad.refuses(
        Fault::Input,
        "{}/nodes/a.parquet, column \"node_id\", row 1 (row group 1): 18446744073709551615 is not a 64-bit signed integer",
    );
}

#[test]
fn invalid_labels_splits_and_types_are_refused() {
    let mut bad = Bad::new();
    bad.source.num_classes = Some(2);
    bad.nodes("a", &[("label", ints(&[0, 2]))]);
    bad.refuses(
        Fault::Input,
        "{}/nodes/a.parquet, column \"label\", row 1 (row group 1): 2 is not a class from 0 to 1 (or -1 for an unlabeled node)",
    );
    let bad = Bad::new();
    bad.nodes("a", &[("label", ints(&[-2, 1]))]);
    let error = prepared(&bad.source, &bad.path("out"), 1).unwrap_err().to_string();
    assert!(error.contains("-2 is not a class from 0 to "), "{error}");
    let bad = Bad::new();
    bad.nodes("a", &[("split", texts(&["train", "trian"]))]);
    bad.refuses(
        Fault::Input,
        "{}/nodes/a.parquet, column \"split\", row 1 (row group 1): \"trian\" is not a split; use train, val, test or none",
    );
    let mut bad = Bad::new();
    bad.source.columns.edge_type = Some("weight".into());
    bad.edges(&[("weight", ints(&[0, 1, 70_000]))]);
    bad.refuses(
        Fault::Input,
        "{}/edges.parquet, column \"weight\", row 2 (row group 2): 70000 is not a type from 0 to 65534",
    );
    // Rows with different numbers of flags.
    let bad = Bad::new();
    let flags = |rows: Vec<Vec<bool>>| -> ArrayRef {
        let mut builder = arrow::array::ListBuilder::new(arrow::array::BooleanBuilder::new());
        rows.into_iter().for_each(|row| builder.append_value(row.into_iter().map(Some)));
        Arc::new(builder.finish())
    };
    bad.nodes("a", &[("label", flags(vec![vec![true, false], vec![true]]))]);
    std::fs::remove_file(bad.path("nodes/b.parquet")).unwrap();
    bad.refuses(
        Fault::Input,
        "{}/nodes/a.parquet, column \"label\", row 1 (row group 1): 1 values, but the rows before have 2",
    );
    assert!(BooleanArray::from(vec![true]).value(0));
}

#[test]
fn invalid_settings_are_refused() {
    let mut bad = Bad::new();
    bad.source.split_fractions = Some([0.5, 0.2, 0.2]);
    bad.refuses(Fault::Usage, "graph.split_fractions: cannot be combined with graph.columns.split; remove one");
    let bad = Bad::new();
    let error = prepared(&bad.source, &bad.path("out"), 0).unwrap_err();
    assert_eq!(
        (error.fault(), error.to_string()),
        (Fault::Usage, "partition.parts: is 0, but must be in 1..=65536".into())
    );
}

#[test]
fn fail_policies_report_the_first_edge() {
    let graph = &graphs()[3];
    for ids in [IdStyle::Sparse, IdStyle::Text] {
        for memory in [1 << 10, 1 << 30] {
            let dir = tempfile::tempdir().unwrap();
            let plain = graph.dump(dir.path(), ids).unwrap();
            let run = |source: &GraphSource| {
                let settings = PrepareSettings { memory, ..settings(&dir.path().join("out"), 2) };
                prepare(source, &Modulo, &settings, &Silent).unwrap_err().to_string()
            };
            let show = |node| if ids == IdStyle::Text { format!("{:?}", ids.text(node)) } else { ids.text(node) };
            let edges = plain.edges[0].display();
            // Rows 0 and 1 are both 0 → 1; each file has a third, so row 1 is in the first, of two rows.
            let error = run(&GraphSource { duplicates: Duplicates::Fail, ..plain.clone() });
            let (zero, one) = (show(0), show(1));
            let expected = format!(
                "{edges}/part-0.parquet, column \"src\", row 1 (row group 0): the edge {zero} → {one} is already in {edges}/part-0.parquet row 0; set graph.duplicates to \"drop\" or \"keep\""
            );
            assert_eq!(error, expected);
            let error = run(&GraphSource { self_loops: SelfLoops::Fail, ..plain.clone() });
            let expected = format!(
                "{edges}/part-1.parquet, column \"src\", row 3 (row group 0): node {one} has an edge to itself; set graph.self_loops to \"keep\" or \"drop\""
            );
            assert_eq!(error, expected);
        }
    }
}

#[test]
fn lists_of_labels_are_flags_or_classes() {
    use crate::dataset::LabelKind;
    for (rows, classes, expected) in [
        (vec![&[1i64, 0][..], &[0, 1]], 2, vec![1u8, 0, 0, 1]),
        (vec![&[2][..], &[0, 2]], 3, vec![0, 0, 1, 1, 0, 1]),
        (vec![&[][..], &[1]], 2, vec![0, 0, 0, 1]),
        (vec![&[1][..], &[0]], 2, vec![0, 1, 1, 0]),
    ] {
        let bad = Bad::new();
        std::fs::remove_file(bad.path("nodes/b.parquet")).unwrap();
        bad.nodes("a", &[("label", int_lists(&rows))]);
        bad.edges(&[("src", ints(&[5, 5, 5])), ("dst", ints(&[6, 6, 6]))]);
        let dataset = prepared(&bad.source, &bad.path("out"), 1).unwrap();
        let labels = dataset.manifest().labels.clone().unwrap();
        assert_eq!((labels.kind, labels.classes), (LabelKind::Multi, classes), "{rows:?}");
        let nodes = dataset.nodes(0).unwrap();
        assert_eq!(nodes.multi_labels().unwrap(), (&expected[..], classes as usize), "{rows:?}");
        let counted: Vec<u64> = (0..classes as usize)
            .map(|class| expected.chunks(classes as usize).map(|row| u64::from(row[class])).sum())
            .collect();
        assert_eq!(labels.counts, counted);
    }
}

#[test]
fn names_become_classes_and_numbers_become_values() {
    let bad = Bad::new();
    std::fs::remove_file(bad.path("nodes/b.parquet")).unwrap();
    bad.edges(&[("src", ints(&[5, 5, 5])), ("dst", ints(&[6, 6, 6]))]);
    bad.nodes("a", &[("label", texts(&["zebra", "ant"]))]);
    let dataset = prepared(&bad.source, &bad.path("out"), 1).unwrap();
    let labels = dataset.manifest().labels.clone().unwrap();
    assert_eq!((labels.names, labels.counts), (vec!["ant".to_string(), "zebra".into()], vec![1, 1]));
    assert_eq!(dataset.nodes(0).unwrap().class_labels().unwrap(), [1, 0]);
    // A changed input is prepared again.
    bad.nodes("a", &[("label", doubles(&[0.5, -3.0]))]);
    let dataset = prepared(&bad.source, &bad.path("out"), 1).unwrap();
    assert_eq!(dataset.nodes(0).unwrap().values().unwrap(), [0.5, -3.0]);
    assert_eq!(dataset.manifest().num_classes(), 1);
}

#[test]
fn null_label_is_no_label_and_nan_is_refused() {
    let bad = Bad::new();
    std::fs::remove_file(bad.path("nodes/b.parquet")).unwrap();
    bad.edges(&[("src", ints(&[5, 5, 5])), ("dst", ints(&[6, 6, 6]))]);
    bad.nodes("a", &[("label", doubles(&[0.5, f64::NAN]))]);
    bad.refuses(Fault::Input, "{}/nodes/a.parquet, column \"label\", row 1 (row group 1): NaN is not a finite number");
    let null_floats: ArrayRef = Arc::new(arrow::array::Float64Array::from(vec![Some(0.5), None]));
    bad.nodes("a", &[("label", null_floats)]);
    let dataset = prepared(&bad.source, &bad.path("out"), 1).unwrap();
    assert!(matches!(dataset.nodes(0).unwrap().values().unwrap(), [value, none] if *value == 0.5 && none.is_nan()));
    let null_names: ArrayRef = Arc::new(arrow::array::StringArray::from(vec![None, Some("ant")]));
    for (labels, classes) in [(maybe(&[Some(3), None]), [3, -1]), (null_names, [-1, 0])] {
        bad.nodes("a", &[("label", labels)]);
        let dataset = prepared(&bad.source, &bad.path("out"), 1).unwrap();
        assert_eq!(dataset.nodes(0).unwrap().class_labels().unwrap(), classes);
        assert_eq!(dataset.manifest().labels.as_ref().unwrap().labeled, 1);
    }
}

#[test]
fn invalid_splits_and_classes_of_edges_are_refused() {
    let with = |split: &str, label: &str| {
        let mut bad = Bad::new();
        let named = |name: &str| Some(name.to_string()).filter(|name| !name.is_empty());
        (bad.source.columns.edge_split, bad.source.columns.edge_label) = (named(split), named(label));
        bad
    };
    let edges = |bad: &Bad, more: Vec<(&'static str, ArrayRef)>| {
        let mut columns =
            vec![("src", ints(&[5, 6, 7])), ("dst", ints(&[6, 7, 5])), ("weight", doubles(&[1.0, 2.0, 3.0]))];
        columns.extend(more);
        write_parquet(&bad.path("edges.parquet"), columns, 1);
    };
    let bad = with("fold", "");
    edges(&bad, vec![("fold", texts(&["train", "dev", "test"]))]);
    bad.refuses(
        Fault::Input,
        "{}/edges.parquet, column \"fold\", row 1 (row group 1): \"dev\" is not a split; use train, val, test or none",
    );
    let bad = with("fold", "");
    edges(&bad, vec![("fold", ints(&[1, 2, 4]))]);
    bad.refuses(
        Fault::Input,
        "{}/edges.parquet, column \"fold\", row 2 (row group 2): 4 is not a split; use 0 (none), 1 (train), 2 (validation) or 3 (test)",
    );
    let bad = with("", "class");
    edges(&bad, vec![("class", ints(&[0, -2, 1]))]);
    bad.refuses(
        Fault::Input,
        "{}/edges.parquet, column \"class\", row 1 (row group 1): -2 is not a class from 0 to 1048575 (or -1 for an unlabeled edge)",
    );
    let bad = with("", "class");
    edges(&bad, vec![("class", doubles(&[0.0, 1.0, 1.0]))]);
    bad.refuses(
        Fault::Input,
        "{}/edges.parquet: column \"class\" is Float64, but graph.columns.edge_label needs integers, booleans or strings",
    );
    let bad = with("folds", "");
    edges(&bad, vec![("fold", ints(&[1, 2, 3]))]);
    bad.refuses(
        Fault::Input,
        "{}/edges.parquet: no column \"folds\" (graph.columns.edge_split); did you mean \"fold\"? it has \"src\", \"dst\", \"weight\", \"fold\"",
    );

    // All valid spellings of splits and classes.
    let bad = with("fold", "class");
    let all = [maybe(&[None, Some(2), Some(3)]), texts(&["none", "valid", "test"]), texts(&["", "validation", "test"])];
    for fold in all {
        let classes: ArrayRef = Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)]));
        edges(&bad, vec![("fold", fold), ("class", classes)]);
        let dataset = prepared(&bad.source, &bad.path("out"), 1).unwrap();
        let topology = dataset.topology(0).unwrap();
        // By destination 5, 6, 7: the rows 2, 0, 1.
        assert_eq!(topology.splits().unwrap(), [3, 0, 2]);
        assert_eq!(topology.labels().unwrap(), [0, 1, -1]);
    }
}

#[test]
fn width_of_fixed_size_lists_is_known_without_rows() {
    let mut bad = Bad::new();
    bad.source.columns.edge_features = vec!["pair".into(), "weight".into()];
    let item = Arc::new(arrow::datatypes::Field::new("item", arrow::datatypes::DataType::Float32, true));
    let pairs = arrow::datatypes::DataType::FixedSizeList(item, 2);
    write_parquet(
        &bad.path("edges.parquet"),
        vec![
            ("src", ints(&[])),
            ("dst", ints(&[])),
            ("weight", doubles(&[])),
            ("pair", arrow::array::new_empty_array(&pairs)),
        ],
        1,
    );
    let dataset = prepared(&bad.source, &bad.path("out"), 1).unwrap();
    assert_eq!(dataset.manifest().edge_columns.features, 3);
}
