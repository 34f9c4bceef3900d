//! Edge lists and node lists in text files.

use super::*;
use crate::dataset::IdKind;

#[test]
fn snap_edge_list_and_its_comments_are_read() {
    let place = TestDir::new();
    let text =
        "# Undirected graph: ../x.txt\n# Nodes: 4 Edges: 3\n# FromNodeId\tToNodeId\n7\t9\r\n\n-3\t7\n4000000000\t9\n";
    for name in ["e.txt", "e.txt.gz", "e.txt.zst"] {
        place.write(name, text);
        let imported = good(&place.import(name));
        assert!(imported.undirected && imported.notes.is_empty(), "{:?}", imported.notes);
        assert_eq!(edges(&place.path("out"), &[]), ["7 9", "-3 7", "4000000000 9"]);
        assert_eq!(nodes(&place.path("out"), &[]), ["-3", "7", "9", "4000000000"]);
        let pipeline = std::fs::read_to_string(imported.pipeline_path).unwrap();
        assert!(pipeline.contains("undirected = true ") && !pipeline.contains("[model]"), "{pipeline}");
    }
    place.write("e.txt", &text.replace("Edges: 3", "Edges: 5"));
    let notes = good(&place.import("e.txt")).notes;
    assert!(notes[0].ends_with("its comments say 4 nodes and 5 edges, its lines have 4 and 3"), "{notes:?}");
}

#[test]
fn konect_and_matrix_market_files_are_read() {
    let place = TestDir::new();
    place.write("out.k", "% sym weighted\n% 2 3 3\n1 2 5 1000\n2 3 6 1001.75\n");
    let text = TextOptions { weight: Some("3".into()), time: Some("4".into()), ..TextOptions::default() };
    let imported = good(&Import { text, ..place.import("out.k") });
    assert!(imported.undirected && imported.notes == ["times with decimals were rounded down"], "{:?}", imported.notes);
    assert_eq!(edges(&place.path("out"), &["weight", "time"]), ["1 2 5 1000", "2 3 6 1001"]);
    let pipeline = std::fs::read_to_string(imported.pipeline_path).unwrap();
    assert!(pipeline.contains("time = \"time\"") && pipeline.contains("duplicates = \"keep\""), "{pipeline}");
    place.write("m.mtx", "%%MatrixMarket matrix coordinate pattern symmetric\n% c\n3 3 2\n1 2\n3 1\n");
    assert!(good(&place.import("m.mtx")).undirected);
    assert_eq!(edges(&place.path("out"), &[]), ["1 2", "3 1"]);
}

#[test]
fn csv_with_header_and_string_ids_is_read() {
    let place = TestDir::new();
    place.write("a.csv", "weight,from,to,how\n1.5,\"x, y\",b,knows\n2,b,c,likes\n");
    place.write("b.csv.gz", "weight,from,to,how\n3,c,b,knows\n");
    place.write(
        "n.tsv",
        "name\tp\tq\tlabel\tr\tsplit\nx, y\t1\t2\tred\t3\ttrain\nb\t4\t5\tblue\t6\t\nc\t7\t8\tred\t9\tvalid\n",
    );
    let text = TextOptions {
        edge_type: Some("how".into()),
        nodes: vec![place.path("n.tsv")],
        features: vec!["p".into(), "3".into(), "r..r".into()],
        ..TextOptions::default()
    };
    let paths = vec![place.path("a.csv"), place.path("b.csv.gz")];
    let imported = good(&Import { paths, text, undirected: Some(false), ..place.import("a.csv") });
    assert_eq!((imported.nodes, imported.edges, imported.features), (3, 3, 3));
    assert_eq!(imported.notes, Vec::<String>::new());
    let out = place.path("out");
    assert_eq!(edges(&out, &["weight", "edge_type"]), ["x, y b 1.5 knows", "b c 2 likes", "c b 3 knows"]);
    let wanted = ["x, y 1 2 3 red train", "b 4 5 6 blue none", "c 7 8 9 red val"];
    assert_eq!(nodes(&out, &["features", "label", "split"]), wanted);
    let pipeline = std::fs::read_to_string(imported.pipeline_path).unwrap();
    assert!(pipeline.contains("[model]") && pipeline.contains("label = \"label\""), "{pipeline}");
}

#[test]
fn labels_are_classes_or_values_and_integer_ids_become_text_on_request() {
    let place = TestDir::new();
    place.write("e.csv", "src;dst\n1;2\n2;3\n");
    place.write("n.csv", "id,label\n1,0\n2,\n3,4.0\n");
    let text = TextOptions { nodes: vec![place.path("n.csv")], ..TextOptions::default() };
    let import = Import { text: text.clone(), ..place.import("e.csv") };
    good(&import);
    assert_eq!(nodes(&place.path("out"), &["label"]), ["1 0", "2 -1", "3 4"]);
    place.write("n.csv", "id,label\n1,0.5\n2,2\n3,-1e3\n");
    good(&import);
    assert_eq!(nodes(&place.path("out"), &["label"]), ["1 0.5", "2 2", "3 -1000"]);
    for (text, labels) in
        [("1,0.5\n2,\n3,7", ["1 0.5", "2 null", "3 7"]), ("1,\n2,red\n3,red", ["1 null", "2 red", "3 red"])]
    {
        place.write("n.csv", &format!("id,label\n{text}\n"));
        good(&import);
        assert_eq!(nodes(&place.path("out"), &["label"]), labels);
    }
    place.write("n.csv", "id,label\n1,0.5\n2,2\n3,-1e3\n");
    let imported = good(&import);
    let pipeline = std::fs::read_to_string(imported.pipeline_path).unwrap();
    assert!(pipeline.contains("split_fractions") && !pipeline.contains("[model]"), "{pipeline}");
    good(&Import { text: TextOptions { ids: Some(IdKind::Text), ..text }, ..place.import("e.csv") });
    assert_eq!(edges(&place.path("out"), &[]), ["1 2", "2 3"]);
}

#[test]
fn skipped_lines_and_columns_are_counted() {
    let place = TestDir::new();
    place.write("a.csv", "% one\nsrc,dst,how,x\na,b,1,2\n\n# two\n,b,1,2\nb,,1,2\nb,a,1,2\n");
    place.write("b.csv", "src,dst,how,x\n# three\nc,a,1,2\n");
    place.write("n.csv", "id,label,y\na,red,1\n,red,2\nb,,3\nc,red,4\n");
    let text = TextOptions {
        empty_ids: EmptyIds::Skip,
        edge_type: Some("how".into()),
        nodes: vec![place.path("n.csv")],
        ..TextOptions::default()
    };
    let paths = vec![place.path("a.csv"), place.path("b.csv")];
    let imported = good(&Import { paths, text, ..place.import("a.csv") });
    assert_eq!(edges(&place.path("out"), &[]), ["a b", "b a", "c a"]);
    assert_eq!(nodes(&place.path("out"), &[]), ["a", "b", "c"]);
    let columns = [("a.csv", "x"), ("b.csv", "x"), ("n.csv", "y")];
    let columns = columns.map(|(file, column)| (place.path(file).display().to_string(), vec![column.to_string()]));
    let skipped = imported.skipped.unwrap();
    assert_eq!(skipped, Skipped { comment_lines: 3, empty_lines: 1, empty_ids: 3, columns: columns.into() });
    assert_eq!(skipped.note("").unwrap(), "skipped: 3 comment lines, 1 empty line, 3 lines with an empty id");
    assert!(imported.notes.iter().any(|note| note.ends_with("n.csv: ignored columns: \"y\"")), "{:?}", imported.notes);
    assert_eq!(Skipped::default().note(""), None);
}

#[test]
fn empty_file_is_a_graph_without_edges() {
    let place = TestDir::new();
    place.write("e.txt", "# nothing\n");
    let imported = good(&place.import("e.txt"));
    assert_eq!((imported.nodes, imported.edges), (0, 0));
    assert!(imported.notes.iter().any(|note| note.ends_with("it has no edges")));
}

#[test]
fn invalid_edge_error_names_the_line() {
    let place = TestDir::new();
    let weight = TextOptions { weight: Some("weight".into()), ..TextOptions::default() };
    let third = TextOptions { weight: Some("3".into()), ..TextOptions::default() };
    let plain = TextOptions::default;
    for (name, text, options, words) in [
        ("e.txt", "1 2\n# c\n3 x\n", plain(), "e.txt:3: id \"x\" is not an integer, but the ids before it are"),
        (
            "e.txt",
            "1 2\n3\n",
            plain(),
            "e.txt:2: 1 field, but field 2 is needed; is the delimiter right (--delimiter)?",
        ),
        ("e.txt", "1\n2\n", plain(), "1 field in its first line, but at least 2 are needed"),
        ("e.txt", "1 2 0.5\n2 3 heavy\n", third.clone(), "e.txt:2: weight \"heavy\" is not a number"),
        ("e.txt", "1 2 nan\n", third.clone(), "e.txt:1: weight \"nan\" is not a finite number"),
        ("e.txt", "1 2\n1 99999999999999999999\n", plain(), "e.txt:2: id \"99999999999999999999\" is not an integer"),
        (
            "e.csv",
            "src,dst,wieght\n1,2,3\n",
            weight.clone(),
            "no column \"weight\"; did you mean \"wieght\"? it has \"src\"",
        ),
        (
            "e.csv",
            "1,2\n3,4\n",
            weight,
            "the first line has no column names (--header yes if it does); use a number from 1 to 2",
        ),
        ("e.csv", "src,dst\n1,2\n3,4,5\n", plain(), "e.csv:3: 3 fields, but the lines before have 2"),
        ("e.csv", "a,b\n\"x,y\n", plain(), "e.csv:2: a quote that is not closed"),
        ("m.mtx", "%%MatrixMarket matrix array real general\n1 1\n1\n", plain(), "m.mtx:1: a dense MatrixMarket file"),
        ("e.txt", "PAR1xxxx", plain(), "is a Parquet file"),
        ("e.csv", "src,dst\na,b\n,c\n", plain(), "e.csv:3: the id in column \"src\" is empty; fill it in, or skip"),
    ] {
        place.write(name, text);
        bad(&Import { text: options, ..place.import(name) }, words);
    }
}

#[test]
fn truncated_or_damaged_compressed_file_is_refused() {
    let place = TestDir::new();
    let text: String = (0..50_000).map(|i| format!("{i} {}\n", i * 7919 % 10_007)).collect();
    for name in ["e.txt.gz", "e.txt.zst"] {
        let path = place.write(name, &text);
        let mut bytes = std::fs::read(&path).unwrap();
        let packing = if name.ends_with("gz") { "gzip" } else { "zstd" };
        std::fs::write(&path, &bytes[..bytes.len() * 2 / 3]).unwrap();
        bad(&place.import(name), &format!("{name}: the {packing} data ends early; fetch the file again"));
        let middle = bytes.len() / 2;
        bytes[middle..middle + 64].fill(0xff);
        std::fs::write(&path, &bytes).unwrap();
        let error = place.import(name).run(&Silent).unwrap_err();
        assert_eq!(error.fault(), Fault::Input, "{error}");
    }
}

#[test]
fn invalid_node_error_names_the_line() {
    let place = TestDir::new();
    place.write("e.txt", "1 2\n");
    let text = |features: &str| TextOptions {
        nodes: vec![place.path("n.csv")],
        features: features.split(',').filter(|name| !name.is_empty()).map(String::from).collect(),
        ..TextOptions::default()
    };
    for (nodes, features, words) in [
        (
            "id,x\n1,0.5\n2,\n",
            "x",
            "n.csv:3: the feature in column \"x\" is empty; fill in a number, or remove the line",
        ),
        ("id,x\n1,0.5\nb,1\n", "x", "n.csv:3: id \"b\" is not an integer"),
        ("id,x\n1,0.5\n", "y", "no column \"y\"; did you mean \"x\"?"),
        ("id,x,y\n1,0,0\n", "y..x", "columns y..x: the first comes after the last"),
        ("id,split\n1,train\n2,dev\n", "", "n.csv:3: split \"dev\": use train, val, test or none"),
        (
            "id,x\n1,0.5\n,1\n",
            "x",
            "n.csv:3: the id in column \"id\" is empty; fill it in, or skip such lines with --empty-ids skip",
        ),
    ] {
        place.write("n.csv", nodes);
        bad(&Import { text: text(features), ..place.import("e.txt") }, words);
    }
}
