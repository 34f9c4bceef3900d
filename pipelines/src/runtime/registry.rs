//! Layers, samplers and partitioners that pipeline files refer to by name.

use crate::config::{Registered, is_builtin_layer};
use gnnflow_data::Partitioner;
use gnnflow_dataflow::apply_operator::BatchOperator;
use gnnflow_kernels::sample::Sampler;
use std::{collections::BTreeMap, fmt, sync::Arc};

/// Registered partitioners and samplers, and all layers.
#[derive(Clone, Default)]
pub struct Registry {
    layers: gnnflow_nn::Registry,
    samplers: BTreeMap<String, Arc<dyn Sampler>>,
    partitioners: BTreeMap<String, Arc<dyn Partitioner>>,
    operators: BTreeMap<String, Arc<dyn BatchOperator>>,
}

impl Registry {
    /// Returns all layers, including built-in ones.
    pub fn layers(&self) -> &gnnflow_nn::Registry {
        &self.layers
    }

    /// Returns all layers, to register more.
    pub fn layers_mut(&mut self) -> &mut gnnflow_nn::Registry {
        &mut self.layers
    }

    /// Registers a sampler under its name.
    pub fn add_sampler(&mut self, sampler: impl Sampler + 'static) {
        self.samplers.insert(sampler.name().into(), Arc::new(sampler));
    }

    /// Registers a partitioner under its name.
    pub fn add_partitioner(&mut self, partitioner: impl Partitioner + 'static) {
        self.partitioners.insert(partitioner.name().into(), Arc::new(partitioner));
    }

    /// Adds an operator on batches.
    pub fn add_operator(&mut self, name: &str, operator: impl BatchOperator + 'static) {
        self.operators.insert(name.into(), Arc::new(operator));
    }

    /// Returns the operator of this name.
    pub fn operator(&self, name: &str) -> Option<Arc<dyn BatchOperator>> {
        self.operators.get(name).cloned()
    }

    /// Returns the registered sampler of this name.
    pub fn sampler(&self, name: &str) -> Option<Arc<dyn Sampler>> {
        self.samplers.get(name).cloned()
    }

    /// Returns the registered partitioner of this name.
    pub fn partitioner(&self, name: &str) -> Option<Arc<dyn Partitioner>> {
        self.partitioners.get(name).cloned()
    }

    /// Returns the registered names, for checking a pipeline file.
    pub fn names(&self) -> Registered {
        Registered {
            partitioners: self.partitioners.keys().cloned().collect(),
            samplers: self.samplers.keys().cloned().collect(),
            operators: self.operators.keys().cloned().collect(),
            layers: self.layers.names().filter(|name| !is_builtin_layer(name)).map(String::from).collect(),
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.names().fmt(f)
    }
}
