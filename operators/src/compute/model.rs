//! A model: layers by name, built from a description, run over blocks.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use gnnflow_data::rng::Key;

use super::error::{Error, Result};
use super::graph_block::GraphBlock;
use super::layers::{Gat, Gcn, Layer, Mlp, Pass, Sage};
use super::ops::activate;
use super::params::{ParamBuilder, Params};
use crate::kernel::elementwise::{Activation, Dropout};

/// What a model is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// The name of its layers in the [`Registry`].
    pub kind: String,
    /// How many layers.
    pub layers: usize,
    /// Columns of the input features.
    pub in_dim: usize,
    /// Columns between layers, all heads together.
    pub hidden: usize,
    /// Columns of the result: classes or labels.
    pub out_dim: usize,
    /// Heads of all layers but the last.
    pub heads: usize,
    /// Heads of the last layer, whose results are averaged.
    pub output_heads: usize,
    /// Share of each layer's input that is dropped when training.
    pub dropout: f64,
    /// Share of attention that is dropped when training; `None`: as `dropout`.
    pub attention_dropout: Option<f64>,
    /// SAGE's `mean`, `gcn` or `pool`.
    pub aggregator: String,
}

impl ModelSpec {
    /// A model of one head, without dropout, aggregating by mean; set the other fields after.
    pub fn new(kind: &str, layers: usize, in_dim: usize, hidden: usize, out_dim: usize) -> Self {
        let (kind, aggregator) = (kind.to_owned(), "mean".to_owned());
        let (heads, output_heads, dropout, attention_dropout) = (1, 1, 0.0, None);
        Self { kind, layers, in_dim, hidden, out_dim, heads, output_heads, dropout, attention_dropout, aggregator }
    }
}

/// What one layer is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Which layer, from 0 at the input.
    pub index: usize,
    /// Columns in.
    pub in_dim: usize,
    /// Columns out, all heads together.
    pub out_dim: usize,
    /// How many heads.
    pub heads: usize,
    /// Whether heads lie side by side in the result; else they are averaged.
    pub concat: bool,
    /// Share of attention that is dropped when training.
    pub attention_dropout: f64,
    /// SAGE's `mean`, `gcn` or `pool`.
    pub aggregator: String,
}

/// Makes a layer and its parameters.
pub type LayerFactory = dyn Fn(&LayerSpec, &mut ParamBuilder) -> Result<Box<dyn Layer>> + Send + Sync;

/// Layers by name. By default `sage`, `gcn`, `gat` and `mlp`.
#[derive(Clone)]
pub struct Registry {
    kinds: BTreeMap<String, Kind>,
}

#[derive(Clone)]
struct Kind {
    activation: Activation,
    factory: Arc<LayerFactory>,
}

impl Default for Registry {
    fn default() -> Self {
        let mut registry = Self { kinds: BTreeMap::new() };
        registry.register("sage", |spec, params| Ok(Box::new(Sage::new(spec, params)?)));
        registry.register("gcn", |spec, params| Ok(Box::new(Gcn::new(spec, params)?)));
        registry.register("mlp", |spec, params| Ok(Box::new(Mlp::new(spec, params)?)));
        registry.register_with("gat", Activation::Elu, |spec, params| Ok(Box::new(Gat::new(spec, params)?)));
        registry
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.kinds.keys()).finish()
    }
}

impl Registry {
    /// Adds layers called `name`, with ReLU between them; one of the same name is replaced.
    pub fn register<F>(&mut self, name: &str, factory: F)
    where
        F: Fn(&LayerSpec, &mut ParamBuilder) -> Result<Box<dyn Layer>> + Send + Sync + 'static,
    {
        self.register_with(name, Activation::Relu, factory);
    }

    /// As [`Registry::register`], with another activation between the layers.
    pub fn register_with<F>(&mut self, name: &str, activation: Activation, factory: F)
    where
        F: Fn(&LayerSpec, &mut ParamBuilder) -> Result<Box<dyn Layer>> + Send + Sync + 'static,
    {
        self.kinds.insert(name.to_owned(), Kind { activation, factory: Arc::new(factory) });
    }

    /// All names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.kinds.keys().map(String::as_str)
    }

    fn kind(&self, name: &str) -> Result<&Kind> {
        self.kinds.get(name).ok_or_else(|| Error::UnknownLayer {
            name: name.to_owned(),
            known: self.names().collect::<Vec<_>>().join(", "),
        })
    }
}

/// Layers one after another, an activation between them, and their parameters.
pub struct Model {
    spec: ModelSpec,
    activation: Activation,
    layers: Vec<Box<dyn Layer>>,
    params: Params,
    device: Device,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("spec", &self.spec).field("params", &self.params).finish_non_exhaustive()
    }
}

impl Model {
    /// Builds the model that `spec` describes, its parameters drawn under `seed`: the same on any machine and device.
    ///
    /// # Errors
    /// [`Error::UnknownLayer`] and [`Error::Spec`] when it cannot be; [`Error::Tensor`] when the device has no memory left.
    pub fn build(spec: &ModelSpec, registry: &Registry, device: &Device, seed: u64) -> Result<Self> {
        let kind = registry.kind(&spec.kind)?;
        let share = |key, p: f64| {
            if (0.0..1.0).contains(&p) { Ok(()) } else { Err(Error::spec(key, format!("{p} is not in 0 ≤ p < 1"))) }
        };
        share("dropout", spec.dropout)?;
        share("attention_dropout", spec.attention_dropout.unwrap_or(0.0))?;
        for (key, value) in
            [("layers", spec.layers), ("in_dim", spec.in_dim), ("hidden", spec.hidden), ("out_dim", spec.out_dim)]
        {
            if value == 0 {
                return Err(Error::spec(key, "is 0"));
            }
        }
        let mut params = ParamBuilder::new(seed, device);
        let mut layers = Vec::with_capacity(spec.layers);
        for index in 0..spec.layers {
            let last = index + 1 == spec.layers;
            let layer = LayerSpec {
                index,
                in_dim: if index == 0 { spec.in_dim } else { spec.hidden },
                out_dim: if last { spec.out_dim } else { spec.hidden },
                heads: if last { spec.output_heads } else { spec.heads },
                concat: !last,
                attention_dropout: spec.attention_dropout.unwrap_or(spec.dropout),
                aggregator: spec.aggregator.clone(),
            };
            params.set_prefix(format!("layers.{index}."));
            layers.push((kind.factory)(&layer, &mut params)?);
        }
        let (params, device) = (params.finish(), device.clone());
        Ok(Self { spec: spec.clone(), activation: kind.activation, layers, params, device })
    }

    /// What the model was built from.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Where its parameters are, and its inputs must be.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// How many layers, and blocks of a batch, there are.
    pub fn num_layers(&self) -> usize {
        self.layers.len()
    }

    /// Layer `index`, for schedules that run its pieces apart.
    pub fn layer(&self, index: usize) -> &dyn Layer {
        self.layers[index].as_ref()
    }

    /// What comes between layers.
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// Whether any layer needs degrees.
    pub fn needs_degrees(&self) -> bool {
        self.layers.iter().any(|layer| layer.needs_degrees())
    }

    /// Columns of the input of each layer, and of the result at the end.
    pub fn dims(&self) -> Vec<usize> {
        let ins = self.layers.iter().map(|layer| layer.in_dim());
        ins.chain(self.layers.last().map(|layer| layer.out_dim())).collect()
    }

    /// The parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The parameters, to be changed.
    pub fn params_mut(&mut self) -> &mut Params {
        &mut self.params
    }

    /// Runs all layers over the blocks of a batch, input side first: `x`, `[num_src of the first, in_dim]`, in `f32`, `bf16` or
    /// `f16` → `[num_dst of the last, out_dim]`.
    ///
    /// `degrees` has the true in-degree of every row of `x`. `dropout` is the batch's key when training, `None` at inference.
    ///
    /// # Errors
    /// [`Error::Input`] when blocks, `x` or `degrees` do not fit.
    pub fn forward(
        &self,
        blocks: &[Arc<GraphBlock>],
        x: &Tensor,
        degrees: Option<&[u32]>,
        dropout: Option<Key>,
    ) -> Result<Tensor> {
        if blocks.len() != self.layers.len() {
            return Err(Error::Input(format!("{} blocks for {} layers", blocks.len(), self.layers.len())));
        }
        let mut h = x.clone();
        for (index, (block, layer)) in blocks.iter().zip(&self.layers).enumerate() {
            self.check(index, block, &h)?;
            let key = dropout.map(|key| key.fold(index as u64));
            let mask = key.filter(|_| self.spec.dropout > 0.0).map(|key| Dropout::new(self.spec.dropout, key.fold(0)));
            let activation = if index == 0 { Activation::Identity } else { self.activation };
            if activation != Activation::Identity || mask.is_some() {
                h = activate(&h, activation, mask)?;
            }
            h = layer.forward(&Pass { block, degrees, dropout: key.map(|key| key.fold(1)) }, &h)?;
        }
        Ok(h)
    }

    /// Runs one layer at inference, and the activation after it unless it is the last: `[num_src, in_dim]` → `[num_dst, out_dim]`.
    ///
    /// # Errors
    /// As [`Model::forward`].
    pub fn forward_layer(
        &self,
        index: usize,
        block: &Arc<GraphBlock>,
        h: &Tensor,
        degrees: Option<&[u32]>,
    ) -> Result<Tensor> {
        self.check(index, block, h)?;
        let h = self.layers[index].forward(&Pass { block, degrees, dropout: None }, h)?;
        if index + 1 == self.layers.len() { Ok(h) } else { Ok(activate(&h, self.activation, None)?) }
    }

    fn check(&self, index: usize, block: &GraphBlock, h: &Tensor) -> Result<()> {
        let (found, wanted) = (h.dims(), [block.num_src(), self.layers[index].in_dim()]);
        if found != wanted {
            return Err(Error::Input(format!("layer {index} got rows of shape {found:?} where {wanted:?} belongs")));
        }
        Ok(())
    }
}
