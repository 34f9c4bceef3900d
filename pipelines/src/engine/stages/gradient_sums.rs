//! What a partition adds to an epoch's gradient: by stage, then by interval, in whatever order the shares come.

use std::collections::BTreeMap;

use gnnflow_dataflow::collective::all_reduce::Contribution;

use super::finish::{Ended, Finished};
use super::intervals::Interval;
use super::program::Program;
use super::token::Token;
use crate::collectives::Payload;
use crate::compute::StepReport;
use crate::runtime::tensor_task::NodeBack;

/// The epoch's gradients of the partitions hosted here.
pub(crate) struct GradientSums {
    /// By epoch and partition.
    sums: BTreeMap<(u32, u32), PartitionGradient>,
    /// By partition, its number of intervals.
    intervals: BTreeMap<u32, usize>,
}

impl GradientSums {
    /// Sums for partitions cut into these intervals.
    pub(crate) fn new(intervals: &[Interval]) -> Self {
        let mut counts = BTreeMap::new();
        intervals.iter().for_each(|interval| *counts.entry(interval.partition).or_default() += 1);
        Self { sums: BTreeMap::new(), intervals: counts }
    }

    /// Adds what a partition's pairs say of the parameters, before any of its intervals does.
    pub(crate) fn add_first(&mut self, epoch: u32, partition: u32, share: StageGradient) {
        self.sums.entry((epoch, partition)).or_default().add_first(share);
    }

    /// Adds a stage's share of an interval to the epoch's gradient, and returns the tokens that are done then, the stage itself among them.
    pub(crate) fn account(
        &mut self,
        program: &Program,
        token: Token,
        interval: &Interval,
        share: Option<StageGradient>,
        done: Finished,
    ) -> Ended {
        let (step, epoch, partition) = (token.stage(), token.epoch(), interval.partition);
        let intervals = self.intervals.get(&partition).copied().unwrap_or(0);
        let sum = self.sums.entry((epoch, partition)).or_default();
        if let Some(stage) = program.gradient_stage(step) {
            sum.add(stage * intervals + interval.number as usize, share);
        }
        let mut ended = Vec::new();
        match program.is_last(step) && interval.last {
            true => sum.close(token, done),
            false => ended.push((token, done)),
        }
        if let Some(last) = sum.finish(partition, program.gradient_stages() * intervals) {
            self.sums.remove(&(epoch, partition));
            ended.push(last);
        }
        ended
    }
}

/// What one stage of an interval adds.
#[derive(Debug, Default)]
pub(crate) struct StageGradient {
    /// By the parameters, where it has any gradient.
    pub(crate) flat: Option<Vec<f32>>,
    pub(crate) loss: f64,
    pub(crate) examples: u64,
}

impl StageGradient {
    /// Takes what a task says of the parameters.
    pub(crate) fn of(back: &mut NodeBack) -> Self {
        Self { flat: Some(std::mem::take(&mut back.flat)), loss: back.loss, examples: back.examples }
    }
}

/// The sum of a partition's shares in an epoch.
#[derive(Default)]
struct PartitionGradient {
    flat: Option<Vec<f32>>,
    loss: f64,
    examples: u64,
    /// How many shares have been added: those of the first places.
    added: usize,
    /// StageGradients that wait for earlier ones.
    early: BTreeMap<usize, Option<StageGradient>>,
    /// The token with which the sum leaves, when it is done itself.
    closing: Option<(Token, Finished)>,
}

impl PartitionGradient {
    /// Adds the share at `place`, when those of all places before have been added; an interval may have none.
    pub(crate) fn add(&mut self, place: usize, share: Option<StageGradient>) {
        self.early.insert(place, share);
        while let Some(share) = self.early.remove(&self.added) {
            self.added += 1;
            share.into_iter().for_each(|share| self.add_first(share));
        }
    }

    /// Adds a share before those that are still to come.
    pub(crate) fn add_first(&mut self, share: StageGradient) {
        match (&mut self.flat, share.flat) {
            (Some(sum), Some(flat)) => sum.iter_mut().zip(&flat).for_each(|(sum, x)| *sum += x),
            (sum @ None, flat) => *sum = flat,
            (_, None) => {}
        }
        (self.loss, self.examples) = (self.loss + share.loss, self.examples + share.examples);
    }

    /// The partition's last token is done; the sum leaves with it.
    pub(crate) fn close(&mut self, token: Token, done: Finished) {
        self.closing = Some((token, done));
    }

    /// The last token and the sum, when all of `places` shares have been added and that token is done.
    pub(crate) fn finish(&mut self, partition: u32, places: usize) -> Option<(Token, Finished)> {
        if self.added < places {
            return None;
        }
        let (token, done) = self.closing.take()?;
        let report = StepReport { examples: self.examples, loss: self.loss, ..StepReport::default() };
        let vector = self.flat.take().map(std::sync::Arc::new);
        Some((token, Finished { gradient: Some(Contribution { partition, vector, words: report.to_words() }), ..done }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::token::Pass;
    use super::*;

    #[test]
    fn shares_are_added_in_order_whenever_they_come() {
        // Sums of these depend on the order.
        let share = |x: f32| Some(StageGradient { flat: Some(vec![x]), loss: f64::from(x), examples: 1 });
        let shares = [1e8f32, -1e8, 0.25, 3e-8];
        let token = Token { time: 5, item: 3, pass: Pass::Train };
        let sum = |order: [usize; 5]| {
            let mut sum = PartitionGradient::default();
            sum.close(token, Finished::default());
            for place in order {
                assert!(sum.finish(2, 5).is_none());
                sum.add(place, shares.get(place).and_then(|&x| share(x)));
            }
            let (_, done) = sum.finish(2, 5).unwrap();
            let contribution = done.gradient.unwrap();
            let report = StepReport::from_words(&contribution.words).unwrap();
            assert_eq!((contribution.partition, report.examples), (2, 4));
            (contribution.vector.unwrap()[0].to_bits(), report.loss.to_bits())
        };
        let expected = sum([0, 1, 2, 3, 4]);
        for order in [[4, 3, 2, 1, 0], [2, 0, 4, 1, 3], [1, 2, 3, 4, 0]] {
            assert_eq!(sum(order), expected, "{order:?}");
        }
        let mut early = PartitionGradient::default();
        early.add(0, None);
        assert!(early.finish(0, 1).is_none(), "its last token is not done");
    }
}
