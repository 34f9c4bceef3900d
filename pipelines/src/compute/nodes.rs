//! Node tasks on the compute thread, with versions of the parameters.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gnnflow_nn::ModelProfile;

use super::{ComputeState, Versions};
use crate::error::Error;
use gnnflow_nn::node_targets::NodeTargets;
use gnnflow_nn::node_task::{NodeResult, NodeTask};
use gnnflow_nn::parameter_versions::ParameterVersions;

impl ComputeState {
    /// Returns the profile of the model for full-graph training. With learned rows, the first task learns.
    ///
    /// # Errors
    /// When the model does not support full-graph training.
    pub(crate) fn profile(&mut self) -> Result<ModelProfile, Error> {
        let mut profile = self.model.profile()?;
        if self.learns_rows {
            (profile.tasks[0].learns, profile.tasks[0].constant) = (true, false);
        }
        Ok(profile)
    }

    pub(crate) fn seed(&mut self) -> u64 {
        self.seed
    }

    /// Publishes the parameters to `parameters`, now and after each change.
    pub(crate) fn publish_to(&mut self, parameters: Arc<ParameterVersions>) {
        let loaded = parameters.publish(&self.params);
        self.versions = Some(Versions { parameters, loaded });
    }

    /// Publishes the parameters of the model as the latest version.
    pub(super) fn publish(&mut self) {
        if let Some(versions) = &mut self.versions {
            versions.loaded = versions.parameters.publish(&self.params);
        }
    }

    /// Returns the targets of nodes, given by global ids.
    ///
    /// # Errors
    /// When a node has no target.
    pub(crate) fn targets(&self, nodes: &[u32]) -> Result<NodeTargets, Error> {
        self.objective.targets(nodes)
    }

    /// Computes a node task with a version of the parameters, which it copies into the model if needed.
    ///
    /// # Errors
    /// See [`NodeTask::run`].
    pub(crate) fn node_task(&mut self, task: NodeTask, version: u64) -> Result<NodeResult, Error> {
        let (start, forward) = (Instant::now(), task.is_forward());
        let Self { threads, model, versions, .. } = self;
        if let Some(versions) = versions.as_mut().filter(|versions| versions.loaded != version) {
            let flat = versions.parameters.get(version, Duration::ZERO);
            let flat =
                flat.ok_or_else(|| Error::Bug(format!("version {version} of the parameters has been released")))?;
            model.params_mut().set_from(&flat)?;
            versions.loaded = version;
        }
        let result = threads.install(|| task.run(model)).map_err(Error::from);
        let spent = if forward { &mut self.spent.forward } else { &mut self.spent.backward };
        *spent += start.elapsed();
        result
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};
    use gnnflow_nn::Model;
    use gnnflow_nn::model::ModelSpec;

    use super::*;
    use crate::config;
    use crate::config::Metric;
    use crate::task::objective::{Examples, Loss, Objective};
    use gnnflow_nn::node_task::{NodeRows, Work, matrix};

    struct Nothing;

    impl Objective for Nothing {
        fn width(&self) -> usize {
            2
        }

        fn metric(&self) -> Metric {
            Metric::Accuracy
        }

        fn loss(&self, _: &Examples<'_>, _: &Tensor) -> Result<Loss, Error> {
            Err(Error::Bug("this process trains no parameters".into()))
        }
    }

    #[test]
    fn backward_task_uses_the_parameter_version_of_its_epoch() {
        let registry = crate::Registry::default();
        let model = Model::build(&ModelSpec::new("gcn", 1, 3, 4, 2), registry.layers(), &Device::Cpu, 1).unwrap();
        let (width, len) = (model.hops().unwrap()[0].width, model.params().flat_len());
        let settings = (&config::Model::default(), &config::Train::default());
        let mut compute = ComputeState::new(model, Arc::new(Nothing), settings, 1).unwrap();
        let versions = Arc::new(ParameterVersions::new(0, 1, 1));
        compute.publish_to(Arc::clone(&versions));
        let rows: Vec<f32> = (0..2 * width).map(|i| i as f32 * 0.5 - 1.0).collect();
        let task = NodeTask {
            index: 1,
            count: 2,
            rows: NodeRows { aggregated: Some(matrix(rows, width)), ..NodeRows::default() },
            key: None,
            work: Work::Loss(NodeTargets::Classes(vec![0, 1])),
        };
        let gradient = |compute: &mut ComputeState, version| match compute.node_task(task.clone(), version).unwrap() {
            NodeResult::Back(back) => back,
            NodeResult::Outputs(_) => panic!("a loss has gradients"),
        };
        let first = versions.choose(0, 0, 1);
        let before = gradient(&mut compute, first.version);
        // Two steps are applied while the interval is in flight.
        for step in 1..3 {
            compute.set_params((0..len).map(|i| (i * step) as f32 * 0.01).collect()).unwrap();
        }
        let latest = versions.latest().version;
        assert_eq!(latest, first.version + 2);
        let other = gradient(&mut compute, latest);
        assert_ne!(other, before);
        assert_eq!(gradient(&mut compute, versions.choose(0, 0, 1).version), before, "the version of its epoch");
        assert_eq!(gradient(&mut compute, versions.choose(0, 1, 1).version), other, "the version of the next epoch");
        versions.release(0, 0);
        assert!(compute.node_task(task, first.version).is_err(), "the version has been released");
    }
}
