//! Training one partition after another, each from what all had in common.
//!
//! SDT-GNN (section III-C) does not say what becomes of the optimizer when weights are averaged. Here its state is averaged as
//! they are: then nothing of a partition is left behind when it has been visited, however many partitions a worker hosts.

use gnnflow_dataflow::batch::mini_batch::MiniBatch;
use gnnflow_nn::optimizer::State;

use super::batch::BatchGradient;
use super::{ComputeState, Replica, StepReport};
use crate::error::Error;

/// The velocity's name in checkpoints.
const VELOCITY: &str = "average.velocity";

/// Goes on from what partitions had in common, `before`, past their average in the direction of this and earlier averages: Nesterov's
/// momentum on averages (Wang and others 2020, SlowMo; Douillard and others 2023).
fn go_on(average: &mut [f32], before: &[f32], velocity: &mut [f32], momentum: f32) {
    for ((average, before), velocity) in average.iter_mut().zip(before).zip(velocity) {
        let moved = *average - before;
        *velocity = momentum * *velocity + moved;
        *average = before + (moved + momentum * *velocity);
    }
}

/// What a partition has become: parameters, then the optimizer's vectors, each times the partition's share.
pub(crate) struct Visited {
    pub(crate) flat: Vec<f32>,
    /// The optimizer's steps.
    pub(crate) steps: u64,
}

impl ComputeState {
    /// How many numbers a partition contributes to the average.
    pub(crate) fn replica_len(&self) -> usize {
        self.params.len() + self.optimizer.state().vectors.iter().map(|(_, vector)| vector.len()).sum::<usize>()
    }

    /// Begins with another partition, from what all partitions have in common.
    pub(crate) fn begin_partition(&mut self) -> Result<(), Error> {
        match self.common.clone() {
            None => self.common = Some(Replica { params: self.params.clone(), optimizer: self.optimizer.state() }),
            Some(common) => self.restore(common)?,
        }
        Ok(())
    }

    /// Forward, backward and a step with one batch of the partition that is visited.
    pub(crate) fn local_step(&mut self, mut batch: MiniBatch, lr: f64) -> Result<StepReport, Error> {
        let digest = self.digest(&batch);
        let rounds = u64::from(batch.rounds);
        if batch.num_seeds == 0 {
            return Ok(StepReport { rounds, ..StepReport::default() });
        }
        let BatchGradient { flat: gradient, loss, examples, .. } = self.gradient(&mut batch)?;
        self.optimizer.set_learning_rate(lr);
        self.step(gradient, examples)?;
        Ok(StepReport { examples, loss, rounds, digest })
    }

    /// Ends the visit of a partition that has `share` of the training nodes.
    pub(crate) fn end_partition(&mut self, share: f64) -> Visited {
        let State { steps, vectors } = self.optimizer.state();
        let all = self.params.iter().chain(vectors.iter().flat_map(|(_, vector)| vector));
        Visited { flat: all.map(|&value| (f64::from(value) * share) as f32).collect(), steps }
    }

    /// Takes up the average of all partitions; `steps` is the most that one of them took.
    pub(crate) fn take_average(&mut self, mut flat: Vec<f32>, steps: u64) -> Result<(), Error> {
        if let (Some(common), Some(velocity)) = (&self.common, &mut self.velocity) {
            go_on(&mut flat[..velocity.len()], &common.params, velocity, self.average_momentum as f32);
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

    /// What the optimizer needs to go on later, and what averaging does.
    pub(crate) fn optimizer_state(&self) -> State {
        let mut state = self.optimizer.state();
        state.vectors.extend(self.velocity.iter().map(|velocity| (VELOCITY.to_owned(), velocity.clone())));
        state
    }

    /// Takes up optimizer and averaging where they were left.
    pub(crate) fn load_optimizer(&mut self, mut state: State) -> Result<(), Error> {
        if let Some(at) = state.vectors.iter().position(|(name, _)| name == VELOCITY) {
            self.velocity = Some(state.vectors.remove(at).1);
        }
        Ok(self.optimizer.load_state(state)?)
    }

    fn restore(&mut self, replica: Replica) -> Result<(), Error> {
        self.set_params(replica.params)?;
        self.load_optimizer(replica.optimizer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_gain_speed_in_a_lasting_direction() {
        let (mut at, mut velocity) = (vec![0.0f32], vec![0.0]);
        let mut positions = Vec::new();
        for _ in 0..3 {
            let mut average = vec![at[0] + 1.0];
            go_on(&mut average, &at, &mut velocity, 0.5);
            at = average;
            positions.push(at[0]);
        }
        // Velocities 1, 1.5, 1.75; steps 1 + 0.5 v.
        assert_eq!(positions, [1.5, 3.25, 5.125]);
        let mut average = vec![at[0] + 1.0];
        go_on(&mut average, &at, &mut velocity, 0.0);
        assert_eq!(average[0], at[0] + 1.0);
    }
}
