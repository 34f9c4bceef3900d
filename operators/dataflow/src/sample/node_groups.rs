//! Nodes by type: the k-th node of a type, and random draws among the nodes of a type.

use gnnflow_data::rng::Key;

/// All nodes of the graph, grouped by type. Without types, there is one group.
///
/// Consecutive nodes of one type are a run. There are few runs if the dump lists its types one after another.
///
/// ```
/// use gnnflow_dataflow::sample::node_groups::NodeGroups;
///
/// // Nodes 0 to 2 and 7 to 9 are of type 0, those between of type 1.
/// let groups = NodeGroups::new(&[(0, 0), (3, 1), (7, 0)], 10);
/// assert_eq!((groups.count(0), groups.group_of(8), groups.nth(0, 3)), (6, 0, 7));
/// assert_eq!(groups.rank(8), 4);
/// ```
#[derive(Clone, Debug, Default)]
pub struct NodeGroups {
    /// For each run: its first node, its group, and the number of earlier nodes of that group.
    runs: Vec<(u32, u16, u32)>,
    /// The runs of each group: the number of earlier nodes of the group, and the first node.
    groups: Vec<Vec<(u32, u32)>>,
    /// The number of nodes of each group.
    counts: Vec<u32>,
    /// By group: prefix sums of the nodes' weights, inclusive.
    weights: Vec<Vec<u64>>,
    nodes: u32,
}

impl NodeGroups {
    /// Groups `nodes` nodes. `runs` are the first node and the type of each run, in ascending order from node 0 on.
    ///
    /// # Panics
    /// When `runs` do not ascend from 0 to below `nodes`.
    pub fn new(runs: &[(u32, u16)], nodes: u32) -> Self {
        assert!(runs.is_sorted_by(|a, b| a.0 < b.0), "runs of nodes ascend");
        assert!(runs.first().map_or(nodes == 0, |run| run.0 == 0), "the first run begins at node 0");
        assert!(runs.last().is_none_or(|run| run.0 < nodes), "runs begin at nodes");
        let types = runs.iter().map(|run| usize::from(run.1) + 1).max().unwrap_or(0);
        let mut all = Self { groups: vec![Vec::new(); types], counts: vec![0; types], nodes, ..Self::default() };
        for (i, &(first, group)) in runs.iter().enumerate() {
            let end = runs.get(i + 1).map_or(nodes, |next| next.0);
            let (index, before) = (usize::from(group), all.counts[usize::from(group)]);
            all.runs.push((first, group, before));
            all.groups[index].push((before, first));
            all.counts[index] += end - first;
        }
        all
    }

    /// Puts all `nodes` nodes into one group.
    pub fn one(nodes: u32) -> Self {
        Self::new(if nodes > 0 { &[(0, 0)] } else { &[] }, nodes)
    }

    /// Adds a weight for each node, for [`NodeGroups::draw_weighted`]. Takes eight bytes per node.
    pub fn with_weights(mut self, weight: impl Fn(u32) -> u64) -> Self {
        let sums = |group: usize| {
            let mut sum = 0;
            let add = |rank| {
                sum += weight(self.nth(group, rank));
                sum
            };
            (0..self.counts[group]).map(add).collect()
        };
        self.weights = (0..self.counts.len()).map(sums).collect();
        self
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Returns the number of nodes of a group.
    pub fn count(&self, group: usize) -> u32 {
        self.counts[group]
    }

    /// Returns the first node and the group of each run, in order.
    pub fn runs(&self) -> impl Iterator<Item = (u32, usize)> {
        self.runs.iter().map(|&(first, group, _)| (first, usize::from(group)))
    }

    fn run(&self, node: u32) -> (u32, u16, u32) {
        self.runs[self.runs.partition_point(|run| run.0 <= node) - 1]
    }

    /// Returns the group of `node`.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn group_of(&self, node: u32) -> usize {
        usize::from(self.run(node).1)
    }

    /// Returns the number of nodes of its group before `node`.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn rank(&self, node: u32) -> u32 {
        let (first, _, before) = self.run(node);
        before + (node - first)
    }

    /// Returns the node of `group` with `rank` nodes before it.
    ///
    /// # Panics
    /// When the group has no more than `rank` nodes.
    pub fn nth(&self, group: usize, rank: u32) -> u32 {
        assert!(rank < self.counts[group], "group {group} has {} nodes", self.counts[group]);
        let runs = &self.groups[group];
        let (before, first) = runs[runs.partition_point(|run| run.0 <= rank) - 1];
        first + (rank - before)
    }

    /// Returns draw `i` under `key`, uniform over the nodes of `group`.
    ///
    /// # Panics
    /// When the group is empty.
    pub fn draw(&self, group: usize, key: Key, i: u64) -> u32 {
        self.nth(group, key.below(i, u64::from(self.counts[group])) as u32)
    }

    /// Returns draw `i` under `key`, uniform over the nodes of the group of `node` except `node` itself. Returns `node` if its
    /// group has no other node.
    ///
    /// # Panics
    /// When there is no such node.
    pub(crate) fn draw_other(&self, node: u32, key: Key, i: u64) -> u32 {
        let group = self.group_of(node);
        let others = self.counts[group] - 1;
        if others == 0 {
            return node;
        }
        let drawn = key.below(i, u64::from(others)) as u32;
        self.nth(group, drawn + u32::from(drawn >= self.rank(node)))
    }

    /// Returns draw `i` under `key` among the nodes of `group`, in proportion to their weights; as [`NodeGroups::draw`] if all
    /// weights are
    /// 0. Exact up to 2⁻⁶⁴ of the sum of weights.
    ///
    /// # Panics
    /// When the group is empty, or nodes have no weights.
    pub fn draw_weighted(&self, group: usize, key: Key, i: u64) -> u32 {
        let sums = &self.weights[group];
        match sums[sums.len() - 1] {
            0 => self.draw(group, key, i),
            total => {
                let drawn = key.below(i, total);
                self.nth(group, sums.partition_point(|&sum| sum <= drawn) as u32)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnnflow_data::rng::Purpose;

    fn groups() -> (Vec<u16>, NodeGroups) {
        let types = vec![2, 2, 0, 0, 0, 2, 1, 0, 2, 2, 2];
        let runs: Vec<(u32, u16)> =
            (0..types.len()).filter(|&i| i == 0 || types[i] != types[i - 1]).map(|i| (i as u32, types[i])).collect();
        let nodes = types.len() as u32;
        (types, NodeGroups::new(&runs, nodes))
    }

    #[test]
    fn ranks_and_nodes_equal_a_plain_list() {
        let (types, groups) = groups();
        for group in 0..3 {
            let list: Vec<u32> = (0..types.len() as u32).filter(|&v| usize::from(types[v as usize]) == group).collect();
            assert_eq!(groups.count(group) as usize, list.len());
            for (rank, &node) in list.iter().enumerate() {
                assert_eq!(groups.nth(group, rank as u32), node);
                assert_eq!((groups.group_of(node), groups.rank(node)), (group, rank as u32));
            }
        }
        assert_eq!(NodeGroups::one(0).nodes(), 0);
    }

    /// Counts against expectations: chi-square below its 99.99th percentile.
    fn check(counts: &[u64], weights: &[u64]) {
        let (draws, total) = (counts.iter().sum::<u64>() as f64, weights.iter().sum::<u64>() as f64);
        let mut chi = 0.0;
        for (&count, &weight) in counts.iter().zip(weights) {
            let expected = draws * weight as f64 / total;
            if weight == 0 {
                assert_eq!(count, 0);
            } else {
                chi += (count as f64 - expected).powi(2) / expected;
            }
        }
        assert!(chi < 30.0, "{chi}: {counts:?}");
    }

    #[test]
    fn draws_have_the_documented_frequencies() {
        let (types, groups) = groups();
        let weight = |node: u32| u64::from(node) * 3 % 7;
        let groups = groups.with_weights(weight);
        let key = Key::new(5, Purpose::Negative);
        let mut counts = vec![[0u64; 3]; types.len()];
        for i in 0..20_000 {
            counts[groups.draw(2, key.fold(0), i) as usize][0] += 1;
            counts[groups.draw_other(8, key.fold(1), i) as usize][1] += 1;
            counts[groups.draw_weighted(2, key.fold(2), i) as usize][2] += 1;
        }
        let of = |which: usize| counts.iter().map(|count| count[which]).collect::<Vec<_>>();
        let is_two = |node: usize| u64::from(types[node] == 2);
        let nodes = 0..types.len();
        check(&of(0), &nodes.clone().map(is_two).collect::<Vec<_>>());
        check(&of(1), &nodes.clone().map(|v| if v == 8 { 0 } else { is_two(v) }).collect::<Vec<_>>());
        check(&of(2), &nodes.map(|v| is_two(v) * weight(v as u32)).collect::<Vec<_>>());
        assert_eq!(groups.draw_other(6, key, 1), 6, "the only one of its type");
    }
}
