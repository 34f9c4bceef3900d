//! `gnnflow init`: pipeline files for dumps, which then run.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Float64Array, Int64Array, ListArray, StringArray, TimestampSecondArray};
use arrow::datatypes::Float32Type;
use serde_json::Value;

use crate::common::{TestDir, data, summary};

const NODES: i64 = 120;

fn ints(values: impl Iterator<Item = i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(values))
}

fn floats(values: impl Iterator<Item = f64>) -> ArrayRef {
    Arc::new(Float64Array::from_iter_values(values))
}

fn texts(values: impl Iterator<Item = &'static str>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}

/// Features that depend on the class `node % 3`.
fn lists() -> ArrayRef {
    let row = |node: i64| Some((0..4).map(move |i| Some(((node % 3 - i) as f32).abs())));
    Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>((0..NODES).map(row)))
}

fn splits() -> ArrayRef {
    texts((0..NODES).map(|node| ["train", "train", "val", "test"][node as usize / 3 % 4]))
}

fn ids() -> ArrayRef {
    ints((0..NODES).map(|node| 1000 + node))
}

/// Ends of edges within the classes.
fn ends() -> [ArrayRef; 2] {
    let src = |edge: i64| edge * 7 % NODES;
    let dst = |edge: i64| (src(edge) + 3 * (1 + edge % 5)) % NODES;
    [ints((0..600).map(|edge| 1000 + src(edge))), ints((0..600).map(|edge| 1000 + dst(edge)))]
}

/// Writes `dump/nodes.parquet` and `dump/edges.parquet` with ids, ends, and these columns.
fn dump(place: &TestDir, nodes: Vec<(&str, ArrayRef)>, edges: Vec<(&str, ArrayRef)>) {
    let [src, dst] = ends();
    place.parquet("dump/nodes.parquet", [vec![("id", ids())], nodes].concat());
    place.parquet("dump/edges.parquet", [vec![("source", src), ("target", dst)], edges].concat());
}

/// Writes the pipeline file of a dump, and runs one epoch with it. Returns what was recognized, the file and the summary.
fn init_and_run(place: &TestDir, args: &[&str]) -> (Value, String, Value) {
    let found = place.succeed(&[&["init", "--json"], args].concat());
    let file = std::fs::read_to_string(place.path("pipeline.toml")).unwrap();
    place.succeed(&["run", "pipeline.toml", "--dry-run"]);
    place.succeed(&["run", "pipeline.toml", "--quiet", "--set", "train.epochs=1", "--run-dir", "run"]);
    let found = serde_json::from_str(&found).unwrap();
    (found, file, summary(place, "run"))
}

/// Returns the roles of a table's columns.
fn roles(found: &Value, table: &str) -> Vec<(String, String)> {
    let columns = found[table]["columns"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    columns.map(|column| (text(&column["name"]), text(&column["role"]))).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, role)| (name.to_string(), role.to_string())).collect()
}

#[test]
fn classes_as_text_are_learned_from_a_list_of_features() {
    let place = TestDir::new();
    let classes = texts((0..NODES).map(|node| ["red", "green", "blue"][node as usize % 3]));
    dump(&place, vec![("feat", lists()), ("class", classes), ("split", splits())], vec![]);
    let (found, file, summary) = init_and_run(&place, &["dump"]);
    let expected = [("id", "id"), ("feat", "features"), ("class", "label"), ("split", "split")];
    assert_eq!(roles(&found, "nodes"), pairs(&expected));
    assert_eq!(roles(&found, "edges"), pairs(&[("source", "src"), ("target", "dst")]));
    assert_eq!((&found["task"], &found["model"]), (&"node-classification".into(), &"sage".into()));
    assert_eq!((&found["features"], &found["learned_rows"]), (&4.into(), &false.into()));
    for line in
        ["name = \"dump\"", "nodes = \"dump/nodes.parquet\"", "id = \"id\"", "features = \"feat\"", "undirected = true"]
    {
        assert!(file.contains(line), "{line}\n{file}");
    }
    for section in ["[graph]", "[graph.columns]", "[partition]", "[model]", "[train]", "[infer]"] {
        assert!(file.contains(&format!("\n{section}\n")), "{section}\n{file}");
    }
    assert!(!file.contains("split_fractions") && !file.contains("embedding = "), "{file}");
    assert!(summary["test"]["accuracy"].is_number(), "{summary}");
}

#[test]
fn numbers_are_predicted_from_several_columns_of_numbers() {
    let place = TestDir::new();
    let nodes = vec![
        ("age", floats((0..NODES).map(|node| 20.0 + node as f64))),
        ("height", ints((0..NODES).map(|node| 150 + node % 50))),
        ("country_id", ints((0..NODES).map(|node| node % 9))),
        ("income", Arc::new(Float64Array::from_iter((0..NODES).map(|i| (i != 3).then_some(i as f64)))) as ArrayRef),
        ("note", texts((0..NODES).map(|_| "text"))),
        ("y", Arc::new(Float32Array::from_iter((0..NODES).map(|i| (i != 5).then_some(i as f32 / 100.0)))) as ArrayRef),
    ];
    dump(&place, nodes, vec![("weight", floats((0..600).map(|edge| f64::from(edge % 5) + 0.5)))]);
    let (found, file, summary) = init_and_run(&place, &["dump"]);
    let expected = [
        ("id", "id"),
        ("age", "features"),
        ("height", "features"),
        ("country_id", ""),
        ("income", ""),
        ("note", ""),
        ("y", "label"),
    ];
    assert_eq!(roles(&found, "nodes"), pairs(&expected));
    assert_eq!(roles(&found, "edges")[2], ("weight".into(), "weight".into()));
    assert_eq!(found["task"], "node-regression");
    for line in
        ["features = [\"age\", \"height\"]", "normalize_features = \"standard\"", "split_fractions = [0.6, 0.2, 0.2]"]
    {
        assert!(file.contains(line), "{line}\n{file}");
    }
    let notes = found["notes"].to_string();
    assert!(notes.contains("income") && notes.contains("1 null"), "{notes}");
    assert!(summary["test"]["rmse"].is_number(), "{summary}");
}

#[test]
fn several_labels_are_learned_without_features() {
    let place = TestDir::new();
    let row = |node: i64| Some((0..3).map(move |class| Some(i64::from(node % 3 == class || node % 7 == class))));
    let labels = ListArray::from_iter_primitive::<arrow::datatypes::Int64Type, _, _>((0..NODES).map(row));
    dump(&place, vec![("labels", Arc::new(labels) as ArrayRef)], vec![]);
    let (found, file, summary) = init_and_run(&place, &["dump"]);
    assert_eq!((&found["label"], &found["learned_rows"]), (&"classes".into(), &true.into()));
    assert!(file.contains("embedding = { dim = 64 }") && file.contains("# several labels per node"), "{file}");
    assert!(summary["test"]["micro_f1"].is_number(), "{summary}");
}

#[test]
fn edges_with_types_are_predicted_without_labels() {
    let place = TestDir::new();
    let edges = vec![
        ("relation", texts((0..600).map(|edge| ["likes", "knows", "blocks"][edge as usize % 3]))),
        ("ts", Arc::new(TimestampSecondArray::from_iter_values(0..600)) as ArrayRef),
        ("split", texts((0..600).map(|edge| if edge % 10 == 9 { "test" } else { "train" }))),
    ];
    let nodes = vec![
        ("type", texts((0..NODES).map(|node| if node % 2 == 0 { "user" } else { "item" }))),
        ("label", ints((0..NODES).map(|_| -1))),
        ("split", texts((0..NODES).map(|_| "none"))),
        ("time", ints(0..NODES)),
    ];
    dump(&place, nodes, edges);
    let (found, file, summary) = init_and_run(&place, &["dump"]);
    let expected = [("id", "id"), ("type", "node_type"), ("label", ""), ("split", ""), ("time", "node_time")];
    assert_eq!(roles(&found, "nodes"), pairs(&expected));
    let expected =
        [("source", "src"), ("target", "dst"), ("relation", "edge_type"), ("ts", "time"), ("split", "edge_split")];
    assert_eq!(roles(&found, "edges"), pairs(&expected));
    assert_eq!((&found["task"], &found["model"]), (&"link-prediction".into(), &"rgcn".into()));
    for line in
        ["reverse_edges = true", "duplicates = \"keep\"", "label = \"\"", "split = \"\"", "decoder = \"distmult\""]
    {
        assert!(file.contains(line), "{line}\n{file}");
    }
    // The sampler `temporal` is for tasks on nodes. The book shows what times of edges are for.
    assert!(file.contains("# to split edges by time: see \"Links by time\" in the book\n"), "{file}");
    assert!(file.contains("# only tasks on nodes use it\n") && !file.contains("temporal"), "{file}");
    assert!(include_str!("../docs/book/src/tasks.md").contains("\n## Links by time\n"));
    place.fail(&["run", "pipeline.toml", "--dry-run", "--set", "train.sampler=temporal"], 2, &["use another sampler"]);
    assert!(summary["test"]["mrr"].is_number(), "{summary}");
}

#[test]
fn labels_of_edges_are_learned_and_tasks_can_be_chosen() {
    let place = TestDir::new();
    let label = texts((0..600).map(|edge| if edge % 4 == 0 { "spam" } else { "ham" }));
    dump(&place, vec![("x", lists())], vec![("label", label)]);
    let (found, file, summary) = init_and_run(&place, &["dump"]);
    assert_eq!((&found["task"], &found["model"]), (&"edge-classification".into(), &"rgcn".into()));
    assert!(summary["test"]["accuracy"].is_number(), "{summary}");
    assert!(file.contains("reverse_edges = true") && !file.contains("undirected = true"), "{file}");
    place.succeed(&["init", "dump", "--task", "link-prediction", "--out", "links.toml"]);
    place.succeed(&["run", "links.toml", "--quiet", "--set", "train.epochs=1"]);
    place.fail(&["init", "dump", "--task", "node-regression", "--out", "r.toml"], 2, &["--task", "--label"]);
}

#[test]
fn tables_are_found_in_folders_and_by_options() {
    let place = TestDir::new();
    let [src, dst] = ends();
    place.parquet("parts/nodes-0.parquet", vec![("id", ids()), ("x", lists())]);
    place.parquet("parts/edges/a.parquet", vec![("u", src.clone()), ("v", dst.clone())]);
    place.parquet("parts/nodes-1.parquet", vec![("id", ints(5000..5010)), ("x", lists().slice(0, 10))]);
    place.write("files/other.toml", "");
    place.succeed(&["init", "parts", "--out", "files/p.toml"]);
    let file = std::fs::read_to_string(place.path("files/p.toml")).unwrap();
    let nodes = "nodes = [\"../parts/nodes-0.parquet\", \"../parts/nodes-1.parquet\"]";
    assert!(file.contains(nodes) && file.contains("edges = \"../parts/edges\""), "{file}");
    place.succeed(&["run", "files/p.toml", "--quiet", "--set", "train.epochs=1"]);
    assert_eq!(summary(&place, "runs/p")["partitions"], 1);
}

#[test]
fn columns_without_usual_names_are_named_by_options() {
    let place = TestDir::new();
    let [src, dst] = ends();
    place.parquet("n.parquet", vec![("key", ids()), ("x", lists())]);
    place.parquet("e.parquet", vec![("follower", src), ("followed", dst)]);
    let tables = ["init", "--nodes", "n.parquet", "--edges", "e.parquet"];
    let words = ["e.parquet: no column is recognized as the source", "--src", "\"follower\", \"followed\""];
    place.fail(&tables, 3, &words);
    let ends = ["--src", "follower", "--dst", "followed"];
    place.fail(&[&tables[..], &ends].concat(), 3, &["n.parquet", "the id of a node", "--id", "\"key\", \"x\""]);
    let words = ["no column \"folower\"", "did you mean \"follower\"?"];
    place.fail(&[&tables[..], &["--src", "folower"]].concat(), 3, &words);
    place.fail(
        &[&tables[..], &["--src", "follower", "--dst", "follower"]].concat(),
        2,
        &["--dst", "already used as src"],
    );
    place.fail(&[&tables[..], &ends, &["--id", "x"]].concat(), 2, &["--id", "\"x\" cannot be used", "List"]);
    assert!(!place.path("pipeline.toml").exists(), "an error leaves no file");
    let (found, ..) = init_and_run(&place, &[&tables[1..], &ends, &["--id", "key"]].concat());
    assert_eq!(found["task"], "link-prediction");
}

#[test]
fn columns_of_edges_are_named_by_options() {
    let place = TestDir::new();
    let every = |n: i64| ints((0..600).map(move |edge| edge % n));
    let edges = vec![
        ("sign", ints((0..600).map(|edge| 2 * (edge % 2) - 1))),
        ("label", every(3)),
        ("type", every(4)),
        ("when", ints(0..600)),
        ("fold", texts((0..600).map(|edge| if edge % 10 == 9 { "test" } else { "train" }))),
        ("weight", ints((0..600).map(|edge| edge % 21 - 10))),
        ("rest", ints(0..600)),
    ];
    dump(&place, vec![("year", ints((0..NODES).map(|node| 1990 + node % 3))), ("group", splits())], edges.clone());
    let named = ["--edge-label", "type", "--edge-type", "label", "--time", "when", "--edge-split", "fold"];
    let task = ["dump", "--split", "group", "--task", "edge-classification", "--out", "e.toml"];
    let found = place.succeed(&[&["init", "--json"], &task[..], &named].concat());
    let found: Value = serde_json::from_str(&found).unwrap();
    let expected = [
        ("source", "src"),
        ("target", "dst"),
        ("sign", ""),
        ("label", "edge_type"),
        ("type", "edge_label"),
        ("when", "time"),
        ("fold", "edge_split"),
        ("weight", ""),
        ("rest", ""),
    ];
    assert_eq!(roles(&found, "edges"), pairs(&expected));
    assert_eq!(roles(&found, "nodes")[2], ("group".into(), "split".into()));
    assert!(found["notes"].to_string().contains("the value -10, and weights are 0 or more"), "{found}");
    let file = std::fs::read_to_string(place.path("e.toml")).unwrap();
    for line in ["name = \"e\"", "rows with equal ends are separate edges"] {
        assert!(file.contains(line), "{line}\n{file}");
    }
    place.succeed(&["run", "e.toml", "--dry-run"]);
    // Columns that can be labels are listed. -1 is no label.
    let edges: Vec<_> = edges.into_iter().filter(|(name, _)| *name != "label").collect();
    dump(&place, vec![("label", every(3).slice(0, NODES as usize))], edges);
    let task = ["init", "dump", "--task", "edge-classification", "--out", "s.toml"];
    place.fail(&task, 2, &["--task: edges have no column \"label\"; name one with --edge-label: \"sign\", \"fold\""]);
    let ended = place.run(&["init", "dump", "--edge-label", "sign", "--out", "s.toml"]);
    assert!(ended.stderr.contains("edges: \"sign\" has -1, which means no label"), "{}", ended.stderr);
    assert!(ended.stdout.contains("s.toml: edge-classification with rgcn"), "{}", ended.stdout);
    // Integers are not predicted as numbers.
    let regression = ["init", "dump", "--task", "node-regression", "--out", "r.toml"];
    place.fail(&regression, 2, &["--task", "integers are classes; to predict them, store them as floats"]);
    place.fail(&[&regression[..], &["--label", "label"]].concat(), 2, &["--label", "store them as floats"]);
}

#[test]
fn direction_of_edges_is_seen_in_their_rows() {
    let place = TestDir::new();
    let [src, dst] = ends();
    // There are 120 different pairs. The reverse of `share` of 10 pairs is a row, too, five times.
    for (name, share, key) in [("one", 0, "undirected"), ("some", 7, "reverse_edges"), ("all", 10, "undirected")] {
        let both = |own: &ArrayRef, other: &ArrayRef| -> ArrayRef {
            let other = other.slice(0, 12 * share);
            arrow::compute::concat(&[own, &other, &other, &other, &other, &other]).unwrap()
        };
        let rows = 600 + 60 * share as i64;
        let columns = [("source", both(&src, &dst)), ("target", both(&dst, &src)), ("ts", ints(0..rows))];
        // Rows of a source follow each other.
        let order = arrow::compute::sort_to_indices(&columns[0].1, None, None).unwrap();
        let take = |column: &ArrayRef| arrow::compute::take(column, &order, None).unwrap();
        let columns = columns.iter().map(|(name, column)| (*name, take(column))).collect();
        place.parquet(&format!("{name}/edges.parquet"), columns);
        place.parquet(&format!("{name}/nodes.parquet"), vec![("id", ids())]);
        let ended = place.run(&["init", name, "--out", &format!("{name}.toml")]);
        let file = std::fs::read_to_string(place.path(&format!("{name}.toml"))).unwrap();
        assert!(file.contains(&format!("\n{key} = true")), "{name}: {file}");
        assert_eq!(file.contains("duplicates = \"keep\""), name != "all", "{name}: {file}");
        assert_eq!(ended.stderr.contains("because some rows"), name == "some", "{}", ended.stderr);
        assert_eq!(ended.stderr.contains("the two rows are one edge"), name == "all", "{}", ended.stderr);
    }
    place.succeed(&["run", "some.toml", "--quiet", "--set", "train.epochs=1"]);
    assert!(summary(&place, "runs/some")["test"]["mrr"].is_number());
}

#[test]
fn existing_files_and_missing_tables_are_reported() {
    let place = TestDir::new();
    dump(&place, vec![], vec![]);
    place.write("pipeline.toml", "mine");
    place.fail(&["init", "dump"], 2, &["--out: pipeline.toml exists; name another file"]);
    assert_eq!(std::fs::read_to_string(place.path("pipeline.toml")).unwrap(), "mine");
    place.write("empty/readme", "");
    place.fail(&["init", "empty", "--out", "p.toml"], 3, &["empty: no nodes.parquet", "--nodes and --edges"]);
    place.fail(&["init", "nowhere", "--out", "p.toml"], 3, &["nowhere: there is no such file or folder"]);
    place.fail(&["init", "--nodes", "dump/nodes.parquet"], 2, &[]);
    let both = ["--nodes", "dump/nodes.parquet", "--edges", "dump/edges.parquet", "--out", "p.toml"];
    place.fail(&[&["init", "dump"], &both[..]].concat(), 2, &["DIR: --nodes and --edges name both tables"]);
    place.write("e.csv", "src,dst\n1,2\n");
    place.fail(&["init", "e.csv", "--out", "p.toml"], 3, &["e.csv: is a file", "`gnnflow import e.csv --out DIR`"]);
    place.fail(&["init", "dump/edges.parquet", "--out", "p.toml"], 3, &["is one table", "--nodes and --edges"]);
    place.write("text/nodes.parquet", "id,x\n1,2\n");
    place.fail(&["init", "text", "--edges", "dump/edges.parquet", "--out", "p.toml"], 3, &["is not a Parquet file"]);
    assert!(!place.path("p.toml").exists());
}

#[test]
fn real_graphs_are_understood_and_run() {
    let Some(folder) = data() else { return };
    let fast = ["train.fanouts=[5,5]", "train.batch=4096", "infer.embeddings=false"];
    for (graph, task, model) in [
        ("cora", "node-classification", "sage"),
        ("hetero-dblp", "node-classification", "rgcn"),
        ("kg-wn18", "link-prediction", "rgcn"),
    ] {
        let place = TestDir::new();
        let found = place.succeed(&["init", "--json", folder.join(graph).to_str().unwrap()]);
        let found: Value = serde_json::from_str(&found).unwrap();
        assert_eq!((&found["task"], &found["model"]), (&task.into(), &model.into()), "{graph}: {found}");
        place.succeed(&["run", "pipeline.toml", "--dry-run"]);
        let mut args = vec!["run", "pipeline.toml", "--quiet", "--run-dir", "run", "--set", "train.epochs=1"];
        if task == "link-prediction" {
            args.extend(["--set", "train.link.num_negative_edges_eval=20"]);
        }
        args.extend(fast.iter().flat_map(|set| ["--set", set]));
        place.succeed(&args);
        assert!(Path::new(&place.path("run/predictions.parquet")).exists());
    }
}
