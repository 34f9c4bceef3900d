//! Rules of samplers that draw subgraphs.

use super::super::model::Model;
use super::super::sampler::Sampler;
use super::super::schedule::{Schedule, SeedSplit};
use super::super::train::Train;
use super::report::Report;

/// Checks a sampler of subgraphs against the other keys.
pub(super) fn subgraphs(train: &Train, model: &Model, report: &mut Report<'_>) {
    let sampler = &train.sampler;
    if !sampler.draws_subgraphs() || train.is_full_graph() {
        return;
    }
    if let Sampler::Cluster(options) = sampler
        && let (Some(clusters), Some(batch)) = (options.clusters, options.clusters_per_batch)
        && batch > clusters
    {
        let message = format!("a batch cannot have {batch} of {clusters} clusters; use at most `clusters`");
        report.add("train.sampler.clusters_per_batch", message);
    }
    if !model.uses_edges() {
        let message =
            format!("`{sampler}` draws subgraphs for their edges, and `{}` reads no edges; use `uniform`", model.kind);
        report.add("train.sampler", message);
    }
    if let Schedule::MiniBatch(options) = &train.schedule
        && options.seed_split == Some(SeedSplit::Even)
    {
        let message = format!("with `{sampler}` a partition always trains on its own nodes; remove this key");
        report.add(&report.option("seed_split"), message);
    }
}
