//! Rules of `[train]`.

use super::super::fanout::Fanout;
use super::super::metric::Metric;
use super::super::optimizer::{LrKind, OptimizerKind};
use super::super::train::{SAMPLERS, Schedule, SeedSplit, Task, Train};
use super::super::{Config, Halo, Registered, Topology, model};
use super::{Report, known, link, subgraphs, whole_graph};

pub(super) fn train(config: &Config, registered: &Registered, report: &mut Report<'_>) {
    let (Some(train), Some(model)) = (&config.train, &config.model) else { return };
    known("train.sampler", &train.sampler, SAMPLERS, &[], &registered.samplers, report);
    match train.schedule {
        Schedule::MiniBatch => report
            .only(&["train.average_every", "train.average_momentum"], "only \"partition-parallel\" averages weights"),
        Schedule::PartitionParallel => alone(config, report),
        // "auto" is held to the rules of what it may become.
        Schedule::FullGraph | Schedule::TensorParallel | Schedule::Auto => {}
    }
    whole_graph::whole_graph(config, train, model, report);
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
    link::link(config, train, report);
    link::edge(config, train, report);
    let built_in = SAMPLERS.contains(&train.sampler.as_str());
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
    subgraphs::subgraphs(train, model, report);
    if !built_in && train.fanouts.iter().flatten().any(|fanout| matches!(fanout, Fanout::ByType(_))) {
        report.add("train.fanouts", "a registered sampler takes one number a hop, not one for each edge type");
    }
    task(config, train, report);
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
fn task(config: &Config, train: &Train, report: &mut Report<'_>) {
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
    if regression && config.infer.as_ref().is_some_and(|infer| infer.scores) {
        report.add("infer.scores", "a number has no probabilities beside it; leave it out");
    }
}

/// Refuses what has no meaning where every partition trains by itself.
fn alone(config: &Config, report: &mut Report<'_>) {
    if config.partition.halo == Some(Halo::Ids) {
        let message = "\"partition-parallel\" needs the features of foreign neighbours: \"features\", or leave it out";
        report.add("partition.halo", message);
    }
    if config.partition.topology == Topology::Replicated {
        let message = "\"partition-parallel\" reads a partition's own edges only; leave it out";
        report.add("partition.topology", message);
    }
    if config.train.as_ref().is_some_and(|train| train.seed_split == Some(SeedSplit::Even)) {
        report.add("train.seed_split", "\"partition-parallel\" trains a partition on its own nodes; leave it out");
    }
    report.only(&["train.cache", "train.cache_policy"], "\"partition-parallel\" fetches nothing from other processes");
}
