//! Errors for invalid updates.

use super::*;
use crate::error::{Error, Fault};
use crate::source::{Duplicates, Isolated, Normalize, SelfLoops, UnknownNodes};
use crate::testing::power_law;

/// Prepares a dataset of 40 nodes without self-loops. `change` modifies the source first.
fn place(change: impl FnOnce(&mut GraphSource)) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let mut dump = Dump::of(&power_law(40, 100, 2));
    dump.rows.retain(|row| row.src != row.dst);
    let mut source = dump.write(&dir.path().join("dump"), IdStyle::Dense);
    change(&mut source);
    let out = dir.path().join("out");
    prepared(&source, (0..40).map(|node| node as u16 % 2).collect(), &out, 2);
    (dir, out)
}

fn refused(out: &Path, batch: Batch) -> Error {
    let before = bytes(out, 2);
    let error = in_place(out, &[batch]).unwrap_err();
    assert!(bytes(out, 2) == before, "a refused update changed a file: {error}");
    assert!(!error.to_string().contains('\n'), "{error}");
    error
}

fn rows(dir: &Path, rows: &[(u32, u32)]) -> Vec<PathBuf> {
    let path = dir.join("rows.parquet");
    let rows: Vec<Row> = rows.iter().map(|&(src, dst)| Row { src, dst, stamp: 7 }).collect();
    write_rows(&path, IdStyle::Dense, &rows);
    vec![path]
}

fn nodes(dir: &Path, nodes: std::ops::Range<u32>) -> Vec<PathBuf> {
    let path = dir.join("new.parquet");
    write_nodes(&path, IdStyle::Dense, nodes);
    vec![path]
}

#[test]
fn removal_of_a_missing_edge_fails_or_is_counted() {
    let (dir, out) = place(|_| {});
    let remove = rows(dir.path(), &[(39, 38), (39, 99)]);
    let error = refused(&out, Batch { remove: remove.clone(), ..Batch::default() });
    assert_eq!(
        error.to_string(),
        format!(
            "{}, column \"src\", row 0 (row group 0): there is no edge 39 → 38 to remove; use --missing ignore to skip such rows",
            remove[0].display()
        )
    );
    assert_eq!(error.fault(), Fault::Input);
    let settings = UpdateSettings { missing: Missing::Ignore, ..UpdateSettings::default() };
    let before = Dataset::open(&out).unwrap().manifest().clone();
    let batch = Batch { remove, ..Batch::default() };
    let updated = update(&out, &[batch], &settings, &Silent).unwrap();
    assert_eq!((updated.counts.missing_ignored, updated.counts.edges_removed), (2, 0));
    assert_eq!(updated.manifest, before, "the manifest changed");
}

#[test]
fn row_refused_by_a_policy_is_named() {
    let (dir, out) = place(|source| source.self_loops = SelfLoops::Fail);
    let error = refused(&out, Batch { edges: rows(dir.path(), &[(3, 4), (1, 77)]), ..Batch::default() });
    assert!(error.to_string().contains("column \"dst\", row 1 (row group 0): 77 is not the id of a node"), "{error}");
    let error = refused(&out, Batch { edges: rows(dir.path(), &[(5, 5)]), ..Batch::default() });
    assert!(error.to_string().contains("row 0 (row group 0): node 5 has an edge to itself"), "{error}");

    let (dir, out) = place(|source| source.unknown_nodes = UnknownNodes::Drop);
    let batch = Batch { edges: rows(dir.path(), &[(1, 77), (39, 38)]), ..Batch::default() };
    let updated = in_place(&out, &[batch]).unwrap();
    assert_eq!((updated.counts.unknown_dropped, updated.counts.edges_added), (1, 1));
}

#[test]
fn duplicate_is_refused_by_the_policy_fail() {
    let dir = tempfile::tempdir().unwrap();
    let dump =
        Dump { nodes: (0..4).collect(), versions: Versions::default(), rows: vec![Row { src: 0, dst: 1, stamp: 0 }] };
    let source = GraphSource {
        duplicates: Duplicates::Fail,
        undirected: true,
        ..dump.write(&dir.path().join("dump"), IdStyle::Dense)
    };
    let out = dir.path().join("out");
    prepared(&source, vec![0, 1, 0, 1], &out, 2);
    let error = refused(&out, Batch { edges: rows(dir.path(), &[(2, 3), (1, 0)]), ..Batch::default() });
    assert!(error.to_string().contains("row 1 (row group 0): the edge 1 → 0 is already in"), "{error}");
    let updated = in_place(&out, &[Batch { edges: rows(dir.path(), &[(2, 3)]), ..Batch::default() }]).unwrap();
    assert_eq!((updated.counts.edges_added, updated.edges), (2, 4));
}

#[test]
fn invalid_new_node_is_named() {
    let (dir, out) = place(|_| {});
    let error = refused(&out, Batch { nodes: nodes(dir.path(), 38..42), ..Batch::default() });
    assert!(error.to_string().contains("row 0 (row group 0): node 38 is already in the dataset"), "{error}");
    let new = nodes(dir.path(), 40..42);
    let error = refused(&out, Batch { nodes: [&new[..], &new].concat(), ..Batch::default() });
    assert!(error.to_string().contains("node id 40 was already used"), "{error}");
    // An edge cannot name a node of a later batch.
    let batches = [
        Batch { edges: rows(dir.path(), &[(40, 1)]), ..Batch::default() },
        Batch { nodes: new.clone(), ..Batch::default() },
    ];
    let error = in_place(&out, &batches).unwrap_err();
    assert!(error.to_string().contains("40 is not the id of a node"), "{error}");

    let (_dir, out) = place(|source| source.normalize_features = Normalize::Standard);
    forget_scales(&out);
    let error = refused(&out, Batch { nodes: new, ..Batch::default() });
    assert!(error.to_string().contains("does not have their means; prepare the changed dump"), "{error}");
}

/// Makes a dataset one of an older version, which does not have the means and deviations of features.
fn forget_scales(out: &Path) {
    let mut manifest = Manifest::read(out).unwrap();
    manifest.features.scales.clear();
    std::fs::write(out.join(Manifest::FILE), manifest.to_json().unwrap()).unwrap();
}

#[test]
fn removal_of_a_node_that_does_not_fit_is_refused() {
    let (dir, out) = place(|_| {});
    let gone = |nodes: &[u32]| {
        let path = dir.path().join("gone.parquet");
        write_columns(&path, IdStyle::Dense, nodes, &Versions::default(), |_| false);
        vec![path]
    };
    let message = |batch: Batch| refused(&out, batch).to_string();
    let unknown = message(Batch { remove_nodes: gone(&[3, 77]), ..Batch::default() });
    assert!(
        unknown.ends_with(
            "gone.parquet, column \"node_id\", row 1 (row group 0): there is no node 77 to remove; use --missing ignore to skip such rows"
        ),
        "{unknown}"
    );
    // Twice; a node that a batch adds again; an edge that a batch adds to it; all nodes.
    let twice = message(Batch { remove_nodes: gone(&[3, 3]), ..Batch::default() });
    assert!(twice.contains("row 1 (row group 0): there is no node 3 to remove"), "{twice}");
    let again = Batch { nodes: nodes(dir.path(), 3..4), remove_nodes: gone(&[3]), ..Batch::default() };
    assert!(message(again).contains("node 3 is already in the dataset"));
    let edges = rows(dir.path(), &[(4, 5), (4, 3)]);
    let added = message(Batch { remove_nodes: gone(&[3]), edges, ..Batch::default() });
    assert!(added.contains("column \"dst\", row 1 (row group 0): 3 is not the id of a node"), "{added}");
    let all = message(Batch { remove_nodes: gone(&(0..40).collect::<Vec<_>>()), ..Batch::default() });
    assert!(all.contains("gone.parquet: no node of the dataset would be left"), "{all}");
    // Values and removed edges of a node that is removed in the same batch are no error; an edge that a later batch removes is one.
    let path = dir.path().join("values.parquet");
    write_columns(&path, IdStyle::Dense, &[3], &Versions::default(), |name| name == "x");
    let later = Batch { remove: rows(dir.path(), &[(3, 4)]), ..Batch::default() };
    let first = Batch { values: vec![path], remove_nodes: gone(&[3]), ..Batch::default() };
    let error = in_place(&out, &[first.clone(), later.clone()]).unwrap_err().to_string();
    assert!(error.contains("there is no edge 3 → 4 to remove"), "{error}");
    let settings = UpdateSettings { missing: Missing::Ignore, ..UpdateSettings::default() };
    let ignored = Batch { remove_nodes: gone(&[3, 77, 3]), ..first };
    let counts = update(&out, &[ignored, later], &settings, &Silent).unwrap().counts;
    let found = (counts.nodes_removed, counts.missing_nodes_ignored, counts.missing_ignored, counts.nodes_changed);
    assert_eq!(found, (1, 2, 1, 0));
}

#[test]
fn missing_column_or_type_is_refused() {
    let (dir, out) = place(|source| source.columns = with_edge_columns(source.columns.clone()));
    let path = dir.path().join("bare.parquet");
    let ids = |node: u32| IdStyle::Dense.ids([node]);
    write_parquet(&path, vec![("src", ids(1)), ("dst", ids(2)), ("weigth", ids(3))], 8);
    let error = refused(&out, Batch { edges: vec![path.clone()], ..Batch::default() });
    assert!(
        error.to_string().contains("no column \"weight\" (graph.columns.weight); did you mean \"weigth\"?"),
        "{error}"
    );
    let error = refused(&out, Batch { remove: vec![path], ..Batch::default() });
    assert!(error.to_string().contains("no column \"etype\""), "{error}");
    let path = dir.path().join("typed.parquet");
    let types: ArrayRef = Arc::new(StringArray::from(vec!["t9"]));
    let floats = || -> ArrayRef { Arc::new(Float32Array::from(vec![1.0])) };
    let columns = vec![("src", ids(1)), ("dst", ids(2)), ("weight", floats()), ("etype", types), ("ts", ids(5))];
    write_parquet(&path, [columns, vec![("up", floats()), ("down", floats())]].concat(), 8);
    let error = refused(&out, Batch { edges: vec![path], ..Batch::default() });
    assert!(error.to_string().contains("\"t9\" is not a type of the dataset;"), "{error}");
}

#[test]
fn dataset_with_an_unsupported_setting_is_refused() {
    type Change = fn(&mut GraphSource);
    let cases: [(&str, Change); 6] = [
        ("graph.k_core", |source| source.k_core = Some(1)),
        ("graph.largest_component", |source| source.largest_component = true),
        ("graph.isolated", |source| source.isolated = Isolated::Drop),
        ("graph.reverse_edges", |source| source.reverse_edges = true),
        ("graph.columns.edge_split", |source| source.columns.edge_split = Some("ts".into())),
        ("graph.columns.edge_label", |source| source.columns.edge_label = Some("ts".into())),
    ];
    for (key, change) in cases {
        let dir = tempfile::tempdir().unwrap();
        let dump = Dump::of(&power_law(40, 100, 2));
        let mut source = dump.write(&dir.path().join("dump"), IdStyle::Dense);
        if key.ends_with("edge_split") {
            write_parquet(
                &dir.path().join("dump/edges.parquet"),
                vec![
                    ("src", IdStyle::Dense.ids([0])),
                    ("dst", IdStyle::Dense.ids([1])),
                    ("ts", IdStyle::Dense.ids([2])),
                ],
                1,
            );
        }
        change(&mut source);
        let out = dir.path().join("out");
        prepare(&source, &crate::testing::Modulo, &PrepareSettings::new(out.clone(), 2), &Silent).unwrap();
        let error = refused(&out, Batch { edges: rows(dir.path(), &[(1, 2)]), ..Batch::default() });
        assert!(error.to_string().starts_with(key), "{error}");
        assert!(error.to_string().contains("an update cannot maintain this setting"), "{error}");
        assert_eq!(error.fault(), Fault::Usage);
    }
}

#[test]
fn unknown_node_is_refused_even_with_the_policy_create() {
    let (dir, out) = place(|source| source.unknown_nodes = UnknownNodes::Create);
    let error = refused(&out, Batch { edges: rows(dir.path(), &[(1, 77)]), ..Batch::default() });
    assert!(error.to_string().contains("77") && error.fault() == Fault::Input, "{error}");
}

#[test]
fn new_values_that_do_not_fit_are_refused() {
    let (dir, out) = place(|_| {});
    let path = dir.path().join("values.parquet");
    let refused = |nodes: &[u32], columns: &[&str]| {
        write_columns(&path, IdStyle::Dense, nodes, &Versions::default(), |name| columns.contains(&name));
        refused(&out, Batch { values: vec![path.clone()], ..Batch::default() }).to_string()
    };
    for (nodes, columns, wanted) in [
        (&[3, 99][..], &["x"][..], "column \"node_id\", row 1 (row group 0): 99 is not the id of a node"),
        (&[3, 5, 3], &["label"], "column \"node_id\", row 2 (row group 0): node id 3 was already used in row 0"),
        (&[3], &["kind", "x"], "a node keeps its type; leave the column \"kind\" out"),
        (&[3], &[], "it has none of the columns x, label, split; a table of new values has the id and at least one"),
    ] {
        let error = refused(nodes, columns);
        assert!(error.contains("values.parquet") && error.contains(wanted), "{error}");
    }
    // A node that a later batch adds does not exist yet.
    write_columns(&path, IdStyle::Dense, &[40], &Versions::default(), |name| name == "x");
    let values = Batch { values: vec![path.clone()], ..Batch::default() };
    let new = Batch { nodes: nodes(dir.path(), 40..41), ..Batch::default() };
    let error = in_place(&out, &[values.clone(), new.clone()]).unwrap_err().to_string();
    assert!(error.contains("40 is not the id of a node"), "{error}");
    assert_eq!(in_place(&out, &[new, values]).unwrap().counts.nodes_changed, 0, "they are values of a new node");
    let (dir, out) = place(|source| source.normalize_features = Normalize::Standard);
    forget_scales(&out);
    let path = dir.path().join("values.parquet");
    for (columns, fits) in [("x", false), ("label", true)] {
        write_columns(&path, IdStyle::Dense, &[3], &Versions::default(), |name| name == columns);
        let result = in_place(&out, &[Batch { values: vec![path.clone()], ..Batch::default() }]);
        assert_eq!(result.is_ok(), fits, "{columns}");
    }
}
