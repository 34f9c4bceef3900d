//! Rules of tasks on edges.

use super::super::Config;
use super::super::link::NegativeSampler;
use super::super::train::{Task, Train};
use super::Report;

/// What link prediction asks of other keys, and what only it has.
pub(super) fn link(config: &Config, train: &Train, report: &mut Report<'_>) {
    if !train.predicts_links() {
        if let Some(metric) = train.metric.filter(|metric| metric.is_of_links()) {
            let message =
                format!("`{metric}` is a metric of ranked edges; only the task `{}` has it", Task::LinkPrediction);
            report.add("train.metric", message);
        }
        return;
    }
    if let Some(metric) = train.metric.filter(|metric| !metric.is_of_links()) {
        let message =
            format!("`{metric}` is no metric of ranked edges; use `mrr`, `hits-at-1`, `hits-at-3` or `hits-at-10`");
        report.add("train.metric", message);
    }
    of_edges(config, train, "links are predicted", report);
    let link = train.link();
    fractions("train.link.split_fractions", link.split_fractions.as_deref(), report);
    if link.eval_negative_dstnode.is_some() && link.num_negative_edges_eval.is_some() {
        report.add("train.link.num_negative_edges_eval", "`eval_negative_dstnode` is given too; remove one of them");
    }
    if link.top_k.is_some() && (link.eval_negative_dstnode.is_some() || link.num_negative_edges_eval.is_some()) {
        let message = "lists are made from all nodes; remove `eval_negative_dstnode` and `num_negative_edges_eval`";
        report.add("train.link.top_k", message);
    }
    if let Some(metric) = train.metric.filter(|metric| metric.is_of_lists() && link.top_k.is_none()) {
        report.add("train.metric", format!("`{metric}` is a metric of lists; give their length in `train.link.top_k`"));
    }
    if link.negative_sampler == NegativeSampler::InBatch && train.batch == 1 {
        let message =
            "a batch of one edge has no other edges to compare with; use a larger `train.batch`, or `uniform`";
        report.add("train.link.negative_sampler", message);
    }
}

/// What edge classification asks of other keys, and what only it has.
pub(super) fn edge(config: &Config, train: &Train, report: &mut Report<'_>) {
    if train.task != Task::EdgeClassification {
        return;
    }
    let graph = &config.graph;
    if graph.generate.is_some() {
        report.add("train.task", "generated edges have no labels; use another task, or a graph of your own");
    } else if graph.dataset.is_none() && graph.columns.edge_label.as_ref().is_none_or(String::is_empty) {
        let message =
            format!("`{}` learns labels of edges; name their column in `graph.columns.edge_label`", train.task);
        report.add("train.task", message);
    }
    of_edges(config, train, "edges are classified", report);
    fractions("train.edge.split_fractions", train.edge().split_fractions.as_deref(), report);
}

/// Rules between tasks on edges and other keys.
fn of_edges(config: &Config, train: &Train, what: &str, report: &mut Report<'_>) {
    if train.schedule.is_partition_parallel() {
        let message = format!("{what} from sampled batches of all partitions; use `mini-batch`");
        report.add("train.schedule", message);
    }
    if train.sampler.is_temporal() {
        let message = "`temporal` needs the times of training nodes, and edges have none; use another sampler";
        report.add("train.sampler", message);
    }
    report.only(
        &[&report.option("seed_split")],
        "training edges stay in the partition of their destination; remove this key",
    );
    // Resolved pipelines have the key too.
    if config.infer.as_ref().is_some_and(|infer| infer.scores) {
        let message = match train.predicts_links() {
            true => "the score of an edge is always written; remove this key",
            false => "probabilities of edges are not written; remove this key",
        };
        report.add("infer.scores", message);
    }
    if train.draws_subgraphs() {
        let message = format!("`{}` draws nodes, and {what} from batches of edges; use `uniform`", train.sampler);
        report.add("train.sampler", message);
    }
}

/// Shares of splits that cannot be. Without edges to validate with, the last epoch's model is kept.
fn fractions(key: &str, fractions: Option<&[f64]>, report: &mut Report<'_>) {
    let sum: f64 = fractions.unwrap_or_default().iter().sum();
    if sum > 1.0 + 1e-9 {
        report.add(key, format!("the shares sum to {sum}, more than 1"));
    }
    if fractions.is_some_and(|shares| shares.first() == Some(&0.0)) {
        report.add(key, "no edges to train with: its share is 0");
    }
}
