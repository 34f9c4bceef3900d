//! The registered operators that batches pass between the fetching of rows and the arithmetic.

use std::rc::Rc;
use std::sync::Arc;

use gnnflow_dataflow::apply_operator::{ApplyOperator, BatchOperator};
use gnnflow_dataflow::batch::mini_batch::MiniBatch;
use gnnflow_dataflow::context::OperatorContext;
use gnnflow_dataflow::graph::local_graph::LocalGraph;
use gnnflow_dataflow::sample::sample_hop::CompactorPool;
use gnnflow_kernels::matrix::Values;
use timely::dataflow::StreamVec;
use timely::dataflow::operators::vec::Map;

use crate::collectives::FirstError;
use crate::config::Train;
use crate::context::WorkerContext;
use crate::error::Error;
use crate::runtime::job::Job;

/// The operators of `train.operators`, in order.
#[derive(Clone)]
pub(crate) struct Operators {
    operators: Vec<(String, Arc<dyn BatchOperator>)>,
    seed: u64,
}

impl Operators {
    /// Looks the operators up in the registry.
    ///
    /// # Errors
    /// If a name is not registered.
    pub(crate) fn open(job: &Job, train: &Train) -> Result<Self, Error> {
        let find = |name: &String| {
            let operator = job.registry.operator(name);
            let missing = || job.config.problem("train.operators", format!("no operator is registered as \"{name}\""));
            Ok((name.clone(), operator.ok_or_else(missing)?))
        };
        let operators = train.operators.iter().map(find).collect::<Result<_, Error>>()?;
        Ok(Self { operators, seed: train.seed })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.operators.is_empty()
    }

    /// Applies the operators to batches that were sampled from `graph`. A wrong number of batches is an error of the run.
    pub(crate) fn apply<'scope>(
        &self,
        batches: StreamVec<'scope, u64, MiniBatch>,
        context: &WorkerContext,
        graph: &Arc<LocalGraph>,
        errors: &FirstError,
    ) -> StreamVec<'scope, u64, MiniBatch> {
        let cx = OperatorContext {
            graph: Arc::clone(graph),
            meter: Rc::clone(&context.meter),
            pool: CompactorPool::on(Arc::clone(&context.sampling)),
            seed: self.seed,
        };
        self.operators.iter().fold(batches, |batches, (name, operator)| {
            let (errors, name) = (errors.clone(), name.clone());
            let counted = batches.apply_operator(&name, &**operator, &cx);
            counted
                .flat_map(move |batch| errors.capture(batch.map_err(usage).and_then(|batch| check_size(&name, batch))))
        })
    }
}

fn usage(error: impl ToString) -> Error {
    Error::Usage(error.to_string())
}

/// Returns the batch if it has a feature row per node.
fn check_size(operator: &str, batch: MiniBatch) -> Result<MiniBatch, Error> {
    let values = match &batch.features.values {
        Values::F32(values) => values.len(),
        Values::F16(values) => values.len(),
        Values::Bf16(values) => values.len(),
    };
    let (nodes, dim) = (batch.nodes.len(), batch.features.dim);
    if values == nodes * dim {
        return Ok(batch);
    }
    Err(Error::Usage(format!("operator \"{operator}\" returned {values} feature values for {nodes} nodes of {dim}")))
}
