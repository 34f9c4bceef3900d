//! The passes of one batch: forward and backward in training, or one stage of inference.

use std::sync::Arc;
use std::time::Instant;

use bytemuck::{Pod, Zeroable};
use candle_core::Tensor;
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_dataflow::batch::mini_batch::{BatchKey, MiniBatch};
use gnnflow_dataflow::collective::all_reduce::Contribution;
use gnnflow_dataflow::embed::push_rows::RowGradients;
use gnnflow_dataflow::fetch::fetch_rows::FeatureView;
use gnnflow_dataflow::storage::RowStore;
use gnnflow_nn::Uploaded;
use gnnflow_nn::device::DeviceTimer;
use gnnflow_nn::loss::weigh_rows;

use super::in_place::{own_rows, reduced_of_block};
use super::passes::{BatchRows, Pass};
use super::ready_batch::{Inputs, OnDevice, ReadyBatch, blocks};
use super::{JobThread, Passes};
use crate::collectives::Payload;
use crate::error::Error;
use crate::task::objective::{Examples, Loss};
use gnnflow_nn::tensors::{input, row_gradients, tensor};

/// The gradients of a batch.
pub(crate) struct Gradients {
    /// Gradients of the parameters.
    pub(crate) dense: Contribution,
    /// Gradients of the learned rows of its nodes, if there are any.
    pub(crate) rows: Option<RowGradients>,
}

/// The gradients of a batch, before they are put into messages.
pub(super) struct BatchGradient {
    /// The gradient of the parameters, followed by the sums that update the buffers.
    pub(super) flat: Vec<f32>,
    /// Gradients of the learned rows of its nodes.
    pub(super) rows: Option<Vec<f32>>,
    pub(super) loss: f64,
    pub(super) examples: u64,
}

/// The report of a batch, which all workers receive with the step's gradient.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct StepReport {
    /// Number of examples. The step's gradient is divided by the sum over batches.
    pub(crate) examples: u64,
    pub(crate) loss: f64,
    /// Rounds of messages.
    pub(crate) rounds: u64,
    /// 1 if the batch's worker wants a pause of training.
    pub(crate) pause: u64,
    /// SHA-256 of nodes and blocks; zeros if blocks are not hashed.
    pub(crate) digest: [u8; 32],
}

impl StepReport {
    /// Adds the wish for a pause to the words of a report.
    pub(crate) fn want_pause(words: &mut [u64]) {
        let at = std::mem::offset_of!(Self, pause) / size_of::<u64>();
        words[at] = 1;
    }

    /// Returns the digest, if blocks are hashed.
    pub(crate) fn digest(&self) -> Option<&[u8; 32]> {
        Some(&self.digest).filter(|digest| **digest != [0; 32])
    }
}

impl Payload for StepReport {
    /// Omits the digest if blocks are not hashed.
    fn to_words(&self) -> Vec<u64> {
        let words: &[u64] = bytemuck::cast_slice(bytemuck::bytes_of(self));
        words[..if self.digest().is_some() { words.len() } else { 4 }].to_vec()
    }

    fn from_words(words: &[u64]) -> Result<Self, Error> {
        let mut all = Self::zeroed();
        let own: &mut [u64] = bytemuck::cast_slice_mut(bytemuck::bytes_of_mut(&mut all));
        let sent = own.get_mut(..words.len()).ok_or_else(|| Error::Bug("a step's report is too long".into()))?;
        sent.copy_from_slice(words);
        Ok(all)
    }
}

impl Passes {
    /// Returns the gradients of the loss of a batch, summed over its examples.
    pub(crate) fn batch_gradients(&self, on: &JobThread, batch: MiniBatch) -> Result<Gradients, Error> {
        self.ready_gradients(on, self.ready(batch))
    }

    /// As [`Passes::batch_gradients`], for a batch whose inputs are ready.
    pub(crate) fn ready_gradients(&self, on: &JobThread, ready: ReadyBatch) -> Result<Gradients, Error> {
        let ReadyBatch { mut batch, inputs } = ready;
        let inputs = inputs?;
        let digest = inputs.digest;
        let partition = batch.key.partition;
        if batch.num_seeds == 0 {
            let (examples, rounds) = (batch.represented_examples.unwrap_or(0), u64::from(batch.rounds));
            let report = StepReport { examples, rounds, ..StepReport::default() };
            let rows = self.learns_rows.then(|| RowGradients { partition, examples, ..RowGradients::default() });
            return Ok(Gradients { dense: Contribution { partition, vector: None, words: report.to_words() }, rows });
        }
        let rounds = u64::from(batch.rounds);
        let BatchGradient { flat, rows, loss, examples } = self.gradient(on, &mut batch, inputs)?;
        let report = StepReport { examples, loss, rounds, pause: 0, digest };
        let dense = Contribution { partition, vector: Some(Arc::new(flat)), words: report.to_words() };
        let nodes = batch.nodes;
        let rows = rows.map(|rows| RowGradients { partition, examples, nodes, rows: Arc::new(rows) });
        Ok(Gradients { dense, rows })
    }

    pub(super) fn gradient(
        &self,
        on: &JobThread,
        batch: &mut MiniBatch,
        inputs: Inputs,
    ) -> Result<BatchGradient, Error> {
        let model = &self.read().model;
        let BatchKey { epoch, step, partition } = batch.key;
        let in_step = |error: Error| error.at(format_args!("step {} of epoch {}", step + 1, epoch + 1));
        let key = [partition, epoch, step]
            .into_iter()
            .fold(Key::new(self.seed, Purpose::Dropout), |key, word| key.fold(u64::from(word)));
        let gradient = on.threads.install(|| {
            let start = Instant::now();
            let Inputs { uploaded, blocks, rows: on_device, .. } = inputs;
            // Waiting for copies is no work of the GPU.
            uploaded.map_or(Ok(()), Uploaded::wait)?;
            let timer = DeviceTimer::start(model.device())?;
            let degrees = (!batch.degrees.is_empty()).then_some(&batch.degrees[..]);
            let features = std::mem::take(&mut batch.features);
            let rows = self.rows().clone();
            let ((outputs, sums), learned) = match (on_device, rows) {
                (OnDevice::Rows(x), _) => (model.forward_with_sums(&blocks, &x, degrees, Some(key))?, None),
                (OnDevice::Held(rows), _) => {
                    (model.forward_with_sums(&blocks, &rows.gather()?, degrees, Some(key))?, None)
                }
                (OnDevice::Nothing, BatchRows::InPlace(rows, reduction)) => {
                    let reduced = reduced_of_block(reduction, blocks[0].block(), &batch.nodes, &rows)?;
                    (model.forward_reduced(&blocks, reduced, Some(key))?, None)
                }
                (OnDevice::Nothing, BatchRows::InBatch | BatchRows::OnDevice(_)) => {
                    let (x, learned) = input(features, batch.nodes.len(), model, self.learns_rows)?;
                    (model.forward_with_sums(&blocks, &x, degrees, Some(key))?, learned)
                }
            };
            // If all layers read one block, nodes other than seeds also have outputs.
            let narrow = |outputs: Tensor| match batch.num_seeds < outputs.dim(0)? {
                true => outputs.narrow(0, 0, batch.num_seeds),
                false => Ok(outputs),
            };
            let mut outputs = narrow(outputs).map_err(gnnflow_nn::Error::from)?;
            if !batch.seed_weights.is_empty() {
                outputs = weigh_rows(&outputs, &batch.seed_weights)?;
            }
            let examples = Examples {
                seeds: &batch.nodes[..batch.num_seeds],
                pairs: batch.pairs.as_ref(),
                relations: model.relations(),
                head: model.pair_head(),
            };
            let Loss { sum: loss, examples } = self.objective.loss(&examples, &outputs)?;
            let value = loss.to_scalar::<f64>().map_err(gnnflow_nn::Error::from)?;
            let (value, examples) = match batch.represented_examples {
                Some(all) => (value * all as f64 / examples.max(1) as f64, all),
                None => (value, examples),
            };
            self.spend(Pass::Forward, on, start);
            let start = Instant::now();
            let gradients = loss.backward().map_err(gnnflow_nn::Error::from)?;
            let time = timer.map(DeviceTimer::end).transpose()?;
            let mut flat = vec![0.0; model.params().flat_len()];
            model.params().gradients(&gradients, &mut flat)?;
            flat[model.params().trained_len()..].copy_from_slice(&sums);
            let rows = learned.map(|learned| row_gradients(&gradients, &learned)).transpose()?;
            if model.checks_values() {
                model.params().check_gradients(&flat)?;
                if rows.iter().flatten().any(|gradient| !gradient.is_finite()) {
                    let what = "a gradient of a learned row (model.embedding)".to_owned();
                    return Err(gnnflow_nn::Error::NotFinite(what).into());
                }
            }
            self.spend(Pass::Backward, on, start);
            self.spend_on_device(time)?;
            Ok(BatchGradient { flat, rows, loss: value, examples })
        });
        gradient.map_err(in_step)
    }

    /// Runs stage `stage` of the model on a batch and writes the results to `into`. `own` are the rows that it reads of its own nodes, besides
    /// those of the stage before.
    pub(crate) fn infer(
        &self,
        on: &JobThread,
        stage: usize,
        batch: MiniBatch,
        own: &[FeatureView],
        into: &RowStore,
    ) -> Result<(), Error> {
        let model = &self.read().model;
        on.threads.install(|| {
            let nodes = &batch.nodes[..batch.num_seeds];
            let reads = !batch.blocks.is_empty();
            let block = blocks(batch.blocks, &batch.edges, nodes.len(), 1, reads).remove(0);
            let degrees = (!batch.degrees.is_empty()).then_some(&batch.degrees[..]);
            let x = tensor(batch.features, batch.nodes.len(), model.device())?;
            let rows = model.forward_stage(stage, &block, &x, degrees, &own_rows(own, nodes, model)?)?;
            self.write_results(&rows, nodes, into)
        })
    }
}
