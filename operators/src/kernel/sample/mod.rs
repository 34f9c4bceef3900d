//! Neighbour sampling: from a batch's node list to the block of one hop.
//!
//! [`sample_hop`] is the fused kernel (FastSample, Algorithm 1): it samples in-neighbours of every node of the list
//! and compacts them straight into the block's CSC; no list of edge pairs lies between. When the topology is
//! spread over processes, the same work is done in two halves: every owner runs [`sample_neighbors`] over the nodes
//! asked of it, and the asker puts the answers together by [`assemble`]. Both ways give the same bits.
//!
//! **Randomness.** A hop is named by one [`Key`]; node `v` draws under `key.fold(v)` and nothing else, so the sample of
//! a node does not depend on who draws it, nor on what else is in the list.
//!
//! **What is taken, and in which order.** Edges are chosen, not nodes: parallel edges count apart, self loops like any
//! other. [`Fanout::All`], and [`Fanout::Uniform`] of a node with at most `k` in-edges, take all of them in stored
//! order. Otherwise [`Fanout::Uniform`] takes each of the `k`-subsets of the node's `d` in-edges with equal
//! probability by Floyd's algorithm: pick `j` of `0..k` is edge `t = draw j below d − k + j + 1`, or edge
//! `d − k + j` when `t` is already taken. [`Fanout::UniformWithReplacement`] takes edge `draw j below d`
//! for each `j` of `0..k`, and nothing from a node without in-edges. The bias of a draw is below `d / 2⁶⁴`.

mod assemble;
mod hop;
mod pick;
mod topology;

pub use assemble::{BadReply, Replies, assemble};
pub use hop::{sample_hop, sample_hop_by, sample_neighbors, sample_neighbors_by};
pub use pick::{Fanout, Sampler, Uniform, UniformWithReplacement};
pub use topology::{Csc, Neighbors, Partitions};

#[cfg(doc)]
use gnnflow_data::rng::Key;

#[cfg(test)]
mod tests;
