//! The state of the companion thread: model, optimiser, and the arithmetic on them.

mod nodes;
mod visit;

pub(crate) use nodes::{NodeBack, NodeGradient, NodeRows, matrix};
pub(crate) use visit::Visited;

use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::backprop::GradStore;
use candle_core::{Storage, Tensor, Var};
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_operators::block::Block;
use gnnflow_operators::compute::loss::weigh_rows;
use gnnflow_operators::compute::optimizer::{Adam, AdamOptions, Optimizer, Sgd, SgdOptions, State};
use gnnflow_operators::compute::{GraphBlock, Model};
use gnnflow_operators::embed::push_rows::{PushedRows, RowGradients};
use gnnflow_operators::fetch::edge_rows::EdgeRows;
use gnnflow_operators::fetch::matrix::{Matrix, Values};
use gnnflow_operators::sample::mini_batch::{BatchKey, MiniBatch};
use gnnflow_operators::sync::all_reduce::{Contribution, Reduced};
use sha2::{Digest, Sha256};

use crate::Error;
use crate::embedding::NodeEmbeddings;
use crate::layer_store::LayerStore;
use crate::spec::{self, OptimizerKind};
use crate::task::{Examples, Loss, Objective};

/// Time spent on the companion thread.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    pub(crate) forward: Duration,
    pub(crate) backward: Duration,
    pub(crate) step: Duration,
}

/// Model, optimiser, and what they work on.
pub(crate) struct Trainer {
    pool: rayon::ThreadPool,
    model: Model,
    optimizer: Box<dyn Optimizer>,
    /// All parameters, one after another; the buffers, which the optimiser leaves alone, at the end.
    params: Vec<f32>,
    objective: Arc<dyn Objective>,
    uses_edges: bool,
    seed: u64,
    hash_blocks: bool,
    clip_norm: Option<f64>,
    /// Whether what a batch reads of its nodes is learnt too.
    learns_rows: bool,
    spent: Spent,
    fault: Option<Error>,
    /// Where partitions are trained in turn: what each of them begins with, while one is.
    common: Option<Replica>,
    /// Of averages, where they have momentum; as long as what is trained.
    velocity: Option<Vec<f32>>,
    average_momentum: f64,
}

/// Parameters, and the optimiser's state.
#[derive(Clone)]
struct Replica {
    params: Vec<f32>,
    optimizer: State,
}

/// What a batch adds to a step.
pub(crate) struct Gradients {
    /// To the parameters that all share.
    pub(crate) dense: Contribution,
    /// To the rows of its nodes, where those are learnt.
    pub(crate) rows: Option<RowGradients>,
}

/// A batch's gradient.
struct BatchGradient {
    /// By the parameters; behind it what the batch adds to the buffers.
    flat: Vec<f32>,
    /// By the rows of its nodes, where they are learnt.
    rows: Option<Vec<f32>>,
    loss: f64,
    examples: u64,
}

/// What a batch tells besides its gradient, as words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchWords {
    /// Examples of the loss: what the step's gradient is divided by.
    pub(crate) examples: u64,
    pub(crate) loss: f64,
    pub(crate) rounds: u64,
    /// SHA-256 of nodes and blocks, where asked for.
    pub(crate) digest: Option<[u8; 32]>,
}

impl BatchWords {
    pub(crate) fn encode(&self) -> Vec<u64> {
        let digest = self.digest.iter().flatten().copied().collect::<Vec<u8>>();
        let digest = digest.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
        [self.examples, self.loss.to_bits(), self.rounds].into_iter().chain(digest).collect()
    }

    pub(crate) fn decode(words: &[u64]) -> Option<Self> {
        let (&[examples, loss, rounds], digest) = words.split_first_chunk()?;
        let digest: Vec<u8> = digest.iter().flat_map(|word| word.to_le_bytes()).collect();
        Some(Self { examples, loss: f64::from_bits(loss), rounds, digest: digest.try_into().ok() })
    }
}

impl Trainer {
    pub(crate) fn new(
        model: Model,
        objective: Arc<dyn Objective>,
        spec: (&spec::Model, &spec::Train),
        threads: usize,
    ) -> Result<Self, Error> {
        let (model_spec, train) = spec;
        let pool = compute_pool(threads)?;
        let mut params = vec![0.0; model.params().flat_len()];
        model.params().copy_to(&mut params)?;
        let (trained, average_momentum) = (model.params().trained_len(), train.average_momentum.unwrap_or(0.0));
        let optimizer = optimizer(&train.optimizer, trained);
        Ok(Self {
            pool,
            model,
            optimizer,
            params,
            objective,
            uses_edges: model_spec.uses_edges(),
            seed: train.seed,
            hash_blocks: train.hash_blocks,
            clip_norm: train.clip_norm,
            learns_rows: model_spec.embedding.is_some(),
            spent: Spent::default(),
            fault: None,
            common: None,
            velocity: (average_momentum > 0.0).then(|| vec![0.0; trained]),
            average_momentum,
        })
    }

    /// Forward and backward over one batch: the gradient of the loss summed over its examples.
    pub(crate) fn batch(&mut self, mut batch: MiniBatch) -> Result<Gradients, Error> {
        let partition = batch.key.partition;
        if batch.num_seeds == 0 {
            let (examples, rounds) = (batch.stands_for.unwrap_or(0), u64::from(batch.rounds));
            let words = BatchWords { examples, loss: 0.0, rounds, digest: None };
            let rows = self.learns_rows.then(|| RowGradients { partition, examples, ..RowGradients::default() });
            return Ok(Gradients { dense: Contribution { partition, vector: None, words: words.encode() }, rows });
        }
        let digest = self.hash_blocks.then(|| digest(&batch));
        let rounds = u64::from(batch.rounds);
        let BatchGradient { flat, rows, loss, examples } = self.gradient(&mut batch)?;
        let words = BatchWords { examples, loss, rounds, digest };
        let dense = Contribution { partition, vector: Some(Arc::new(flat)), words: words.encode() };
        let nodes = batch.nodes;
        let rows = rows.map(|rows| RowGradients { partition, examples, nodes, rows: Arc::new(rows) });
        Ok(Gradients { dense, rows })
    }

    fn gradient(&mut self, batch: &mut MiniBatch) -> Result<BatchGradient, Error> {
        let Self { pool, model, objective, uses_edges, seed, spent, params, learns_rows, .. } = self;
        let BatchKey { epoch, step, partition } = batch.key;
        let key = [partition, epoch, step]
            .into_iter()
            .fold(Key::new(*seed, Purpose::Dropout), |key, word| key.fold(u64::from(word)));
        pool.install(|| {
            let start = Instant::now();
            let sampled = std::mem::take(&mut batch.blocks);
            let blocks = blocks(sampled, &batch.edges, batch.num_seeds, model.num_layers(), *uses_edges);
            let degrees = (!batch.degrees.is_empty()).then_some(&batch.degrees[..]);
            let features = std::mem::take(&mut batch.features);
            let (x, learnt) = input(features, batch.nodes.len(), model, *learns_rows)?;
            let (outputs, sums) = model.forward_with_sums(&blocks, &x, degrees, Some(key))?;
            // Where all layers read one block, other nodes of the list have outputs too.
            let narrow = |outputs: Tensor| match batch.num_seeds < outputs.dim(0)? {
                true => outputs.narrow(0, 0, batch.num_seeds),
                false => Ok(outputs),
            };
            let mut outputs = narrow(outputs).map_err(gnnflow_operators::compute::Error::from)?;
            if !batch.seed_weights.is_empty() {
                outputs = weigh_rows(&outputs, &batch.seed_weights)?;
            }
            let examples = Examples {
                seeds: &batch.nodes[..batch.num_seeds],
                pairs: batch.pairs.as_ref(),
                relations: model.relations(),
                head: model.pair_head(),
            };
            let Loss { sum: loss, examples } = objective.loss(&examples, &outputs)?;
            let value = loss.to_scalar::<f64>().map_err(gnnflow_operators::compute::Error::from)?;
            let (value, examples) = match batch.stands_for {
                Some(all) => (value * all as f64 / examples.max(1) as f64, all),
                None => (value, examples),
            };
            spent.forward += start.elapsed();
            let start = Instant::now();
            let gradients = loss.backward().map_err(gnnflow_operators::compute::Error::from)?;
            let mut flat = vec![0.0; params.len()];
            model.params().gradients(&gradients, &mut flat)?;
            flat[model.params().trained_len()..].copy_from_slice(&sums);
            let rows = learnt.map(|learnt| row_gradients(&gradients, &learnt)).transpose()?;
            spent.backward += start.elapsed();
            Ok(BatchGradient { flat, rows, loss: value, examples })
        })
    }

    /// One step of the optimiser along the sum of a step's gradients, divided by its examples; and one of the running statistics
    /// towards those of its batches, whose sums lie behind the gradients.
    ///
    /// What fails is kept, and told by [`Trainer::report`].
    pub(crate) fn apply(&mut self, reduced: Reduced) {
        let examples: u64 =
            reduced.words.iter().filter_map(|words| BatchWords::decode(words)).map(|words| words.examples).sum();
        if examples == 0 {
            return;
        }
        if let Err(error) = self.step(reduced.sum, examples) {
            self.fault.get_or_insert(error);
        }
    }

    /// One step along `sum`, the gradients of `examples` examples together.
    fn step(&mut self, mut sum: Vec<f32>, examples: u64) -> Result<(), Error> {
        let start = Instant::now();
        let Self { pool, model, optimizer, params, clip_norm, .. } = self;
        let result = pool.install(|| {
            let scale = 1.0 / examples as f32;
            let trained = model.params().trained_len();
            let gradients = &mut sum[..trained];
            gradients.iter_mut().for_each(|gradient| *gradient *= scale);
            if let Some(most) = clip_norm {
                shorten(gradients, *most);
            }
            optimizer.step(&mut params[..trained], gradients);
            model.absorb(params, &sum);
            model.params_mut().set_from(params)
        });
        self.spent.step += start.elapsed();
        Ok(result?)
    }

    /// Moves the learnt rows that a step has gradients for.
    ///
    /// # Safety
    /// Nobody reads or writes rows meanwhile.
    pub(crate) unsafe fn move_rows(&mut self, rows: &NodeEmbeddings, pushed: &PushedRows) {
        let start = Instant::now();
        // SAFETY: the caller's promise.
        self.pool.install(|| unsafe { rows.apply(pushed) });
        self.spent.step += start.elapsed();
    }

    /// Times so far, or the first thing that failed.
    pub(crate) fn report(&mut self) -> Result<Spent, Error> {
        self.fault.take().map_or(Ok(self.spent), Err)
    }

    /// Runs stage `stage` of the model on a batch without seeds' labels and writes its rows; `own` has those of earlier stages
    /// that it asks for.
    pub(crate) fn infer(
        &mut self,
        stage: usize,
        batch: MiniBatch,
        own: &[Arc<LayerStore>],
        into: &LayerStore,
    ) -> Result<(), Error> {
        let Self { pool, model, .. } = self;
        pool.install(|| {
            let nodes = &batch.nodes[..batch.num_seeds];
            let reads = !batch.blocks.is_empty();
            let block = blocks(batch.blocks, &batch.edges, nodes.len(), 1, reads).remove(0);
            let degrees = (!batch.degrees.is_empty()).then_some(&batch.degrees[..]);
            let x = tensor(batch.features, batch.nodes.len(), model)?;
            let rows = |store: &Arc<LayerStore>| {
                let mut values = Vec::with_capacity(nodes.len() * store.dim());
                nodes.iter().for_each(|&node| values.extend_from_slice(store.row_f32(node)));
                tensor(Matrix { dim: store.dim(), values: Values::F32(values) }, nodes.len(), model)
            };
            let own = own.iter().map(rows).collect::<Result<Vec<_>, _>>()?;
            let rows = model.forward_stage(stage, &block, &x, degrees, &own)?;
            read(&rows, |rows| into.write(nodes, rows))
        })
    }

    /// Goes on with another number of compute threads.
    pub(crate) fn set_threads(&mut self, threads: usize) -> Result<(), Error> {
        if threads != self.pool.current_num_threads() {
            self.pool = compute_pool(threads)?;
        }
        Ok(())
    }

    /// Runs `work` on the compute threads.
    pub(crate) fn on_threads<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.pool.install(work)
    }

    /// As [`Trainer::on_threads`], as a part of going forwards.
    pub(crate) fn timed_forward(&mut self, work: impl FnOnce() + Send) {
        let start = Instant::now();
        self.pool.install(work);
        self.spent.forward += start.elapsed();
    }

    /// As [`Trainer::on_threads`], as a part of going back.
    pub(crate) fn timed_backward(&mut self, work: impl FnOnce() + Send) {
        let start = Instant::now();
        self.pool.install(work);
        self.spent.backward += start.elapsed();
    }

    /// The parameters, one after another.
    pub(crate) fn params(&self) -> &[f32] {
        &self.params
    }

    /// The model.
    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    /// Replaces the parameters.
    pub(crate) fn set_params(&mut self, params: Vec<f32>) -> Result<(), Error> {
        self.model.params_mut().set_from(&params)?;
        self.params = params;
        Ok(())
    }

    /// Changes the learning rate from the next step on.
    pub(crate) fn set_learning_rate(&mut self, lr: f64) {
        self.optimizer.set_learning_rate(lr);
    }
}

fn compute_pool(threads: usize) -> Result<rayon::ThreadPool, Error> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|i| format!("compute-{i}"))
        .build()
        .map_err(|error| Error::Machine(format!("cannot start {threads} compute threads: {error}")))
}

/// Scales a gradient to length `most` if it is longer. The length is summed in 64 bits, in order: all workers do the same.
fn shorten(gradient: &mut [f32], most: f64) {
    let length = gradient.iter().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>().sqrt();
    if length > most {
        let scale = (most / length) as f32;
        gradient.iter_mut().for_each(|g| *g *= scale);
    }
}

/// The optimiser that the pipeline asks for.
fn optimizer(spec: &spec::Optimizer, len: usize) -> Box<dyn Optimizer> {
    match spec.kind {
        OptimizerKind::Sgd => Box::new(Sgd::new(
            len,
            SgdOptions {
                learning_rate: spec.lr,
                momentum: spec.momentum(),
                weight_decay: spec.weight_decay,
                ..SgdOptions::default()
            },
        )),
        OptimizerKind::Adam | OptimizerKind::Adamw => {
            let [beta1, beta2] = spec.betas();
            Box::new(Adam::new(
                len,
                AdamOptions {
                    learning_rate: spec.lr,
                    beta1,
                    beta2,
                    epsilon: spec.eps(),
                    weight_decay: spec.weight_decay,
                    decoupled: spec.kind == OptimizerKind::Adamw,
                },
            ))
        }
    }
}

/// The blocks of `layers` layers, input side first, or one for all of them; without edges where the model reads none.
fn blocks(
    sampled: Vec<Block>,
    edges: &EdgeRows,
    num_seeds: usize,
    layers: usize,
    uses_edges: bool,
) -> Vec<Arc<GraphBlock>> {
    if uses_edges {
        let with_edges = |(at, block): (usize, Block)| match edges.places.get(at) {
            None => GraphBlock::new(block),
            Some(places) => GraphBlock::with_edge_features(block, edges.rows.select(places), edges.rows.dim),
        };
        let all: Vec<_> = sampled.into_iter().enumerate().rev().map(with_edges).collect();
        return if all.len() == 1 { vec![all[0].clone(); layers] } else { all };
    }
    let seeds = num_seeds as u32;
    let alone = GraphBlock::new(Block::new(seeds, seeds, vec![0; num_seeds + 1], Vec::new()));
    vec![alone; layers]
}

/// The matrix as a tensor on the model's device.
fn tensor(matrix: Matrix, rows: usize, model: &Model) -> Result<Tensor, Error> {
    let (shape, device) = ((rows, matrix.dim), model.device());
    let tensor = match matrix.values {
        Values::F32(values) => Tensor::from_vec(values, shape, device),
        Values::F16(values) => Tensor::from_vec(values, shape, device),
        Values::Bf16(values) => Tensor::from_vec(values, shape, device),
    };
    Ok(tensor.map_err(gnnflow_operators::compute::Error::from)?)
}

/// What the first layer reads, and the variable that it is where rows are learnt.
fn input(matrix: Matrix, rows: usize, model: &Model, learnt: bool) -> Result<(Tensor, Option<Var>), Error> {
    match matrix {
        Matrix { dim, values: Values::F32(values) } if learnt => {
            let var = Var::from_vec(values, (rows, dim), model.device());
            let var = var.map_err(gnnflow_operators::compute::Error::from)?;
            Ok((var.as_tensor().clone(), Some(var)))
        }
        matrix => Ok((tensor(matrix, rows, model)?, None)),
    }
}

/// The gradient of the rows that a batch has read; zeros where the loss does not depend on them.
fn row_gradients(gradients: &GradStore, rows: &Var) -> Result<Vec<f32>, Error> {
    let mut values = Vec::new();
    match gradients.get(rows) {
        Some(gradient) => read(gradient, |found| values.extend_from_slice(found))?,
        None => values.resize(rows.elem_count(), 0.0),
    }
    Ok(values)
}

/// Calls `f` with the numbers of `tensor`.
pub(crate) fn read(tensor: &Tensor, f: impl FnOnce(&[f32])) -> Result<(), Error> {
    let read = || {
        let tensor = tensor.to_device(&candle_core::Device::Cpu)?.contiguous()?;
        let (storage, layout) = tensor.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else { candle_core::bail!("a tensor on the CPU has its storage there") };
        let (start, end) = layout.contiguous_offsets().unwrap_or((0, tensor.elem_count()));
        f(&storage.as_slice::<f32>()?[start..end]);
        Ok(())
    };
    Ok(read().map_err(gnnflow_operators::compute::Error::from)?)
}

/// SHA-256 over a batch's name, node list and blocks.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_gradients_are_shortened_and_short_ones_are_not() {
        let mut gradient = [3.0, 0.0, -4.0];
        shorten(&mut gradient, 10.0);
        assert_eq!(gradient, [3.0, 0.0, -4.0]);
        shorten(&mut gradient, 2.5);
        assert_eq!(gradient, [1.5, 0.0, -2.0]);
    }
}
