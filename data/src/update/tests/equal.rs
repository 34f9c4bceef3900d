//! An updated dataset is, byte for byte, the one prepared from the changed dump.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::prepare::Quality;
use crate::source::{Duplicates, SelfLoops};
use crate::testing::{graphs, power_law};

/// What a batch changes.
struct Changes {
    new: u32,
    remove: Vec<Row>,
    add: Vec<Row>,
}

struct Case {
    undirected: bool,
    duplicates: Duplicates,
    self_loops: SelfLoops,
    laden: bool,
    ids: IdStyle,
    parts: u32,
    new_nodes: bool,
}

impl Case {
    /// Whether two rows name the same edge.
    fn same(&self, a: &Row, b: &Row) -> bool {
        let ends = (a.src, a.dst) == (b.src, b.dst) || self.undirected && (a.src, a.dst) == (b.dst, b.src);
        ends && (!self.laden || a.edge_type() == b.edge_type())
    }

    /// The obvious program: the dump, changed row by row.
    fn apply(&self, dump: &mut Dump, changes: &Changes) {
        dump.nodes += changes.new;
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

    /// Random changes to a dump; the first rows stay, so that no type of edges dies out.
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
            // Either direction names an edge of an undirected graph.
            let turned = Row { src: row.dst, dst: row.src, ..row };
            remove.push(if self.undirected && i % 2 == 0 { turned } else { row });
        }
        let stamp = 10_000 * (round as usize + 1);
        let mut add: Vec<Row> = (0..n.min(12))
            .map(|i| Row {
                src: key.below(1000 + 2 * i, n) as u32,
                dst: key.below(1001 + 2 * i, n) as u32,
                stamp: stamp + i as usize,
            })
            .collect();
        // Some that are there already, some that have just gone, one that comes twice, one from a node to itself.
        let again = dump.rows.iter().skip(3).step_by(9).chain(remove.iter().take(2)).take(6).copied();
        let again: Vec<Row> =
            again.enumerate().map(|(i, row)| Row { stamp: row.stamp % 3 + stamp + 300 + 3 * i, ..row }).collect();
        add.extend(again);
        add.extend(add.first().map(|row| Row { stamp: stamp + 900, ..*row }));
        add.extend((n > 0).then(|| (n - 1) as u32).map(|node| Row { src: node, dst: node, stamp: stamp + 901 }));
        Changes { new, remove, add }
    }

    fn source(&self, plain: GraphSource) -> GraphSource {
        let columns = if self.laden { laden(plain.columns.clone()) } else { plain.columns.clone() };
        GraphSource {
            columns,
            undirected: self.undirected,
            duplicates: self.duplicates,
            self_loops: self.self_loops,
            ..plain
        }
    }

    fn run(&self, graph: &TestGraph, at_once: bool) {
        let name = format!(
            "{}: undirected {}, {:?}, {:?}, laden {}, {:?}, {} parts, new {}, at once {at_once}",
            graph.name,
            self.undirected,
            self.duplicates,
            self.self_loops,
            self.laden,
            self.ids,
            self.parts,
            self.new_nodes
        );
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let mut dump = Dump::of(graph);
        let source = self.source(dump.write(&dir.path().join("dump"), self.ids));
        let first: Vec<u16> = (0..dump.nodes).map(|node| part_of(node, self.parts)).collect();
        let before = prepared(&source, first.clone(), &out, self.parts);
        let lists_before = lists(&before);

        let mut batches = Vec::new();
        for round in 0..3 {
            let changes = self.draw(&dump, round);
            let file = |name: &str| dir.path().join(format!("{name}-{round}.parquet"));
            write_nodes(&file("nodes"), self.ids, dump.nodes..dump.nodes + changes.new);
            write_rows(&file("remove"), self.ids, &changes.remove);
            write_rows(&file("edges"), self.ids, &changes.add);
            let nodes = if changes.new > 0 { vec![file("nodes")] } else { Vec::new() };
            batches.push(Batch { nodes, remove: vec![file("remove")], edges: vec![file("edges")] });
            self.apply(&mut dump, &changes);
        }
        if at_once {
            let updated = in_place(&out, &batches).unwrap_or_else(|error| panic!("{name}: {error}"));
            check_affected(&name, &lists_before, &Dataset::open(&out).unwrap(), &updated);
        } else {
            for batch in &batches {
                in_place(&out, std::slice::from_ref(batch)).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        }

        // The same from the changed dump, with every node in the partition that it has got.
        let updated = Dataset::open(&out).unwrap();
        updated.verify(&Silent).unwrap();
        let parts_of = assignment(&updated, &dump, self.ids);
        assert_eq!(parts_of[..first.len()], first, "{name}: nodes stay where they are");
        let source = self.source(dump.write(&dir.path().join("changed"), self.ids));
        let rebuilt = prepared(&source, parts_of, &dir.path().join("rebuilt"), self.parts);
        let (found, expected) = (updated.manifest(), rebuilt.manifest());
        let seen = |manifest: &Manifest| {
            let m = manifest.clone();
            (m.nodes, m.edges, m.self_loops, m.offsets, m.labels, m.splits, m.node_types, m.edge_columns)
        };
        assert_eq!(seen(found), seen(expected), "{name}");
        if self.duplicates == Duplicates::Keep {
            assert_eq!(found.edge_rows, expected.edge_rows, "{name}");
        }
        for ((file, found), (_, expected)) in bytes(&out, self.parts).iter().zip(bytes(rebuilt.dir(), self.parts)) {
            assert!(*found == expected, "{name}: {}", file.display());
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

/// The partition of every node of the dump.
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

/// In-edges of every node by the users' ids: the source, and the bits of the weight.
type Lists = BTreeMap<String, Vec<(String, u32)>>;

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
            lists.insert(id(node), list);
        }
    }
    lists
}

/// The in-edges within `hops` of a node.
fn neighbourhood<'a>(lists: &'a Lists, node: &'a str, hops: u32) -> BTreeMap<&'a str, &'a Vec<(String, u32)>> {
    let mut found = BTreeMap::new();
    let mut frontier = BTreeSet::from([node]);
    for _ in 0..hops {
        let mut next = BTreeSet::new();
        for node in frontier {
            if let Some(list) = lists.get(node) {
                found.insert(node, list);
                next.extend(list.iter().map(|(src, _)| src.as_str()));
            }
        }
        frontier = next;
    }
    found
}

/// Exactly the nodes are listed whose neighborhood is another than before.
fn check_affected(name: &str, before: &Lists, dataset: &Dataset, updated: &Updated) {
    let after = lists(dataset);
    let found = affected(&dataset.dir().join(AFFECTED));
    assert_eq!(found.len() as u64, updated.affected, "{name}");
    for node in after.keys() {
        let changed = |hops: &u32| neighbourhood(before, node, *hops) != neighbourhood(&after, node, *hops);
        let new = !before.contains_key(node);
        let expected = if new { Some(1) } else { [1, 2].into_iter().find(changed) };
        assert_eq!(found.get(node).copied(), expected, "{name}: node {node}");
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
fn every_policy_on_every_graph() {
    for (number, graph) in graphs().iter().filter(|graph| graph.nodes > 0).enumerate() {
        for choice in 0..16u32 {
            let bit = |at: u32| choice & (1 << at) != 0;
            let keep = bit(1);
            let laden = bit(2) && graph.edges.len() > 20;
            let self_loops = match (bit(3), keep && !laden) {
                // Where edges carry nothing and duplicates count, a loop that was added looks like one that was there.
                (true, false) => SelfLoops::Add,
                (true, true) => SelfLoops::Drop,
                _ => SelfLoops::Keep,
            };
            let case = Case {
                undirected: bit(0),
                duplicates: if keep { Duplicates::Keep } else { Duplicates::Drop },
                self_loops,
                laden,
                ids: [IdStyle::Dense, IdStyle::Sparse, IdStyle::Text][(choice as usize + number) % 3],
                parts: [3, 1, 4][(choice as usize / 3 + number) % 3],
                new_nodes: !(choice + number as u32).is_multiple_of(4),
            };
            case.run(graph, (choice + choice / 4) % 2 == 0);
        }
    }
}

#[test]
fn a_larger_graph_in_many_batches() {
    for (undirected, laden) in [(false, true), (true, false), (true, true)] {
        let case = Case {
            undirected,
            duplicates: Duplicates::Drop,
            self_loops: SelfLoops::Keep,
            laden,
            ids: IdStyle::Text,
            parts: 5,
            new_nodes: true,
        };
        case.run(&power_law(700, 9000, 5), true);
    }
}
