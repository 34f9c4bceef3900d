//! Sampling: equal bits for 1, 2 and 4 processes, rounds per step, and refused settings.

use std::sync::Arc;

use crate::common::{TestDir, summary};
use arrow::array::{Float32Array, Int64Array, ListArray, StringArray};
use arrow::datatypes::Float32Type;
use gnnflow_data::rng::{Key, Purpose};

const NODES: u64 = 500;
const EDGES: u64 = 6000;

/// Writes a dump with edge weights (a fourth of them 0), two edge types, edge times and node times. Ids start at 1000.
/// `odd` is an edge and its weight.
fn dump(place: &TestDir, odd: Option<(usize, f32)>) {
    let key = Key::new(5, Purpose::GenerateNodes);
    let rows = (0..NODES).map(|v| Some((0..6).map(move |i| Some(key.fold(v).normal(i) as f32))));
    let split = |v: u64| ["train", "val", "test"][key.below(v, 3) as usize];
    place.parquet(
        "nodes.parquet",
        vec![
            ("node_id", Arc::new(Int64Array::from_iter_values((0..NODES).map(|v| 1000 + v as i64)))),
            ("features", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))),
            ("label", Arc::new(Int64Array::from_iter_values((0..NODES).map(|v| v as i64 % 3)))),
            ("split", Arc::new(StringArray::from_iter_values((0..NODES).map(split)))),
            ("seen", Arc::new(Int64Array::from_iter_values((0..NODES).map(|v| key.fold(v).below(99, 100) as i64)))),
        ],
    );
    let key = Key::new(5, Purpose::GenerateEdges);
    let end = |side: u64| (0..EDGES).map(move |e| 1000 + key.fold(side).below(e, NODES) as i64);
    let mut weights: Vec<f32> = (0..EDGES).map(|e| key.fold(2).below(e, 4) as f32 / 2.0).collect();
    odd.into_iter().for_each(|(edge, weight)| weights[edge] = weight);
    let edge_type = |e: u64| ["cites", "writes"][key.fold(3).below(e, 2) as usize];
    place.parquet(
        "edges.parquet",
        vec![
            ("src", Arc::new(Int64Array::from_iter_values(end(0)))),
            ("dst", Arc::new(Int64Array::from_iter_values(end(1)))),
            ("weight", Arc::new(Float32Array::from(weights))),
            ("at", Arc::new(Int64Array::from_iter_values((0..EDGES).map(|e| key.fold(4).below(e, 100) as i64)))),
            ("kind", Arc::new(StringArray::from_iter_values((0..EDGES).map(edge_type)))),
        ],
    );
}

/// Writes a pipeline over the dump with the columns `columns` and the lines `train` of `[train]`.
fn pipeline(place: &TestDir, columns: &str, train: &str) {
    let text = format!(
        "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\nduplicates = 'keep'\ncolumns = {{ {columns} }}\n\
         [partition]\nmethod = 'random'\nparts = 4\n[model]\nkind = 'sage'\nhidden = 16\n\
         [train]\nepochs = 2\nbatch = 32\nhash_blocks = true\n{train}\n[infer]\npredictions = true\n"
    );
    place.write("p.toml", text);
}

const ALL: &str = "weight = 'weight', edge_type = 'kind', time = 'at', node_time = 'seen'";

/// `debug.graph_on_device` does on the CPU what a GPU does: batches read their features from a copy of all, or of some.
#[test]
fn features_on_the_device_give_equal_bits() {
    let place = TestDir::new();
    dump(&place, None);
    for train in [
        "fanouts = [5, 4]",
        "fanouts = [5, 4]\nschedule = { kind = 'mini-batch', seed_split = 'partition' }",
        "sampler = 'saint-node'",
    ] {
        pipeline(&place, ALL, train);
        let hashes = |settings: &[&str]| crate::common::hashes(&crate::common::succeed(&place, settings));
        let expected = hashes(&[]);
        let device = ["--set", "debug.graph_on_device=true"];
        assert_eq!(hashes(&device), expected, "{train}");
        // Files of other processes, or messages.
        for features in ["shared", "partitioned"] {
            let features = format!("partition.features={features}");
            for processes in ["1", "2", "4"] {
                for cache in ["2KiB", "1GiB", "0"] {
                    let cache = format!("train.schedule.device_cache={cache}");
                    let settings =
                        [&device[..], &["--set", &features, "--set", &cache, "--processes", processes]].concat();
                    let summary = crate::common::succeed(&place, &settings);
                    assert_eq!(crate::common::hashes(&summary), expected, "{train}: {settings:?}");
                    let found = |key: &str| summary["device_cache"][key].as_u64().unwrap_or(0) > 0;
                    // Without shared files, those of other processes' nodes; subgraphs have none.
                    let others = features.ends_with("partitioned") && processes != "1" && !train.contains("saint");
                    let misses = cache.ends_with("=2KiB") || cache.ends_with("=1GiB") && others;
                    assert_eq!(
                        [found("hits"), found("misses")],
                        [!cache.ends_with("=0"), misses],
                        "{train}: {settings:?}"
                    );
                }
            }
        }
    }
    let why = "`partition-parallel` keeps nothing";
    let settings = ["run", "p.toml", "--unset", "train.sampler", "--set", "train.schedule.kind=partition-parallel"];
    place.fail(&[&settings[..], &["--set", "debug.graph_on_device=true"]].concat(), 2, &[why]);
}

/// `debug.graph_on_device` does on the CPU what a GPU does: batches are sampled from a copy of all edges, just before they are computed.
#[test]
fn batches_sampled_on_the_device_give_equal_bits() {
    let place = TestDir::new();
    dump(&place, None);
    let device = ["--set", "debug.graph_on_device=true", "--set", "train.schedule.device_sampling=true"];
    for train in [
        "fanouts = [5, 4]",
        "fanouts = [-1, 3]\nschedule = { kind = 'mini-batch', seed_split = 'partition' }",
        "fanouts = [5, 4]\nsampler = { kind = 'uniform', replace = true }",
    ] {
        pipeline(&place, ALL, train);
        let run = |settings: &[&str]| crate::common::succeed(&place, settings);
        let expected = crate::common::hashes(&run(&[]));
        for processes in ["1", "2", "4"] {
            for cache in ["2KiB", "1GiB"] {
                let cache = format!("train.schedule.device_cache={cache}");
                let more = ["--set", "partition.topology=replicated", "--set", &cache, "--processes", processes];
                let summary = run(&[&device[..], &more].concat());
                assert_eq!(crate::common::hashes(&summary), expected, "{train}: {more:?}");
                let found = |key: &str| summary["device_cache"][key].as_u64().unwrap_or(0) > 0;
                assert_eq!([found("hits"), found("misses")], [true, cache.ends_with("=2KiB")], "{train}: {more:?}");
            }
        }
    }
    pipeline(&place, ALL, "fanouts = [5, 4]");
    let refuse = |settings: &[&str], code: i32, why: &str| {
        let sets = settings.iter().flat_map(|set| if set.starts_with("--") { vec![*set] } else { vec!["--set", *set] });
        place.fail(&["run", "p.toml"].into_iter().chain(device).chain(sets).collect::<Vec<_>>(), code, &[why]);
    };
    for (settings, why) in [
        (&["debug.graph_on_device=false"][..], "has no effect with `train.device = \"cpu\"`"),
        (&["train.sampler=labor"], "not by `labor`"),
        (&["train.fanouts=[{ cites = 2 }, 3]"], "does not draw by edge type"),
        (&["train.task=link-prediction"], "leave out the edges that they predict"),
        (&["model.kind=gcn"], "`gcn` may read degrees of nodes"),
        (&["debug.fused_sampling=false"], "has no effect with `device_sampling`"),
        (&["model.embedding.dim=4"], "remove one of them"),
        (&["train.schedule.device_cache=0"], "remove `device_cache = 0`"),
        (&["--processes=2"], "set partition.topology = \"replicated\""),
        (
            &["--processes=2", "partition.topology=replicated", "partition.features=partitioned"],
            "partition.features = \"shared\"",
        ),
    ] {
        refuse(settings, 2, why);
    }
}

#[test]
fn every_sampler_has_equal_bits_for_1_2_4_processes() {
    let place = TestDir::new();
    dump(&place, None);
    let mut all_blocks = Vec::new();
    for train in [
        "fanouts = [4, 3]",
        "sampler = 'weighted'\nfanouts = [4, 3]",
        "sampler.kind = 'weighted'\nsampler.replace = true\nfanouts = [4, 3]",
        "sampler = 'labor'\nfanouts = [4, 3]",
        "fanouts = [{ cites = 2, writes = -1 }, { 1 = 3 }]",
        "sampler = 'weighted'\nfanouts = [{ cites = 2, writes = 3 }, 3]",
        "sampler = 'ladies'\nfanouts = [60, 90]",
        "sampler = 'fastgcn'\nfanouts = [60, 90]",
        "sampler.kind = 'cluster'\nsampler.clusters = 20\nsampler.clusters_per_batch = 3 # no batch",
        "sampler.kind = 'cluster'\nsampler.clusters = 20\nsampler.clusters_per_batch = 3 # no batch # by rgcn",
        "sampler.kind = 'saint-node'\nsampler.coverage = 10",
        "sampler.kind = 'saint-edge'\nsampler.coverage = 10",
        "sampler.kind = 'saint-walk'\nsampler.walk_length = 3\nsampler.coverage = 10",
        "sampler = 'weighted'\nfanouts = [4, 3] # by rgcn",
        "fanouts = [4, 2] # by rgcn with bases",
        "sampler = 'temporal'\nfanouts = [4, 3]",
        "sampler.kind = 'temporal'\nsampler.take = 'last'\nfanouts = [4, { cites = 2 }]",
    ] {
        pipeline(&place, ALL, train);
        if train.contains("no batch") {
            let text = std::fs::read_to_string(place.path("p.toml")).unwrap();
            place.write("p.toml", text.replace("batch = 32\n", ""));
        }
        let mut expected = None;
        for (processes, set) in [
            ("1", "train.threads=1"),
            ("1", "train.threads=4"),
            ("1", "debug.fused_sampling=false"),
            ("2", "partition.topology=partitioned"),
            ("4", "train.threads=3"),
            ("2", "partition.topology=replicated"),
        ] {
            let model: &[&str] = match train.split_once("# by ") {
                Some((_, "rgcn")) => &["--set", "model.kind=rgcn"],
                Some(_) => &["--set", "model.kind=rgcn", "--set", "model.num_bases=2"],
                None => &["--set", "model.kind=sage"],
            };
            let args = ["run", "p.toml", "--quiet", "--processes", processes, "--run-dir", "run", "--set", set];
            let ended = place.run(&[&args[..], model].concat());
            assert_eq!(ended.code, 0, "{train}: {}", ended.stderr);
            let found = crate::common::hashes(&summary(&place, "run"));
            std::fs::remove_dir_all(place.path("run")).unwrap();
            assert_eq!(&found, expected.get_or_insert_with(|| found.clone()), "{train}: {processes} processes, {set}");
        }
        let blocks = expected.map(|hashes: Vec<String>| hashes[0].clone());
        assert!(!all_blocks.contains(&blocks), "{train} samples the blocks of another sampler");
        all_blocks.push(blocks);
    }
}

#[test]
fn table_with_the_temporal_sampler_notes_that_evaluation_reads_later_edges() {
    let place = TestDir::new();
    dump(&place, None);
    for (train, expected) in [("sampler = 'temporal'\nfanouts = [4, 3]", true), ("fanouts = [4, 3]", false)] {
        pipeline(&place, ALL, train);
        let table = place.succeed(&["run", "p.toml", "--run-dir", "run", "--set", "train.epochs=1"]);
        assert_eq!(table.contains("note: evaluation, predictions and embeddings read all edges"), expected, "{table}");
        let summary = summary(&place, "run");
        let notes = summary["notes"].as_array().into_iter().flatten().filter_map(|note| note.as_str());
        let notes = notes.filter(|note| note.contains("later edges")).count();
        assert_eq!(notes, usize::from(expected));
    }
}

#[test]
fn rounds_of_a_step_depend_on_the_topology() {
    let place = TestDir::new();
    dump(&place, None);
    pipeline(&place, "", "fanouts = [4, 3, 2]\nschedule.seed_split = 'partition'");
    let of = |sets: &[&str]| {
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        let args = ["run", "p.toml", "--quiet", "--run-dir", "run", "--set", "model.layers=3", "--processes"];
        let ended = place.run(&[&args[..], &sets[1..]].concat());
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        let summary = summary(&place, "run");
        ["rounds_per_step", "messages_per_step", "bytes_per_step"].map(|key| summary[key].as_f64().unwrap())
    };
    assert_eq!(of(&["1"]), [0.0; 3], "one process sends no requests");
    let partitioned = of(&["2", "partition.features=partitioned"]);
    let replicated = of(&["2", "partition.features=partitioned", "partition.topology=replicated"]);
    // With local seeds, sampling takes 2 (L − 1) rounds and fetching 2. A replicated topology needs only the fetch.
    assert_eq!((partitioned[0], replicated[0]), (6.0, 2.0));
    assert!(partitioned[1] > replicated[1] && partitioned[2] > replicated[2], "{partitioned:?} {replicated:?}");
    // Each of 4 batches sends a request and gets a reply in each round trip; gradients are sent in addition.
    assert!(partitioned[1] >= 4.0 * 6.0 && replicated[1] >= 4.0 * 2.0, "{partitioned:?} {replicated:?}");
    // Shared features need no fetch.
    assert_eq!((of(&["2"])[0], of(&["2", "partition.topology=replicated"])[0]), (4.0, 0.0));
}

#[test]
fn invalid_sampling_settings_are_refused() {
    let place = TestDir::new();
    dump(&place, Some((70, -0.5)));
    let refused = |columns: &str, train: &str, code: i32, words: &[&str]| {
        pipeline(&place, columns, train);
        place.fail(&["run", "p.toml", "--quiet", "--run-dir", "run"], code, words);
    };
    let weighted = "sampler = 'weighted'\nfanouts = [4, 3]";
    refused(ALL, weighted, 3, &["partition", "an edge to node 1", "has weight -0.5", "graph.columns.weight"]);
    refused("edge_type = 'kind'", weighted, 2, &["p.toml:16: train.sampler:", "graph.columns.weight"]);
    let by_type = "fanouts = [4, { wrote = 3 }]";
    refused(ALL, by_type, 2, &["p.toml:16: train.fanouts[1]:", "\"wrote\"", "\"cites\", \"writes\"", "did you mean"]);
    refused("weight = 'weight'", by_type, 2, &["p.toml:16: train.fanouts[1]:", "graph.columns.edge_type"]);
    refused(ALL, "fanouts = [{ cites = 1.5 }, 3]", 2, &["p.toml:16: train.fanouts[0].cites: expected an integer"]);
    refused(ALL, "fanouts = [{ cites = 0 }, 3]", 2, &["p.toml:16: train.fanouts:", "reads no neighbors"]);
    refused(ALL, "fanouts = [{ cites = 1 }]", 2, &["p.toml:16: train.fanouts:", "1 fanout for 2 layers"]);
    refused(ALL, "sampler.kind = 'labor'\nsampler.replace = true", 2, &["p.toml:17: train.sampler.replace:", "labor"]);

    refused(ALL, "sampler = 'ladies'\nfanouts = [{ cites = 2 }, 3]", 2, &["p.toml:17: train.fanouts:", "`ladies`"]);
    refused(ALL, "sampler = 'fastgcn'\nfanouts = [60, -1]", 2, &["p.toml:17: train.fanouts:", "use `uniform`"]);
    let cluster = "sampler.kind = 'cluster'\nsampler.clusters = 400";
    refused(ALL, cluster, 2, &["p.toml:14: train.batch:", "use `clusters_per_batch`"]);
    refused(ALL, "sampler = 'saint-walk'\nfanouts = [4, 3]", 2, &["p.toml:17: train.fanouts:", "no fanouts"]);
    let temporal = "sampler = 'temporal'\nfanouts = [4, 3]";
    refused("node_time = 'seen'", temporal, 2, &["p.toml:16: train.sampler:", "edges have none", "graph.columns.time"]);
    refused("time = 'at'", temporal, 2, &["p.toml:16: train.sampler:", "nodes have none", "graph.columns.node_time"]);
    refused(ALL, "fanouts = [4, 3]\nsampler.take = 'last'", 2, &["p.toml:17: train.sampler.take:", "only `temporal`"]);
    refused("time = 'at', node_time = 'split'", temporal, 3, &["nodes.parquet", "integers, dates or timestamps"]);

    pipeline(&place, ALL, cluster);
    let text = std::fs::read_to_string(place.path("p.toml")).unwrap();
    place.write("p.toml", text.replace("batch = 32\n", ""));
    place.fail(
        &["run", "p.toml", "--quiet", "--run-dir", "run"],
        2,
        &["p.toml:16: train.sampler.clusters: 400 clusters, but partition", "nodes; use at most"],
    );

    dump(&place, Some((70, f32::NAN)));
    refused(ALL, weighted, 3, &["NaN"]);
}
