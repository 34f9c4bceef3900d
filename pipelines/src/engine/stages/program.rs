//! The stages of an epoch. Each covers every interval of nodes, or one chunk of the graph.
//!
//! ```text
//! node-parallel (Dorylus)                                   column-parallel (NeutronTP)
//! Forward(0)      apply-node 0                 scatter      Forward(0)                                split
//! Forward(l)      gather l − 1, apply-node l   scatter      Propagate(l − 1)  chunk by chunk          gather
//!                                                           Forward(l)                                split
//! Loss            gather L − 1, apply-node L                Propagate(L − 1)                          gather
//!                 and backward                 scatter      Loss                                      split
//! Backward(l)     gather gradients l,                       AttentionBackward(l)  with attention
//!                 apply-node l backward        scatter      Propagate(l) backward                     gather
//! Backward(0)     only if the first task learns             Backward(l)                               split
//! ```
//!
//! All propagations of a chain use the attention scores that were split before the first one. `AttentionBackward(l)` and the
//! backward `Propagate(l)` then alternate from the last hop to the first. The gradients of the scores are gathered with those of the first hop.
//!
//! With pairs of nodes, three kinds of stages replace the loss:
//!
//! ```text
//! Embed           gather L − 1, apply-node L, for every node
//! Pairs(chunk)    rows of the pairs' nodes, the loss, gradients of rows: one chunk of all workers' pairs
//! Backward(L)     apply-node L backward                                                               scatter or split
//! ```
//!
//! Node-parallel stages are Dorylus's tasks (section 4). Tasks of an interval that need no rows of others in between are one stage: GA and AV;
//! the last AV, the loss and ∇AV; ∇GA and ∇AV. SC takes place between two stages. In column-parallel training, a worker aggregates its columns
//! of all nodes. It also computes element-wise node tasks, so that propagations follow one another without an exchange (NeutronTP, section 4.1:
//! decoupled training).

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A stage of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Forward through a node task.
    Forward(usize),
    /// The last node task, the loss, and the backward pass of that task.
    Loss,
    /// The last node task, for every node.
    Embed,
    /// The loss of a chunk of every partition's pairs.
    Pairs(u32),
    /// Backward through a node task.
    Backward(usize),
    /// Aggregates column shards.
    Propagate(Propagated),
    /// Computes the receivers' side of the attention backward pass. The senders' side ([`Stage::Propagate`]) needs it.
    AttentionBackward(AttentionStage),
}

impl Stage {
    /// Tells whether the items of the stage are intervals.
    pub(crate) fn is_of_intervals(&self) -> bool {
        !matches!(self, Self::Propagate(_) | Self::AttentionBackward(_) | Self::Pairs(_))
    }
}

impl fmt::Display for Stage {
    /// Its name in traces. Layers and hops count from 1.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forward(task) => write!(f, "forward {}", task + 1),
            Self::Loss => f.write_str("loss"),
            Self::Embed => f.write_str("embed"),
            Self::Pairs(_) => f.write_str("pairs"),
            Self::Backward(task) => write!(f, "backward {}", task + 1),
            Self::Propagate(Propagated { hop, backward: false, .. }) => write!(f, "aggregate {}", hop + 1),
            Self::Propagate(Propagated { hop, .. }) => write!(f, "aggregate backward {}", hop + 1),
            Self::AttentionBackward(AttentionStage { hop, .. }) => write!(f, "attention backward {}", hop + 1),
        }
    }
}

/// The names of the jobs of a stage, for traces.
pub(crate) struct StageNames {
    /// Of an interval: gathering its rows. Of a chunk: all its work.
    pub(crate) begin: Arc<str>,
    /// The node task of an interval.
    pub(crate) task: Arc<str>,
    /// Storing and sending the rows of an interval. Also tasks that tensor workers have returned, and gathering the rows of an interval that waited
    /// for this one.
    pub(crate) end: Arc<str>,
}

/// The ends of the names of jobs that gather the rows of an interval, and that store and send them. The rest is the name of the stage.
pub(crate) const GATHER: &str = ": gather";
pub(crate) const SCATTER: &str = ": scatter";

impl StageNames {
    fn of(stage: &Stage) -> Self {
        let begin = if stage.is_of_intervals() { GATHER } else { "" };
        let name = |end: &str| format!("{stage}{end}").into();
        Self { begin: name(begin), task: name(""), end: name(SCATTER) }
    }
}

/// The attention backward pass of one hop at the receivers of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttentionStage {
    pub(crate) hop: usize,
    pub(crate) chunk: u32,
    /// Whether the gradients were split from whole rows before this stage.
    pub(crate) split: bool,
}

/// The aggregation of one hop for one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Propagated {
    pub(crate) hop: usize,
    pub(crate) chunk: u32,
    /// Whether gradients are aggregated.
    pub(crate) backward: bool,
    /// Whether the shards were split from whole rows before this stage. Else the stage before aggregated them.
    pub(crate) split: bool,
    /// Whether the shards are gathered into whole rows after this stage. Else the next stage aggregates them.
    pub(crate) gather: bool,
}

/// The stages of an epoch.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    stages: Vec<Stage>,
    /// The first hop whose gradients are needed.
    first_gradient: usize,
    /// Exchanges of rows per epoch.
    rounds: u64,
    /// Number of chunks; 0 in node-parallel training.
    chunks: u32,
}

impl Program {
    /// Builds the node-parallel program of a model of `layers` layers. `first_learns` tells whether the first node task has parameters,
    /// `element_wise` of every task whether it is element-wise, that is, has none.
    pub(crate) fn node_parallel(layers: usize, first_learns: bool, element_wise: &[bool]) -> Self {
        // Before the first task with parameters, no gradient is needed.
        let learns = |&task: &usize| if task == 0 { first_learns } else { !element_wise[task] };
        let first_gradient = (0..layers).find(learns).unwrap_or(layers);
        let forward = (0..layers).map(Stage::Forward);
        let stages: Vec<Stage> =
            forward.chain([Stage::Loss]).chain((first_gradient..layers).rev().map(Stage::Backward)).collect();
        let rounds = stages.len() as u64 - 1;
        Self { stages, first_gradient, rounds, chunks: 0 }
    }

    /// Builds the column-parallel program with `chunks` chunks. `element_wise` tells of every node task whether it runs on column shards,
    /// `attends` of every hop whether it has attention.
    pub(crate) fn column_parallel(
        layers: usize,
        first_learns: bool,
        element_wise: &[bool],
        attends: &[bool],
        chunks: u32,
    ) -> Self {
        let first_learned = usize::from(!first_learns);
        let mut stages = vec![Stage::Forward(0)];
        for hop in 0..layers {
            let gather = hop + 1 == layers || !element_wise[hop + 1];
            let split = !element_wise[hop];
            stages.extend(
                (0..chunks).map(|chunk| Stage::Propagate(Propagated { hop, chunk, backward: false, split, gather })),
            );
            if gather && hop + 1 < layers {
                stages.push(Stage::Forward(hop + 1));
            }
        }
        stages.push(Stage::Loss);
        // A chain needs gradients only if its first task learns.
        let has_gradient = |hop: usize| {
            (0..=hop).rev().find(|&first| !element_wise[first]).is_some_and(|first| first >= first_learned)
        };
        for hop in (0..layers).rev().filter(|&hop| has_gradient(hop)) {
            let split = hop + 1 == layers || !element_wise[hop + 1];
            if attends[hop] {
                stages.extend((0..chunks).map(|chunk| Stage::AttentionBackward(AttentionStage { hop, chunk, split })));
            }
            let gather = !element_wise[hop];
            stages.extend(
                (0..chunks).map(|chunk| Stage::Propagate(Propagated { hop, chunk, backward: true, split, gather })),
            );
            if !element_wise[hop] {
                stages.push(Stage::Backward(hop));
            }
        }
        // All chunks together are one exchange.
        let is_local = |stage: &Stage| match stage {
            Stage::AttentionBackward(_) => true,
            Stage::Propagate(Propagated { gather, chunk, .. }) => !gather || *chunk > 0,
            _ => false,
        };
        let rounds = stages.iter().filter(|stage| !is_local(stage)).count() as u64 - 1;
        let first_gradient = (0..layers).find(|&hop| has_gradient(hop)).unwrap_or(layers);
        Self { stages, first_gradient, rounds, chunks }
    }

    /// Replaces the loss of nodes by that of pairs, in `chunks` chunks, for a model of `layers` layers.
    pub(crate) fn with_pairs(self, layers: usize, chunks: u32) -> Self {
        let pairs = (0..chunks).map(Stage::Pairs);
        let of_loss = || [Stage::Embed].into_iter().chain(pairs.clone()).chain([Stage::Backward(layers)]);
        let stages = self.stages.into_iter().flat_map(|stage| match stage {
            Stage::Loss => of_loss().collect(),
            other => vec![other],
        });
        // Each chunk has requests, replies and gradients.
        Self { stages: stages.collect(), rounds: self.rounds + 3 * u64::from(chunks), ..self }
    }

    /// Returns the stages of chunks of pairs.
    pub(crate) fn pairs(&self) -> Range<u32> {
        let is_chunk = |stage: &Stage| matches!(stage, Stage::Pairs(_));
        let first = self.stages.iter().position(is_chunk).unwrap_or(0) as u32;
        first..first + self.stages.iter().filter(|stage| is_chunk(stage)).count() as u32
    }

    pub(crate) fn stages(&self) -> u32 {
        self.stages.len() as u32
    }

    /// Returns the names of the jobs of each stage, for traces.
    pub(crate) fn stage_names(&self) -> Vec<StageNames> {
        self.stages.iter().map(StageNames::of).collect()
    }

    pub(crate) fn stage(&self, step: u32) -> Stage {
        self.stages[step as usize]
    }

    /// Tells whether a stage is the last of an epoch.
    pub(crate) fn is_last(&self, step: u32) -> bool {
        step + 1 == self.stages()
    }

    /// Returns how many stages add to the gradient of the parameters.
    pub(crate) fn gradient_stages(&self) -> usize {
        self.stages.iter().filter(|stage| adds(stage)).count()
    }

    /// Returns the position of a stage among these, if it is one of them.
    pub(crate) fn gradient_stage(&self, step: u32) -> Option<usize> {
        let (before, here) = (&self.stages[..step as usize], &self.stages[step as usize]);
        adds(here).then(|| before.iter().filter(|stage| adds(stage)).count())
    }

    /// Tells whether hop `hop` needs gradients.
    pub(crate) fn goes_back(&self, hop: usize) -> bool {
        hop >= self.first_gradient
    }

    /// Returns the exchanges of rows per epoch.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Tells whether the program is column-parallel.
    pub(crate) fn is_column_parallel(&self) -> bool {
        self.chunks > 0
    }

    /// Returns the items of a stage: `intervals` intervals, or for a chunk two: to send the rows that the next chunk needs, and to aggregate.
    pub(crate) fn items(&self, step: u32, intervals: usize) -> Range<u32> {
        match self.stage(step) {
            Stage::Propagate(_) | Stage::AttentionBackward(_) => 0..2,
            Stage::Pairs(_) => 0..1,
            _ => 0..intervals as u32,
        }
    }
}

/// Tells whether a stage adds to the gradient of the parameters.
fn adds(stage: &Stage) -> bool {
    matches!(stage, Stage::Loss | Stage::Backward(_))
}

#[cfg(test)]
mod tests {
    use super::Stage::{Backward, Embed, Forward, Loss, Pairs, Propagate};
    use super::*;

    fn all(program: &Program) -> Vec<Stage> {
        (0..program.stages()).map(|step| program.stage(step)).collect()
    }

    #[test]
    fn node_parallel_program_ends_at_the_first_task_with_parameters() {
        let of_layers = |layers: usize, learns| Program::node_parallel(layers, learns, &vec![false; layers + 1]);
        assert_eq!(all(&of_layers(2, true)), [Forward(0), Forward(1), Loss, Backward(1), Backward(0)]);
        assert_eq!(all(&of_layers(2, false)), [Forward(0), Forward(1), Loss, Backward(1)]);
        assert_eq!(all(&of_layers(1, false)), [Forward(0), Loss]);
        // Propagated features need no gradients.
        let sgc = Program::node_parallel(3, false, &[false, true, true, false]);
        assert_eq!((all(&sgc), sgc.rounds()), (vec![Forward(0), Forward(1), Forward(2), Loss], 3));
        assert!((0..3).all(|hop| !sgc.goes_back(hop)));
        let predictions = Program::node_parallel(2, true, &[false, true, false]);
        assert_eq!(all(&predictions), [Forward(0), Forward(1), Loss, Backward(1), Backward(0)]);
        let program = of_layers(1, false);
        assert_eq!(
            (program.gradient_stages(), program.gradient_stage(0), program.gradient_stage(1)),
            (1, None, Some(0))
        );
        assert!(program.is_last(1) && !program.goes_back(0) && of_layers(2, true).goes_back(0));
    }

    #[test]
    fn pairs_replace_the_loss_with_chunks() {
        let one = Program::node_parallel(1, true, &[false; 2]);
        let program = one.clone().with_pairs(1, 2);
        let stages = [Forward(0), Embed, Pairs(0), Pairs(1), Backward(1), Backward(0)];
        assert_eq!(all(&program), stages);
        assert_eq!((program.pairs(), program.rounds()), (2..4, 2 + 6));
        assert_eq!(program.items(3, 5), 0..1);
        assert!(program.is_last(5) && one.pairs().is_empty());
        // The last task learns even if no task before it does.
        let columns = Program::column_parallel(2, false, &[false, true], &[false; 2], 1).with_pairs(2, 1);
        assert_eq!(all(&columns)[3..], [Embed, Pairs(0), Backward(2)]);
    }

    #[test]
    fn column_parallel_chain_of_any_length_has_four_exchanges() {
        let hop = |hop, backward, split, gather| Propagate(Propagated { hop, chunk: 0, backward, split, gather });
        let naive = Program::column_parallel(2, true, &[false, false], &[false; 2], 1);
        let (forward, back) = (|h| hop(h, false, true, true), |h| hop(h, true, true, true));
        let stages = [Forward(0), forward(0), Forward(1), forward(1), Loss, back(1), Backward(1), back(0), Backward(0)];
        assert_eq!(all(&naive), stages);
        assert_eq!(naive.rounds(), 8);
        let attending = Program::column_parallel(1, true, &[false], &[true], 1);
        let attended = |chunk| Stage::AttentionBackward(AttentionStage { hop: 0, chunk, split: true });
        assert_eq!(all(&attending), [Forward(0), forward(0), Loss, attended(0), back(0), Backward(0)]);
        assert_eq!(attending.rounds(), 4);
        let chunks = Program::column_parallel(1, true, &[false], &[true], 3);
        assert_eq!((chunks.stages(), chunks.rounds(), chunks.stage(6)), (12, 4, attended(1)));
        let decoupled = Program::column_parallel(3, true, &[false, true, true], &[false; 3], 1);
        let chain = [
            Forward(0),
            hop(0, false, true, false),
            hop(1, false, false, false),
            hop(2, false, false, true),
            Loss,
            hop(2, true, true, false),
            hop(1, true, false, false),
            hop(0, true, false, true),
            Backward(0),
        ];
        assert_eq!(all(&decoupled), chain);
        assert_eq!(decoupled.rounds(), 4);
        let attending = Program::column_parallel(2, true, &[false, true], &[true; 2], 1);
        let attended = |hop, split| Stage::AttentionBackward(AttentionStage { hop, chunk: 0, split });
        let back = [attended(1, true), hop(1, true, true, false), attended(0, false), hop(0, true, false, true)];
        assert_eq!(all(&attending)[4..8], back);
        for layers in 2..6 {
            let element_wise: Vec<bool> = (0..=layers).map(|task| (1..layers).contains(&task)).collect();
            let program = Program::column_parallel(layers, true, &element_wise, &vec![true; layers], 3);
            assert_eq!(program.rounds(), 4, "{layers} layers");
        }
        // No task before the loss learns.
        let sgc = Program::column_parallel(2, false, &[false, true], &[false; 2], 1);
        assert_eq!(all(&sgc), [Forward(0), hop(0, false, true, false), hop(1, false, false, true), Loss]);
        assert!(!sgc.goes_back(1));
    }
}
