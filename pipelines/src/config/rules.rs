//! Checks that involve several keys, and names of registered kinds.

mod device_sampling;
mod full_graph;
mod link;
mod report;
mod subgraphs;
mod train;

use self::report::{Report, known};
use super::check::of_other_kinds;
use super::checkpoint_every::CheckpointEvery;
use super::embedding::{Embedding, EmbeddingInit};
use super::generate::GenerateKind;
use super::graph::Graph;
use super::infer::EmbeddingDtype;
use super::sampler::Sampler;
use super::schedule::{Auto, Schedule};
use super::tree::Node;
use super::{Config, Parts, Registered, Tables, Train, model, partition, uses};
use crate::error::Problem;
use gnnflow_data::format::plural;
use gnnflow_data::source::is_url;
use std::time::Duration;

/// Why keys of the preparation are refused beside `graph.dataset`.
const PREPARED: &str = "has no effect on a `dataset` that is already prepared; remove this key";

/// Returns all problems of `config`, which is read from `root`. With `auto`, also returns the candidates that do not support
/// the pipeline, each with the reason.
pub(crate) fn of_schedules(
    config: &Config,
    root: &Node,
    registered: &Registered,
) -> (Vec<Problem>, Vec<(String, String)>) {
    let schedule = config.train.as_ref().map(|train| &train.schedule);
    let Some(Schedule::Auto(Auto { candidates, .. })) = schedule else {
        return (problems(config, root, "train.schedule", registered), Vec::new());
    };
    for (i, candidate) in candidates.iter().enumerate() {
        if candidates[..i].iter().any(|other| other.word() == candidate.word()) {
            let key = format!("train.schedule.candidates[{i}]");
            let message = format!("`{candidate}` is listed twice; list each schedule once");
            return (vec![Problem::new(root.place(&key), key, message)], Vec::new());
        }
    }
    let tried = candidates.iter().enumerate().map(|(i, candidate)| {
        let config = config.with_schedule(candidate.clone().into());
        let mut found = problems(&config, root, &format!("train.schedule.candidates[{i}]"), registered);
        let edges = |train: &&super::Train| train.is_full_graph() && train.learns_edges();
        if config.train.as_ref().filter(edges).is_some_and(|train| train.exclude_training_targets().is_none()) {
            // The default differs between mini-batch and full-graph training, so the choice would change the results.
            let message = "by default, mini-batch training hides the target edges and full-graph training does not; set \
                           `exclude_training_targets = false` to allow both";
            found.push(Problem::new(root.place("train.task"), "train.task", message.to_owned()));
        }
        (candidate.word(), found)
    });
    let tried: Vec<(&str, Vec<Problem>)> = tried.collect();
    // A problem of all candidates does not depend on the schedule.
    let same = |problem: &&Problem| {
        tried.iter().all(|(_, found)| {
            found.iter().any(|other| (&other.key, &other.message) == (&problem.key, &problem.message))
        })
    };
    let wrong: Vec<Problem> = tried[0].1.iter().filter(same).cloned().collect();
    if !wrong.is_empty() {
        return (wrong, Vec::new());
    }
    let refusal = |(schedule, problems): &(&str, Vec<Problem>)| {
        let first = problems.first().map(|problem| format!("{}: {}", problem.key, problem.message))?;
        Some(((*schedule).to_owned(), first))
    };
    let refusals: Vec<(String, String)> = tried.iter().filter_map(refusal).collect();
    if refusals.len() < tried.len() {
        return (Vec::new(), refusals);
    }
    let each: Vec<String> = refusals.iter().map(|(schedule, why)| format!("not \"{schedule}\": {why}")).collect();
    let key = "train.schedule";
    let message = format!("no candidate supports this pipeline: {}", each.join("; "));
    (vec![Problem::new(root.place(key), key, message)], Vec::new())
}

/// Returns all problems of `config`, which is read from `root`. `schedule` is the path of the schedule.
fn problems(config: &Config, root: &Node, schedule: &str, registered: &Registered) -> Vec<Problem> {
    let mut report = Report { root, schedule, problems: Vec::new() };
    name(config, &mut report);
    graph(config, &mut report);
    partition(config, registered, &mut report);
    stages(config, &mut report);
    metrics(config, &mut report);
    elastic(config, &mut report);
    infer(config, &mut report);
    recommendations(config, &mut report);
    model(config, registered, &mut report);
    train::train(config, registered, &mut report);
    report.problems
}

fn name(config: &Config, report: &mut Report<'_>) {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    if config.name.is_empty() || config.name.starts_with('.') || !config.name.chars().all(plain) {
        let message =
            format!("expected letters, digits, \"-\", \"_\" and \".\" (it names folders), found {:?}", config.name);
        report.add("name", message);
    }
}

fn graph(config: &Config, report: &mut Report<'_>) {
    const SOURCES: &str = "give either `nodes` and `edges`, or `generate`, or `dataset`";
    let two = || format!("the graph has two sources; {SOURCES}");
    let graph = &config.graph;
    match (graph.nodes.is_some() || graph.edges.is_some(), &graph.generate, graph.dataset.is_some()) {
        (false, None, false) => report.add("graph", format!("the graph has no source; {SOURCES}")),
        (true, None, false) if graph.edges.is_none() => report.add("graph.nodes", "`edges` is missing; give both"),
        (true, None, false) if graph.nodes.is_none() => report.add("graph.edges", "`nodes` is missing; give both"),
        (true, Some(_), _) => report.add("graph.generate", two()),
        (true, _, true) | (_, Some(_), true) => report.add("graph.dataset", two()),
        _ => {}
    }
    dataset_cache(graph, report);
    let by_type = [
        ("graph.columns.node_type", &graph.nodes, &graph.columns.node_type, "graph.nodes"),
        ("graph.columns.edge_type", &graph.edges, &graph.columns.edge_type, "graph.edges"),
    ];
    for (key, tables, column, tables_key) in by_type {
        if column.is_some() && tables.as_ref().is_some_and(Tables::are_by_type) {
            report.add(key, format!("{tables_key} has a table for each type; remove this key"));
        }
        if tables.as_ref().is_some_and(|tables| tables.paths().is_empty()) {
            report.add(tables_key, "it is empty; give the files of at least one type");
        }
    }
    if graph.dataset.is_some() && graph.nodes.is_none() && graph.edges.is_none() && graph.generate.is_none() {
        let keys = ["undirected", "duplicates", "self_loops", "columns", "normalize_features", "feature_dtype"];
        let more = [
            "split_fractions",
            "num_classes",
            "encode_like",
            "unknown_nodes",
            "isolated",
            "reverse_edges",
            "k_core",
            "largest_component",
        ];
        let keys: Vec<String> = keys.iter().chain(&more).map(|key| format!("graph.{key}")).collect();
        report.refuse(&keys.iter().map(String::as_str).collect::<Vec<_>>(), PREPARED);
        let keys = ["method", "parts", "seed", "out", "balance", "refine"].into_iter();
        let keys = keys.chain(partition::KEYS.iter().map(|(key, _)| *key)).map(|key| format!("partition.{key}"));
        report.refuse(&keys.collect::<Vec<_>>().iter().map(String::as_str).collect::<Vec<_>>(), PREPARED);
    }
    let (types, columns) =
        (graph.feature_dtype.0.len(), graph.columns.features.as_ref().map_or(1, |names| names.0.len()));
    if types != 1 && types != columns {
        let message = format!(
            "{} for {} (`columns.features`); use one type, or one for each column",
            plural(types, "type"),
            plural(columns, "feature column"),
        );
        report.add("graph.feature_dtype", message);
    }
    if graph.columns.src == graph.columns.dst {
        let message =
            "`src` names the same column, so every edge would be a self-loop; name the column of the other end";
        report.add("graph.columns.dst", message);
    }
    if graph.reverse_edges && graph.undirected {
        let message = "`undirected` adds the same edges, with the type of the forward edges; remove one of them";
        report.add("graph.reverse_edges", message);
    }
    if let Some(fractions) = &graph.split_fractions {
        let sum: f64 = fractions.iter().sum();
        if sum > 1.0 + 1e-9 {
            report.add("graph.split_fractions", format!("the fractions sum to {sum}, more than 1; lower them"));
        } else if fractions.first() == Some(&0.0) {
            report.add("graph.split_fractions", "no nodes to train with; raise the first fraction above 0");
        }
        report.refuse(&["graph.columns.split"], "`split_fractions` is given too; remove one of them");
    }
    if graph.generate.is_some() {
        report.refuse(&["graph.columns"], "has no effect on a generated graph; remove this key");
    }
    if let Some(generate) = &graph.generate {
        if generate.scale.is_some() {
            report.refuse(&["graph.generate.nodes"], "`scale` is given too; remove one of them");
        }
        if generate.edges.is_some() {
            report.refuse(&["graph.generate.edge_factor"], "`edges` is given too; remove one of them");
        }
        let (foreign, other): (&[&str], _) = match generate.kind {
            GenerateKind::Planted => (&["a", "b", "c"], GenerateKind::Rmat),
            GenerateKind::Rmat => (&["homophily", "degree_exponent", "signal"], GenerateKind::Planted),
        };
        for key in foreign {
            let message = of_other_kinds(generate.kind.word(), &[other.word()]);
            report.refuse(&[&format!("graph.generate.{key}")], &message);
        }
        if let Err(gnnflow_data::Error::Setting { key, reason }) = generate.generator().check() {
            // Checks of the generator that the bounds of a single key cannot express.
            report.add(&format!("graph.generate.{key}"), reason);
        }
    }
}

fn partition(config: &Config, registered: &Registered, report: &mut Report<'_>) {
    known("partition.method", &config.partition.method, partition::METHODS, &registered.partitioners, report);
    let method = config.partition.method.as_str();
    for (key, methods) in partition::KEYS {
        // These keys have no effect on a registered method either.
        if !methods.contains(&method) {
            report.refuse(&[&format!("partition.{key}")], &of_other_kinds(method, methods));
        }
    }
    method_memory(config, registered, report);
    if method == "file" && config.partition.file.is_none() {
        report.add("partition.method", "`partition.file` is missing; name the table of parts there");
    }
    if config.partition.parts != Parts::Auto {
        for key in ["worker_memory", "reserve", "workers"] {
            report.refuse(&[&format!("partition.{key}")], "has no effect without `parts = \"auto\"`; remove this key");
        }
    }
}

/// Refuses a folder of copies that cannot be used, and a URL that names no folder.
fn dataset_cache(graph: &Graph, report: &mut Report<'_>) {
    match (&graph.dataset, &graph.dataset_cache) {
        (None, Some(_)) => {
            report.add("graph.dataset_cache", "it has copies of `graph.dataset`, which is not set; remove this key")
        }
        (Some(dataset), Some(copies)) if dataset == copies => {
            report.add(
                "graph.dataset_cache",
                "it is the folder of `graph.dataset`, which is read in place; remove this key",
            );
        }
        _ => {}
    }
    let url = graph.dataset.as_ref().filter(|dataset| is_url(dataset));
    if url.is_some_and(|url| url.to_string_lossy().contains(['?', '#'])) {
        report.add("graph.dataset", "a URL with `?` or `#` names one file; give the URL of the dataset's folder");
    }
}

/// Refuses `partition.method_memory` if neither the method nor the sampler plans with it.
fn method_memory(config: &Config, registered: &Registered, report: &mut Report<'_>) {
    let (partition, train) = (&config.partition, config.train.as_ref());
    let clusters = |train: &Train| matches!(train.sampler, Sampler::Cluster(_)) && uses::is_used("sampler", train);
    if train.is_some_and(clusters) || registered.partitioners.contains(&partition.method) {
        return;
    }
    let plans = partition.partitioner(None).is_none_or(|method| method.memory_decides());
    let message = match config.graph.dataset.is_some() {
        true => PREPARED.to_owned(),
        false if !plans => format!("`{}` does not plan with memory; remove this key", partition.method),
        false => return,
    };
    report.refuse(&["partition.method_memory"], &message);
}

/// Refuses `elastic` without restarts, and its wait without it.
fn elastic(config: &Config, report: &mut Report<'_>) {
    let cluster = &config.cluster;
    if cluster.elastic && cluster.restarts == 0 {
        report.add("cluster.elastic", "the run goes on after a restart; set `cluster.restarts` to 1 or more");
    }
    if cluster.elastic
        && config.train.as_ref().is_some_and(|train| train.checkpoint_every == CheckpointEvery::Epochs(0))
    {
        report.add(
            "cluster.elastic",
            "the run goes on from checkpoints, and train.checkpoint_every is 0; set it to 1 or more",
        );
    }
    if cluster.elastic && cluster.elastic_wait.0 < Duration::from_secs(1) {
        report.add("cluster.elastic_wait", "a process needs this time to start again; set 1 s or more");
    }
    if !cluster.elastic {
        report.refuse(&["cluster.elastic_wait"], "has no effect without `elastic`; remove this key");
    }
}

/// Refuses an address of metrics that is not `host:port`.
fn metrics(config: &Config, report: &mut Report<'_>) {
    let Some(address) = &config.cluster.metrics else { return };
    let parts = address.rsplit_once(':').filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if parts.is_none() {
        report.add("cluster.metrics", format!("`{address}` is not HOST:PORT; write, for example, 127.0.0.1:9464"));
    }
}

fn stages(config: &Config, report: &mut Report<'_>) {
    match (&config.model, &config.train, &config.infer) {
        (None, Some(_), _) => report.add("train", "there is no model to train; add [model]"),
        (Some(_), None, _) => report.add("model", "the model is not trained; add [train]"),
        (None, None, Some(_)) => report.add("infer", "there is no trained model; add [model] and [train]"),
        _ => {}
    }
}

fn infer(config: &Config, report: &mut Report<'_>) {
    let Some(infer) = &config.infer else { return };
    let others = [("normalize", infer.normalize), ("embedding_dtype", infer.embedding_dtype != EmbeddingDtype::F32)];
    for (key, _) in others.into_iter().filter(|(_, given)| *given && !infer.embeddings) {
        report
            .add(&format!("infer.{key}"), "no embeddings are written; set infer.embeddings = true, or remove this key");
    }
}

/// Refuses recommendations without scores of links.
fn recommendations(config: &Config, report: &mut Report<'_>) {
    let predicts_links = config.train.as_ref().is_none_or(|train| train.predicts_links());
    if !predicts_links && config.infer.as_ref().is_some_and(|infer| infer.recommendations.is_some()) {
        report.add("infer.recommendations", "only link prediction scores pairs of nodes; remove this key");
    }
}

fn model(config: &Config, registered: &Registered, report: &mut Report<'_>) {
    let Some(model) = &config.model else { return };
    known("model.kind", &model.kind, model::KINDS, &registered.layers, report);
    if model::is_builtin(&model.kind) {
        for (key, kinds) in model::KEYS.iter().filter(|(_, kinds)| !kinds.contains(&model.kind.as_str())) {
            let message = match *key {
                "decoupled" => format!(
                    "`{}` has parameters between its propagations and cannot be decoupled; use `gcn` or `gat`, or `sgc` or \
                     `appnp`, which are always decoupled",
                    model.kind
                ),
                _ => of_other_kinds(&model.kind, kinds),
            };
            report.refuse(&[&format!("model.{key}")], &message);
        }
    }
    if model.eps.is_some_and(|eps| !eps.is_finite()) {
        report.add("model.eps", "expected a finite number");
    }
    if let Some(embedding) = &model.embedding {
        self::embedding(embedding, config, report);
    }
    let jumps = model.jumping_knowledge != model::JumpingKnowledge::None;
    let split = model.attends() && !model.decouples_attention() && (model.layers > 1 || jumps);
    if split && !model.hidden.is_multiple_of(model.heads()) {
        let key = if report.given("model.heads") { "model.heads" } else { "model.hidden" };
        let message = format!("{} heads do not divide `hidden` = {}; change one of them", model.heads(), model.hidden);
        report.add(key, message);
    }
    if jumps && model.attends() {
        report.refuse(
            &["model.output_heads"],
            "with jumping knowledge the output layer has no attention; remove this key",
        );
    }
    if model.norm != model::Norm::None && model.layers == 1 && !jumps {
        report.add("model.norm", "the only layer is the output layer, which is not normalized; use `none`");
    }
    // A resolved pipeline may have a value of 0, so the value counts, not its presence.
    if model.dropout > 0.0 && !model.reads_dropout() {
        let message = match model.is_linear_appnp() {
            true => {
                "a perceptron of one linear map reads only features; use `input_dropout` for them, or remove this key"
            }
            false => "the only layer reads features; use `input_dropout` for them, or remove this key",
        };
        // `sgc` has no such key.
        if model.kind != "sgc" {
            report.refuse(&["model.dropout"], message);
        }
    }
    if model.is_linear_appnp() {
        // In tasks on edges, the decoder reads rows of width `hidden`.
        let decoded = config.train.as_ref().is_some_and(|train| train.learns_edges());
        let keys: &[&str] = if decoded { &["model.activation"] } else { &["model.hidden", "model.activation"] };
        report.refuse(keys, "a perceptron of one layer has no hidden layer; remove this key");
    }
}

fn embedding(embedding: &Embedding, config: &Config, report: &mut Report<'_>) {
    if !embedding.is_async() {
        let message = "has no effect without `mode = \"async\"`; remove this key";
        report.refuse(&["model.embedding.staleness"], message);
    }
    if embedding.init == EmbeddingInit::Zeros {
        report.refuse(&["model.embedding.init_scale"], "`zeros` has no scale; remove this key");
    }
    if let Some(train) = &config.train {
        if train.cache().is_some() {
            let key = report.option("cache");
            report.add(&key, "learned rows change in every step and cannot be cached; remove this key");
        }
        if train.schedule.is_partition_parallel() {
            report.add("model.embedding", format!("`{}` has no learned rows; use `mini-batch`", train.schedule));
        }
        if train.is_full_graph() && embedding.is_async() {
            let message = format!(
                "`{}` updates each row once an epoch and has no stale rows; remove this key, or use `mini-batch`",
                train.schedule
            );
            report.add("model.embedding.mode", message);
        }
    }
}
