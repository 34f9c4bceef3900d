//! Tables that are encoded like those of another dataset.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, ListArray, StringArray};
use arrow::datatypes::Int64Type;

use super::*;
use crate::dataset::{Encoding, Labels};
use crate::source::{Columns, Normalize, SelfLoops};
use crate::testing::write_parquet;

/// Writes node tables with the given rows of `age`, `size` and class, and edges of the given types. Their ends are nodes by their place.
fn dump(dir: &Path, nodes: &[(f64, f64, Option<&str>)], edges: &[(i64, i64, &str)]) -> GraphSource {
    std::fs::create_dir_all(dir).unwrap();
    let numbers = |column: fn(&(f64, f64, Option<&str>)) -> f64| -> ArrayRef {
        Arc::new(nodes.iter().map(column).collect::<Float64Array>())
    };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("node_id", Arc::new((0..nodes.len() as i64).collect::<Int64Array>())),
        ("age", numbers(|node| node.0)),
        ("size", numbers(|node| node.1)),
        ("label", Arc::new(nodes.iter().map(|node| node.2).collect::<StringArray>())),
    ];
    write_parquet(&dir.join("nodes.parquet"), columns, 8);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("src", Arc::new(edges.iter().map(|edge| edge.0).collect::<Int64Array>())),
        ("dst", Arc::new(edges.iter().map(|edge| edge.1).collect::<Int64Array>())),
        ("type", Arc::new(edges.iter().map(|edge| Some(edge.2)).collect::<StringArray>())),
    ];
    write_parquet(&dir.join("edges.parquet"), columns, 8);
    let columns = Columns {
        features: vec!["age".into(), "size".into()],
        label: Some("label".into()),
        edge_type: Some("type".into()),
        ..Columns::default()
    };
    GraphSource {
        columns,
        normalize_features: Normalize::Standard,
        reverse_edges: true,
        self_loops: SelfLoops::Add,
        ..GraphSource::new(dir.join("nodes.parquet"), dir.join("edges.parquet"))
    }
}

const MONDAY: [(f64, f64, Option<&str>); 5] = [
    (20.0, 1.0, Some("cat")),
    (40.0, 7.0, Some("dog")),
    (60.0, 2.0, None),
    (10.0, 0.5, Some("ant")),
    (33.0, 9.0, None),
];

fn monday(dir: &Path) -> (GraphSource, Dataset) {
    let source =
        dump(&dir.join("monday"), &MONDAY, &[(0, 1, "likes"), (1, 2, "follows"), (3, 1, "knows"), (4, 0, "likes")]);
    let dataset = prepared(&source, &dir.join("monday.dataset"), 2).unwrap();
    (source, dataset)
}

/// The tables of Tuesday have no class "cat", no edge of type "follows", and other means.
fn tuesday(dir: &Path) -> GraphSource {
    dump(
        &dir.join("tuesday"),
        &[(60.0, 2.0, Some("dog")), (500.0, -7.0, Some("ant"))],
        &[(0, 1, "knows"), (1, 0, "likes")],
    )
}

#[test]
fn rows_labels_and_types_are_those_of_the_other_dataset() {
    let dir = tempfile::tempdir().unwrap();
    let (_, monday) = monday(dir.path());
    let encoding = Encoding::of(monday.manifest());
    let own = prepared(&tuesday(dir.path()), &dir.path().join("own"), 1).unwrap();
    let alike = GraphSource { encode_like: Some(encoding.clone()), ..tuesday(dir.path()) };
    let alike = prepared(&alike, &dir.path().join("alike"), 1).unwrap();
    assert_eq!(Encoding::of(alike.manifest()), encoding);
    assert_ne!(Encoding::of(own.manifest()), encoding);
    assert_ne!(own.manifest().fingerprint, alike.manifest().fingerprint);
    assert_eq!(alike.manifest().labels.as_ref().unwrap().counts, [1, 0, 1]);
    // The node with the features of Monday's third node has its stored row.
    let row = |dataset: &Dataset, part: usize, local: usize| {
        let mut row = [0.0; 2];
        dataset.partition(part).unwrap().features.row_to_f32(local, &mut row);
        row.map(f32::to_bits)
    };
    assert_eq!(row(&alike, 0, 0), row(&monday, 0, 1));
    assert_ne!(row(&own, 0, 0), row(&monday, 0, 1));
    let part = alike.partition(0).unwrap();
    assert_eq!(part.nodes.class_labels().unwrap(), [2, 0]);
    // Types are follows, knows, likes, their reverses, and self-loops.
    let types = part.topology.edge_types().unwrap();
    assert_eq!(part.topology.edge_range(0).map(|edge| types[edge]).collect::<Vec<_>>(), [6, 4, 2]);
}

#[test]
fn tables_that_do_not_fit_are_refused_before_they_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let (source, monday) = monday(dir.path());
    let encoding = Encoding::of(monday.manifest());
    let why = |source: GraphSource, encoding: Encoding| {
        let source = GraphSource { encode_like: Some(encoding), ..source };
        prepared(&source, &dir.path().join("out"), 1).unwrap_err().to_string()
    };
    let order = Columns { features: vec!["size".into(), "age".into()], ..source.columns.clone() };
    let untyped = Columns { edge_type: None, ..source.columns.clone() };
    let lacking = Encoding { scales: Vec::new(), ..encoding.clone() };
    let unnamed = Encoding {
        labels: encoding.labels.clone().map(|labels| crate::dataset::LabelEncoding { names: Vec::new(), ..labels }),
        ..encoding.clone()
    };
    for (source, encoding, words) in [
        (
            GraphSource { columns: order, ..source.clone() },
            &encoding,
            "2 features: age, size, and the tables have 2 features: size, age",
        ),
        (GraphSource { columns: untyped, ..source.clone() }, &encoding, "the edges have no types"),
        (
            GraphSource { normalize_features: Normalize::None, ..source.clone() },
            &encoding,
            "graph.normalize_features = \"standard\", and this pipeline \"none\"",
        ),
        (
            GraphSource { self_loops: SelfLoops::Keep, ..source.clone() },
            &encoding,
            "graph.self_loops = \"add\", and this pipeline \"keep\"",
        ),
        (GraphSource { num_classes: Some(4), ..source.clone() }, &encoding, "remove num_classes"),
        (source.clone(), &lacking, "prepare it again"),
        (source.clone(), &unnamed, "3 classes, and the labels of the tables are strings"),
        (
            dump(&dir.path().join("a"), &[(1.0, 1.0, Some("cow"))], &[]),
            &encoding,
            "\"cow\" is not a class of the dataset in graph.encode_like (ant, cat, dog)",
        ),
        (
            dump(&dir.path().join("b"), &[(1.0, 1.0, None)], &[(0, 0, "hates")]),
            &encoding,
            "\"hates\" is not an edge type of the earlier dataset, whose types are follows, knows, likes",
        ),
    ] {
        let why = why(source, encoding.clone());
        assert!(why.contains(words), "{why}");
    }
}

/// Writes node tables with lists as labels.
fn lists(dir: &Path, labels: ArrayRef) -> GraphSource {
    std::fs::create_dir_all(dir).unwrap();
    let ids = Arc::new((0..labels.len() as i64).collect::<Int64Array>());
    write_parquet(&dir.join("nodes.parquet"), vec![("node_id", ids), ("label", labels)], 8);
    let none = || Arc::new(Int64Array::from(Vec::<i64>::new()));
    write_parquet(&dir.join("edges.parquet"), vec![("src", none()), ("dst", none())], 8);
    let columns = Columns { label: Some("label".into()), ..Columns::default() };
    GraphSource { columns, ..GraphSource::new(dir.join("nodes.parquet"), dir.join("edges.parquet")) }
}

#[test]
fn lists_of_labels_have_the_form_of_the_other_dataset() {
    let dir = tempfile::tempdir().unwrap();
    let ints = |rows: &[&[i64]]| -> ArrayRef {
        let rows = rows.iter().map(|row| Some(row.iter().map(|&value| Some(value)).collect::<Vec<_>>()));
        Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(rows))
    };
    let dataset = |name: &str, labels: ArrayRef, like: Option<&Dataset>| {
        let source = lists(&dir.path().join(name), labels);
        let encode_like = like.map(|dataset| Encoding::of(dataset.manifest()));
        prepared(&GraphSource { encode_like, ..source }, &dir.path().join(format!("{name}.dataset")), 1)
    };
    let labels = |dataset: &Dataset| match dataset.partition(0).unwrap().nodes.labels() {
        Labels::Multi(flags, _) => flags.to_vec(),
        _ => panic!("labels are lists"),
    };
    let classes = dataset("classes", ints(&[&[0], &[1], &[]]), None).unwrap();
    let flags = dataset("flags", ints(&[&[0, 1], &[1, 1]]), None).unwrap();
    // Alone, these lists are flags; beside lists of classes, they are classes.
    let both = dataset("both", ints(&[&[0, 1], &[0, 1]]), Some(&classes)).unwrap();
    assert_eq!(labels(&both), [1, 1, 1, 1]);
    let both = dataset("both flags", ints(&[&[0, 1], &[0, 0]]), Some(&flags)).unwrap();
    assert_eq!(labels(&both), [0, 1, 0, 0]);
    for wrong in [ints(&[&[0, 1], &[1, 1, 1]]), ints(&[&[1]])] {
        let why = dataset("wrong", wrong, Some(&flags)).unwrap_err().to_string();
        assert!(
            why.contains("is not a list of 2 flags, 0 or 1, like the labels of the dataset in graph.encode_like"),
            "{why}"
        );
    }
}

#[test]
fn names_of_types_may_be_digits_and_words_of_directions() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [(1.0, 2.0, Some("a")), (2.0, 1.0, Some("b"))];
    for (at, types) in [["0", "1"], ["a", "reverse"]].into_iter().enumerate() {
        for self_loops in [SelfLoops::Keep, SelfLoops::Add] {
            let source = |name: &str, edges: &[(i64, i64, &str)]| {
                let source = dump(&dir.path().join(format!("{at}-{name}")), &nodes, edges);
                GraphSource { self_loops, ..source }
            };
            let first = source("first", &[(0, 1, types[0]), (1, 0, types[1])]);
            let first = prepared(&first, &dir.path().join("first"), 1).unwrap();
            let encoding = Encoding::of(first.manifest());
            let second = GraphSource { encode_like: Some(encoding.clone()), ..source("second", &[(0, 1, types[1])]) };
            let second = prepared(&second, &dir.path().join("second"), 1).unwrap();
            assert_eq!(Encoding::of(second.manifest()).edge_types, encoding.edge_types);
            std::fs::remove_dir_all(dir.path().join("first")).unwrap();
            std::fs::remove_dir_all(dir.path().join("second")).unwrap();
        }
    }
}

#[test]
fn dataset_without_labels_does_not_limit_classes() {
    let dir = tempfile::tempdir().unwrap();
    let unlabeled = dump(&dir.path().join("a"), &[(1.0, 2.0, None), (2.0, 1.0, None)], &[(0, 1, "x")]);
    let unlabeled = prepared(&unlabeled, &dir.path().join("a.dataset"), 1).unwrap();
    let source = dump(&dir.path().join("b"), &[(1.0, 2.0, Some("cat")), (2.0, 1.0, Some("dog"))], &[(0, 1, "x")]);
    let source = GraphSource { encode_like: Some(Encoding::of(unlabeled.manifest())), ..source };
    let labeled = prepared(&source, &dir.path().join("b.dataset"), 1).unwrap();
    assert_eq!(labeled.manifest().labels.as_ref().unwrap().names, ["cat", "dog"]);
}

/// Writes an edge to the first node for each label, from nodes of their own.
fn labeled_edges(dir: &Path, labels: ArrayRef) -> GraphSource {
    std::fs::create_dir_all(dir).unwrap();
    let ids = |ids: Vec<i64>| -> ArrayRef { Arc::new(Int64Array::from(ids)) };
    let edges = labels.len() as i64;
    write_parquet(&dir.join("nodes.parquet"), vec![("node_id", ids((0..=edges).collect()))], 8);
    let [src, dst] = [ids((1..=edges).collect()), ids(vec![0; labels.len()])];
    write_parquet(&dir.join("edges.parquet"), vec![("src", src), ("dst", dst), ("label", labels)], 8);
    let columns = Columns { edge_label: Some("label".into()), ..Columns::default() };
    GraphSource { columns, ..GraphSource::new(dir.join("nodes.parquet"), dir.join("edges.parquet")) }
}

#[test]
fn classes_of_edges_are_those_of_the_other_dataset() {
    let dir = tempfile::tempdir().unwrap();
    let names = |names: &[Option<&str>]| -> ArrayRef { Arc::new(StringArray::from(names.to_vec())) };
    let numbers = |numbers: &[i64]| -> ArrayRef { Arc::new(Int64Array::from(numbers.to_vec())) };
    let dataset = |name: &str, labels: ArrayRef, like: Option<&Dataset>| {
        let source = labeled_edges(&dir.path().join(name), labels);
        let encode_like = like.map(|dataset| Encoding::of(dataset.manifest()));
        prepared(&GraphSource { encode_like, ..source }, &dir.path().join(format!("{name}.dataset")), 1)
    };
    let classes = |dataset: &Dataset| dataset.topology(0).unwrap().labels().unwrap().to_vec();
    let named = dataset("named", names(&[Some("bad"), Some("fair"), Some("good"), None]), None).unwrap();
    let like = dataset("like", names(&[Some("good"), None, Some("fair")]), Some(&named)).unwrap();
    assert_eq!(classes(&like), [2, -1, 1]);
    assert_eq!(Encoding::of(like.manifest()), Encoding::of(named.manifest()));
    assert_eq!(like.manifest().edge_columns.label.as_ref().unwrap().counts, [0, 1, 1]);
    let unlabeled = dataset("unlabeled", names(&[None]), Some(&named)).unwrap();
    assert_eq!(Encoding::of(unlabeled.manifest()), Encoding::of(named.manifest()));
    let numbered = dataset("numbered", numbers(&[0, 3, -1]), None).unwrap();
    let fewer = dataset("fewer", numbers(&[1]), Some(&numbered)).unwrap();
    assert_eq!(fewer.manifest().edge_columns.label.as_ref().unwrap().counts, [0, 1, 0, 0]);
    for (labels, like, words) in [
        (
            names(&[Some("ugly")]),
            &named,
            "have the classes bad, fair, good, and the edge label \"ugly\" is none of them",
        ),
        (numbers(&[1]), &named, "the edge labels of the tables are integers"),
        (numbers(&[4]), &numbered, "have 4 classes, and the edge label 4 is none of them"),
        (names(&[Some("1")]), &numbered, "the edge labels of the tables are strings"),
    ] {
        let why = dataset("wrong", labels, Some(like)).unwrap_err().to_string();
        assert!(why.contains(words), "{why}");
    }
    // Without labels there, any classes are possible.
    let none = dataset("none", names(&[None]), None).unwrap();
    let any = dataset("any", names(&[Some("new")]), Some(&none)).unwrap();
    assert_eq!(any.manifest().edge_columns.label.as_ref().unwrap().names, ["new"]);
}
