//! What a partition adds to an epoch's gradient: by stage, then by interval, in whatever order the shares come.

use std::collections::BTreeMap;

use gnnflow_dataflow::collective::all_reduce::Contribution;

use super::tasks::{Done, Token};
use crate::compute::BatchWords;
use crate::runtime::tensor_task::NodeBack;

/// What one stage of an interval adds.
#[derive(Debug, Default)]
pub(crate) struct Share {
    /// By the parameters, where it has any gradient.
    pub(crate) flat: Option<Vec<f32>>,
    pub(crate) loss: f64,
    pub(crate) examples: u64,
}

impl Share {
    /// Takes what a task says of the parameters.
    pub(crate) fn of(back: &mut NodeBack) -> Self {
        Self { flat: Some(std::mem::take(&mut back.flat)), loss: back.loss, examples: back.examples }
    }
}

/// The sum of a partition's shares in an epoch.
#[derive(Default)]
pub(crate) struct PartSum {
    flat: Option<Vec<f32>>,
    loss: f64,
    examples: u64,
    /// How many shares have been added: those of the first places.
    added: usize,
    /// Shares that wait for earlier ones.
    early: BTreeMap<usize, Option<Share>>,
    /// The token with which the sum leaves, when it is done itself.
    closing: Option<(Token, Done)>,
}

impl PartSum {
    /// Adds the share at `place`, when those of all places before have been added; an interval may have none.
    pub(crate) fn add(&mut self, place: usize, share: Option<Share>) {
        self.early.insert(place, share);
        while let Some(share) = self.early.remove(&self.added) {
            self.added += 1;
            share.into_iter().for_each(|share| self.add_first(share));
        }
    }

    /// Adds a share before those that are still to come.
    pub(crate) fn add_first(&mut self, share: Share) {
        match (&mut self.flat, share.flat) {
            (Some(sum), Some(flat)) => sum.iter_mut().zip(&flat).for_each(|(sum, x)| *sum += x),
            (sum @ None, flat) => *sum = flat,
            (_, None) => {}
        }
        (self.loss, self.examples) = (self.loss + share.loss, self.examples + share.examples);
    }

    /// The partition's last token is done; the sum leaves with it.
    pub(crate) fn close(&mut self, token: Token, done: Done) {
        self.closing = Some((token, done));
    }

    /// The last token and the sum, when all of `places` shares have been added and that token is done.
    pub(crate) fn finish(&mut self, partition: u32, places: usize) -> Option<(Token, Done)> {
        if self.added < places {
            return None;
        }
        let (token, done) = self.closing.take()?;
        let words = BatchWords { examples: self.examples, loss: self.loss, rounds: 0, digest: None };
        let vector = self.flat.take().map(std::sync::Arc::new);
        Some((token, Done { contribution: Some(Contribution { partition, vector, words: words.encode() }), ..done }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_added_in_order_whenever_they_come() {
        // Sums of these depend on the order.
        let share = |x: f32| Some(Share { flat: Some(vec![x]), loss: f64::from(x), examples: 1 });
        let shares = [1e8f32, -1e8, 0.25, 3e-8];
        let token = Token { tick: 5, item: 3, evaluates: None };
        let sum = |order: [usize; 5]| {
            let mut sum = PartSum::default();
            sum.close(token, Done::default());
            for place in order {
                assert!(sum.finish(2, 5).is_none());
                sum.add(place, shares.get(place).and_then(|&x| share(x)));
            }
            let (_, done) = sum.finish(2, 5).unwrap();
            let contribution = done.contribution.unwrap();
            let words = BatchWords::decode(&contribution.words).unwrap();
            assert_eq!((contribution.partition, words.examples), (2, 4));
            (contribution.vector.unwrap()[0].to_bits(), words.loss.to_bits())
        };
        let expected = sum([0, 1, 2, 3, 4]);
        for order in [[4, 3, 2, 1, 0], [2, 0, 4, 1, 3], [1, 2, 3, 4, 0]] {
            assert_eq!(sum(order), expected, "{order:?}");
        }
        let mut early = PartSum::default();
        early.add(0, None);
        assert!(early.finish(0, 1).is_none(), "its last token is not done");
    }
}
