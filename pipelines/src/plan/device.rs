//! The memory of a process on its GPU.
//!
//! | schedule | on the GPU |
//! |---|---|
//! | `mini-batch`, `partition-parallel` | the input rows and edges of `train.window` batches; the rows of one pass; in `mini-batch` with one process and no learned rows, the features of all nodes, if they take at most half of the free memory |
//! | `full-graph`, the graph on the GPU | edges and features of all nodes; the rows of all layers |
//! | `full-graph` with several partitions, `tensor-parallel` | the rows of one node task |

use std::ops::Range;

use gnnflow_nn::model::{BlockSize, PassMemory};

use super::device_needs::DeviceNeeds;
use super::full_graph::FullGraphPlan;
use super::inference::InferencePlan;
use super::{Sizes, Training, embedding, model};
use crate::config::{Config, Schedule};

/// Returns the needs of a process with `parts`; `None` without a GPU or a built-in model. `full_graph` is the plan of a full-graph schedule.
pub(super) fn needs(
    config: &Config,
    graph: &Sizes,
    parts: &Range<usize>,
    window: usize,
    training: Option<&Training>,
    full_graph: Option<&FullGraphPlan>,
    inference: &InferencePlan,
) -> Option<DeviceNeeds> {
    let train = config.train.as_ref().filter(|train| train.device.is_gpu())?;
    let model = model::built(config, graph)?;
    let (input, input_bytes) = embedding::input(config, graph);
    let of_nodes = |nodes: u64| nodes * (input * input_bytes) as u64;
    let parameters = 2 * 4 * model.params().flat_len() as u64;
    let mut needs = DeviceNeeds { parameters, inference: inference.chunk(), ..DeviceNeeds::default() };
    match (full_graph, training) {
        (Some(full_graph), _) if full_graph.on_device => {
            let blocks = whole_graph(graph, model.num_layers());
            let PassMemory { edges, rows } = model.pass_memory(&blocks, false, true);
            (needs.features, needs.edges, needs.rows) = (of_nodes(graph.nodes), edges, rows);
            needs.least = needs.features + 4 * graph.edges;
        }
        (Some(full_graph), _) => needs.rows = full_graph.task_bytes(graph, parts),
        (None, Some(training)) => {
            let learned = embedding::of(config).is_some();
            let blocks = of_batch(training, model.num_layers());
            let PassMemory { edges, rows } = model.pass_memory(&blocks, learned, training.subgraph);
            let (window, nodes) = (window as u64, training.batch_nodes.last().copied().unwrap_or(0));
            (needs.inputs, needs.edges, needs.rows) = (window * of_nodes(nodes), window * edges, rows);
            let holds = matches!(train.schedule, Schedule::MiniBatch(_)) && train.operators.is_empty() && !learned;
            if holds && parts.len() == graph.parts.len() {
                needs.features = of_nodes(graph.nodes);
            }
        }
        (None, None) => {}
    }
    Some(needs)
}

/// Returns the blocks of the layers over the whole graph. The last one computes training nodes only.
fn whole_graph(graph: &Sizes, layers: usize) -> Vec<BlockSize> {
    let (nodes, edges) = (graph.nodes, graph.edges);
    let train = graph.train.unwrap_or(nodes);
    let of_train = (u128::from(edges) * u128::from(train) / u128::from(nodes.max(1))) as u64;
    let mut blocks = vec![BlockSize { sources: nodes, destinations: nodes, edges }; layers];
    if let Some(last) = blocks.last_mut() {
        *last = BlockSize { sources: nodes, destinations: train, edges: of_train };
    }
    blocks
}

/// Returns the blocks of the layers over the largest batch.
fn of_batch(training: &Training, layers: usize) -> Vec<BlockSize> {
    let Training { batch_nodes: nodes, batch_edges: edges, .. } = training;
    let at = |list: &[u64], index: usize| list.get(index).or(list.last()).copied().unwrap_or(0);
    let block = |layer: usize| {
        let hop = layers - 1 - layer;
        match training.subgraph {
            true => {
                let all = at(nodes, nodes.len());
                BlockSize { sources: all, destinations: all, edges: edges.iter().sum() }
            }
            false => BlockSize { sources: at(nodes, hop + 1), destinations: at(nodes, hop), edges: at(edges, hop) },
        }
    };
    (0..layers).map(block).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Registered;
    use crate::plan::Plan;

    const PLANTED: &str = "[graph]\ngenerate = { nodes = 2000000, edges = 30000000, features = 100, classes = 10 }\n\
        [model]\nlayers = 3\nhidden = 256\n";

    fn needs(train: &str, parts: usize, processes: usize) -> Vec<Option<DeviceNeeds>> {
        let text = format!("{PLANTED}[partition]\nparts = {parts}\n[train]\nthreads = 1\n{train}");
        let config = Config::parse(&text, Path::new("/nowhere/p.toml"), &[], &Registered::default()).unwrap();
        Plan::new(&config, processes, processes).unwrap().processes.iter().map(|process| process.device).collect()
    }

    #[test]
    fn batches_take_the_memory_of_all_steps_in_flight() {
        let batches = "fanouts = [15, 10, 5]\n";
        assert_eq!(needs(batches, 4, 2), [None, None]);
        let on = |more: &str, processes| needs(&format!("device = 'cuda'\n{batches}{more}"), 4, processes)[0].unwrap();
        let (one, two, wide) = (on("", 1), on("", 2), on("window = 6\n", 1));
        // 1,000 seeds and 1,056,000 nodes of 100 numbers; three steps.
        assert_eq!([one.inputs, two.inputs, wide.inputs], [3, 3, 6].map(|window| window * 1_056_000 * 400));
        assert_eq!([one.features, two.features], [2_000_000 * 400, 0], "one process has all of them");
        // The first layer's edges in one direction, those of the others in both.
        assert!(one.edges > 3 * 4 * (880_000 + 2 * (160_000 + 15_000)) && wide.edges == 2 * one.edges);
        assert_eq!(wide.rows, one.rows);
        let kept = one.total(u64::MAX) - one.features;
        assert_eq!([2 * one.features, 2 * one.features - 1].map(|free| one.total(free)), [kept + one.features, kept]);
    }

    #[test]
    fn a_graph_on_the_gpu_takes_edges_features_and_rows_of_all_nodes() {
        let full = "device = 'cuda'\nschedule = 'full-graph'\n";
        let (one, several) = (needs(full, 1, 1)[0].unwrap(), needs(full, 4, 1)[0].unwrap());
        assert_eq!((one.features, one.inputs), (2_000_000 * 400, 0));
        assert!(one.edges > 2 * 4 * 60_000_000 && one.rows > 2_000_000 * 4 * (256 + 256));
        assert_eq!((several.features, several.edges, several.inputs), (0, 0, 0), "the CPU sums over neighbors");
        assert!(several.rows > 0 && several.rows < one.rows / 10);
    }
}
