//! Graphs and settings that cannot be trained: the exit code, and one error line with the key, column or file.

use std::sync::Arc;

use crate::common::{TestDir, assert_same_results, planted, summary};
use arrow::array::{ArrayRef, Float32Array, Int64Array, ListArray, StringArray};
use arrow::datatypes::Float32Type;

/// Asserts that the run exits with `code` and one error line with `words`, and writes no results.
fn refused(place: &TestDir, args: &[&str], code: i32, words: &[&str]) {
    let args = [&["run", "p.toml", "--quiet", "--run-dir", "run"], args].concat();
    let errors = place.fail(&args, code, words);
    assert_eq!(errors.len(), 1, "{args:?}: {errors:?}");
    assert!(!errors[0].contains("RUST_BACKTRACE"), "{errors:?}");
    for name in ["summary.json", "model.safetensors", "predictions.parquet"] {
        assert!(!place.path("run").join(name).exists(), "{args:?}: {name} was written");
    }
}

const GAT: &str = "model.kind=gat";
const WALK: &str = "train.sampler=saint-walk";
const CLUSTER: &str = "train.sampler=cluster";
const PARTITION_PARALLEL: &str = "train.schedule=partition-parallel";
const NO_FEATURES: &str = "graph.generate.features=0";
const FULL_GRAPH: &str = "train.schedule=full-graph";
const TENSOR_PARALLEL: &str = "train.schedule=tensor-parallel";
const LINK_TASK: &str = "train.task=link-prediction";

/// Settings, and words of their error.
const SETTINGS: &[(&[&str], &[&str])] = &[
    // [graph] and [partition]
    (&["graph.feature_dtype=f8"], &["graph.feature_dtype", "\"bf16\"", "\"f8\""]),
    (&["graph.feature_dtype=[\"f32\", \"bf16\"]"], &["graph.feature_dtype", "2 types for 1 feature column "]),
    (&["graph.reverse_edges=true", "graph.undirected=true"], &["graph.reverse_edges", "remove one of them"]),
    (&["graph.k_core=0"], &["graph.k_core", "at least 1"]),
    (&["partition.balance.edges=off"], &["partition.balance.edges", "\"none\"", "\"off\""]),
    (&["partition.balance.train=0.9"], &["partition.balance.train", "at least 1"]),
    (&["infer.scores=true", "infer.predictions=false"], &["infer.scores", "infer.predictions = true"]),
    (&["partition.halo=all"], &["partition.halo", "\"features\"", "\"all\""]),
    (&["partition.topology=both"], &["partition.topology", "\"replicated\"", "\"both\""]),
    (&[PARTITION_PARALLEL, "partition.halo=ids"], &["partition.halo", "features of halo nodes"]),
    (&[PARTITION_PARALLEL, "partition.topology=replicated"], &["partition.topology", "own edges"]),
    // [model]
    (&["model.kind=gcnn"], &["model.kind", "did you mean \"gcn\"?"]),
    (&[GAT, "model.heads=3"], &["model.heads", "do not divide"]),
    (&["model.heads=2"], &["model.heads", "only `gat` and `gatv2` have it"]),
    (&["model.edge_features=true"], &["model.edge_features", "`gatv2`"]),
    (&["model.num_bases=2"], &["model.num_bases", "`rgcn`"]),
    (&["model.eps=0.1"], &["model.eps", "`gin`"]),
    (&["model.teleport=0.1"], &["model.teleport", "`appnp`"]),
    (&["model.kind=appnp", "model.teleport=1.5"], &["model.teleport", "at most 1", "1.5"]),
    (&["model.kind=gin", "model.mlp_layers=0"], &["model.mlp_layers", "at least 1"]),
    (&["model.norm=batch", "model.layers=1", "train.fanouts=[5]"], &["model.norm", "output layer"]),
    (&["model.jumping_knowledge=sum"], &["model.jumping_knowledge", "\"cat\""]),
    (&["model.embedding.dim=8"], &["model.embedding", "these have 24"]),
    (&[NO_FEATURES, "model.embedding.staleness=2"], &["model.embedding.staleness", "\"async\""]),
    (
        &[NO_FEATURES, "model.embedding.mode=async", "model.embedding.staleness=0"],
        &["model.embedding.staleness", "at least 1"],
    ),
    (&[NO_FEATURES, "model.embedding.dim=0"], &["model.embedding.dim", "at least 1"]),
    (&[NO_FEATURES, "model.embedding.dim=8", "train.schedule.cache=1MiB"], &["train.schedule.cache", "learned rows"]),
    (&[NO_FEATURES, PARTITION_PARALLEL, "model.embedding.dim=8"], &["model.embedding", "use `mini-batch`"]),
    (&[FULL_GRAPH, "model.embedding.dim=8"], &["model.embedding", "these have 24"]),
    (&[FULL_GRAPH, NO_FEATURES, "model.embedding.mode=async"], &["model.embedding.mode", "once an epoch"]),
    (&[TENSOR_PARALLEL, NO_FEATURES, "model.embedding.mode=async"], &["model.embedding.mode", "once an epoch"]),
    // [train]
    (&["train.task=node-classify"], &["train.task", "did you mean \"node-classification\"?"]),
    (&["train.batch=0"], &["train.batch", "at least 1"]),
    (&["train.batch=16777217"], &["train.batch", "at most 16777216"]),
    (&["train.fanouts=[5]"], &["train.fanouts", "1 fanout for 2 layers"]),
    (&["train.fanouts=[5, 5, 5]"], &["train.fanouts", "3 fanouts for 2 layers"]),
    (&["train.fanouts=[]"], &["train.fanouts", "not empty"]),
    (&["train.fanouts=[-1, 4]", "train.sampler.replace=true"], &["train.sampler.replace", "-1"]),
    (&["train.sampler=laber"], &["train.sampler", "did you mean \"labor\"?"]),
    (&["train.sampler=weighted"], &["train.sampler", "graph.columns.weight"]),
    (&["train.sampler=temporal"], &["train.sampler", "graph.columns.time"]),
    (&["train.sampler.take=last"], &["train.sampler.take", "only `temporal`"]),
    (&["train.sampler.clusters=8"], &["train.sampler.clusters", "only `cluster`"]),
    (&[CLUSTER, "train.sampler.clusters=0"], &["train.sampler.clusters", "at least 1"]),
    (
        &[CLUSTER, "train.sampler.clusters=4", "train.sampler.clusters_per_batch=5"],
        &["train.sampler.clusters_per_batch", "5 of 4"],
    ),
    (&["train.sampler.walk_length=2"], &["train.sampler.walk_length", "only `saint-walk`"]),
    (&["train.sampler.p=2.0"], &["train.sampler.p", "only `saint-walk`"]),
    (&[WALK, "train.sampler.p=0.0"], &["train.sampler.p", "more than 0"]),
    (&[WALK, "train.sampler.q=-1.0"], &["train.sampler.q", "more than 0"]),
    (&[WALK, "train.sampler.coverage=0"], &["train.sampler.coverage", "at least 1"]),
    (&[WALK, "train.schedule.seed_split=even"], &["train.schedule.seed_split", "its own nodes"]),
    (&[WALK, GAT], &["train.sampler", "`sage`"]),
    (&["train.schedule.seed_split=odd"], &["train.schedule.seed_split", "\"even\"", "\"odd\""]),
    (&["train.clip_norm=0.0"], &["train.clip_norm", "more than 0"]),
    (&["train.metric=mrr"], &["train.metric", "ranked edges"]),
    (&["train.metric=rmse"], &["train.metric", "`accuracy`"]),
    (&["train.early_stop=1", "train.evaluate_every=2"], &["train.early_stop", "fewer"]),
    (&["train.threads=0"], &["train.threads", "at least 1"]),
    (&["train.window=0"], &["train.window", "at least 1"]),
    (&["train.window=64", "train.memory=100MiB"], &["train.memory is 100MiB", "64 steps", "train.window = ", "fits"]),
    (&["train.memory=1MiB"], &["train.memory", "MiB"]),
    (&["train.schedule.cache=lots"], &["train.schedule.cache", "\"2GiB\"", "lots"]),
    (&["train.schedule.cache_policy=dynamic"], &["train.schedule.cache_policy", "`cache`"]),
    (
        &["train.schedule.cache=1MiB", "train.schedule.cache_policy=lru"],
        &["train.schedule.cache_policy", "\"frequency\"", "\"lru\""],
    ),
    (&[PARTITION_PARALLEL, "train.schedule.cache=1MiB"], &["train.schedule.cache", "only `mini-batch`"]),
    (&["train.read_ahead=often"], &["train.read_ahead", "true or false"]),
    (&["debug.fused_sampling=1"], &["debug.fused_sampling", "true or false"]),
    (&["train.schedule.average_every=2"], &["train.schedule.average_every", "partition-parallel"]),
    (&["train.schedule.average_momentum=0.5"], &["train.schedule.average_momentum", "partition-parallel"]),
    (&[PARTITION_PARALLEL, "train.schedule.average_momentum=1.0"], &["train.schedule.average_momentum", "less than 1"]),
    (&["train.device=tpu"], &["train.device", "\"cuda\"", "\"tpu\""]),
    (&["train.optimizer.lr=0.0"], &["train.optimizer.lr", "more than 0"]),
    (&["train.optimizer.betas=[0.9, 1.0]"], &["train.optimizer.betas", "less than 1"]),
    (&["train.optimizer.momentum=0.9"], &["train.optimizer.momentum", "`sgd`"]),
    (&["train.lr_schedule.warmup=1"], &["train.lr_schedule.warmup", "warm-up"]),
    (&["train.lr_schedule.kind=cosine", "train.lr_schedule.gamma=0.5"], &["train.lr_schedule.gamma", "`cosine`"]),
    (&["train.lr_schedule.kind=step", "train.lr_schedule.gamma=2.0"], &["train.lr_schedule.gamma", "at most 1"]),
    // [train.link]
    (&["train.link.decoder=dot"], &["train.link", "link-prediction"]),
    (&[LINK_TASK, "train.link.decoder=distmult"], &["train.link.decoder", "graph.columns.edge_type"]),
    (&[LINK_TASK, "train.link.num_negative_edges=0"], &["train.link.num_negative_edges", "at least 1"]),
    (&[LINK_TASK, "train.link.split_fractions=[0.9, 0.2, 0.1]"], &["train.link.split_fractions", "more than 1"]),
    (&[LINK_TASK, "train.link.split_fractions=[0.0, 0.5, 0.5]"], &["train.link.split_fractions", "no edges to train"]),
    (&[LINK_TASK, "train.link.target_etype=[\"buys\"]"], &["train.link.target_etype", "no types"]),
    (&[LINK_TASK, "train.sampler=cluster"], &["train.sampler", "`uniform`"]),
    (&[LINK_TASK, "train.metric=accuracy"], &["train.metric", "`mrr`"]),
    (&[LINK_TASK, "train.schedule.edges_per_epoch=5"], &["train.schedule.edges_per_epoch", "`full-graph`"]),
    (&[LINK_TASK, FULL_GRAPH, "train.schedule.edges_per_epoch=0"], &["train.schedule.edges_per_epoch", "at least 1"]),
    (&[TENSOR_PARALLEL, "train.schedule.edges_per_epoch=5"], &["train.schedule.edges_per_epoch", "all training nodes"]),
    // [infer]
    (&["infer.batch=0"], &["infer.batch", "at least 1"]),
];

#[test]
fn invalid_settings_are_refused_with_their_key() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\nkind = 'sage'\nhidden = 16\n[train]\nepochs = 1\n");
    for (sets, words) in SETTINGS {
        let args: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        refused(&place, &args, 2, words);
    }
    // Only several processes use a cache.
    let args = ["--processes", "2", "--set", "train.schedule.cache=2GiB", "--set", "train.memory=100MiB"];
    refused(&place, &args, 2, &["train.memory is 100MiB", "a cache of 2.0 GiB", "train.schedule.cache = \"", "fits"]);
}

#[test]
fn batch_larger_than_the_training_set_is_one_step() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\nkind = 'mlp'\nhidden = 8\n[train]\nepochs = 1\nbatch = 100000\n");
    place.succeed(&["run", "p.toml", "--quiet", "--run-dir", "run"]);
    let line = std::fs::read_to_string(place.path("run/metrics.jsonl")).unwrap();
    let record: serde_json::Value = serde_json::from_str(line.lines().next().unwrap()).unwrap();
    assert_eq!(record["steps"], 1);
}

#[test]
fn checkpoint_with_embeddings_of_another_size_is_refused() {
    let place = TestDir::new();
    let settings = "[model]\nkind = 'sage'\nhidden = 8\nembedding = { dim = 8 }\n[train]\nepochs = 1\n";
    planted(&place, "p.toml", settings);
    place.succeed(&["run", "p.toml", "--quiet", "--run-dir", "trained", "--set", NO_FEATURES]);
    let args = ["run", "p.toml", "--quiet", "--run-dir", "trained", "--resume", "--set", NO_FEATURES];
    let words = ["last.safetensors", "learned rows of 8 numbers", "of 9 numbers", "model.embedding.dim = 8"];
    let errors = place.fail(&[&args[..], &["--set", "model.embedding.dim=9"]].concat(), 3, &words);
    assert_eq!(errors.len(), 1, "{errors:?}");
}

const NODES: i64 = 60;

/// Edge columns of a ring of nodes: weight 1, time 0, and alternating types and splits.
fn columns() -> Vec<(&'static str, ArrayRef)> {
    let alternating = |words: &[&str]| -> ArrayRef {
        Arc::new(StringArray::from_iter_values((0..NODES as usize).map(|e| words[e % words.len()])))
    };
    vec![
        ("src", Arc::new(Int64Array::from_iter_values(0..NODES))),
        ("dst", Arc::new(Int64Array::from_iter_values((0..NODES).map(|e| (e + 1) % NODES)))),
        ("weight", weights(|_| 1.0)),
        ("at", Arc::new(Int64Array::from_iter_values((0..NODES).map(|_| 0)))),
        ("kind", alternating(&["a", "b"])),
        ("part", alternating(&["train", "train", "val", "test"])),
    ]
}

fn weights(weight: impl Fn(i64) -> f32) -> ArrayRef {
    Arc::new(Float32Array::from_iter_values((0..NODES).map(weight)))
}

/// Writes the ring with one column replaced, and a pipeline with `graph.columns` and lines of `[train]`.
fn ring(place: &TestDir, replaced: Option<(&'static str, ArrayRef)>, names: &str, train: &str) {
    let features = (0..NODES).map(|v| Some([Some(v as f32), Some(1.0)]));
    place.parquet(
        "nodes.parquet",
        vec![
            ("node_id", Arc::new(Int64Array::from_iter_values(0..NODES))),
            ("features", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(features))),
            ("label", Arc::new(Int64Array::from_iter_values((0..NODES).map(|v| v % 2)))),
            (
                "split",
                Arc::new(StringArray::from_iter_values((0..NODES).map(|v| ["train", "val", "test"][v as usize % 3]))),
            ),
        ],
    );
    let mut edges = columns();
    if let Some((name, column)) = replaced {
        edges.retain(|(other, _)| *other != name);
        edges.push((name, column));
    }
    place.parquet("edges.parquet", edges);
    let text = format!(
        "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\ncolumns = {{ {names} }}\n\
         [partition]\nmethod = 'range'\nparts = 2\nout = 'dataset'\n[model]\nkind = 'sage'\nhidden = 4\n\
         [train]\nepochs = 1\n{train}\n"
    );
    place.write("p.toml", text);
    let _ = std::fs::remove_dir_all(place.path("run"));
}

/// A replaced column; `graph.columns`; lines of `[train]`; the exit code and words of the error.
type Case<'a> = (Option<(&'static str, ArrayRef)>, &'a str, &'a str, i32, &'a [&'a str]);

#[test]
fn columns_unsuitable_for_training_are_refused() {
    let place = TestDir::new();
    let weighted = "sampler = 'weighted'";
    let negative = weights(|e| if e == 6 { -0.5 } else { 1.0 });
    let nan = weights(|e| if e == 6 { f32::NAN } else { 1.0 });
    let no_train: ArrayRef = Arc::new(StringArray::from_iter_values((0..NODES).map(|_| "val")));
    let unknown: ArrayRef = Arc::new(StringArray::from_iter_values((0..NODES).map(|_| "training")));
    let cases: [Case<'_>; 8] = [
        (Some(("weight", negative)), "weight = 'weight'", weighted, 3, &["weight -0.5", "graph.columns.weight"]),
        (Some(("weight", nan)), "weight = 'weight'", weighted, 3, &["edges.parquet", "weight", "NaN"]),
        (None, "weight = 'heavy'", weighted, 3, &["edges.parquet", "heavy"]),
        (None, "time = 'when'", "", 3, &["edges.parquet", "when"]),
        (None, "time = 'at'", "sampler = 'temporal'", 2, &["train.sampler", "graph.columns.node_time"]),
        (None, "edge_type = 'kind'", "fanouts = [2, { c = 2 }]", 2, &["train.fanouts[1]", "\"c\"", "\"a\", \"b\""]),
        (Some(("part", unknown)), "edge_split = 'part'", "", 3, &["edges.parquet", "part", "training"]),
        (
            Some(("part", no_train)),
            "edge_split = 'part'",
            "task = 'link-prediction'",
            3,
            &["no edge", "train", "graph.columns.edge_split"],
        ),
    ];
    for (replaced, names, train, code, words) in cases {
        ring(&place, replaced, names, train);
        refused(&place, &[], code, words);
    }
    // A target edge type that the graph does not have.
    ring(&place, None, "edge_type = 'kind'", "task = 'link-prediction'\nlink = { target_etype = ['c'] }");
    refused(&place, &[], 2, &["train.link.target_etype[0]", "\"c\""]);
}

#[test]
fn node_with_only_zero_weight_edges_is_trained_without_neighbors() {
    let place = TestDir::new();
    ring(
        &place,
        Some(("weight", weights(|e| if e < 30 { 0.0 } else { 1.0 }))),
        "weight = 'weight'",
        "sampler = 'weighted'",
    );
    place.succeed(&["run", "p.toml", "--quiet", "--run-dir", "run"]);
    assert!(summary(&place, "run")["test"]["loss"].as_f64().unwrap().is_finite());
}

#[test]
fn classes_without_training_nodes_are_named_once() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\nkind = 'sage'\n[train]\nepochs = 1\n");
    let warning = " of 50 classes have no training nodes: ";
    for processes in ["1", "2"] {
        let few = ["graph.generate.classes=50", "graph.generate.split=[0.01, 0.3, 0.4]"].map(|set| ["--set", set]);
        let run = ["run", "p.toml", "--run-dir", "run", "--processes", processes];
        let ended = place.run(&[&run[..], &few.concat()].concat());
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        let lines: Vec<&str> = ended.stderr.lines().filter(|line| line.contains(warning)).collect();
        assert_eq!(lines.len(), 1, "{}", ended.stderr);
        assert!(lines[0].starts_with("warning: ") && lines[0].ends_with(" more; they cannot be learned"), "{lines:?}");
        let ended = place.run(&run);
        assert!(ended.code == 0 && !ended.stderr.contains("no training nodes"), "{}", ended.stderr);
    }
}

#[test]
fn exploding_loss_is_reported() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\nkind = 'sage'\n[train]\nepochs = 3\noptimizer = { kind = 'adam', lr = 1e4 }\n");
    let ended = place.run(&["run", "p.toml", "--run-dir", "run"]);
    let warning = "warning: the loss grew from ";
    assert!(ended.code == 0 && ended.stderr.contains(warning), "{}", ended.stderr);
    assert_eq!(ended.stderr.matches(warning).count(), 1, "{}", ended.stderr);
    let ended = place.run(&["run", "p.toml", "--run-dir", "run", "--set", "train.optimizer.lr=0.01"]);
    assert!(ended.code == 0 && !ended.stderr.contains(warning), "{}", ended.stderr);
}

#[test]
fn first_number_that_is_not_finite_is_found_with_step_and_layer() {
    let place = TestDir::new();
    planted(
        &place,
        "p.toml",
        "[model]\nkind = 'gcn'\nhidden = 16\ndropout = 0\n[train]\nepochs = 4\nbatch = 100\n\
                            optimizer = { kind = 'sgd', lr = 1e30 }\n",
    );
    let run = |more: &[&str], code: i32, words: &[&str]| {
        place.fail(&[&["run", "p.toml", "--quiet", "--run-dir", "run"], more].concat(), code, words)
    };
    let check = ["--set", "train.check_values=true"];
    run(&[], 3, &["the loss of epoch 1 is "]);
    let errors = run(
        &check,
        3,
        &["step 2 of epoch 1: the result of layer ", "has a number that is not finite; lower train.optimizer.lr"],
    );
    // All processes print the same error.
    let two = run(&[&check[..], &["--processes", "2"]].concat(), 3, &["step 2 of epoch 1: the result of layer "]);
    assert_eq!(errors.len(), 1, "{errors:?} {two:?}");
    for schedule in ["full-graph", "tensor-parallel"] {
        let set = format!("train.schedule={schedule}");
        let sets = ["--unset", "train.batch", "--set", &set];
        let words = [" layer ", "has a number that is not finite"];
        run(&[&check[..], &sets].concat(), 3, &[&["evaluation after epoch 1: "], &words[..]].concat());
        let without = ["--set", "train.evaluate_every=0"];
        run(&[&check[..], &sets, &without].concat(), 3, &[&["epoch 2: "], &words[..]].concat());
    }
    // The check changes no bits.
    let slow = ["run", "p.toml", "--quiet", "--set", "train.optimizer.lr=0.01", "--run-dir"];
    place.succeed(&[&slow[..], &["unchecked"]].concat());
    place.succeed(&[&slow[..], &["checked"], &check].concat());
    assert_same_results(&place, "unchecked", "checked");
}
