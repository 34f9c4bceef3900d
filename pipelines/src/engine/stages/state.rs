//! The tables of full-graph training on the compute thread.
//!
//! Every access to a table runs on that thread, one job after another, so no row is read while it is written. The worker thread sends and
//! receives meanwhile.

use std::ops::Range;
use std::sync::Arc;

use gnnflow_dataflow::fetch::fetch_rows::FeatureView;
use gnnflow_dataflow::storage::{Place, RowStore};
use gnnflow_dataflow::wire::WireBlock;
use gnnflow_nn::ModelProfile;
use gnnflow_nn::parameter_versions::ParameterVersions;

use super::exchange::{AttentionVectors, RowExchange, StageCx};
use super::gradient_sums::GradientSums;
use super::intervals::Interval;
use super::learned_rows::LearnedRows;
use super::message::Outgoing;
use super::node_tables::NodeTables;
use super::pair_results::{PairResults, PairTargets};
use super::program::{Program, Stage};
use super::synchrony::Synchrony;
use super::token::Token;
use crate::compute::ComputeState;
use crate::config::RowDtype;
use crate::error::Error;

/// The options from which the stages of an epoch are built.
pub(crate) struct StageConfig {
    pub(crate) profile: ModelProfile,
    pub(crate) synchrony: Synchrony,
    /// The stored type of rows that neighbors sum.
    pub(crate) row_dtype: RowDtype,
    /// Seed of dropout's masks.
    pub(crate) seed: u64,
    /// Where tables of rows are stored.
    pub(crate) place: Place,
}

impl StageConfig {
    /// Returns, by node task, whether it is element-wise.
    pub(crate) fn element_wise(&self) -> Vec<bool> {
        self.profile.tasks.iter().map(|task| task.element_wise.is_some()).collect()
    }

    /// Refuses rounded rows for a model with layers that do not only sum their neighbors' rows.
    ///
    /// # Errors
    /// [`Error::Usage`] for the first such layer.
    pub(crate) fn check_row_dtype(&self) -> Result<(), Error> {
        let sums_only = |hop: &gnnflow_nn::model::Hop| !hop.attends() && !hop.takes_largest();
        match self.profile.hops.iter().position(|hop| !sums_only(hop)) {
            Some(hop) if self.row_dtype != RowDtype::F32 => {
                let message = format!(
                    "train.schedule.row_dtype: `bf16` rows work only with layers that sum their neighbors, and layer {} does \
                     not; use \"{}\"",
                    hop + 1,
                    RowDtype::F32
                );
                Err(Error::Usage(message))
            }
            _ => Ok(()),
        }
    }
}

/// Converts a failed reservation of tables.
pub(crate) fn reserve_failed(error: std::io::Error) -> Error {
    Error::Machine(format!("cannot reserve space for the rows of all nodes: {error}"))
}

/// The progress of an interval with the first hop, if its rows are constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Progress {
    Nothing,
    Sent,
    Aggregated,
}

/// The tables and the program of one worker.
pub(crate) struct EpochState {
    pub(super) program: Program,
    pub(super) synchrony: Synchrony,
    pub(super) intervals: Arc<Vec<Interval>>,
    pub(super) nodes: NodeTables,
    pub(super) exchange: Box<dyn RowExchange>,
    pub(super) gradients: GradientSums,
    pub(super) vectors: AttentionVectors,
    pub(super) learned: Option<LearnedRows>,
    pub(super) pairs: Option<PairResults>,
    /// Where an evaluation writes the results of all nodes.
    pub(super) results: Option<Arc<RowStore>>,
    seed: u64,
    pub(super) hops: usize,
    /// Whether the first node task has equal results in every epoch; and by interval, its progress.
    pub(super) constant: bool,
    pub(super) progress: Vec<Progress>,
    /// By node task, whether it is element-wise.
    pub(super) element_wise: Vec<bool>,
    /// Whether an epoch has ended.
    pub(super) settled: bool,
}

impl EpochState {
    /// Reserves the tables. `program` and `exchange` are of one schedule; `own` are the worker's nodes, cut into `intervals`.
    pub(crate) fn new(
        config: &StageConfig,
        (own, intervals): (Range<u32>, Vec<Interval>),
        (program, exchange): (Program, Box<dyn RowExchange>),
        features: FeatureView,
        parameters: Arc<ParameterVersions>,
        pairs: Option<PairTargets>,
    ) -> Result<Self, Error> {
        let StageConfig { profile, place, .. } = config;
        let (hops, element_wise) = (profile.hops.len(), config.element_wise());
        let program = match &pairs {
            Some(PairTargets { chunks, .. }) => program.with_pairs(hops, *chunks),
            None => program,
        };
        let is_whole = |task: usize| !program.is_column_parallel() || !element_wise[task];
        let goes_back = |hop: usize| program.goes_back(hop);
        let nodes =
            NodeTables::new(own.clone(), features, profile, &is_whole, &goes_back, place).map_err(reserve_failed)?;
        let pairs = match pairs {
            Some(PairTargets { rows, .. }) => Some(PairResults::new(rows, own.len(), place).map_err(reserve_failed)?),
            None => None,
        };
        Ok(Self {
            synchrony: config.synchrony,
            progress: vec![Progress::Nothing; intervals.len()],
            gradients: GradientSums::new(&intervals),
            intervals: Arc::new(intervals),
            nodes,
            exchange,
            vectors: AttentionVectors::new(profile.attention.clone(), parameters),
            learned: None,
            pairs,
            results: None,
            seed: config.seed,
            hops,
            constant: profile.tasks[0].constant,
            element_wise,
            settled: false,
            program,
        })
    }

    /// Sets the learned rows that the first node task reads.
    #[must_use]
    pub(crate) fn learning(mut self, rows: Option<LearnedRows>) -> Self {
        self.learned = rows;
        self
    }

    /// Sets the store of the results of the next evaluation.
    pub(crate) fn set_results(&mut self, results: Arc<RowStore>) {
        self.results = Some(results);
    }

    /// Returns the exchange and its context for a token.
    pub(super) fn exchange<'a>(
        &'a mut self,
        compute: &'a mut ComputeState,
        token: Token,
    ) -> (&'a mut dyn RowExchange, StageCx<'a>) {
        (&mut *self.exchange, StageCx { compute, token, seed: self.seed, vectors: &self.vectors })
    }

    /// Returns the seed of dropout's masks.
    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    /// Tells whether all intervals of this worker go through the stages together.
    pub(crate) fn is_lockstep(&self) -> bool {
        self.synchrony.mirrors()
    }

    /// Returns the stages that are chunks of pairs.
    pub(crate) fn pair_stages(&self) -> Range<u32> {
        self.program.pairs()
    }

    /// Returns the number of stages of an evaluation: those up to the loss, which computes the results of all nodes instead.
    pub(crate) fn evaluation_stages(&self) -> u32 {
        let ends = |&step: &u32| matches!(self.program.stage(step), Stage::Loss | Stage::Embed);
        (0..self.program.stages()).find(ends).map_or(0, |end| end + 1)
    }

    /// Returns the edges times columns that this worker aggregates per epoch, forward and backward.
    pub(crate) fn edge_columns(&self) -> u64 {
        self.exchange.edge_columns(&|hop| self.program.goes_back(hop))
    }

    /// Returns the number of items of each stage at this worker, and the exchanges of rows per epoch.
    pub(crate) fn work(&self) -> (Vec<u32>, u64) {
        let items = |step| self.program.items(step, self.intervals.len()).end;
        ((0..self.program.stages()).map(items).collect(), self.program.rounds())
    }

    /// Returns the maximum number of messages of this worker in flight.
    pub(crate) fn window(&self) -> usize {
        self.exchange.window()
    }

    /// Tells whether training is column-parallel.
    pub(crate) fn is_column_parallel(&self) -> bool {
        self.program.is_column_parallel()
    }

    /// Returns the message of an output of a stage; called when the window has a free permit.
    pub(crate) fn message(&self, outgoing: Outgoing) -> WireBlock {
        match outgoing {
            Outgoing::Block(block) => block,
            Outgoing::Note(note) => self.exchange.message(note),
        }
    }

    /// Stores the rows of a message.
    pub(crate) fn receive(&mut self, block: &WireBlock) {
        self.exchange.receive(block);
    }
}
