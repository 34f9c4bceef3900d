//! Node tasks on the compute thread, with versions of the parameters.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gnnflow_nn::ModelProfile;
use gnnflow_nn::device::DeviceTimer;

use super::passes::{LoadedModel, Pass};
use super::{ComputeState, JobThread, Passes};
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
        let mut profile = self.passes.read().model.profile()?;
        if self.passes.learns_rows {
            (profile.tasks[0].learns, profile.tasks[0].constant) = (true, false);
        }
        Ok(profile)
    }

    pub(crate) fn seed(&mut self) -> u64 {
        self.passes.seed
    }

    /// Publishes the parameters to `parameters`, now and after each change.
    pub(crate) fn publish_to(&mut self, parameters: Arc<ParameterVersions>) {
        let parameters = self.passes.versions.get_or_init(|| parameters);
        self.passes.write().version = parameters.publish(&self.params);
    }

    /// Returns the targets of nodes, given by global ids.
    ///
    /// # Errors
    /// When a node has no target.
    pub(crate) fn targets(&self, nodes: &[u32]) -> Result<NodeTargets, Error> {
        self.passes.objective.targets(nodes)
    }

    /// Computes a node task on all compute threads; see [`Passes::node_task`].
    ///
    /// # Errors
    /// Those of [`Passes::node_task`].
    pub(crate) fn node_task(&mut self, task: NodeTask, version: u64) -> Result<NodeResult, Error> {
        self.passes.node_task(&self.all, task, version)
    }
}

impl Passes {
    /// Publishes the parameters of the model as the latest version.
    pub(super) fn publish(&self, loaded: &mut LoadedModel, params: &[f32]) {
        if let Some(versions) = self.versions.get() {
            loaded.version = versions.publish(params);
        }
    }

    /// Computes a node task with a version of the parameters. Copies them into the model if it has another version; no other task runs meanwhile.
    ///
    /// # Errors
    /// See [`NodeTask::run`].
    pub(crate) fn node_task(&self, on: &JobThread, task: NodeTask, version: u64) -> Result<NodeResult, Error> {
        let pass = if task.is_forward() { Pass::Forward } else { Pass::Backward };
        let run = |loaded: &LoadedModel| {
            let (start, timer) = (Instant::now(), DeviceTimer::start(loaded.model.device())?);
            let result = on.threads.install(|| task.run(&loaded.model))?;
            self.spend_on_device(timer.map(DeviceTimer::end).transpose()?)?;
            self.spend(pass, on, start);
            Ok(result)
        };
        let loaded = self.read();
        if loaded.version == version {
            return run(&loaded);
        }
        drop(loaded);
        let mut loaded = self.write();
        if loaded.version != version {
            let flat = self.versions.get().and_then(|versions| versions.get(version, Duration::ZERO));
            let flat =
                flat.ok_or_else(|| Error::Bug(format!("version {version} of the parameters has been released")))?;
            loaded.model.params_mut().set_from(&flat)?;
            loaded.version = version;
        }
        run(&loaded)
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
        let mut compute = ComputeState::new(model, Arc::new(Nothing), settings, (1, 1), Box::new(())).unwrap();
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
