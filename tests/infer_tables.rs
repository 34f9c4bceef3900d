//! `gnnflow infer --pipeline`: tables that are encoded like those of a run; and what a model says about its tables.

use std::sync::Arc;

use arrow::array::{Float32Array, Int64Array, StringArray};

use crate::common::{TestDir, embeddings, summary, train};

/// Writes tables of `nodes` nodes in `folder`, with two feature columns, classes by name, and edges of two types among the first 200 nodes, and a
/// pipeline file for them. Nodes from 200 on have other features. `class` is the label of each node, if it has one.
fn tables(place: &TestDir, folder: &str, nodes: i64, class: impl Fn(i64) -> Option<&'static str>, graph: &str) {
    let float = |value: fn(i64) -> f32| Arc::new((0..nodes).map(value).collect::<Float32Array>()) as _;
    let (ids, classes) = ((0..nodes).collect::<Int64Array>(), (0..nodes).map(class).collect::<StringArray>());
    let split =
        |node: i64| if node < 200 { [Some("train"), Some("val"), Some("test")][node as usize % 3] } else { None };
    place.parquet(
        &format!("{folder}/nodes.parquet"),
        vec![
            ("node_id", Arc::new(ids) as _),
            ("age", float(|node| if node < 200 { (node * 37 % 90) as f32 } else { 1000.0 })),
            ("size", float(|node| if node < 200 { (node % 3) as f32 * 5.0 + 0.25 } else { -70.0 })),
            ("label", Arc::new(classes) as _),
            ("split", Arc::new((0..nodes).map(split).collect::<StringArray>()) as _),
        ],
    );
    let ends =
        |factor: i64, add: i64| Arc::new((0..900).map(|edge| (edge * factor + add) % 200).collect::<Int64Array>());
    let types = (0..900).map(|edge| Some(["likes", "knows"][edge % 2])).collect::<StringArray>();
    let edges = vec![("src", ends(7, 1) as _), ("dst", ends(31, 13) as _), ("type", Arc::new(types) as _)];
    place.parquet(&format!("{folder}/edges.parquet"), edges);
    let text = format!(
        "[graph]\nnodes = '{folder}/nodes.parquet'\nedges = '{folder}/edges.parquet'\nnormalize_features = 'standard'\n{graph}\n\
         [graph.columns]\nfeatures = ['age', 'size']\nedge_type = 'type'\n\
         [partition]\nparts = 4\nmethod = 'random'\nout = '{folder}/dataset'\n"
    );
    place.write(&format!("{folder}.toml"), text);
}

/// The class of a node by its second feature.
fn class_of(node: i64) -> Option<&'static str> {
    Some(["ant", "bee", "cat"][node as usize % 3])
}

#[test]
fn tables_of_a_pipeline_are_encoded_like_those_of_the_run() {
    let place = TestDir::new();
    tables(&place, "monday", 200, class_of, "");
    let text = std::fs::read_to_string(place.path("monday.toml")).unwrap();
    place.write(
        "p.toml",
        format!("{text}[model]\nkind = 'rgcn'\nlayers = 2\nhidden = 16\n[train]\n[infer]\nembeddings = true\n"),
    );
    train(&place, &[]);
    // Tuesday has more nodes, which change the means, and fewer classes.
    let tuesday = |node: i64| if node < 30 { class_of(node).filter(|class| *class != "bee") } else { None };
    tables(&place, "tuesday", 260, tuesday, "");
    let infer = |out: &str, more: &[&str]| place.succeed(&[&["infer", "run", "--quiet", "--out", out], more].concat());
    for processes in ["1", "2", "4"] {
        infer(&format!("out-{processes}"), &["--pipeline", "tuesday.toml", "--processes", processes]);
    }
    let bytes = |out: &str, file: &str| std::fs::read(place.path(&format!("{out}/{file}.parquet"))).unwrap();
    for file in ["predictions", "embeddings"] {
        assert!(bytes("out-1", file) == bytes("out-2", file) && bytes("out-1", file) == bytes("out-4", file), "{file}");
    }
    // The nodes of Monday have their results, but for the order of sums.
    let (trained, scored) = (embeddings(&place, "run"), embeddings(&place, "out-1"));
    assert_eq!((trained.len(), scored.len()), (200, 260));
    for (id, row) in &trained {
        let near = row.iter().zip(&scored[id]).all(|(a, b)| (a - b).abs() <= 1e-4 * (1.0 + a.abs()));
        assert!(near, "node {id}: {row:?} and {:?}", scored[id]);
    }
    let summary = summary(&place, "out-1");
    assert_eq!(summary["train"]["nodes"], 10);
    let classes = summary["by_class"]["train"]["classes"].as_array().unwrap();
    let counts: Vec<_> =
        classes.iter().map(|class| (class["class"].as_str().unwrap(), class["nodes"].as_u64().unwrap())).collect();
    assert_eq!(counts, [("ant", 10), ("bee", 0), ("cat", 0)]);
    // The dataset is current, and a prepared one with the key in its pipeline is the same.
    let prepared = std::fs::metadata(place.path("tuesday/dataset/manifest.json")).unwrap().modified().unwrap();
    infer("again", &["--pipeline", "tuesday.toml", "--set", "partition.out=tuesday/dataset"]);
    assert_eq!(prepared, std::fs::metadata(place.path("tuesday/dataset/manifest.json")).unwrap().modified().unwrap());
    tables(&place, "wednesday", 260, tuesday, "encode_like = 'monday/dataset'");
    place.succeed(&["prepare", "wednesday.toml", "--quiet"]);
    infer("wednesday-out", &["--dataset", "wednesday/dataset"]);
    assert!(bytes("out-1", "predictions") == bytes("wednesday-out", "predictions"));
    // With the means of its own tables, the dataset does not fit.
    tables(&place, "own", 260, class_of, "");
    place.succeed(&["prepare", "own.toml", "--quiet"]);
    place.fail(&["infer", "run", "--dataset", "own/dataset", "--out", "x"], 3, &["graph.encode_like"]);
}

#[test]
fn tables_that_do_not_fit_the_model_are_refused() {
    let place = TestDir::new();
    tables(&place, "monday", 200, class_of, "");
    let text = std::fs::read_to_string(place.path("monday.toml")).unwrap();
    place.write("p.toml", format!("{text}[model]\nkind = 'rgcn'\nlayers = 1\n[train]\n"));
    train(&place, &[]);
    tables(&place, "other", 210, |_| Some("dog"), "");
    let fail = |code: i32, more: &[&str], words: &[&str]| {
        place.fail(&[&["infer", "run", "--out", "x", "--pipeline", "other.toml"], more].concat(), code, words)
    };
    fail(3, &[], &["nodes.parquet", "\"label\"", "row 0", "\"dog\" is not a class", "ant, bee, cat"]);
    let set = |key: &str| ["--set".to_owned(), key.to_owned()];
    for (key, words) in [
        ("graph.columns.features=['size','age']", "2 features: age, size, and the tables have 2 features: size, age"),
        ("graph.columns.features=['size']", "the tables have 1 feature: size"),
        ("graph.undirected=true", "graph.undirected = false, and this pipeline true"),
        ("graph.normalize_features=none", "graph.normalize_features = \"standard\", and this pipeline \"none\""),
        ("graph.encode_like=nowhere", "name the folder of a finished run or of a prepared dataset"),
    ] {
        fail(2, &set(key).each_ref().map(String::as_str), &[words]);
    }
    fail(2, &["--dataset", "monday/dataset"], &["cannot be used with"]);
    let before = std::fs::read(place.path("monday/dataset/manifest.json")).unwrap();
    for out in ["monday/dataset", "./monday/../monday/dataset"] {
        fail(2, &["--set", &format!("partition.out={out}")], &["would replace", "that of the run", "partition.out"]);
    }
    assert!(before == std::fs::read(place.path("monday/dataset/manifest.json")).unwrap());
    fail(2, &["--set", "train.epochs=3"], &["train.epochs"]);
}

#[test]
fn moved_model_describes_itself() {
    let place = TestDir::new();
    tables(&place, "monday", 200, class_of, "");
    let text = std::fs::read_to_string(place.path("monday.toml")).unwrap();
    place.write("p.toml", format!("{text}[model]\nkind = 'rgcn'\nlayers = 2\nhidden = 16\n[train]\nseed = 7\n"));
    train(&place, &[]);
    let epoch = summary(&place, "run")["best_epoch"].as_u64().unwrap();
    let accuracy = format!("validation accuracy {:.4}", summary(&place, "run")["val"]["accuracy"].as_f64().unwrap());
    std::fs::create_dir(place.path("moved")).unwrap();
    for file in ["model.safetensors", "pipeline.toml"] {
        std::fs::copy(place.path("run").join(file), place.path("moved").join(file)).unwrap();
    }
    for folder in ["run", "moved"] {
        let text = place.succeed(&["inspect", folder]);
        for words in [
            "rgcn, 2 layers for node-classification",
            &format!("epoch {epoch}, {accuracy}; pipeline p, seed 7, gnnflow "),
            "2 features: age, size, each column with mean 0 and variance 1",
            "the classes ant, bee, cat",
            "2 types: knows, likes",
        ] {
            assert!(text.contains(words), "{folder}: no {words:?} in {text}");
        }
    }
    let found: serde_json::Value = serde_json::from_str(&place.succeed(&["inspect", "moved", "--json"])).unwrap();
    assert_eq!((&found["schema"], &found["provenance"]["seed"]), (&4.into(), &7.into()));
    let args = ["infer", "moved", "--dataset", "monday/dataset", "--out", "out", "--quiet"];
    place.succeed(&args);
    let bytes = |folder: &str| std::fs::read(place.path(folder).join("predictions.parquet")).unwrap();
    place.succeed(&["infer", "run", "--out", "again", "--quiet"]);
    assert!(bytes("out") == bytes("again"));
}
