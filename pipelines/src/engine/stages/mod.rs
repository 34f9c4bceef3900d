//! An epoch as a list of stages, each done for every interval of nodes or every chunk of the graph: what full-graph and tensor-parallel training
//! share (Dorylus, sections 4 and 5).
//!
//! | file | content |
//! |---|---|
//! | [`program`] | which stages an epoch has |
//! | [`token`], [`intervals`] | one item of a stage |
//! | [`synchrony`] | what may run ahead of what |
//! | [`dataflow`] | the operators: gate, stage, scatter, all-reduce |
//! | [`runner`] | tokens on the compute thread, and tasks at tensor workers |
//! | [`state`], [`begin`], [`finish`] | what a stage reads and writes |
//! | [`exchange`], [`message`] | how rows move: the part that the two schedules implement |
//! | [`node_tables`], [`learned_rows`], [`gradient_sums`] | what own nodes hold, their embeddings, the epoch's gradient |
//! | [`pair_results`], [`score_pairs`] | learning from pairs of nodes |

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
