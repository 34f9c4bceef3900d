//! The balance bounds of a [`Goal`], and moves of nodes that restore them.

mod swaps;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use gnnflow_data::partitioner::{Goal, Targets};
use gnnflow_data::{GraphSize, GraphStream, Result};

/// The bounds that a [`Goal`] sets for one graph.
///
/// The bound of a part is `max(⌊target · total / parts⌋, ⌈total / parts⌉, heaviest node)`, with the `total` of all
/// nodes. Rule 0 bounds the number of nodes. Only this rule can always be satisfied.
pub(super) struct Bounds<'a> {
    parts: usize,
    nodes: usize,
    rules: Vec<Rule>,
    splits: &'a [u8],
    types: &'a [u16],
    in_edges: Vec<AtomicU32>,
}

/// One quantity and its bound.
#[derive(Clone, Copy, Debug)]
struct Rule {
    quantity: Quantity,
    target: f64,
    total: u64,
    cap: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Quantity {
    Nodes,
    Split(u8),
    InEdges,
    Type(u16),
}

/// The sum of every quantity in every part.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Loads(Vec<u64>);

impl<'a> Bounds<'a> {
    /// Computes the bounds of `goal`. Reads the edges once if the goal balances in-edges.
    pub(super) fn new(graph: &'a dyn GraphStream, goal: &Goal) -> Result<Self> {
        let (nodes, balance) = (graph.num_nodes() as usize, &goal.balance);
        let mut quantities = vec![(Quantity::Nodes, balance.nodes)];
        let splits = [(1, balance.train), (2, balance.val), (3, balance.test)];
        quantities.extend(splits.into_iter().filter_map(|(split, target)| Some((Quantity::Split(split), target?))));
        let mut in_edges = Vec::new();
        if let Some(target) = balance.edges {
            in_edges.resize_with(nodes, AtomicU32::default);
            let undirected = graph.undirected();
            graph.accumulate("counting in-edges", &in_edges, &|edges| {
                for &(src, dst) in edges {
                    in_edges[dst as usize].fetch_add(1, Relaxed);
                    if undirected && src != dst {
                        in_edges[src as usize].fetch_add(1, Relaxed);
                    }
                }
            })?;
            quantities.push((Quantity::InEdges, target));
        }
        if let Some(target) = balance.types {
            let mut types = graph.node_types().to_vec();
            types.sort_unstable();
            types.dedup();
            quantities.extend(types.into_iter().map(|kind| (Quantity::Type(kind), target)));
        }
        let mut bounds = Self {
            parts: goal.parts as usize,
            nodes,
            rules: Vec::new(),
            splits: graph.splits(),
            types: graph.node_types(),
            in_edges,
        };
        for (quantity, target) in quantities {
            let weights = (0..nodes).map(|node| bounds.amount(quantity, node));
            let (total, heaviest) = weights.fold((0, 0), |(sum, most), w| (sum + w, most.max(w)));
            let mean = total as f64 / bounds.parts as f64;
            let cap = ((target * mean) as u64).max(total.div_ceil(bounds.parts as u64)).max(heaviest);
            if total > 0 || quantity == Quantity::Nodes {
                bounds.rules.push(Rule { quantity, target, total, cap });
            }
        }
        Ok(bounds)
    }

    /// Bytes of the bounds of a graph: its in-edges, if they are bounded.
    pub(super) fn needed_bytes(size: GraphSize, goal: &Goal) -> u64 {
        goal.balance.edges.map_or(0, |_| size.cell_bytes(size.nodes))
    }

    /// The largest number of quantities that `goal` bounds, with `types` types of nodes.
    pub(super) fn most_rules(goal: &Goal, types: u64) -> u64 {
        let Targets { train, val, test, edges, types: of_types, .. } = goal.balance;
        let of_types = of_types.map_or(0, |_| types);
        1 + [train, val, test, edges].into_iter().flatten().count() as u64 + of_types
    }

    pub(super) fn nodes(&self) -> usize {
        self.nodes
    }

    /// Number of quantities, at least one.
    pub(super) fn len(&self) -> usize {
        self.rules.len()
    }

    /// Allowed ratio of the largest part to the mean part, for each quantity.
    pub(super) fn targets(&self) -> Vec<f32> {
        self.rules.iter().map(|rule| rule.target as f32).collect()
    }

    /// The sum of quantity `rule` over all nodes.
    pub(super) fn total(&self, rule: usize) -> u64 {
        self.rules[rule].total
    }

    /// The bound of a part for quantity `rule`.
    #[cfg(test)]
    pub(super) fn cap(&self, rule: usize) -> u64 {
        self.rules[rule].cap
    }

    /// The amount of quantity `rule` at `node`.
    #[inline]
    pub(super) fn weight(&self, rule: usize, node: usize) -> u64 {
        self.amount(self.rules[rule].quantity, node)
    }

    #[inline]
    fn amount(&self, quantity: Quantity, node: usize) -> u64 {
        match quantity {
            Quantity::Nodes => 1,
            Quantity::Split(split) => u64::from(self.splits.get(node) == Some(&split)),
            Quantity::InEdges => u64::from(self.in_edges[node].load(Relaxed)),
            Quantity::Type(kind) => u64::from(self.types[node] == kind),
        }
    }

    pub(super) fn loads(&self, assignment: &[u16]) -> Loads {
        let mut loads = vec![0; self.rules.len() * self.parts];
        for (rule, loads) in loads.chunks_exact_mut(self.parts.max(1)).enumerate() {
            for (node, &part) in assignment.iter().enumerate() {
                loads[part as usize] += self.weight(rule, node);
            }
        }
        Loads(loads)
    }

    /// The load of quantity `rule` in `part`.
    #[inline]
    pub(super) fn load(&self, loads: &Loads, rule: usize, part: usize) -> u64 {
        loads.0[rule * self.parts + part]
    }

    /// Whether `part` stays within all bounds with `node` added.
    #[inline]
    pub(super) fn fits(&self, loads: &Loads, node: usize, part: usize) -> bool {
        self.fits_from(loads, 0, node, part)
    }

    /// As [`fits`](Self::fits), for the quantities from `first` on.
    #[inline]
    fn fits_from(&self, loads: &Loads, first: usize, node: usize, part: usize) -> bool {
        (first..self.rules.len()).all(|rule| {
            let weight = self.weight(rule, node);
            weight == 0 || self.load(loads, rule, part) + weight <= self.rules[rule].cap
        })
    }

    /// Updates the loads for a move of `node`.
    #[inline]
    pub(super) fn shift(&self, loads: &mut Loads, node: usize, from: usize, to: usize) {
        for rule in 0..self.rules.len() {
            let weight = self.weight(rule, node);
            loads.0[rule * self.parts + from] -= weight;
            loads.0[rule * self.parts + to] += weight;
        }
    }

    pub(super) fn satisfied(&self, loads: &Loads) -> bool {
        let rows = loads.0.chunks_exact(self.parts.max(1)).zip(&self.rules);
        rows.into_iter().all(|(row, rule)| row.iter().all(|&load| load <= rule.cap))
    }

    /// Moves nodes out of overfull parts until the bound on nodes holds, and the others as far as possible.
    ///
    /// `neighbors_in(node, part)` is the number of the node's neighbors in a part. Nodes that lose the fewest neighbors
    /// move first. If parts are too full for moves, nodes are exchanged. Returns the number of moves.
    pub(super) fn repair(
        &self,
        assignment: &mut [u16],
        loads: &mut Loads,
        neighbors_in: impl Fn(usize, usize) -> u32,
    ) -> usize {
        let mut moved = 0;
        // The bound on nodes is last, because it can always be satisfied. The moves before may break it.
        for rule in (0..self.rules.len()).rev() {
            for part in 0..self.parts {
                if self.load(loads, rule, part) > self.rules[rule].cap {
                    moved += self.drain_part(assignment, loads, rule, part, &neighbors_in);
                }
            }
            // Bounds can conflict. Before the bound on nodes is restored, the total excess is lowered.
            if rule == 1 && !self.satisfied(loads) {
                moved += self.lower_excess(assignment, loads, &neighbors_in, false);
            }
        }
        // Full parts allow only exchanges. An exchange may make single moves possible again.
        for _ in 0..MAX_ROUNDS {
            let (before, excess) = (moved, self.excess(loads));
            if excess > 0.0 {
                moved += self.exchange(assignment, loads, &neighbors_in);
                moved += self.lower_excess(assignment, loads, &neighbors_in, true);
            }
            if moved == before || self.excess(loads) > 0.99 * excess {
                break;
            }
        }
        moved
    }

    /// The sum over all quantities and parts of the load above the bound, relative to the bound.
    pub(super) fn excess(&self, loads: &Loads) -> f64 {
        let rows = loads.0.chunks_exact(self.parts.max(1)).zip(&self.rules);
        rows.flat_map(|(row, rule)| row.iter().map(|&load| relative_excess(load, rule.cap))).sum()
    }

    /// Moves nodes out of overfull parts as long as the total excess falls. A move may break a bound if other bounds
    /// gain more. With `keep_nodes`, no move breaks the bound on nodes.
    fn lower_excess(
        &self,
        assignment: &mut [u16],
        loads: &mut Loads,
        neighbors_in: &impl Fn(usize, usize) -> u32,
        keep_nodes: bool,
    ) -> usize {
        let mut moved = 0;
        for _ in 0..MAX_ROUNDS {
            let before = moved;
            for (node, own) in assignment.iter_mut().enumerate() {
                let from = *own as usize;
                let overfull =
                    |rule: usize| self.load(loads, rule, from) > self.rules[rule].cap && self.weight(rule, node) > 0;
                if !(0..self.rules.len()).any(overfull) {
                    continue;
                }
                let mut best = (-1e-9, 0, from);
                let open = |to: usize| to != from && !(keep_nodes && self.load(loads, 0, to) >= self.rules[0].cap);
                for to in (0..self.parts).filter(|&to| open(to)) {
                    let change = self.excess_change(loads, node, from, to);
                    if change < best.0 || change == best.0 && neighbors_in(node, to) > best.1 {
                        best = (change, neighbors_in(node, to), to);
                    }
                }
                if best.2 != from {
                    self.shift(loads, node, from, best.2);
                    *own = best.2 as u16;
                    moved += 1;
                }
            }
            if moved == before {
                break;
            }
        }
        moved
    }

    /// The change of the excess when `node` moves from part `from` to part `to`.
    fn excess_change(&self, loads: &Loads, node: usize, from: usize, to: usize) -> f64 {
        let of_rule = |rule: usize| {
            let (cap, weight) = (self.rules[rule].cap, self.weight(rule, node));
            let (here, there) = (self.load(loads, rule, from), self.load(loads, rule, to));
            relative_excess(here - weight, cap) - relative_excess(here, cap) + relative_excess(there + weight, cap)
                - relative_excess(there, cap)
        };
        (0..self.rules.len()).map(of_rule).sum()
    }

    /// Moves nodes out of `part` until quantity `rule` is within its bound there. Returns the number of moves.
    fn drain_part(
        &self,
        assignment: &mut [u16],
        loads: &mut Loads,
        rule: usize,
        part: usize,
        neighbors_in: &impl Fn(usize, usize) -> u32,
    ) -> usize {
        let cap = self.rules[rule].cap;
        // The allowed part with the most neighbors of the node.
        let best = |node: usize, allowed: &dyn Fn(usize) -> bool| {
            let open = (0..self.parts).filter(|&to| to != part && allowed(to));
            open.max_by_key(|&to| (neighbors_in(node, to), Reverse(self.load(loads, rule, to)), Reverse(to)))
        };
        let mut outgoing: Vec<(i64, u32)> = (0..self.nodes)
            .filter(|&node| assignment[node] as usize == part && self.weight(rule, node) > 0)
            .filter_map(|node| {
                let to = best(node, &|to| self.load(loads, rule, to) < cap)?;
                Some((i64::from(neighbors_in(node, part)) - i64::from(neighbors_in(node, to)), node as u32))
            })
            .collect();
        outgoing.sort_unstable();
        let mut moved = 0;
        // First the moves that break no other bound; then, only for the number of nodes, any move.
        for strict in [true, false] {
            if !strict && rule != 0 {
                break;
            }
            for &(_, node) in &outgoing {
                let node = node as usize;
                if self.load(loads, rule, part) <= cap {
                    return moved;
                }
                if assignment[node] as usize != part {
                    continue;
                }
                let weight = self.weight(rule, node);
                let fits = |to: usize| self.load(loads, rule, to) + weight <= cap;
                let open = (0..self.parts)
                    .filter(|&to| to != part && fits(to) && (!strict || self.fits_from(loads, 1, node, to)));
                let to =
                    open.max_by_key(|&to| (neighbors_in(node, to), Reverse(self.load(loads, rule, to)), Reverse(to)));
                if let Some(to) = to {
                    self.shift(loads, node, part, to);
                    assignment[node] = to as u16;
                    moved += 1;
                }
            }
        }
        moved
    }
}

const MAX_ROUNDS: usize = 16;

/// The load above the bound, relative to the bound.
fn relative_excess(load: u64, cap: u64) -> f64 {
    load.saturating_sub(cap) as f64 / cap.max(1) as f64
}
