//! Batches of edges with negatives, for link prediction.
//!
//! An epoch visits the training edges of a partition in a random order, as [`NodeBatches`](super::seeds::NodeBatches) visits
//! nodes. Each edge has negative pairs, in which another node replaces one end: the tail if `epoch + step` is even, else the
//! head. Negatives are drawn under `Key(seed, Negative).fold(partition).fold(epoch).fold(step)`. A negative may be an edge of the
//! graph. If nodes have types, the new node has the same type as the one that it replaces.
//!
//! The seeds of the batch are the distinct ends of all pairs, in order of first appearance. No hop may take the batch's own edges:
//! [`MiniBatch::excluded`] lists them and their reverses.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use gnnflow_data::rng::{Key, Permutation, Purpose};

use super::edge_share::EdgeShare;
use super::node_groups::NodeGroups;
use super::seeds::BatchSource;
use crate::batch::mini_batch::{BatchKey, MiniBatch};
use gnnflow_kernels::compact::IdHasher;
use gnnflow_kernels::pairs::{Edge, Pairs, Shared};
use gnnflow_kernels::sample::{EdgeName, Excluded};

/// The distribution of negatives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NegativeKind {
    /// Uniform over all nodes but the replaced one, independently for each edge.
    Uniform,
    /// One list of uniformly drawn nodes for the whole batch; every edge is compared with all of them. If nodes have types,
    /// one list for each replaced type.
    Joint,
    /// The ends of the batch's other edges.
    InBatch,
    /// In proportion to the nodes' weights (in-degrees), independently for each edge.
    Degree,
}

/// The parameters of negatives.
#[derive(Clone, Debug)]
pub struct Negatives {
    /// Their distribution.
    pub kind: NegativeKind,
    /// The number of negatives per edge. [`NegativeKind::InBatch`] has fewer if the batch has fewer other edges.
    pub count: usize,
    /// The nodes of the graph, by type.
    pub nodes: Arc<NodeGroups>,
}

/// The training edges of the partitions that a worker hosts. Takes twelve bytes per edge.
#[derive(Clone, Debug)]
pub struct EdgeBatches {
    /// The largest number of edges in a batch.
    pub batch: usize,
    /// The run's seed.
    pub seed: u64,
    /// By partition; empty for partitions of other workers.
    pub edges: Vec<Vec<Edge>>,
    /// The classes of those edges, by partition; empty for link prediction.
    pub labels: Vec<Vec<u32>>,
    /// The negatives of each edge.
    pub negatives: Negatives,
    /// Whether hops must not take the batch's own edges.
    pub hides: bool,
    /// By relation: the type of its reverse edges, if they have one of their own.
    pub reverses: Vec<Option<u16>>,
    /// The number of edges that an epoch takes, if not all: the first ones in its order.
    pub share: Option<EdgeShare>,
}

impl BatchSource for EdgeBatches {
    fn batch(&self, key: BatchKey) -> MiniBatch {
        let edges = self.positives(key);
        let hidden = edges.iter().filter(|_| self.hides).flat_map(|&edge| self.hidden(edge));
        let excluded = Excluded::new(hidden.collect());
        let (seeds, mut pairs) = self.pairs(key, &edges);
        if let Some(labels) = self.labels.get(key.partition as usize) {
            pairs.labels = self.positions(key).map(|position| labels[position]).collect();
        }
        MiniBatch::new(key, seeds).with_pairs(pairs).without(excluded)
    }
}

impl EdgeBatches {
    /// Returns the edges of a batch, in order; none after the partition's last step.
    pub fn positives(&self, key: BatchKey) -> Vec<Edge> {
        let edges = &self.edges[key.partition as usize];
        self.positions(key).map(|position| edges[position]).collect()
    }

    /// Returns the positions of a batch's edges among the partition's edges.
    fn positions(&self, key: BatchKey) -> impl Iterator<Item = usize> + use<> {
        let part = key.partition as usize;
        let edges = self.edges[part].len();
        let taken = self.share.as_ref().map_or(edges, |share| share.of(part, key.epoch, self.seed) as usize);
        let root = Key::new(self.seed, Purpose::Shuffle);
        let order = Permutation::new(root.fold(u64::from(key.partition)).fold(u64::from(key.epoch)), edges as u64);
        let first = (key.step as usize).saturating_mul(self.batch).min(taken);
        let end = first.saturating_add(self.batch).min(taken);
        (first..end).map(move |i| order.at(i as u64) as usize)
    }

    /// Returns the edges that a batch with `edge` must not see: the edge, and its reverses, both of its own type and of the type of
    /// reverse edges.
    fn hidden(&self, edge: Edge) -> impl Iterator<Item = EdgeName> + use<> {
        let Edge { head, tail, relation } = edge;
        let reverse = self.reverses.get(usize::from(relation)).copied().flatten();
        let back = |edge_type| EdgeName { to: head, from: tail, edge_type };
        [EdgeName { to: tail, from: head, edge_type: relation }, back(relation)].into_iter().chain(reverse.map(back))
    }

    /// Returns the seeds and pairs of a batch of `edges`.
    fn pairs(&self, key: BatchKey, edges: &[Edge]) -> (Vec<u32>, Pairs) {
        let tails = (key.epoch + key.step).is_multiple_of(2);
        let replaced: Vec<u32> = edges.iter().map(|edge| if tails { edge.tail } else { edge.head }).collect();
        let Negatives { kind, nodes, .. } = &self.negatives;
        // All edges share one list if negatives are drawn jointly and all replaced nodes have one type.
        let group = |node: &u32| nodes.group_of(*node);
        let shares_list =
            *kind == NegativeKind::Joint && replaced.windows(2).all(|two| group(&two[0]) == group(&two[1]));
        let lists = if shares_list { replaced.len().min(1) } else { replaced.len() };
        let others = self.others(key, &replaced[..lists]);
        let negatives = others.len() / lists.max(1);
        let (mut seeds, mut positions) = (Vec::new(), HashMap::<u32, u32, BuildHasherDefault<IdHasher>>::default());
        let mut position = |node: u32| {
            *positions.entry(node).or_insert_with(|| {
                seeds.push(node);
                seeds.len() as u32 - 1
            })
        };
        let mut pairs = Pairs { positives: edges.len(), negatives, ..Pairs::default() };
        let mut push = |edge: Edge, position: &mut dyn FnMut(u32) -> u32| {
            pairs.heads.push(position(edge.head));
            pairs.tails.push(position(edge.tail));
            pairs.relations.push(edge.relation);
        };
        edges.iter().for_each(|&edge| push(edge, &mut position));
        if shares_list {
            let nodes = others.iter().map(|&other| position(other)).collect();
            pairs.shared = Some(Shared { nodes, tails });
            return (seeds, pairs);
        }
        for (i, &other) in others.iter().enumerate() {
            let edge = edges[i / negatives];
            push(if tails { Edge { tail: other, ..edge } } else { Edge { head: other, ..edge } }, &mut position);
        }
        (seeds, pairs)
    }

    /// Returns the nodes that replace each of `replaced`, the same number for each.
    fn others(&self, key: BatchKey, replaced: &[u32]) -> Vec<u32> {
        let Negatives { kind, count, nodes } = &self.negatives;
        let key = [key.partition, key.epoch, key.step]
            .into_iter()
            .fold(Key::new(self.seed, Purpose::Negative), |key, word| key.fold(u64::from(word)));
        let each = |draw: &dyn Fn(u32, Key, u64) -> u32| {
            let of = |(i, &node): (u64, &u32)| {
                let key = key.fold(i);
                (0..*count as u64).map(move |j| (node, key, j))
            };
            (0..).zip(replaced).flat_map(of).map(|(node, key, j)| draw(node, key, j)).collect()
        };
        match kind {
            NegativeKind::Uniform => each(&|node, key, j| nodes.draw_other(node, key, j)),
            NegativeKind::Degree => each(&|node, key, j| nodes.draw_weighted(nodes.group_of(node), key, j)),
            NegativeKind::Joint => each(&|node, _, j| {
                let group = nodes.group_of(node);
                nodes.draw(group, key.fold(group as u64), j)
            }),
            NegativeKind::InBatch => {
                // Distinct offsets within the batch, the same for every edge.
                let others = replaced.len().saturating_sub(1) as u64;
                let order = Permutation::new(key, others);
                let shifts: Vec<usize> = (0..others.min(*count as u64)).map(|j| 1 + order.at(j) as usize).collect();
                let shifted = |i: usize| shifts.iter().map(move |shift| replaced[(i + shift) % replaced.len()]);
                (0..replaced.len()).flat_map(shifted).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn source(kind: NegativeKind) -> EdgeBatches {
        let edges: Vec<Edge> =
            (0..10).map(|i| Edge { head: i, tail: 10 + i * 2 % 7, relation: (i % 2) as u16 }).collect();
        // Heads are of type 0, tails of type 1.
        let nodes = NodeGroups::new(&[(0, 0), (10, 1)], 20).with_weights(|node| u64::from(node == 3 || node == 12));
        let negatives = Negatives { kind, count: 4, nodes: Arc::new(nodes) };
        let labels = vec![(0..10).map(|i| 100 + i).collect(), vec![]];
        EdgeBatches {
            batch: 4,
            seed: 3,
            edges: vec![edges, vec![]],
            labels,
            negatives,
            hides: true,
            reverses: vec![Some(7), None],
            share: None,
        }
    }

    fn edges(batch: &MiniBatch) -> Vec<Edge> {
        let pairs = batch.pairs.as_ref().unwrap();
        let node = |position: u32| batch.nodes[position as usize];
        let edge =
            |i: usize| Edge { head: node(pairs.heads[i]), tail: node(pairs.tails[i]), relation: pairs.relations[i] };
        let mut all: Vec<Edge> = (0..pairs.len()).map(edge).collect();
        if let Some(Shared { nodes, tails }) = &pairs.shared {
            for edge in all.clone() {
                let other = nodes.iter().map(|&position| node(position));
                all.extend(other.map(|n| if *tails { Edge { tail: n, ..edge } } else { Edge { head: n, ..edge } }));
            }
        }
        all
    }

    #[test]
    fn an_epoch_visits_every_edge_once_and_seeds_are_the_distinct_ends() {
        let source = source(NegativeKind::Uniform);
        let mut seen = Vec::new();
        for step in 0..4 {
            let batch = source.batch(BatchKey { epoch: 1, step, partition: 0 });
            let (pairs, edges) = (batch.pairs.as_ref().unwrap(), edges(&batch));
            assert_eq!(edges.len(), pairs.positives * (1 + pairs.negatives));
            assert!(edges.iter().zip(&pairs.labels).all(|(edge, label)| label - 100 == edge.head));
            let distinct: HashSet<u32> = edges.iter().flat_map(|edge| [edge.head, edge.tail]).collect();
            assert_eq!(distinct.len(), batch.num_seeds);
            assert_eq!(distinct, batch.nodes.iter().copied().collect());
            seen.extend(edges[..pairs.positives].to_vec());
        }
        assert_eq!(seen.len(), 10);
        seen.sort_unstable();
        assert_eq!(seen, source.edges[0]);
        assert_eq!(source.batch(BatchKey { epoch: 0, step: 0, partition: 1 }).num_seeds, 0);
    }

    #[test]
    fn epochs_take_different_samples_of_the_edges() {
        let source = EdgeBatches { share: Some(EdgeShare::new(&[10, 0], 6)), ..source(NegativeKind::Uniform) };
        let of_epoch = |epoch| -> Vec<Edge> {
            let batches = (0..3).map(|step| source.positives(BatchKey { epoch, step, partition: 0 }));
            let sizes: Vec<usize> = batches.clone().map(|batch| batch.len()).collect();
            assert_eq!(sizes, [4, 2, 0]);
            batches.flatten().collect()
        };
        let distinct: HashSet<Edge> = of_epoch(0).into_iter().collect();
        assert_eq!(distinct.len(), 6);
        let seen: HashSet<Edge> = (0..20).flat_map(of_epoch).collect();
        assert_eq!(seen.len(), 10, "every edge has its epochs");
    }

    #[test]
    fn negatives_replace_one_end_by_another_node_of_its_type() {
        for kind in [NegativeKind::Uniform, NegativeKind::Joint, NegativeKind::InBatch, NegativeKind::Degree] {
            let source = source(kind);
            for step in 0..2 {
                let batch = source.batch(BatchKey { epoch: 0, step, partition: 0 });
                let (pairs, all) = (batch.pairs.as_ref().unwrap(), edges(&batch));
                assert_eq!(pairs.negatives, if kind == NegativeKind::InBatch { 3 } else { 4 });
                assert_eq!(pairs.shared.is_some(), kind == NegativeKind::Joint);
                let (positives, negatives) = all.split_at(4);
                for (i, negative) in negatives.iter().enumerate() {
                    let positive = positives[i / pairs.negatives];
                    assert_eq!(negative.relation, positive.relation);
                    assert!(negative.head < 10 && (10..20).contains(&negative.tail));
                    if step == 0 {
                        assert_eq!(negative.head, positive.head);
                    } else {
                        assert_eq!(negative.tail, positive.tail);
                    }
                    match kind {
                        NegativeKind::Uniform => assert_ne!(*negative, positive),
                        NegativeKind::Degree => {
                            assert!([3, 12].contains(&[negative.tail, negative.head][step as usize]))
                        }
                        NegativeKind::Joint => {
                            let first = negatives[i % pairs.negatives];
                            assert_eq!(
                                [negative.tail, negative.head][step as usize],
                                [first.tail, first.head][step as usize]
                            );
                        }
                        NegativeKind::InBatch => {
                            let ends = positives.iter().map(|edge| [edge.tail, edge.head][step as usize]);
                            assert!(ends.collect::<Vec<_>>().contains(&[negative.tail, negative.head][step as usize]));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_batch_hides_its_edges_and_their_reverses() {
        let source = source(NegativeKind::Joint);
        let batch = source.batch(BatchKey { epoch: 0, step: 0, partition: 0 });
        for Edge { head, tail, relation } in edges(&batch)[..4].iter().copied() {
            assert!(batch.excluded.into_node(tail).contains(&EdgeName { to: tail, from: head, edge_type: relation }));
            let back = batch.excluded.into_node(head).iter().filter(|edge| edge.from == tail);
            let types: Vec<u16> = back.map(|edge| edge.edge_type).collect();
            assert_eq!(types, if relation == 0 { vec![0, 7] } else { vec![1] });
        }
        assert!(batch.excluded.edges().len() <= 12);
        let open = EdgeBatches { hides: false, ..source };
        assert!(open.batch(BatchKey { epoch: 0, step: 0, partition: 0 }).excluded.edges().is_empty());
    }
}
