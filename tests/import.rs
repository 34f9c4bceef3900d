//! `gnnflow import` and `gnnflow export`, and their commands in the docs.

use crate::common::TestDir;
use std::path::Path;

/// The start of a truncated gzip file of edges.
const CUT_OFF: &[u8] =
    &[0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0xff, 0x33, 0x50, 0x30, 0xe0, 0x32, 0x54, 0x30, 0xe7];

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("data/tests/fixtures").join(name)).unwrap()
}

/// Writes the files that the commands in the docs name.
fn files(place: &TestDir) {
    place.write("friends.txt", "# who knows whom\n7 9\n9 11\n11 7\n11 30\n");
    place.write("new-friends.txt", "7 30\n");
    place.write("lost-friends.txt", "9 7\n");
    place.write("payments.csv", "from,to,amount,at\nann,bob,12.5,1700000000\nbob,cy,3,1700000100\n");
    place.write("people.csv", "id,age,height,city\nann,31,1.7,oslo\nbob,44,1.8,rome\ncy,27,1.6,oslo\n");
    place.write("citations.npz", fixture("csr.npz"));
    place.write("words.npz", fixture("features-sparse.npz"));
    place.write("more.npz", fixture("more.npz"));
    place.write("mesh.graph", "4 5\n2 3\n1 3 4\n1 2 4\n2 3\n");
    for (name, text) in [
        ("raw/edge.csv", "0,1\n1,2\n"),
        ("raw/num-node-list.csv", "3\n"),
        ("raw/num-edge-list.csv", "2\n"),
        ("raw/node-feat.csv", "0.5,1\n1,2\n2,3\n"),
        ("raw/node-label.csv", "1\n0\n1\n"),
        ("split/time/train.csv", "0\n"),
        ("split/time/valid.csv", "1\n"),
        ("split/time/test.csv", "2\n"),
        ("mapping/nodeidx2paperid.csv", "node idx,paper id\n0,9\n1,8\n2,7\n"),
    ] {
        place.write(&format!("dataset/ogbn_arxiv/{name}"), text);
    }
}

/// Returns the commands in the docs' `sh` listings with `files=import`.
fn commands() -> Vec<String> {
    let book = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/book/src");
    let text = ["data.md", "updates.md"].map(|page| std::fs::read_to_string(book.join(page)).unwrap()).concat();
    let blocks = text.split("\n```sh files=import\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    blocks.flat_map(|block| block.lines().map(String::from).collect::<Vec<_>>()).collect()
}

#[test]
fn commands_in_the_docs_run_and_every_import_is_prepared() {
    let place = TestDir::new();
    files(&place);
    let commands = commands();
    assert!(commands.len() >= 7, "{commands:?}");
    for command in &commands {
        let args: Vec<&str> = command.split_whitespace().collect();
        assert_eq!(args[0], "gnnflow", "{command}");
        place.succeed(&args[1..]);
        if args[1] == "import" {
            let out = args[args.iter().position(|arg| *arg == "--out").unwrap() + 1];
            let dataset = format!("{out}-prepared");
            place.succeed(&["prepare", &format!("{out}/pipeline.toml"), "--out", &dataset, "--quiet"]);
        }
    }
    // The exported graph equals the imported one: 4 friendships in both directions, in two partitions.
    let back = place.succeed(&["inspect", "friends/back/edges.parquet", "--json"]);
    let back: serde_json::Value = serde_json::from_str(&back).unwrap();
    assert!(back.to_string().contains('8'), "{back}");
    place.succeed(&["prepare", "friends/back/pipeline.toml", "--out", "again", "--quiet"]);
    let manifest = |dataset: &str| -> serde_json::Value {
        serde_json::from_str(&std::fs::read_to_string(place.path(dataset).join("manifest.json")).unwrap()).unwrap()
    };
    let (before, after) = (manifest("friends/dataset"), manifest("again"));
    assert_eq!((&before["nodes"], &before["edges"]), (&after["nodes"], &after["edges"]));
    assert_eq!(before["edges"], 8);
}

#[test]
fn import_writes_results_to_stdout_and_notes_to_stderr() {
    let place = TestDir::new();
    files(&place);
    let ended = place.run(&["import", "friends.txt", "--out", "f", "--json"]);
    let imported: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&imported["kind"], &imported["nodes"], &imported["edges"]), (&"text".into(), &4.into(), &4.into()));
    assert!(ended.stderr.contains("note: edges are directed; use --undirected"), "{}", ended.stderr);
    let ended = place.run(&["import", "friends.txt", "--out", "f", "--quiet", "--undirected"]);
    assert_eq!((ended.stderr.as_str(), ended.code), ("", 0));
    assert!(ended.stdout.contains("f/edges.parquet: 4 undirected edges\n"), "{}", ended.stdout);
    let found = place.succeed(&["inspect", "f"]);
    assert!(found.contains("made by  gnnflow import text from friends.txt"), "{found}");
}

#[test]
fn invalid_input_exits_with_3_and_one_error_line() {
    let place = TestDir::new();
    files(&place);
    place.write("cut.txt.gz", CUT_OFF);
    place.write("bad.graph", "4 6\n2 3\n1 3 4\n1 2 4\n2 3\n");
    place.write("far.graph", "2 1\n2\n3\n");
    place.write("word.csv", "src,dst,weight\n1,2,heavy\n");
    place.write("what", "1 2\n");
    std::fs::remove_dir_all(place.path("dataset/ogbn_arxiv/mapping")).unwrap();
    for (args, words) in [
        (&["cut.txt.gz"][..], "cut.txt.gz: the gzip data ends early; fetch the file again"),
        (&["bad.graph"], "bad.graph: its header says 6 edges, but its lines have 10 neighbors instead of 12"),
        (&["far.graph"], "far.graph:3: there is no neighbor 3; nodes are numbered 1 to 2"),
        (&["word.csv"], "word.csv:2: weight \"heavy\" is not a number"),
        (&["friends.txt", "--weight", "amount"], "friends.txt: no column \"amount\""),
        (&["more.npz"], "more.npz: no array \"shape\"; it has "),
        (&["dataset/ogbn_arxiv"], "dataset/ogbn_arxiv: mapping/ is missing"),
        (&["nowhere.csv"], "nowhere.csv: there is no such file or folder"),
        (&["what"], "what: its name does not show its format"),
    ] {
        let errors = place.fail(&[&["import", "--out", "x"], args].concat(), 3, &[words]);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(!place.path("x").exists(), "{args:?}");
    }
    place.succeed(&["import", "dataset/ogbn_arxiv", "--without", "mapping", "--out", "x"]);
    place.fail(&["import", "metsi", "friends.txt", "--out", "y"], 2, &["did you mean metis?"]);
    place.fail(&["import", "friends.txt", "--out", "y", "--without", "split"], 2, &["--without: is for ogb only"]);
    place.fail(&["export", "friends.txt", "--out", "y"], 3, &["friends.txt"]);
    place.fail(&["export", "nowhere", "--out", "y"], 3, &["nowhere"]);
}
