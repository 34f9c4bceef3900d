//! An updated dataset has the same bytes as one prepared from the changed dump.

use std::collections::BTreeSet;

use super::*;
use crate::dataset::Differences;
use crate::prepare::Quality;
use crate::source::{Duplicates, SelfLoops};
use crate::testing::{graphs, power_law};

/// Changes of a batch.
struct Changes {
    /// Some of them were removed in an earlier batch.
    new: Vec<u32>,
    /// Nodes with new values; some of them are new, and some of them are removed.
    values: Vec<u32>,
    /// Which values they have: features; label and split.
    columns: [bool; 2],
    remove: Vec<Row>,
    /// Removed nodes; some of them are new.
    remove_nodes: Vec<u32>,
    add: Vec<Row>,
}

struct Case {
    undirected: bool,
    duplicates: Duplicates,
    self_loops: SelfLoops,
    with_edge_columns: bool,
    ids: IdStyle,
    parts: u32,
    new_nodes: bool,
    new_values: bool,
    removed_nodes: bool,
}

impl Case {
    /// Returns whether two rows are the same edge.
    fn same(&self, a: &Row, b: &Row) -> bool {
        let ends = (a.src, a.dst) == (b.src, b.dst) || self.undirected && (a.src, a.dst) == (b.dst, b.src);
        ends && (!self.with_edge_columns || a.edge_type() == b.edge_type())
    }

    /// The reference implementation: changes the dump row by row.
    fn apply(&self, dump: &mut Dump, changes: &Changes) {
        dump.nodes.extend(&changes.new);
        let Versions { features, labels } = &mut dump.versions;
        for (of, set) in [features, labels].into_iter().zip(changes.columns) {
            changes.values.iter().filter(|_| set).for_each(|&node| *of.entry(node).or_default() += 1);
        }
        for row in &changes.remove {
            if self.duplicates == Duplicates::Keep {
                let at = dump.rows.iter().position(|other| self.same(row, other)).unwrap();
                dump.rows.remove(at);
            } else {
                dump.rows.retain(|other| !self.same(row, other));
            }
        }
        for node in &changes.remove_nodes {
            dump.nodes.retain(|other| other != node);
            dump.rows.retain(|row| row.src != *node && row.dst != *node);
            // If the node is added again, it has its first values.
            dump.versions.features.remove(node);
            dump.versions.labels.remove(node);
        }
        dump.rows.extend(&changes.add);
    }

    /// Returns random changes of a dump. The first rows, their nodes and the first nodes stay, so that no type disappears. Nodes with `gone` ids were
    /// removed.
    fn draw(&self, dump: &Dump, gone: &[u32], round: u64) -> Changes {
        let key = Key::new(17, Purpose::GenerateEdges).fold(round).fold(dump.rows.len() as u64);
        let first = dump.nodes.iter().chain(gone).max().map_or(0, |last| last + 1);
        let new = if self.new_nodes { first..first + key.below(0, 4) as u32 } else { first..first };
        let again = gone.iter().copied().take(if self.new_nodes { 1 } else { 0 });
        let new: Vec<u32> = again.chain(new).collect();
        let stay = |node: &u32| *node < 5 || dump.rows.iter().take(12).any(|row| [row.src, row.dst].contains(node));
        let most = if self.removed_nodes { dump.nodes.len().div_ceil(9) } else { 0 };
        let all: Vec<u32> = dump.nodes.iter().chain(&new).copied().collect();
        let drawn = (0..most as u64).map(|i| all[key.below(3000 + i, all.len() as u64) as usize]);
        let drawn: BTreeSet<u32> = drawn.chain(new.first().copied().filter(|_| most > 2)).collect();
        let remove_nodes: Vec<u32> = drawn.into_iter().filter(|node| !stay(node)).rev().collect();
        let left_nodes: Vec<u32> = all.iter().copied().filter(|node| !remove_nodes.contains(node)).collect();
        let n = left_nodes.len() as u64;
        let mut left = dump.rows.clone();
        let mut remove = Vec::new();
        for i in 0..left.len() as u64 / 6 {
            if left.is_empty() {
                break;
            }
            let row = left.remove(key.below(10 + i, left.len() as u64) as usize);
            let dropped = self.self_loops == SelfLoops::Drop && row.src == row.dst;
            if dropped || dump.rows.iter().take(12).any(|first| self.same(first, &row)) {
                continue;
            }
            if self.duplicates != Duplicates::Keep {
                left.retain(|other| !self.same(&row, other));
            }
            // In an undirected graph, the reverse row is the same edge.
            let reversed = Row { src: row.dst, dst: row.src, ..row };
            remove.push(if self.undirected && i % 2 == 0 { reversed } else { row });
        }
        let stamp = 10_000 * (round as usize + 1);
        let mut add: Vec<Row> = (0..n.min(12))
            .map(|i| Row {
                src: left_nodes[key.below(1000 + 2 * i, n) as usize],
                dst: left_nodes[key.below(1001 + 2 * i, n) as usize],
                stamp: stamp + i as usize,
            })
            .collect();
        // Adds existing edges, edges removed in this batch, an edge twice, and a self-loop.
        let again = dump.rows.iter().skip(3).step_by(9).chain(remove.iter().take(2)).take(6).copied();
        let again: Vec<Row> =
            again.enumerate().map(|(i, row)| Row { stamp: row.stamp % 3 + stamp + 300 + 3 * i, ..row }).collect();
        add.extend(again.into_iter().filter(|row| ![row.src, row.dst].iter().any(|node| remove_nodes.contains(node))));
        add.extend(add.first().map(|row| Row { stamp: stamp + 900, ..*row }));
        add.extend(left_nodes.last().map(|&node| Row { src: node, dst: node, stamp: stamp + 901 }));
        let most = if self.new_values { all.len() as u64 / 7 } else { 0 };
        let nodes: BTreeSet<u32> = (0..most).map(|i| all[key.below(2000 + i, all.len() as u64) as usize]).collect();
        let values = nodes.into_iter().rev().collect();
        Changes { new, values, columns: [round != 2, round != 1], remove, remove_nodes, add }
    }

    fn source(&self, plain: GraphSource) -> GraphSource {
        let columns =
            if self.with_edge_columns { with_edge_columns(plain.columns.clone()) } else { plain.columns.clone() };
        GraphSource {
            columns,
            undirected: self.undirected,
            duplicates: self.duplicates,
            self_loops: self.self_loops,
            ..plain
        }
    }

    fn run(&self, graph: &TestGraph, one_update: bool) {
        let name = format!(
            "{}: undirected {}, {:?}, {:?}, with_edge_columns {}, {:?}, {} parts, new {}, values {}, removed {}, one update {one_update}",
            graph.name,
            self.undirected,
            self.duplicates,
            self.self_loops,
            self.with_edge_columns,
            self.ids,
            self.parts,
            self.new_nodes,
            self.new_values,
            self.removed_nodes
        );
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let mut dump = Dump::of(graph);
        let source = self.source(dump.write(&dir.path().join("dump"), self.ids));
        let first: Vec<u16> = dump.nodes.iter().map(|&node| part_of(node, self.parts)).collect();
        let before = prepared(&source, first.clone(), &out, self.parts);
        let lists_before = lists(&before);
        let snapshot = dir.path().join("snapshot");
        (0..self.parts as usize).for_each(|part| before.link_partition(part, &snapshot).unwrap());
        before.write_snapshot_manifest(&snapshot).unwrap();

        let (mut batches, mut gone, mut again) = (Vec::new(), Vec::new(), BTreeSet::new());
        for round in 0..3 {
            let changes = self.draw(&dump, &gone, round);
            let file = |name: &str| dir.path().join(format!("{name}-{round}.parquet"));
            write_columns(&file("nodes"), self.ids, &changes.new, &Versions::default(), |_| true);
            write_rows(&file("remove"), self.ids, &changes.remove);
            write_columns(&file("remove_nodes"), self.ids, &changes.remove_nodes, &Versions::default(), |_| false);
            write_rows(&file("edges"), self.ids, &changes.add);
            let nodes = if changes.new.is_empty() { Vec::new() } else { vec![file("nodes")] };
            self.apply(&mut dump, &changes);
            again.extend(changes.new.iter().filter(|node| gone.contains(node)).map(|&node| self.ids.text(node)));
            gone.retain(|node| !changes.new.contains(node));
            gone.extend(&changes.remove_nodes);
            let which = |name: &str| changes.columns[usize::from(name != "x")] && name != "kind";
            write_columns(&file("values"), self.ids, &changes.values, &dump.versions, which);
            let values = if self.new_values { vec![file("values")] } else { Vec::new() };
            let remove_nodes = if self.removed_nodes { vec![file("remove_nodes")] } else { Vec::new() };
            let (remove, edges) = (vec![file("remove")], vec![file("edges")]);
            batches.push(Batch { nodes, values, remove, remove_nodes, edges });
        }
        if one_update {
            let updated = in_place(&out, &batches).unwrap_or_else(|error| panic!("{name}: {error}"));
            check_affected(&name, &lists_before, &Dataset::open(&out).unwrap(), &updated, &again);
        } else {
            for batch in &batches {
                in_place(&out, std::slice::from_ref(batch)).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        }

        // Prepare the changed dump with the same partitions.
        let updated = Dataset::open(&out).unwrap();
        updated.verify(&Silent).unwrap();
        let parts_of = assignment(&updated, &dump, self.ids);
        let stayed = dump.nodes.iter().zip(&parts_of).filter(|(node, _)| !again.contains(&self.ids.text(**node)));
        for (&node, &part) in stayed.filter(|(node, _)| (**node as usize) < first.len()) {
            assert_eq!(part, first[node as usize], "{name}: node {node} moved");
        }
        check_differences(&name, &Dataset::open(&snapshot).unwrap(), &updated, &again);
        let source = self.source(dump.write(&dir.path().join("changed"), self.ids));
        let rebuilt = prepared(&source, parts_of, &dir.path().join("rebuilt"), self.parts);
        let (found, expected) = (updated.manifest(), rebuilt.manifest());
        let summary = |manifest: &Manifest| {
            let m = manifest.clone();
            (m.nodes, m.edges, m.self_loops, m.offsets, m.labels, m.splits, m.node_types, m.edge_columns)
        };
        assert_eq!(summary(found), summary(expected), "{name}");
        // A dataset does not know which nodes had the self-loops that were dropped.
        let drops_loops = self.removed_nodes && self.self_loops == SelfLoops::Drop;
        if self.duplicates == Duplicates::Keep && !drops_loops {
            assert_eq!(found.edge_rows, expected.edge_rows, "{name}");
        }
        let (written, prepared) = (bytes(&out, self.parts), bytes(rebuilt.dir(), self.parts));
        assert_eq!(written.len(), prepared.len(), "{name}");
        for (found, expected) in written.iter().zip(prepared) {
            assert!(*found == expected, "{name}: {}", found.0.display());
        }
        assert_eq!(found.partitions, expected.partitions, "{name}");
        let (found, expected) = (Quality::read(&out).unwrap(), Quality::read(rebuilt.dir()).unwrap());
        assert!((found.edge_cut - expected.edge_cut).abs() < 1e-12, "{name}");
        assert_eq!(
            (found.replication_factor, found.balance, found.halo, found.remote_seed_share),
            (expected.replication_factor, expected.balance, expected.halo, expected.remote_seed_share),
            "{name}"
        );
    }
}

/// Returns the partition of each node of the dump.
fn assignment(dataset: &Dataset, dump: &Dump, ids: IdStyle) -> Vec<u16> {
    let mut parts = BTreeMap::new();
    for part in 0..dataset.manifest().parts() {
        let nodes = dataset.nodes(part).unwrap();
        for local in 0..nodes.len() {
            parts.insert(nodes.ids().display(local).to_string(), part as u16);
        }
    }
    assert_eq!(parts.len(), dump.nodes.len());
    dump.nodes.iter().map(|&node| parts[&ids.text(node)]).collect()
}

/// In-edges of a node: the source by the user's id, and the bits of the weight.
type List = Vec<(String, u32)>;
/// The features and in-edges of every node, by the users' ids.
type Lists = BTreeMap<String, (Vec<u8>, List)>;

fn lists(dataset: &Dataset) -> Lists {
    let parts: Vec<_> = (0..dataset.manifest().parts()).map(|part| dataset.partition(part).unwrap()).collect();
    let id = |node: u64| {
        let part = dataset.book().owner(node).unwrap();
        parts[part].nodes.ids().display((node - dataset.book().range(part).start) as usize).to_string()
    };
    let mut lists = Lists::new();
    for part in &parts {
        for (local, node) in part.range.clone().enumerate() {
            let weight = |edge: usize| part.topology.weights().map_or(0, |weights| weights[edge].to_bits());
            let edges = part.topology.edge_range(local);
            let mut list: Vec<_> =
                edges.map(|edge| (id(u64::from(part.topology.indices()[edge])), weight(edge))).collect();
            list.sort();
            let bytes = part.features.row_bytes();
            let features = part.features.bytes()[local * bytes..(local + 1) * bytes].to_vec();
            lists.insert(id(node), (features, list));
        }
    }
    lists
}

/// Returns the features and in-edges within `hops` of a node.
fn neighborhood<'a>(lists: &'a Lists, node: &'a str, hops: u32) -> BTreeMap<&'a str, (&'a [u8], Option<&'a List>)> {
    let mut found = BTreeMap::new();
    let mut frontier = BTreeSet::from([node]);
    for hop in 0..=hops {
        let mut next = BTreeSet::new();
        for node in frontier {
            if let Some((features, list)) = lists.get(node).filter(|_| !found.contains_key(node)) {
                found.insert(node, (&features[..], (hop < hops).then_some(list)));
                next.extend(list.iter().map(|(src, _)| src.as_str()));
            }
        }
        frontier = next;
    }
    found
}

/// Checks that exactly the nodes with a changed neighborhood are listed; also others if nodes were removed and added `again`.
fn check_affected(name: &str, before: &Lists, dataset: &Dataset, updated: &Updated, again: &BTreeSet<String>) {
    let after = lists(dataset);
    let found = affected(&dataset.dir().join(AFFECTED));
    assert_eq!(found.len() as u64, updated.affected, "{name}");
    for node in after.keys() {
        let changed = |hops: &u32| neighborhood(before, node, *hops) != neighborhood(&after, node, *hops);
        let new = !before.contains_key(node);
        let expected = if new { Some(1) } else { [0, 1, 2].into_iter().find(changed) };
        let found = found.get(node).copied();
        match again.is_empty() {
            true => assert_eq!(found, expected, "{name}: node {node}"),
            false => assert!(expected.is_none() || found.is_some(), "{name}: node {node}"),
        }
    }
}

/// Checks that exactly the new nodes and those with other features or in-edges differ from the snapshot before the update. Nodes that were removed and
/// added `again`, and their neighbors, may differ.
fn check_differences(name: &str, before: &Dataset, after: &Dataset, again: &BTreeSet<String>) {
    let lists = [before, after].map(lists);
    let (mut differ, mut other_features) = (BTreeSet::new(), BTreeSet::new());
    let parts = after.manifest().parts();
    let since = |earlier: &Dataset| -> Vec<Vec<u32>> {
        (0..parts).map(|part| after.removed_since(earlier, part).unwrap().unwrap()).collect()
    };
    let (removed, none) = (since(before), since(after));
    for (part, removed) in removed.iter().enumerate() {
        let nodes = before.nodes(part).unwrap();
        let removed: BTreeSet<String> =
            removed.iter().map(|&local| nodes.ids().display(local as usize).to_string()).collect();
        for local in 0..nodes.len() {
            let id = nodes.ids().display(local).to_string();
            assert!(removed.contains(&id) != lists[1].contains_key(&id) || again.contains(&id), "{name}: node {id}");
        }
    }
    for part in 0..parts {
        let found = after.differences(before, part, &removed).unwrap();
        let nodes = after.nodes(part).unwrap();
        let ids = |locals: Vec<u32>| -> Vec<String> {
            locals.into_iter().map(|local| nodes.ids().display(local as usize).to_string()).collect()
        };
        assert!(found.edges.is_sorted_by(|a, b| a < b), "{name}");
        differ.extend(ids(found.edges));
        other_features.extend(ids(found.features));
        assert_eq!(after.differences(after, part, &none).unwrap(), Differences::default(), "{name}");
    }
    for node in lists[1].keys() {
        let [before, after] =
            [&lists[0], &lists[1]].map(|lists| lists.get(node).map(|(features, list)| (features, list)));
        let features = before.map(|(features, _)| features) != after.map(|(features, _)| features);
        let was_new = again.contains(node);
        assert!(other_features.contains(node) == features || was_new, "{name}: node {node}");
        let other = before.map(|(_, list)| list) != after.map(|(_, list)| list);
        // Copies of an edge may have changed their order.
        let copies = lists[1][node].1.windows(2).any(|two| two[0].0 == two[1].0);
        let reads_new = was_new || lists[1][node].1.iter().any(|(source, _)| again.contains(source));
        assert!(differ.contains(node) == other || (copies || reads_new) && !other, "{name}: node {node}");
    }
}

fn affected(path: &Path) -> BTreeMap<String, u32> {
    let file = std::fs::File::open(path).unwrap();
    let reader = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let mut found = BTreeMap::new();
    for batch in reader.build().unwrap() {
        let batch = batch.unwrap();
        for row in 0..batch.num_rows() {
            let show = |column: usize| arrow::util::display::array_value_to_string(batch.column(column), row).unwrap();
            found.insert(show(0), show(1).parse().unwrap());
        }
    }
    found
}

#[test]
fn update_equals_preparation_for_every_policy_and_graph() {
    for (number, graph) in graphs().iter().filter(|graph| graph.nodes > 0).enumerate() {
        for choice in 0..16u32 {
            let bit = |at: u32| choice & (1 << at) != 0;
            let keep = bit(1);
            let with_edge_columns = bit(2) && graph.edges.len() > 20;
            let self_loops = match (bit(3), keep && !with_edge_columns) {
                // Without edge columns and with kept duplicates, added self-loops look like those of the dump.
                (true, false) => SelfLoops::Add,
                (true, true) => SelfLoops::Drop,
                _ => SelfLoops::Keep,
            };
            let case = Case {
                undirected: bit(0),
                duplicates: if keep { Duplicates::Keep } else { Duplicates::Drop },
                self_loops,
                with_edge_columns,
                ids: [IdStyle::Dense, IdStyle::Sparse, IdStyle::Text][(choice as usize + number) % 3],
                parts: [3, 1, 4][(choice as usize / 3 + number) % 3],
                new_nodes: !(choice + number as u32).is_multiple_of(4),
                new_values: (choice + number as u32) % 3 < 2,
                removed_nodes: (choice + number as u32) % 5 < 3,
            };
            case.run(graph, (choice + choice / 4) % 2 == 0);
        }
    }
}

#[test]
fn update_equals_preparation_on_a_larger_graph() {
    for (undirected, with_edge_columns) in [(false, true), (true, false), (true, true)] {
        let case = Case {
            undirected,
            duplicates: Duplicates::Drop,
            self_loops: SelfLoops::Keep,
            with_edge_columns,
            ids: IdStyle::Text,
            parts: 5,
            new_nodes: true,
            new_values: true,
            removed_nodes: undirected || !with_edge_columns,
        };
        case.run(&power_law(700, 9000, 5), true);
    }
}
