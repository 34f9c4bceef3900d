//! The gradient of a partition in an epoch: summed by stage, then by interval, in any order of arrival.

use std::collections::BTreeMap;

use gnnflow_dataflow::collective::all_reduce::Contribution;

use super::intervals::Interval;
use super::program::Program;
use super::token::{Ended, Finished, Token};
use crate::collectives::Payload;
use crate::compute::StepReport;
use gnnflow_nn::node_task::NodeBack;

/// The epoch's gradients of the partitions hosted here.
pub(crate) struct GradientSums {
    /// By epoch and partition.
    sums: BTreeMap<(u32, u32), PartitionGradient>,
    /// By partition, the number of its intervals.
    intervals: BTreeMap<u32, usize>,
}

impl GradientSums {
    /// Creates the sums of the partitions of `intervals`.
    pub(crate) fn new(intervals: &[Interval]) -> Self {
        let mut counts = BTreeMap::new();
        intervals.iter().for_each(|interval| *counts.entry(interval.partition).or_default() += 1);
        Self { sums: BTreeMap::new(), intervals: counts }
    }

    /// Adds the gradient of a chunk of a partition's pairs. It precedes those of all intervals.
    pub(crate) fn add_first(&mut self, epoch: u32, partition: u32, gradient: StageGradient) {
        self.sums.entry((epoch, partition)).or_default().add_now(gradient);
    }

    /// Adds the gradient of an interval's stage and returns the tokens that are complete now. The last token of a partition waits for the
    /// gradients of all its intervals and returns their sum.
    pub(crate) fn add(
        &mut self,
        program: &Program,
        token: Token,
        interval: &Interval,
        gradient: Option<StageGradient>,
        done: Finished,
    ) -> Ended {
        let (step, epoch, partition) = (token.stage(), token.epoch(), interval.partition);
        let intervals = self.intervals.get(&partition).copied().unwrap_or(0);
        let sum = self.sums.entry((epoch, partition)).or_default();
        if let Some(stage) = program.gradient_stage(step) {
            sum.add(stage * intervals + interval.number as usize, gradient);
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

/// The gradient of one stage of an interval.
#[derive(Debug, Default)]
pub(crate) struct StageGradient {
    /// The gradient of the parameters, if there is any.
    pub(crate) flat: Option<Vec<f32>>,
    pub(crate) loss: f64,
    pub(crate) examples: u64,
}

impl StageGradient {
    /// Takes the gradient of the parameters out of the result of a task.
    pub(crate) fn of(back: &mut NodeBack) -> Self {
        Self { flat: Some(std::mem::take(&mut back.flat)), loss: back.loss, examples: back.examples }
    }
}

/// The sum of the stage gradients of a partition in an epoch.
#[derive(Default)]
struct PartitionGradient {
    flat: Option<Vec<f32>>,
    loss: f64,
    examples: u64,
    /// Number of stage gradients that have been added, in order.
    added: usize,
    /// Stage gradients that wait for earlier ones.
    early: BTreeMap<usize, Option<StageGradient>>,
    /// The partition's last token, once it is complete. It returns the sum.
    closing: Option<(Token, Finished)>,
}

impl PartitionGradient {
    /// Adds the gradient at `position` as soon as all earlier ones have been added. `None` adds nothing.
    fn add(&mut self, position: usize, gradient: Option<StageGradient>) {
        self.early.insert(position, gradient);
        while let Some(gradient) = self.early.remove(&self.added) {
            self.added += 1;
            gradient.into_iter().for_each(|gradient| self.add_now(gradient));
        }
    }

    /// Adds a gradient to the sum.
    fn add_now(&mut self, gradient: StageGradient) {
        match (&mut self.flat, gradient.flat) {
            (Some(sum), Some(flat)) => sum.iter_mut().zip(&flat).for_each(|(sum, x)| *sum += x),
            (sum @ None, flat) => *sum = flat,
            (_, None) => {}
        }
        (self.loss, self.examples) = (self.loss + gradient.loss, self.examples + gradient.examples);
    }

    /// Sets the partition's last token, which is complete.
    fn close(&mut self, token: Token, done: Finished) {
        self.closing = Some((token, done));
    }

    /// Returns the last token with the sum, if that token is complete and `count` gradients have been added.
    fn finish(&mut self, partition: u32, count: usize) -> Option<(Token, Finished)> {
        if self.added < count {
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
    fn gradients_arriving_out_of_order_are_added_in_order() {
        // The rounded sum of these depends on the order.
        let gradient = |x: f32| Some(StageGradient { flat: Some(vec![x]), loss: f64::from(x), examples: 1 });
        let gradients = [1e8f32, -1e8, 0.25, 3e-8];
        let token = Token { time: 5, item: 3, pass: Pass::Train };
        let sum = |order: [usize; 5]| {
            let mut sum = PartitionGradient::default();
            sum.close(token, Finished::default());
            for position in order {
                assert!(sum.finish(2, 5).is_none());
                sum.add(position, gradients.get(position).and_then(|&x| gradient(x)));
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
        assert!(early.finish(0, 1).is_none(), "the last token is not complete");
    }
}
