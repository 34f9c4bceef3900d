//! Compares datasets prepared by one process and by several, byte by byte.

use std::path::Path;

use gnnflow_data::group::SingleProcess;
use gnnflow_data::prepare::prepare_with;
use gnnflow_data::source::{Columns, Isolated, Normalize, UnknownNodes};
use gnnflow_data::testing::{IdStyle, Modulo, TestGraph, graphs, power_law};
use gnnflow_data::{Assignment, Goal, GraphSource, GraphStream, Manifest, Partitioner, PrepareSettings, Silent};

use super::WorkerGroup;

/// A method that uses all passes of the stream.
struct AllPasses;

impl Partitioner for AllPasses {
    fn name(&self) -> &str {
        "all-passes"
    }

    fn assign(&self, graph: &dyn GraphStream, goal: &Goal) -> gnnflow_data::Result<Assignment> {
        let n = graph.num_nodes() as usize;
        let mut sums = vec![0u64; n];
        graph.for_each_edges("in order", &mut |chunk| {
            chunk.iter().for_each(|&(a, b)| {
                sums[a as usize] = sums[a as usize].wrapping_mul(31).wrapping_add(u64::from(b));
            });
            Ok(())
        })?;
        graph.count_keys("by key", 1 << 12, &|a, b| (a != b).then_some(u64::from(b)), &mut |chunk| {
            chunk.iter().for_each(|&(key, count)| sums[key as usize] = sums[key as usize].wrapping_add(count));
            Ok(())
        })?;
        Ok(Assignment::Stored(sums.into_iter().map(|sum| (sum % u64::from(goal.parts)) as u16).collect()))
    }
}

/// All bytes of a dataset except the report, which contains durations.
fn bytes(out: &Path, parts: usize) -> Vec<Vec<u8>> {
    let names = ["topology.arrow", "nodes.arrow", "features.arrow", "halo.arrow"];
    let dirs = (0..parts).map(|part| out.join(format!("part-{part:05}")));
    let files = dirs.flat_map(|dir| names.map(|name| dir.join(name))).chain([out.join(Manifest::FILE)]);
    files.map(|file| std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))).collect()
}

/// Prepares with `workers` workers of one process and returns their results as text.
fn prepare_at(workers: usize, source: &GraphSource, settings: &PrepareSettings, all_passes: bool) -> Vec<String> {
    let (source, settings) = (source.clone(), settings.clone());
    let run = move |worker: &mut timely::worker::Worker| {
        let processes = WorkerGroup::new(worker, 2, |_| ());
        let method: &dyn Partitioner = if all_passes { &AllPasses } else { &Modulo };
        prepare_with(&processes, &source, method, &settings, &Silent)
            .map_or_else(|e| e.to_string(), |m| format!("{m:?}"))
    };
    let guards = timely::execute(timely::Config::process(workers), run).unwrap();
    guards.join().into_iter().map(Result::unwrap).collect()
}

/// A dump of `graph` in which only the first `known` nodes have rows.
fn dump(graph: &TestGraph, known: u32, ids: IdStyle, dir: &Path) -> GraphSource {
    let (all, partial) = (dir.join("all"), dir.join("some"));
    [&all, &partial].into_iter().for_each(|dir| std::fs::create_dir_all(dir).unwrap());
    let edges = graph.dump(&all, ids).unwrap().edges;
    let nodes = TestGraph { nodes: known, ..graph.clone() }.dump(&partial, ids).unwrap();
    GraphSource { edges, ..nodes }
}

/// Compares a single process with one, two and four workers.
fn check(case: &str, source: &GraphSource, memory: u64, all_passes: bool) {
    let folder = tempfile::tempdir().unwrap();
    let settings = |name: &str| {
        let mut settings = PrepareSettings::new(folder.path().join(name), 3);
        (settings.memory, settings.halo_features) = (memory, true);
        settings
    };
    let method: &dyn Partitioner = if all_passes { &AllPasses } else { &Modulo };
    let single = settings("alone");
    let expected =
        prepare_with(&SingleProcess, source, method, &single, &Silent).unwrap_or_else(|e| panic!("{case}: {e}"));
    for workers in [1, 2, 4] {
        let settings = settings(&format!("by-{workers}"));
        for result in prepare_at(workers, source, &settings, all_passes) {
            assert_eq!(result, format!("{expected:?}"), "{case}, {workers} workers");
        }
        assert!(bytes(&settings.out, 3) == bytes(&single.out, 3), "{case}, {workers} workers");
    }
}

#[test]
fn dataset_has_equal_bytes_for_1_2_and_4_workers() {
    for (graph, ids) in [(power_law(400, 3000, 21), IdStyle::Text), (power_law(400, 3000, 22), IdStyle::Dense)] {
        let dumps = tempfile::tempdir().unwrap();
        let plain = graph.dump(dumps.path(), ids).unwrap();
        // The smallest memory puts the dictionary of strings on disk.
        for (all_passes, memory) in [(true, 16 << 10), (true, 64 << 10), (true, 1 << 30), (false, 1 << 30)] {
            let columns = Columns {
                weight: Some("weight".into()),
                edge_type: Some("etype".into()),
                edge_features: vec!["up".into()],
                ..plain.columns.clone()
            };
            let normalize_features = Normalize::Standard;
            let source = GraphSource { columns, undirected: true, normalize_features, ..plain.clone() };
            check(&format!("{ids:?}, {memory} bytes"), &source, memory, all_passes);
        }
    }
}

#[test]
fn cleaned_dataset_has_equal_bytes_for_1_2_and_4_workers() {
    let cleaned = |source: &GraphSource, case: usize| GraphSource {
        unknown_nodes: if case == 1 { UnknownNodes::Drop } else { UnknownNodes::Create },
        isolated: if case == 2 { Isolated::Keep } else { Isolated::Drop },
        k_core: [Some(2), None, None, Some(3)][case],
        largest_component: case >= 2,
        reverse_edges: case != 0,
        undirected: case == 0,
        ..source.clone()
    };
    for ids in [IdStyle::Dense, IdStyle::Sparse, IdStyle::Text] {
        let graph = power_law(500, 2500, 23);
        let dumps = tempfile::tempdir().unwrap();
        let plain = dump(&graph, 400, ids, dumps.path());
        for case in 0..4 {
            // With little memory the dictionary is on disk, unless ids are dense.
            let memory = [16 << 10, 1 << 30, 96 << 10, 16 << 10][case];
            check(&format!("{ids:?}, case {case}"), &cleaned(&plain, case), memory, true);
        }
    }
    // Graphs of which cleaning leaves little.
    for graph in graphs().into_iter().filter(|graph| ["isolated", "path", "two components"].contains(&graph.name)) {
        let dumps = tempfile::tempdir().unwrap();
        let plain = graph.dump(dumps.path(), IdStyle::Text).unwrap();
        check(graph.name, &cleaned(&plain, 2), 1 << 30, true);
    }
}
