//! Training of one partition after another, each from a common replica of parameters and optimizer state.
//!
//! SDT-GNN (section III-C) does not define the optimizer state after weights are averaged. Here the state is averaged, too. So no state of a
//! partition remains after its training, for any number of partitions of a worker.

use gnnflow_dataflow::batch::mini_batch::MiniBatch;
use gnnflow_nn::optimizer::State;

use super::batch::BatchGradient;
use super::ready_batch::ReadyBatch;
use super::{ComputeState, Replica, StepReport};
use crate::error::Error;

/// The name of the velocity in checkpoints.
const VELOCITY: &str = "average.velocity";

/// Moves from the common parameters `before` beyond their average, in the direction of this and earlier averages: Nesterov momentum on averages
/// (Wang and others 2020, SlowMo; Douillard and others 2023).
fn apply_momentum(average: &mut [f32], before: &[f32], velocity: &mut [f32], momentum: f32) {
    for ((average, before), velocity) in average.iter_mut().zip(before).zip(velocity) {
        let moved = *average - before;
        *velocity = momentum * *velocity + moved;
        *average = before + (moved + momentum * *velocity);
    }
}

/// The result of a partition's training: parameters, then the optimizer's vectors, times the partition's share.
pub(crate) struct TrainedPartition {
    pub(crate) flat: Vec<f32>,
    /// The optimizer's steps.
    pub(crate) steps: u64,
}

impl ComputeState {
    /// Returns the length of [`TrainedPartition::flat`].
    pub(crate) fn replica_len(&self) -> usize {
        self.params.len() + self.optimizer.state().vectors.iter().map(|(_, vector)| vector.len()).sum::<usize>()
    }

    /// Begins the training of a partition from the common replica.
    pub(crate) fn begin_partition(&mut self) -> Result<(), Error> {
        match self.common.clone() {
            None => self.common = Some(Replica { params: self.params.clone(), optimizer: self.optimizer.state() }),
            Some(common) => self.restore(common)?,
        }
        Ok(())
    }

    /// Runs the forward and backward pass and an optimizer step on a batch of the current partition.
    pub(crate) fn local_step(&mut self, batch: MiniBatch, lr: f64) -> Result<StepReport, Error> {
        let rounds = u64::from(batch.rounds);
        if batch.num_seeds == 0 {
            // An estimate of the gradient of all examples may be 0. It is a step like any other, for example for momentum.
            let examples = batch.represented_examples.unwrap_or(0);
            if examples > 0 {
                self.optimizer.set_learning_rate(lr);
                self.step(vec![0.0; self.params.len()], examples)?;
            }
            return Ok(StepReport { examples, rounds, ..StepReport::default() });
        }
        let ReadyBatch { mut batch, inputs } = self.passes.ready(batch);
        let inputs = inputs?;
        let digest = inputs.digest;
        let BatchGradient { flat: gradient, loss, examples, .. } =
            self.passes.gradient(&self.all, &mut batch, inputs)?;
        self.optimizer.set_learning_rate(lr);
        self.step(gradient, examples)?;
        Ok(StepReport { examples, loss, rounds, pause: 0, digest })
    }

    /// Ends the training of a partition with `share` of the training nodes.
    pub(crate) fn end_partition(&mut self, share: f64) -> TrainedPartition {
        let State { steps, vectors } = self.optimizer.state();
        let all = self.params.iter().chain(vectors.iter().flat_map(|(_, vector)| vector));
        TrainedPartition { flat: all.map(|&value| (f64::from(value) * share) as f32).collect(), steps }
    }

    /// Sets parameters and optimizer state to the average of all partitions. `steps` is the maximum of their steps.
    pub(crate) fn set_average(&mut self, mut flat: Vec<f32>, steps: u64) -> Result<(), Error> {
        if let (Some(common), Some(velocity)) = (&self.common, &mut self.velocity) {
            apply_momentum(&mut flat[..velocity.len()], &common.params, velocity, self.average_momentum as f32);
        }
        self.common = None;
        let (params, mut rest) = flat.split_at(self.params.len());
        let mut optimizer = State { steps, ..self.optimizer_state() };
        for (_, vector) in optimizer.vectors.iter_mut().filter(|(name, _)| name != VELOCITY) {
            let (values, later) = rest.split_at(vector.len());
            vector.copy_from_slice(values);
            rest = later;
        }
        self.restore(Replica { params: params.to_vec(), optimizer })
    }

    /// Returns the state of the optimizer and of averaging, for checkpoints.
    pub(crate) fn optimizer_state(&self) -> State {
        let mut state = self.optimizer.state();
        state.vectors.extend(self.velocity.iter().map(|velocity| (VELOCITY.to_owned(), velocity.clone())));
        state
    }

    /// Restores the state of [`ComputeState::optimizer_state`].
    pub(crate) fn load_optimizer(&mut self, mut state: State) -> Result<(), Error> {
        if let Some(at) = state.vectors.iter().position(|(name, _)| name == VELOCITY) {
            self.velocity = Some(state.vectors.remove(at).1);
        }
        Ok(self.optimizer.load_state(state)?)
    }

    /// Returns the parameters and the state of [`ComputeState::optimizer_state`].
    pub(crate) fn replica(&self) -> Replica {
        Replica { params: self.params.clone(), optimizer: self.optimizer_state() }
    }

    /// Restores both.
    pub(crate) fn restore(&mut self, replica: Replica) -> Result<(), Error> {
        self.set_params(replica.params)?;
        self.load_optimizer(replica.optimizer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn momentum_accelerates_averages_of_constant_direction() {
        let (mut at, mut velocity) = (vec![0.0f32], vec![0.0]);
        let mut positions = Vec::new();
        for _ in 0..3 {
            let mut average = vec![at[0] + 1.0];
            apply_momentum(&mut average, &at, &mut velocity, 0.5);
            at = average;
            positions.push(at[0]);
        }
        // Velocities 1, 1.5, 1.75; steps 1 + 0.5 v.
        assert_eq!(positions, [1.5, 3.25, 5.125]);
        let mut average = vec![at[0] + 1.0];
        apply_momentum(&mut average, &at, &mut velocity, 0.0);
        assert_eq!(average[0], at[0] + 1.0);
    }
}
