//! The memory of a process on its GPU.
//!
//! | schedule | on the GPU |
//! |---|---|
//! | `mini-batch` | edges and input rows of `train.window` batches; the rows of one pass; without learned rows, features of nodes that the process can read, in half of the free memory or `device_cache`; if they are those of all nodes, the input rows of one batch only; with `device_sampling`, the edges of the whole graph |
//! | `partition-parallel` | edges and input rows of one batch; the rows of one pass |
//! | `full-graph`, the graph on the GPU | edges and features of all nodes; the rows of all layers |
//! | `full-graph` with several partitions | the rows of one node task |
//! | `tensor-parallel` | the rows of one node task, or column shards of all nodes and the edges of two pieces of chunks |
//!
//! Launched tensor workers of full-graph schedules on the same GPU count as rows of node tasks, with their parameters.
//!
//! Rows of pairs in tasks on edges are not counted.

use std::ops::Range;

use gnnflow_nn::DeviceTopology;
use gnnflow_nn::model::{BlockSize, PassMemory};

use super::device_needs::DeviceNeeds;
use super::full_graph::FullGraphPlan;
use super::inference::InferencePlan;
use super::training::edge_bytes;
use super::{Sizes, Training, embedding, model};
use crate::config::{Config, Features, Schedule, Train};
use crate::runtime::task_sizes::CALLS_PER_WORKER;

/// Bytes for each edge of a hop that is sampled on a GPU, besides the block: marks, places, and two copies of keys and numbers that are sorted.
const SAMPLED_EDGE_BYTES: u64 = 32;

/// What training needs of the GPUs of all processes.
pub(super) struct DevicePlan<'a> {
    train: &'a Train,
    graph: &'a Sizes,
    full_graph: Option<&'a FullGraphPlan>,
    /// Whether rows of nodes are learned. They are copied in the pass, as variables.
    learns_rows: bool,
    /// Whether the processes of a host read each other's features.
    shares_features: bool,
    /// Processes of this host.
    local: usize,
    processes: usize,
    /// What does not depend on the process. Edges and input rows are those of one batch.
    all: DeviceNeeds,
}

impl<'a> DevicePlan<'a> {
    /// Returns the plan of a pipeline; `None` without a GPU or a built-in model. `full_graph` is the plan of a full-graph schedule. `local` of
    /// `processes` processes are on this host.
    pub(super) fn of(
        config: &'a Config,
        graph: &'a Sizes,
        training: Option<&Training>,
        full_graph: Option<&'a FullGraphPlan>,
        inference: &InferencePlan,
        [processes, local]: [usize; 2],
    ) -> Option<Self> {
        let (train, spec) = (config.train.as_ref()?, config.model.as_ref()?);
        if !train.device.is_gpu() {
            return None;
        }
        let model = model::built(config, graph)?;
        let (input, input_bytes) = embedding::input(config, graph);
        let of_nodes = |nodes: u64| nodes * (input * input_bytes) as u64;
        let (layers, learns_rows) = (model.num_layers(), embedding::of(config).is_some());
        let mut all = DeviceNeeds {
            parameters: 2 * 4 * model.params().flat_len() as u64,
            inference: inference.chunk(),
            ..DeviceNeeds::default()
        };
        match (full_graph, training) {
            (Some(full_graph), _) if full_graph.on_device => {
                let (blocks, of_layer) = whole_graph(graph, layers);
                let PassMemory { edges, rows } = model.pass_memory(&blocks, &of_layer, false);
                (all.features, all.edges, all.rows) = (of_nodes(graph.nodes), edges, rows);
                all.least = all.features + edges.min(4 * graph.edges);
            }
            (None, Some(training)) => {
                let (blocks, of_layer) = of_batch(training, layers);
                let PassMemory { edges, rows } = model.pass_memory(&blocks, &of_layer, learns_rows);
                let columns = edge_bytes(spec, graph) * training.batch_edges.iter().sum::<u64>();
                (all.edges, all.rows) = (edges + columns, rows);
                all.batch_inputs = of_nodes(training.batch_nodes.last().copied().unwrap_or(0));
                if let Schedule::MiniBatch(options) = &train.schedule
                    && train.operators.is_empty()
                    && !learns_rows
                {
                    all.features = of_nodes(graph.nodes);
                    all.features_limit = options.device_cache.map(|bytes| bytes.0);
                    if options.device_sampling {
                        all.least = DeviceTopology::bytes(graph.nodes, graph.edges);
                        let edges = training.batch_edges.iter().copied().max().unwrap_or(0);
                        all.topology = all.least + SAMPLED_EDGE_BYTES * edges;
                    }
                }
            }
            _ => {}
        }
        let shares_features = config.partition.features == Features::Shared;
        Some(Self { train, graph, full_graph, learns_rows, shares_features, local, processes, all })
    }

    /// Returns the needs of a process with these partitions, with `window` steps in flight.
    pub(super) fn needs(&self, parts: &Range<usize>, window: usize) -> DeviceNeeds {
        let mut needs = self.all;
        match self.full_graph {
            Some(full_graph) if full_graph.on_device => {}
            Some(full_graph) => {
                let sums = full_graph.chunk_sums(self.graph, self.processes);
                let task = full_graph.task_bytes(self.graph, parts);
                // Launched tensor workers may use the same GPU.
                let tensor = self.train.tensor_workers.as_ref();
                let sharing = tensor.filter(|tensor| tensor.device(self.train.device) == self.train.device);
                let launched = sharing.and_then(|tensor| tensor.workers).unwrap_or(0);
                let of_workers = launched as u64 * (CALLS_PER_WORKER as u64 * task + needs.parameters);
                needs.rows = task.max(sums) + of_workers;
            }
            None => {
                // Otherwise each batch is copied when it is computed.
                let ahead = !self.train.schedule.is_partition_parallel();
                let copied = if ahead { self.train.fetched_batches(window, parts.len(), 1) as u64 } else { 1 };
                needs.edges *= copied;
                needs.batches = if self.learns_rows { 1 } else { copied };
                let local = if self.shares_features { self.local } else { 1 };
                needs.reads_all = parts.len() == self.graph.parts.len() || local == self.processes;
                if !needs.reads_all {
                    let nodes =
                        self.graph.parts[parts.clone()].iter().map(|part| part.nodes).sum::<u64>() * local as u64;
                    let share = u128::from(nodes.min(self.graph.nodes));
                    needs.features = (u128::from(needs.features) * share / u128::from(self.graph.nodes.max(1))) as u64;
                }
            }
        }
        needs
    }
}

/// Returns the blocks over the whole graph, and the block of each layer. The last layer computes training nodes only.
fn whole_graph(graph: &Sizes, layers: usize) -> (Vec<BlockSize>, Vec<usize>) {
    let (nodes, edges) = (graph.nodes, graph.edges);
    let train = graph.train.unwrap_or(nodes);
    let of_train = (u128::from(edges) * u128::from(train) / u128::from(nodes.max(1))) as u64;
    let all = BlockSize { sources: nodes, destinations: nodes, edges };
    let last = BlockSize { sources: nodes, destinations: train, edges: of_train };
    (vec![all, last], (0..layers).map(|layer| usize::from(layer + 1 == layers)).collect())
}

/// Returns the blocks of the largest batch, and the block of each layer.
fn of_batch(training: &Training, layers: usize) -> (Vec<BlockSize>, Vec<usize>) {
    let Training { batch_nodes: nodes, batch_edges: edges, .. } = training;
    let at = |list: &[u64], index: usize| list.get(index).or(list.last()).copied().unwrap_or(0);
    if training.subgraph {
        let all = at(nodes, nodes.len());
        let block = BlockSize { sources: all, destinations: all, edges: edges.iter().sum() };
        return (vec![block], vec![0; layers]);
    }
    let block = |layer: usize| {
        let hop = layers - 1 - layer;
        BlockSize { sources: at(nodes, hop + 1), destinations: at(nodes, hop), edges: at(edges, hop) }
    };
    ((0..layers).map(block).collect(), (0..layers).collect())
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
        needs_of("", train, parts, processes)
    }

    fn needs_of(partition: &str, train: &str, parts: usize, processes: usize) -> Vec<Option<DeviceNeeds>> {
        let text = format!("{PLANTED}[partition]\nparts = {parts}\n{partition}[train]\nthreads = 1\n{train}");
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
        let batch = 1_056_000 * 400;
        assert_eq!(
            [one, two, wide].map(|needs| (needs.batch_inputs, needs.batches)),
            [(batch, 3), (batch, 3), (batch, 6)]
        );
        assert_eq!([one.features, two.features], [2_000_000 * 400; 2], "processes of one host read each other's files");
        let apart = &needs_of("features = 'partitioned'\n", &format!("device = 'cuda'\n{batches}"), 4, 2)[0].unwrap();
        assert!(apart.features < 2_000_000 * 220 && apart.inputs(u64::MAX) == 4 * batch, "{apart:?}");
        // The first layer's edges in one direction, those of the others in both.
        assert!(one.edges > 3 * 4 * (880_000 + 2 * (160_000 + 15_000)) && wide.edges == 2 * one.edges);
        assert_eq!(wide.rows, one.rows);
        // A pass gathers its input rows from the features of all nodes, if these fit.
        let fits = (2 * one.features).max(one.features + one.edges + one.rows + 4 * batch);
        assert_eq!([fits, fits - 1, 0].map(|free| one.inputs(free)), [batch, 4 * batch, 3 * batch]);
        assert_eq!(one.total(fits) + 3 * batch, one.total(fits - 1) + 1, "one row less is there");
        let tight = one.edges + one.rows + 4 * batch + 400;
        assert_eq!([tight, tight - 400].map(|free| one.held_features(free)), [400, 0], "batches come first");
        let limited = on("schedule = { kind = 'mini-batch', device_cache = '1MiB' }\n", 1);
        assert_eq!([0, u64::MAX].map(|free| limited.held_features(free)), [1 << 20; 2]);
        let sampling = on("schedule = { kind = 'mini-batch', device_sampling = true }\n", 1);
        assert_eq!((one.topology, one.least), (0, 0));
        assert!(sampling.least >= 4 * 60_000_000 && sampling.topology > sampling.least);
        assert_eq!(sampling.total(0), one.total(0) + sampling.topology);
        let local = on("schedule = 'partition-parallel'\n", 2);
        assert_eq!((local.batches, local.features, 3 * local.edges), (1, 0, two.edges), "one batch at a time");
    }

    #[test]
    fn memory_of_the_host_does_not_add_steps_on_a_gpu() {
        let text = format!("{PLANTED}[train]\nthreads = 1\nfanouts = [5, 5, 5]\nmemory = '1TiB'\ndevice = 'cuda'");
        let config = Config::parse(&text, Path::new("/nowhere/p.toml"), &[], &Registered::default()).unwrap();
        assert_eq!(Plan::new(&config, 1, 1).unwrap().window, 3);
    }

    #[test]
    fn graph_without_used_edges_needs_its_features_only() {
        let full = "device = 'cuda'\nschedule = 'full-graph'\n";
        let text = format!("{PLANTED}kind = 'mlp'\n[partition]\nparts = 1\n[train]\nthreads = 1\n{full}");
        let config = Config::parse(&text, Path::new("/nowhere/p.toml"), &[], &Registered::default()).unwrap();
        let needs = Plan::new(&config, 1, 1).unwrap().processes[0].device.unwrap();
        assert_eq!((needs.edges, needs.least), (0, needs.features));
    }

    #[test]
    fn a_graph_on_the_gpu_takes_edges_features_and_rows_of_all_nodes() {
        let full = "device = 'cuda'\nschedule = 'full-graph'\n";
        let (one, several) = (needs(full, 1, 1)[0].unwrap(), needs(full, 4, 1)[0].unwrap());
        assert_eq!((one.features, one.inputs(0)), (2_000_000 * 400, 0));
        assert_eq!(one.total(0), one.total(u64::MAX), "they are there, or training does not begin");
        assert!(one.edges > 2 * 4 * 60_000_000 && one.rows > 2_000_000 * 4 * (256 + 256));
        assert_eq!((several.features, several.edges, several.inputs(0)), (0, 0, 0), "the CPU sums over neighbors");
        assert!(several.rows > 0 && several.rows < one.rows / 10);
        let columns =
            |processes| needs("device = 'cuda'\nschedule = 'tensor-parallel'\n", 4, processes)[0].unwrap().rows;
        // Half of 256 columns of all nodes, and more for a chunk.
        assert!((1..3).contains(&(columns(2) / (2_000_000 * 4 * 128))) && columns(2) < columns(1), "{}", columns(2));
    }
}
