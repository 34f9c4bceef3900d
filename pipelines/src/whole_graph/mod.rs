//! The state of training over the whole graph, on the companion thread: tables of rows, and what is done with an interval.
//!
//! Everything that reads or writes a table is done on that thread, one thing after another, so that no row is ever read while
//! it is written; the worker sends and receives meanwhile.

mod attend;
mod chunks;
mod evaluate;
mod exchange;
mod gather;
mod heads;
mod largest;
mod learnt;
mod links;
mod mirrors;
mod moves;
mod order;
mod pairs;
mod program;
mod relations;
mod rows;
mod scales;
mod slice_attention;
mod slices;
mod stages;
mod stored;
mod sums;
mod tasks;
mod transpose;
mod write;

pub(crate) use evaluate::Results;
pub(crate) use heads::Heads;
pub(crate) use learnt::LearntRows;
pub(crate) use links::{EdgeNeeds, GraphLinks, INTERVAL_NODES, by_columns, by_nodes};
pub(crate) use moves::{Parcel, window};
pub(crate) use pairs::Scored;
pub(crate) use program::{Program, Propagated, Stage};
pub(crate) use stages::Stages;
pub(crate) use tasks::{Done, Token};

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use gnnflow_operators::compute::layers::Propagation;
use gnnflow_operators::compute::model::Hop;
use gnnflow_operators::fetch::fetch_rows::RowsAt;
use gnnflow_operators::kernel::propagate::dynamic_attention::KEPT;
use gnnflow_operators::propagate::{Links, Place, Table};
use gnnflow_operators::tick;

use self::attend::AttentionState;
use self::chunks::{Cut, cut};
use self::evaluate::LastHop;
use self::largest::Largest;
use self::mirrors::Mirrors;
use self::scales::Scales;
use self::slices::Slices;
use self::stored::Stored;
use self::sums::PartSum;
use crate::Error;
use crate::parameters::{Choice, ParameterService};
use crate::spec::RowDtype;

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

/// Where a hop's gradients lie.
enum Back {
    /// Nobody wants them.
    Nowhere,
    /// Where the activations were: whose rows have been added up everywhere, and are not asked for again.
    OverSent,
    /// In a table of their own.
    Own(Stored),
}

impl Back {
    fn table<'a>(&'a self, sent: &'a Stored) -> Option<&'a Stored> {
        match self {
            Self::Nowhere => None,
            Self::OverSent => Some(sent),
            Self::Own(table) => Some(table),
        }
    }

    fn table_mut<'a>(&'a mut self, sent: &'a mut Stored) -> Option<&'a mut Stored> {
        match self {
            Self::Nowhere => None,
            Self::OverSent => Some(sent),
            Self::Own(table) => Some(table),
        }
    }
}

/// What one hop needs and keeps.
struct HopState {
    /// Columns of what is sent, and of what arrives in each slot.
    width: usize,
    /// Columns of attention's terms that are sent behind it, by those who have the out-edges.
    sent_terms: usize,
    scales: Scales,
    /// For gradients.
    reversed: Scales,
    /// Rows are receivers' slots; the table has senders.
    arriving: Arc<Links>,
    /// Rows are senders; the table has receivers' slots.
    leaving: Arc<Links>,
    /// Gradients of what is sent, where they come from elsewhere.
    sent_back: Option<Table>,
    /// Activations, times `scales.before`.
    sent: Stored,
    /// What has arrived, at receivers: their slots side by side.
    arrived: Table,
    /// Gradients of what has arrived, times `scales.after`.
    back: Back,
    /// Where rows are weighed by attention.
    attention: Option<AttentionState>,
    /// Where they are, and epochs overlap.
    mirrors: Option<Mirrors>,
    /// Where the largest of each column arrives.
    largest: Option<Largest>,
    /// What own nodes hold, where a later task reads it, and its gradient.
    held: Option<[Table; 2]>,
}

/// The tables of one worker.
pub(crate) struct WholeGraph {
    worker: usize,
    seed: u64,
    own: Range<u32>,
    /// In how many sums a node receives.
    slots: u32,
    features: RowsAt,
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
    parameters: Arc<ParameterService>,
    /// Where evaluation is over more receivers than training.
    last_hop: Option<LastHop>,
    /// Where evaluation writes.
    results: Option<Results>,
    /// Where pairs are learnt from.
    pairs: Option<pairs::Results>,
    /// Where what the first task reads is learnt.
    learnt: Option<LearntRows>,
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
    /// Whether the first node task, or what it reads, is learnt.
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
    /// How rows that neighbours add up are stored.
    pub(crate) row_dtype: RowDtype,
    /// Where it is pairs of nodes that are learnt from.
    pub(crate) pairs: Option<Scored>,
    /// Of dropout's masks.
    pub(crate) seed: u64,
}

impl Shape {
    /// What the hops ask of edges.
    pub(crate) fn edges(&self) -> EdgeNeeds {
        // Attention weighs a node's own row as it does its neighbours'.
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
        features: RowsAt,
        parameters: Arc<ParameterService>,
        place: &Place,
    ) -> Result<Self, Error> {
        let GraphLinks { worker, own, intervals, all, last, in_edges, slots, starts, edges_at, columns } = graph;
        // Slices are scaled where they are added up.
        let scales = |propagation| match columns {
            Some(_) => Scales::default(),
            None => Scales::of_parts(propagation, own.start, &in_edges),
        };
        let room = |error: std::io::Error| Error::Machine(format!("no room for the rows of the whole graph: {error}"));
        let count = shape.hops.len();
        let chained: Vec<bool> = shape.by_column.iter().map(Option::is_some).collect();
        let attending: Vec<bool> = shape.hops.iter().map(Hop::attends).collect();
        let mut chunks = Vec::new();
        let program = match &columns {
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
        // Whole rows are only where a node task reads or makes them.
        let whole = |task: usize| columns.is_none() || !chained[task];
        let all_hops = shape.hops.clone();
        let (mut hops, mut ghosts) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for (index, hop) in shape.hops.into_iter().enumerate() {
            let [arriving, leaving] = if index + 1 == count { last.clone() } else { all.clone() };
            let (splits, gathers) = (whole(index), whole(index + 1));
            let dtype = shape.row_dtype;
            if dtype != RowDtype::F32 && (hop.attends() || hop.takes_largest() || columns.is_some()) {
                return Err(Error::Usage(format!(
                    "train.row_dtype: layer {} does more with its neighbours' rows than to add them up, for which they must be \"{}\"",
                    index + 1,
                    RowDtype::F32
                )));
            }
            // Attention goes back by the activations, beside gradients stands who was the largest, and where epochs overlap, others may
            // still read them.
            let remembers = hop.attends() || hop.takes_largest() && columns.is_none();
            // The last hop's gradients come while others are still adding up its activations.
            let apart = index + 1 < count || columns.is_some();
            let over_sent = Arc::ptr_eq(&arriving, &leaving) && !remembers && !shape.overlaps && apart && splits;
            let begins = |links: &Links, slots: u32| -> Vec<usize> {
                let own = links.table().len();
                starts.iter().map(|&start| own + links.ghosts().partition_point(|&id| id < start * slots)).collect()
            };
            let ghosts_begin = [begins(&arriving, 1), begins(&leaving, slots)];
            let mirrors = match hop.attends() && columns.is_none() && shape.staleness > 0 {
                true => {
                    let widths = [hop.width, hop.terms()];
                    let stride = hop.width + hop.sent_terms();
                    let places = [place, &edges_at];
                    Some(Mirrors::new(widths, stride, &arriving, &ghosts_begin[0], places).map_err(room)?)
                }
                false => None,
            };
            // What own rows of gradients say of ghosts is told by mirrors.
            let back_rows = if mirrors.is_some() { leaving.table().len() } else { leaving.table_rows() };
            let read_at_end = index == 0 && shape.reads_initial.contains(&true);
            let held = match hop.keeps_held && (gathers || read_at_end) {
                true => Some([
                    Table::zeros(own.len(), hop.held, place).map_err(room)?,
                    Table::zeros(if program.goes_back(index) { own.len() } else { 0 }, hop.held, place)
                        .map_err(room)?,
                ]),
                false => None,
            };
            let (width, [more, more_back], attention) = match hop.propagation {
                Propagation::Nothing => (0, [0; 2], None),
                // Terms of in-edges travel too, to where a slice's columns are added up.
                Propagation::Attention { .. } if columns.is_some() => {
                    (hop.width, [hop.sent_terms() + hop.terms(), 0], None)
                }
                Propagation::Attention { slope, dropout, .. } => {
                    let (receivers, links) = (arriving.rows().len(), [&*arriving, &*leaving]);
                    let state = AttentionState::new(&hop, [slope, dropout], receivers, links, place).map_err(room)?;
                    (hop.width, [hop.sent_terms(), hop.terms() + KEPT * hop.heads()], Some(state))
                }
                Propagation::Max if columns.is_none() => (hop.width, [0, hop.width], None),
                _ => (hop.width, [0; 2], None),
            };
            let largest = match hop.takes_largest() && columns.is_none() {
                true => Some(Largest::new(arriving.rows().len(), width, place).map_err(room)?),
                false => None,
            };
            // Behind the gradients of rows, those of terms, by piece.
            let terms = match (&columns, hop.propagation) {
                (Some(columns), Propagation::Attention { .. }) if splits => {
                    2 * Heads::of_hop(&hop, columns.parts.len(), columns.starts.len() - 1).count()
                }
                _ => 0,
            };
            let scales = scales(hop.propagation);
            let back_here = if columns.is_some() && splits && program.goes_back(index) { own.len() } else { 0 };
            ghosts.push(ghosts_begin);
            hops.push(HopState {
                sent_back: match columns {
                    Some(_) => Some(Table::zeros(back_here, width + terms, place).map_err(room)?),
                    None => None,
                },
                sent: Stored::zeros(dtype, if splits { arriving.table_rows() } else { 0 }, width + more, place)
                    .map_err(room)?,
                arrived: {
                    let rows = if gathers { arriving.rows().len() / slots as usize } else { 0 };
                    Table::zeros(rows, slots as usize * width, place).map_err(room)?
                },
                width,
                sent_terms: hop.sent_terms(),
                back: match program.goes_back(index) {
                    false => Back::Nowhere,
                    true if !gathers => Back::Nowhere,
                    true if over_sent => Back::OverSent,
                    true => Back::Own(Stored::zeros(dtype, back_rows, width + more_back, place).map_err(room)?),
                },
                attention,
                mirrors,
                largest,
                held,
                reversed: scales.reversed(),
                scales,
                arriving,
                leaving,
            });
        }
        let slices = match columns {
            Some(columns) => {
                let goes_back = |hop| program.goes_back(hop);
                let cut = Cut { chunks, pipelined: shape.pipelined };
                Some(Slices::new(columns, cut, &all_hops, &shape.by_column, &goes_back, place)?)
            }
            None => None,
        };
        let last_hop = match (hops.last(), all_hops.last()) {
            (Some(state), Some(hop)) if !Arc::ptr_eq(&all[0], &last[0]) && hop.propagation != Propagation::Nothing => {
                Some(LastHop::new(hop, (shape.row_dtype, state.sent.width()), &all[0], &starts, place).map_err(room)?)
            }
            _ => None,
        };
        let pairs = match shape.pairs {
            Some(Scored { rows, .. }) => Some(pairs::Results::new(rows, own.len(), place).map_err(room)?),
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

    /// Says that what the first node task reads is learnt, which the shape of the model has said already.
    #[must_use]
    pub(crate) fn learning(mut self, rows: Option<LearntRows>) -> Self {
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
    fn vectors(&self, hop: usize, choice: Choice) -> Option<Vec<f32>> {
        let place = self.vectors[hop].clone()?;
        let flat = self.parameters.get(choice.version, Duration::ZERO).expect("who refers to parameters has them");
        Some(flat[place].to_vec())
    }

    /// The same, of the version that an interval keeps to for what it sends at the hop.
    fn vectors_of(&self, hop: usize, token: Token) -> Option<Vec<f32>> {
        self.vectors[hop].as_ref()?;
        let choice = match token.evaluates {
            None => self.parameters.choose(token.item, tick::epoch(token.tick), hop),
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
