//! A model as node tasks, for full-graph schedules.
//!
//! A *node task* is the work on nodes between two aggregations (Dorylus, section IV: apply-vertex). It finishes one
//! layer, applies residual, norm, activation and dropout, and computes the rows that the next layer sends. It is a pure
//! function of rows and parameters, so it can run anywhere, for any interval of nodes. Task 0 reads features, task l
//! the rows aggregated at layer l − 1. The last task returns the model's result. With a readout, held rows also carry
//! all layers' results.

use std::ops::Range;

use candle_core::{DType, Tensor};
use gnnflow_data::rng::Key;

use super::{Model, Order};
use crate::error::{Error, Result};
use crate::graph_block::GraphBlock;
use crate::layers::{Aggregation, Layer, LayerInfo, Pass};
use crate::ops::{PANEL, activate, widen};
use gnnflow_kernels::block::Block;
use gnnflow_kernels::dense::elementwise::Activation;

/// One aggregation of a model: its kind and the widths of its rows in columns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hop {
    /// How received rows are reduced.
    pub aggregation: Aggregation,
    /// Columns of the sent row, and of the aggregated row in each of the [slots](Hop::slots).
    pub width: usize,
    /// Columns of the held row: the node's own row and, with a readout, the results of earlier layers.
    pub held: usize,
    /// Whether a later task reads the held row.
    pub keeps_held: bool,
}

impl Hop {
    /// Returns the number of sums per node: one per relation if relations are aggregated separately, else 1.
    pub fn slots(&self) -> usize {
        match self.aggregation {
            Aggregation::MeanByRelation { relations } => relations,
            _ => 1,
        }
    }

    /// Whether the aggregation is a maximum per column instead of a sum.
    pub fn takes_largest(&self) -> bool {
        self.aggregation == Aggregation::Max
    }

    /// Whether the aggregation is weighted by attention.
    pub fn attends(&self) -> bool {
        self.heads() > 0
    }

    /// Whether attention scores have as many columns as the sent row (GATv2).
    pub fn attends_by_column(&self) -> bool {
        matches!(self.aggregation, Aggregation::Attention { dynamic: true, .. })
    }

    /// Returns the number of attention heads; 0 without attention.
    pub fn heads(&self) -> usize {
        match self.aggregation {
            Aggregation::Attention { heads, .. } => heads,
            _ => 0,
        }
    }

    /// Returns the columns of a node's source score, which are also those of its destination score.
    pub fn terms(&self) -> usize {
        if self.attends_by_column() { self.width } else { self.heads() }
    }

    /// Returns the columns of the source score that is sent after the row; 0 if receivers compute it from the row.
    pub fn sent_terms(&self) -> usize {
        if self.attends_by_column() { 0 } else { self.heads() }
    }
}

/// The input rows of a node task.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeInputs<'a> {
    /// The held rows at the time of sending, `[N, held]`; for task 0, the features.
    pub held: Option<&'a Tensor>,
    /// The aggregated rows, `[N, slots · width]`.
    pub aggregated: Option<&'a Tensor>,
    /// The rows before the first layer, if the layer needs them.
    pub initial: Option<&'a Tensor>,
    /// The number of the task's rows before these, in the second part of a split task ([`split_row`]); else 0.
    pub first: usize,
}

/// The output rows of a node task.
#[derive(Clone, Debug)]
pub struct NodeOutputs {
    /// The held rows, `[N, held]`; from the last task, the model's result. `None` if the task does not request them.
    pub held: Option<Tensor>,
    /// The sent rows, `[N, width]`; `None` from the last task.
    pub sent: Option<Tensor>,
    /// The source and destination scores, if the next layer has attention.
    pub terms: Option<[Tensor; 2]>,
}

/// The factors of sent rows: `rows·weightᵀ`.
pub(crate) struct Factors {
    /// `[N, K]`.
    pub(crate) rows: Tensor,
    /// `[O, K]`.
    pub(crate) weight: Tensor,
}

impl NodeOutputs {
    /// Returns the held rows.
    ///
    /// # Errors
    /// [`Error::Input`] if the task did not request them.
    pub fn held(&self) -> Result<&Tensor> {
        self.held.as_ref().ok_or_else(|| Error::Input("the node task did not request its held rows".into()))
    }
}

/// Returns the rows of the first part of a split task: about half, a multiple of [`PANEL`]. `None` if that is all.
pub fn split_row(rows: usize) -> Option<usize> {
    Some(rows.div_ceil(2).next_multiple_of(PANEL)).filter(|&half| half < rows)
}

impl Model {
    /// Returns the model's hops in order.
    ///
    /// # Errors
    /// [`Error::Spec`] when a layer has no full-graph aggregation, or attention vectors of another shape.
    pub fn hops(&self) -> Result<Vec<Hop>> {
        let needs_initial = self.layers.iter().any(|layer| layer.info().needs_initial);
        let hop = |(index, layer): (usize, &dyn Layer)| {
            let info = layer.info();
            let aggregation = info.aggregation.ok_or_else(|| {
                let why = format!(
                    "the method `info` of the layer {:?} returns no `aggregation`, which `full-graph` and `tensor-parallel` need; \
                     implement it: return `LayerInfo {{ aggregation: Some(Aggregation::Sum), .. }}`, or another variant, for the \
                     function that `aggregate` computes; or use `mini-batch`",
                    self.spec.kind
                );
                Error::spec("kind", why)
            })?;
            if let Aggregation::Attention { heads, dynamic: true, .. } = aggregation {
                let found = layer.attention_vectors().map(|vectors| vectors.dims().to_vec());
                if heads == 0 || found != Some(vec![heads, info.sent_dim / heads]) {
                    let why =
                        format!("{:?} has attention vectors {found:?}; expected [heads, columns]", self.spec.kind);
                    return Err(Error::spec("kind", why));
                }
            }
            let [own, results] = self.held_columns(index);
            let keeps_held = self.reads_own(index) || index == 0 && needs_initial || results > 0;
            Ok(Hop { aggregation, width: info.sent_dim, held: own + results, keeps_held })
        };
        self.layers.iter().map(|layer| &**layer).enumerate().map(hop).collect()
    }

    /// Returns the range of layer `index`'s [attention vectors](Layer::attention_vectors) in the flat parameter vector.
    pub(crate) fn attention_vectors(&self, index: usize) -> Option<Range<usize>> {
        let wanted = self.layers.get(index)?.attention_vectors()?;
        self.params.range_of(wanted)
    }

    /// Whether the task after hop `index` reads the nodes' input rows of layer `index`.
    fn reads_own(&self, index: usize) -> bool {
        self.layers[index].info().reads_own || self.spec.residual
    }

    /// Returns the held columns at hop `index`: of the own row, and of earlier results for a readout.
    fn held_columns(&self, index: usize) -> [usize; 2] {
        let results = if self.readout.is_some() { index * self.spec.hidden } else { 0 };
        [if results == 0 || self.reads_own(index) { self.layers[index].info().in_dim } else { 0 }, results]
    }

    /// Splits a held row of hop `index` into the own row, if present, and the results of earlier layers.
    fn split_held(&self, index: usize, held: Option<&Tensor>) -> Result<(Option<Tensor>, Vec<Tensor>)> {
        let [own, results] = self.held_columns(index);
        if results == 0 {
            return Ok((held.cloned(), Vec::new()));
        }
        let held =
            held.ok_or_else(|| Error::Input(format!("node task {} needs earlier layers' results", index + 1)))?;
        let columns = |first: usize, count: usize| held.narrow(1, first, count)?.contiguous();
        let result = |layer: usize| columns(own + layer * self.spec.hidden, self.spec.hidden);
        let results = (0..index).map(result).collect::<candle_core::Result<_>>()?;
        Ok((if own > 0 { Some(columns(0, own)?) } else { None }, results))
    }

    /// Whether task `index` reads the rows before the first layer.
    pub(crate) fn task_reads_initial(&self, index: usize) -> bool {
        index > 0 && self.layers[index - 1].info().needs_initial
    }

    /// Returns `[a, b]` if task `index` is element-wise linear, `held = a · aggregated + b · initial`, and sends this
    /// row unchanged. The first and the last task never are.
    pub(crate) fn task_by_column(&self, index: usize) -> Option<[f32; 2]> {
        let (before, after) = (self.layers.get(index.checked_sub(1)?)?.info(), self.layers.get(index)?.info());
        let plain = self.order != Order::Interleaved && after.sends_input;
        let attends = |info: LayerInfo| info.aggregation.filter(|kind| matches!(kind, Aggregation::Attention { .. }));
        // Column shards hold the scores of one attention.
        let alike = attends(before) == attends(after);
        before.element_wise.filter(|_| plain && alike)
    }

    /// Whether the first task has parameters. If not, no gradient has to reach it.
    pub(crate) fn first_task_learns(&self) -> bool {
        self.predictor.is_some() || !self.layers[0].info().sends_input
    }

    /// Whether the first task returns the same rows in every epoch: it has no parameters and no dropout.
    pub(crate) fn first_task_is_constant(&self) -> bool {
        !self.first_task_learns() && (self.spec.input_dropout == 0.0 || self.order == Order::PredictFirst)
    }

    /// Whether task `index` has equal bits when its rows are split in two ([`split_row`]), so that one part can be
    /// computed while the other is in transit (Dorylus, section 6: Lambda-internal streaming). Not for a batch norm in
    /// training, which reads all rows, nor for layers without [`LayerInfo::row_independent`].
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
        !(training && mixes) && layers.all(|layer| layer.info().row_independent)
    }

    /// Runs node task `index`, from 0 to [`Model::num_layers`]. In training, `dropout` is the key of the nodes' masks,
    /// distinct for every interval, and `sums` receives the sums of a batch norm for [`Model::absorb`].
    ///
    /// # Errors
    /// [`Error::Input`] when rows are missing or have the wrong shape; [`Error::Tensor`] when the device fails.
    pub fn node_task(
        &self,
        index: usize,
        inputs: NodeInputs<'_>,
        dropout: Option<Key>,
        sums: Option<&mut [f32]>,
    ) -> Result<NodeOutputs> {
        let (NodeOutputs { held, sent, terms }, _) = self.unchecked_node_task(index, inputs, dropout, sums, false)?;
        let held = held.map(|rows| self.finite(rows, || self.result_of(index))).transpose()?;
        let sends = || format!("a row that layer {} of {} sends", index + 1, self.layers.len());
        let sent = sent.map(|rows| self.finite(rows, sends)).transpose()?;
        Ok(NodeOutputs { held, sent, terms })
    }

    /// Runs node task `index` for a backward pass. If the sent rows are a product `h·Wᵀ`, returns `h` and `W` in place of them.
    ///
    /// # Errors
    /// As [`Model::node_task`].
    pub(crate) fn backward_task(
        &self,
        index: usize,
        inputs: NodeInputs<'_>,
        dropout: Option<Key>,
        sums: &mut [f32],
    ) -> Result<(NodeOutputs, Option<Factors>)> {
        self.unchecked_node_task(index, inputs, dropout, Some(sums), true)
    }

    fn unchecked_node_task(
        &self,
        index: usize,
        inputs: NodeInputs<'_>,
        dropout: Option<Key>,
        sums: Option<&mut [f32]>,
        factors_suffice: bool,
    ) -> Result<(NodeOutputs, Option<Factors>)> {
        let missing = |what: &str| Error::Input(format!("node task {index} needs {what}"));
        let key_of = |index: usize| dropout.map(|key| key.fold(index as u64));
        // Task 0 has no earlier results to join.
        let mut results = Vec::new();
        let mask = |width: usize| self.mask(index, dropout).map(|mask| mask.behind((inputs.first * width) as u64));
        let ends_with_relu = index > 0 && self.ends_with_relu(index - 1);
        let edgeless =
            |rows: usize| GraphBlock::new(Block::new(rows as u32, rows as u32, vec![0; rows + 1], Vec::new()));
        let mut held = match index {
            0 => {
                let x = inputs.held.ok_or_else(|| missing("features"))?;
                match &self.predictor {
                    Some(predictor) => predictor.forward(x, self.predictor_dropout(dropout), inputs.first)?,
                    None => x.clone(),
                }
            }
            _ => {
                let layer = &self.layers[index - 1];
                let own;
                (own, results) = self.split_held(index - 1, inputs.held)?;
                let aggregated = match layer.info().aggregation {
                    Some(Aggregation::Nothing) => own.as_ref(),
                    _ => inputs.aggregated,
                };
                let aggregated = layer.merge_aggregated(aggregated.ok_or_else(|| missing("the aggregated rows"))?)?;
                // Layers that do not read the own row ignore this argument.
                let own = own.as_ref().unwrap_or(&aggregated);
                let block = edgeless(aggregated.dim(0)?);
                let key = key_of(index - 1).map(|key| key.fold(1));
                let pass = Pass { block: &block, degrees: None, dropout: key, initial: inputs.initial };
                if ends_with_relu {
                    layer.apply_node_relu(&pass, own, &aggregated, mask(layer.info().out_dim))?
                } else {
                    let z = layer.apply_node(&pass, own, &aggregated)?;
                    self.residual_norms[index - 1].apply(z, own, sums)?
                }
            }
        };
        if let Some(readout) = self.readout.as_ref().filter(|_| index > 0) {
            results.push(activate(&held, self.activation(), None)?);
            if index == self.layers.len() {
                let held = readout.apply(&results, mask(readout.width()))?;
                return Ok((NodeOutputs { held: Some(held), sent: None, terms: None }, None));
            }
        }
        let Some(layer) = self.layers.get(index) else {
            return Ok((NodeOutputs { held: Some(held), sent: None, terms: None }, None));
        };
        let mask = mask(held.dim(1)?);
        let activation = if index == 0 { Activation::Identity } else { self.activation() };
        if !ends_with_relu && (activation != Activation::Identity || mask.is_some()) {
            held = activate(&held, activation, mask)?;
        }
        let held = if held.dtype() == DType::F64 || held.dtype() == DType::F32 { held } else { widen(&held)? };
        let block = edgeless(held.dim(0)?);
        let attends = matches!(layer.info().aggregation, Some(Aggregation::Attention { .. }));
        let (sent, factors) = match layer.send_weight().filter(|_| factors_suffice && !attends) {
            Some(weight) => (None, Some(Factors { rows: held.clone(), weight: weight.as_tensor().clone() })),
            None => (Some(layer.send(&Pass::new(&block), &held)?), None),
        };
        let terms = match &sent {
            Some(sent) if attends => Some(layer.attention_terms(&held, sent)?),
            _ => None,
        };
        let held = match (results.is_empty(), self.held_columns(index)[0]) {
            (true, _) => held,
            (false, 0) => Tensor::cat(&results, 1)?,
            (false, _) => Tensor::cat(&[&[held], &results[..]].concat(), 1)?,
        };
        Ok((NodeOutputs { held: Some(held), sent, terms }, factors))
    }
}
