//! What an epoch consists of: one stage after another, each done for every interval of nodes or every chunk of the graph.
//!
//! ```text
//! by nodes (Dorylus)                                        by columns (NeutronTP)
//! Forward(0)      apply-node 0                 scatter      Forward(0)                                split
//! Forward(l)      gather l − 1, apply-node l   scatter      Propagate(l − 1)  chunk by chunk          gather
//!                                                           Forward(l)                                split
//! Loss            gather L − 1, apply-node L                Propagate(L − 1)                          gather
//!                 and back                     scatter      Loss                                      split
//! Backward(l)     gather back l, apply-node l               Attend(l)         where it does
//!                                                           Propagate(l) back                         gather
//!                 and back                     scatter      Backward(l)                               split
//! Backward(0)     where the first task learns anything
//! ```
//!
//! Propagations that follow one another attend by the terms that were split off before the first of them: `Attend(l)` and `Propagate(l)`
//! back alternate then, from the last of them to the first, and what they say of the terms is gathered with the first's gradients.
//!
//! Where pairs of nodes are learned from, the loss is three kinds of stages: every node's result, chunks of pairs, and back.
//!
//! ```text
//! Embed           gather L − 1, apply-node L
//! Pairs(chunk)    rows of pairs' nodes, the loss, gradients of rows: for all workers' pairs at once
//! Backward(L)     apply-node L and back                                                               scatter or split
//! ```
//!
//! By nodes, these are Dorylus's tasks (section 4), those of one interval that follow one another without waiting for anybody
//! joined: GA and AV; the last AV, the loss and ∇AV; ∇GA and ∇AV. SC is what stands between two stages. By columns, whoever has
//! a slice of all rows adds them up for all nodes; where a node task does the same with every column, it is done there too, and
//! propagations follow one another without any exchange (NeutronTP, section 4.1: decoupled training).

use std::ops::Range;

/// A stage of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Towards the results, by node task.
    Forward(usize),
    /// The last node task, the loss, and back through that task.
    Loss,
    /// The last node task, of every node.
    Embed,
    /// A chunk of every partition's pairs, by the results of their nodes.
    Pairs(u32),
    /// Back through a node task.
    Backward(usize),
    /// Adding up slices of rows: by hop.
    Propagate(Propagated),
    /// What receivers' gradients say of the attention that they pay, by hop: senders' slices are not to be had without it.
    Attend(Attended),
}

/// Attention of one hop, for one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attended {
    pub(crate) hop: usize,
    pub(crate) chunk: u32,
    /// Whether the gradients have just been split off whole rows.
    pub(crate) split: bool,
}

/// One hop of slices, for one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Propagated {
    pub(crate) hop: usize,
    pub(crate) chunk: u32,
    /// Whether gradients are added up.
    pub(crate) back: bool,
    /// Whether the slices have just been split off whole rows, and whether they become whole rows again; else they were, or will
    /// be, added up once more.
    pub(crate) split: bool,
    pub(crate) gather: bool,
}

/// The stages of an epoch.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    stages: Vec<Stage>,
    /// The first hop whose gradients are wanted.
    until: usize,
    /// Exchanges of rows.
    rounds: u64,
    /// Of slices.
    chunks: u32,
}

impl Program {
    /// By nodes, for a model of `layers` layers; whether its first node task learns, and of every task whether it does the same with
    /// every column, and so learns nothing.
    pub(crate) fn by_nodes(layers: usize, first_learns: bool, chained: &[bool]) -> Self {
        // No gradient is wanted of what comes before anything is learned.
        let learns = |&task: &usize| if task == 0 { first_learns } else { !chained[task] };
        let until = (0..layers).find(learns).unwrap_or(layers);
        let forward = (0..layers).map(Stage::Forward);
        let stages: Vec<Stage> =
            forward.chain([Stage::Loss]).chain((until..layers).rev().map(Stage::Backward)).collect();
        let rounds = stages.len() as u64 - 1;
        Self { stages, until, rounds, chunks: 0 }
    }

    /// By columns, in so many chunks; `chained` says of every node task whether it can be done on slices, `attends` of every hop whether it weighs
    /// rows by attention.
    pub(crate) fn by_columns(
        layers: usize,
        first_learns: bool,
        chained: &[bool],
        attends: &[bool],
        chunks: u32,
    ) -> Self {
        let until = usize::from(!first_learns);
        let mut stages = vec![Stage::Forward(0)];
        for hop in 0..layers {
            let gather = hop + 1 == layers || !chained[hop + 1];
            let split = !chained[hop];
            stages.extend(
                (0..chunks).map(|chunk| Stage::Propagate(Propagated { hop, chunk, back: false, split, gather })),
            );
            if gather && hop + 1 < layers {
                stages.push(Stage::Forward(hop + 1));
            }
        }
        stages.push(Stage::Loss);
        // Where a chain's first task does not learn, nothing of the chain's gradients is wanted.
        let wanted = |hop: usize| (0..=hop).rev().find(|&first| !chained[first]).is_some_and(|first| first >= until);
        for hop in (0..layers).rev().filter(|&hop| wanted(hop)) {
            let split = hop + 1 == layers || !chained[hop + 1];
            if attends[hop] {
                stages.extend((0..chunks).map(|chunk| Stage::Attend(Attended { hop, chunk, split })));
            }
            let gather = !chained[hop];
            stages.extend(
                (0..chunks).map(|chunk| Stage::Propagate(Propagated { hop, chunk, back: true, split, gather })),
            );
            if !chained[hop] {
                stages.push(Stage::Backward(hop));
            }
        }
        // All chunks together are one exchange.
        let stays = |stage: &Stage| match stage {
            Stage::Attend(_) => true,
            Stage::Propagate(Propagated { gather, chunk, .. }) => !gather || *chunk > 0,
            _ => false,
        };
        let rounds = stages.iter().filter(|stage| !stays(stage)).count() as u64 - 1;
        let until = (0..layers).find(|&hop| wanted(hop)).unwrap_or(layers);
        Self { stages, until, rounds, chunks }
    }

    /// The same for a model of `layers` layers whose results are learned from by pairs, in so many chunks.
    pub(crate) fn with_pairs(self, layers: usize, chunks: u32) -> Self {
        let pairs = (0..chunks).map(Stage::Pairs);
        let in_place = || [Stage::Embed].into_iter().chain(pairs.clone()).chain([Stage::Backward(layers)]);
        let stages = self.stages.into_iter().flat_map(|stage| match stage {
            Stage::Loss => in_place().collect(),
            other => vec![other],
        });
        // A chunk's questions, answers, gradients.
        Self { stages: stages.collect(), rounds: self.rounds + 3 * u64::from(chunks), ..self }
    }

    /// The stages that are chunks of pairs.
    pub(crate) fn pairs(&self) -> Range<u32> {
        let is_chunk = |stage: &Stage| matches!(stage, Stage::Pairs(_));
        let first = self.stages.iter().position(is_chunk).unwrap_or(0) as u32;
        first..first + self.stages.iter().filter(|stage| is_chunk(stage)).count() as u32
    }

    /// How many stages there are.
    pub(crate) fn stages(&self) -> u32 {
        self.stages.len() as u32
    }

    /// Stage `step`.
    pub(crate) fn stage(&self, step: u32) -> Stage {
        self.stages[step as usize]
    }

    /// Whether a stage is an epoch's last.
    pub(crate) fn is_last(&self, step: u32) -> bool {
        step + 1 == self.stages()
    }

    /// How many stages add to the gradient of the parameters.
    pub(crate) fn gradient_stages(&self) -> usize {
        self.stages.iter().filter(|stage| adds(stage)).count()
    }

    /// Which of those a stage is, from 0, if it is one.
    pub(crate) fn gradient_stage(&self, step: u32) -> Option<usize> {
        let (before, here) = (&self.stages[..step as usize], &self.stages[step as usize]);
        adds(here).then(|| before.iter().filter(|stage| adds(stage)).count())
    }

    /// Whether the gradients of hop `hop` are wanted.
    pub(crate) fn goes_back(&self, hop: usize) -> bool {
        hop >= self.until
    }

    /// How often rows move in an epoch.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Tells whether rows are cut by columns: then chunks of them are aggregated.
    pub(crate) fn is_by_columns(&self) -> bool {
        self.chunks > 0
    }

    /// What a stage is done for, one after another, of so many intervals; that of a chunk consists of sending what the next
    /// chunk needs, and adding up.
    pub(crate) fn items(&self, step: u32, intervals: usize) -> Range<u32> {
        match self.stage(step) {
            Stage::Propagate(_) | Stage::Attend(_) => 0..2,
            Stage::Pairs(_) => 0..1,
            _ => 0..intervals as u32,
        }
    }
}

/// Whether a stage adds to the gradient of the parameters.
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
    fn stages_go_there_and_back() {
        let by_nodes = |layers: usize, learns| Program::by_nodes(layers, learns, &vec![false; layers + 1]);
        assert_eq!(all(&by_nodes(2, true)), [Forward(0), Forward(1), Loss, Backward(1), Backward(0)]);
        assert_eq!(all(&by_nodes(2, false)), [Forward(0), Forward(1), Loss, Backward(1)]);
        assert_eq!(all(&by_nodes(1, false)), [Forward(0), Loss]);
        // Features that are propagated as they are have no use for gradients, however often they are.
        let sgc = Program::by_nodes(3, false, &[false, true, true, false]);
        assert_eq!((all(&sgc), sgc.rounds()), (vec![Forward(0), Forward(1), Forward(2), Loss], 3));
        assert!((0..3).all(|hop| !sgc.goes_back(hop)));
        let predictions = Program::by_nodes(2, true, &[false, true, false]);
        assert_eq!(all(&predictions), [Forward(0), Forward(1), Loss, Backward(1), Backward(0)]);
        let program = by_nodes(1, false);
        assert_eq!(
            (program.gradient_stages(), program.gradient_stage(0), program.gradient_stage(1)),
            (1, None, Some(0))
        );
        assert!(program.is_last(1) && !program.goes_back(0) && by_nodes(2, true).goes_back(0));
    }

    #[test]
    fn pairs_are_scored_in_chunks_between_results_and_the_way_back() {
        let one = Program::by_nodes(1, true, &[false; 2]);
        let program = one.clone().with_pairs(1, 2);
        let stages = [Forward(0), Embed, Pairs(0), Pairs(1), Backward(1), Backward(0)];
        assert_eq!(all(&program), stages);
        assert_eq!((program.pairs(), program.rounds()), (2..4, 2 + 6));
        assert_eq!(program.items(3, 5), 0..1);
        assert!(program.is_last(5) && one.pairs().is_empty());
        // Even where nothing before it learns, the last task does.
        let columns = Program::by_columns(2, false, &[false, true], &[false; 2], 1).with_pairs(2, 1);
        assert_eq!(all(&columns)[3..], [Embed, Pairs(0), Backward(2)]);
    }

    #[test]
    fn slices_are_split_and_gathered_four_times_however_many_propagations_follow_one_another() {
        let hop = |hop, back, split, gather| Propagate(Propagated { hop, chunk: 0, back, split, gather });
        let naive = Program::by_columns(2, true, &[false, false], &[false; 2], 1);
        let (forward, back) = (|h| hop(h, false, true, true), |h| hop(h, true, true, true));
        let stages = [Forward(0), forward(0), Forward(1), forward(1), Loss, back(1), Backward(1), back(0), Backward(0)];
        assert_eq!(all(&naive), stages);
        assert_eq!(naive.rounds(), 8);
        let attending = Program::by_columns(1, true, &[false], &[true], 1);
        let attended = |chunk| Stage::Attend(Attended { hop: 0, chunk, split: true });
        assert_eq!(all(&attending), [Forward(0), forward(0), Loss, attended(0), back(0), Backward(0)]);
        assert_eq!(attending.rounds(), 4);
        let chunks = Program::by_columns(1, true, &[false], &[true], 3);
        assert_eq!((chunks.stages(), chunks.rounds(), chunks.stage(6)), (12, 4, attended(1)));
        let decoupled = Program::by_columns(3, true, &[false, true, true], &[false; 3], 1);
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
        let attending = Program::by_columns(2, true, &[false, true], &[true; 2], 1);
        let attended = |hop, split| Stage::Attend(Attended { hop, chunk: 0, split });
        let back = [attended(1, true), hop(1, true, true, false), attended(0, false), hop(0, true, false, true)];
        assert_eq!(all(&attending)[4..8], back);
        for layers in 2..6 {
            let chained: Vec<bool> = (0..=layers).map(|task| (1..layers).contains(&task)).collect();
            let program = Program::by_columns(layers, true, &chained, &vec![true; layers], 3);
            assert_eq!(program.rounds(), 4, "{layers} layers");
        }
        // Nothing before the loss learns anything.
        let sgc = Program::by_columns(2, false, &[false, true], &[false; 2], 1);
        assert_eq!(all(&sgc), [Forward(0), hop(0, false, true, false), hop(1, false, false, true), Loss]);
        assert!(!sgc.goes_back(1));
    }
}
