//! Layers, samplers and partitioners that pipeline files refer to by name.

use crate::config::{Config, Model, Registered, is_builtin_layer};
use crate::error::Error;
use candle_core::Device;
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

    /// Checks that a registered layer supports the schedule. It builds a narrow model: the widths of the data are not known yet.
    ///
    /// # Errors
    /// [`Error::Config`] when the layer has no aggregation for full-graph training.
    pub fn check(&self, config: &Config) -> Result<(), Error> {
        let (Some(train), Some(model)) = (&config.train, &config.model) else { return Ok(()) };
        if is_builtin_layer(&model.kind) || train.schedule.full_graph_options().is_none() {
            return Ok(());
        }
        let narrow = Model { hidden: 8 * model.heads(), ..model.clone() }.describe(8, 4, 0, 0);
        let hops = gnnflow_nn::Model::build(&narrow, &self.layers, &Device::Cpu, 0).map(|built| built.hops());
        match hops {
            Ok(Err(gnnflow_nn::Error::Spec { why, .. })) => Err(config.problem("model.kind", why)),
            // A layer may need the widths of the data. The run then reports its error.
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.names().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Tensor;
    use gnnflow_nn::layers::Aggregation;
    use gnnflow_nn::{Layer, LayerInfo, Pass, Result as ComputeResult, ops};
    use std::path::Path;

    /// Sums the neighbors.
    struct Sum(LayerInfo);

    impl Layer for Sum {
        fn info(&self) -> LayerInfo {
            self.0
        }
        fn aggregate(&self, pass: &Pass<'_>, sent: &Tensor, _: Option<&Tensor>) -> ComputeResult<Tensor> {
            Ok(ops::segment_sum(pass.block, sent)?)
        }
        fn apply_node(&self, _: &Pass<'_>, _: &Tensor, aggregated: &Tensor) -> ComputeResult<Tensor> {
            Ok(aggregated.clone())
        }
    }

    #[test]
    fn layer_without_aggregation_is_refused_for_full_graph_training_only() {
        let mut registry = Registry::default();
        for (name, aggregation) in [("batches", None), ("all", Some(Aggregation::Sum))] {
            registry.layers_mut().register(name, move |spec, _| {
                Ok(Box::new(Sum(LayerInfo { aggregation, ..LayerInfo::new(spec.in_dim, spec.out_dim) })))
            });
        }
        let check = |kind: &str, schedule: &str| {
            let text =
                format!("[graph]\ngenerate = {{}}\n[model]\nkind = '{kind}'\n[train]\nschedule = '{schedule}'\n");
            let config = Config::parse(&text, Path::new("p.toml"), &[], &registry.names()).unwrap();
            registry.check(&config).map_err(|error| error.to_string())
        };
        for schedule in ["full-graph", "tensor-parallel"] {
            let error = check("batches", schedule).unwrap_err();
            let names = ["p.toml:4: model.kind", "`info`", "\"batches\"", "Some(Aggregation::Sum)", "`aggregate`"];
            assert!(names.iter().all(|name| error.contains(name)), "{error}");
            check("all", schedule).unwrap();
        }
        check("batches", "mini-batch").unwrap();
        check("batches", "partition-parallel").unwrap();
    }
}
