//! A model in pieces of nodes, for schedules that put rows together over whole graphs.
//!
//! Between two aggregations lies work on nodes alone: what a layer makes of what has arrived, what stands behind it, and what
//! the next layer sends. That is one *node task*: a function of rows and parameters, and of nothing else, so that it can be
//! done anywhere, for any interval of nodes (Dorylus, section IV: apply-vertex). Task 0 reads features, task l what has
//! arrived at layer l − 1; the last one's result is the model's.
//!
//! Where a readout joins the results of all layers, a node holds those that there are behind what it holds anyway, from task to task.

use std::ops::Range;

use candle_core::{DType, Tensor};
use gnnflow_data::rng::Key;

use super::{Model, Order};
use crate::error::{Error, Result};
use crate::graph_block::GraphBlock;
use crate::layers::{Aggregation, Layer, Pass};
use crate::ops::{PANEL, activate, widen};
use gnnflow_kernels::block::Block;
use gnnflow_kernels::dense::elementwise::{Activation, Dropout};

/// What one aggregation is given and gives: layer by layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hop {
    /// How rows are put together.
    pub aggregation: Aggregation,
    /// Columns of what is sent, and of what arrives in each of the [slots](Hop::slots).
    pub width: usize,
    /// Columns of what a node holds meanwhile: of its own row, and, where a readout joins them, of the results of the layers before.
    pub held: usize,
    /// Whether a later task reads what a node holds here.
    pub keeps_held: bool,
}

impl Hop {
    /// In how many sums a node receives: one for each relation, where those are kept apart.
    pub fn slots(&self) -> usize {
        match self.aggregation {
            Aggregation::MeanByRelation { relations } => relations,
            _ => 1,
        }
    }

    /// Whether the largest of each column arrives, rather than a sum.
    pub fn takes_largest(&self) -> bool {
        self.aggregation == Aggregation::Max
    }

    /// Whether rows are weighed by attention.
    pub fn attends(&self) -> bool {
        self.heads() > 0
    }

    /// Whether attention's terms are as wide as what is sent.
    pub fn attends_by_column(&self) -> bool {
        matches!(self.aggregation, Aggregation::Attention { dynamic: true, .. })
    }

    /// Heads of attention; 0 where there is none.
    pub fn heads(&self) -> usize {
        match self.aggregation {
            Aggregation::Attention { heads, .. } => heads,
            _ => 0,
        }
    }

    /// Columns of each of a node's two terms of attention.
    pub fn terms(&self) -> usize {
        if self.attends_by_column() { self.width } else { self.heads() }
    }

    /// Columns of a node's term of its out-edges, where that is sent behind its row; it is not where it is made of the row again.
    pub fn sent_terms(&self) -> usize {
        if self.attends_by_column() { 0 } else { self.heads() }
    }
}

/// The rows of a node task's nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeInputs<'a> {
    /// What they held when they sent, `[N, held]`; for task 0, their features.
    pub held: Option<&'a Tensor>,
    /// What has arrived, `[N, slots · width]`.
    pub aggregated: Option<&'a Tensor>,
    /// What they held before the first layer, where a layer asks for it.
    pub initial: Option<&'a Tensor>,
    /// How many of the task's rows stand before these, where they are its second half ([`split_row`]); else 0.
    pub first: usize,
}

/// What a node task makes of its rows.
#[derive(Clone, Debug)]
pub struct NodeOutputs {
    /// What they hold now, `[N, held]`; from the last task, the model's result.
    pub held: Tensor,
    /// What they send, `[N, width]`; nothing from the last task.
    pub sent: Option<Tensor>,
    /// Where the next layer attends: terms of their out-edges and of their in-edges.
    pub terms: Option<[Tensor; 2]>,
}

/// How many of a task's rows its first half has: about half of them, a multiple of [`PANEL`]. `None` where it has no more than that.
pub fn split_row(rows: usize) -> Option<usize> {
    Some(rows.div_ceil(2).next_multiple_of(PANEL)).filter(|&half| half < rows)
}

impl Model {
    /// The model's aggregations, in order.
    ///
    /// # Errors
    /// [`Error::Spec`] when a layer, or what stands behind the last one, cannot be run in pieces of nodes.
    pub fn hops(&self) -> Result<Vec<Hop>> {
        let asks_initial = self.layers.iter().any(|layer| layer.needs_initial());
        let hop = |(index, layer): (usize, &dyn Layer)| {
            let aggregation = layer.aggregation().ok_or_else(|| {
                let why = format!(
                    "{:?} computes a value for every edge that training over the whole graph does not hold; use \"gcn\", \
                     \"sage\", \"gin\", \"gat\", \"gatv2\", \"rgcn\", \"sgc\" or \"appnp\", or train by batches",
                    self.spec.kind
                );
                Error::spec("kind", why)
            })?;
            if let Aggregation::Attention { heads, dynamic: true, .. } = aggregation {
                let found = layer.attention_vectors().map(|vectors| vectors.dims().to_vec());
                if heads == 0 || found != Some(vec![heads, layer.sent_dim() / heads]) {
                    let why =
                        format!("{:?} attends by vectors of its heads, and has {found:?} for them", self.spec.kind);
                    return Err(Error::spec("kind", why));
                }
            }
            let [own, results] = self.held_columns(index);
            let keeps_held = self.reads_own(index) || index == 0 && asks_initial || results > 0;
            Ok(Hop { aggregation, width: layer.sent_dim(), held: own + results, keeps_held })
        };
        self.layers.iter().map(|layer| &**layer).enumerate().map(hop).collect()
    }

    /// Where layer `index` has its [vectors](Layer::attention_vectors) in the flat vector of parameters.
    pub fn attention_vectors(&self, index: usize) -> Option<Range<usize>> {
        let wanted = self.layers.get(index)?.attention_vectors()?;
        self.params.place(wanted)
    }

    /// Whether what stands behind layer `index` reads the row that its nodes had before it.
    fn reads_own(&self, index: usize) -> bool {
        self.layers[index].reads_own() || self.spec.residual
    }

    /// Columns of what a node holds at hop `index`: of its own row, and of results of the layers before, for a readout.
    fn held_columns(&self, index: usize) -> [usize; 2] {
        let results = if self.readout.is_some() { index * self.spec.hidden } else { 0 };
        [if results == 0 || self.reads_own(index) { self.layers[index].in_dim() } else { 0 }, results]
    }

    /// Takes apart what a node held at hop `index`: its own row, if it is there, and the results of the layers before.
    fn take_apart(&self, index: usize, held: Option<&Tensor>) -> Result<(Option<Tensor>, Vec<Tensor>)> {
        let [own, results] = self.held_columns(index);
        if results == 0 {
            return Ok((held.cloned(), Vec::new()));
        }
        let held = held.ok_or_else(|| Error::Input(format!("node task {} needs earlier results", index + 1)))?;
        let columns = |first: usize, count: usize| held.narrow(1, first, count)?.contiguous();
        let result = |layer: usize| columns(own + layer * self.spec.hidden, self.spec.hidden);
        let results = (0..index).map(result).collect::<candle_core::Result<_>>()?;
        Ok((if own > 0 { Some(columns(0, own)?) } else { None }, results))
    }

    /// Whether task `index` reads what its nodes held before the first layer.
    pub fn task_reads_initial(&self, index: usize) -> bool {
        index > 0 && self.layers[index - 1].needs_initial()
    }

    /// Where task `index`, which is neither the first nor the last, does the same with every column: `[a, b]`, where what nodes hold
    /// becomes a times what has arrived and b times what they held before the first layer; and that is what they send.
    pub fn task_by_column(&self, index: usize) -> Option<[f32; 2]> {
        let (before, after) = (self.layers.get(index.checked_sub(1)?)?, self.layers.get(index)?);
        let plain = self.order != Order::Interleaved && after.sends_as_held();
        let attends = |layer: &dyn Layer| layer.aggregation().filter(|p| matches!(p, Aggregation::Attention { .. }));
        // Slices have the terms of one attention.
        let alike = attends(&**before) == attends(&**after);
        before.by_column().filter(|_| plain && alike)
    }

    /// Whether the first task has anything to learn: else no gradient needs to come so far.
    pub fn first_task_learns(&self) -> bool {
        self.predictor.is_some() || !self.layers[0].sends_as_held()
    }

    /// Whether the first task does the same in every epoch: it learns nothing, and drops nothing.
    pub fn first_task_is_constant(&self) -> bool {
        !self.first_task_learns() && (self.spec.dropout == 0.0 || self.order == Order::PredictFirst)
    }

    /// Whether task `index` comes to the same bits when its rows are cut in two ([`split_row`]), so that one half may be computed while the
    /// other is on its way (Dorylus, section 6: Lambda-internal streaming). Not where a batch norm reads all rows, in training, nor with a
    /// registered layer of which nothing is known ([`Layer::works_by_row`]).
    ///
    /// ```
    /// use candle_core::Device;
    /// use gnnflow_nn::model::split_row;
    /// use gnnflow_nn::{Model, ModelSpec, Registry};
    ///
    /// let model = Model::build(&ModelSpec::new("gcn", 2, 3, 8, 2), &Registry::default(), &Device::Cpu, 7)?;
    /// assert!(model.task_works_by_row(1, true));
    /// assert_eq!([2000, 512].map(split_row), [Some(1024), None]);
    /// # Ok::<(), gnnflow_nn::Error>(())
    /// ```
    pub fn task_works_by_row(&self, index: usize, training: bool) -> bool {
        let before = index.checked_sub(1);
        let mut layers = [before, Some(index)].into_iter().flatten().filter_map(|layer| self.layers.get(layer));
        let mixes =
            before.and_then(|before| self.residual_norms.get(before)).is_some_and(|norm| norm.running().is_some());
        !(training && mixes) && layers.all(|layer| layer.works_by_row())
    }

    /// Runs node task `index`, from 0 to [`Model::num_layers`]. `dropout` is the key of the nodes' masks when training, which no
    /// other interval may share; what a batch norm is to be told ([`Model::absorb`]) is put into `sums`, where training.
    ///
    /// # Errors
    /// [`Error::Input`] when rows are missing or do not fit; [`Error::Tensor`] when the device fails.
    pub fn node_task(
        &self,
        index: usize,
        inputs: NodeInputs<'_>,
        dropout: Option<Key>,
        sums: Option<&mut [f32]>,
    ) -> Result<NodeOutputs> {
        let missing = |what: &str| Error::Input(format!("node task {index} needs {what}"));
        let share = self.spec.dropout;
        let key_of = |index: usize| dropout.map(|key| key.fold(index as u64));
        // Of what came before the first layer, nothing is joined.
        let mut results = Vec::new();
        let alone = |rows: usize| GraphBlock::new(Block::new(rows as u32, rows as u32, vec![0; rows + 1], Vec::new()));
        let mut held = match index {
            0 => {
                let x = inputs.held.ok_or_else(|| missing("features"))?;
                match &self.predictor {
                    Some(predictor) => {
                        predictor.forward(x, key_of(self.layers.len()).map(|key| (share, key)), inputs.first)?
                    }
                    None => x.clone(),
                }
            }
            _ => {
                let layer = &self.layers[index - 1];
                let own;
                (own, results) = self.take_apart(index - 1, inputs.held)?;
                let aggregated = match layer.aggregation() {
                    Some(Aggregation::Nothing) => own.as_ref(),
                    _ => inputs.aggregated,
                };
                let aggregated = layer.merge_arrived(aggregated.ok_or_else(|| missing("what has arrived"))?)?;
                // Layers that read nothing of their own do not look at it.
                let own = own.as_ref().unwrap_or(&aggregated);
                let block = alone(aggregated.dim(0)?);
                let key = key_of(index - 1).map(|key| key.fold(1));
                let pass = Pass { block: &block, degrees: None, dropout: key, initial: inputs.initial };
                let z = layer.apply_node(&pass, own, &aggregated)?;
                self.residual_norms[index - 1].apply(z, own, sums)?
            }
        };
        if let Some(readout) = self.readout.as_ref().filter(|_| index > 0) {
            results.push(activate(&held, self.activation(), None)?);
            if index == self.layers.len() {
                let mask = key_of(index).filter(|_| share > 0.0).map(|key| Dropout::new(share, key.fold(0)));
                let mask = mask.map(|mask| mask.behind((inputs.first * readout.width()) as u64));
                return Ok(NodeOutputs { held: readout.apply(&results, mask)?, sent: None, terms: None });
            }
        }
        let Some(layer) = self.layers.get(index) else { return Ok(NodeOutputs { held, sent: None, terms: None }) };
        let drops = match self.order {
            Order::Interleaved => true,
            Order::PropagateFirst => index == 0,
            Order::PredictFirst => false,
        };
        let mask = key_of(index).filter(|_| drops && share > 0.0).map(|key| Dropout::new(share, key.fold(0)));
        let before = (inputs.first * held.dim(1)?) as u64;
        let mask = mask.map(|mask| mask.behind(before));
        let activation = if index == 0 { Activation::Identity } else { self.activation() };
        if activation != Activation::Identity || mask.is_some() {
            held = activate(&held, activation, mask)?;
        }
        let held = if held.dtype() == DType::F64 || held.dtype() == DType::F32 { held } else { widen(&held)? };
        let block = alone(held.dim(0)?);
        let sent = layer.send(&Pass::new(&block), &held)?;
        let terms = match layer.aggregation() {
            Some(Aggregation::Attention { .. }) => Some(layer.attention_terms(&held, &sent)?),
            _ => None,
        };
        let held = match (results.is_empty(), self.held_columns(index)[0]) {
            (true, _) => held,
            (false, 0) => Tensor::cat(&results, 1)?,
            (false, _) => Tensor::cat(&[&[held], &results[..]].concat(), 1)?,
        };
        Ok(NodeOutputs { held, sent: Some(sent), terms })
    }
}
