//! Refinement by passes over the stream: label propagation within the bounds of the goal.

use std::cmp::Reverse;

use gnnflow_data::partitioner::Goal;
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_data::{GraphSize, GraphStream, Result};
use rayon::prelude::*;

use super::balance::Bounds;
use super::counters::Counters;
use super::kway;

/// Refines an assignment by passes over a stream.
///
/// A pass counts the neighbors of every node in every part. Then nodes move to the part with most of them, in
/// descending order of gain, within the bounds. All nodes of a pass use the same counts. So only a random half of the
/// nodes may move per pass; otherwise neighbors would swap parts forever.
///
/// The result is the best assignment of all passes: within the bounds first, then the lowest cut. Sketched counters do
/// not give the cut; with them the result is the last assignment.
pub(super) struct Refinement<'a> {
    pub(super) graph: &'a dyn GraphStream,
    pub(super) bounds: &'a Bounds<'a>,
    pub(super) goal: &'a Goal,
    /// Bytes for the counters.
    pub(super) memory: u64,
    /// Name in the journal under which each pass is stored.
    pub(super) name: &'a str,
}

/// Quality of an assignment: whether it breaks a bound, and its cut with every edge counted from both ends.
type Score = (bool, u64);

struct State {
    passes_done: u32,
    current: Vec<u16>,
    best: Option<(Score, Vec<u16>)>,
}

impl Refinement<'_> {
    /// Bytes of a refinement with `memory` bytes for its counters: the counters; the current, the best and the last counted
    /// assignment; and the moves of a pass, or the bytes for the journal.
    pub(super) fn needed_bytes(size: GraphSize, goal: &Goal, memory: u64) -> u64 {
        Counters::needed_bytes(size, goal.parts, memory) + 14 * size.nodes
    }

    /// Runs at most `passes` passes that move nodes, and one that measures. Stops when a pass gains less than 0.5%.
    pub(super) fn run(&self, assignment: &mut Vec<u16>, passes: u32) -> Result<()> {
        let nodes = self.graph.num_nodes();
        if nodes == 0 || passes == 0 || self.goal.parts <= 1 {
            return Ok(());
        }
        let start = || State { passes_done: 0, current: std::mem::take(assignment), best: None };
        let mut state = self.resume(nodes as usize)?.unwrap_or_else(start);
        let mut counters = Counters::new(nodes, self.goal.parts, self.memory);
        // The assignment of the last count.
        let mut counted: Option<Vec<u16>> = None;
        loop {
            let last = state.passes_done == passes;
            let pass = match last {
                true => "measuring the cut".into(),
                false => format!("refining, pass {} of at most {passes}", state.passes_done + 1),
            };
            counters.recount(self.graph, &pass, counted.as_deref(), &state.current)?;
            let mut loads = self.bounds.loads(&state.current);
            let mut converged = false;
            if counters.is_exact() {
                let score = (!self.bounds.satisfied(&loads), cut(&counters, &state.current));
                if let Some((best, _)) = &state.best {
                    converged = best.0 == score.0 && score.1 > best.1 - best.1 / 200;
                }
                if state.best.as_ref().is_none_or(|(best, _)| score < *best) {
                    state.best = Some((score, state.current.clone()));
                }
            }
            if last || converged {
                break;
            }
            if counters.is_exact() {
                counted = Some(state.current.clone());
            }
            self.bounds.repair(&mut state.current, &mut loads, |node, part| counters.get(node as u32, part as u32));
            let moved = self.move_nodes(&counters, &mut state.current, &mut loads, state.passes_done);
            state.passes_done += 1;
            if state.passes_done == passes && !counters.is_exact()
                || moved == 0 && state.best.as_ref().is_some_and(|best| !best.0.0)
            {
                break;
            }
            self.graph.save(self.name, &state.to_bytes())?;
        }
        *assignment = match state.best {
            Some((_, best)) => best,
            None => state.current,
        };
        Ok(())
    }

    fn move_nodes(
        &self,
        counters: &Counters,
        assignment: &mut [u16],
        loads: &mut super::balance::Loads,
        pass: u32,
    ) -> usize {
        let key = Key::new(self.goal.seed, Purpose::Partition).fold_str("refine").fold(pass.into());
        let candidate = |(node, &own): (usize, &u16)| {
            let node = node as u32;
            if key.draw(node.into()) & 1 == 0 {
                return None;
            }
            let (best, count_there) = counters.best(node)?;
            let here = counters.get(node, own.into());
            (best != u32::from(own) && count_there > here).then(|| (Reverse(count_there - here), node))
        };
        let nodes = assignment.par_iter().enumerate().with_min_len(MIN_NODES_PER_TASK);
        let mut candidates: Vec<(Reverse<u32>, u32)> = nodes.filter_map(candidate).collect();
        candidates.par_sort_unstable();
        let mut moved = 0;
        for (_, node) in candidates {
            let own = assignment[node as usize];
            let here = counters.get(node, own.into());
            let mut to: Option<(u32, u32)> = None;
            counters.each(node, |part, count| {
                let better = count > here
                    && to
                        .is_none_or(|(other, count_there)| count > count_there || count == count_there && part < other);
                if better && part != u32::from(own) && self.bounds.fits(loads, node as usize, part as usize) {
                    to = Some((part, count));
                }
            });
            if let Some((to, _)) = to {
                self.bounds.shift(loads, node as usize, own.into(), to as usize);
                assignment[node as usize] = to as u16;
                moved += 1;
            }
        }
        moved
    }

    fn resume(&self, nodes: usize) -> Result<Option<State>> {
        Ok(self.graph.load(self.name)?.and_then(|bytes| State::from_bytes(&bytes, nodes)))
    }
}

/// Number of edge ends whose other end is in another part.
fn cut(counters: &Counters, assignment: &[u16]) -> u64 {
    let node_cut = |(node, &own): (usize, &u16)| {
        let mut cut = 0;
        counters.each(node as u32, |part, count| cut += if part == u32::from(own) { 0 } else { u64::from(count) });
        cut
    };
    assignment.par_iter().enumerate().with_min_len(MIN_NODES_PER_TASK).map(node_cut).sum()
}

/// Smallest number of nodes per parallel task.
const MIN_NODES_PER_TASK: usize = 4096;

impl State {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.passes_done.to_le_bytes().to_vec();
        bytes.extend(kway::to_bytes(&self.current));
        if let Some(((broken, cut), best)) = &self.best {
            bytes.push((*broken).into());
            bytes.extend(cut.to_le_bytes());
            bytes.extend(kway::to_bytes(best));
        }
        bytes
    }

    fn from_bytes(bytes: &[u8], nodes: usize) -> Option<Self> {
        let (passes_done, rest) = bytes.split_first_chunk()?;
        let (current, rest) = rest.split_at_checked(2 * nodes)?;
        let best = match rest.split_first() {
            None => None,
            Some((&broken, rest)) => {
                let (cut, rest) = rest.split_first_chunk()?;
                Some(((broken != 0, u64::from_le_bytes(*cut)), kway::from_bytes(rest, nodes)?))
            }
        };
        Some(Self { passes_done: u32::from_le_bytes(*passes_done), current: kway::from_bytes(current, nodes)?, best })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnnflow_data::testing::{TestGraph, TestStream, graphs, power_law};
    use std::collections::BTreeMap;

    fn refined(stream: &TestStream, goal: &Goal, start: &[u16], passes: u32, memory: u64) -> Vec<u16> {
        let bounds = Bounds::new(stream, goal).unwrap();
        let mut assignment = start.to_vec();
        let refinement = Refinement { graph: stream, bounds: &bounds, goal, memory, name: "refined" };
        refinement.run(&mut assignment, passes).unwrap();
        assignment
    }

    fn cut_of(graph: &TestGraph, parts: &[u16]) -> usize {
        graph.edges.iter().filter(|&&(u, v)| parts[u as usize] != parts[v as usize]).count()
    }

    fn turns(graph: &TestGraph, parts: u32) -> Vec<u16> {
        (0..graph.nodes).map(|node| (node % parts) as u16).collect()
    }

    #[test]
    fn refinement_never_raises_the_cut_and_stays_balanced() {
        for graph in graphs().into_iter().chain([power_law(300, 900, 4)]) {
            for parts in [1, 2, 5, 60] {
                let (goal, start) = (Goal::new(parts), turns(&graph, parts));
                let end = refined(&graph.stream(), &goal, &start, 6, 1 << 20);
                assert!(cut_of(&graph, &end) <= cut_of(&graph, &start), "{} in {parts}", graph.name);
                let stream = graph.stream();
                let bounds = Bounds::new(&stream, &goal).unwrap();
                assert!(bounds.satisfied(&bounds.loads(&end)), "{} in {parts}", graph.name);
                let mut other = graph.stream();
                other.chunk = 1000;
                assert_eq!(end, refined(&other, &goal, &start, 6, 1 << 20), "{} in {parts}", graph.name);
            }
        }
    }

    #[test]
    fn refinement_of_an_unbalanced_start_ends_balanced() {
        for graph in graphs() {
            let goal = Goal::new(3);
            for memory in [1 << 20, 0] {
                let end = refined(&graph.stream(), &goal, &vec![0; graph.nodes as usize], 4, memory);
                let stream = graph.stream();
                let bounds = Bounds::new(&stream, &goal).unwrap();
                assert!(bounds.satisfied(&bounds.loads(&end)), "{}", graph.name);
            }
        }
    }

    #[test]
    fn pass_equals_a_sequential_reference() {
        for graph in graphs() {
            let (goal, start) = (Goal { seed: 3, ..Goal::new(4) }, turns(&graph, 4));
            // The reference: count by a map, sort all nodes with a gain, move within the bound.
            let mut counts: BTreeMap<(u32, u16), i64> = BTreeMap::new();
            for &(u, v) in graph.edges.iter().filter(|(u, v)| u != v) {
                *counts.entry((u, start[v as usize])).or_default() += 1;
                *counts.entry((v, start[u as usize])).or_default() += 1;
            }
            let count = |node, part| counts.get(&(node, part)).copied().unwrap_or(0);
            let key = Key::new(3, Purpose::Partition).fold_str("refine").fold(0);
            let gain =
                |node: u32| (0..4).map(|part| count(node, part)).max().unwrap() - count(node, start[node as usize]);
            let mut order: Vec<u32> =
                (0..graph.nodes).filter(|&v| key.draw(v.into()) & 1 == 1 && gain(v) > 0).collect();
            order.sort_by_key(|&node| (-gain(node), node));
            let cap = ((1.05 * f64::from(graph.nodes) / 4.0) as usize).max(graph.nodes.div_ceil(4) as usize);
            let mut expected = start.clone();
            for node in order {
                let own = start[node as usize];
                let has_capacity = |part: u16| expected.iter().filter(|&&other| other == part).count() < cap;
                let open =
                    (0..4).rev().filter(|&to| to != own && count(node, to) > count(node, own) && has_capacity(to));
                if let Some(to) = open.max_by_key(|&to| count(node, to)) {
                    expected[node as usize] = to;
                }
            }
            let stream = graph.stream();
            let bounds = Bounds::new(&stream, &goal).unwrap();
            let refinement = Refinement { graph: &stream, bounds: &bounds, goal: &goal, memory: 0, name: "" };
            let mut counters = Counters::new(graph.nodes.into(), 4, 1 << 20);
            let votes = |u, v| (u != v).then(|| [start[v as usize].into(), start[u as usize].into()]);
            counters.count(&stream, "", votes).unwrap();
            let mut found = start.clone();
            refinement.move_nodes(&counters, &mut found, &mut bounds.loads(&start), 0);
            assert_eq!(found, expected, "{}", graph.name);
        }
    }

    #[test]
    fn interrupted_refinement_resumes_with_an_equal_result() {
        let graph = power_law(400, 2000, 8);
        let (goal, start) = (Goal::new(4), turns(&graph, 4));
        let whole = refined(&graph.stream(), &goal, &start, 6, 1 << 20);
        // The journal after two passes of an interrupted run equals that of a run of two passes.
        let first = graph.stream();
        refined(&first, &goal, &start, 2, 1 << 20);
        let again = graph.stream();
        again.saved.replace(first.saved.take());
        assert_eq!(refined(&again, &goal, &start, 6, 1 << 20), whole);
        assert!(again.passes.borrow()[0].contains("pass 3"), "{:?}", again.passes);
    }
}
