//! Rules of `[train]`.

use super::super::fanout::Fanout;
use super::super::metric::Metric;
use super::super::sampler::Sampler;
use super::super::schedule::Schedule;
use super::super::train::{Task, Train};
use super::super::{Config, Halo, Registered, Topology, model, uses};
use super::report::{Report, known};
use super::{device_sampling, full_graph, link, subgraphs};
use crate::error::did_you_mean;
use gnnflow_data::format::plural;

pub(super) fn train(config: &Config, registered: &Registered, report: &mut Report<'_>) {
    let (Some(train), Some(model)) = (&config.train, &config.model) else { return };
    known("train.sampler", train.sampler.word(), Sampler::KINDS, &registered.samplers, report);
    for name in &train.operators {
        if !registered.operators.contains(name) {
            let meant = did_you_mean(name, registered.operators.iter().map(String::as_str));
            let meant = meant.map_or_else(String::new, |meant| format!("; did you mean \"{meant}\"?"));
            report.add("train.operators", format!("no operator is registered as \"{name}\"{meant}"));
        }
    }
    for (key, when) in uses::TRAIN {
        if let Some(why) = when.refusal(train) {
            report.refuse(&[&format!("train.{key}")], &why);
        }
    }
    if let Some(why) = uses::Use::Sampled.refusal(train) {
        report.refuse(&["debug.fused_sampling"], &why);
    }
    if train.schedule.is_partition_parallel() {
        let why = "`partition-parallel` keeps nothing on the device; remove this key";
        report.refuse(&["debug.graph_on_device"], why);
    }
    match &train.schedule {
        Schedule::MiniBatch(options) => {
            let computes_on_gpu = train.device.is_gpu() || config.debug.graph_on_device;
            if options.device_cache.is_some() && !computes_on_gpu {
                let key = report.option("device_cache");
                report.refuse(&[&key], "has no effect with `train.device = \"cpu\"`; remove this key");
            }
            let in_host_memory = [
                ("model.embedding", config.model.as_ref().is_some_and(|model| model.embedding.is_some())),
                ("train.operators", !train.operators.is_empty()),
            ];
            for (other, _) in in_host_memory.into_iter().filter(|&(_, given)| given && options.device_cache.is_some()) {
                let key = report.option("device_cache");
                report.add(&key, format!("has no effect with `{other}`, which needs the rows of batches in the host's memory; remove one of them"));
            }
            if options.device_sampling {
                device_sampling::device_sampling(config, train, model, options, report);
            }
            if options.cache.is_none() {
                let key = report.option("cache_policy");
                report.refuse(&[&key], "has no effect without `cache`; give its size, or remove this key");
            }
        }
        Schedule::PartitionParallel(_) => partition_parallel(config, report),
        // The candidates of `auto` are checked one by one.
        Schedule::FullGraph(_) | Schedule::TensorParallel(_) | Schedule::Auto(_) => {}
    }
    full_graph::full_graph(config, train, model, report);
    if let Some(fanouts) = train.fanouts.as_ref().filter(|_| uses::is_used("fanouts", train)) {
        hops(fanouts, train, model.layers, report);
    }
    link::link(config, train, report);
    link::edge(config, train, report);
    let reads_weights = model.kind == "sage" && model.aggregator() == model::Aggregator::Mean;
    if train.sampler.weighs_edges() && uses::is_used("sampler", train) && !reads_weights {
        let instead = if train.draws_subgraphs() { "; use `cluster`" } else { "; use another sampler" };
        let message = format!(
            "`{}` weighs edges, and only `sage` with the mean aggregator reads weights{instead}",
            train.sampler
        );
        report.add("train.sampler", message);
    }
    subgraphs::subgraphs(train, model, report);
    task(config, train, report);
    classes(train, report);
    if train.evaluate_every == 0 {
        report.refuse(&["train.early_stop"], "`evaluate_every` is 0; set it to 1 or more, or remove this key");
    }
    if let Some(epochs) = train.early_stop.filter(|&epochs| epochs < train.evaluate_every) {
        let message =
            format!("{epochs} epochs are fewer than `evaluate_every` = {}; use at least as many", train.evaluate_every);
        report.add("train.early_stop", message);
    }
    if train.lr_schedule.warmup() >= train.epochs() {
        let unset = if train.epochs.is_none() { ", or set train.epochs" } else { "" };
        let message = format!("all {0} epochs are warm-up; use fewer than {0}{unset}", train.epochs());
        report.add("train.lr_schedule.warmup", message);
    }
}

fn hops(fanouts: &[Fanout], train: &Train, layers: usize, report: &mut Report<'_>) {
    let sampler = &train.sampler;
    if fanouts.len() != layers {
        let message =
            format!("{} for {}; give one per layer", plural(fanouts.len(), "fanout"), plural(layers, "layer"));
        report.add("train.fanouts", message);
    }
    if fanouts.iter().any(Fanout::is_nothing) {
        report.add("train.fanouts", "a fanout of 0 reads no neighbors; use an `mlp` model, or fewer layers");
    }
    let all = fanouts.iter().any(Fanout::takes_all);
    if all && matches!(sampler, Sampler::Uniform(options) | Sampler::Weighted(options) if options.replace) {
        let message = "all neighbors (a fanout of -1) cannot be drawn with replacement; remove this key";
        report.add("train.sampler.replace", message);
    }
    let by_type = fanouts.iter().any(|fanout| matches!(fanout, Fanout::ByType(_)));
    if by_type && (sampler.draws_layers() || matches!(sampler, Sampler::Registered(_))) {
        let message = format!("`{sampler}` takes one number per hop; replace the numbers by edge type");
        report.add("train.fanouts", message);
    }
    if all && *sampler == Sampler::FastGcn {
        let message = "`fastgcn` needs a positive number of nodes per hop; use `uniform` for all neighbors (-1)";
        report.add("train.fanouts", message);
    }
}

/// Checks the task against the other keys.
fn task(config: &Config, train: &Train, report: &mut Report<'_>) {
    let of_numbers = [Metric::Rmse, Metric::Mae, Metric::R2];
    let regression = train.task == Task::NodeRegression;
    let of_nodes = |metric: &Metric| *metric != Metric::Loss && !metric.is_of_links() && !train.predicts_links();
    if let Some(metric) = train.metric.filter(of_nodes)
        && of_numbers.contains(&metric) != regression
    {
        let use_instead =
            if regression { "`rmse`, `mae`, `r2`" } else { "`accuracy`, `micro-f1`, `macro-f1`, `roc-auc`, `pr-auc`" };
        let message = format!("`{}` has no `{metric}`; use {use_instead} or `loss`", train.task);
        report.add("train.metric", message);
    }
    if config.infer.as_ref().is_some_and(|infer| infer.scores && !infer.predictions) {
        report.add(
            "infer.scores",
            "scores are written with predictions; set `infer.predictions = true`, or remove this key",
        );
    }
    if regression && config.infer.as_ref().is_some_and(|infer| infer.scores) {
        report.add("infer.scores", "regression has no probabilities; remove this key");
    }
}

/// Checks the bounds of metrics of classes.
fn classes(train: &Train, report: &mut Report<'_>) {
    let options = train.classes();
    for (metric, key, given) in [
        (Metric::RecallAtPrecision, "min_precision", options.min_precision.is_some()),
        (Metric::PrecisionAtK, "top_k", options.top_k.is_some()),
    ] {
        if train.metric == Some(metric) && !given && train.task.has_classes() {
            report.add("train.metric", format!("`{metric}` needs a bound; give it in `train.classes.{key}`"));
        }
    }
    if train.task == Task::EdgeClassification {
        let message = "`edge-classification` has no weights of nodes; remove this key";
        report.refuse(&["train.classes.node_weights"], message);
    }
}

/// Checks `[partition]` for `partition-parallel`.
fn partition_parallel(config: &Config, report: &mut Report<'_>) {
    if config.partition.halo == Some(Halo::Ids) {
        let message = "`partition-parallel` needs the features of halo nodes; use `features`, or remove this key";
        report.add("partition.halo", message);
    }
    if config.partition.topology == Topology::Replicated {
        let message = "`partition-parallel` reads only a partition's own edges; remove this key";
        report.add("partition.topology", message);
    }
}
