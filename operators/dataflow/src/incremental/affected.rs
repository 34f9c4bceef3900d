//! The nodes that a change affects.
//!
//! *In*: edges as a collection of `(source, destination)`, and the nodes that have changed. *Out*: every node that a
//! changed one reaches along at most `hops` edges, once each, including the changed ones. *Kept*: the edges, arranged
//! by source and shared by all hops, and the nodes of every hop.
//!
//! The output of a model of `L` layers changes only for nodes within `L` hops of a change. Inference computes only those
//! again. Insertions and removals of edges are part of the collection's history, so the
//! result at any time is that of the edges of that time, on any number of workers.

use differential_dataflow::VecCollection;
use differential_dataflow::lattice::Lattice;
use timely::order::TotalOrder;
use timely::progress::Timestamp;

/// Finds the nodes that a change affects.
pub trait Affected<'scope, T: Timestamp> {
    /// Returns the nodes that a node of `changed` reaches along at most `hops` edges.
    ///
    /// # Example
    /// ```
    /// use differential_dataflow::input::Input;
    /// use gnnflow_dataflow::incremental::affected::Affected;
    ///
    /// timely::execute_directly(|worker| {
    ///     worker.dataflow::<u64, _, _>(|scope| {
    ///         let (_, edges) = scope.new_collection_from([(0u32, 1u32), (1, 2), (2, 3)]);
    ///         let (_, changed) = scope.new_collection_from([0u32]);
    ///         edges.affected(changed, 2).assert_eq(scope.new_collection_from([0u32, 1, 2]).1);
    ///     });
    /// });
    /// ```
    fn affected(self, changed: VecCollection<'scope, T, u32>, hops: usize) -> VecCollection<'scope, T, u32>;

    /// Returns the same nodes, each with the length of its shortest path: 0 for the changed nodes.
    fn affected_in_steps(
        self,
        changed: VecCollection<'scope, T, u32>,
        hops: usize,
    ) -> VecCollection<'scope, T, (u32, u32)>;
}

impl<'scope, T> Affected<'scope, T> for VecCollection<'scope, T, (u32, u32)>
where
    T: Timestamp + Lattice + TotalOrder,
{
    fn affected(self, changed: VecCollection<'scope, T, u32>, hops: usize) -> VecCollection<'scope, T, u32> {
        self.affected_in_steps(changed, hops).map(|(node, _)| node)
    }

    fn affected_in_steps(
        self,
        changed: VecCollection<'scope, T, u32>,
        hops: usize,
    ) -> VecCollection<'scope, T, (u32, u32)> {
        let by_source = self.arrange_by_key();
        let mut frontier = changed.clone();
        let mut reached = changed.map(|node| (node, 0));
        for step in 1..=hops as u32 {
            // Distinct at every hop, since a hub would otherwise be counted once for every path to it. `distinct_total`
            // would be cheaper, but never retracts in differential-dataflow 0.25.1.
            frontier = frontier
                .map(|node| (node, ()))
                .arrange_by_key()
                .join_core(by_source.clone(), |_, _, &destination| Some(destination))
                .distinct();
            reached = reached.concat(frontier.clone().map(move |node| (node, step)));
        }
        // Values are sorted, so the first is the shortest.
        reached.reduce(|_, steps, shortest| shortest.extend(steps.first().map(|(step, _)| (**step, 1isize))))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::{Mutex, mpsc};

    use differential_dataflow::input::InputSession;
    use gnnflow_data::rng::{Key, Purpose};
    use timely::dataflow::operators::probe;

    use super::*;

    const NODES: u64 = 40;
    const ROUNDS: u64 = 12;
    const HOPS: usize = 2;

    /// Returns the change of a round: an edge, and whether it is added or removed. Its destination is the changed node.
    fn change(round: u64) -> ((u32, u32), bool) {
        let key = Key::new(9, Purpose::GenerateEdges).fold(round / 2);
        ((key.below(0, NODES) as u32, key.below(1, NODES) as u32), round.is_multiple_of(2) || round % 4 == 1)
    }

    fn first_edges() -> Vec<(u32, u32)> {
        let key = Key::new(8, Purpose::GenerateEdges);
        let edges: BTreeSet<_> =
            (0..60).map(|i| (key.below(2 * i, NODES) as u32, key.below(2 * i + 1, NODES) as u32)).collect();
        edges.into_iter().collect()
    }

    /// The obvious program: breadth-first search over a list of edges, every round anew.
    fn expected() -> Vec<BTreeSet<u32>> {
        let mut edges: BTreeMap<(u32, u32), i64> = first_edges().into_iter().map(|edge| (edge, 1)).collect();
        (0..ROUNDS)
            .map(|round| {
                let (edge, insert) = change(round);
                *edges.entry(edge).or_default() += if insert { 1 } else { -1 };
                let mut reached = BTreeSet::from([edge.1]);
                for _ in 0..HOPS {
                    let next = edges.iter().filter(|((src, _), count)| **count > 0 && reached.contains(src));
                    let next: Vec<u32> = next.map(|((_, dst), _)| *dst).collect();
                    reached.extend(next);
                }
                reached
            })
            .collect()
    }

    fn found(workers: usize) -> Vec<BTreeSet<u32>> {
        let (send, receive) = mpsc::channel();
        let send = Mutex::new(send);
        timely::execute(timely::Config::process(workers), move |worker| {
            let send = send.lock().unwrap().clone();
            let (mut edges, mut changed) = (InputSession::new(), InputSession::new());
            let probe = probe::Handle::new();
            worker.dataflow::<u64, _, _>(|scope| {
                let changed = changed.to_collection(scope);
                edges
                    .to_collection(scope)
                    .affected(changed, HOPS)
                    .inspect(move |(node, time, diff)| send.send((*node, *time, *diff)).unwrap())
                    .probe_with(&probe);
            });
            let first = worker.index() == 0;
            if first {
                first_edges().into_iter().for_each(|edge| edges.insert(edge));
            }
            for round in 0..ROUNDS {
                let (edge, insert) = change(round);
                if first {
                    edges.update(edge, if insert { 1 } else { -1 });
                    changed.insert(edge.1);
                }
                edges.advance_to(round + 1);
                changed.advance_to(round + 1);
                if first {
                    changed.remove(edge.1); // of the next round's set
                }
                edges.flush();
                changed.flush();
                while probe.less_than(edges.time()) {
                    worker.step_or_park(None);
                }
            }
        })
        .unwrap();
        let mut at: BTreeMap<u32, BTreeMap<u64, isize>> = BTreeMap::new();
        receive.into_iter().for_each(|(node, time, diff): (u32, u64, isize)| {
            *at.entry(node).or_default().entry(time).or_default() += diff
        });
        let sum = |times: &BTreeMap<u64, isize>, round| times.range(..=round).map(|(_, diff)| diff).sum::<isize>();
        (0..ROUNDS)
            .map(|round| {
                let held = at.iter().filter(|(_, times)| sum(times, round) > 0);
                held.map(|(&node, times)| {
                    assert_eq!(sum(times, round), 1, "node {node} counts once");
                    node
                })
                .collect()
            })
            .collect()
    }

    #[test]
    fn affected_nodes_equal_a_search_after_insertions_and_removals_at_1_2_and_4_workers() {
        let expected = expected();
        assert!(expected.iter().any(|reached| reached.len() > 3));
        for workers in [1, 2, 4] {
            assert_eq!(found(workers), expected, "{workers} workers");
        }
    }
}
