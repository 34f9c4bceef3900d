//! `recommendations.parquet`: lists equal those of a naive program, with equal bytes for any number of processes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{AsArray, Float32Array, Int64Array};

use crate::common::linked::{NODES, Row, dump};
use crate::common::{TestDir, column, embeddings, planted, read, weights};

const LENGTH: usize = 7;

/// Writes a pipeline over the dump: lines of `[graph]`, and the decoder.
fn pipeline(place: &TestDir, graph: &str, decoder: &str) {
    let text = format!(
        "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\n{graph}\n[partition]\nmethod = 'random'\nparts = 4\n\
         [model]\nkind = 'sage'\nhidden = 16\nlayers = 2\n[train]\ntask = 'link-prediction'\nepochs = 2\nbatch = 64\n\
         fanouts = [5, 4]\n[train.link]\ndecoder = '{decoder}'\n[infer]\npredictions = true\nembeddings = true\n\
         recommendations = {LENGTH}\n"
    );
    place.write("p.toml", text);
}

/// A row of the table: the recommended node, and its score.
type Listed = (i64, f32);

/// Reads the lists by source and edge type, which is empty without types. Checks ranks and order.
fn lists(place: &TestDir, out: &str) -> BTreeMap<(i64, String), Vec<Listed>> {
    let table = read(place, &format!("{out}/recommendations.parquet"));
    let ids = ["src", "dst", "rank"].map(|name| column::<Int64Array>(&table, name).values().to_vec());
    let [sources, nodes, ranks] = ids;
    let types = table.column_by_name("type").map(|types| types.as_string::<i32>().clone());
    let scores: &Float32Array = column(&table, "score");
    let (mut lists, mut rank) = (BTreeMap::<(i64, String), Vec<Listed>>::new(), 0);
    for row in 0..table.num_rows() {
        let kind = types.as_ref().map_or("", |types| types.value(row)).to_owned();
        let list = lists.entry((sources[row], kind)).or_default();
        // A list for each type of destinations begins with rank 1.
        assert!(ranks[row] == 1 || ranks[row] == rank + 1 && list.last().unwrap().1 >= scores.value(row), "row {row}");
        rank = ranks[row];
        list.push((nodes[row], scores.value(row)));
    }
    lists
}

/// Compares a list with the nodes that may be on it, by their scores. Sums in f32 depend on their order, so nearly equal scores may be in either order.
fn assert_best(list: &[Listed], candidates: &BTreeMap<i64, f64>, what: &str) {
    assert_eq!(list.len(), LENGTH.min(candidates.len()), "{what}");
    let nodes: BTreeSet<i64> = list.iter().map(|listed| listed.0).collect();
    assert_eq!(nodes.len(), list.len(), "{what}");
    for (node, score) in list {
        let expected = candidates.get(node).unwrap_or_else(|| panic!("{what}: {node} is known, or of another type"));
        assert!((f64::from(*score) - expected).abs() < 1e-3, "{what}: {node} {score} {expected}");
    }
    let worst = list.last().map_or(f64::INFINITY, |listed| f64::from(listed.1));
    let missed = candidates.iter().find(|(node, score)| !nodes.contains(node) && **score > worst + 1e-3);
    assert_eq!(missed, None, "{what}");
}

#[test]
fn lists_are_those_of_a_naive_program_for_1_2_4_processes() {
    let place = TestDir::new();
    let edges: Vec<Row> = dump(&place, true);
    let node_kind = |node: i64| if node >= 1100 { "b" } else { "a" };
    for (graph, decoder, typed, typed_nodes) in [
        ("columns = { edge_split = 'part' }", "dot", false, false),
        ("columns = { edge_split = 'part', edge_type = 'kind', node_type = 'kind' }", "distmult", true, true),
        // Nothing is recommended by the type of added self-loops.
        ("self_loops = 'add'\ncolumns = { edge_split = 'part', edge_type = 'kind' }", "distmult", true, false),
    ] {
        pipeline(&place, graph, decoder);
        let bytes = |out: &str| std::fs::read(place.path(&format!("{out}/recommendations.parquet"))).unwrap();
        place.succeed(&["run", "p.toml", "--run-dir", "run", "--quiet", "--processes", "2"]);
        for processes in ["1", "2", "4"] {
            place.succeed(&["infer", "run", "--out", processes, "--quiet", "--processes", processes]);
            assert!(bytes("run") == bytes(processes), "{decoder}: {processes}");
        }
        let rows = embeddings(&place, "run");
        let relations = if typed { weights(&place, "run")["decoder.relations"].clone() } else { vec![vec![1.0; 16]] };
        // The names of edge types are sorted.
        let kinds: &[&str] = if typed { &["knows", "likes"] } else { &[""] };
        let score = |kind: usize, a: i64, b: i64| -> f64 {
            let each = rows[&a].iter().zip(&rows[&b]).zip(&relations[kind]);
            each.map(|((&a, &b), relation)| f64::from(a) * f64::from(b) * relation).sum()
        };
        let lists = lists(&place, "run");
        let mut expected = 0;
        for source in 1000..1000 + NODES as i64 {
            for (kind, &word) in kinds.iter().enumerate() {
                let of_kind = |edge: &&Row| !typed || edge.2 == word;
                let known: BTreeSet<i64> =
                    edges.iter().filter(of_kind).filter(|edge| edge.0 == source).map(|edge| edge.1).collect();
                let candidates: BTreeMap<i64, f64> = (1000..1000 + NODES as i64)
                    .filter(|node| *node != source && !known.contains(node))
                    .map(|node| (node, score(kind, source, node)))
                    .collect();
                expected += 1;
                if !typed_nodes {
                    assert_best(&lists[&(source, word.to_owned())], &candidates, &format!("{source}, {word}"));
                    continue;
                }
                // Edges lead from both types of nodes to both: a list for each type of destinations.
                let both = &lists[&(source, word.to_owned())];
                for tails in ["a", "b"] {
                    let of_type = |node: &i64| node_kind(*node) == tails;
                    let candidates =
                        candidates.iter().filter(|(node, _)| of_type(node)).map(|(&n, &s)| (n, s)).collect();
                    let list: Vec<Listed> = both.iter().filter(|listed| of_type(&listed.0)).copied().collect();
                    assert_best(&list, &candidates, &format!("{source}, {word}, {tails}"));
                }
            }
        }
        assert_eq!(lists.len(), expected);
    }
}

#[test]
fn listed_sources_get_their_lists_only() {
    let place = TestDir::new();
    dump(&place, true);
    pipeline(&place, "columns = { edge_split = 'part' }", "dot");
    place.succeed(&["run", "p.toml", "--run-dir", "run", "--quiet"]);
    let all = lists(&place, "run");
    place.parquet("some.parquet", vec![("node_id", Arc::new(Int64Array::from(vec![1200, 1003])) as _)]);
    place.succeed(&["infer", "run", "--out", "some", "--quiet"]);
    let mut first = None;
    for processes in ["1", "2", "4"] {
        // Predictions of the inference before are removed, as these nodes have none.
        place.succeed(&[
            "infer",
            "run",
            "--nodes",
            "some.parquet",
            "--out",
            "some",
            "--quiet",
            "--processes",
            processes,
        ]);
        let some = lists(&place, "some");
        assert_eq!(some.keys().map(|(source, _)| *source).collect::<Vec<_>>(), [1003, 1200]);
        assert!(some.iter().all(|(source, list)| all[source] == *list));
        assert!(!place.path("some/predictions.parquet").exists() && place.path("some/embeddings.parquet").exists());
        let bytes = std::fs::read(place.path("some/recommendations.parquet")).unwrap();
        assert!(*first.get_or_insert_with(|| bytes.clone()) == bytes, "{processes}");
    }
    // In parts, and without nodes.
    let parts = ["--set", "infer.parts=true", "--processes", "2"];
    place.succeed(&[&["infer", "run", "--out", "parts", "--quiet"], &parts[..]].concat());
    let rows =
        (0..4).map(|part| read(&place, &format!("parts/recommendations.parquet/part-0000{part}.parquet")).num_rows());
    assert_eq!(rows.sum::<usize>(), LENGTH * NODES as usize);
    place.parquet("none.parquet", vec![("node_id", Arc::new(Int64Array::from(Vec::<i64>::new())) as _)]);
    place.succeed(&["infer", "run", "--nodes", "none.parquet", "--out", "none", "--quiet"]);
    assert!(lists(&place, "none").is_empty());
    // Without the key, results of an earlier inference are removed, and a list of nodes is refused.
    place.fail(
        &["infer", "run", "--nodes", "some.parquet", "--out", "x", "--set", "infer.recommendations=0"],
        2,
        &["infer.recommendations"],
    );
    let text = std::fs::read_to_string(place.path("run/pipeline.toml")).unwrap();
    place.write("run/pipeline.toml", text.replace("recommendations = 7\n", ""));
    place.succeed(&["infer", "run", "--out", "some", "--quiet"]);
    assert!(!place.path("some/recommendations.parquet").exists() && place.path("some/predictions.parquet").exists());
    place.fail(&["infer", "run", "--nodes", "some.parquet", "--out", "x"], 2, &["--set infer.recommendations=10"]);
    place.fail(&["infer", "run", "--split", "test", "--out", "x"], 2, &["--split chooses nodes"]);
}

#[test]
fn plan_counts_scores_and_other_tasks_refuse_the_key() {
    let place = TestDir::new();
    dump(&place, true);
    pipeline(&place, "columns = { edge_split = 'part' }", "dot");
    let plan = place.succeed(&["run", "p.toml", "--dry-run"]);
    assert!(plan.contains("at most 57,600 scores for recommendations") && plan.contains("recommendations)"), "{plan}");
    planted(&place, "nodes.toml", "[model]\nkind = 'sage'\n[train]\n");
    let set = ["run", "nodes.toml", "--set", "infer.recommendations=5"];
    place.fail(&set, 2, &["infer.recommendations", "only link prediction"]);
}
