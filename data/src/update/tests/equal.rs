//! An updated dataset has the same bytes as one prepared from the changed dump.

use std::collections::BTreeSet;

use super::*;
use crate::dataset::Differences;
use crate::prepare::Quality;
use crate::source::{Duplicates, SelfLoops};
use crate::testing::{graphs, power_law};

/// Changes of a batch.
struct Changes {
    new: u32,
    /// Nodes with new values; some of them are new.
    values: Vec<u32>,
    /// Which values they have: features; label and split.
    columns: [bool; 2],
    remove: Vec<Row>,
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
}

impl Case {
    /// Returns whether two rows are the same edge.
    fn same(&self, a: &Row, b: &Row) -> bool {
        let ends = (a.src, a.dst) == (b.src, b.dst) || self.undirected && (a.src, a.dst) == (b.dst, b.src);
        ends && (!self.with_edge_columns || a.edge_type() == b.edge_type())
    }

    /// The reference implementation: changes the dump row by row.
    fn apply(&self, dump: &mut Dump, changes: &Changes) {
        dump.nodes += changes.new;
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
        dump.rows.extend(&changes.add);
    }

    /// Returns random changes of a dump. The first rows stay, so that no edge type disappears.
    fn draw(&self, dump: &Dump, round: u64) -> Changes {
        let key = Key::new(17, Purpose::GenerateEdges).fold(round).fold(dump.rows.len() as u64);
        let new = if self.new_nodes { key.below(0, 4) as u32 } else { 0 };
        let n = u64::from(dump.nodes + new);
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
                src: key.below(1000 + 2 * i, n) as u32,
                dst: key.below(1001 + 2 * i, n) as u32,
                stamp: stamp + i as usize,
            })
            .collect();
        // Adds existing edges, edges removed in this batch, an edge twice, and a self-loop.
        let again = dump.rows.iter().skip(3).step_by(9).chain(remove.iter().take(2)).take(6).copied();
        let again: Vec<Row> =
            again.enumerate().map(|(i, row)| Row { stamp: row.stamp % 3 + stamp + 300 + 3 * i, ..row }).collect();
        add.extend(again);
        add.extend(add.first().map(|row| Row { stamp: stamp + 900, ..*row }));
        add.extend((n > 0).then(|| (n - 1) as u32).map(|node| Row { src: node, dst: node, stamp: stamp + 901 }));
        let most = if self.new_values { n / 7 } else { 0 };
        let nodes: BTreeSet<u32> = (0..most).map(|i| key.below(2000 + i, n) as u32).collect();
        let values = nodes.into_iter().rev().collect();
        Changes { new, values, columns: [round != 2, round != 1], remove, add }
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
            "{}: undirected {}, {:?}, {:?}, with_edge_columns {}, {:?}, {} parts, new {}, values {}, one update {one_update}",
            graph.name,
            self.undirected,
            self.duplicates,
            self.self_loops,
            self.with_edge_columns,
            self.ids,
            self.parts,
            self.new_nodes,
            self.new_values
        );
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let mut dump = Dump::of(graph);
        let source = self.source(dump.write(&dir.path().join("dump"), self.ids));
        let first: Vec<u16> = (0..dump.nodes).map(|node| part_of(node, self.parts)).collect();
        let before = prepared(&source, first.clone(), &out, self.parts);
        let lists_before = lists(&before);
        let snapshot = dir.path().join("snapshot");
        (0..self.parts as usize).for_each(|part| before.link_partition(part, &snapshot).unwrap());
        before.write_snapshot_manifest(&snapshot).unwrap();

        let mut batches = Vec::new();
        for round in 0..3 {
            let changes = self.draw(&dump, round);
            let file = |name: &str| dir.path().join(format!("{name}-{round}.parquet"));
            write_nodes(&file("nodes"), self.ids, dump.nodes..dump.nodes + changes.new);
            write_rows(&file("remove"), self.ids, &changes.remove);
            write_rows(&file("edges"), self.ids, &changes.add);
            let nodes = if changes.new > 0 { vec![file("nodes")] } else { Vec::new() };
            self.apply(&mut dump, &changes);
            let which = |name: &str| changes.columns[usize::from(name != "x")] && name != "kind";
            write_columns(&file("values"), self.ids, &changes.values, &dump.versions, which);
            let values = if self.new_values { vec![file("values")] } else { Vec::new() };
            batches.push(Batch { nodes, values, remove: vec![file("remove")], edges: vec![file("edges")] });
        }
        if one_update {
            let updated = in_place(&out, &batches).unwrap_or_else(|error| panic!("{name}: {error}"));
            check_affected(&name, &lists_before, &Dataset::open(&out).unwrap(), &updated);
        } else {
            for batch in &batches {
                in_place(&out, std::slice::from_ref(batch)).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        }

        // Prepare the changed dump with the same partitions.
        let updated = Dataset::open(&out).unwrap();
        updated.verify(&Silent).unwrap();
        let parts_of = assignment(&updated, &dump, self.ids);
        assert_eq!(parts_of[..first.len()], first, "{name}: an old node moved");
        check_differences(&name, &Dataset::open(&snapshot).unwrap(), &updated);
        let source = self.source(dump.write(&dir.path().join("changed"), self.ids));
        let rebuilt = prepared(&source, parts_of, &dir.path().join("rebuilt"), self.parts);
        let (found, expected) = (updated.manifest(), rebuilt.manifest());
        let summary = |manifest: &Manifest| {
            let m = manifest.clone();
            (m.nodes, m.edges, m.self_loops, m.offsets, m.labels, m.splits, m.node_types, m.edge_columns)
        };
        assert_eq!(summary(found), summary(expected), "{name}");
        if self.duplicates == Duplicates::Keep {
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
    (0..dump.nodes).map(|node| parts[&ids.text(node)]).collect()
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

/// Checks that exactly the nodes with a changed neighborhood are listed.
fn check_affected(name: &str, before: &Lists, dataset: &Dataset, updated: &Updated) {
    let after = lists(dataset);
    let found = affected(&dataset.dir().join(AFFECTED));
    assert_eq!(found.len() as u64, updated.affected, "{name}");
    for node in after.keys() {
        let changed = |hops: &u32| neighborhood(before, node, *hops) != neighborhood(&after, node, *hops);
        let new = !before.contains_key(node);
        let expected = if new { Some(1) } else { [0, 1, 2].into_iter().find(changed) };
        assert_eq!(found.get(node).copied(), expected, "{name}: node {node}");
    }
}

/// Checks that exactly the new nodes and those with other features or in-edges differ from the snapshot before the update.
fn check_differences(name: &str, before: &Dataset, after: &Dataset) {
    let lists = [before, after].map(lists);
    let (mut differ, mut other_features) = (BTreeSet::new(), BTreeSet::new());
    for part in 0..after.manifest().parts() {
        let found = after.differences(before, part).unwrap().unwrap();
        let nodes = after.nodes(part).unwrap();
        let ids = |locals: Vec<u32>| -> Vec<String> {
            locals.into_iter().map(|local| nodes.ids().display(local as usize).to_string()).collect()
        };
        assert!(found.edges.is_sorted_by(|a, b| a < b), "{name}");
        differ.extend(ids(found.edges));
        other_features.extend(ids(found.features));
        assert_eq!(after.differences(after, part).unwrap(), Some(Differences::default()), "{name}");
    }
    for node in lists[1].keys() {
        let [before, after] =
            [&lists[0], &lists[1]].map(|lists| lists.get(node).map(|(features, list)| (features, list)));
        let features = before.map(|(features, _)| features) != after.map(|(features, _)| features);
        assert_eq!(other_features.contains(node), features, "{name}: node {node}");
        let other = before.map(|(_, list)| list) != after.map(|(_, list)| list);
        // Copies of an edge may have changed their order.
        let copies = lists[1][node].1.windows(2).any(|two| two[0].0 == two[1].0);
        assert!(differ.contains(node) == other || copies && !other, "{name}: node {node}");
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
        };
        case.run(&power_law(700, 9000, 5), true);
    }
}
