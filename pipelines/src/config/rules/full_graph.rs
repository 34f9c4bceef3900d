//! Rules of full-graph training.

use std::net::SocketAddr;

use super::super::model::{Aggregator, JumpingKnowledge, Model, Norm};
use super::super::schedule::{FullGraphOptions, Mode, RowDtype, Schedule};
use super::super::train::Train;
use super::super::{Config, Device, Tensor, Topology, WhenGone};
use super::report::Report;

fn tensor(train: &Train, report: &mut Report<'_>) {
    let Some(tensor) = train.tensor_workers.as_ref().filter(|_| train.is_full_graph()) else { return };
    match (tensor.workers, &tensor.hosts) {
        (None, None) if tensor.accept.is_none() => report.add(
            "train.tensor_workers",
            "no workers; give `workers` (their number), `hosts` (their addresses) or `accept` (where they register)",
        ),
        (None, None) if tensor.when_gone == WhenGone::Fail => report.add(
            "train.tensor_workers.when_gone",
            "a run with `accept` begins without workers and would fail; use `local`, or give `workers` or `hosts` too",
        ),
        (Some(_), Some(_)) => report.add("train.tensor_workers.hosts", "`workers` is given too; remove one of them"),
        _ => {}
    }
    let hosts =
        tensor.hosts.iter().flatten().enumerate().map(|(i, host)| (format!("train.tensor_workers.hosts[{i}]"), host));
    let accept = tensor.accept.iter().map(|host| ("train.tensor_workers.accept".to_owned(), host));
    for (key, host) in hosts.chain(accept) {
        let port =
            host.rsplit_once(':').and_then(|(name, port)| (!name.is_empty()).then(|| port.parse::<u16>().ok())?);
        if port.is_none_or(|port| port == 0) {
            report.add(&key, format!("expected HOST:PORT, found {host:?}"));
        }
    }
    let any = |host: &str| host.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_unspecified());
    if let Some(host) = tensor.accept.as_deref().filter(|host| any(host)) {
        let message = format!("workers cannot reach the address {host}; give the address of the first process");
        report.add("train.tensor_workers.accept", message);
    }
    if tensor.workers.is_none() {
        // A resolved pipeline contains this key, so its value counts, not its presence.
        if tensor.threads != Tensor::default().threads {
            let message = "applies to launched workers (`workers`) only; use `--threads` of `gnnflow tensor-worker`";
            report.add("train.tensor_workers.threads", message);
        }
        let message = "only launched workers (`workers`) are started again; remove this key";
        report.refuse(&["train.tensor_workers.relaunch"], message);
    }
    let device = tensor.device(train.device);
    let is_numbered = matches!(tensor.device, Some(Device::CudaOfRank | Device::Cuda(1..)));
    if is_numbered && tensor.workers.is_none() {
        let message = "a GPU's number applies to launched workers (`workers`) only; use \"cuda\" here, and `--device` of `gnnflow tensor-worker`";
        report.add("train.tensor_workers.device", message);
    }
    if device.is_gpu() != train.device.is_gpu() && tensor.workers.is_none() && tensor.hosts.is_none() {
        let message = format!(
            "workers that register compute on `{}` and this run's processes on `{}`, with other rounding errors, and a run with `accept` begins \
             without workers; give `workers` or `hosts`, too, or use one kind of device",
            device.kind(),
            train.device.kind()
        );
        report.add("train.tensor_workers.accept", message);
    } else if device.is_gpu() != train.device.is_gpu() {
        // Results would depend on which of them computes a task.
        let why = format!(
            "tensor workers compute on `{}` and this run's processes on `{}`, with other rounding errors",
            device.kind(),
            train.device.kind()
        );
        if tensor.local_tasks {
            let message =
                format!("{why}, so processes must not compute tasks; set it to false, or use one kind of device");
            report.add("train.tensor_workers.local_tasks", message);
        }
        if tensor.when_gone == WhenGone::Local {
            let message = format!("{why}, so processes cannot replace lost workers; use `fail`, or one kind of device");
            report.add("train.tensor_workers.when_gone", message);
        }
    }
}

pub(super) fn full_graph(config: &Config, train: &Train, model: &Model, report: &mut Report<'_>) {
    tensor(train, report);
    if model.decoupled == Some(true) {
        decoupled(model, report);
    }
    let Some(options) = train.schedule.full_graph_options() else { return };
    if config.partition.topology == Topology::Replicated {
        let message = match train.schedule {
            Schedule::TensorParallel(_) => "`tensor-parallel` always replicates the topology; remove this key",
            _ => "`full-graph` reads only a partition's own edges; remove this key",
        };
        report.add("partition.topology", message);
    }
    if options.mode != Mode::Async {
        let message = format!("only `mode = \"async\"` has stale rows, not `{}`; remove this key", options.mode);
        report.refuse(&[&report.option("staleness")], &message);
    }
    let between = [("evaluate_every", train.evaluate_every), ("checkpoint_every", train.checkpoint_every.epochs())];
    if let Some((key, _)) = between.into_iter().find(|&(_, epochs)| epochs == 1 && options.staleness > 0) {
        let message = format!(
            "epochs overlap only between evaluations and checkpoints, and `train.{key}` is 1; set it to 2 or more (10 is usual), or \
             remove this key"
        );
        report.add(&report.option("staleness"), message);
    }
    if train.learns_edges() {
        edges(train, options, report);
    } else {
        let message = format!("`{}` learns from all training nodes in every epoch; remove this key", train.task);
        report.refuse(&[&report.option("edges_per_epoch")], &message);
    }
    edge_features(train, model, report);
    if options.row_dtype == RowDtype::Bf16 {
        rounded(model, report);
    }
}

/// Refuses `bf16` rows for layers that do more than sum their neighbors, or that have no neighbors.
fn rounded(model: &Model, report: &mut Report<'_>) {
    let why = match model.kind.as_str() {
        "gat" | "gatv2" => "computes weights from its neighbors' rows",
        "sage" if model.aggregator == Some(Aggregator::Pool) => "takes the maximum of its neighbors' rows",
        "mlp" => "adds up no rows",
        _ => return,
    };
    let message = format!(
        "`bf16` rows work only with layers that sum their neighbors, and `{}` {why}; use `f32`, `gcn`, or `sage` with \
         another aggregator",
        model.kind
    );
    report.add(&report.option("row_dtype"), message);
}

/// Checks tasks on edges. An epoch is over all edges, and scores them when the results of all nodes are complete.
fn edges(train: &Train, options: FullGraphOptions, report: &mut Report<'_>) {
    if options.mode == Mode::Async {
        let message = "tasks on edges need the results of all nodes of the same epoch; use `pipe`";
        report.add(&report.option("mode"), message);
    }
    let [link, edge] = [
        train.link.as_ref().and_then(|link| link.exclude_training_targets),
        train.edge.as_ref().and_then(|edge| edge.exclude_training_targets),
    ];
    for (section, exclude) in [("link", link), ("edge", edge)] {
        if exclude == Some(true) {
            let message =
                format!("`{}` cannot hide the target edges; remove this key, or use `mini-batch`", train.schedule);
            report.add(&format!("train.{section}.exclude_training_targets"), message);
        }
    }
}

/// Refuses keys that apply between propagations: a decoupled model has nothing there.
fn decoupled(model: &Model, report: &mut Report<'_>) {
    let jumps = model.jumping_knowledge != JumpingKnowledge::None;
    let between = [("residual", model.residual), ("norm", model.norm != Norm::None), ("jumping_knowledge", jumps)];
    for (key, _) in between.into_iter().filter(|(_, set)| *set) {
        report.add(
            &format!("model.{key}"),
            "a decoupled model has no layers between its propagations; remove this key, or set `decoupled` to false",
        );
    }
    if model.decouples_attention() {
        let message = "the hidden layers of a decoupled `gat` have no attention; use `output_heads`, the heads of its \
                       propagations, or set `decoupled` to false";
        report.refuse(&["model.heads"], message);
    }
}

/// Refuses layers that read features of edges: only sampled blocks have them.
fn edge_features(train: &Train, model: &Model, report: &mut Report<'_>) {
    let instead = match model.kind.as_str() {
        "gatv2" if model.edge_features == Some(true) => Some("`gatv2` without `edge_features`"),
        "gine" => Some("`gin`"),
        _ => None,
    };
    if let Some(instead) = instead {
        let message = format!(
            "`{}` reads features of edges, and `{}` does not support them; use {instead}, or `mini-batch`",
            model.kind, train.schedule
        );
        report.add("model.kind", message);
    }
}
