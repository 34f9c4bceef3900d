//! Default settings learn, with every task and every model. `benches/defaults.py` compares them with tuned settings on real graphs.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float32Array};
use arrow::datatypes::Float32Type;

use crate::common::linked::dump;
use crate::common::{TestDir, data, planted, read, succeed};

/// A model that learns nothing: one epoch with a learning rate of nearly 0.
const UNTRAINED: [&str; 4] = ["--set", "train.optimizer.lr=1e-12", "--set", "train.epochs=1"];

/// Returns a metric of the test split with default settings, evaluated after every tenth epoch, and that of an untrained model.
fn learned(place: &TestDir, sets: &[&str], metric: &str) -> [f64; 2] {
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", *set]).collect();
    [&["--set", "train.evaluate_every=10"][..], &UNTRAINED].map(|more| {
        let summary = succeed(place, &[&sets[..], more].concat());
        summary["test"][metric].as_f64().unwrap()
    })
}

#[test]
fn models_of_untyped_edges_learn_classes_of_nodes() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\n[train]\n");
    for kind in ["sage", "gcn", "gat", "gatv2", "gin", "sgc", "appnp", "mlp"] {
        let model = format!("model.kind={kind}");
        let [default, untrained] = learned(&place, &[&model], "accuracy");
        assert!(default > untrained + 0.3, "{kind}: {default}, untrained {untrained}");
    }
}

#[test]
fn every_task_on_edges_is_learned() {
    let place = TestDir::new();
    dump(&place, true);
    let graph = "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\n";
    let columns = "columns = { edge_type = 'kind', edge_split = 'part', edge_label = 'alike' }\n";
    place.write("p.toml", format!("{graph}{columns}[model]\n[train]\ntask = 'link-prediction'\n"));
    for sets in [&[][..], &["model.kind=rgcn", "train.link.decoder=distmult"], &["model.kind=gcn"]] {
        let [default, untrained] = learned(&place, sets, "mrr");
        assert!(default > 1.1 * untrained, "{sets:?}: {default}, untrained {untrained}");
    }
    let [default, untrained] = learned(&place, &["train.task=edge-classification"], "accuracy");
    assert!(default > untrained + 0.1, "{default}, untrained {untrained}");
}

#[test]
fn numbers_of_nodes_are_learned() {
    let place = TestDir::new();
    dump(&place, true);
    let nodes = read(&place, "nodes.parquet");
    let features = nodes.column_by_name("features").unwrap().as_list::<i32>();
    let first = features.iter().map(|row| row.unwrap().as_primitive::<Float32Type>().value(0));
    let label: ArrayRef = Arc::new(Float32Array::from_iter_values(first));
    let columns = ["node_id", "features"].map(|name| (name, Arc::clone(nodes.column_by_name(name).unwrap())));
    place.parquet("nodes.parquet", columns.into_iter().chain([("label", label)]).collect());
    place.write(
        "p.toml",
        "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\nsplit_fractions = [0.6, 0.2, 0.2]\n[model]\n[train]\n\
         task = 'node-regression'\n",
    );
    let [default, untrained] = learned(&place, &[], "rmse");
    assert!(default < 0.8 * untrained, "{default}, untrained {untrained}");
}

/// The trial that found link prediction's former defaults below an untrained model.
#[test]
fn links_of_cora_are_learned() {
    let Some(data) = data() else { return };
    let place = TestDir::new();
    let path = |name: &str| data.join("cora").join(name).display().to_string();
    let (nodes, edges) = (path("nodes.parquet"), path("edges.parquet"));
    let graph =
        format!("[graph]\nnodes = '{nodes}'\nedges = '{edges}'\nundirected = true\n[partition]\nout = 'dataset'\n");
    place.write("p.toml", format!("{graph}[model]\n[train]\ntask = 'link-prediction'\nepochs = 3\n"));
    let [default, untrained] = learned(&place, &[], "mrr");
    assert!(default > 2.0 * untrained, "{default}, untrained {untrained}");
}

/// `train.epochs` by the number of steps, which all processes know.
#[test]
fn default_epochs_have_about_500_steps() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\n[train]\n");
    for (set, epochs) in [
        ("train.batch=10000", 200),
        ("train.batch=1", 10),
        ("train.schedule=full-graph", 200),
        ("train.schedule=auto", 200),
        ("train.epochs=3", 3),
    ] {
        let args = ["--set", set, "--set", "train.evaluate_every=100", "--processes", "2"];
        assert_eq!(succeed(&place, &args)["epochs"], epochs, "{set}");
    }
    let plan = place.succeed(&["run", "p.toml", "--dry-run", "--set", "train.batch=10000"]);
    assert!(plan.contains("200 epochs of 1 step"), "{plan}");
    let words = &["train.lr_schedule.warmup", "all 10 epochs are warm-up", "or set train.epochs"];
    place.fail(&["run", "p.toml", "--set", "train.lr_schedule={ kind = 'linear', warmup = 10 }"], 2, words);
}
