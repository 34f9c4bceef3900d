//! Neighbor sampling: from a batch's node list to the block of one hop.
//!
//! [`sample_hop`] is the fused kernel (FastSample, Algorithm 1): it samples in-neighbors of every node of the list
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
//!
//! A [`PerEdgeStrategy`] chooses among the in-edges that may be: those older than the seed (strictly) where it is temporal, else all.
//! With fanouts by type, the edges of each type with a fanout other than 0 are drawn from apart, in order of types, type `t`
//! under `key.fold(v).fold(t)`. In a temporal hop each seed has its own tree, and `key.fold(v)` above reads
//! `key.fold(v).fold(i)` for the tree of seed `i`. A negative fanout takes all, in stored order; so does one that is no less
//! than the edges that may be, but with replacement. Otherwise, of `n` edges:
//!
//! * [`Draw::Uniform`], [`Draw::UniformWithReplacement`]: as above.
//! * [`Draw::Weighted`]: pick `j` is found by inversion: `unit j` times the sum of the weights left, along the edges in
//!   stored order, in sums of sixteen (in `f64`, left to right; `sum_tree`); the edge found is then left out. So each
//!   pick is in proportion to its weight among those left. Edges of weight 0 are never taken and do not count: a node
//!   whose in-edges all weigh 0 has no neighbors.
//! * [`Draw::WeightedWithReplacement`]: the same without leaving out.
//! * [`Draw::Labor`] (LABOR-0; Balin and Çatalyürek, 2023, section 3.2): source `u` has one number for the whole hop, `draw 0`
//!   under `key.fold(u)`, whoever hears from it; the edge is taken when that is below `⌊2⁶⁴ k / n⌋`. So `k` are expected, and
//!   destinations that share sources tend to take the same ones. In stored order.
//! * [`Draw::Last`]: the `k` with the latest times, of equal ones those stored later; in stored order.
//!
//! [`Strategy::Importance`] draws for the hop as a whole: draw `j` is `key.below(j, n)` along stretches of the nodes in order, and whoever
//! samples some of the hop's nodes draws the same sources. Edges that come from those are taken, in stored order.

mod assemble;
mod biased;
mod columns;
mod hop;
mod importance;
mod induced;
mod layer;
mod loops;
mod per_edge;
mod pick;
mod samples;
mod strategy;
mod sum_tree;
mod topology;
mod walk;
mod without;

pub use assemble::{BadReply, Edges, Replies, assemble, assemble_edges, assemble_trees};
pub use biased::{Before, Bias, biased_step};
pub use columns::{Columns, EdgeSlices, EdgeValues};
pub use hop::{Trees, choose_hop, choose_neighbors, sample_hop, sample_neighbors};
pub use importance::{Importance, SquaredNorms};
pub use induced::{assemble_listed, choose_listed};
pub use layer::assemble_layer;
pub use pick::{Fanout, Sampler, Uniform, UniformWithReplacement};
pub use samples::Samples;
pub use strategy::{Draw, Fanouts, PerEdgeStrategy, Strategy};
pub use topology::{Csc, EdgeColumns, Neighbors, PartitionView, Partitions};
pub use walk::{Walk, walk_step};
pub use without::{EdgeName, Excluded, Without};

#[cfg(doc)]
use gnnflow_data::rng::Key;

#[cfg(test)]
mod tests;
