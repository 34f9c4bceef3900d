//! Exchanges of two nodes, for parts so full that no single node can move.

use super::{Bounds, Loads, MAX_ROUNDS, Quantity};

/// Number of candidates from which the partner of a node is chosen.
const MAX_CANDIDATES: usize = 16;
/// Largest number of pairs of node kinds that are tried between two parts.
const MAX_KIND_PAIRS: usize = 4096;
/// Largest change of the excess that counts as a decrease.
const DECREASE: f64 = -1e-9;

impl Bounds<'_> {
    /// Exchanges nodes of overfull parts with nodes of other parts while the excess falls. Returns the number of
    /// exchanges.
    ///
    /// A *kind* is a pair of split and type, as far as these are bounded. Nodes of one kind differ in in-edges only, so
    /// their exchange affects one bound. It is tried first, then kinds that break no bound, then other kinds.
    pub(super) fn exchange(
        &self,
        assignment: &mut [u16],
        loads: &mut Loads,
        neighbors_in: &impl Fn(usize, usize) -> u32,
    ) -> usize {
        let mut swapped = 0;
        let mut strict = true;
        for _ in 0..MAX_ROUNDS {
            if self.satisfied(loads) {
                break;
            }
            let before = (swapped, self.excess(loads));
            let members = Members::new(self, assignment);
            for part in 0..self.parts {
                // The least full part first.
                let mut others: Vec<usize> = (0..self.parts).filter(|&other| other != part).collect();
                others.sort_by(|&a, &b| self.fullness(loads, part, a).total_cmp(&self.fullness(loads, part, b)));
                for other in others {
                    if !self.is_overfull(loads, part) {
                        break;
                    }
                    let mut pair =
                        Pair { bounds: self, assignment, loads, from: part, to: other, strict, neighbors_in };
                    swapped += pair.exchange(&members);
                }
            }
            // Later rounds gain no more than this one.
            let stalled = self.excess(loads) > 0.99 * before.1;
            match (strict, swapped == before.0 || stalled) {
                (true, true) => strict = false,
                (false, true) => break,
                (_, false) => strict = true,
            }
        }
        swapped
    }

    fn is_overfull(&self, loads: &Loads, part: usize) -> bool {
        (0..self.rules.len()).any(|rule| self.load(loads, rule, part) > self.rules[rule].cap)
    }

    /// The load of `other` relative to the bound, summed over the quantities in which `part` is overfull.
    fn fullness(&self, loads: &Loads, part: usize, other: usize) -> f64 {
        let share = |rule: usize| self.load(loads, rule, other) as f64 / self.rules[rule].cap.max(1) as f64;
        (0..self.rules.len()).filter(|&rule| self.load(loads, rule, part) > self.rules[rule].cap).map(share).sum()
    }

    /// The split and the type of a node, as far as they are bounded.
    fn kind(&self, node: usize) -> u32 {
        let bounded = |quantity| u32::from(self.rules.iter().any(|rule| rule.quantity == quantity));
        let split = self.splits.get(node).map_or(0, |&split| u32::from(split) * bounded(Quantity::Split(split)));
        let kind = self.types.get(node).map_or(0, |&kind| (u32::from(kind) + 1) * bounded(Quantity::Type(kind)));
        split << 17 | kind
    }

    /// The rule on in-edges, the only quantity with different amounts per node.
    fn in_edge_rule(&self) -> Option<usize> {
        self.rules.iter().position(|rule| rule.quantity == Quantity::InEdges)
    }
}

/// The nodes of every part by kind, at the start of a round.
struct Members {
    /// Sorted by part, kind, index.
    order: Vec<u32>,
    /// First position in `order` of each kind of each part: `(part, kind, first)`.
    begins: Vec<(u16, u32, usize)>,
}

impl Members {
    fn new(bounds: &Bounds<'_>, assignment: &[u16]) -> Self {
        let place = |node: u32| (assignment[node as usize], bounds.kind(node as usize));
        let mut order: Vec<u32> = (0..assignment.len() as u32).collect();
        order.sort_by_cached_key(|&node| place(node));
        let mut begins: Vec<(u16, u32, usize)> = Vec::new();
        for (at, &node) in order.iter().enumerate() {
            let (part, kind) = place(node);
            if begins.last().is_none_or(|last| (last.0, last.1) != (part, kind)) {
                begins.push((part, kind, at));
            }
        }
        Self { order, begins }
    }

    /// Iterates over `(kind, nodes)` of a part.
    fn of(&self, part: usize) -> impl Iterator<Item = (u32, &[u32])> {
        let first = self.begins.partition_point(|begin| usize::from(begin.0) < part);
        let end = self.begins.partition_point(|begin| usize::from(begin.0) <= part);
        (first..end).map(|at| {
            let (_, kind, begin) = self.begins[at];
            let end = self.begins.get(at + 1).map_or(self.order.len(), |next| next.2);
            (kind, &self.order[begin..end])
        })
    }
}

/// An overfull part and a part to exchange nodes with.
struct Pair<'a, 'b, P> {
    bounds: &'a Bounds<'b>,
    assignment: &'a mut [u16],
    loads: &'a mut Loads,
    from: usize,
    to: usize,
    /// Whether no satisfied bound may be broken.
    strict: bool,
    neighbors_in: &'a P,
}

impl<P: Fn(usize, usize) -> u32> Pair<'_, '_, P> {
    /// Exchanges nodes until part `from` is within its bounds. Returns the number of exchanges.
    fn exchange(&mut self, members: &Members) -> usize {
        let mut kinds: Vec<(bool, f64, &[u32], &[u32])> = Vec::new();
        for (kind, outgoing) in members.of(self.from) {
            for (other, incoming) in members.of(self.to).take(MAX_KIND_PAIRS.saturating_sub(kinds.len())) {
                let change = match kind == other {
                    true => 0.0,
                    false => self.excess_change(outgoing[0], incoming[0], None),
                };
                if !(self.strict && change > 0.0) {
                    kinds.push((kind != other, change, outgoing, incoming));
                }
            }
        }
        // Pairs that improve splits and types first, then pairs that do not change them.
        kinds.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
        let mut swapped = 0;
        for (_, _, outgoing, incoming) in kinds {
            if !self.bounds.is_overfull(self.loads, self.from) {
                break;
            }
            swapped += self.exchange_kinds(outgoing, incoming);
        }
        swapped
    }

    /// Exchanges nodes of two kinds, in ascending order of lost neighbors per weight.
    fn exchange_kinds(&mut self, outgoing: &[u32], incoming: &[u32]) -> usize {
        let weight = |node: u32| self.bounds.in_edge_rule().map_or(0, |rule| self.bounds.weight(rule, node as usize));
        let is_in = |node: u32, part: usize| usize::from(self.assignment[node as usize]) == part;
        let still = incoming.iter().filter(|&&node| is_in(node, self.to));
        let mut partners: Vec<(u64, u32)> = still.map(|&node| (weight(node), node)).collect();
        let loss = |node: u32| self.loss(node, self.from, self.to) / (weight(node) + 1) as f64;
        let still = outgoing.iter().filter(|&&node| is_in(node, self.from));
        let mut outgoing: Vec<(f64, u32)> = still.map(|&node| (loss(node), node)).collect();
        partners.sort_unstable();
        outgoing.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        // `next[at]` leads to the first unused partner from `at` on.
        let mut next: Vec<u32> = (0..=partners.len() as u32).collect();
        let mut swapped = 0;
        for (_, node) in outgoing {
            if !self.bounds.is_overfull(self.loads, self.from) || first_unused(&mut next, 0) == partners.len() {
                break;
            }
            let Some(at) = self.partner(node, &partners, &mut next) else {
                // Without weights all pairs are equal.
                if self.bounds.in_edge_rule().is_none() {
                    break;
                }
                continue;
            };
            let other = partners[at].1;
            self.bounds.shift(self.loads, node as usize, self.from, self.to);
            self.bounds.shift(self.loads, other as usize, self.to, self.from);
            self.assignment[node as usize] = self.to as u16;
            self.assignment[other as usize] = self.from as u16;
            next[at] = at as u32 + 1;
            swapped += 1;
        }
        swapped
    }

    /// Returns the position of the candidate that loses the fewest neighbors and lowers the excess.
    fn partner(&self, node: u32, partners: &[(u64, u32)], next: &mut [u32]) -> Option<usize> {
        let (mut begin, mut heaviest) = (0, u64::MAX);
        if let Some(rule) = self.bounds.in_edge_rule() {
            let cap = self.bounds.rules[rule].cap;
            let weight = self.bounds.weight(rule, node as usize);
            let (own, other) =
                (self.bounds.load(self.loads, rule, self.from), self.bounds.load(self.loads, rule, self.to));
            let (over, free) = (own.saturating_sub(cap), cap.saturating_sub(other));
            // The partner may be lighter by `most`, and heavier by the free capacity of the own part.
            let most = if self.strict { free } else { free + over };
            begin = partners.partition_point(|partner| partner.0 < weight.saturating_sub(most));
            heaviest = weight + cap.saturating_sub(own);
        }
        let mut best: Option<(f64, usize)> = None;
        let mut at = first_unused(next, begin);
        for _ in 0..MAX_CANDIDATES {
            let Some(&(_, other)) = partners.get(at).filter(|partner| partner.0 <= heaviest) else { break };
            if best.is_none_or(|best| self.loss(other, self.to, self.from) < best.0)
                && self.excess_change(node, other, Some(self.strict)) < DECREASE
            {
                best = Some((self.loss(other, self.to, self.from), at));
            }
            at = first_unused(next, at + 1);
        }
        best.map(|best| best.1)
    }

    /// The number of neighbors that a node loses by a move.
    fn loss(&self, node: u32, from: usize, to: usize) -> f64 {
        f64::from((self.neighbors_in)(node as usize, from)) - f64::from((self.neighbors_in)(node as usize, to))
    }

    /// The change of the excess when the two nodes are exchanged. With `Some(true)`, infinite if the excess of any
    /// bound rises. With `None`, only splits and types count.
    fn excess_change(&self, node: u32, other: u32, strict: Option<bool>) -> f64 {
        let bounds = self.bounds;
        let mut sum = 0.0;
        for (rule, of) in bounds.rules.iter().enumerate() {
            if strict.is_none() && of.quantity == Quantity::InEdges {
                continue;
            }
            let (out, back) = (bounds.weight(rule, node as usize), bounds.weight(rule, other as usize));
            if out == back {
                continue;
            }
            for (part, less, more) in [(self.from, out, back), (self.to, back, out)] {
                let load = bounds.load(self.loads, rule, part);
                let change = super::relative_excess(load - less + more, of.cap) - super::relative_excess(load, of.cap);
                if strict == Some(true) && change > 0.0 {
                    return f64::INFINITY;
                }
                sum += change;
            }
        }
        sum
    }
}

/// Returns the first unused position from `at` on, and halves the path for later calls.
fn first_unused(next: &mut [u32], mut at: usize) -> usize {
    at = at.min(next.len() - 1);
    while next[at] as usize != at {
        next[at] = next[next[at] as usize];
        at = next[at] as usize;
    }
    at
}
