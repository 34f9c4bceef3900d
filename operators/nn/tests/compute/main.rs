//! Layers, operations, losses and optimizers against PyTorch's numbers, finite differences, naive programs and themselves on
//! other numbers of threads.

mod factory;
mod golden;
mod gradients;
mod models;
mod naive;
mod split;
mod threads;
