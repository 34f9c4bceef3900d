//! The memory of a pass of training on a GPU, from the sizes of its blocks.

use super::Model;
use crate::layers::{Aggregation, LayerInfo};

/// The size of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockSize {
    /// Number of sources.
    pub sources: u64,
    /// Number of destinations.
    pub destinations: u64,
    /// Number of edges, without self-loops.
    pub edges: u64,
}

/// The memory of a pass of training on a GPU, in bytes.
///
/// `edges` is exact for most models. `rows` is an estimate: from half to twice the peak of most models, measured on blocks of some hundred nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassMemory {
    /// The arrays of edges that layers read. At most: self-loops that the edges have already are counted twice.
    pub edges: u64,
    /// About the rows of all layers that gradients need, and the gradients that exist at the same time. Without the input rows.
    pub rows: u64,
}

impl Model {
    /// Returns the memory of a forward and a backward pass in `f32`. Layer `i` reads block `of_layer[i]`; several layers may read one block.
    /// `learned`: whether the input rows get gradients.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn pass_memory(&self, blocks: &[BlockSize], of_layer: &[usize], learned: bool) -> PassMemory {
        let needs = self.edge_copies(learned);
        let mut edges = vec![0; blocks.len()];
        let (mut kept, mut most) = (0, 0);
        if let (Some(predictor), Some(&first)) = (&self.predictor, of_layer.first()) {
            kept += blocks[first].sources * (3 * predictor.hidden_dim() + self.layers[0].info().in_dim) as u64;
        }
        for (index, ((layer, need), &block)) in self.layers.iter().zip(needs.needs()).zip(of_layer).enumerate() {
            let (info, size) = (layer.info(), blocks[block]);
            // What one layer needs, others of the same kind need, too.
            edges[block] = need.bytes(size).max(edges[block]);
            let (of_layer, in_backward) = rows(&info, size, learned || index > 0);
            let output = size.destinations * info.out_dim as u64;
            let normed = if self.residual_norms[index].is_identity() { 0 } else { output };
            kept += of_layer + 4 * normed;
            most = most.max(in_backward + 2 * normed);
        }
        PassMemory { edges: edges.iter().sum(), rows: 4 * (kept + most) }
    }
}

/// Returns about how many numbers of a layer the gradients need, and how many gradients exist at the same time.
fn rows(info: &LayerInfo, size: BlockSize, learns_input: bool) -> (u64, u64) {
    let BlockSize { sources, destinations, edges } = size;
    let [input, sent, output, hidden] =
        [info.in_dim, info.sent_dim, info.out_dim, info.hidden_dim].map(|columns| columns as u64);
    // Rows before and after an activation.
    let sent_twice = matches!(info.aggregation, Some(Aggregation::Max)) && !info.sends_input;
    let sends = if info.sends_input { 0 } else { sources * sent * (1 + u64::from(sent_twice)) };
    let relations = match info.aggregation {
        Some(Aggregation::MeanByRelation { relations }) => relations as u64,
        _ => 1,
    };
    // After softmax and after dropout; GATv2's logits, too.
    let (weights, kept_weights) = match info.aggregation {
        Some(Aggregation::Attention { heads, dynamic, .. }) => {
            let weights = (edges + destinations) * heads as u64;
            (weights, (2 + u64::from(dynamic)) * weights)
        }
        _ => (0, 0),
    };
    let on_edges = if info.needs_edge_features { edges * sent } else { 0 };
    let own = if info.reads_own { destinations * input } else { 0 };
    let sums = destinations * sent * relations;
    let kept = sends + sums + own + destinations * (2 * output + 3 * hidden) + kept_weights + 2 * on_edges;
    let of_input = if learns_input { sources * input } else { 0 };
    // Rows that are sent as they are have gradients only if the input has.
    let of_sent = if learns_input || !info.sends_input { sources * sent + sums } else { 0 };
    let gradients = of_input + of_sent + destinations * 2 * (output + hidden) + 2 * weights + on_edges;
    (kept, gradients)
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use std::sync::Arc;

    use candle_core::{DType, Device, Tensor};
    use gnnflow_data::rng::{Key, Purpose};
    use gnnflow_kernels::block::Block;

    use super::*;
    use crate::cuda::reset_peak_memory;
    use crate::emulator::gpu;
    use crate::graph_block::GraphBlock;
    use crate::model::{ModelSpec, Registry};

    fn block(sources: u64, destinations: u64) -> Arc<GraphBlock> {
        let key = Key::new(4, Purpose::Sample).fold(destinations);
        let indices = (0..8 * destinations).map(|edge| key.below(edge, sources) as u32).collect();
        let indptr = (0..=destinations as u32).map(|row| 8 * row).collect();
        GraphBlock::new(Block::new(destinations as u32, sources as u32, indptr, indices))
    }

    /// Returns the bytes that a pass takes on the GPU: of edges, and of rows.
    fn measured(model: &Model, sizes: &[u64], device: &Device) -> [u64; 2] {
        let memory = || crate::device_memory(device).unwrap().unwrap();
        let blocks: Vec<Arc<GraphBlock>> = sizes.windows(2).map(|of| block(of[0], of[1])).collect();
        let (nodes, degrees) = (sizes[0] as usize, vec![8; sizes[0] as usize]);
        let x = Tensor::zeros((nodes, model.dims()[0]), DType::F32, device).unwrap();
        let before = memory();
        reset_peak_memory(device.as_cuda_device().unwrap());
        let outputs = model.forward(&blocks, &x, Some(&degrees), Some(Key::new(1, Purpose::Dropout))).unwrap();
        let gradients = outputs.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        drop((outputs, gradients));
        let (edges, peak) = (before.free - memory().free, memory().peak.unwrap() - (before.total - before.free));
        [edges, peak - edges - 4 * model.params().flat_len() as u64]
    }

    #[test]
    fn estimates_are_near_the_peak_of_a_gpu() {
        let Some(device) = gpu("model::pass_memory::tests::estimates_are_near_the_peak_of_a_gpu") else { return };
        for (kind, heads) in [("sage", 1), ("gcn", 1), ("gat", 4), ("gatv2", 4), ("gin", 1)] {
            for dims in [[64, 64, 16], [256, 32, 16]] {
                let mut spec = ModelSpec::new(kind, 2, dims[0], dims[1], dims[2]);
                (spec.heads, spec.dropout) = (heads, 0.3);
                let model = Model::build(&spec, &Registry::default(), &device, 5).unwrap();
                for sizes in [[500, 500, 500], [600, 250, 80]] {
                    let blocks: Vec<BlockSize> = sizes
                        .windows(2)
                        .map(|of| BlockSize { sources: of[0], destinations: of[1], edges: 8 * of[1] })
                        .collect();
                    let PassMemory { edges, rows } = model.pass_memory(&blocks, &[0, 1], false);
                    let [found_edges, found_rows] = measured(&model, &sizes, &device);
                    let of = format!("{kind} {dims:?} {sizes:?}: {edges} for {found_edges}, {rows} for {found_rows}");
                    // The driver rounds sizes up.
                    assert!(found_edges.abs_diff(edges) < 512, "{of}");
                    assert!(rows < 2 * found_rows && 2 * rows > found_rows, "{of}");
                }
            }
        }
    }
}
