//! The state of training over the whole graph, on the compute thread: tables of rows, and what is done with an interval.
//!
//! Everything that reads or writes a table is done on that thread, one thing after another, so that no row is ever read while
//! it is written; the worker sends and receives meanwhile.

mod attend;
mod chunks;
mod column_shards;
pub(crate) mod dataflow;
mod edge_types;
mod evaluate;
mod exchange;
mod gather;
mod gradient_sums;
mod graph_links;
mod head_shards;
mod hop;
mod learned_rows;
mod maximum;
mod mirrors;
mod moves;
mod pair_results;
mod program;
mod row_table;
mod rows;
mod runner;
mod scales;
pub(crate) mod score_pairs;
mod send_order;
mod shard_attention;
mod tasks;
mod transpose;
mod write;

pub(crate) use evaluate::Results;
pub(crate) use graph_links::{EdgeNeeds, GraphLinks, INTERVAL_NODES, by_columns, by_nodes};
pub(crate) use head_shards::Heads;
pub(crate) use learned_rows::LearnedRows;
pub(crate) use moves::{Parcel, window};
pub(crate) use pair_results::Scored;
pub(crate) use program::{Program, Propagated, Stage};
pub(crate) use runner::Stages;
pub(crate) use tasks::{Done, Token};

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use gnnflow_dataflow::fetch::fetch_rows::FeatureView;
use gnnflow_dataflow::storage::Place;
use gnnflow_dataflow::time;
use gnnflow_nn::layers::Aggregation;
use gnnflow_nn::model::Hop;

use self::chunks::{Cut, cut};
use self::column_shards::Slices;
use self::evaluate::LastHop;
use self::gradient_sums::PartSum;
use self::hop::{Back, HopState, Making};
use crate::config::RowDtype;
use crate::error::Error;
use gnnflow_nn::parameter_versions::{ParameterVersion, ParameterVersions};

/// An interval of a partition's nodes: own rows, counted from the worker's first node.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    pub(crate) partition: u32,
    /// Among those of its partition.
    pub(crate) number: u32,
    pub(crate) rows: Range<usize>,
    /// Whether it is the last of its partition.
    pub(crate) last: bool,
    /// Own rows of its training nodes, ascending.
    pub(crate) seeds: Vec<usize>,
}

/// How far an interval has come with what is the same in every epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    Nothing,
    Sent,
    Arrived,
}

/// The tables of one worker.
pub(crate) struct WholeGraph {
    worker: usize,
    seed: u64,
    own: Range<u32>,
    /// In how many sums a node receives.
    slots: u32,
    features: FeatureView,
    intervals: Arc<Vec<Interval>>,
    hops: Vec<HopState>,
    program: Program,
    /// Whether the first node task does the same in every epoch; and by interval, what has been done of it.
    constant: bool,
    progress: Vec<Progress>,
    /// By node task.
    reads_initial: Vec<bool>,
    /// Gradients so far, by epoch and partition; and how many intervals each hosted partition has.
    sums: BTreeMap<(u32, u32), PartSum>,
    counts: BTreeMap<u32, usize>,
    /// The parameters of every interval.
    parameters: Arc<ParameterVersions>,
    /// Where evaluation is over more receivers than training.
    last_hop: Option<LastHop>,
    /// Where evaluation writes.
    results: Option<Results>,
    /// Where pairs are learned from.
    pairs: Option<pair_results::Results>,
    /// Where what the first task reads is learned.
    learnt: Option<LearnedRows>,
    /// Where rows are cut by columns; all edges are then there, and the hops' links have none.
    slices: Option<Slices>,
    /// By node task, whether it is done on slices.
    chained: Vec<bool>,
    /// By hop, where its vectors of attention are among the parameters.
    vectors: Vec<Option<Range<usize>>>,
    /// Whether a readout joins the results of all layers.
    reads_out: bool,
    /// Whether an epoch has been done.
    settled: bool,
    /// Where each worker's ghosts begin in a hop's table: `[hop][arriving or leaving][worker]`.
    ghosts: Vec<[Vec<usize>; 2]>,
}

/// What training over the whole graph is told of the model.
pub(crate) struct Shape {
    pub(crate) hops: Vec<Hop>,
    /// Whether the first node task, or what it reads, is learned.
    pub(crate) first_learns: bool,
    pub(crate) first_is_constant: bool,
    /// By node task, what it does with every column, where that is the same.
    pub(crate) by_column: Vec<Option<[f32; 2]>>,
    /// By node task, whether it reads what nodes held before the first layer.
    pub(crate) reads_initial: Vec<bool>,
    /// By node task, whether it may be done in halves of its rows: in evaluation, and in training.
    pub(crate) by_row: Vec<[bool; 2]>,
    /// Where the vectors that a hop attends by are among the parameters, if it attends by any.
    pub(crate) vectors: Vec<Option<Range<usize>>>,
    /// Whether a readout joins the results of all layers: then nothing is sent of the last of them.
    pub(crate) reads_out: bool,
    /// Whether slices are sent chunk by chunk, while others are added up.
    pub(crate) pipelined: bool,
    /// Whether intervals may overtake one another, and how many epochs one may be behind another.
    pub(crate) overlaps: bool,
    pub(crate) staleness: usize,
    /// How rows that neighbors add up are stored.
    pub(crate) row_dtype: RowDtype,
    /// Where it is pairs of nodes that are learned from.
    pub(crate) pairs: Option<Scored>,
    /// Of dropout's masks.
    pub(crate) seed: u64,
}

impl Shape {
    /// What the hops ask of edges.
    pub(crate) fn edges(&self) -> EdgeNeeds {
        // Attention weighs a node's own row as it does its neighbors'.
        let slots = self.hops.iter().map(Hop::slots).max().unwrap_or(1) as u32;
        EdgeNeeds { self_loops: self.hops.iter().any(Hop::attends), slots }
    }
}

impl WholeGraph {
    /// Makes room for all rows.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn new(
        graph: GraphLinks,
        shape: Shape,
        features: FeatureView,
        parameters: Arc<ParameterVersions>,
        place: &Place,
    ) -> Result<Self, Error> {
        let room = |error: std::io::Error| Error::Machine(format!("no room for the rows of the whole graph: {error}"));
        let count = shape.hops.len();
        let chained: Vec<bool> = shape.by_column.iter().map(Option::is_some).collect();
        let attending: Vec<bool> = shape.hops.iter().map(Hop::attends).collect();
        let mut chunks = Vec::new();
        let program = match &graph.columns {
            Some(columns) => {
                chunks = cut(columns, &shape.hops)?;
                Program::by_columns(count, shape.first_learns, &chained, &attending, chunks.len() as u32)
            }
            None => Program::by_nodes(count, shape.first_learns, &chained),
        };
        let program = match &shape.pairs {
            Some(Scored { chunks, .. }) => program.with_pairs(count, *chunks),
            None => program,
        };
        let making = Making { graph: &graph, shape: &shape, program: &program, chained: &chained, place };
        let made = (0..count).map(|index| making.hop(index)).collect::<Result<Vec<_>, _>>()?;
        let (hops, ghosts): (Vec<HopState>, Vec<_>) = made.into_iter().unzip();
        let GraphLinks { worker, own, intervals, all, last, slots, starts, columns, .. } = graph;
        let slices = match columns {
            Some(columns) => {
                let goes_back = |hop| program.goes_back(hop);
                let cut = Cut { chunks, pipelined: shape.pipelined };
                Some(Slices::new(columns, cut, &shape.hops, &shape.by_column, shape.row_dtype, &goes_back, place)?)
            }
            None => None,
        };
        let last_hop = match (hops.last(), shape.hops.last()) {
            (Some(state), Some(hop)) if !Arc::ptr_eq(&all[0], &last[0]) && hop.aggregation != Aggregation::Nothing => {
                Some(LastHop::new(hop, (shape.row_dtype, state.sent.width()), &all[0], &starts, place).map_err(room)?)
            }
            _ => None,
        };
        let pairs = match shape.pairs {
            Some(Scored { rows, .. }) => Some(pair_results::Results::new(rows, own.len(), place).map_err(room)?),
            None => None,
        };
        Ok(Self {
            worker,
            seed: shape.seed,
            ghosts,
            own,
            slots,
            features,
            progress: vec![Progress::Nothing; intervals.len()],
            reads_initial: shape.reads_initial,
            counts: intervals.iter().fold(BTreeMap::new(), |mut counts, interval| {
                *counts.entry(interval.partition).or_default() += 1;
                counts
            }),
            intervals: Arc::new(intervals),
            hops,
            program,
            constant: shape.first_is_constant,
            sums: BTreeMap::new(),
            parameters,
            last_hop,
            results: None,
            pairs,
            learnt: None,
            slices,
            chained,
            vectors: shape.vectors,
            reads_out: shape.reads_out,
            settled: false,
        })
    }

    /// Says that what the first node task reads is learned, which the shape of the model has said already.
    #[must_use]
    pub(crate) fn learning(mut self, rows: Option<LearnedRows>) -> Self {
        self.learnt = rows;
        self
    }

    /// Says where evaluation writes.
    pub(crate) fn set_results(&mut self, results: Results) {
        self.results = Some(results);
    }

    /// The vectors that hop `hop` attends by, where it attends by any; of the version of `choice`.
    ///
    /// # Panics
    /// When that version is gone.
    fn vectors(&self, hop: usize, choice: ParameterVersion) -> Option<Vec<f32>> {
        let place = self.vectors[hop].clone()?;
        let flat = self.parameters.get(choice.version, Duration::ZERO).expect("who refers to parameters has them");
        Some(flat[place].to_vec())
    }

    /// The same, of the version that an interval keeps to for what it sends at the hop.
    fn vectors_of(&self, hop: usize, token: Token) -> Option<Vec<f32>> {
        self.vectors[hop].as_ref()?;
        let choice = match token.evaluates {
            None => self.parameters.choose(token.item, time::epoch(token.tick), hop),
            Some(_) => self.parameters.latest(),
        };
        self.vectors(hop, choice)
    }

    /// Whether rows are weighed by attention that both ends of an edge compute, which must know the same rows.
    pub(crate) fn attends_at_both_ends(&self) -> bool {
        self.hops.iter().any(|hop| hop.attention.is_some() && hop.mirrors.is_none())
    }

    /// Whether own rows must be of one epoch: no interval goes on before all here are done with a stage.
    pub(super) fn in_step(&self) -> bool {
        self.hops.iter().any(|hop| hop.mirrors.is_some())
    }

    /// Whether rows are cut by columns.
    pub(crate) fn is_by_columns(&self) -> bool {
        self.slices.is_some()
    }

    /// The stages that are chunks of pairs.
    pub(crate) fn chunks_of_pairs(&self) -> Range<u32> {
        self.program.pairs()
    }

    /// How many stages an evaluation has: those up to the loss, in whose place every node has its result.
    pub(crate) fn stages_of_evaluation(&self) -> u32 {
        let ends = |&step: &u32| matches!(self.program.stage(step), Stage::Loss | Stage::Embed);
        (0..self.program.stages()).find(ends).map_or(0, |end| end + 1)
    }

    /// What this worker adds up in an epoch: edges times columns, forwards and backwards.
    pub(crate) fn edge_numbers(&self) -> u64 {
        let goes_back = |index| self.program.goes_back(index);
        if let Some(slices) = &self.slices {
            return slices.edge_numbers(&goes_back);
        }
        let hop = |(index, hop): (usize, &HopState)| {
            let back = if goes_back(index) { hop.leaving.num_edges() } else { 0 };
            (hop.arriving.num_edges() + back) * hop.arrived.width() / self.slots as usize
        };
        self.hops.iter().enumerate().map(hop).sum::<usize>() as u64
    }

    /// How many items each stage of an epoch has at this worker, stage by stage; and how often rows move in an epoch.
    pub(crate) fn work(&self) -> (Vec<u32>, u64) {
        let items = |step| self.program.items(step, self.intervals.len()).end;
        ((0..self.program.stages()).map(items).collect(), self.program.rounds())
    }
}
