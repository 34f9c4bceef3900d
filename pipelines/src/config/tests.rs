use super::*;

const WHOLE: &str = r#"name = "bar"
[graph]
nodes = "data/nodes.parquet"
edges = ["a.parquet", "/b.parquet"]
undirected = true
duplicates = "drop"
columns = { id = "node_id", features = "features", label = "label", split = "split", src = "src", dst = "dst" }
normalize_features = "row"
[partition]
method = "random"
parts = 2
[model]
kind = "gcn"
layers = 2
hidden = 64
dropout = 0.5
[train]
task = "node-classification"
schedule = "mini-batch"
epochs = 100
batch = 1000
fanouts = [-1, -1]
optimizer = { kind = "adam", lr = 0.01, weight_decay = 5e-4 }
evaluate_every = 1
seed = 1
[infer]
predictions = true
"#;

fn parse(text: &str, sets: &[&str]) -> Result<Config, Error> {
    let sets: Vec<Override> = sets.iter().map(|set| Override::Set(set.to_string())).collect();
    Config::parse(text, Path::new("/graphs/p.toml"), &sets, &Registered::default())
}

fn lines(text: &str, sets: &[&str]) -> Vec<String> {
    let error = parse(text, sets).expect_err("is wrong");
    assert_eq!(error.exit_code(), 2);
    error.to_string().lines().map(String::from).collect()
}

/// `WHOLE` with one line replaced.
fn with(line: &str, instead: &str) -> String {
    assert!(WHOLE.contains(line), "{line}");
    WHOLE.replace(line, instead)
}

#[test]
fn urls_are_kept_and_relative_paths_become_absolute() {
    let text =
        with("edges = ", "edges = ['s3://graphs/edges/', 'https://example.org/e.parquet?sig=a', 'x.parquet']\n# ");
    let edges = parse(&text, &[]).unwrap().graph.edges.unwrap().paths();
    assert_eq!(edges[..2], ["s3://graphs/edges/", "https://example.org/e.parquet?sig=a"].map(PathBuf::from));
    assert_eq!(edges[2], PathBuf::from("/graphs/x.parquet"));
    // `retry` does not change the folder of the dataset.
    let config = parse(&text, &["graph.retry=1h"]).unwrap();
    assert_eq!(config.partition.out, parse(&text, &[]).unwrap().partition.out);
    assert_eq!(config.graph.retry, Span::seconds(3600));
}

#[test]
fn file_with_all_sections_is_read() {
    let config = parse(WHOLE, &[]).unwrap();
    assert_eq!(config.name, "bar");
    assert_eq!(config.graph.nodes.as_ref().unwrap().paths(), ["/graphs/data/nodes.parquet"].map(PathBuf::from));
    assert_eq!(config.graph.edges.as_ref().unwrap().paths(), ["/graphs/a.parquet", "/b.parquet"].map(PathBuf::from));
    assert_eq!(config.graph.duplicates, Duplicates::Drop);
    assert_eq!(config.parts(), 2);
    assert_eq!(config.model.as_ref().unwrap().heads(), 1);
    let train = config.train.as_ref().unwrap();
    assert_eq!((train.fanouts(2), train.optimizer.lr()), (vec![Fanout::Each(-1); 2], 0.01));
    assert!(config.infer.as_ref().unwrap().predictions);
    assert!(config.dataset_folder().starts_with("/graphs/.gnnflow"));
}

#[test]
fn absent_sections_are_none() {
    let config = parse("[graph]\nnodes = 'n'\nedges = 'e'", &[]).unwrap();
    assert_eq!((config.name.as_str(), config.model, config.train, config.infer), ("p", None, None, None));
}

#[test]
fn messages_have_line_key_and_problem() {
    for (line, instead, expected) in [
        ("hidden = 64", "hiden = 64", "/graphs/p.toml:15: model.hiden: unknown key; did you mean \"hidden\"?"),
        (
            "layers = 2",
            "layers = \"two\"",
            "/graphs/p.toml:14: model.layers: expected an integer, found the string \"two\"",
        ),
        ("layers = 2", "layers = 0", "/graphs/p.toml:14: model.layers: must be at least 1, but is 0"),
        ("dropout = 0.5", "dropout = 1", "/graphs/p.toml:16: model.dropout: must be less than 1.0, but is 1"),
        (
            "hidden = 64",
            "lr = 0.1",
            "/graphs/p.toml:15: model.lr: unknown key; did you mean \"model.embedding.optimizer.lr\" or \"train.optimizer.lr\"?",
        ),
        ("[infer]", "[early_stop]", "/graphs/p.toml:26: early_stop: unknown key; did you mean \"train.early_stop\"?"),
        ("[infer]", "[inferr]", "/graphs/p.toml:26: inferr: unknown key; did you mean \"infer\"?"),
        (
            "undirected = true",
            "undirected = 1",
            "/graphs/p.toml:5: graph.undirected: expected true or false, found the integer 1",
        ),
        (
            "duplicates = \"drop\"",
            "duplicates = \"dorp\"",
            "/graphs/p.toml:6: graph.duplicates: expected one of \"keep\", \"drop\", \"fail\", found \"dorp\"; did you mean \"drop\"?",
        ),
        (
            "parts = 2",
            "parts = \"many\"",
            "/graphs/p.toml:11: partition.parts: expected an integer or \"auto\", found \"many\"",
        ),
        (
            "parts = 2",
            "parts = 2\nworkers = 3",
            "/graphs/p.toml:12: partition.workers: has no effect without `parts = \"auto\"`; remove this key (for one run: `--unset partition.workers`)",
        ),
        (
            "parts = 2",
            "memory = \"2 gigs\"",
            "/graphs/p.toml:11: partition.memory: expected a size such as \"2GiB\" or \"500MB\", found \"2 gigs\"",
        ),
        (
            "fanouts = [-1, -1]",
            "fanouts = [10]",
            "/graphs/p.toml:22: train.fanouts: 1 fanout for 2 layers; give one per layer",
        ),
        (
            "fanouts = [-1, -1]",
            "fanouts = [10, \"x\"]",
            "/graphs/p.toml:22: train.fanouts[1]: expected an integer or a table, found the string \"x\"",
        ),
        (
            "kind = \"gcn\"",
            "kind = \"gcm\"",
            "/graphs/p.toml:13: model.kind: expected one of \"sage\", \"gcn\", \"gat\", \"gatv2\", \"gin\", \"gine\", \"sgc\", \"rgcn\", \"appnp\", \"mlp\", or a registered name (this program registers no other), found \"gcm\"; did you mean \"gcn\"?",
        ),
        (
            "hidden = 64",
            "hidden = 64\nheads = 8",
            "/graphs/p.toml:16: model.heads: unknown key of `gcn`; only `gat` and `gatv2` have it (for one run: `--unset model.heads`)",
        ),
        (
            "hidden = 64",
            "hidden = 64\nteleport = 0.2",
            "/graphs/p.toml:16: model.teleport: unknown key of `gcn`; only `appnp` has it (for one run: `--unset model.teleport`)",
        ),
        (
            "hidden = 64",
            "hidden = 64\nnorm = \"group\"",
            "/graphs/p.toml:16: model.norm: expected one of \"none\", \"batch\", \"layer\", found \"group\"",
        ),
        (
            "kind = \"gcn\"",
            "kind = \"gat\"\nheads = 7",
            "/graphs/p.toml:14: model.heads: 7 heads do not divide `hidden` = 64; change one of them",
        ),
        (
            "evaluate_every = 1",
            "evaluate_every = 0\nearly_stop = 5",
            "/graphs/p.toml:25: train.early_stop: `evaluate_every` is 0; set it to 1 or more, or remove this key (for one run: `--unset train.early_stop`)",
        ),
        (
            "schedule = \"mini-batch\"",
            "schedule = { kind = \"auto\", candidates = [\"full-graph\", { kind = \"tensor-parallel\", pipelined = false }] }",
            "/graphs/p.toml:19: train.schedule: no candidate supports this pipeline: not \"full-graph\": train.batch: `full-graph` has no batches: each step computes all nodes; remove this key (for one run: `--unset train.batch`); not \"tensor-parallel\": train.batch: `tensor-parallel` has no batches: each step computes all nodes; remove this key (for one run: `--unset train.batch`)",
        ),
        (
            "schedule = \"mini-batch\"",
            "schedule = { kind = \"mini-batch\", mode = \"async\" }",
            "/graphs/p.toml:19: train.schedule.mode: unknown key of `mini-batch`; only `full-graph` has it",
        ),
        (
            "schedule = \"mini-batch\"",
            "schedule = { kind = \"mini-batch\", intervals = 2 }",
            "/graphs/p.toml:19: train.schedule.intervals: unknown key of `mini-batch`; only `full-graph` and `tensor-parallel` have it",
        ),
        (
            "schedule = \"mini-batch\"",
            "schedule = { kind = \"mini-batch\", cach = \"1MiB\" }",
            "/graphs/p.toml:19: train.schedule.cach: unknown key of `mini-batch`; did you mean \"cache\"?",
        ),
        (
            "schedule = \"mini-batch\"",
            "schedule = { kind = \"mini-batches\" }",
            "/graphs/p.toml:19: train.schedule.kind: expected one of \"mini-batch\", \"partition-parallel\", \"full-graph\", \"tensor-parallel\", \"auto\", found \"mini-batches\"; did you mean \"mini-batch\"?",
        ),
        (
            "schedule = \"mini-batch\"",
            "schedule = 3",
            "/graphs/p.toml:19: train.schedule: expected one of \"mini-batch\", \"partition-parallel\", \"full-graph\", \"tensor-parallel\", \"auto\", or a table, found the integer 3",
        ),
        (
            "schedule = \"mini-batch\"",
            "schedule = { kind = 3 }",
            "/graphs/p.toml:19: train.schedule.kind: expected one of \"mini-batch\", \"partition-parallel\", \"full-graph\", \"tensor-parallel\", \"auto\", found the integer 3",
        ),
        (
            "schedule = \"mini-batch\"",
            "sampler = { kind = \"nearest\", k = 3 }",
            "/graphs/p.toml:19: train.sampler.k: unknown key of `nearest`",
        ),
        (
            "schedule = \"mini-batch\"",
            "mode = \"async\"",
            "/graphs/p.toml:19: train.mode: `train.mode` has moved: write `schedule = { kind = \"full-graph\", mode = .. }`",
        ),
        (
            "method = \"random\"",
            "method = \"multi-level\"",
            "/graphs/p.toml:10: partition.method: expected one of \"random\", \"range\", \"spring\", \"dbh\", \"greedy\", \"hdrf\", \"2ps-l\", \"ldg\", \"fennel\", \"metis\", \"multilevel\", \"file\", or a registered name (this program registers no other), found \"multi-level\"; did you mean \"multilevel\"?",
        ),
        (
            "method = \"random\"",
            "method = \"random\"\nvolume = 2",
            "/graphs/p.toml:11: partition.volume: unknown key of `random`; only `spring` and `2ps-l` have it (for one run: `--unset partition.volume`)",
        ),
        (
            "method = \"random\"",
            "method = \"file\"",
            "/graphs/p.toml:10: partition.method: `partition.file` is missing; name the table of parts there",
        ),
        (
            "method = \"random\"",
            "method = \"spring\"\nfile_columns = { part = \"p\" }",
            "/graphs/p.toml:11: partition.file_columns: unknown key of `spring`; only `file` has it (for one run: `--unset partition.file_columns`)",
        ),
        (
            "method = \"random\"",
            "method = \"spring\"\nbalance = { nodes = 0.9 }",
            "/graphs/p.toml:11: partition.balance.nodes: must be at least 1.0, but is 0.9",
        ),
        (
            "[graph]",
            "[graph]\nfeature_dtype = [\"f32\", \"f8\"]",
            "/graphs/p.toml:3: graph.feature_dtype[1]: expected one of \"f32\", \"f16\", \"bf16\", found \"f8\"",
        ),
        (
            "[graph]",
            "[graph]\nfeature_dtype = [\"f32\", \"f16\"]",
            "/graphs/p.toml:3: graph.feature_dtype: 2 types for 1 feature column (`columns.features`); use one type, or one for each column",
        ),
        ("lr = 0.01", "lr = nan", "/graphs/p.toml:23: train.optimizer.lr: expected a finite number, found NaN"),
        ("seed = 1", "seed = -1", "/graphs/p.toml:25: train.seed: must be at least 0, but is -1"),
        (
            "lr = 0.01",
            "momentum = 0.9",
            "/graphs/p.toml:23: train.optimizer.momentum: unknown key of `adam`; only `sgd` has it",
        ),
        ("nodes = \"data/nodes.parquet\"", "", "/graphs/p.toml:4: graph.edges: `nodes` is missing; give both"),
        (
            "[graph]",
            "[graph]\ndataset = \"d\"",
            "/graphs/p.toml:3: graph.dataset: the graph has two sources; give either `nodes` and `edges`, or `generate`, or `dataset`",
        ),
    ] {
        let found = lines(&with(line, instead), &[]);
        assert_eq!(found, [expected], "{line} → {instead}");
    }
}

#[test]
fn all_problems_are_reported_in_the_order_of_the_file() {
    let text = with("hidden = 64", "hiden = 64").replace("epochs = 100", "epochs = 0").replace("parts = 2", "part = 2");
    let found = lines(&text, &["model.layers=none"]);
    let keys: Vec<&str> =
        found.iter().map(|line| line.trim_start_matches("--set ").split(": ").nth(1).unwrap()).collect();
    assert_eq!(found.len(), 4, "{found:#?}");
    assert_eq!(keys[..3], ["partition.part", "model.hiden", "train.epochs"]);
    assert_eq!(found[3], "--set model.layers: expected an integer, found the string \"none\"");
}

#[test]
fn invalid_toml_is_reported_with_its_line() {
    let found = lines("name = \"a\"\n[graph\nnodes = 3", &[]);
    assert!(found[0].starts_with("/graphs/p.toml:2: "), "{found:?}");
    let found = lines("a = 1\na = 2", &[]);
    assert!(found[0].starts_with("/graphs/p.toml:2: ") && found[0].contains("duplicate"), "{found:?}");
}

#[test]
fn unset_removes_keys_of_the_file() {
    let unset = |text: &str, key: &str| {
        let changes = ["train.schedule=full-graph".to_owned()].map(Override::Set);
        let changes = [&changes[..], &[Override::Unset(key.into())]].concat();
        Config::parse(text, Path::new("p.toml"), &changes, &Registered::default()).map_err(|error| error.to_string())
    };
    let text = "[graph]\nnodes = 'n'\nedges = 'e'\n[model]\n[train]\nfanouts = [5, 5]\n";
    let error = unset(text, "train.seed").unwrap_err();
    assert!(error.ends_with("remove it (for one run: `--unset train.fanouts`)"), "{error}");
    assert_eq!(unset(text, "train.fanouts").unwrap().train.unwrap().fanouts, None);
    // Misspelled keys and whole sections of the file can be removed, too.
    unset(&text.replace("fanouts", "fanuots"), "train.fanuots").unwrap();
    assert!(unset(&format!("{text}[infer]\npredictions = true"), "infer").unwrap_err().contains("train.fanouts"));
    let error = unset(text, "train.fanout").unwrap_err();
    assert!(error.starts_with("--unset train.fanout: unknown key; did you mean \"fanouts\"?"), "{error}");
}

#[test]
fn sets_are_applied_before_checks_and_named_in_messages() {
    let config = parse(WHOLE, &["train.epochs=3", "model.kind=sage", "train.fanouts=[10, 5]", "name=2024"]).unwrap();
    assert_eq!((config.name.as_str(), config.model.unwrap().kind.as_str()), ("2024", "sage"));
    let train = config.train.unwrap();
    assert_eq!((train.epochs, train.fanouts), (Some(3), Some(vec![Fanout::Each(10), Fanout::Each(5)])));
    assert_eq!(lines(WHOLE, &["train.epoch=3"]), ["--set train.epoch: unknown key; did you mean \"epochs\"?"]);
    assert_eq!(lines(WHOLE, &["epochs"]), ["--set epochs: expected KEY=VALUE, as in train.epochs=5"]);
    assert_eq!(lines(WHOLE, &["name.x=1"]), ["--set name.x: `name` is not a table; set it as a whole"]);
    assert_eq!(
        lines(WHOLE, &["train.fanouts=[1]"]),
        ["--set train.fanouts: 1 fanout for 2 layers; give one per layer"]
    );
    // The message is about the key in the file, even if the other key should be changed.
    assert_eq!(
        lines(WHOLE, &["model.layers=3"]),
        ["/graphs/p.toml:22: train.fanouts: 2 fanouts for 3 layers; give one per layer"]
    );
}

#[test]
fn all_keys_of_the_reference_can_be_set() {
    let sections = reference::sections();
    for (section, key) in sections.iter().flat_map(|section| section.keys.iter().map(move |key| (section, key))) {
        let value = key.example.as_ref().or(key.default.as_ref()).unwrap();
        let set = format!("{}={value}", key.path);
        let kind = section.kind.as_ref().map(|kind| format!("{}.kind={kind}", section.path));
        let text = "[graph]\nnodes = 'n'\nedges = 'e'\n[model]\n[train]";
        let sets: Vec<&str> = kind.iter().chain([&set]).map(String::as_str).collect();
        if let Err(Error::Config(problems)) = parse(text, &sets) {
            for problem in problems.list() {
                let words = problem.message();
                // Keys of other kinds, methods and models are known.
                if words.contains("; only `") {
                    continue;
                }
                assert!(
                    !words.contains("unknown") && !words.contains("expected") && !words.contains("must be"),
                    "{set}: {words}"
                );
            }
        }
    }
}

#[test]
fn resolved_pipeline_of_every_model_is_accepted() {
    for kind in super::model::KINDS {
        for more in ["", "layers = 1", "layers = 1\ndropout = 0.0"] {
            // `sgc` has no dropout.
            let more = if *kind == "sgc" { more.lines().next().unwrap_or_default() } else { more };
            assert_resolved(
                &format!("[graph]\nnodes = 'n'\nedges = 'e'\n[model]\nkind = '{kind}'\n{more}\n[train]\n"),
                &[],
            );
        }
    }
    assert_resolved("[graph]\ndataset = 'd'\n[model]\nkind = 'appnp'\nmlp_layers = 1\n[train]\n", &[]);
    let links = "task = 'link-prediction'";
    assert_resolved(&format!("[graph]\ndataset = 'd'\n[model]\nkind = 'appnp'\nmlp_layers = 1\n[train]\n{links}"), &[]);
}

#[test]
fn resolved_pipeline_equals_the_pipeline() {
    let generated = "[graph]\ngenerate = { nodes = 100, edges = 500 }\n[model]\nkind = 'gat'\nhidden = 64\n[train]\noptimizer = { kind = 'sgd' }";
    for text in [
        WHOLE,
        generated,
        "[graph]\ndataset = 'd'",
        "[graph]\nnodes = 'n'\nedges = 'e'\nsplit_fractions = [0.5, 0.25, 0.25]",
    ] {
        assert_resolved(text, &["cluster.start_timeout=90s"]);
    }
}

/// Asserts that the resolved pipeline can be read, and defines the same run.
fn assert_resolved(text: &str, sets: &[&str]) {
    let config = parse(text, sets).unwrap();
    let resolved = config.resolved_toml();
    let again = Config::parse(&resolved, Path::new("/elsewhere/q.toml"), &[], &Registered::default());
    let again = again.unwrap_or_else(|error| panic!("{error}\n{resolved}"));
    assert_eq!(again.resolved_toml(), resolved);
    assert_eq!(again.fingerprint(), config.fingerprint());
    assert_eq!(Config { source: Source::default(), ..again }, Config { source: Source::default(), ..config });
}

#[test]
fn keys_without_effect_are_refused() {
    let graph = "[graph]\nnodes = 'n'\nedges = 'e'\n";
    let refused = |text: &str, key: &str, words: &str| {
        let error = parse(text, &[]).unwrap_err().to_string();
        assert!(error.contains(&format!("{key}: ")) && error.contains(words), "{error}");
    };
    let model = |lines: &str| format!("{graph}[model]\n{lines}\n[train]\n");
    refused(&model("layers = 1\ndropout = 0.4"), "model.dropout", "the only layer reads features; use `input_dropout`");
    refused(
        &model("kind = 'appnp'\nmlp_layers = 1\ndropout = 0.4"),
        "model.dropout",
        "one linear map reads only features; use `input_dropout`",
    );
    for effective in [
        "layers = 1\ndropout = 0.0",
        "layers = 1\njumping_knowledge = 'max'\ndropout = 0.4",
        // The attention has the same probability.
        "kind = 'gat'\nlayers = 1\ndropout = 0.4",
    ] {
        parse(&model(effective), &[]).unwrap();
    }
    let partition = |lines: &str| format!("{graph}[partition]\n{lines}\nmethod_memory = '1GiB'\n");
    for method in ["random", "spring", "metis", "ldg"] {
        let message = format!("`{method}` does not plan with memory; remove this key");
        refused(&partition(&format!("method = '{method}'")), "partition.method_memory", &message);
    }
    let dataset = "[graph]\ndataset = 'd'\n[partition]\nmethod_memory = '1GiB'\n";
    refused(dataset, "partition.method_memory", "already prepared");
    let clusters = "[model]\n[train]\nsampler = { kind = 'cluster', clusters = 4 }\n";
    for effective in ["method = 'multilevel'", "method = 'hdrf'", "method = 'random'\nrefine = 2"] {
        parse(&partition(effective), &[]).unwrap();
    }
    parse(&format!("{}{clusters}", partition("method = 'random'")), &[]).unwrap();
    parse(&format!("{dataset}{clusters}"), &[]).unwrap();
}

#[test]
fn fingerprints_depend_on_keys_that_change_results_only() {
    let config = parse(WHOLE, &[]).unwrap();
    for set in [
        "train.threads=7",
        "train.hash_blocks=true",
        "name=other",
        "cluster.restarts=3",
        "graph.nodes=x.parquet",
        "partition.out=x",
    ] {
        assert_eq!(parse(WHOLE, &[set]).unwrap().fingerprint(), config.fingerprint(), "{set}");
    }
    for set in
        ["train.seed=2", "partition.parts=3", "model.dropout=0", "graph.undirected=false", "train.optimizer.lr=0.1"]
    {
        let other = parse(WHOLE, &[set]).unwrap();
        assert_ne!(other.fingerprint(), config.fingerprint(), "{set}");
        assert_ne!(other.model_fingerprint(), config.model_fingerprint(), "{set}");
    }
    let on = |device: &str| parse(WHOLE, &[&format!("train.device={device}")]).unwrap().fingerprint();
    assert_eq!(on("cuda"), on("cuda:1"));
    assert_ne!(on("cuda"), config.fingerprint());
    // Tensor workers change results only on a GPU.
    let text = with("batch = 1000\nfanouts = [-1, -1]\n", "").replace("\"mini-batch\"", "\"full-graph\"");
    let staged = |sets: &[&str]| {
        let alone = ["train.tensor_workers.local_tasks=false", "train.tensor_workers.when_gone=fail"];
        let more = if sets.len() > 1 { &alone[..] } else { &[] };
        parse(&text, &[more, sets].concat()).unwrap().fingerprint()
    };
    let workers = "train.tensor_workers.workers=2";
    assert_eq!(staged(&["train.device=cpu", workers]), staged(&["train.device=cpu"]));
    assert_ne!(staged(&["train.device=cuda", workers]), staged(&["train.device=cuda"]));
    let of_workers =
        |device: &str| staged(&["train.device=cpu", workers, &format!("train.tensor_workers.device={device}")]);
    assert_ne!(of_workers("cuda"), of_workers("cpu"));
    let longer = parse(WHOLE, &["train.epochs=300"]).unwrap();
    assert_ne!(longer.fingerprint(), config.fingerprint());
    assert_eq!(longer.model_fingerprint(), config.model_fingerprint());
}

#[test]
fn more_processes_than_partitions_are_refused_at_the_key_parts() {
    let config = parse(WHOLE, &[]).unwrap();
    assert!(config.check_processes(2, 2).is_ok());
    let error = config.check_processes(3, 2).unwrap_err().to_string();
    assert!(error.starts_with("/graphs/p.toml:11: partition.parts: more processes (3) than partitions (2)"), "{error}");
}

#[test]
fn registered_names_are_accepted() {
    let registered = Registered { layers: vec!["mine".into()], ..Registered::default() };
    let text = with("kind = \"gcn\"", "kind = \"mine\"");
    assert!(Config::parse(&text, Path::new("p.toml"), &[], &registered).is_ok());
}

/// Any text gives a pipeline or a list of problems.
#[test]
fn parsing_random_text_does_not_panic() {
    use gnnflow_data::rng::{Key, Purpose};
    let words: Vec<&str> = WHOLE.split_inclusive(|c: char| !c.is_alphanumeric()).collect();
    let odd = [
        "[",
        "]",
        "=",
        "\n",
        "\"",
        "'",
        "-1",
        "1e999",
        "nan",
        "99999999999999999999",
        "{",
        "}",
        "[[",
        "1979-05-27",
        ".",
        "é",
        "\u{0}",
        "true",
    ];
    for round in 0..3000 {
        let key = Key::new(round, Purpose::GenerateNodes);
        let mut text: Vec<&str> = words.clone();
        for change in 0..1 + key.below(0, 4) {
            let at = key.below(3 * change + 1, text.len() as u64) as usize;
            match key.below(3 * change + 2, 3) {
                0 => drop(text.remove(at)),
                1 => text[at] = words[key.below(3 * change + 3, words.len() as u64) as usize],
                _ => text.insert(at, odd[key.below(3 * change + 3, odd.len() as u64) as usize]),
            }
        }
        let text = text.concat();
        if let Err(error) = parse(&text, &[]) {
            assert!(matches!(error, Error::Config(_)), "{error}");
            assert!(error.to_string().lines().all(|line| !line.is_empty()), "{error}");
        }
    }
}

#[test]
fn all_partition_methods_can_be_built() {
    for method in partition::METHODS {
        let cut = Partition { method: (*method).into(), ..Partition::default() };
        assert_eq!(cut.builtin().map(|built| built.name().to_string()).as_deref(), Some(*method));
    }
    let known =
        |(_, methods): &(&str, &[&'static str])| methods.iter().all(|method| partition::METHODS.contains(method));
    assert!(partition::KEYS.iter().all(known));
}

#[test]
fn edges_and_training_nodes_are_bounded_by_default_for_two_methods_and_can_be_lifted() {
    let bounds = |method: &str, sets: &[&str]| {
        let method = format!("partition.method={method}");
        let config = parse("[graph]\nnodes = 'n'\nedges = 'e'", &[&[method.as_str()], sets].concat()).unwrap();
        let targets = config.prepare_settings("out".into()).balance;
        (targets.nodes, targets.edges, targets.train)
    };
    for method in ["multilevel", "metis"] {
        assert_eq!(bounds(method, &[]), (1.05, Some(1.2), Some(1.1)));
        let sets = ["partition.balance.edges=none", "partition.balance.train=1.5"];
        assert_eq!(bounds(method, &sets), (1.05, None, Some(1.5)));
    }
    assert_eq!(bounds("ldg", &[]), (1.05, None, None));
    assert_eq!(bounds("ldg", &["partition.balance.edges=2"]), (1.05, Some(2.0), None));
}

#[test]
fn samplers_of_subgraphs_refuse_keys_of_other_samplers() {
    let text =
        |model: &str, train: &str| format!("[graph]\nnodes = 'n'\nedges = 'e'\n[model]\n{model}\n[train]\n{train}");
    let one = |model: &str, train: &str, words: &[&str]| {
        let found = lines(&text(model, train), &[]);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(words.iter().all(|word| found[0].contains(word)), "{found:?}: {words:?}");
    };
    let sage = "kind = 'sage'";
    one(
        sage,
        "sampler = 'cluster'\nfanouts = [5, 5]",
        &["p.toml:8: train.fanouts:", "no fanouts", "`clusters_per_batch`"],
    );
    one(sage, "sampler = 'saint-walk'\nfanouts = [5]", &["p.toml:8: train.fanouts:", "no fanouts", "`batch`"]);
    one(sage, "sampler = 'cluster'\nbatch = 64", &["p.toml:8: train.batch:", "use `clusters_per_batch`"]);
    one(
        sage,
        "sampler = { kind = 'cluster', clusters = 4, clusters_per_batch = 5 }",
        &["train.sampler.clusters_per_batch: a batch cannot have 5 of 4 clusters"],
    );
    one(sage, "sampler.clusters = 4", &["train.sampler.clusters: unknown key of `uniform`; only `cluster` has it"]);
    one(
        sage,
        "sampler = { kind = 'saint-node', walk_length = 4 }",
        &["train.sampler.walk_length:", "only `saint-walk` has it"],
    );
    one(sage, "sampler = { kind = 'saint-node', p = 2.0 }", &["train.sampler.p:", "only `saint-walk` has it"]);
    one(sage, "sampler = { kind = 'saint-walk', q = 0.0 }", &["train.sampler.q: must be more than 0", "but is 0"]);
    one(
        sage,
        "sampler = { kind = 'saint-walk', walk_length = 0 }",
        &["train.sampler.walk_length: must be at least 1, but is 0"],
    );
    one(
        sage,
        "sampler = { kind = 'cluster', coverage = 4 }",
        &["train.sampler.coverage:", "only `saint-node`, `saint-edge` and `saint-walk` have it"],
    );
    one(
        sage,
        "sampler = { kind = 'saint-edge', replace = true }",
        &["train.sampler.replace:", "only `uniform` and `weighted` have it"],
    );
    one("kind = 'gcn'", "sampler = 'saint-edge'", &["train.sampler: `saint-edge` weighs edges", "use `cluster`"]);
    one("kind = 'mlp'", "sampler = 'cluster'", &["train.sampler:", "`mlp` reads no edges", "use `uniform`"]);
    one("kind = 'gcn'", "sampler = 'fastgcn'", &["train.sampler: `fastgcn` weighs edges"]);
    one(sage, "sampler = 'fastgcn'\nfanouts = [50, -1]", &["train.fanouts: `fastgcn`", "use `uniform`"]);
    for sampler in ["cluster", "saint-node", "saint-edge", "saint-walk"] {
        for schedule in ["mini-batch", "partition-parallel"] {
            let train = format!("sampler = '{sampler}'\nschedule = '{schedule}'");
            let config = parse(&text(sage, &train), &[]).unwrap();
            assert!(config.train.as_ref().unwrap().draws_subgraphs());
            let again = config.resolved_toml();
            assert!(Config::parse(&again, Path::new("/graphs/q.toml"), &[], &Registered::default()).is_ok());
        }
    }
    let train = parse(&text(sage, "sampler = 'cluster'"), &[]).unwrap().train.unwrap();
    let Sampler::Cluster(options) = train.sampler else { panic!("{:?}", train.sampler) };
    assert_eq!((options.clusters([0, 500, 70].into_iter()), options.clusters([500].into_iter())), (70, 100));
    assert_eq!((options.clusters_per_batch(70), options.clusters_per_batch(4)), (10, 4));
}

#[test]
fn regression_refuses_metrics_of_classification() {
    let text = |train: &str| format!("[graph]\nnodes = 'n'\nedges = 'e'\n[model]\n[train]\n{train}");
    let found = lines(&text("task = 'node-regression'\nmetric = 'accuracy'"), &[]);
    let expected = "p.toml:7: train.metric: `node-regression` has no `accuracy`; use `rmse`, `mae`, `r2` or `loss`";
    assert_eq!(found, [format!("/graphs/{expected}")]);
    assert!(lines(&text("metric = 'r2'"), &[])[0].contains("`node-classification` has no `r2`; use `accuracy`"));
    for key in ["normalize = true", "embedding_dtype = 'f16'"] {
        let without = lines(&text(&format!("[infer]\n{key}")), &[]);
        assert!(without[0].contains("no embeddings are written; set infer.embeddings = true"), "{without:?}");
        parse(&text(&format!("[infer]\nembeddings = true\n{key}")), &[]).unwrap();
    }
    let scores = lines(&text("task = 'node-regression'\n[infer]\nscores = true"), &[]);
    assert!(scores[0].contains("infer.scores: regression has no probabilities"), "{scores:?}");
    for metric in ["rmse", "mae", "r2", "loss"] {
        parse(&text(&format!("task = 'node-regression'\nmetric = '{metric}'")), &[]).unwrap();
    }
    use super::Metric;
    assert!(Metric::Rmse.is_better(1.0, 2.0) && Metric::Mae.is_better(1.0, 2.0) && Metric::R2.is_better(2.0, 1.0));
}

#[test]
fn choices_are_words_or_tables_and_can_be_set() {
    let full = |mode| Schedule::FullGraph(schedule::FullGraph { mode, ..schedule::FullGraph::default() });
    let text = "[graph]\nnodes = 'n'\nedges = 'e'\n[model]\n[train]\n";
    for (train, sets, wanted) in [
        ("", &[][..], Schedule::default()),
        ("schedule = 'full-graph'", &[], full(Mode::Pipe)),
        ("schedule = { kind = 'full-graph' }", &[], full(Mode::Pipe)),
        ("[train.schedule]\nkind = 'full-graph'\nmode = 'async'", &[], full(Mode::Async)),
        ("schedule.kind = 'full-graph'\nschedule.mode = 'async'", &[], full(Mode::Async)),
        // A `--set` of an option turns a word into its table.
        ("schedule = 'full-graph'", &["train.schedule.mode=async"], full(Mode::Async)),
        ("", &["train.schedule=full-graph", "train.schedule.mode=async"], full(Mode::Async)),
        ("", &["train.schedule.mode=async", "train.schedule.kind=full-graph"], full(Mode::Async)),
        ("", &["train.schedule={ kind = 'full-graph', mode = 'async' }"], full(Mode::Async)),
        // A word replaces a table.
        ("schedule = { kind = 'full-graph', mode = 'async' }", &["train.schedule=mini-batch"], Schedule::default()),
        ("schedule = { kind = 'full-graph', mode = 'async' }", &["train.schedule=full-graph"], full(Mode::Pipe)),
    ] {
        let config = parse(&format!("{text}{train}"), sets).unwrap_or_else(|error| panic!("{train} {sets:?}: {error}"));
        assert_eq!(config.train.unwrap().schedule, wanted, "{train} {sets:?}");
    }
    let sampler = parse(&format!("{text}sampler = {{ kind = 'saint-walk', p = 4.0 }}"), &["train.sampler.q=0.5"]);
    let Sampler::SaintWalk(walk) = sampler.unwrap().train.unwrap().sampler else { panic!() };
    assert_eq!((walk.bias(), walk.length(), walk.coverage), (Some([4.0, 0.5]), 2, 50));
    let registered = Registered { samplers: vec!["mine".into()], ..Registered::default() };
    for sampler in ["'mine'", "{ kind = 'mine' }"] {
        let text = format!("{text}sampler = {sampler}");
        let config = Config::parse(&text, Path::new("p.toml"), &[], &registered).unwrap();
        assert_eq!(config.train.as_ref().unwrap().sampler.word(), "mine");
        assert!(
            config.resolved_toml().contains("sampler = \"mine\"") || config.resolved_toml().contains("kind = \"mine\"")
        );
    }
}

#[test]
fn options_of_a_schedule_without_required_options_are_refused() {
    let text = "[graph]\nnodes = 'n'\nedges = 'e'\n[model]\n[train]\nschedule = ";
    for (schedule, expected) in [
        ("{ kind = 'full-graph', staleness = 1 }", "train.schedule.staleness: only `mode = \"async\"` has stale rows"),
        ("{ cache_policy = 'degree' }", "train.schedule.cache_policy: has no effect without `cache`; give its size"),
        (
            "{ kind = 'full-graph', edges_per_epoch = 9 }",
            "train.schedule.edges_per_epoch: `node-classification` learns from all training nodes",
        ),
        (
            "{ kind = 'auto', candidates = [{ kind = 'full-graph', staleness = 1 }] }",
            "train.schedule.candidates[0].staleness: only `mode = \"async\"` has stale rows",
        ),
        (
            "{ kind = 'auto', candidates = ['auto'] }",
            "train.schedule.candidates[0]: expected one of \"mini-batch\", \"partition-parallel\", \"full-graph\", \"tensor-parallel\", found",
        ),
        (
            "{ kind = 'auto', rates = { bandwidth = 0 } }",
            "train.schedule.rates.bandwidth: must be at least 1, but is 0",
        ),
        ("{ kind = 'auto', rates = { sums = 0 } }", "train.schedule.rates.sums: must be more than 0.0, but is 0"),
        ("{ kind = 'auto', candidates = [] }", "train.schedule.candidates: expected a list that is not empty"),
    ] {
        let found = lines(&format!("{text}{schedule}"), &[]);
        assert!(found[0].contains(expected), "{schedule}: {found:?}");
    }
}

/// A key with a valid value, and the kind of the choice that has it.
struct Given {
    /// The dotted path.
    path: String,
    sets: Vec<String>,
}

/// All keys of the reference, each with its example, or else its default.
fn each_key() -> Vec<Given> {
    let mut all = Vec::new();
    for section in reference::sections() {
        for key in &section.keys {
            let value = key.example.clone().or(key.default.clone()).unwrap();
            let kind = section.kind.as_ref().map(|kind| format!("{}.kind={kind}", section.path));
            let sets = kind.into_iter().chain([format!("{}={value}", key.path)]).collect();
            all.push(Given { path: key.path.clone(), sets });
        }
    }
    all
}

const TASKS: [&str; 4] = ["node-classification", "node-regression", "link-prediction", "edge-classification"];

/// For all keys of `[train]`, schedules, samplers and tasks: training reads the key, or it is refused.
#[test]
fn unused_keys_are_refused() {
    let declared: Vec<&str> = schema::table_of(schema::at(reference::schema(), "train").unwrap())
        .map(|table| schema::ordered_properties(table).into_iter().map(|(key, _)| key).collect())
        .unwrap();
    let known: Vec<&str> = uses::TRAIN.iter().map(|(key, _)| *key).collect();
    assert_eq!(known, declared, "`uses::TRAIN` has all keys, in order of declaration");
    let text = "[graph]\nnodes = 'n'\nedges = 'e'\ncolumns.edge_label = 'l'\n[model]\nkind = 'sage'\n[train]\n";
    let (mut read, mut refused) = (0, 0);
    for schedule in Schedule::KINDS.iter().filter(|kind| **kind != "auto") {
        for sampler in Sampler::KINDS {
            for task in TASKS {
                let mut sets = vec![format!("train.schedule.kind={schedule}"), format!("train.task={task}")];
                if *sampler != "uniform" {
                    sets.push(format!("train.sampler.kind={sampler}"));
                }
                let plain = Train {
                    schedule: serde_json::from_value(serde_json::json!({ "kind": schedule })).unwrap(),
                    sampler: serde_json::from_value(serde_json::json!({ "kind": sampler })).unwrap(),
                    task: serde_json::from_value(task.into()).unwrap(),
                    ..Train::default()
                };
                for key in each_key() {
                    let Some(name) = key.path.strip_prefix("train.").and_then(|path| path.split('.').next()) else {
                        continue;
                    };
                    if ["schedule", "sampler", "task"].contains(&name) {
                        continue;
                    }
                    let all: Vec<&str> = sets.iter().chain(&key.sets).map(String::as_str).collect();
                    let found = parse(text, &all);
                    // The refusal in `uses::TRAIN`, of this key or of its table.
                    let (_, when) = uses::TRAIN.iter().find(|(known, _)| *known == name).unwrap();
                    match when.refusal(&plain) {
                        Some(why) => {
                            let error = found.expect_err(&format!("{all:?} is accepted")).to_string();
                            assert!(error.contains(&format!("train.{name}: {why}")), "{all:?}: {error}");
                            refused += 1;
                        }
                        None => {
                            if let Ok(config) = found {
                                // The resolved pipeline contains the key, or the word of a choice with only defaults.
                                let resolved: toml::Value = toml::from_str(&config.resolved_toml()).unwrap();
                                let value = key.path.split('.').try_fold(&resolved, |value, key| match value {
                                    toml::Value::String(_) => Some(value),
                                    table => table.get(key),
                                });
                                assert!(value.is_some(), "{all:?}: {}", config.resolved_toml());
                                read += 1;
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(read > 1000 && refused > 1000, "{read} read, {refused} refused");
}

/// For all options of all choices: kinds with the option accept it, other kinds refuse it.
#[test]
fn options_are_refused_by_other_kinds() {
    let text = "[graph]\nnodes = 'n'\nedges = 'e'\n[model]\nkind = 'sage'\n[train]\n";
    for section in reference::sections() {
        let Some(own) = &section.kind else { continue };
        let sections = reference::sections();
        let others: Vec<_> =
            sections.iter().filter(|other| other.path == section.path && other.kind.is_some()).collect();
        for key in &section.keys {
            let value = key.example.clone().or(key.default.clone()).unwrap();
            for other in &others {
                let kind = other.kind.as_deref().unwrap();
                let has = other.keys.iter().any(|found| found.path == key.path);
                let sets = [format!("{}.kind={kind}", section.path), format!("{}={value}", key.path)];
                let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
                let found = parse(text, &sets).map(drop).map_err(|error| error.to_string());
                let refusal = format!("{}: unknown key of `{kind}`; only ", key.path);
                match has {
                    true => {
                        assert!(found.as_ref().is_err_and(|why| !why.contains("unknown")) || found.is_ok(), "{found:?}")
                    }
                    false => {
                        let why = found.expect_err(&format!("{kind} takes {}", key.path));
                        assert!(why.contains(&refusal) && why.contains(&format!("`{own}`")), "{why}");
                    }
                }
            }
        }
    }
}

/// The file that `gnnflow run` writes into the run folder is an equal pipeline.
#[test]
fn resolved_pipelines_of_all_kinds_parse_to_equal_pipelines() {
    let text = "[graph]\nnodes = 'n'\nedges = 'e'\ncolumns.edge_label = 'l'\n[model]\nkind = 'sage'\n[train]\n";
    let mut accepted = 0;
    for schedule in Schedule::KINDS {
        for sampler in Sampler::KINDS {
            for task in TASKS {
                let mut sets = vec![format!("train.schedule={schedule}"), format!("train.task={task}")];
                if *sampler != "uniform" {
                    sets.push(format!("train.sampler={sampler}"));
                }
                let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
                let Ok(config) = parse(text, &sets) else { continue };
                let resolved = config.resolved_toml();
                let again = Config::parse(&resolved, Path::new("/elsewhere/q.toml"), &[], &Registered::default());
                let again = again.unwrap_or_else(|error| panic!("{error}\n{resolved}"));
                assert_eq!(again.resolved_toml(), resolved);
                assert_eq!(again.fingerprint(), config.fingerprint());
                assert!(resolved.contains(&format!("schedule = \"{schedule}\"")), "{resolved}");
                accepted += 1;
            }
        }
    }
    assert!(accepted > 40, "{accepted}");
}
