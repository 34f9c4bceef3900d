//! The model of an earlier run.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use gnnflow_nn::params::Param;

use super::Run;
use crate::collectives::{Collectives, Driver};
use crate::context::WorkerContext;
use crate::error::Error;
use crate::outputs::model_file;
use crate::outputs::run_folder::{NODE_EMBEDDINGS, remove_old_results};

impl Run<'_> {
    /// Sets the parameters to those of the model in the run folder `folder`, which the first worker reads and sends to all.
    ///
    /// # Errors
    /// If there is no model, or it is of another pipeline.
    pub(super) fn load_model(&mut self, driver: &mut Driver<'_>, folder: &Path, count: usize) -> Result<(), Error> {
        if let Some(rows) = &self.context.embeddings {
            let _busy = driver.runtime.busy("reading the learned rows of the model");
            let WorkerContext { parts, placement, worker, .. } = &self.context;
            let hosted = placement.parts_of(*worker).map(|part| parts.get(part));
            let nodes = hosted.map(|part| (part.range.start as u32, part.nodes.ids()));
            rows.read_from_run(&folder.join(NODE_EMBEDDINGS), nodes)?;
        }
        let flat = match self.context.worker {
            0 => {
                let mut params: Vec<Param> =
                    self.compute_thread.call(|compute| compute.with_model(|model| model.params().export()))?;
                model_file::read(folder, &mut params)?;
                remove_old_results(&self.job.run_dir, &self.job.config)?;
                Some(Arc::new(params.into_iter().flat_map(|param| param.values).collect::<Vec<f32>>()))
            }
            _ => None,
        };
        // Separate collectives: their dataflow is used once and dropped.
        let context = &self.context;
        let mut vectors = Collectives::new(context.placement, context.worker, Rc::clone(&context.other_meter));
        let values = vectors.all_reduce_rows(driver, count, |part| flat.clone().filter(|_| part == 0))?;
        // No worker requests rows before all have theirs: the sum above waits for all.
        self.compute_thread.call(move |compute| compute.set_params(values))
    }
}
