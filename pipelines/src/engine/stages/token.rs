//! Tokens: one interval of nodes, or one chunk of the graph, at one stage; and the output of a stage for a token.

use gnnflow_dataflow::collective::all_reduce::Contribution;
use gnnflow_dataflow::time;

use super::message::Outgoing;

/// An item of a stage: the number of an interval of this worker; of a chunk, 0 to send rows and 1 to aggregate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    pub(crate) time: u64,
    pub(crate) item: u32,
    pub(crate) pass: Pass,
}

/// Whether a token belongs to training or to an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Training; the token's time holds epoch and stage.
    Train,
    /// An evaluation of all nodes, without dropout.
    Evaluate { stage: u32 },
}

impl Token {
    pub(crate) fn stage(self) -> u32 {
        match self.pass {
            Pass::Train => time::step(self.time),
            Pass::Evaluate { stage } => stage,
        }
    }

    pub(crate) fn epoch(self) -> u32 {
        time::epoch(self.time)
    }

    /// Tells whether the token belongs to an evaluation.
    pub(crate) fn evaluates(self) -> bool {
        self.pass != Pass::Train
    }
}

/// The output of a stage of an interval.
#[derive(Default)]
pub(crate) struct Finished {
    /// Rows for other workers.
    pub(crate) rows: Vec<Outgoing>,
    /// The partition's part of the epoch's gradient, with the last stage of its last interval.
    pub(crate) gradient: Option<Contribution>,
}

/// Completed tokens and their outputs.
pub(crate) type Ended = Vec<(Token, Finished)>;
