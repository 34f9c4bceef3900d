//! Rules of tasks on edges.

use super::super::Config;
use super::super::graph::HAS_SPLITS;
use super::super::link::NegativeSampler;
use super::super::train::{Task, Train};
use super::super::values::RankAmong;
use super::report::Report;

/// Checks the keys of link prediction and those that depend on them.
pub(super) fn link(config: &Config, train: &Train, report: &mut Report<'_>) {
    if !train.predicts_links() {
        if let Some(metric) = train.metric.filter(|metric| metric.is_of_links()) {
            let message =
                format!("`{metric}` is a metric of ranked edges; use it with the task `{}`", Task::LinkPrediction);
            report.add("train.metric", message);
        }
        return;
    }
    if let Some(metric) = train.metric.filter(|metric| !metric.is_of_links()) {
        let message =
            format!("`{metric}` is not a metric of ranked edges; use `mrr`, `hits-at-1`, `hits-at-3` or `hits-at-10`");
        report.add("train.metric", message);
    }
    of_edges(config, train, report);
    let link = train.link();
    fractions("train.link.split_fractions", link.split_fractions.as_deref(), config, report);
    if link.eval_negative_dstnode.is_some() && link.num_negative_edges_eval.is_some() {
        report.add("train.link.num_negative_edges_eval", "`eval_negative_dstnode` is given too; remove one of them");
    }
    let draws = matches!(link.num_negative_edges_eval, Some(RankAmong::Count(_)));
    if link.top_k.is_some() && (link.eval_negative_dstnode.is_some() || draws) {
        let message =
            "recommendations are drawn from all nodes; remove `eval_negative_dstnode` and `num_negative_edges_eval`";
        report.add("train.link.top_k", message);
    }
    if let Some(metric) = train.metric.filter(|metric| metric.is_of_lists() && link.top_k.is_none()) {
        let message = format!("`{metric}` is a metric of recommendations; give their number in `train.link.top_k`");
        report.add("train.metric", message);
    }
    if link.negative_sampler == NegativeSampler::InBatch && train.batch == 1 {
        let message =
            "a batch of one edge has no other edges to compare with; use a larger `train.batch`, or `uniform`";
        report.add("train.link.negative_sampler", message);
    }
}

/// Checks the keys of edge classification and those that depend on them.
pub(super) fn edge(config: &Config, train: &Train, report: &mut Report<'_>) {
    if train.task != Task::EdgeClassification {
        return;
    }
    let graph = &config.graph;
    if graph.generate.is_some() {
        report.add("train.task", "generated edges have no labels; use another task or another graph");
    } else if graph.dataset.is_none() && graph.columns.edge_label.as_ref().is_none_or(String::is_empty) {
        let message =
            format!("`{}` needs labels of edges; name their column in `graph.columns.edge_label`", train.task);
        report.add("train.task", message);
    }
    of_edges(config, train, report);
    fractions("train.edge.split_fractions", train.edge().split_fractions.as_deref(), config, report);
}

/// Checks that the other keys support tasks on edges.
fn of_edges(config: &Config, train: &Train, report: &mut Report<'_>) {
    if train.schedule.is_partition_parallel() {
        let message = format!("`{}` does not support tasks on edges; use `mini-batch`", train.schedule);
        report.add("train.schedule", message);
    }
    if train.sampler.is_temporal() {
        let message = "`temporal` uses the times of training nodes, not of training edges; use another sampler";
        report.add("train.sampler", message);
    }
    report.refuse(&[&report.option("seed_split")], "tasks on edges always use `partition`; remove this key");
    // A resolved pipeline contains this key, so its value counts, not its presence.
    if train.predicts_links() && config.infer.as_ref().is_some_and(|infer| infer.scores) {
        report.add("infer.scores", "the score of an edge is always written; remove this key");
    }
    if train.draws_subgraphs() {
        let message =
            format!("`{}` draws batches of nodes, and `{}` needs edges; use `uniform`", train.sampler, train.task);
        report.add("train.sampler", message);
    }
}

/// Checks fractions of edge splits. A validation fraction of 0 is allowed: the model of the last epoch is then used.
fn fractions(key: &str, fractions: Option<&[f64]>, config: &Config, report: &mut Report<'_>) {
    if fractions.is_some() && config.graph.splits_edges() {
        report.add(key, HAS_SPLITS);
    }
    let sum: f64 = fractions.unwrap_or_default().iter().sum();
    if sum > 1.0 + 1e-9 {
        report.add(key, format!("the fractions sum to {sum}, more than 1; lower them"));
    }
    if fractions.is_some_and(|fractions| fractions.first() == Some(&0.0)) {
        report.add(key, "no edges to train with; raise the first fraction above 0");
    }
}
