//! Rules of samplers whose batches are subgraphs.

use super::super::model::{self, Model};
use super::super::train::{Schedule, SeedSplit, Train};
use super::Report;

/// What samplers of subgraphs have, and what they cannot do.
pub(super) fn subgraphs(train: &Train, model: &Model, report: &mut Report<'_>) {
    let sampler = train.sampler.as_str();
    for (key, samplers) in [
        ("clusters", &["cluster"][..]),
        ("clusters_per_batch", &["cluster"]),
        ("walk_length", &["saint-walk"]),
        ("walk_p", &["saint-walk"]),
        ("walk_q", &["saint-walk"]),
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
        if train.batch != Train::default().batch {
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
