//! Whether batches read features where they lie, and have no copies of them.

use super::model::aggregates_features;
use super::{Layer, RowsInMemory, Sizes};
use crate::config::{Aggregator, Config, Schedule};

/// Returns whether one process sums the features of neighbors where they lie, if `rows` are in memory. That is decided by the model when training
/// begins; features in `bf16` are counted as if they were copied.
pub(super) fn reads_in_place(config: &Config, sizes: &Sizes, layers: &[Layer], rows: RowsInMemory) -> bool {
    let (Some(model), Some(train)) = (&config.model, &config.train) else { return false };
    let f32_bytes = sizes.nodes * sizes.features as u64 * 4;
    rows >= RowsInMemory::Features
        && sizes.parts.iter().map(|part| part.feature_bytes).sum::<u64>() >= f32_bytes
        && model.kind == "sage"
        && model.aggregator() == Aggregator::Mean
        && aggregates_features(model, layers)
        && matches!(train.schedule, Schedule::MiniBatch(_))
        && !train.device.is_gpu()
        && train.operators.is_empty()
        && !train.sampler.weighs_edges()
}
