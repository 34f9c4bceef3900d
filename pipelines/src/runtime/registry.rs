//! What pipeline files call by name: layers, samplers, partitioners; built-in and a user's own.

use crate::config::{Registered, is_builtin_layer};
use gnnflow_data::Partitioner;
use gnnflow_dataflow::batch::apply_operator::BatchOperator;
use gnnflow_kernels::sample::Sampler;
use std::{collections::BTreeMap, fmt, sync::Arc};

/// A user's own partitioners and samplers, and all layers.
#[derive(Clone, Default)]
pub struct Registry {
    layers: gnnflow_nn::Registry,
    samplers: BTreeMap<String, Arc<dyn Sampler>>,
    partitioners: BTreeMap<String, Arc<dyn Partitioner>>,
    operators: BTreeMap<String, Arc<dyn BatchOperator>>,
}

impl Registry {
    /// All layers, built-in ones too.
    pub fn layers(&self) -> &gnnflow_nn::Registry {
        &self.layers
    }

    /// All layers, to add to.
    pub fn layers_mut(&mut self) -> &mut gnnflow_nn::Registry {
        &mut self.layers
    }

    /// Adds a sampler under the name that it says.
    pub fn add_sampler(&mut self, sampler: impl Sampler + 'static) {
        self.samplers.insert(sampler.name().into(), Arc::new(sampler));
    }

    /// Adds a partitioner under the name that it says.
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

    /// The user's own sampler of this name.
    pub fn sampler(&self, name: &str) -> Option<Arc<dyn Sampler>> {
        self.samplers.get(name).cloned()
    }

    /// The user's own partitioner of this name.
    pub fn partitioner(&self, name: &str) -> Option<Arc<dyn Partitioner>> {
        self.partitioners.get(name).cloned()
    }

    /// The names that were added, for checking a pipeline file.
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
