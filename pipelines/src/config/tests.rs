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
    let sets: Vec<String> = sets.iter().map(ToString::to_string).collect();
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
fn a_url_is_relative_to_nothing() {
    let text =
        with("edges = ", "edges = ['s3://graphs/edges/', 'https://example.org/e.parquet?sig=a', 'x.parquet']\n# ");
    let edges = parse(&text, &[]).unwrap().graph.edges.unwrap().0;
    assert_eq!(edges[..2], ["s3://graphs/edges/", "https://example.org/e.parquet?sig=a"].map(PathBuf::from));
    assert_eq!(edges[2], PathBuf::from("/graphs/x.parquet"));
    // How long to try changes nothing else, not even where the dataset goes.
    let patient = parse(&text, &["graph.retry=1h"]).unwrap();
    assert_eq!(patient.partition.out, parse(&text, &[]).unwrap().partition.out);
    assert_eq!(patient.graph.retry, Span::seconds(3600));
}

#[test]
fn a_whole_file_is_read() {
    let config = parse(WHOLE, &[]).unwrap();
    assert_eq!(config.name, "bar");
    assert_eq!(config.graph.nodes, Some(OneOrMany::one("/graphs/data/nodes.parquet".into())));
    assert_eq!(config.graph.edges, Some(OneOrMany(vec!["/graphs/a.parquet".into(), "/b.parquet".into()])));
    assert_eq!(config.graph.duplicates, Duplicates::Drop);
    assert_eq!(config.parts(), 2);
    assert_eq!(config.model.as_ref().unwrap().heads(), 1);
    let train = config.train.as_ref().unwrap();
    assert_eq!((train.fanouts(2), train.optimizer.lr), (vec![Fanout::Each(-1); 2], 0.01));
    assert!(config.infer.as_ref().unwrap().predictions);
    assert!(config.dataset_folder().starts_with("/graphs/.gnnflow"));
}

#[test]
fn sections_that_are_absent_are_stages_that_do_not_run() {
    let config = parse("[graph]\nnodes = 'n'\nedges = 'e'", &[]).unwrap();
    assert_eq!((config.name.as_str(), config.model, config.train, config.infer), ("p", None, None, None));
}

#[test]
fn messages_name_line_key_and_what_is_wrong() {
    for (line, instead, expected) in [
        ("hidden = 64", "hiden = 64", "/graphs/p.toml:15: model.hiden: unknown key; did you mean \"hidden\"?"),
        (
            "layers = 2",
            "layers = \"two\"",
            "/graphs/p.toml:14: model.layers: expected an integer, found the string \"two\"",
        ),
        ("layers = 2", "layers = 0", "/graphs/p.toml:14: model.layers: must be at least 1, but is 0"),
        ("dropout = 0.5", "dropout = 1", "/graphs/p.toml:16: model.dropout: must be less than 1.0, but is 1"),
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
        ("parts = 2", "parts = \"many\"", "/graphs/p.toml:11: partition.parts: expected \"auto\", found \"many\""),
        (
            "parts = 2",
            "parts = 2\nworkers = 3",
            "/graphs/p.toml:12: partition.workers: only `parts = \"auto\"` has a use for it",
        ),
        (
            "parts = 2",
            "memory = \"2 gigs\"",
            "/graphs/p.toml:11: partition.memory: expected a size such as \"2GiB\" or \"500MB\", found \"2 gigs\"",
        ),
        (
            "fanouts = [-1, -1]",
            "fanouts = [10]",
            "/graphs/p.toml:22: train.fanouts: 1 fanouts for 2 layers: one a layer",
        ),
        (
            "fanouts = [-1, -1]",
            "fanouts = [10, \"x\"]",
            "/graphs/p.toml:22: train.fanouts[1]: expected an integer or a table, found the string \"x\"",
        ),
        (
            "kind = \"gcn\"",
            "kind = \"gcm\"",
            "/graphs/p.toml:13: model.kind: expected one of \"sage\", \"gcn\", \"gat\", \"gatv2\", \"gin\", \"gine\", \"sgc\", \"rgcn\", \"appnp\", \"mlp\", or a registered name, found \"gcm\"; did you mean \"gcn\"?",
        ),
        (
            "hidden = 64",
            "hidden = 64\nheads = 8",
            "/graphs/p.toml:16: model.heads: only \"gat\", \"gatv2\" has it, not \"gcn\"",
        ),
        (
            "hidden = 64",
            "hidden = 64\nteleport = 0.2",
            "/graphs/p.toml:16: model.teleport: only \"appnp\" has it, not \"gcn\"",
        ),
        (
            "hidden = 64",
            "hidden = 64\nnorm = \"group\"",
            "/graphs/p.toml:16: model.norm: expected one of \"none\", \"batch\", \"layer\", found \"group\"",
        ),
        (
            "kind = \"gcn\"",
            "kind = \"gat\"\nheads = 7",
            "/graphs/p.toml:14: model.heads: 7 heads do not divide hidden = 64",
        ),
        (
            "evaluate_every = 1",
            "evaluate_every = 0\nearly_stop = 5",
            "/graphs/p.toml:25: train.early_stop: nothing to stop by: `evaluate_every` is 0",
        ),
        (
            "schedule = \"mini-batch\"",
            "schedule = \"auto\"\nmode = \"async\"",
            "/graphs/p.toml:19: train.schedule: no schedule can do this: not \"mini-batch\": train.mode: only \"full-graph\" and \"tensor-parallel\" have it; not \"full-graph\": train.fanouts: \"full-graph\" samples nothing: every step is over the whole graph; leave it out; not \"tensor-parallel\": train.fanouts: \"tensor-parallel\" samples nothing: every step is over the whole graph; leave it out",
        ),
        (
            "method = \"random\"",
            "method = \"multi-level\"",
            "/graphs/p.toml:10: partition.method: expected one of \"random\", \"range\", \"spring\", \"dbh\", \"greedy\", \"hdrf\", \"2ps-l\", \"ldg\", \"fennel\", \"metis\", \"multilevel\", \"file\", or a registered name, found \"multi-level\"; did you mean \"multilevel\"?",
        ),
        (
            "method = \"random\"",
            "method = \"random\"\nvolume = 2",
            "/graphs/p.toml:11: partition.volume: only \"spring\", \"2ps-l\" has it, not \"random\"",
        ),
        (
            "method = \"random\"",
            "method = \"file\"",
            "/graphs/p.toml:10: partition.method: `file` is missing beside it: where the parts stand",
        ),
        (
            "method = \"random\"",
            "method = \"spring\"\nfile_columns = { part = \"p\" }",
            "/graphs/p.toml:11: partition.file_columns: only \"file\" has it, not \"spring\"",
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
            "/graphs/p.toml:3: graph.feature_dtype: 2 types for 1 feature columns (`columns.features`): use one for all, or a list of one for each",
        ),
        ("lr = 0.01", "lr = nan", "/graphs/p.toml:23: train.optimizer.lr: expected a finite number, found NaN"),
        ("seed = 1", "seed = -1", "/graphs/p.toml:25: train.seed: must be at least 0, but is -1"),
        (
            "lr = 0.01",
            "momentum = 0.9",
            "/graphs/p.toml:23: train.optimizer.momentum: only \"sgd\" has it, not \"adam\"",
        ),
        ("nodes = \"data/nodes.parquet\"", "", "/graphs/p.toml:4: graph.edges: `nodes` is missing beside it"),
        (
            "[graph]",
            "[graph]\ndataset = \"d\"",
            "/graphs/p.toml:3: graph.dataset: another source beside it: give either `nodes` and `edges`, or `generate`, or `dataset`",
        ),
    ] {
        let found = lines(&with(line, instead), &[]);
        assert_eq!(found, [expected], "{line} → {instead}");
    }
}

#[test]
fn all_problems_come_at_once_in_the_order_of_the_file() {
    let text = with("hidden = 64", "hiden = 64").replace("epochs = 100", "epochs = 0").replace("parts = 2", "part = 2");
    let found = lines(&text, &["model.layers=none"]);
    let keys: Vec<&str> =
        found.iter().map(|line| line.trim_start_matches("--set ").split(": ").nth(1).unwrap()).collect();
    assert_eq!(found.len(), 4, "{found:#?}");
    assert_eq!(keys[..3], ["partition.part", "model.hiden", "train.epochs"]);
    assert_eq!(found[3], "--set model.layers: expected an integer, found the string \"none\"");
}

#[test]
fn what_is_no_toml_says_so_with_its_line() {
    let found = lines("name = \"a\"\n[graph\nnodes = 3", &[]);
    assert!(found[0].starts_with("/graphs/p.toml:2: "), "{found:?}");
    let found = lines("a = 1\na = 2", &[]);
    assert!(found[0].starts_with("/graphs/p.toml:2: ") && found[0].contains("duplicate"), "{found:?}");
}

#[test]
fn sets_come_before_checks_and_name_themselves() {
    let config = parse(WHOLE, &["train.epochs=3", "model.kind=sage", "train.fanouts=[10, 5]", "name=2024"]).unwrap();
    assert_eq!((config.name.as_str(), config.model.unwrap().kind.as_str()), ("2024", "sage"));
    let train = config.train.unwrap();
    assert_eq!((train.epochs, train.fanouts), (3, Some(vec![Fanout::Each(10), Fanout::Each(5)])));
    assert_eq!(lines(WHOLE, &["train.epoch=3"]), ["--set train.epoch: unknown key; did you mean \"epochs\"?"]);
    assert_eq!(lines(WHOLE, &["epochs"]), ["--set epochs: expected KEY=VALUE, as in train.epochs=5"]);
    assert_eq!(lines(WHOLE, &["name.x=1"]), ["--set name.x: `name` is no table"]);
    assert_eq!(lines(WHOLE, &["train.fanouts=[1]"]), ["--set train.fanouts: 1 fanouts for 2 layers: one a layer"]);
    // Blame falls on what was written, even if the other key is what the user will change.
    assert_eq!(
        lines(WHOLE, &["model.layers=3"]),
        ["/graphs/p.toml:22: train.fanouts: 2 fanouts for 3 layers: one a layer"]
    );
}

#[test]
fn every_key_of_the_reference_can_be_set() {
    for key in reference::sections().into_iter().flat_map(|section| section.keys) {
        let value = key.example.as_ref().or(key.default.as_ref()).unwrap();
        let set = format!("{}={value}", key.path);
        let text = "[graph]\nnodes = 'n'\nedges = 'e'\n[model]\n[train]";
        if let Err(Error::Config(problems)) = parse(text, &[&set]) {
            for problem in problems.list() {
                let words = problem.message();
                assert!(
                    !words.contains("unknown") && !words.contains("expected") && !words.contains("must be"),
                    "{set}: {words}"
                );
            }
        }
    }
}

#[test]
fn a_resolved_pipeline_is_the_same_pipeline() {
    let generated = "[graph]\ngenerate = { nodes = 100, edges = 500 }\n[model]\nkind = 'gat'\nhidden = 64\n[train]\noptimizer = { kind = 'sgd' }";
    for text in [
        WHOLE,
        generated,
        "[graph]\ndataset = 'd'",
        "[graph]\nnodes = 'n'\nedges = 'e'\nsplit_fractions = [0.5, 0.25, 0.25]",
    ] {
        let config = parse(text, &["cluster.start_timeout=90s"]).unwrap();
        let resolved = config.resolved_toml();
        let again = Config::parse(&resolved, Path::new("/elsewhere/q.toml"), &[], &Registered::default());
        let again = again.unwrap_or_else(|error| panic!("{error}\n{resolved}"));
        assert_eq!(again.resolved_toml(), resolved);
        assert_eq!(again.fingerprint(), config.fingerprint());
        assert_eq!(Config { source: Source::default(), ..again }, Config { source: Source::default(), ..config });
    }
}

#[test]
fn fingerprints_follow_results_and_nothing_else() {
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
    let longer = parse(WHOLE, &["train.epochs=300"]).unwrap();
    assert_ne!(longer.fingerprint(), config.fingerprint());
    assert_eq!(longer.model_fingerprint(), config.model_fingerprint());
}

#[test]
fn more_processes_than_partitions_are_refused_where_the_file_says_parts() {
    let config = parse(WHOLE, &[]).unwrap();
    assert!(config.check_processes(2, 2).is_ok());
    let error = config.check_processes(3, 2).unwrap_err().to_string();
    assert!(error.starts_with("/graphs/p.toml:11: partition.parts: more processes (3) than partitions (2)"), "{error}");
}

#[test]
fn registered_names_are_welcome() {
    let registered = Registered { layers: vec!["mine".into()], ..Registered::default() };
    let text = with("kind = \"gcn\"", "kind = \"mine\"");
    assert!(Config::parse(&text, Path::new("p.toml"), &[], &registered).is_ok());
}

/// Whatever a file holds, the answer is a pipeline or a list of problems.
#[test]
fn no_text_makes_it_panic() {
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
fn every_method_of_this_version_can_be_made() {
    for method in partition::METHODS {
        let cut = Partition { method: (*method).into(), ..Partition::default() };
        assert_eq!(cut.builtin().map(|made| made.name().to_string()).as_deref(), Some(*method));
    }
    let known =
        |(_, methods): &(&str, &[&'static str])| methods.iter().all(|method| partition::METHODS.contains(method));
    assert!(partition::KEYS.iter().all(known));
}

#[test]
fn samplers_of_subgraphs_have_keys_of_their_own() {
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
        "sampler = 'cluster'\nclusters = 4\nclusters_per_batch = 5",
        &["train.clusters_per_batch: 5 of 4 clusters"],
    );
    one(sage, "clusters = 4", &["train.clusters: only \"cluster\" has it, not \"uniform\""]);
    one(sage, "sampler = 'saint-node'\nwalk_length = 4", &["train.walk_length: only \"saint-walk\" has it"]);
    one(sage, "sampler = 'saint-node'\nwalk_p = 2.0", &["train.walk_p: only \"saint-walk\" has it"]);
    one(sage, "sampler = 'saint-walk'\nwalk_q = 0.0", &["train.walk_q: must be more than 0", "but is 0"]);
    one(sage, "sampler = 'saint-walk'\nwalk_length = 0", &["train.walk_length: must be at least 1, but is 0"]);
    one(
        sage,
        "sampler = 'cluster'\nsample_coverage = 4",
        &["train.sample_coverage: only \"saint-node\", \"saint-edge\""],
    );
    one(sage, "sampler = 'saint-edge'\nreplace = true", &["train.replace: only \"uniform\" and \"weighted\""]);
    one("kind = 'gcn'", "sampler = 'saint-edge'", &["train.sampler: \"saint-edge\" weighs edges", "use \"cluster\""]);
    one("kind = 'mlp'", "sampler = 'cluster'", &["train.sampler:", "\"mlp\" reads none", "use \"uniform\""]);
    one("kind = 'gcn'", "sampler = 'fastgcn'", &["train.sampler: \"fastgcn\" weighs edges"]);
    one(sage, "sampler = 'fastgcn'\nfanouts = [50, -1]", &["train.fanouts: \"fastgcn\"", "use \"uniform\""]);
    one(sage, "sampler = 'cluster'\nschedule = 'partition-parallel'", &["train.sampler: \"partition-parallel\""]);
    for sampler in ["cluster", "saint-node", "saint-edge", "saint-walk"] {
        let config = parse(&text(sage, &format!("sampler = '{sampler}'")), &[]).unwrap();
        assert!(config.train.as_ref().unwrap().draws_subgraphs());
        assert!(
            Config::parse(&config.resolved_toml(), Path::new("/graphs/q.toml"), &[], &Registered::default()).is_ok()
        );
    }
    let train = parse(&text(sage, "sampler = 'cluster'"), &[]).unwrap().train.unwrap();
    assert_eq!((train.clusters([0, 500, 70].into_iter()), train.clusters([500].into_iter())), (70, 100));
    assert_eq!((train.clusters_per_batch(70), train.clusters_per_batch(4)), (10, 4));
}

#[test]
fn regression_has_metrics_of_its_own() {
    let text = |train: &str| format!("[graph]\nnodes = 'n'\nedges = 'e'\n[model]\n[train]\n{train}");
    let found = lines(&text("task = 'node-regression'\nmetric = 'accuracy'"), &[]);
    let expected = "p.toml:7: train.metric: \"node-regression\" has no \"accuracy\"; there is \"rmse\", \"mae\", \"r2\" and \"loss\"";
    assert_eq!(found, [format!("/graphs/{expected}")]);
    assert!(
        lines(&text("metric = 'r2'"), &[])[0].contains("\"node-classification\" has no \"r2\"; there is \"accuracy\"")
    );
    let scores = lines(&text("task = 'node-regression'\n[infer]\nscores = true"), &[]);
    assert!(scores[0].contains("infer.scores: a number has no probabilities"), "{scores:?}");
    for metric in ["rmse", "mae", "r2", "loss"] {
        parse(&text(&format!("task = 'node-regression'\nmetric = '{metric}'")), &[]).unwrap();
    }
    use super::Metric;
    assert!(Metric::Rmse.is_better(1.0, 2.0) && Metric::Mae.is_better(1.0, 2.0) && Metric::R2.is_better(2.0, 1.0));
}
