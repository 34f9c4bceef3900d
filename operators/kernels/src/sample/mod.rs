//! Neighbor sampling: builds the block of one hop from a batch's list of nodes.
//!
//! [`sample_hop`] is the fused kernel (FastSample, Algorithm 1). It samples in-neighbors of every listed node and
//! compacts them directly into the block's CSC, without an intermediate list of edges. For a distributed topology, each
//! owner runs [`sample_neighbors`] on the requested nodes, and the requester merges the replies by [`assemble`]. Both
//! give the same bits.
//!
//! **Randomness.** Each hop has one [`Key`]. Node `v` draws under `key.fold(v)` only. Its sample therefore depends
//! neither on the process that draws it nor on the rest of the list.
//!
//! **Order.** Strategies choose edges, not nodes: parallel edges count separately, and self loops are ordinary edges.
//! [`Fanout::All`], and [`Fanout::Uniform`] of a node with at most `k` in-edges, take all of them in stored order.
//! Otherwise [`Fanout::Uniform`] takes each of the `k`-subsets of the node's `d` in-edges with equal probability by
//! Floyd's algorithm. Pick `j` of `0..k` is edge `t = draw j below d − k + j + 1`, or edge `d − k + j` if an earlier
//! pick is `t`. [`Fanout::UniformWithReplacement`] takes edge `draw j below d` for each `j` of `0..k`, and nothing from
//! a node without in-edges. The bias of a draw is below `d / 2⁶⁴`.
//!
//! A [`PerEdgeStrategy`] chooses among a node's eligible in-edges: all, or, if temporal, those strictly older than the
//! seed. With fanouts by type, edges of each type with a fanout other than 0 are drawn separately, in order of types,
//! type `t` under `key.fold(v).fold(t)`. In a temporal hop each seed has a separate tree; seed `i` uses
//! `key.fold(v).fold(i)` in place of `key.fold(v)`. A negative fanout takes all eligible edges, in stored order. So
//! does a fanout that reaches their number, except with replacement. Otherwise, of `n` edges:
//!
//! * [`Draw::Uniform`], [`Draw::UniformWithReplacement`]: as above.
//! * [`Draw::Weighted`]: inversion. Pick `j` is the edge at `unit j` times the sum of the remaining weights. A tree of
//!   width 16 sums them in stored order (in `f64`, left to right; `sum_tree`). The picked edge is then removed, so each
//!   pick is in proportion to the remaining weights. Edges of weight 0 are never taken and do not count: a node whose
//!   in-edges all have weight 0 has no neighbors.
//! * [`Draw::WeightedWithReplacement`]: the same without removal.
//! * [`Draw::Labor`] (LABOR-0; Balin and Çatalyürek, 2023, section 3.2): source `u` has one number per hop, `draw 0`
//!   under `key.fold(u)`, for all destinations. An edge is taken if that number is below `⌊2⁶⁴ k / n⌋`. The expected
//!   number of edges is `k`, and destinations tend to take the same shared sources. In stored order.
//! * [`Draw::Last`]: the `k` edges with the latest times; of equal times, those stored later. In stored order.
//!
//! [`Strategy::Importance`] draws sources for the whole hop: draw `j` is `key.below(j, n)` on the cumulative ranges of
//! the nodes. All workers that sample for the hop draw the same sources. Edges from these are taken, in stored order.

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

pub use assemble::{Edges, Replies, assemble, assemble_edges, assemble_trees};
pub use biased::{Before, Bias, biased_step};
pub use columns::{Columns, EdgeSlices, EdgeValues};
pub use hop::{Trees, choose_hop, choose_neighbors, sample_hop, sample_neighbors};
pub use importance::{Importance, SquaredNorms};
pub use induced::{assemble_listed, choose_listed};
pub use layer::assemble_layer;
pub use pick::{Fanout, Sampler, SamplerFault, Uniform, UniformWithReplacement};
pub use samples::{BadReply, Samples};
pub use strategy::{Draw, EdgeFanout, PerEdgeStrategy, Strategy};
pub use topology::{Csc, EdgeColumns, Neighbors, PartitionView, Partitions};
pub use walk::{Walk, walk_step};
pub use without::{EdgeName, Excluded, Without};

#[cfg(doc)]
use gnnflow_data::rng::Key;

#[cfg(test)]
mod tests;
