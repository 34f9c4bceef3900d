//! OGB downloads in all three formats, written by hand.

use super::*;

/// A homogeneous download of five nodes and four edges.
fn small(place: &TestDir) {
    for (name, text) in [
        ("arxiv/raw/edge.csv.gz", "0,1\n1,2\n2,0\n4,0\n"),
        ("arxiv/raw/num-node-list.csv.gz", "5\n"),
        ("arxiv/raw/num-edge-list.csv.gz", "4\n"),
        ("arxiv/raw/node-feat.csv.gz", "0,0.5\n1,1.5\n2,2.5\n3,3.5\n4,-4.5e-1\n"),
        ("arxiv/raw/node-label.csv.gz", "2\n0\nnan\n1\n3.0\n"),
        ("arxiv/raw/node_year.csv.gz", "2000\n2001\n2002\n2003\n2004\n"),
        ("arxiv/raw/edge-feat.csv.gz", "1\n2\n3\n4\n"),
        ("arxiv/split/time/train.csv.gz", "0\n1\n"),
        ("arxiv/split/time/valid.csv.gz", "4\n"),
        ("arxiv/split/time/test.csv.gz", "3\n"),
        ("arxiv/mapping/nodeidx2paperid.csv.gz", "node idx,paper id\n0,901\n1,902\n2,903\n3,904\n4,905\n"),
    ] {
        place.write(name, text);
    }
}

#[test]
fn homogeneous_download_is_imported() {
    let place = TestDir::new();
    small(&place);
    let imported = good(&place.import("arxiv"));
    assert_eq!((imported.nodes, imported.edges, imported.features, imported.undirected), (5, 4, 2, false));
    assert_eq!(imported.notes, Vec::<String>::new());
    let out = place.path("out");
    assert_eq!(edges(&out, &["edge_features"]), ["0 1 1", "1 2 2", "2 0 3", "4 0 4"]);
    let columns = ["original_id", "features", "label", "node_year", "split"];
    let wanted = [
        "0 901 0 0.5 2 2000 train",
        "1 902 1 1.5 0 2001 train",
        "2 903 2 2.5 -1 2002 none",
        "3 904 3 3.5 1 2003 test",
        "4 905 4 -0.45 3 2004 val",
    ];
    assert_eq!(nodes(&out, &columns), wanted);
    // The OGB loader adds the reverse of every edge of `products`.
    std::fs::rename(place.path("arxiv"), place.path("products")).unwrap();
    assert!(good(&place.import("products")).undirected);
    let without = vec![OgbPart::Split, OgbPart::Mapping];
    std::fs::remove_dir_all(place.path("products/split")).unwrap();
    std::fs::remove_dir_all(place.path("products/mapping")).unwrap();
    let imported = good(&Import { without, undirected: Some(false), ..place.import("products") });
    assert!(!std::fs::read_to_string(imported.pipeline_path).unwrap().contains("split = "));
}

#[test]
fn several_label_columns_are_multi_label() {
    let place = TestDir::new();
    small(&place);
    place.write("arxiv/raw/node-label.csv.gz", "0,1\n1,1\n0,0\n1,0\n0,1\n");
    good(&place.import("arxiv"));
    assert_eq!(column(&place.path("out/nodes.parquet"), "label"), ["0 1", "1 1", "0 0", "1 0", "0 1"]);
    place.write("arxiv/raw/node-label.csv.gz", "0,1\n1,1\n0,2\n1,0\n0,1\n");
    let error = place.import("arxiv").run(&Silent).unwrap_err().to_string();
    assert!(error.contains("the label 2; labels in 2 columns must be 0 or 1"), "{error}");
}

#[test]
fn binary_download_is_imported() {
    let place = TestDir::new();
    small(&place);
    for form in ["raw/data.npz", "data-deflated.npz"] {
        let raw = place.path("papers100M-bin/raw");
        std::fs::create_dir_all(&raw).unwrap();
        std::fs::copy(fixture(&format!("ogb-arrays/{form}")), raw.join("data.npz")).unwrap();
        std::fs::copy(fixture("ogb-arrays/raw/node-label.npz"), raw.join("node-label.npz")).unwrap();
        for part in ["split", "mapping"] {
            let _ = std::fs::rename(place.path("arxiv").join(part), place.path("papers100M-bin").join(part));
        }
        let imported = good(&place.import("papers100M-bin"));
        assert_eq!((imported.nodes, imported.edges, imported.features, imported.undirected), (5, 4, 3, false));
        let out = place.path("out");
        assert_eq!(edges(&out, &[]), ["0 1", "1 2", "2 0", "4 0"]);
        let wanted = ["0 0 2000 train", "1 -1 2001 train", "2 2 2002 none", "3 1 2003 test", "4 -1 2004 val"];
        assert_eq!(nodes(&out, &["label", "node_year", "split"]), wanted);
        assert_eq!(column(&out.join(NODES), "features")[4], "6 6.5 7");
    }
}

/// Two papers, one author, and edges of two types.
fn typed(place: &TestDir) {
    for (name, text) in [
        ("mag/raw/num-node-dict.csv.gz", "paper,author\n2,1\n"),
        ("mag/raw/triplet-type-list.csv.gz", "paper,cites,paper\nauthor,writes,paper\n"),
        ("mag/raw/relations/paper___cites___paper/edge.csv.gz", "1,0\n"),
        ("mag/raw/relations/paper___cites___paper/num-edge-list.csv.gz", "1\n"),
        ("mag/raw/relations/author___writes___paper/edge.csv.gz", "0,0\n0,1\n"),
        ("mag/raw/relations/author___writes___paper/num-edge-list.csv.gz", "2\n"),
        ("mag/raw/relations/author___writes___paper/edge_reltype.csv.gz", "0\n0\n"),
        ("mag/raw/node-feat/paper/node-feat.csv.gz", "0.5,1\n2,3\n"),
        ("mag/raw/node-feat/paper/node_year.csv.gz", "2010\n2011\n"),
        ("mag/raw/node-label/paper/node-label.csv.gz", "4\n7\n"),
        ("mag/split/time/paper/train.csv.gz", "0\n"),
        ("mag/split/time/paper/valid.csv.gz", "1\n"),
        ("mag/split/time/paper/test.csv.gz", ""),
        ("mag/mapping/author_entidx2name.csv.gz", "ent idx,ent name\n0,ada\n"),
    ] {
        place.write(name, text);
    }
}

#[test]
fn heterogeneous_download_is_imported() {
    let place = TestDir::new();
    typed(&place);
    let imported = good(&place.import("mag"));
    assert_eq!((imported.nodes, imported.edges, imported.features), (3, 3, 2));
    assert!(imported.notes[0].ends_with("edge_reltype.csv.gz: the file was ignored"), "{:?}", imported.notes);
    let out = place.path("out");
    let wanted = ["0 1 author___writes___paper", "0 2 author___writes___paper", "2 1 paper___cites___paper"];
    assert_eq!(edges(&out, &["edge_type"]), wanted);
    let columns = ["local_id", "node_type", "original_id", "features", "label", "node_year", "split"];
    let wanted = ["0 0 author ada 0 0 -1 -1 none", "1 0 paper  0.5 1 4 2010 train", "2 1 paper  2 3 7 2011 val"];
    assert_eq!(nodes(&out, &columns), wanted);
    let pipeline = std::fs::read_to_string(imported.pipeline_path).unwrap();
    assert!(pipeline.contains("edge_type = \"edge_type\"") && pipeline.contains("node_type = \"node_type\""));
    place.write("mag/raw/relations/author___writes___paper/edge.csv.gz", "0,0\n1,1\n");
    std::fs::remove_dir_all(&out).unwrap();
    bad(&place.import("mag"), "author___writes___paper/edge.csv.gz:2: node 1, but there are 1 nodes");
    std::fs::remove_dir_all(place.path("mag/raw/relations/paper___cites___paper")).unwrap();
    bad(&place.import("mag"), "relations/paper___cites___paper/ is missing (edges of that type)");
    // Their sum is 1 in 64 bits.
    let numbers = format!("paper,author,venue\n{0},{0},3\n", i64::MAX);
    place.write("mag/raw/num-node-dict.csv.gz", &numbers);
    bad(&place.import("mag"), "number of nodes");
}

#[test]
fn missing_or_invalid_file_error_names_file_and_cause() {
    let place = TestDir::new();
    for (change, text, words) in [
        (
            "raw/edge.csv.gz",
            None,
            "raw: edge.csv.gz is missing (the edges), so the OGB download is not complete; fetch it again",
        ),
        ("raw/num-node-list.csv.gz", None, "num-node-list.csv.gz is missing (the number of nodes)"),
        ("raw/num-edge-list.csv.gz", None, "num-edge-list.csv.gz is missing (the number of edges)"),
        ("mapping", None, "arxiv: mapping/ is missing (the folder with the original names of nodes)"),
        ("mapping", None, "or ignore this part (--without mapping)"),
        ("split", None, "split/ is missing (the folder with train, valid and test nodes)"),
        ("split/time/valid.csv.gz", None, "split/time: valid.csv.gz is missing (a part of the split)"),
        ("split/time/valid.csv.gz", Some("9\n"), "valid.csv.gz:1: node 9, but there are 5 nodes"),
        ("split/time/valid.csv.gz", Some("4\n1\n"), "valid.csv.gz:2: node 1 is already in the split"),
        ("split/other/train.csv.gz", Some("1\n"), "has several splits (other, time); choose one with --ogb-split"),
        ("raw/num-node-list.csv.gz", Some("3\n2\n"), "num-node-list.csv.gz:2: a second graph"),
        (
            "raw/num-node-list.csv.gz",
            Some("6\n"),
            "mapping/nodeidx2paperid.csv.gz: has 5 rows, but num-node-list.csv.gz says 6",
        ),
        ("raw/num-node-list.csv.gz", Some("4\n"), "split/time/valid.csv.gz:1: node 4, but there are 4 nodes"),
        (
            "raw/num-edge-list.csv.gz",
            Some("5\n"),
            "edge.csv.gz: has 4 edges, but num-edge-list says 5; was it cut off?",
        ),
        ("raw/num-edge-list.csv.gz", Some("3\n"), "edge.csv.gz:4: too many edges: num-edge-list says 3"),
        ("raw/edge.csv.gz", Some("0,1\n1,5\n"), "edge.csv.gz:2: node 5, but there are 5 nodes"),
        ("raw/edge.csv.gz", Some("0,1\n1,a\n"), "edge.csv.gz:2: node \"a\" is not an integer"),
        ("raw/edge.csv.gz", Some("0,1\n1\n"), "edge.csv.gz:2: 1 field instead of two nodes"),
        ("raw/node-feat.csv.gz", Some("1,2\n3\n"), "node-feat.csv.gz:2: 1 number, but the rows before have 2"),
        ("raw/node-feat.csv.gz", Some("1,2\n"), "node-feat.csv.gz: has 1 row, but num-node-list.csv.gz says 5"),
        ("raw/node-feat.csv.gz", Some("1\n2\n3\n4\n5\n6\n"), "node-feat.csv.gz:6: too many rows"),
        ("raw/node-label.csv.gz", Some("1\nx\n"), "node-label.csv.gz:2: label \"x\" is not a class"),
        ("mapping/nodeidx2paperid.csv.gz", Some("1,5\n"), "node number \"1\" instead of 0"),
    ] {
        let place_dir = place.path("arxiv");
        let _ = std::fs::remove_dir_all(&place_dir);
        small(&place);
        match text {
            Some(text) => drop(place.write(&format!("arxiv/{change}"), text)),
            None if place_dir.join(change).is_dir() => std::fs::remove_dir_all(place_dir.join(change)).unwrap(),
            None => std::fs::remove_file(place_dir.join(change)).unwrap(),
        }
        bad(&place.import("arxiv"), words);
    }
    small(&place);
    let path = place.path("arxiv/raw/node-feat.csv.gz");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 10]).unwrap();
    bad(&place.import("arxiv"), "node-feat.csv.gz: the gzip data ends early; fetch the file again");
}
