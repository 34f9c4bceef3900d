//! The model of an earlier run: for its results, or for training that starts from it.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use candle_core::Device;
use gnnflow_data::format::counted;
use gnnflow_nn::optimizer::State;
use gnnflow_nn::params::Param;
use gnnflow_nn::{Model, ModelSpec};

use super::Run;
use crate::collectives::{Collectives, Driver};
use crate::context::WorkerContext;
use crate::embedding::from_run::Unknown;
use crate::error::Error;
use crate::model_file::{FittingModel, Unseen, WarmStart};
use crate::outputs::run_folder::NODE_EMBEDDINGS;

impl Run<'_> {
    /// Sets the parameters and the learned rows to those of `model`.
    ///
    /// # Errors
    /// If the model is of another pipeline.
    pub(super) fn load_model(&mut self, driver: &mut Driver<'_>, model: &FittingModel) -> Result<(), Error> {
        let unknown = if model.unseen == Unseen::Refuse { Unknown::Refuse } else { Unknown::Keep };
        let unseen = self.load_rows(driver, &model.run, unknown)?;
        if let Some(rows) = self.context.embeddings.clone().filter(|_| model.unseen != Unseen::Refuse) {
            let count = self.collectives.all_reduce_counts(driver, &[unseen.len() as u64])?[0];
            rows.set_unseen(driver, &mut self.collectives, &self.context.graph, (&unseen, model.unseen))?;
            if self.context.worker == 0 && count > 0 {
                let (of, all) = (counted(count, "node"), counted(self.job.dataset.manifest().nodes, "node"));
                let used = if model.unseen == Unseen::Zero { "zeros" } else { "means of the rows of in-neighbors" };
                driver.runtime.say(&format!("note: the model has no learned rows for {of} of {all}; uses {used}"));
            }
        }
        let params = self.at_first_worker(|_, params| model.read(params))?;
        self.broadcast_parameters(driver, params)
    }

    /// Sets the parameters and the learned rows to those of `model`, as far as it has them. All others stay as they are drawn.
    ///
    /// # Errors
    /// If the model is of another pipeline.
    pub(super) fn start_from(
        &mut self,
        driver: &mut Driver<'_>,
        model: &WarmStart,
        spec: &ModelSpec,
    ) -> Result<(), Error> {
        let unknown = self.load_rows(driver, &model.run, Unknown::Keep)?;
        let unknown = self.collectives.all_reduce_counts(driver, &[unknown.len() as u64])?[0];
        let nodes = self.job.dataset.manifest().nodes;
        if unknown == nodes {
            let message = "has no learned row for any node of the dataset: their ids differ; prepare the dataset with the ids of that run, or leave \
                           train.from out";
            return Err(Error::Input(format!("{}: {message}", model.run.join(NODE_EMBEDDINGS).display())));
        }
        let (mut drawn, mut optimizer) = (Vec::new(), None);
        let params = self.at_first_worker(|run, params| {
            let wider = if model.has_other_results() { run.wider(params, spec)? } else { shapes(params) };
            drawn = model.read(params, &wider)?;
            if let Some(kind) = &model.optimizer {
                let own = run.compute_thread.call(|compute| compute.optimizer_state());
                optimizer = Some(model.read_optimizer(kind, &own, (params, &wider))?);
            }
            Ok(())
        })?;
        if self.context.worker == 0 {
            driver.runtime.say(&format!("starts from the model in {}", model.run.display()));
            let begin_anew = format!("drawn anew, as a whole or in part: {}", drawn.join(", "));
            let new_rows =
                format!("learned rows of {} of {} are drawn", counted(unknown, "node"), counted(nodes, "node"));
            let notes = model.notes.iter().chain((!drawn.is_empty()).then_some(&begin_anew));
            let notes = notes.chain((unknown > 0).then_some(&new_rows));
            notes.for_each(|note| driver.runtime.say(&format!("note: {note}")));
        }
        self.broadcast_parameters(driver, params)?;
        if model.optimizer.is_some() { self.broadcast_optimizer(driver, optimizer) } else { Ok(()) }
    }

    /// Sets the state of the optimizers of all workers to that of the first one. A collective operation.
    fn broadcast_optimizer(&mut self, driver: &mut Driver<'_>, state: Option<State>) -> Result<(), Error> {
        let steps = self.collectives.broadcast(driver, state.as_ref().map(|state| state.steps))?;
        let mut own = self.compute_thread.call(|compute| compute.optimizer_state());
        own.steps = steps;
        let mut given = state.into_iter().flat_map(|state| state.vectors);
        for (_, vector) in &mut own.vectors {
            *vector = self.broadcast_vector(driver, vector.len(), given.next().map(|(_, vector)| vector))?;
        }
        self.compute_thread.call(move |compute| compute.load_optimizer(own))
    }

    /// Reads the learned rows of the run in `folder`, if the model has any. Returns the own nodes that have no row there.
    fn load_rows(&self, driver: &Driver<'_>, folder: &Path, unknown: Unknown) -> Result<Vec<u32>, Error> {
        let Some(rows) = &self.context.embeddings else { return Ok(Vec::new()) };
        let _busy = driver.runtime.busy("reading the learned rows of the model");
        let WorkerContext { parts, placement, worker, .. } = &self.context;
        let hosted = placement.parts_of(*worker).map(|part| parts.get(part));
        let nodes = hosted.map(|part| (part.range.start as u32, part.nodes.ids()));
        rows.read_from_run(&folder.join(NODE_EMBEDDINGS), nodes, unknown)
    }

    /// Returns the parameters that `set` changes, at the first worker.
    fn at_first_worker(
        &self,
        set: impl FnOnce(&Self, &mut [Param]) -> Result<(), Error>,
    ) -> Result<Option<Vec<Param>>, Error> {
        if self.context.worker > 0 {
            return Ok(None);
        }
        let mut params = self.compute_thread.call(|compute| compute.with_model(|model| model.params().export()))?;
        set(self, &mut params)?;
        Ok(Some(params))
    }

    /// Sets the parameters of all workers to `params` of the first one. Returns when all workers have called it.
    fn broadcast_parameters(&self, driver: &mut Driver<'_>, params: Option<Vec<Param>>) -> Result<(), Error> {
        let count = self.compute_thread.call(|compute| compute.params().len());
        let flat = params.map(|params| params.into_iter().flat_map(|param| param.values).collect());
        let values = self.broadcast_vector(driver, count, flat)?;
        // No worker requests rows before all have theirs: the sum above waits for all.
        self.compute_thread.call(move |compute| compute.set_params(values))
    }

    /// Returns the vector of `len` numbers that the first worker gives.
    fn broadcast_vector(
        &self,
        driver: &mut Driver<'_>,
        len: usize,
        vector: Option<Vec<f32>>,
    ) -> Result<Vec<f32>, Error> {
        let vector = vector.map(Arc::new);
        // Separate collectives: their dataflow is used once and dropped.
        let context = &self.context;
        let mut vectors = Collectives::new(context.placement, context.worker, Rc::clone(&context.other_meter));
        vectors.all_reduce_rows(driver, len, |part| vector.clone().filter(|_| part == 0))
    }

    /// Returns the shapes of the model's parameters if its results had more columns.
    fn wider(&self, params: &[Param], spec: &ModelSpec) -> Result<Vec<Vec<usize>>, Error> {
        // If the results become as wide as the rows before them, a residual connection loses its parameter.
        for added in 1..=2 {
            let spec = ModelSpec { out_dim: spec.out_dim + added, ..spec.clone() };
            let model = Model::build(&spec, self.job.registry.layers(), &Device::Cpu, self.train.seed)?;
            let shape = |param: &Param| Some(model.params().get(&param.name)?.dims().to_vec());
            if let Some(wider) = params.iter().map(shape).collect() {
                return Ok(wider);
            }
        }
        Err(Error::Bug("the number of results decides which parameters the model has".into()))
    }
}

fn shapes(params: &[Param]) -> Vec<Vec<usize>> {
    params.iter().map(|param| param.shape.clone()).collect()
}
