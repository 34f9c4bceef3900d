//! Layers, operations, losses and optimizers against PyTorch, finite differences, naive loops and other thread counts.

mod backward_tasks;
mod factory;
mod golden;
mod gradients;
mod models;
mod naive;
mod split;
mod threads;
