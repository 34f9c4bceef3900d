//! Rules of link prediction.

use super::super::Spec;
use super::super::link::NegativeSampler;
use super::super::train::{Schedule, Task, Train};
use super::Report;

/// What link prediction asks of other keys, and what only it has.
pub(super) fn link(spec: &Spec, train: &Train, report: &mut Report<'_>) {
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
