//! The registered operators that batches pass between the fetching of rows and the arithmetic.

use std::rc::Rc;
use std::sync::Arc;

use gnnflow_dataflow::batch::apply_operator::{ApplyOperator, BatchOperator};
use gnnflow_dataflow::batch::mini_batch::MiniBatch;
use gnnflow_dataflow::context::OperatorContext;
use gnnflow_dataflow::graph::local_graph::LocalGraph;
use gnnflow_dataflow::sample::sample_hop::CompactorPool;
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
            let errors = errors.clone();
            let checked = batches.apply_operator(name, &**operator, &cx);
            checked.flat_map(move |batch| errors.capture(batch.map_err(|error| Error::Usage(error.to_string()))))
        })
    }
}
