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
    // Edge types lead to the model and the reverse edges that init chooses.
    let columns = ["--edge-type", "amount", "--nodes", "people.csv", "--features", "age", "--label", "city"];
    let said = place.succeed(&[&["import", "payments.csv", "--out", "typed"][..], &columns].concat());
    assert!(said.contains("3 nodes with 1 feature\n") && said.contains("typed/pipeline.toml: trains rgcn"), "{said}");
    let file = std::fs::read_to_string(place.path("typed/pipeline.toml")).unwrap();
    for line in ["name = \"typed\"", "reverse_edges = true", "kind = \"rgcn\""] {
        assert!(file.contains(line), "{line}\n{file}");
    }
    place.succeed(&["run", "typed/pipeline.toml", "--dry-run"]);
    // Tables of others are refused before any work.
    place.write("mine/edges.parquet", "mine");
    for command in [&["import", "friends.txt"][..], &["generate", "planted", "--nodes", "100", "--edges", "200"]] {
        let words = ["mine/edges.parquet: would be replaced, but gnnflow did not write it", "--out"];
        place.fail(&[command, &["--out", "mine"]].concat(), 3, &words);
        assert_eq!(std::fs::read_dir(place.path("mine")).unwrap().count(), 1);
    }
}

#[test]
fn invalid_input_exits_with_3_and_one_error_line() {
    let place = TestDir::new();
    files(&place);
    place.write("cut.txt.gz", CUT_OFF);
    place.write("bad.graph", "4 6\n2 3\n1 3 4\n1 2 4\n2 3\n");
    place.write("far.graph", "2 1\n2\n3\n");
    place.write("word.csv", "src,dst,much,at\n1,2,heavy,3\n2,3,4,\n");
    place.write("g/edges.parquet", "");
    place.write("what", "1 2\n");
    std::fs::remove_dir_all(place.path("dataset/ogbn_arxiv/mapping")).unwrap();
    for (args, words) in [
        (&["cut.txt.gz"][..], "cut.txt.gz: the gzip data ends early; fetch the file again"),
        (&["bad.graph"], "bad.graph: its header says 6 edges, but its lines have 10 neighbors instead of 12"),
        (&["far.graph"], "far.graph:3: there is no neighbor 3; nodes are numbered 1 to 2"),
        (&["word.csv", "--weight", "much"], "word.csv:2: weight \"heavy\" is not a number"),
        (&["friends.txt", "--weight", "amount"], "friends.txt: no column \"amount\""),
        (&["more.npz"], "more.npz: no array \"shape\"; it has "),
        (&["dataset/ogbn_arxiv"], "dataset/ogbn_arxiv: mapping/ is missing"),
        (&["nowhere.csv"], "nowhere.csv: there is no such file or folder"),
        (&["what"], "what: its name does not show its format"),
        (
            &["g/edges.parquet"],
            "g/edges.parquet: is a Parquet file, which needs no import; write a pipeline file with `gnnflow init",
        ),
        (&["g"], "g: has Parquet tables, which need no import; write a pipeline file for them with `gnnflow init DIR`"),
        (
            &["word.csv", "--time", "at"],
            "word.csv:3: the time in column \"at\" is empty; fill in a number, or remove the line",
        ),
        (&["word.csv", "--edge-features", "4"], "word.csv:3: the feature in column \"at\" is empty"),
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

#[test]
fn many_edge_types_share_matrices_as_in_a_file_of_init() {
    let place = TestDir::new();
    let nodes: String = (0..40).map(|node| format!("{node},{},{}\n", node % 7, node % 3)).collect();
    place.write("n.csv", format!("id,x,label\n{nodes}"));
    for (types, shared) in [(16, false), (17, true), (90, true)] {
        let edge = |i: usize| format!("{},{},t{}\n", i % 40, (i * 7 + 3) % 40, i % types);
        place.write("e.csv", format!("src,dst,how\n{}", (0..400).map(edge).collect::<String>()));
        let args = ["import", "e.csv", "--edge-type", "how", "--nodes", "n.csv", "--features", "x", "--out", "out"];
        place.succeed(&args);
        let _ = std::fs::remove_file(place.path("init.toml"));
        place.succeed(&["init", "out", "--edge-type", "edge_type", "--out", "init.toml"]);
        for name in ["out/pipeline.toml", "init.toml"] {
            let file = std::fs::read_to_string(place.path(name)).unwrap();
            assert!(file.contains("kind = \"rgcn\""), "{name}: {file}");
            assert_eq!(file.contains("num_bases = 8"), shared, "{name}, {types} types: {file}");
        }
        place.succeed(&["run", "out/pipeline.toml", "--dry-run"]);
    }
}

/// Returns a graph of packages in which most names occur once. The kinds repeat.
fn packages() -> String {
    let kind = |i: usize| if i.is_multiple_of(4) { "dev" } else { "runtime" };
    (0..80).map(|i| format!("p{},q{},{}\n", i / 3, i * 7 % 61, kind(i))).collect()
}

fn import_json(place: &TestDir, args: &[&str]) -> (serde_json::Value, String) {
    let ended = place.run(&[&["import", "--json", "--out", "out"], args].concat());
    assert_eq!(ended.code, 0, "{args:?}: {}", ended.stderr);
    (serde_json::from_str(&ended.stdout).unwrap(), ended.stderr)
}

#[test]
fn header_of_text_columns_is_found_or_asked_for() {
    let place = TestDir::new();
    // The header is recognized by the kinds, which repeat.
    place.write("deps.csv", format!("package,depends_on,kind\n{}", packages()));
    let (found, notes) = import_json(&place, &["deps.csv"]);
    assert_eq!(found["edges"], 80, "{found}");
    assert!(
        notes.contains("deps.csv: the first line is read as column names: \"package\", \"depends_on\", \"kind\""),
        "{notes}"
    );
    assert!(notes.contains("edges go from column \"package\" to column \"depends_on\""), "{notes}");
    assert!(notes.contains("ignored columns: \"kind\""), "{notes}");
    assert_eq!(import_json(&place, &["deps.csv", "--header", "no"]).0["edges"], 81);
    // Without a header.
    place.write("deps.csv", packages());
    let (found, notes) = import_json(&place, &["deps.csv"]);
    assert_eq!(found["edges"], 80, "{found}");
    assert!(notes.contains("the first line is read as data: \"p0\", \"q0\", \"dev\""), "{notes}");
    assert_eq!(import_json(&place, &["deps.csv", "--header", "yes"]).0["edges"], 79);
    // Two columns of names that occur once show nothing.
    let two: String = (0..40).map(|i| format!("p{i},q{i}\n")).collect();
    place.write("two.csv", format!("package,depends_on\n{two}"));
    let words = [
        "two.csv: the first line may have column names or data: \"package\", \"depends_on\"; use --header yes or --header no",
    ];
    place.fail(&["import", "two.csv", "--out", "none"], 3, &words);
    assert!(!place.path("none").exists());
    assert_eq!(import_json(&place, &["two.csv", "--header", "yes"]).0["edges"], 40);
    assert_eq!(import_json(&place, &["two.csv", "--header", "no"]).0["edges"], 41);
    // An option that gives a name in the first line.
    assert_eq!(import_json(&place, &["two.csv", "--src", "package"]).0["edges"], 40);
    // In files with blanks, column names are rare.
    place.write("two.txt", two.replace(',', " "));
    let (found, notes) = import_json(&place, &["two.txt"]);
    assert_eq!(found["edges"], 40, "{found}");
    assert!(notes.contains("the first line is read as data: \"p0\", \"q0\" (--header yes"), "{notes}");
}

#[test]
fn lines_with_an_empty_id_are_refused_or_skipped() {
    let place = TestDir::new();
    place.write("e.csv", "# c\nsrc,dst,x\na,b,1\n\nb,,1\n,,1\nb,a,1\n");
    let words = ["e.csv:5: the id in column \"dst\" is empty; fill it in, or skip such lines with --empty-ids skip"];
    place.fail(&["import", "e.csv", "--out", "none"], 3, &words);
    assert!(!place.path("none").exists());
    let (found, notes) = import_json(&place, &["e.csv", "--empty-ids", "skip"]);
    assert_eq!((&found["edges"], &found["nodes"]), (&2.into(), &2.into()));
    let skipped = serde_json::json!({
        "comment_lines": 1, "empty_lines": 1, "empty_ids": 2, "columns": { "e.csv": ["x"] }
    });
    assert_eq!(found["skipped"], skipped);
    assert!(notes.contains("note: skipped: 1 comment line, 1 empty line, 2 lines with an empty id"), "{notes}");
    assert!(notes.contains("note: e.csv: ignored columns: \"x\""), "{notes}");
    place.write("i.csv", "src,dst\n,2\n1,2\n");
    place.fail(&["import", "i.csv", "--out", "none"], 3, &["i.csv:2: the id in column \"src\" is empty"]);
    assert_eq!(import_json(&place, &["i.csv", "--empty-ids", "skip"]).0["edges"], 1);
    // A preview counts them, too.
    place.write("n.csv", "id,y\na,1\n,2\nb,3\n");
    let preview = ["import", "e.csv", "--nodes", "n.csv", "--empty-ids", "skip", "--dry-run"];
    let ended = place.run(&[&preview[..], &["--json"]].concat());
    let found: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&found["skipped"]["empty_ids"], &found["skipped"]["empty_lines"]), (&3.into(), &1.into()), "{found}");
    let note = "note: skipped in the first 1000 rows: 1 comment line, 1 empty line, 3 lines with an empty id";
    assert!(ended.stderr.contains(note), "{}", ended.stderr);
    assert!(place.run(&preview).stderr.contains(note));
    place.fail(&preview[..4], 2, &["--out"]);
    let words = ["n.csv:3: the id in column \"id\" is empty", "--empty-ids skip"];
    place.write("e.csv", "src,dst\na,b\n");
    place.fail(&["import", "e.csv", "--nodes", "n.csv", "--dry-run"], 3, &words);
    place.write("mesh.graph", "2 1\n2\n1\n");
    place.fail(&["import", "mesh.graph", "--empty-ids", "skip", "--out", "none"], 2, &["for text only"]);
}

#[test]
fn one_column_for_both_ends_is_refused() {
    let place = TestDir::new();
    files(&place);
    for args in [["--src", "from", "--dst", "from"], ["--src", "1", "--dst", "from"]] {
        let args = [&["import", "payments.csv", "--out", "none"][..], &args].concat();
        place.fail(&args, 2, &["--src, --dst: payments.csv: both ends of the edges are column \"from\""]);
    }
    assert!(!place.path("none").exists());
}

#[test]
fn empty_label_is_prepared_as_no_label() {
    let place = TestDir::new();
    place.write("e.csv", "src,dst\na,b\nb,c\nc,a\n");
    for labels in ["red,blue,", "0,1,", "0.5,7,"] {
        let nodes: String = "abc".chars().zip(labels.split(',')).map(|(id, label)| format!("{id},{label}\n")).collect();
        place.write("n.csv", format!("id,label\n{nodes}"));
        place.succeed(&["import", "e.csv", "--nodes", "n.csv", "--out", "out"]);
        place.succeed(&["prepare", "out/pipeline.toml", "--set", "graph.split_fractions=[0.5,0.5,0]", "--out", "set"]);
        let found: serde_json::Value = serde_json::from_str(&place.succeed(&["inspect", "set", "--json"])).unwrap();
        assert_eq!(found["manifest"]["labels"]["labelled"], 2, "{found}");
        let splits = &found["manifest"]["splits"];
        assert_eq!((&splits["train"], &splits["val"]), (&1.into(), &1.into()), "{splits}");
    }
}

#[test]
fn dry_run_shows_the_first_rows_and_writes_nothing() {
    let place = TestDir::new();
    files(&place);
    let before = std::fs::read_dir(place.path(".")).unwrap().count();
    let args = ["import", "payments.csv", "--weight", "amount", "--nodes", "people.csv", "--features", "age,height"];
    let text = place.succeed(&[&args[..], &["--label", "city", "--dry-run"]].concat());
    for line in [
        "payments.csv: directed edges; delimiter comma, header yes, ids are strings\n",
        "  column     src     dst     weight\n",
        "  read from  from    to      amount\n",
        "  type       string  string  number\n",
        "  row 2      bob     cy      3\n",
        "  ignored    at\n",
        "people.csv: nodes; delimiter comma, header yes, ids are strings\n",
        "  row 1      ann      [31, 1.7]    oslo\n",
    ] {
        assert!(text.contains(line), "no {line:?} in {text}");
    }
    let ended = place.run(&["import", "friends.txt", "--undirected", "--dry-run", "--json"]);
    let found: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&found["ids"], &found["undirected"], &found["nodes"]), (&"int".into(), &true.into(), &().into()));
    let column = serde_json::json!({ "name": "src", "from": ["1"], "type": "integer" });
    assert_eq!((&found["edges"]["header"], &found["edges"]["columns"][0]), (&false.into(), &column), "{found}");
    assert_eq!(found["edges"]["rows"].as_array().unwrap().len(), 4);
    assert_eq!(std::fs::read_dir(place.path(".")).unwrap().count(), before);
    place.write("word.csv", "src,dst,weight\n1,2,heavy\n");
    place.fail(&["import", "word.csv", "--dry-run"], 3, &["word.csv:2: weight \"heavy\" is not a number"]);
    place.fail(&["import", "mesh.graph", "--dry-run"], 2, &["--dry-run: is for text only"]);
    place.fail(&["import", "friends.txt"], 2, &["--out"]);
}
