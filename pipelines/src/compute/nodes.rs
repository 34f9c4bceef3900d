//! Tensor tasks on the compute thread, and the versions of the parameters that they are done by.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gnnflow_nn::ModelProfile;

use super::ComputeState;
use crate::error::Error;
use crate::runtime::tensor_task::{TensorResult, TensorTask};
use gnnflow_nn::node_targets::NodeTargets;
use gnnflow_nn::parameter_versions::ParameterVersions;

/// The parameters' versions, and which of them the model has.
pub(super) struct Versions {
    service: Arc<ParameterVersions>,
    loaded: u64,
}

impl ComputeState {
    /// Returns what full-graph training must know of the model. Learned rows make the first task learn.
    ///
    /// # Errors
    /// When the model cannot be run in pieces of nodes.
    pub(crate) fn profile(&mut self) -> Result<ModelProfile, Error> {
        let mut profile = self.model.profile()?;
        if self.learns_rows {
            (profile.tasks[0].learns, profile.tasks[0].constant) = (true, false);
        }
        Ok(profile)
    }

    /// Returns the seed of the run.
    pub(crate) fn seed(&mut self) -> u64 {
        self.seed
    }

    /// Publishes the parameters from now on, as often as they change.
    pub(crate) fn serve(&mut self, service: Arc<ParameterVersions>) {
        let loaded = service.publish(&self.params);
        self.versions = Some(Versions { service, loaded });
    }

    /// The model has new parameters, the latest.
    pub(super) fn publish(&mut self) {
        if let Some(versions) = &mut self.versions {
            versions.loaded = versions.service.publish(&self.params);
        }
    }

    /// What the results for nodes are compared with, by their global ids.
    ///
    /// # Errors
    /// When one of them has nothing to be compared with.
    pub(crate) fn targets(&self, nodes: &[u32]) -> Result<NodeTargets, Error> {
        self.objective.targets(nodes)
    }

    /// Does a task here, by a version of the parameters; which is copied into the model where another one is there.
    ///
    /// # Errors
    /// As [`TensorTask::run`].
    pub(crate) fn tensor_task(&mut self, task: TensorTask, version: u64) -> Result<TensorResult, Error> {
        let (start, forward) = (Instant::now(), task.is_forward());
        let Self { pool, model, versions, .. } = self;
        if let Some(versions) = versions.as_mut().filter(|versions| versions.loaded != version) {
            let flat = versions.service.get(version, Duration::ZERO);
            let flat = flat.ok_or_else(|| Error::Bug(format!("parameters of version {version} are gone")))?;
            model.params_mut().set_from(&flat)?;
            versions.loaded = version;
        }
        let result = pool.install(|| task.run(model)).map_err(Error::from);
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
    use crate::runtime::tensor_task::{NodeRows, Work, matrix};
    use crate::task::{Examples, Loss, Objective};

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
    fn an_interval_goes_back_by_the_parameters_that_it_went_forwards_by() {
        let registry = crate::Registry::default();
        let model = Model::build(&ModelSpec::new("gcn", 1, 3, 4, 2), registry.layers(), &Device::Cpu, 1).unwrap();
        let (width, len) = (model.hops().unwrap()[0].width, model.params().flat_len());
        let settings = (&config::Model::default(), &config::Train::default());
        let mut trainer = ComputeState::new(model, Arc::new(Nothing), settings, 1).unwrap();
        let service = Arc::new(ParameterVersions::new(0, 1, 1));
        trainer.serve(Arc::clone(&service));
        let rows: Vec<f32> = (0..2 * width).map(|i| i as f32 * 0.5 - 1.0).collect();
        let task = TensorTask {
            index: 1,
            count: 2,
            rows: NodeRows { aggregated: Some(matrix(rows, width)), ..NodeRows::default() },
            key: None,
            work: Work::Loss(NodeTargets::Classes(vec![0, 1])),
        };
        let back = |trainer: &mut ComputeState, version| match trainer.tensor_task(task.clone(), version).unwrap() {
            TensorResult::Back(back) => back,
            TensorResult::Outputs(_) => panic!("a loss goes back"),
        };
        let choice = service.choose(0, 0, 1);
        let before = back(&mut trainer, choice.version);
        // Two epochs are applied while the interval is on its way.
        for step in 1..3 {
            trainer.set_params((0..len).map(|i| (i * step) as f32 * 0.01).collect()).unwrap();
        }
        let latest = service.latest().version;
        assert_eq!(latest, choice.version + 2);
        let other = back(&mut trainer, latest);
        assert_ne!(other, before);
        assert_eq!(back(&mut trainer, service.choose(0, 0, 1).version), before, "its own epoch's");
        assert_eq!(back(&mut trainer, service.choose(0, 1, 1).version), other, "the next epoch's");
        service.release(0, 0);
        assert!(trainer.tensor_task(task, choice.version).is_err(), "nobody refers to it any more");
    }
}
