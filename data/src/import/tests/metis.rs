//! METIS graphs.

use super::*;

/// Seven nodes, as in the METIS manual: a square of triangles.
const PLAIN: &str = "% a comment\n7 11\n5 3 2\n1 3 4\n5 4 2 1\n2 3 6 7\n1 3 6\n5 4 7\n6 4\n";

#[test]
fn edge_of_two_lines_is_written_once() {
    let place = TestDir::new();
    for name in ["a.graph", "a.graph.gz"] {
        place.write(name, PLAIN);
        let imported = good(&place.import(name));
        assert_eq!((imported.nodes, imported.edges, imported.undirected), (7, 11, true));
        let mut found = edges(&place.path("out"), &[]);
        found.sort();
        let wanted = ["0 1", "0 2", "0 4", "1 2", "1 3", "2 3", "2 4", "3 5", "3 6", "4 5", "5 6"];
        assert_eq!(found, wanted);
        assert_eq!(nodes(&place.path("out"), &[]), (0..7).map(|i| i.to_string()).collect::<Vec<_>>());
    }
}

#[test]
fn node_sizes_weights_comments_and_isolated_nodes_are_read() {
    let place = TestDir::new();
    // Three nodes with one size and two weights each. The last one has no neighbors, and its line has no line break.
    place.write("a.graph", "3 1 111 2\n4 1 2 2 7\n% between\n5 3 4 1 7\n6 5 6");
    let arrays = NodeArrays { labels: Some("no.npy".into()), ..NodeArrays::default() };
    let imported = good(&place.import("a.graph"));
    assert_eq!((imported.nodes, imported.edges), (3, 1));
    let out = place.path("out");
    assert_eq!(edges(&out, &["weight"]), ["0 1 7"]);
    let extras = ["node_size", "node_weight_1", "node_weight_2"];
    assert_eq!(nodes(&out, &extras), ["0 4 1 2", "1 5 3 4", "2 6 5 6"]);
    assert!(Import { arrays, ..place.import("a.graph") }.run(&Silent).unwrap_err().to_string().contains("no.npy"));
    place.write("b.graph", "3 1\n\n3\n2\n\n% the end\n");
    assert_eq!(good(&place.import("b.graph")).edges, 1);
    place.write("c.graph", "2 0\n\n\n");
    assert_eq!(good(&place.import("c.graph")).nodes, 2);
    place.write("d.graph", "0 0\n");
    assert_eq!(good(&place.import("d.graph")).nodes, 0);
}

#[test]
fn invalid_file_error_names_line_and_cause() {
    let place = TestDir::new();
    for (text, words) in [
        (PLAIN.replace("7 11", "8 11"), "its header says 8 nodes, but it has lines for 7 only; was it cut off?"),
        (PLAIN.replace("7 11", "6 11"), "a.graph:6: there is no neighbor 7; nodes are numbered 1 to 6"),
        ("1 0\n\n1 2\n".into(), "a.graph:3: too many lines: the header says 1 nodes"),
        (PLAIN.replace("7 11", "7 12"), "its header says 12 edges, but its lines have 22 neighbors instead of 24"),
        (PLAIN.replace("1 3 4", "1 3 0"), "a.graph:4: there is no neighbor 0; nodes are numbered 1 to 7"),
        (PLAIN.replace("1 3 4", "1 2 4"), "a.graph:4: node 2 is its own neighbor"),
        (PLAIN.replace("1 3 4", "1 3 5"), "an edge is missing in the line of one of its ends"),
        (PLAIN.replace("1 3 4", "1 3 x"), "a.graph:4: 'x' instead of a non-negative integer"),
        (PLAIN.replace("1 3 4", "1 3 -4"), "a.graph:4: a number that is negative or has decimals"),
        (PLAIN.replace("7 11", "7 11 5"), "a.graph:2: format 005: must be three digits of 0 and 1"),
        (PLAIN.replace("7 11", "7"), "a.graph:2: 1 number in the header"),
        ("2 1 1\n2 5\n1\n".into(), "a.graph:3: a neighbor without an edge weight"),
        ("2 1 1\n2 5\n1 6\n".into(), "or has two weights"),
        ("2 1 11\n\n1 6\n".into(), "a.graph:2: a node weight is missing"),
        ("2 1 0 2\n2\n1\n".into(), "2 node weights, but format 000 has none"),
        (String::new(), "a.graph:1: 0 numbers in the header"),
        ("99999999999999999999 1\n".into(), "a.graph:1: a number beyond 2^63"),
    ] {
        place.write("a.graph", &text);
        bad(&place.import("a.graph"), words);
    }
    let packed = gzip(PLAIN);
    std::fs::write(place.path("a.graph"), &packed[..packed.len() - 9]).unwrap();
    bad(&place.import("a.graph"), "the gzip data ends early");
}

/// A real graph, written in METIS format and read back.
#[test]
fn real_mesh_round_trip_gives_the_same_edges() {
    let default = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data"));
    let dir = std::env::var_os("GNNFLOW_TEST_DATA").map_or(default, PathBuf::from).join("metis-4elt");
    if !dir.exists() {
        println!("skipped: {} is not there", dir.display());
        return;
    }
    let read = |name| -> Vec<usize> { column(&dir.join(EDGES), name).iter().map(|id| id.parse().unwrap()).collect() };
    let mut lines = vec![Vec::new(); 15_606];
    read("src").into_iter().zip(read("dst")).for_each(|(src, dst)| lines[src].push((dst + 1).to_string()));
    let text: String = lines.iter().map(|line| line.join(" ") + "\n").collect();
    let place = TestDir::new();
    place.write("4elt.graph", &format!("15606 45878\n{text}"));
    assert_eq!(good(&place.import("4elt.graph")).edges, 45_878);
    let mut found = edges(&place.path("out"), &[]);
    let mut wanted = edges(&dir, &[]);
    wanted.retain(|edge| {
        let (src, dst) = edge.split_once(' ').unwrap();
        src.parse::<u32>().unwrap() < dst.parse().unwrap()
    });
    found.sort();
    wanted.sort();
    assert!(found == wanted);
}
