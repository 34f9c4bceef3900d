//! Rules of sampling on a GPU.

use super::super::fanout::Fanout;
use super::super::model::Model;
use super::super::sampler::Sampler;
use super::super::schedule::MiniBatch;
use super::super::train::Train;
use super::super::{Config, uses};
use super::report::Report;

/// The models that read nothing of a sampled batch but edges without columns, and features.
const SAMPLED_KINDS: [&str; 4] = ["sage", "gin", "gat", "gatv2"];

/// Refuses `device_sampling` if batches need anything that the GPU does not sample.
pub(super) fn device_sampling(
    config: &Config,
    train: &Train,
    model: &Model,
    options: &MiniBatch,
    report: &mut Report<'_>,
) {
    let by_type = train.fanouts.iter().flatten().any(|fanout| matches!(fanout, Fanout::ByType(_)));
    report.refuse(&["debug.fused_sampling"], "has no effect with `device_sampling`; remove this key");
    let key = report.option("device_sampling");
    if !train.device.is_gpu() && !config.debug.graph_on_device {
        return report.refuse(&[&key], "has no effect with `train.device = \"cpu\"`; remove this key");
    }
    let why = if !matches!(train.sampler, Sampler::Uniform(_)) {
        format!(
            "a GPU draws neighbors with equal probabilities, not by `{}`; remove this key, or use `uniform`",
            train.sampler
        )
    } else if by_type && uses::is_used("fanouts", train) {
        "a GPU does not draw by edge type; remove this key, or give one number per hop in train.fanouts".to_owned()
    } else if train.learns_edges() {
        "batches of edges leave out the edges that they predict, which a GPU does not; remove this key".to_owned()
    } else if !SAMPLED_KINDS.contains(&model.kind.as_str()) {
        let all = SAMPLED_KINDS.join(", ");
        format!(
            "`{}` may read degrees of nodes or columns of edges, which are not on the GPU, or no edges; remove this key, or use one of {all}",
            model.kind
        )
    } else if model.reads_edge_features() {
        "features of edges are not on the GPU; remove this key, or model.edge_features".to_owned()
    } else if model.embedding.is_some() {
        "the rows of `model.embedding` are read for the nodes of a batch before the GPU would sample them; remove one of them"
            .to_owned()
    } else if !train.operators.is_empty() {
        "`train.operators` read sampled batches before the GPU would sample them; remove one of them".to_owned()
    } else if options.device_cache.is_some_and(|bytes| bytes.0 == 0) {
        "batches that a GPU samples read their features there; remove `device_cache = 0`, or this key".to_owned()
    } else {
        return;
    };
    report.add(&key, why);
}
