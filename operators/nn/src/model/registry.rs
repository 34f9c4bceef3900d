//! Layer kinds by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::layers::{Appnp, Gat, GatPropagation, Gatv2, Gcn, Gin, Gine, Layer, LayerSpec, Mlp, Rgcn, Sage, Sgc};
use crate::params::ParamBuilder;
use gnnflow_kernels::dense::elementwise::Activation;

/// Creates a layer and its parameters.
pub type LayerFactory = dyn Fn(&LayerSpec, &mut ParamBuilder) -> Result<Box<dyn Layer>> + Send + Sync;

/// The position of the learned linear maps in a kind of model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// In every layer: features → hidden → … → hidden → result, with an activation in between.
    #[default]
    Interleaved,
    /// In the last layer, after propagations of the features.
    PropagateFirst,
    /// In a perceptron before the first layer; the layers propagate its predictions.
    PredictFirst,
}

/// Layers by name. By default `sage`, `gcn`, `gat`, `gatv2`, `gin`, `gine`, `sgc`, `rgcn`, `appnp` and `mlp`.
#[derive(Clone)]
pub struct Registry {
    kinds: BTreeMap<String, Kind>,
}

#[derive(Clone)]
pub(super) struct Kind {
    pub(super) activation: Activation,
    pub(super) order: Order,
    pub(super) factory: Arc<LayerFactory>,
    /// Creates a propagation without linear maps, if the kind supports [`KindOptions::decoupled`](super::KindOptions).
    pub(super) propagation: Option<Arc<LayerFactory>>,
}

impl Default for Registry {
    fn default() -> Self {
        let mut registry = Self { kinds: BTreeMap::new() };
        registry.register("sage", |spec, params| Ok(Box::new(Sage::new(spec, params)?)));
        registry.register("gcn", |spec, params| Ok(Box::new(Gcn::new(spec, params)?)));
        registry.register("gin", |spec, params| Ok(Box::new(Gin::new(spec, params)?)));
        registry.register("gine", |spec, params| Ok(Box::new(Gine::new(spec, params)?)));
        registry.register("rgcn", |spec, params| Ok(Box::new(Rgcn::new(spec, params)?)));
        registry.register("mlp", |spec, params| Ok(Box::new(Mlp::new(spec, params)?)));
        registry.register_with("gat", Activation::Elu, |spec, params| Ok(Box::new(Gat::new(spec, params)?)));
        let propagation = |spec: &LayerSpec, params: &mut ParamBuilder| -> Result<Box<dyn Layer>> {
            Ok(Box::new(GatPropagation::new(spec, params)?))
        };
        if let Some(gat) = registry.kinds.get_mut("gat") {
            gat.propagation = Some(Arc::new(propagation));
        }
        registry.register_with("gatv2", Activation::Elu, |spec, params| Ok(Box::new(Gatv2::new(spec, params)?)));
        let sgc = |spec: &LayerSpec, params: &mut ParamBuilder| -> Result<Box<dyn Layer>> {
            Ok(Box::new(Sgc::new(spec, params)?))
        };
        registry.register_ordered("sgc", Activation::Identity, Order::PropagateFirst, sgc);
        let appnp =
            |spec: &LayerSpec, _: &mut ParamBuilder| -> Result<Box<dyn Layer>> { Ok(Box::new(Appnp::new(spec)?)) };
        registry.register_ordered("appnp", Activation::Relu, Order::PredictFirst, appnp);
        registry
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.kinds.keys()).finish()
    }
}

impl Registry {
    /// Registers a layer under `name`, with ReLU between layers. Replaces a layer of the same name.
    pub fn register<F>(&mut self, name: &str, factory: F)
    where
        F: Fn(&LayerSpec, &mut ParamBuilder) -> Result<Box<dyn Layer>> + Send + Sync + 'static,
    {
        self.register_with(name, Activation::Relu, factory);
    }

    /// As [`Registry::register`], with the given activation between layers.
    pub(crate) fn register_with<F>(&mut self, name: &str, activation: Activation, factory: F)
    where
        F: Fn(&LayerSpec, &mut ParamBuilder) -> Result<Box<dyn Layer>> + Send + Sync + 'static,
    {
        self.register_ordered(name, activation, Order::Interleaved, factory);
    }

    /// As [`Registry::register_with`], with the given [`Order`] of linear maps.
    pub(crate) fn register_ordered<F>(&mut self, name: &str, activation: Activation, order: Order, factory: F)
    where
        F: Fn(&LayerSpec, &mut ParamBuilder) -> Result<Box<dyn Layer>> + Send + Sync + 'static,
    {
        self.kinds.insert(name.to_owned(), Kind { activation, order, factory: Arc::new(factory), propagation: None });
    }

    /// Returns all names in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.kinds.keys().map(String::as_str)
    }

    pub(super) fn kind(&self, name: &str) -> Result<&Kind> {
        self.kinds.get(name).ok_or_else(|| Error::UnknownLayer {
            name: name.to_owned(),
            known: self.names().collect::<Vec<_>>().join(", "),
        })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};
    use gnnflow_kernels::block::Block;

    use super::*;
    use crate::layers::{LayerInfo, Pass};
    use crate::{GraphBlock, Model, ModelSpec, ops};

    /// Returns its input rows, whatever it has promised.
    struct Unchanged(LayerInfo);

    impl Layer for Unchanged {
        fn info(&self) -> LayerInfo {
            self.0
        }
        fn aggregate(&self, pass: &Pass, sent: &Tensor, _: Option<&Tensor>) -> Result<Tensor> {
            Ok(ops::segment_sum(pass.block, sent)?)
        }
        fn apply_node(&self, _: &Pass, own: &Tensor, _: &Tensor) -> Result<Tensor> {
            Ok(own.clone())
        }
    }

    #[test]
    fn layer_that_returns_rows_of_another_width_is_named() {
        let mut registry = Registry::default();
        registry.register("unchanged", |spec, _| Ok(Box::new(Unchanged(LayerInfo::new(spec.in_dim, spec.out_dim)))));
        let model = Model::build(&ModelSpec::new("unchanged", 2, 3, 8, 2), &registry, &Device::Cpu, 7).unwrap();
        let block = |to, from| GraphBlock::new(Block::new(to, from, vec![0; to as usize + 1], vec![]));
        let x = Tensor::ones((3, 3), candle_core::DType::F32, &Device::Cpu).unwrap();
        let error = model.forward(&[block(2, 3), block(1, 2)], &x, None, None).unwrap_err().to_string();
        assert!(error.contains("layer 0 returned rows of shape [2, 3]") && error.contains("[2, 8]"), "{error}");
    }
}
