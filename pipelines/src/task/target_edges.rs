//! The target edges of tasks on edges, their splits, and the visible edges.

use std::sync::Arc;

use gnnflow_data::dataset::{FORWARD_AND_REVERSE, Manifest, Topology, TypeInfo, split};
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_dataflow::graph::local_graph::{InEdges, OwnedInEdges};
use gnnflow_kernels::pairs::Edge;

use crate::config::{Config, EDGE_SPLIT_FRACTIONS, EdgeTask, HAS_SPLITS, Link, Train, TypeName};
use crate::context::EdgeFilter;
use crate::context::edge_types::find_type;
use crate::error::Error;
use crate::runtime::job::Job;

/// The rules that decide whether an edge is a target, its split, and whether it is visible.
#[derive(Clone, Debug)]
pub(crate) struct TargetRules {
    /// By type, whether its edges are targets.
    targets: Vec<bool>,
    /// By type, whether its edges are reverses of targets.
    mirrors: Vec<bool>,
    /// By type, the type of its reverses.
    reverses: Vec<Option<u16>>,
    splits: Splits,
}

/// Where the splits of edges come from.
#[derive(Clone, Debug)]
enum Splits {
    /// From a column of the dataset.
    Column,
    /// They are drawn, with these shares and this key.
    Drawn([f64; 3], Key),
    /// No edge is in a split.
    None,
}

/// The options of target edges in a section of the configuration.
struct Options {
    /// `train.link` or `train.edge`.
    section: &'static str,
    target_etype: Option<Vec<TypeName>>,
    split_fractions: Option<Vec<f64>>,
}

impl Options {
    fn of(train: &Train) -> Self {
        if train.predicts_links() {
            let Link { target_etype, split_fractions, .. } = train.link();
            return Self { section: "train.link", target_etype, split_fractions };
        }
        let EdgeTask { target_etype, split_fractions, .. } = train.edge();
        Self { section: "train.edge", target_etype, split_fractions }
    }
}

impl TargetRules {
    /// Returns the rules of a job. If a model is used on other edges than those of its training, only a column has splits.
    ///
    /// # Errors
    /// Those of [`TargetRules::new`].
    pub(crate) fn of_job(job: &Job, train: &Train) -> Result<Self, Error> {
        let manifest = job.dataset.manifest();
        if job.is_on_training_data() {
            return Self::new(&job.config, manifest, train);
        }
        let splits = if job.holds_out_no_edges() { Splits::None } else { Splits::Column };
        Self::with_splits(&job.config, manifest, train, splits)
    }

    /// Returns the configured rules for training on the dataset of `manifest`.
    ///
    /// # Errors
    /// When the configuration names an unknown edge type, or fractions although edges have a split column.
    pub(crate) fn new(config: &Config, manifest: &Manifest, train: &Train) -> Result<Self, Error> {
        let Options { section, split_fractions, .. } = Options::of(train);
        let splits = match (manifest.edge_columns.split.is_some(), split_fractions) {
            (true, Some(_)) => return Err(config.problem(&format!("{section}.split_fractions"), HAS_SPLITS)),
            (true, None) => Splits::Column,
            (false, fractions) => {
                let shares = fractions.and_then(|shares| shares.try_into().ok()).unwrap_or(EDGE_SPLIT_FRACTIONS);
                Splits::Drawn(shares, Key::new(train.seed, Purpose::Split))
            }
        };
        Self::with_splits(config, manifest, train, splits)
    }

    fn with_splits(config: &Config, manifest: &Manifest, train: &Train, splits: Splits) -> Result<Self, Error> {
        let Options { section, target_etype, .. } = Options::of(train);
        let types = manifest.edge_columns.edge_type.as_ref();
        let added = manifest.settings.pointer("/graph/reverse_edges").is_some_and(|value| value == true);
        let adds_loops =
            types.is_some() && manifest.settings.pointer("/graph/self_loops").is_some_and(|value| value == "add");
        let reverses = reverses(types, added);
        let count = types.map_or(1, |types| types.count as usize);
        let is_reverse = |index: usize| reverses.contains(&Some(index as u16));
        // A type for added self-loops is the last one.
        let is_added = |index: usize| adds_loops && index + 1 == count;
        let targets: Vec<bool> = match target_etype {
            None => (0..count).map(|index| !is_reverse(index) && !is_added(index)).collect(),
            Some(names) => {
                let mut targets = vec![false; count];
                for (i, TypeName(name)) in names.iter().enumerate() {
                    let without = "edges have no types; name their column in graph.columns.edge_type";
                    let found = types.ok_or(without.to_owned()).and_then(|types| find_type(types, name));
                    let index =
                        found.map_err(|message| config.problem(&format!("{section}.target_etype[{i}]"), message))?;
                    targets[index] = true;
                }
                targets
            }
        };
        let mut mirrors = vec![false; count];
        for (target, reverse) in targets.iter().zip(&reverses) {
            if let (true, &Some(reverse)) = (target, reverse) {
                mirrors[usize::from(reverse)] = true;
            }
        }
        Ok(Self { targets, mirrors, reverses, splits })
    }

    /// Returns, by type, the type of its reverses.
    pub(crate) fn reverses(&self) -> &[Option<u16>] {
        &self.reverses
    }

    /// Returns the split of a classified edge in `split`: if splits are drawn, edges without a label are in none.
    pub(crate) fn of_labeled(&self, split: u8, label: i32) -> u8 {
        if label < 0 && matches!(self.splits, Splits::Drawn(..)) { split::NONE } else { split }
    }

    /// Returns the relation and the split of edge `at`, between `head` and `tail`.
    pub(crate) fn of(&self, topology: &Topology, at: usize, head: u32, tail: u32) -> (u16, u8) {
        let relation = topology.edge_types().map_or(0, |types| types[at]);
        let index = usize::from(relation);
        let split = match &self.splits {
            Splits::Column => topology.splits().map_or(split::NONE, |splits| splits[at]),
            Splits::Drawn(shares, key) if self.targets[index] || self.mirrors[index] => {
                let (low, high) = (head.min(tail), head.max(tail));
                let drawn = key.fold(u64::from(low)).fold(u64::from(high)).unit(0);
                let bounds = [shares[0], shares[0] + shares[1], shares[0] + shares[1] + shares[2]];
                match bounds.iter().position(|&bound| drawn < bound) {
                    Some(0) => split::TRAIN,
                    Some(1) => split::VAL,
                    Some(_) => split::TEST,
                    None => split::NONE,
                }
            }
            Splits::Drawn(..) | Splits::None => split::NONE,
        };
        (relation, split)
    }

    /// Calls `each` with every target edge of the partition whose nodes begin at `first`.
    pub(crate) fn for_each_target(&self, topology: &Topology, first: u32, each: &mut impl FnMut(Edge)) {
        let (types, heads) = (topology.edge_types(), topology.indices());
        for node in 0..topology.num_nodes() {
            for at in topology.edge_range(node) {
                let relation = types.map_or(0, |types| types[at]);
                if self.targets[usize::from(relation)] {
                    each(Edge { head: heads[at], tail: first + node as u32, relation });
                }
            }
        }
    }

    /// Calls `each` with every target edge, its split and its position, of the partition whose nodes begin at `first`.
    pub(crate) fn for_each(&self, topology: &Topology, first: u32, mut each: impl FnMut(Edge, u8, usize)) {
        for node in 0..topology.num_nodes() {
            for at in topology.edge_range(node) {
                let (head, tail) = (topology.indices()[at], first + node as u32);
                let (relation, split) = self.of(topology, at, head, tail);
                if self.targets[usize::from(relation)] {
                    each(Edge { head, tail, relation }, split, at);
                }
            }
        }
    }
}

/// Hides validation and test edges.
impl EdgeFilter for TargetRules {
    fn visible(&self, topology: Topology, first: u32) -> Arc<dyn InEdges> {
        let hidden = |node: usize, at: usize| {
            let (_, split) = self.of(&topology, at, topology.indices()[at], first + node as u32);
            matches!(split, split::VAL | split::TEST)
        };
        let each = || (0..topology.num_nodes()).flat_map(|node| topology.edge_range(node).map(move |at| (node, at)));
        if !each().any(|(node, at)| hidden(node, at)) {
            return Arc::new(topology);
        }
        Arc::new(OwnedInEdges::some_of(&topology, |node, at| !hidden(node, at)))
    }
}

/// Returns, by type, the type of its reverses: the one named `rev_…`; or, if types are numbers and the dataset has `added` reverses, the type
/// plus half the number of types. Reverses of edges without types create two types.
fn reverses(types: Option<&TypeInfo>, added: bool) -> Vec<Option<u16>> {
    let Some(types) = types else { return vec![None] };
    let count = types.count as usize;
    if added && types.names.starts_with(&FORWARD_AND_REVERSE.map(String::from)) {
        return (0..count).map(|index| (index == 0).then_some(1)).collect();
    }
    let of = |index: usize| match types.names.get(index) {
        Some(name) => types.names.iter().position(|other| *other == format!("rev_{name}")),
        None => Some(index + count / 2).filter(|&reverse| added && types.names.is_empty() && reverse < count),
    };
    (0..count).map(|index| of(index).map(|reverse| reverse as u16)).collect()
}

/// Returns the error of a split without edges.
pub(crate) fn none_left(section: &str, split: &str) -> Error {
    let message = format!(
        "no edge is left in the {split} split; check graph.columns.edge_split, {section}.split_fractions and \
         {section}.target_etype"
    );
    Error::Input(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn rules(shares: [f64; 3]) -> TargetRules {
        let splits = Splits::Drawn(shares, Key::new(1, Purpose::Split));
        // Type 1 holds the reverses of type 0; type 2 is no target.
        let (targets, mirrors) = (vec![true, false, false], vec![false, true, false]);
        TargetRules { targets, mirrors, reverses: vec![Some(1), None, None], splits }
    }

    /// Every node has two in-edges from every other node: one of type 2, and one of type 0 (from lower ids) or 1 (from higher ids).
    fn complete(nodes: u32) -> Topology {
        let (mut indptr, mut indices, mut types) = (vec![0], Vec::new(), Vec::new());
        for tail in 0..nodes {
            for head in (0..nodes).filter(|&head| head != tail) {
                indices.extend([head, head]);
                types.extend([u16::from(head > tail), 2]);
            }
            indptr.push(indices.len() as i64);
        }
        Topology::new(indptr, indices, u64::from(nodes)).unwrap().with_edge_types(types)
    }

    #[test]
    fn both_directions_share_a_split_and_held_out_edges_are_hidden() {
        let (rules, topology) = (rules([0.6, 0.1, 0.2]), complete(40));
        let mut splits = HashMap::new();
        let mut counts = [0; 4];
        rules.for_each(&topology, 0, |edge, split, _| {
            assert_eq!(edge.relation, 0);
            counts[usize::from(split)] += 1;
            splits.insert((edge.head, edge.tail), split);
        });
        assert_eq!(splits.len(), 780);
        for (found, expected) in counts.into_iter().zip([0.1, 0.6, 0.1, 0.2]) {
            let (found, expected) = (f64::from(found), expected * 780.0);
            assert!((found - expected).abs() < 4.0 * expected.sqrt(), "{counts:?}");
        }
        let visible = rules.visible(topology.clone(), 0);
        let (types, ids) = (visible.columns().types.unwrap(), visible.columns().ids.unwrap());
        let mut seen = 0;
        for tail in 0..40u32 {
            for at in visible.indptr()[tail as usize] as usize..visible.indptr()[tail as usize + 1] as usize {
                let head = visible.indices()[at];
                assert_eq!(topology.indices()[ids[at] as usize], head);
                if types[at] < 2 {
                    seen += 1;
                    let split = splits[&(head.min(tail), head.max(tail))];
                    assert!(split == split::TRAIN || split == split::NONE, "{head} to {tail}");
                }
            }
        }
        assert_eq!(seen, 2 * (counts[usize::from(split::TRAIN)] + counts[usize::from(split::NONE)]));
        assert_eq!(types.iter().filter(|&&t| t == 2).count(), 40 * 39);
        // A graph without held-out edges is unchanged.
        assert!(rules_of_all().visible(topology, 0).columns().ids.is_none());
    }

    fn rules_of_all() -> TargetRules {
        rules([1.0, 0.0, 0.0])
    }

    #[test]
    fn split_column_decides_the_split() {
        let rules = TargetRules { splits: Splits::Column, ..rules_of_all() };
        let topology = Topology::new(vec![0, 0, 3], vec![0, 0, 0], 2).unwrap();
        let topology = topology.with_edge_types(vec![0, 0, 2]).with_splits(vec![split::TRAIN, split::TEST, split::VAL]);
        let mut seen = Vec::new();
        rules.for_each(&topology, 0, |edge, split, _| seen.push((edge.relation, split)));
        assert_eq!(seen, [(0, split::TRAIN), (0, split::TEST)]);
        assert_eq!(
            rules.visible(topology.clone(), 0).indices().len(),
            1,
            "held-out edges of other types are hidden, too"
        );
        // For a model of other edges, no edge is in a split.
        let rules = TargetRules { splits: Splits::None, ..rules };
        rules.for_each(&topology, 0, |_, split, _| assert_eq!(split, split::NONE));
        assert_eq!(rules.visible(topology, 0).indices().len(), 3);
    }

    #[test]
    fn reverses_are_found_by_name_and_by_number() {
        let named = TypeInfo { count: 3, names: ["buys", "likes", "rev_buys"].map(String::from).into() };
        assert_eq!(reverses(Some(&named), false), [Some(2), None, None]);
        let numbered = TypeInfo { count: 4, names: vec![] };
        assert_eq!(reverses(Some(&numbered), true), [Some(2), Some(3), None, None]);
        assert_eq!(reverses(Some(&numbered), false), [None; 4]);
        assert_eq!(reverses(None, false), [None]);
        let of_none = TypeInfo { count: 2, names: FORWARD_AND_REVERSE.map(String::from).into() };
        assert_eq!(reverses(Some(&of_none), true), [Some(1), None]);
        assert_eq!(reverses(Some(&of_none), false), [None; 2], "types with these names by the user");
        assert_eq!(find_type(&named, "likes"), Ok(1));
        assert_eq!(find_type(&numbered, "3"), Ok(3));
        let message = find_type(&named, "bys").unwrap_err();
        assert!(message.ends_with("did you mean \"buys\"?"), "{message}");
    }
}
