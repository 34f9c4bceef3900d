//! Rules that tie several keys together, and words that this version knows but cannot do yet.

use super::embedding::{Embedding, EmbeddingInit, SparseKind};
use super::fanout::Fanout;
use super::generate::GenerateKind;
use super::link::NegativeSampler;
use super::problem::{Problem, did_you_mean};
use super::train::{LrKind, Metric, OptimizerKind, Schedule, SeedSplit, Task, Train};
use super::tree::Node;
use super::{Halo, Parts, Registered, Spec, Topology, model, partition, train};

/// Collects problems, each at the place where its key was written.
struct Report<'a> {
    root: &'a Node,
    problems: Vec<Problem>,
}

impl Report<'_> {
    fn add(&mut self, key: &str, message: impl Into<String>) {
        self.problems.push(Problem::new(self.root.place(key), key, message));
    }

    fn given(&self, key: &str) -> bool {
        self.root.entry(key).is_some()
    }

    /// Refuses the keys among `keys` that were given.
    fn only(&mut self, keys: &[&str], message: &str) {
        for key in keys {
            if self.given(key) {
                self.add(key, message);
            }
        }
    }
}

/// Everything about `spec`, read from `root`, that cannot be.
pub(crate) fn broken(spec: &Spec, root: &Node, registered: &Registered) -> Vec<Problem> {
    let mut report = Report { root, problems: Vec::new() };
    name(spec, &mut report);
    graph(spec, &mut report);
    partition(spec, registered, &mut report);
    stages(spec, &mut report);
    model(spec, registered, &mut report);
    train(spec, registered, &mut report);
    report.problems
}

fn name(spec: &Spec, report: &mut Report<'_>) {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    if spec.name.is_empty() || spec.name.starts_with('.') || !spec.name.chars().all(plain) {
        let message =
            format!("expected letters, digits, \"-\", \"_\" and \".\" (it names folders), found {:?}", spec.name);
        report.add("name", message);
    }
}

fn graph(spec: &Spec, report: &mut Report<'_>) {
    const SOURCES: &str = "give either `nodes` and `edges`, or `generate`, or `dataset`";
    let graph = &spec.graph;
    match (graph.nodes.is_some() || graph.edges.is_some(), &graph.generate, graph.dataset.is_some()) {
        (false, None, false) => report.add("graph", format!("no graph: {SOURCES}")),
        (true, None, false) if graph.edges.is_none() => report.add("graph.nodes", "`edges` is missing beside it"),
        (true, None, false) if graph.nodes.is_none() => report.add("graph.edges", "`nodes` is missing beside it"),
        (true, Some(_), _) => report.add("graph.generate", format!("another source beside it: {SOURCES}")),
        (true, _, true) | (_, Some(_), true) => {
            report.add("graph.dataset", format!("another source beside it: {SOURCES}"))
        }
        _ => {}
    }
    if graph.dataset.is_some() && graph.nodes.is_none() && graph.edges.is_none() && graph.generate.is_none() {
        let settled = "has no effect on a `dataset` that is prepared already";
        let keys = ["undirected", "duplicates", "self_loops", "columns", "normalize_features", "feature_dtype"];
        let more = [
            "split_fractions",
            "num_classes",
            "unknown_nodes",
            "isolated",
            "reverse_edges",
            "k_core",
            "largest_component",
        ];
        let keys: Vec<String> = keys.iter().chain(&more).map(|key| format!("graph.{key}")).collect();
        report.only(&keys.iter().map(String::as_str).collect::<Vec<_>>(), settled);
        let keys = ["method", "parts", "seed", "out", "balance"].into_iter();
        let keys = keys.chain(partition::KEYS.iter().map(|(key, _)| *key)).map(|key| format!("partition.{key}"));
        report.only(&keys.collect::<Vec<_>>().iter().map(String::as_str).collect::<Vec<_>>(), settled);
    }
    if graph.reverse_edges && graph.undirected {
        let message = "`undirected` adds the same edges, without a type of their own: choose one";
        report.add("graph.reverse_edges", message);
    }
    if let Some(fractions) = &graph.split_fractions {
        let sum: f64 = fractions.iter().sum();
        if sum > 1.0 + 1e-9 {
            report.add("graph.split_fractions", format!("the shares sum to {sum}, more than 1"));
        } else if fractions.first() == Some(&0.0) {
            report.add("graph.split_fractions", "no train nodes: the first share is 0");
        }
        report.only(&["graph.columns.split"], "a split column and `split_fractions` exclude each other");
    }
    if graph.generate.is_some() {
        report.only(&["graph.columns"], "has no effect on a generated graph");
    }
    if let Some(generate) = &graph.generate {
        if generate.scale.is_some() {
            report.only(&["graph.generate.nodes"], "`nodes` and `scale` exclude each other");
        }
        if generate.edges.is_some() {
            report.only(&["graph.generate.edge_factor"], "`edges` and `edge_factor` exclude each other");
        }
        let (foreign, other): (&[&str], _) = match generate.kind {
            GenerateKind::Planted => (&["a", "b", "c"], GenerateKind::Rmat),
            GenerateKind::Rmat => (&["homophily", "degree_exponent", "signal"], GenerateKind::Planted),
        };
        for key in foreign {
            report.only(&[&format!("graph.generate.{key}")], &format!("only \"{other}\" has it"));
        }
        if let Err(gnnflow_data::Error::Setting { key, reason }) = generate.generator().check() {
            // The generator's own words for what no single key's bounds can say.
            report.add(&format!("graph.generate.{key}"), reason);
        }
    }
}

fn partition(spec: &Spec, registered: &Registered, report: &mut Report<'_>) {
    known("partition.method", &spec.partition.method, partition::METHODS, &[], &registered.partitioners, report);
    let method = spec.partition.method.as_str();
    for (key, methods) in partition::KEYS {
        // A registered method may be configured by whatever its program likes, but not by these.
        if !methods.contains(&method) {
            let have = methods.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
            report.only(&[&format!("partition.{key}")], &format!("only {have} has it, not \"{method}\""));
        }
    }
    if method == "file" && spec.partition.file.is_none() {
        report.add("partition.method", "`file` is missing beside it: where the parts stand");
    }
    if spec.partition.parts != Parts::Auto {
        for key in ["worker_memory", "reserve", "workers"] {
            report.only(&[&format!("partition.{key}")], "only `parts = \"auto\"` has a use for it");
        }
    }
}

fn stages(spec: &Spec, report: &mut Report<'_>) {
    match (&spec.model, &spec.train, &spec.infer) {
        (None, Some(_), _) => report.add("train", "there is no [model] to train"),
        (Some(_), None, _) => report.add("model", "there is no [train] for it"),
        (None, None, Some(_)) => report.add("infer", "there is no [model] and no [train] for it"),
        _ => {}
    }
}

fn model(spec: &Spec, registered: &Registered, report: &mut Report<'_>) {
    let Some(model) = &spec.model else { return };
    known("model.kind", &model.kind, model::KINDS, &[], &registered.layers, report);
    if model::is_builtin(&model.kind) {
        for (key, kinds) in model::KEYS.iter().filter(|(_, kinds)| !kinds.contains(&model.kind.as_str())) {
            let have = kinds.iter().map(|kind| format!("\"{kind}\"")).collect::<Vec<_>>().join(", ");
            report.only(&[&format!("model.{key}")], &format!("only {have} has it, not {:?}", model.kind));
        }
    }
    if model.eps.is_some_and(|eps| !eps.is_finite()) {
        report.add("model.eps", "expected a finite number");
    }
    if let Some(embedding) = &model.embedding {
        self::embedding(embedding, spec, report);
    }
    let jumps = model.jumping_knowledge != model::JumpingKnowledge::None;
    if model.attends() && (model.layers > 1 || jumps) && !model.hidden.is_multiple_of(model.heads()) {
        let key = if report.given("model.heads") { "model.heads" } else { "model.hidden" };
        report.add(key, format!("{} heads do not divide hidden = {}", model.heads(), model.hidden));
    }
    if jumps && model.attends() {
        report.only(&["model.output_heads"], "with jumping knowledge there is no output layer of attention");
    }
    if model.norm != model::Norm::None && model.layers == 1 && !jumps {
        report.add("model.norm", "the only layer is the output layer, which is not normalised");
    }
    if model.kind == "appnp" && model.mlp_layers() == 1 {
        report.only(&["model.hidden", "model.activation"], "a perceptron of one layer has nothing between its layers");
    }
}

fn embedding(embedding: &Embedding, spec: &Spec, report: &mut Report<'_>) {
    if !embedding.is_async() {
        let message = "only `mode = \"async\"` has it: in \"sync\" no row is ever behind";
        report.only(&["model.embedding.staleness"], message);
    }
    if embedding.init == EmbeddingInit::Zeros {
        report.only(&["model.embedding.init_scale"], "\"zeros\" have none");
    }
    let optimizer = &embedding.optimizer;
    let word = optimizer.kind.word();
    if optimizer.kind != SparseKind::Adam {
        report.only(&["model.embedding.optimizer.betas"], &format!("only \"adam\" has it, not {word:?}"));
    }
    if optimizer.kind == SparseKind::Sgd {
        report.only(&["model.embedding.optimizer.eps"], "only \"adam\" and \"adagrad\" have it, not \"sgd\"");
    }
    if let Some(beta) = optimizer.betas.iter().flatten().find(|beta| !(0.0..1.0).contains(*beta)) {
        let message = format!("must be at least 0 and less than 1, but one is {beta}");
        report.add("model.embedding.optimizer.betas", message);
    }
    if let Some(train) = &spec.train {
        if train.cache.is_some() {
            report.add("train.cache", "learnt rows change in every step and cannot be kept: leave it out");
        }
        if train.schedule != Schedule::MiniBatch {
            let message = format!("\"{}\" cannot learn rows of nodes; use \"{}\"", train.schedule, Schedule::MiniBatch);
            report.add("model.embedding", message);
        }
    }
}

fn train(spec: &Spec, registered: &Registered, report: &mut Report<'_>) {
    let (Some(train), Some(model)) = (&spec.train, &spec.model) else { return };
    known("train.sampler", &train.sampler, train::SAMPLERS, &[], &registered.samplers, report);
    match train.schedule {
        Schedule::MiniBatch => report
            .only(&["train.average_every", "train.average_momentum"], "only \"partition-parallel\" averages weights"),
        Schedule::PartitionParallel => alone(spec, report),
        other => {
            let (first, second) = (Schedule::MiniBatch, Schedule::PartitionParallel);
            let message = format!("\"{other}\" is not in this version yet; use \"{first}\" or \"{second}\"");
            report.add("train.schedule", message);
        }
    }
    if let Some(fanouts) = train.fanouts.as_ref().filter(|_| !train.draws_subgraphs()) {
        if fanouts.len() != model.layers {
            report.add("train.fanouts", format!("{} fanouts for {} layers: one a layer", fanouts.len(), model.layers));
        }
        if fanouts.iter().any(Fanout::is_nothing) {
            report.add("train.fanouts", "a fanout of 0 reads no neighbours: use a \"mlp\" model, or fewer layers");
        }
        if train.replace && fanouts.iter().any(Fanout::takes_all) {
            report.add("train.replace", "all neighbours (a fanout of -1) cannot be drawn with replacement");
        }
    }
    link(spec, train, report);
    let built_in = train::SAMPLERS.contains(&train.sampler.as_str());
    if train.replace && built_in && !["uniform", "weighted"].contains(&train.sampler.as_str()) {
        report.add("train.replace", format!("only \"uniform\" and \"weighted\" have it, not {:?}", train.sampler));
    }
    if train.sampler != "temporal" {
        report.only(&["train.temporal"], &format!("only \"temporal\" has it, not {:?}", train.sampler));
    }
    if ["ladies", "fastgcn"].contains(&train.sampler.as_str()) {
        let by_type = train.fanouts.iter().flatten().any(|fanout| matches!(fanout, Fanout::ByType(_)));
        if by_type {
            let message = format!("{:?} takes one number a hop, not one for each edge type", train.sampler);
            report.add("train.fanouts", message);
        }
        if train.sampler == "fastgcn" && train.fanouts.iter().flatten().any(Fanout::takes_all) {
            let message = "\"fastgcn\" draws so many nodes a hop, and all neighbours (-1) are no number: use \"uniform\" for those";
            report.add("train.fanouts", message);
        }
        if model.kind != "sage" || model.aggregator() != model::Aggregator::Mean {
            let message =
                format!("{:?} weighs edges, and only \"sage\" with the mean aggregator reads weights", train.sampler);
            report.add("train.sampler", message);
        }
    }
    subgraphs(train, model, report);
    if !built_in && train.fanouts.iter().flatten().any(|fanout| matches!(fanout, Fanout::ByType(_))) {
        report.add("train.fanouts", "a registered sampler takes one number a hop, not one for each edge type");
    }
    task(spec, train, report);
    if train.evaluate_every == 0 {
        report.only(&["train.early_stop"], "nothing to stop by: `evaluate_every` is 0");
    }
    if let Some(epochs) = train.early_stop.filter(|&epochs| epochs < train.evaluate_every) {
        let message = format!("{epochs} epochs are fewer than `evaluate_every` = {}", train.evaluate_every);
        report.add("train.early_stop", message);
    }
    if train.cache.is_none() {
        report.only(&["train.cache_policy"], "nothing is cached: give `cache` its size");
    }
    let schedule = &train.lr_schedule;
    let word = schedule.kind.word();
    for (key, kinds) in [
        ("every", &[LrKind::Step][..]),
        ("gamma", &[LrKind::Step, LrKind::Exponential]),
        ("end", &[LrKind::Cosine, LrKind::Linear]),
    ] {
        if !kinds.contains(&schedule.kind) {
            let having: Vec<String> = kinds.iter().map(|kind| format!("{:?}", kind.word())).collect();
            let message = format!("only {} has it, not {word:?}", having.join(" or "));
            report.only(&[&format!("train.lr_schedule.{key}")], &message);
        }
    }
    if schedule.warmup >= train.epochs {
        let message = format!("{} epochs of warm-up leave nothing of {} epochs", schedule.warmup, train.epochs);
        report.add("train.lr_schedule.warmup", message);
    }
    let optimizer = &train.optimizer;
    if optimizer.kind == OptimizerKind::Sgd {
        let message = "only \"adam\" and \"adamw\" have it, not \"sgd\"";
        report.only(&["train.optimizer.betas", "train.optimizer.eps"], message);
    } else {
        let message = format!("only \"sgd\" has it, not {:?}", optimizer.kind.word());
        report.only(&["train.optimizer.momentum"], &message);
    }
    if let Some(beta) = optimizer.betas.iter().flatten().find(|beta| !(0.0..1.0).contains(*beta)) {
        report.add("train.optimizer.betas", format!("must be at least 0 and less than 1, but one is {beta}"));
    }
}

/// What goes with what is learnt.
fn task(spec: &Spec, train: &train::Train, report: &mut Report<'_>) {
    let of_numbers = [Metric::Rmse, Metric::Mae, Metric::R2];
    let regression = train.task == Task::NodeRegression;
    let of_nodes = |metric: &Metric| *metric != Metric::Loss && !metric.is_of_links() && !train.predicts_links();
    if let Some(metric) = train.metric.filter(of_nodes)
        && of_numbers.contains(&metric) != regression
    {
        let use_instead = if regression {
            "\"rmse\", \"mae\", \"r2\""
        } else {
            "\"accuracy\", \"micro-f1\", \"macro-f1\", \"roc-auc\""
        };
        let message = format!("\"{}\" has no {:?}; there is {use_instead} and \"loss\"", train.task, metric.word());
        report.add("train.metric", message);
    }
    if regression && spec.infer.as_ref().is_some_and(|infer| infer.scores) {
        report.add("infer.scores", "a number has no probabilities beside it; leave it out");
    }
}

/// What samplers of subgraphs have, and what they cannot do.
fn subgraphs(train: &train::Train, model: &model::Model, report: &mut Report<'_>) {
    let sampler = train.sampler.as_str();
    for (key, samplers) in [
        ("clusters", &["cluster"][..]),
        ("clusters_per_batch", &["cluster"]),
        ("walk_length", &["saint-walk"]),
        ("sample_coverage", &["saint-node", "saint-edge", "saint-walk"]),
    ] {
        if !samplers.contains(&sampler) {
            let having = samplers.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
            report.only(&[&format!("train.{key}")], &format!("only {having} has it, not {sampler:?}"));
        }
    }
    if !train.draws_subgraphs() {
        return;
    }
    let size = if sampler == "cluster" { "`clusters` and `clusters_per_batch`" } else { "`batch`" };
    let message = format!(
        "{sampler:?} has no fanouts: all layers read all edges between a batch's nodes, whose number {size} says"
    );
    report.only(&["train.fanouts"], &message);
    if train.seed_split == Some(SeedSplit::Even) {
        let message = format!("{sampler:?} trains a partition on its own nodes; leave it out");
        report.add("train.seed_split", message);
    }
    if sampler == "cluster" {
        let message = "\"cluster\" makes batches of clusters: use `clusters_per_batch`";
        // Its default is written into every resolved file.
        if train.batch != train::Train::default().batch {
            report.only(&["train.batch"], message);
        }
        if let (Some(clusters), Some(batch)) = (train.clusters, train.clusters_per_batch)
            && batch > clusters
        {
            let message = format!("{batch} of {clusters} clusters: use at most `clusters`");
            report.add("train.clusters_per_batch", message);
        }
    } else if model.kind != "sage" || model.aggregator() != model::Aggregator::Mean {
        let message = format!(
            "{sampler:?} weighs edges, and only \"sage\" with the mean aggregator reads weights; use \"cluster\""
        );
        report.add("train.sampler", message);
    }
    if !model.uses_edges() {
        let message = format!(
            "{sampler:?} draws nodes for the edges between them, and {:?} reads none; use \"uniform\"",
            model.kind
        );
        report.add("train.sampler", message);
    }
    if train.schedule == Schedule::PartitionParallel {
        let message =
            format!("\"partition-parallel\" samples by hops, not {sampler:?}; use \"uniform\", or \"mini-batch\"");
        report.add("train.sampler", message);
    }
}

/// Refuses what has no meaning where every partition trains by itself.
fn alone(spec: &Spec, report: &mut Report<'_>) {
    if spec.partition.halo == Some(Halo::Ids) {
        let message = "\"partition-parallel\" needs the features of foreign neighbours: \"features\", or leave it out";
        report.add("partition.halo", message);
    }
    if spec.partition.topology == Topology::Replicated {
        let message = "\"partition-parallel\" reads a partition's own edges only; leave it out";
        report.add("partition.topology", message);
    }
    if spec.train.as_ref().is_some_and(|train| train.seed_split == Some(SeedSplit::Even)) {
        report.add("train.seed_split", "\"partition-parallel\" trains a partition on its own nodes; leave it out");
    }
    report.only(&["train.cache", "train.cache_policy"], "\"partition-parallel\" fetches nothing from other processes");
}

/// What link prediction asks of other keys, and what only it has.
fn link(spec: &Spec, train: &Train, report: &mut Report<'_>) {
    if !train.predicts_links() {
        let message = format!("only `task = \"{}\"` has it, not \"{}\"", Task::LinkPrediction, train.task);
        report.only(&["train.link"], &message);
        if let Some(metric) = train.metric.filter(|metric| metric.is_of_links()) {
            let message = format!("\"{metric}\" is of ranked edges: only `task = \"{}\"` has it", Task::LinkPrediction);
            report.add("train.metric", message);
        }
        return;
    }
    if let Some(metric) = train.metric.filter(|metric| !metric.is_of_links()) {
        let message =
            format!("\"{metric}\" is not of ranked edges; use \"mrr\", \"hits-at-1\", \"hits-at-3\" or \"hits-at-10\"");
        report.add("train.metric", message);
    }
    if train.schedule == Schedule::PartitionParallel {
        let message = format!("links are predicted from sampled batches: use \"{}\"", Schedule::MiniBatch);
        report.add("train.schedule", message);
    }
    if train.sampler == "temporal" {
        report
            .add("train.sampler", "\"temporal\" goes by the times of training nodes, and links have none: use another");
    }
    report.only(&["train.seed_split"], "training edges stay with the partition where they end");
    // Resolved pipelines have the key too.
    if spec.infer.as_ref().is_some_and(|infer| infer.scores) {
        report.add("infer.scores", "edges have one score, which is always written");
    }
    if train.draws_subgraphs() {
        let message =
            format!("{:?} draws nodes, and links are predicted from batches of edges: use \"uniform\"", train.sampler);
        report.add("train.sampler", message);
    }
    let link = train.link();
    if let Some(fractions) = &link.split_fractions {
        let sum: f64 = fractions.iter().sum();
        if sum > 1.0 + 1e-9 {
            report.add("train.link.split_fractions", format!("the shares sum to {sum}, more than 1"));
        }
        for (share, word) in fractions.iter().zip(["train", "validation"]).filter(|(share, _)| **share == 0.0) {
            report.add("train.link.split_fractions", format!("no edges to {word} with: its share is {share}"));
        }
    }
    if link.negative_sampler == NegativeSampler::InBatch && train.batch == 1 {
        let message =
            "the only edge of a batch has no others to be compared with: use a larger `train.batch`, or \"uniform\"";
        report.add("train.link.negative_sampler", message);
    }
}

/// Refuses a name that is neither built in nor registered.
fn known(key: &str, name: &str, built_in: &[&str], to_come: &[&str], registered: &[String], report: &mut Report<'_>) {
    let all = || built_in.iter().copied().chain(registered.iter().map(String::as_str));
    let listed = || all().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    if all().any(|known| known == name) {
        return;
    }
    if to_come.contains(&name) {
        return report.add(key, format!("\"{name}\" is not in this version yet; there is {}", listed()));
    }
    let meant = did_you_mean(name, all()).map_or_else(String::new, |meant| format!("; did you mean \"{meant}\"?"));
    report.add(key, format!("expected one of {}, or a registered name, found \"{name}\"{meant}", listed()));
}
