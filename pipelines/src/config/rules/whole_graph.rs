//! Rules of training over the whole graph.

use std::net::SocketAddr;

use super::super::model::{Aggregator, JumpingKnowledge, Model, Norm};
use super::super::train::{Device, Mode, RowDtype, Schedule, SeedSplit, Train};
use super::super::{Config, Tensor, Topology, WhenGone};
use super::Report;

/// Keys that only whole graphs have.
const KEYS: [&str; 5] =
    ["train.mode", "train.staleness", "train.intervals", "train.edges_per_epoch", "train.row_dtype"];
/// Keys of sampled batches, which whole graphs have none of.
const SAMPLED: [&str; 8] = [
    "train.fanouts",
    "train.replace",
    "train.temporal",
    "train.window",
    "train.cache",
    "train.cache_policy",
    "train.average_every",
    "train.average_momentum",
];

/// Refuses tensor workers that cannot be had.
fn tensor(train: &Train, report: &mut Report<'_>) {
    let Some(tensor) = &train.tensor else { return };
    if !train.is_whole_graph() {
        let message = format!(
            "only \"{}\" and \"{}\" have tasks for tensor workers; leave it out",
            Schedule::FullGraph,
            Schedule::TensorParallel
        );
        return report.add("train.tensor", message);
    }
    match (tensor.workers, &tensor.hosts) {
        (None, None) if tensor.enlist.is_none() => report.add(
            "train.tensor",
            "give `workers`, how many to launch, `hosts`, where they listen, or `enlist`, where they come to",
        ),
        (None, None) if tensor.when_gone == WhenGone::Fail => report.add(
            "train.tensor.when_gone",
            "nobody has enlisted yet when a run begins: use \"local\", or have `workers` or `hosts` too",
        ),
        (Some(_), Some(_)) => report.add("train.tensor.hosts", "`workers` beside it: use one of them"),
        _ => {}
    }
    let hosts = tensor.hosts.iter().flatten().enumerate().map(|(i, host)| (format!("train.tensor.hosts[{i}]"), host));
    let enlist = tensor.enlist.iter().map(|host| ("train.tensor.enlist".to_owned(), host));
    for (key, host) in hosts.chain(enlist) {
        let port =
            host.rsplit_once(':').and_then(|(name, port)| (!name.is_empty()).then(|| port.parse::<u16>().ok())?);
        if port.is_none_or(|port| port == 0) {
            report.add(&key, format!("expected HOST:PORT, found {host:?}"));
        }
    }
    let any = |host: &str| host.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_unspecified());
    if let Some(host) = tensor.enlist.as_deref().filter(|host| any(host)) {
        let message = format!("{host} is no address that workers could reach: give the first process's own one");
        report.add("train.tensor.enlist", message);
    }
    if tensor.workers.is_none() {
        // Defaults are written into every resolved file.
        if tensor.threads != Tensor::default().threads {
            let message = "of workers that run elsewhere their own command line says so (`--threads`)";
            report.add("train.tensor.threads", message);
        }
        report.only(&["train.tensor.relaunch"], "only workers that are launched (`workers`) are started again");
    }
    if train.device != Device::Cpu {
        report.add(
            "train.device",
            "tensor workers compute on the processor, with other bits: use \"cpu\", or leave train.tensor out",
        );
    }
}

pub(super) fn whole_graph(config: &Config, train: &Train, model: &Model, report: &mut Report<'_>) {
    let word = train.schedule;
    tensor(train, report);
    if train.schedule != Schedule::TensorParallel {
        report.only(&["train.chunk_memory"], &format!("only \"{}\" has it", Schedule::TensorParallel));
    }
    if model.decoupled == Some(true) {
        decoupled(model, report);
    }
    if !train.is_whole_graph() {
        let message = format!("only \"{}\" and \"{}\" have it", Schedule::FullGraph, Schedule::TensorParallel);
        report.only(&KEYS, &message);
        return;
    }
    report.only(&SAMPLED, &format!("\"{word}\" samples nothing: every step is over the whole graph; leave it out"));
    // Defaults are written into every resolved file.
    if train.batch != Train::default().batch && !train.learns_edges() {
        report
            .add("train.batch", format!("\"{word}\" has no batches: every step is over the whole graph; leave it out"));
    }
    if train.sampler != Train::default().sampler {
        report.add("train.sampler", format!("\"{word}\" samples nothing; leave it out, or use \"mini-batch\""));
    }
    if train.seed_split == Some(SeedSplit::Even) {
        report.add("train.seed_split", format!("\"{word}\" trains a partition on its own nodes; leave it out"));
    }
    if config.partition.topology == Topology::Replicated {
        let message = match train.schedule {
            Schedule::TensorParallel => "\"tensor-parallel\" reads all edges everywhere by itself; leave it out",
            _ => "\"full-graph\" reads a partition's own edges only; leave it out",
        };
        report.add("partition.topology", message);
    }
    if train.schedule == Schedule::TensorParallel {
        report.only(&["train.staleness"], "only \"full-graph\" has it");
        if train.mode() == Mode::Async {
            report.add("train.mode", "\"tensor-parallel\" has no stale rows: use \"pipe\", or \"full-graph\"");
        }
    } else if train.mode() != Mode::Async {
        report.only(
            &["train.staleness"],
            &format!("only `mode = \"async\"` has it: in \"{}\" nothing is stale", train.mode()),
        );
    }
    if train.learns_edges() {
        edges(train, report);
    } else {
        let message = format!("\"{}\" learns from all training nodes in every epoch: leave it out", train.task);
        report.only(&["train.edges_per_epoch"], &message);
    }
    cannot(train, model, report);
    if train.row_dtype() == RowDtype::Bf16 {
        rounded(model, report);
    }
}

/// Refuses to round rows of which more is done than to add them up, or nothing.
fn rounded(model: &Model, report: &mut Report<'_>) {
    let why = match model.kind.as_str() {
        "gat" | "gatv2" => "weighs its neighbours' rows by what is in them",
        "sage" if model.aggregator == Some(Aggregator::Pool) => "takes the largest of its neighbours' numbers",
        "mlp" => "adds up no rows",
        _ => return,
    };
    let message = format!("{:?} {why}: leave it out, or use \"gcn\", or \"sage\" with another aggregator", model.kind);
    report.add("train.row_dtype", message);
}

/// What cannot be kept where edges are learnt from: all are, in every pass, and by results of one epoch.
fn edges(train: &Train, report: &mut Report<'_>) {
    if train.mode() == Mode::Async {
        let message = format!("edges are scored when all nodes have their results: use \"{}\"", Mode::Pipe);
        report.add("train.mode", message);
    }
    let [link, edge] = [
        train.link.as_ref().and_then(|link| link.exclude_training_targets),
        train.edge.as_ref().and_then(|edge| edge.exclude_training_targets),
    ];
    for (section, asked) in [("link", link), ("edge", edge)] {
        if asked == Some(true) {
            let message = format!(
                "a step of \"{}\" is over all edges, those too that it predicts: leave it out, or use \"{}\"",
                train.schedule,
                Schedule::MiniBatch
            );
            report.add(&format!("train.{section}.exclude_training_targets"), message);
        }
    }
}

/// Refuses what a model whose maps come before all propagations has no place for.
fn decoupled(model: &Model, report: &mut Report<'_>) {
    let jumps = model.jumping_knowledge != JumpingKnowledge::None;
    let between = [("residual", model.residual), ("norm", model.norm != Norm::None), ("jumping_knowledge", jumps)];
    for (key, _) in between.into_iter().filter(|(_, asked)| *asked) {
        report.add(
            &format!("model.{key}"),
            "a decoupled model learns nothing between its propagations; leave it out, or set `decoupled` to false",
        );
    }
    if model.decouples_attention() {
        let message = "the hidden layers of a decoupled `gat` have no attention: say `output_heads`, with which all its \
                       propagations attend, or set `decoupled` to false";
        report.only(&["model.heads"], message);
    }
}

/// Refuses layers that read features of edges, which only blocks have.
fn cannot(train: &Train, model: &Model, report: &mut Report<'_>) {
    let instead = match model.kind.as_str() {
        "gatv2" if model.edge_features == Some(true) => Some("it without `edge_features`"),
        "gine" => Some("\"gin\""),
        _ => None,
    };
    if let Some(instead) = instead {
        let message = format!(
            "{:?} reads features of edges, which \"{}\" does not have; use {instead}, or \"{}\"",
            model.kind,
            train.schedule,
            Schedule::MiniBatch
        );
        report.add("model.kind", message);
    }
}
