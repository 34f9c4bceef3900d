//! What an epoch consists of: one stage after another, each done for every interval.
//!
//! ```text
//! Forward(0)      apply-node 0                            scatter activations
//! Forward(l)      gather l − 1, apply-node l              scatter activations
//! Loss            gather L − 1, apply-node L and back     scatter gradients
//! Backward(l)     gather back l, apply-node l and back    scatter gradients       l = L − 1 … 1
//! Backward(0)     where the first task learns anything
//! ```
//!
//! These are Dorylus's tasks (section 4), those of one interval that follow one another without waiting for anybody joined:
//! GA and AV; the last AV, the loss and ∇AV; ∇GA and ∇AV. SC is what stands between two stages.

/// A stage of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Towards the results, by node task.
    Forward(usize),
    /// The last node task, the loss, and back through that task.
    Loss,
    /// Back through a node task.
    Backward(usize),
}

/// The stages of an epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    layers: usize,
    /// The last node task that gradients go back through.
    until: usize,
}

impl Program {
    /// For a model of `layers` layers; whether its first node task learns.
    pub(crate) fn new(layers: usize, first_learns: bool) -> Self {
        Self { layers, until: usize::from(!first_learns) }
    }

    /// How many stages there are.
    pub(crate) fn stages(&self) -> u32 {
        (2 * self.layers + 1 - self.until) as u32
    }

    /// Stage `step`.
    pub(crate) fn stage(&self, step: u32) -> Stage {
        let step = step as usize;
        match step.cmp(&self.layers) {
            std::cmp::Ordering::Less => Stage::Forward(step),
            std::cmp::Ordering::Equal => Stage::Loss,
            std::cmp::Ordering::Greater => Stage::Backward(2 * self.layers - step),
        }
    }

    /// Whether a stage is an epoch's last.
    pub(crate) fn is_last(&self, step: u32) -> bool {
        step + 1 == self.stages()
    }

    /// Whether the gradients of hop `hop` are wanted.
    pub(crate) fn goes_back(&self, hop: usize) -> bool {
        hop >= self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_go_there_and_back() {
        let all = |layers, first| {
            let program = Program::new(layers, first);
            (0..program.stages()).map(|step| program.stage(step)).collect::<Vec<_>>()
        };
        use Stage::{Backward, Forward, Loss};
        assert_eq!(all(2, true), [Forward(0), Forward(1), Loss, Backward(1), Backward(0)]);
        assert_eq!(all(2, false), [Forward(0), Forward(1), Loss, Backward(1)]);
        assert_eq!(all(1, false), [Forward(0), Loss]);
        assert!(Program::new(1, false).is_last(1) && !Program::new(1, true).is_last(1));
        assert!(!Program::new(2, false).goes_back(0) && Program::new(2, true).goes_back(0));
    }
}
