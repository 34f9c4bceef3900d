//! Datasets and errors are equal with the dictionary of ids on disk and in memory.

use std::path::PathBuf;

use super::*;
use crate::dataset::part_folder;
use crate::dump::PartTable;
use crate::partitioner::{Assignment, GraphStream};
use crate::source::{Columns, Isolated, UnknownNodes};
use crate::testing::{IdStyle, TestGraph, graphs, power_law, write_parquet};

/// Returns all bytes of a dataset except the report, which contains times.
fn bytes(out: &Path, parts: usize) -> Vec<Vec<u8>> {
    let names = ["topology.arrow", "nodes.arrow", "features.arrow", "halo.arrow"];
    let dirs = (0..parts).map(|part| out.join(part_folder(part)));
    let files = dirs.flat_map(|dir| names.map(|name| dir.join(name))).chain([out.join(Manifest::FILE)]);
    files.filter(|file| file.exists()).map(|file| std::fs::read(file).unwrap()).collect()
}

/// Prepares with the least accepted memory, which leaves none for a dictionary. Returns that memory, too.
fn tight(source: &GraphSource, method: &dyn Partitioner, out: PathBuf) -> (u64, Result<Manifest>) {
    let mut memory = 0;
    loop {
        let settings = PrepareSettings { memory, ..settings(&out, 3) };
        match prepare(source, method, &settings, &Silent) {
            Err(Error::Budget { needed, .. }) => {
                assert!(needed > memory);
                memory = needed;
            }
            result => return (memory, result),
        }
    }
}

/// Prepares with much memory and with the least accepted memory, and compares the results.
fn check(case: &str, source: &GraphSource, method: &dyn Partitioner) {
    let dir = tempfile::tempdir().unwrap();
    let plenty = PrepareSettings { memory: 1 << 30, ..settings(&dir.path().join("plenty"), 3) };
    let expected = prepare(source, method, &plenty, &Silent);
    let (memory, found) = tight(source, method, dir.path().join("tight"));
    match (expected, found) {
        (Ok(expected), Ok(found)) => {
            assert_eq!(found, expected, "{case}, {memory} bytes");
            let passes = Quality::read(&dir.path().join("tight")).unwrap().passes;
            let joined = passes.iter().any(|pass| pass.name == "looking up ids");
            assert_eq!(joined, found.nodes + found.cleaning.nodes_dropped() > 0, "{case}: where was the dictionary?");
            assert!(bytes(&dir.path().join("tight"), 3) == bytes(&plenty.out, 3), "{case}, {memory} bytes");
        }
        (expected, found) => {
            let say = |result: Result<Manifest>| result.map(|_| ()).map_err(|error| error.to_string());
            assert_eq!(say(found), say(expected), "{case}, {memory} bytes");
        }
    }
}

/// A dump of `graph` in which only the first `known` nodes have rows.
fn dump(graph: &TestGraph, known: u32, ids: IdStyle, dir: &Path) -> GraphSource {
    let (all, some) = (dir.join("all"), dir.join("some"));
    [&all, &some].into_iter().for_each(|dir| std::fs::create_dir_all(dir).unwrap());
    let edges = graph.dump(&all, ids).unwrap().edges;
    let nodes = TestGraph { nodes: known, ..graph.clone() }.dump(&some, ids).unwrap();
    GraphSource { edges, ..nodes }
}

#[test]
fn datasets_and_errors_are_equal_on_disk_and_in_memory() {
    for graph in graphs() {
        for ids in [IdStyle::Sparse, IdStyle::Text] {
            for known in [graph.nodes, graph.nodes / 2] {
                let dumps = tempfile::tempdir().unwrap();
                let plain = dump(&graph, known, ids, dumps.path());
                for unknown_nodes in [UnknownNodes::Fail, UnknownNodes::Drop, UnknownNodes::Create] {
                    for (isolated, k_core) in [(Isolated::Keep, None), (Isolated::Drop, Some(1))] {
                        let columns = Columns { edge_type: Some("etype".into()), ..plain.columns.clone() };
                        let source = GraphSource { unknown_nodes, isolated, k_core, columns, ..plain.clone() };
                        let case = format!("{}, {known} known, {ids:?}, {unknown_nodes:?}, {isolated:?}", graph.name);
                        check(&case, &source, &Modulo);
                    }
                }
            }
        }
    }
}

/// Assigns nodes by their first edges.
struct Reading;

impl Partitioner for Reading {
    fn name(&self) -> &str {
        "reading"
    }

    fn assign(&self, graph: &dyn GraphStream, goal: &crate::partitioner::Goal) -> Result<Assignment> {
        let mut parts = vec![0; graph.num_nodes() as usize];
        let mut edges = 0;
        graph.for_each_edges("reading", &mut |some| {
            edges += some.len() as u64;
            some.iter().for_each(|&(a, b)| parts[a as usize] = (b % goal.parts) as u16);
            Ok(())
        })?;
        assert!(edges <= graph.num_edges());
        Ok(Assignment::Stored(parts))
    }
}

#[test]
fn partitioners_read_equal_edges_on_disk_and_in_memory() {
    let graph = power_law(900, 6000, 31);
    for ids in [IdStyle::Sparse, IdStyle::Text] {
        for known in [900, 700] {
            let dumps = tempfile::tempdir().unwrap();
            let plain = dump(&graph, known, ids, dumps.path());
            for unknown_nodes in [UnknownNodes::Drop, UnknownNodes::Create] {
                for (isolated, undirected) in [(Isolated::Keep, true), (Isolated::Drop, false)] {
                    let source = GraphSource { unknown_nodes, isolated, undirected, ..plain.clone() };
                    check(&format!("{known} known, {ids:?}, {unknown_nodes:?}, {isolated:?}"), &source, &Reading);
                }
            }
        }
    }
}

/// A table of parts.
struct Table(PartTable);

impl Partitioner for Table {
    fn name(&self) -> &str {
        "table"
    }

    fn assign(&self, graph: &dyn GraphStream, goal: &crate::partitioner::Goal) -> Result<Assignment> {
        self.0.read(graph.node_ids(), goal.parts).map(Assignment::Stored)
    }
}

#[test]
fn tables_of_parts_find_ids_on_disk() {
    let graph = power_law(500, 800, 32);
    for ids in [IdStyle::Sparse, IdStyle::Text] {
        let dumps = tempfile::tempdir().unwrap();
        let plain = dump(&graph, 450, ids, dumps.path());
        let path = dumps.path().join("own.parquet");
        for nodes in [500, 499] {
            let parts = IdStyle::Dense.ids((0..nodes).rev().map(|v| v % 3));
            write_parquet(&path, vec![("node_id", ids.ids((0..nodes).rev())), ("part", parts)], 70);
            let table = Table(PartTable { files: vec![path.clone()], ..PartTable::default() });
            for isolated in [Isolated::Keep, Isolated::Drop] {
                // The table may name created nodes that a filter has dropped.
                let known = GraphSource { isolated, unknown_nodes: UnknownNodes::Create, ..plain.clone() };
                check(&format!("{ids:?}, {nodes} rows, {isolated:?}"), &known, &table);
            }
        }
    }
}

#[test]
fn duplicate_and_unknown_ids_give_equal_errors() {
    let graph = power_law(200, 900, 33);
    for ids in [IdStyle::Sparse, IdStyle::Text] {
        let dumps = tempfile::tempdir().unwrap();
        let source = dump(&graph, 180, ids, dumps.path());
        let dir = tempfile::tempdir().unwrap();
        let (_, result) = tight(&source, &Modulo, dir.path().join("out"));
        let error = result.unwrap_err();
        assert!(matches!(error, Error::UnknownNode { .. }), "{error}");
        check("unknown", &source, &Modulo);

        let duplicate = dumps.path().join("twice.parquet");
        let nodes = (0..200).chain([150, 20]).chain(200..300).chain([20]);
        write_parquet(&duplicate, vec![("node_id", ids.ids(nodes))], 64);
        let source = GraphSource { nodes: vec![duplicate], columns: Columns::default(), ..source };
        let (_, result) = tight(&source, &Modulo, dir.path().join("out"));
        let error = result.unwrap_err();
        assert!(matches!(&error, Error::DuplicateNode { first: 150, second, .. } if second.row == 200), "{error}");
        check("twice", &source, &Modulo);
    }
}

#[test]
fn duplicate_edges_and_self_loops_give_equal_errors() {
    let graph = power_law(100, 2000, 34);
    for ids in [IdStyle::Sparse, IdStyle::Text] {
        let dumps = tempfile::tempdir().unwrap();
        let plain = graph.dump(dumps.path(), ids).unwrap();
        let fail = GraphSource { duplicates: Duplicates::Fail, ..plain.clone() };
        check("duplicates", &fail, &Modulo);
        check("loops", &GraphSource { self_loops: SelfLoops::Fail, ..plain }, &Modulo);
    }
}
