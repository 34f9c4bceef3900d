//! The state of full-graph training on the compute thread: what a stage of an interval reads and writes.
//!
//! Everything that reads or writes a table runs on that thread, one job after another. So no row is read while it is written; the worker sends
//! and receives meanwhile.

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
use super::pair_results::{PairResults, Scored};
use super::program::{Program, Stage};
use super::synchrony::Synchrony;
use super::token::Token;
use crate::compute::ComputeState;
use crate::config::RowDtype;
use crate::error::Error;

/// What the stages of an epoch are made from.
pub(crate) struct StageConfig {
    pub(crate) profile: ModelProfile,
    pub(crate) synchrony: Synchrony,
    /// How rows that neighbors sum are stored.
    pub(crate) row_dtype: RowDtype,
    /// Seed of dropout's masks.
    pub(crate) seed: u64,
    /// Where tables of rows are stored.
    pub(crate) place: Place,
}

impl StageConfig {
    /// Returns, by node task, whether it does the same with every column.
    pub(crate) fn element_wise(&self) -> Vec<bool> {
        self.profile.tasks.iter().map(|task| task.element_wise.is_some()).collect()
    }

    /// Refuses rounded rows for a model that does more with its neighbors' rows than to sum them.
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

/// Turns a failure to reserve tables into an error of the machine.
pub(crate) fn no_room(error: std::io::Error) -> Error {
    Error::Machine(format!("cannot reserve space for the rows of all nodes: {error}"))
}

/// How far an interval has come with what is the same in every epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Progress {
    Nothing,
    Sent,
    Aggregated,
}

/// Where evaluation writes rows of all nodes.
#[derive(Clone)]
pub(crate) struct ResultSink {
    /// The model's results.
    pub(crate) results: Arc<RowStore>,
    /// What the last layer reads of a node, unless those are the results.
    pub(crate) embeddings: Option<Arc<RowStore>>,
}

/// The tables of one worker, and the program that works on them.
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
    pub(super) sink: Option<ResultSink>,
    seed: u64,
    pub(super) hops: usize,
    /// Whether the first node task does the same in every epoch; and by interval, what has been done of it.
    pub(super) constant: bool,
    pub(super) progress: Vec<Progress>,
    /// By node task, whether it does the same with every column.
    pub(super) element_wise: Vec<bool>,
    /// Whether a readout joins the results of all layers.
    readout: bool,
    /// Whether an epoch is over.
    pub(super) settled: bool,
}

impl EpochState {
    /// Reserves what own nodes hold. `program` and `exchange` belong together; `own` are the worker's nodes, cut into `intervals`.
    ///
    /// # Errors
    /// When there is no room.
    pub(crate) fn new(
        config: &StageConfig,
        (own, intervals): (Range<u32>, Vec<Interval>),
        (program, exchange): (Program, Box<dyn RowExchange>),
        features: FeatureView,
        parameters: Arc<ParameterVersions>,
        pairs: Option<Scored>,
    ) -> Result<Self, Error> {
        let StageConfig { profile, place, .. } = config;
        let (hops, element_wise) = (profile.hops.len(), config.element_wise());
        let program = match &pairs {
            Some(Scored { chunks, .. }) => program.with_pairs(hops, *chunks),
            None => program,
        };
        let is_whole = |task: usize| !program.is_by_columns() || !element_wise[task];
        let goes_back = |hop: usize| program.goes_back(hop);
        let nodes = NodeTables::new(own.clone(), features, profile, &is_whole, &goes_back, place).map_err(no_room)?;
        let pairs = match pairs {
            Some(Scored { rows, .. }) => Some(PairResults::new(rows, own.len(), place).map_err(no_room)?),
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
            sink: None,
            seed: config.seed,
            hops,
            constant: profile.tasks[0].constant,
            element_wise,
            readout: profile.readout,
            settled: false,
            program,
        })
    }

    /// Says that what the first node task reads is learned.
    #[must_use]
    pub(crate) fn learning(mut self, rows: Option<LearnedRows>) -> Self {
        self.learned = rows;
        self
    }

    /// Says where evaluation writes.
    pub(crate) fn set_sink(&mut self, sink: ResultSink) {
        self.sink = Some(sink);
    }

    /// Returns the exchange and what it may use for a token.
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

    /// Tells whether no interval may begin a stage before all intervals here have finished the one before.
    pub(crate) fn is_lockstep(&self) -> bool {
        self.synchrony.mirrors()
    }

    /// Tells whether embeddings, which are what the last layer reads, are whole rows at some time. They are not where a readout follows, which
    /// reads the last layer's own results.
    pub(crate) fn has_embeddings(&self) -> bool {
        !self.element_wise[self.hops - 1] && !self.readout
    }

    /// Returns the stages that are chunks of pairs.
    pub(crate) fn pair_stages(&self) -> Range<u32> {
        self.program.pairs()
    }

    /// Returns how many stages an evaluation has: those up to the loss, in whose place every node has its result.
    pub(crate) fn evaluation_stages(&self) -> u32 {
        let ends = |&step: &u32| matches!(self.program.stage(step), Stage::Loss | Stage::Embed);
        (0..self.program.stages()).find(ends).map_or(0, |end| end + 1)
    }

    /// Returns what this worker aggregates in an epoch, forward and backward: edges times columns.
    pub(crate) fn edge_columns(&self) -> u64 {
        self.exchange.edge_columns(&|hop| self.program.goes_back(hop))
    }

    /// Returns how many items each stage of an epoch has at this worker, and how often rows move in an epoch.
    pub(crate) fn work(&self) -> (Vec<u32>, u64) {
        let items = |step| self.program.items(step, self.intervals.len()).end;
        ((0..self.program.stages()).map(items).collect(), self.program.rounds())
    }

    /// Returns how many messages of this worker may be in flight at once.
    pub(crate) fn window(&self) -> usize {
        self.exchange.window()
    }

    /// Tells whether rows are cut by columns.
    pub(crate) fn is_by_columns(&self) -> bool {
        self.program.is_by_columns()
    }

    /// Returns the message of what leaves a stage, when the window has room for it.
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
