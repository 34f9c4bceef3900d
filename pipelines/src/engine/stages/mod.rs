//! Full-graph and tensor-parallel training run an epoch as a list of stages. Each stage covers every interval of nodes, or one chunk of the graph
//! (Dorylus, sections 4 and 5).
//!
//! | file | content |
//! |---|---|
//! | [`program`] | the stages of an epoch |
//! | [`token`], [`intervals`] | one item of a stage |
//! | [`synchrony`] | how far intervals and epochs may run ahead |
//! | [`dataflow`] | the operators: gate, stage, scatter, all-reduce |
//! | [`runner`] | tokens on the compute thread, and node tasks on other threads or at tensor workers |
//! | [`state`], [`begin`], [`finish`] | the tables of a worker; the start and the end of a stage |
//! | [`exchange`], [`message`] | how rows move: the trait that the two schedules implement |
//! | [`node_tables`], [`learned_rows`], [`gradient_sums`] | rows of own nodes, learned rows, the epoch's gradient |
//! | [`pair_results`], [`score_pairs`] | training on pairs of nodes |

pub(crate) mod begin;
pub(crate) mod dataflow;
pub(crate) mod exchange;
pub(crate) mod finish;
pub(crate) mod gradient_sums;
pub(crate) mod intervals;
pub(crate) mod learned_rows;
pub(crate) mod message;
pub(crate) mod node_tables;
pub(crate) mod pair_results;
pub(crate) mod program;
pub(crate) mod runner;
pub(crate) mod score_pairs;
pub(crate) mod state;
pub(crate) mod synchrony;
pub(crate) mod token;
