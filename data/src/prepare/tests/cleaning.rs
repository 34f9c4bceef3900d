//! Compares created and dropped nodes and reverse edges with those of a naive program.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::oracle::{globals, in_edges};
use super::*;
use crate::dataset::{IdColumn, split};
use crate::source::{Columns, Isolated, Normalize, UnknownNodes};
use crate::testing::{FEATURES, IdStyle, TestGraph, graphs, power_law};

/// The filters of a case.
#[derive(Clone, Copy, Debug)]
struct Filters {
    unknown: UnknownNodes,
    isolated: Isolated,
    k_core: Option<u32>,
    largest: bool,
}

impl Filters {
    const OFF: Self = Self { unknown: UnknownNodes::Drop, isolated: Isolated::Keep, k_core: None, largest: false };

    fn apply(self, source: &GraphSource) -> GraphSource {
        let Self { unknown, isolated, k_core, largest } = self;
        GraphSource { unknown_nodes: unknown, isolated, k_core, largest_component: largest, ..source.clone() }
    }
}

/// The remaining graph: the node of every index, and the edges by indexes.
struct Left {
    nodes: Vec<u32>,
    edges: Vec<(u32, u32)>,
    unknown: u64,
}

/// Applies the filters to a graph of which only the first `known` nodes are in the node files. `None` if no node remains, or a node is
/// isolated and the policy is to fail.
fn naive(graph: &TestGraph, known: u32, ids: IdStyle, filters: Filters) -> Option<Left> {
    let mut nodes: Vec<u32> = (0..known).collect();
    if filters.unknown == UnknownNodes::Create {
        let ends: BTreeSet<u32> = graph.edges.iter().flat_map(|&(a, b)| [a, b]).filter(|&v| v >= known).collect();
        let mut created: Vec<u32> = ends.into_iter().collect();
        created.sort_by_key(|&v| match ids {
            IdStyle::Text => (0, ids.text(v)),
            _ => (ids.text(v).parse::<i64>().unwrap(), String::new()),
        });
        nodes.extend(created);
    }
    let all = nodes.len();
    let inside = |nodes: &[u32]| -> Vec<(u32, u32)> {
        let nodes: HashSet<u32> = nodes.iter().copied().collect();
        graph.edges.iter().copied().filter(|(a, b)| nodes.contains(a) && nodes.contains(b)).collect()
    };
    let unknown = (graph.edges.len() - inside(&nodes).len()) as u64;
    let neighbors = |nodes: &[u32]| {
        let mut neighbors: BTreeMap<u32, BTreeSet<u32>> = nodes.iter().map(|&v| (v, BTreeSet::new())).collect();
        for (a, b) in inside(nodes).into_iter().filter(|(a, b)| a != b) {
            neighbors.get_mut(&a).unwrap().insert(b);
            neighbors.get_mut(&b).unwrap().insert(a);
        }
        neighbors
    };
    if let Some(k) = filters.k_core {
        loop {
            let before = nodes.len();
            let neighbors = neighbors(&nodes);
            nodes.retain(|v| neighbors[v].len() >= k as usize);
            if nodes.len() == before {
                break;
            }
        }
    }
    if filters.largest {
        let neighbors = neighbors(&nodes);
        let mut best = Vec::new();
        let mut seen = HashSet::new();
        for &start in &nodes {
            let (mut component, mut todo) = (BTreeSet::new(), vec![start]);
            while let Some(v) = todo.pop().filter(|_| !seen.contains(&start)) {
                if component.insert(v) {
                    todo.extend(&neighbors[&v]);
                }
            }
            seen.extend(component.iter().copied());
            if component.len() > best.len() {
                best = component.into_iter().collect();
            }
        }
        nodes.retain(|v| best.contains(v));
    }
    if filters.isolated != Isolated::Keep {
        let neighbors = neighbors(&nodes);
        let before = nodes.len();
        nodes.retain(|v| !neighbors[v].is_empty());
        if filters.isolated == Isolated::Fail && nodes.len() < before {
            return None;
        }
    }
    if nodes.is_empty() && all > 0 {
        return None;
    }
    let index: BTreeMap<u32, u32> = nodes.iter().copied().zip(0..).collect();
    let edges = inside(&nodes).into_iter().map(|(a, b)| (index[&a], index[&b])).collect();
    Some(Left { nodes, edges, unknown })
}

/// A dump of `graph` in which only the first `known` nodes have rows.
fn dump(graph: &TestGraph, known: u32, ids: IdStyle, dir: &Path) -> GraphSource {
    let (all, some) = (dir.join("all"), dir.join("some"));
    [&all, &some].into_iter().for_each(|dir| std::fs::create_dir_all(dir).unwrap());
    let edges = graph.dump(&all, ids).unwrap().edges;
    let nodes = TestGraph { nodes: known, ..graph.clone() }.dump(&some, ids).unwrap();
    GraphSource { edges, ..nodes }
}

fn check(graph: &TestGraph, known: u32, source: &GraphSource, ids: IdStyle, filters: Filters, parts: u32) {
    let case = format!("{}, {known} known, {ids:?}, {parts} parts, {filters:?}", graph.name);
    let dir = tempfile::tempdir().unwrap();
    let source = filters.apply(source);
    let dataset = match (prepared(&source, &dir.path().join("out"), parts), naive(graph, known, ids, filters)) {
        (Ok(dataset), Some(left)) => (dataset, left),
        (Err(Error::Setting { key, .. }), None) => return assert!(key == "graph.k_core" || key == "graph.isolated"),
        (Err(Error::Isolated { .. }), None) => return assert_eq!(filters.isolated, Isolated::Fail, "{case}"),
        (Ok(_), None) => panic!("{case}: should have failed"),
        (Err(error), _) => panic!("{case}: {error}"),
    };
    let (dataset, left) = dataset;
    dataset.verify(&Silent).unwrap();
    let manifest = dataset.manifest();
    let created = left.nodes.iter().filter(|&&v| v >= known).count();
    assert_eq!(manifest.nodes, left.nodes.len() as u64, "{case}");
    assert_eq!(manifest.unknown_dropped, left.unknown, "{case}");
    let total = u64::from(known) + manifest.cleaning.nodes_created;
    assert_eq!(total, manifest.nodes + manifest.cleaning.nodes_dropped(), "{case}");
    assert!(manifest.cleaning.nodes_created >= created as u64, "{case}");
    let kept_rows = graph.edges.len() as u64 - left.unknown - manifest.cleaning.edges_dropped;
    assert_eq!(kept_rows, left.edges.len() as u64, "{case}");
    let labeled: Vec<u32> = left.nodes.iter().copied().filter(|&v| v < known && v % 7 != 6).collect();
    let labels = manifest.labels.as_ref().unwrap();
    assert_eq!(labels.labeled, labeled.len() as u64, "{case}");
    for (class, &count) in labels.counts.iter().enumerate() {
        assert_eq!(count, labeled.iter().filter(|&&v| v as usize % 3 == class).count() as u64, "{case}");
    }

    let small = TestGraph { name: graph.name, nodes: left.nodes.len() as u32, edges: left.edges.clone() };
    let expected = in_edges(&small, &source, parts).unwrap();
    let global = globals(small.nodes, parts);
    let mut node_of = vec![0u32; global.len()];
    global.iter().zip(&left.nodes).for_each(|(&global, &v)| node_of[global as usize] = v);
    for part in 0..parts as usize {
        let part = dataset.partition(part).unwrap();
        for (local, node) in part.range.clone().enumerate() {
            let sources: Vec<u32> = expected[node as usize].iter().map(|&(src, _)| src).collect();
            assert_eq!(part.topology.neighbors(local), sources, "{case}, node {node}");
            let v = node_of[node as usize];
            assert_eq!(part.nodes.ids().display(local).to_string(), ids.text(v), "{case}");
            assert_eq!(matches!(part.nodes.ids(), IdColumn::Text(_)), ids == IdStyle::Text);
            let mut row = [0.0; FEATURES];
            // The width of a list column without rows is unknown.
            if manifest.features.dim > 0 {
                part.features.row_to_f32(local, &mut row);
            }
            let (label, features, in_split) = match v < known {
                true => {
                    let splits = [split::TRAIN, split::TRAIN, split::VAL, split::TEST, split::NONE];
                    let label = if v % 7 == 6 { -1 } else { v as i32 % 3 };
                    (label, [v as f32, v as f32 / 2.0, -1.0], splits[v as usize % 5])
                }
                false => (-1, [0.0; FEATURES], split::NONE),
            };
            let found = (part.nodes.class_labels().unwrap()[local], row, part.nodes.split()[local]);
            assert_eq!(found, (label, features, in_split), "{case}, {v}");
        }
    }
}

#[test]
fn filtered_datasets_equal_those_of_a_naive_program() {
    let on = [
        Filters { unknown: UnknownNodes::Create, ..Filters::OFF },
        Filters { isolated: Isolated::Drop, ..Filters::OFF },
        Filters { isolated: Isolated::Fail, ..Filters::OFF },
        Filters { k_core: Some(2), ..Filters::OFF },
        Filters { largest: true, ..Filters::OFF },
        Filters { unknown: UnknownNodes::Create, isolated: Isolated::Drop, k_core: Some(1), largest: true },
        Filters { unknown: UnknownNodes::Create, isolated: Isolated::Keep, k_core: Some(4), largest: true },
        Filters { unknown: UnknownNodes::Create, isolated: Isolated::Fail, k_core: None, largest: true },
    ];
    for graph in graphs().into_iter().chain([power_law(150, 190, 9)]) {
        for ids in [IdStyle::Dense, IdStyle::Sparse, IdStyle::Text] {
            for known in BTreeSet::from([graph.nodes, graph.nodes / 2, 0]) {
                let dumps = tempfile::tempdir().unwrap();
                let source = dump(&graph, known, ids, dumps.path());
                for (case, filters) in on.into_iter().enumerate() {
                    // Not all combinations: the kind of ids matters for created nodes.
                    if ids != IdStyle::Dense && filters.unknown != UnknownNodes::Create {
                        continue;
                    }
                    let parts = 1 + 2 * (case as u32 % 2);
                    let undirected = case % 3 == 0;
                    check(&graph, known, &GraphSource { undirected, ..source.clone() }, ids, filters, parts);
                }
            }
        }
    }
}

#[test]
fn reverse_edges_have_their_own_types() {
    for graph in [&graphs()[3], &power_law(60, 900, 2)] {
        let dumps = tempfile::tempdir().unwrap();
        let plain = graph.dump(dumps.path(), IdStyle::Dense).unwrap();
        for (typed, duplicates, self_loops) in [
            (false, Duplicates::Drop, SelfLoops::Keep),
            (true, Duplicates::Drop, SelfLoops::Add),
            (true, Duplicates::Keep, SelfLoops::Drop),
        ] {
            let columns = Columns {
                edge_type: typed.then(|| "etype".into()),
                weight: Some("weight".into()),
                edge_split: Some("esplit".into()),
                edge_label: Some("eclass".into()),
                ..plain.columns.clone()
            };
            let source = GraphSource { columns, duplicates, self_loops, reverse_edges: true, ..plain.clone() };
            let dir = tempfile::tempdir().unwrap();
            let dataset = prepared(&source, &dir.path().join("out"), 1).unwrap();
            // (destination, source, type, row). The types of reverse edges follow the others.
            let types = if typed { 3 } else { 1 };
            let kinds = types;
            let mut expected = Vec::new();
            let mut seen = HashSet::new();
            for (row, &(src, dst)) in graph.edges.iter().enumerate() {
                if src == dst && self_loops == SelfLoops::Drop {
                    continue;
                }
                let kind = if typed { row as u16 % 3 } else { 0 };
                for edge in [(dst, src, kind), (src, dst, types + kind)] {
                    if seen.insert(edge) || duplicates == Duplicates::Keep {
                        expected.push((edge.0, edge.1, edge.2, row as f32 / 4.0));
                    }
                }
            }
            for node in (0..graph.nodes).filter(|_| self_loops == SelfLoops::Add) {
                if !seen.iter().any(|&(dst, src, _)| (dst, src) == (node, node)) {
                    expected.push((node, node, 2 * types, 1.0));
                }
            }
            let topology = dataset.topology(0).unwrap();
            let mut found = Vec::new();
            for node in 0..graph.nodes {
                for edge in topology.edge_range(node as usize) {
                    let (types, weights) = (topology.edge_types().unwrap(), topology.weights().unwrap());
                    // A reverse edge has the split and class of its row, which the weight identifies; an added loop has none.
                    let row = (4.0 * weights[edge]) as usize;
                    let loops = types[edge] == 2 * kinds;
                    let (splits, labels) = (topology.splits().unwrap(), topology.labels().unwrap());
                    assert_eq!(splits[edge], if loops { 0 } else { [1, 1, 2, 3, 0][row % 5] });
                    assert_eq!(labels[edge], if loops || row % 7 == 6 { -1 } else { row as i32 % 3 });
                    found.push((node, topology.indices()[edge], types[edge], weights[edge]));
                }
            }
            let by_all = |a: &(u32, u32, u16, f32), b: &(u32, u32, u16, f32)| a.partial_cmp(b).unwrap();
            expected.sort_by(by_all);
            found.sort_by(by_all);
            assert_eq!(found, expected, "{}, typed {typed}, {duplicates:?}, {self_loops:?}", graph.name);
            let info = dataset.manifest().edge_columns.edge_type.clone().unwrap();
            let mut names: Vec<&str> = match typed {
                true => vec!["t0", "t1", "t2", "rev_t0", "rev_t1", "rev_t2"],
                false => vec!["forward", "reverse"],
            };
            names.extend((self_loops == SelfLoops::Add).then_some("self-loop"));
            assert_eq!((info.count as usize, info.names), (names.len(), names.iter().map(|n| n.to_string()).collect()));
        }
    }
}

/// Returns a dump in which every filter drops nodes, with all filters.
fn with_all_filters(dir: &Path) -> GraphSource {
    let graph = power_law(3000, 9000, 11);
    let filters = Filters { unknown: UnknownNodes::Create, isolated: Isolated::Drop, k_core: Some(2), largest: true };
    let source = filters.apply(&dump(&graph, 2500, IdStyle::Text, dir));
    let columns = Columns { edge_type: Some("etype".into()), split: None, ..source.columns.clone() };
    GraphSource {
        columns,
        reverse_edges: true,
        normalize_features: Normalize::Standard,
        split_fractions: Some([0.5, 0.25, 0.25]),
        ..source
    }
}

/// Returns all bytes of all Arrow files.
fn bytes(out: &Path, parts: usize) -> Vec<Vec<u8>> {
    let dirs = (0..parts).map(|part| out.join(crate::dataset::part_folder(part)));
    let files = dirs.flat_map(|dir| ["topology.arrow", "nodes.arrow", "features.arrow"].map(|name| dir.join(name)));
    files.map(|file| std::fs::read(file).unwrap()).collect()
}

#[test]
fn bytes_are_equal_for_any_threads_and_memory() {
    let dumps = tempfile::tempdir().unwrap();
    let source = with_all_filters(dumps.path());
    let mut expected = None;
    for threads in [1, 2, 3] {
        for memory in [200 << 10, 1 << 30] {
            let dir = tempfile::tempdir().unwrap();
            let settings = PrepareSettings { memory, ..settings(&dir.path().join("out"), 3) };
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let manifest = pool.install(|| prepare(&source, &Modulo, &settings, &Silent)).unwrap();
            let found = bytes(&settings.out, 3);
            let cleaning = manifest.cleaning;
            assert!(cleaning.nodes_created > 0 && cleaning.outside_core > 0 && cleaning.edges_dropped > 0);
            // Splits are drawn from the remaining nodes.
            let labeled = manifest.labels.as_ref().unwrap().labeled;
            assert_eq!(manifest.splits.train, labeled.div_ceil(2), "{labeled}");
            let quality = Quality::read(&settings.out).unwrap();
            assert_eq!((quality.cleaning, quality.unknown_dropped), (cleaning, 0));
            match &expected {
                None => expected = Some(found),
                Some(expected) => assert!(*expected == found, "{threads} threads, {memory} bytes"),
            }
        }
    }
}

#[test]
fn resumed_preparation_gives_equal_bytes() {
    const KEY: &str = "GNNFLOW_TEST_KILLED_CLEANING";
    let settings = |dir: &Path| PrepareSettings { memory: 200 << 10, ..settings(&dir.join("out"), 3) };
    if let Some(dir) = std::env::var_os(KEY) {
        let dir = Path::new(&dir);
        let source = with_all_filters(dir);
        std::fs::write(dir.join("ready"), "").unwrap();
        prepare(&source, &Modulo, &settings(dir), &Silent).unwrap();
        return;
    }
    let whole = tempfile::tempdir().unwrap();
    prepare(&with_all_filters(whole.path()), &Modulo, &settings(whole.path()), &Silent).unwrap();
    let expected = bytes(&whole.path().join("out"), 3);
    let name = "prepare::tests::cleaning::resumed_preparation_gives_equal_bytes";
    for milliseconds in [5, 15, 30, 45, 60, 80, 110] {
        let dir = tempfile::tempdir().unwrap();
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(KEY, dir.path());
        let mut child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
        while !dir.path().join("ready").exists() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
        child.kill().unwrap();
        child.wait().unwrap();
        prepare(&with_all_filters(dir.path()), &Modulo, &settings(dir.path()), &Silent).unwrap();
        assert!(bytes(&dir.path().join("out"), 3) == expected, "killed after {milliseconds} ms");
    }
}

#[test]
fn filters_that_drop_all_nodes_are_refused() {
    let dumps = tempfile::tempdir().unwrap();
    let source = graphs()[4].dump(dumps.path(), IdStyle::Text).unwrap();
    let out = dumps.path().join("out");
    let say = |source: GraphSource| prepared(&source, &out, 1).unwrap_err().to_string();
    assert_eq!(
        say(GraphSource { isolated: Isolated::Fail, ..source.clone() }),
        "node \"node-0\" and 3 others have no edge to or from another node; set graph.isolated to \"drop\" or \"keep\""
    );
    assert_eq!(
        say(GraphSource { k_core: Some(2), ..source.clone() }),
        "graph.k_core: is 2, but the graph has no 2-core; choose a smaller number"
    );
    assert!(say(GraphSource { reverse_edges: true, undirected: true, ..source }).contains("graph.undirected"));
    let loops = graphs()[2].dump(dumps.path(), IdStyle::Dense).unwrap();
    assert_eq!(
        say(GraphSource { isolated: Isolated::Drop, ..loops }),
        "graph.isolated: is \"drop\", but every node is isolated; use \"keep\""
    );
}

/// Assigns nodes by type (the parity of their numbers), and checks the stream's counts.
struct Parity;

impl Partitioner for Parity {
    fn name(&self) -> &str {
        "parity"
    }

    fn assign(
        &self,
        graph: &dyn crate::partitioner::GraphStream,
        _: &crate::partitioner::Goal,
    ) -> Result<crate::partitioner::Assignment> {
        let (n, mut edges) = (graph.num_nodes() as usize, 0);
        assert_eq!((graph.node_ids().len(), graph.splits().len(), graph.node_types().len()), (n, n, n));
        graph.for_each_edges("reading", &mut |some| {
            edges += some.len() as u64;
            assert!(some.iter().all(|&(a, b)| (a as usize) < n && (b as usize) < n));
            Ok(())
        })?;
        assert_eq!(edges, graph.num_edges());
        Ok(crate::partitioner::Assignment::Stored(graph.node_types().to_vec()))
    }
}

#[test]
fn partitioners_get_the_remaining_nodes() {
    let dumps = tempfile::tempdir().unwrap();
    let graph = power_law(300, 500, 12);
    let plain = dump(&graph, 280, IdStyle::Sparse, dumps.path());
    let filters = Filters { unknown: UnknownNodes::Create, isolated: Isolated::Drop, ..Filters::OFF };
    let source = filters.apply(&plain);
    let columns = Columns { node_type: Some("kind".into()), node_time: Some("kind".into()), ..source.columns.clone() };
    let source = GraphSource { columns, ..source };
    let mut settings = settings(&dumps.path().join("out"), 2);
    settings.balance.types = Some(2.0);
    prepare(&source, &Parity, &settings, &Silent).unwrap();
    let dataset = Dataset::open(&settings.out).unwrap();
    let left = naive(&graph, 280, IdStyle::Sparse, filters).unwrap();
    for part in 0..2 {
        let expected = left.nodes.iter().filter(|&&v| (if v < 280 { v % 2 } else { 0 }) == part);
        let times: Vec<i64> = expected.clone().map(|&v| if v < 280 { i64::from(v % 2) } else { i64::MIN }).collect();
        let expected: Vec<String> = expected.map(|&v| IdStyle::Sparse.text(v)).collect();
        let nodes = dataset.partition(part as usize).unwrap().nodes;
        let found: Vec<String> = (0..expected.len()).map(|local| nodes.ids().display(local).to_string()).collect();
        assert_eq!((found, nodes.times()), (expected, Some(&times[..])));
    }
}
