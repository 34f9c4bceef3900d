//! The inputs of a batch's pass. On a GPU, they are copied to it before the pass, on another thread, or the GPU samples the batch then.

use std::sync::Arc;

use candle_core::Tensor;
use gnnflow_dataflow::batch::edge_rows::EdgeRows;
use gnnflow_dataflow::batch::mini_batch::{BatchKey, MiniBatch};
use gnnflow_kernels::block::Block;
use gnnflow_nn::tensors::tensor;
use gnnflow_nn::{GraphBlock, SampledBatch, Upload, Uploaded};
use sha2::{Digest, Sha256};

use super::Passes;
use super::held_rows::BatchOnDevice;
use super::passes::BatchRows;
use crate::error::Error;

/// A batch whose inputs are ready, or the reason why they are not.
pub(crate) struct ReadyBatch {
    pub(super) batch: MiniBatch,
    pub(super) inputs: Result<Inputs, Error>,
}

/// The inputs of a batch's pass.
pub(super) struct Inputs {
    /// The end of asynchronous copies, for which the pass must wait.
    pub(super) uploaded: Option<Uploaded>,
    /// The blocks of the layers, from the input on.
    pub(super) blocks: Vec<Arc<GraphBlock>>,
    /// Its feature rows, if they are on a GPU.
    pub(super) rows: OnDevice,
    /// SHA-256 of the batch; zeros if blocks are not hashed.
    pub(super) digest: [u8; 32],
}

/// What is on a GPU of the feature rows of a batch's nodes.
pub(super) enum OnDevice {
    /// Nothing.
    Nothing,
    /// The rows.
    Rows(Tensor),
    /// Rows that all batches read, and the others.
    Held(BatchOnDevice),
}

/// An item with the key of its batch.
pub(crate) trait Keyed {
    fn key(&self) -> BatchKey;
}

impl Keyed for MiniBatch {
    fn key(&self) -> BatchKey {
        self.key
    }
}

impl Keyed for ReadyBatch {
    fn key(&self) -> BatchKey {
        self.batch.key
    }
}

impl Passes {
    /// Copies the edges of a batch to the model's device, if it is a GPU, and its feature rows. If the device samples, it samples the batch first.
    pub(crate) fn ready(&self, mut batch: MiniBatch) -> ReadyBatch {
        let inputs = if batch.num_seeds == 0 {
            // There is no pass.
            Ok(Inputs { uploaded: None, blocks: Vec::new(), rows: OnDevice::Nothing, digest: [0; 32] })
        } else {
            self.inputs(&mut batch)
        };
        ReadyBatch { batch, inputs }
    }

    fn inputs(&self, batch: &mut MiniBatch) -> Result<Inputs, Error> {
        // Without the model, since a step of the optimizer waits for its readers.
        let (copies, device) = (&self.edge_copies, self.edge_copies.device());
        let (held, upload) = (self.rows().clone(), self.upload());
        let sampler = self.sampler().clone();
        let sampled = sampler.map(|sampler| sampler.sample(batch)).transpose()?;
        if let Some(sampled) = &sampled {
            self.read_back(batch, sampled, &held)?;
        }
        let digest = if self.hash_blocks { digest(batch) } else { [0; 32] };
        let blocks = match &sampled {
            Some(sampled) => sampled.blocks().iter().rev().cloned().collect(),
            None => {
                let sampled = std::mem::take(&mut batch.blocks);
                blocks(sampled, &batch.edges, batch.num_seeds, copies.layers(), self.uses_edges)
            }
        };
        copies.copy(&blocks, (!batch.degrees.is_empty()).then_some(&batch.degrees[..]), upload)?;
        let rows = match held {
            BatchRows::OnDevice(rows) => {
                let (rows, counts) = match sampled.filter(|_| rows.has_all()) {
                    Some(sampled) => rows.of_sampled(&sampled),
                    None => rows.of_batch(batch, upload)?,
                };
                let mut all = self.held_counts();
                all.hits += counts.hits;
                all.misses += counts.misses;
                OnDevice::Held(rows)
            }
            // Learned rows become variables of the pass.
            BatchRows::InBatch if !device.is_cpu() && !self.learns_rows => {
                let features = std::mem::take(&mut batch.features);
                OnDevice::Rows(match upload {
                    Some(upload) => upload.rows(&features, batch.nodes.len())?,
                    None => tensor(features, batch.nodes.len(), device)?,
                })
            }
            BatchRows::InBatch | BatchRows::InPlace(..) => OnDevice::Nothing,
        };
        let uploaded = upload.map(Upload::end).transpose()?;
        Ok(Inputs { uploaded, blocks, rows, digest })
    }

    /// Copies what the host reads of a batch that the device has sampled: its nodes, if rows of some are not on the device; nodes and blocks, if they are
    /// hashed.
    fn read_back(&self, batch: &mut MiniBatch, sampled: &SampledBatch, held: &BatchRows) -> Result<(), Error> {
        let has_all = matches!(held, BatchRows::OnDevice(rows) if rows.has_all());
        if self.hash_blocks || !has_all {
            batch.nodes = sampled.nodes().to_vec1().map_err(gnnflow_nn::Error::from)?;
        }
        if let BatchRows::OnDevice(rows) = held {
            rows.read_ahead(&batch.nodes);
        }
        if self.hash_blocks {
            sampled.blocks().iter().try_for_each(|block| block.read_back())?;
            batch.blocks = sampled.blocks().iter().map(|block| block.block().clone()).collect();
        }
        Ok(())
    }
}

/// Returns the blocks of `layers` layers, from the input on. Layers may share one block. Blocks have no edges if the model reads none.
pub(super) fn blocks(
    sampled: Vec<Block>,
    edges: &EdgeRows,
    num_seeds: usize,
    layers: usize,
    uses_edges: bool,
) -> Vec<Arc<GraphBlock>> {
    if uses_edges {
        let with_edges = |(at, block): (usize, Block)| match edges.positions.get(at) {
            None => GraphBlock::new(block),
            Some(positions) => GraphBlock::with_edge_features(block, edges.rows.select(positions), edges.rows.dim),
        };
        let all: Vec<_> = sampled.into_iter().enumerate().rev().map(with_edges).collect();
        return if all.len() == 1 { vec![all[0].clone(); layers] } else { all };
    }
    let seeds = num_seeds as u32;
    let alone = GraphBlock::new(Block::new(seeds, seeds, vec![0; num_seeds + 1], Vec::new()));
    vec![alone; layers]
}

/// Returns the SHA-256 of a batch's key, nodes and blocks.
fn digest(batch: &MiniBatch) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut words = |words: &[u32]| {
        hash.update((words.len() as u64).to_le_bytes());
        hash.update(bytemuck::cast_slice::<u32, u8>(words));
    };
    words(&[batch.key.epoch, batch.key.step, batch.key.partition]);
    words(&batch.nodes);
    for block in &batch.blocks {
        words(block.indptr());
        words(block.indices());
        if let Some(types) = block.edge_types() {
            words(&types.iter().map(|&edge_type| u32::from(edge_type)).collect::<Vec<_>>());
        }
        if let Some(weights) = block.edge_weights() {
            words(bytemuck::cast_slice(weights));
        }
        if let Some(ids) = block.edge_ids() {
            words(bytemuck::cast_slice(ids));
        }
    }
    hash.finalize().into()
}
