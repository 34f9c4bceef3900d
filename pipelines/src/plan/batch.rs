//! Bounds on the size of a batch, by sampler.
//!
//! The graph has N nodes, E edges and mean in-degree d; the batch has s seeds. A hop with fanout k starts with a list of n
//! nodes. Afterwards the list has at most the minimum of:
//!
//! | sampler | nodes | edges of the hop |
//! |---|---|---|
//! | `uniform`, `weighted` | n + n k, N | n k, E (about n d where k is -1) |
//! | `labor` | the same in expectation | |
//! | `temporal` | n + n k, s N: a node may be in the tree of each seed | n k, s E |
//! | `ladies`, `fastgcn` | n + k, N | n k, E (k nodes for the whole hop; parallel edges count separately) |
//!
//! Subgraphs have about d edges per node, and at most the minimum of these nodes, with p the largest partition:
//!
//! | sampler | nodes |
//! |---|---|
//! | `cluster` | `clusters_per_batch` × the largest cluster, which has 1.05 times the mean, or the mean rounded up |
//! | `saint-node` | `batch`, nodes of p |
//! | `saint-edge` | 2 × `batch`, N |
//! | `saint-walk` | `batch` × (`walk_length` + 1), N |
//!
//! In `partition-parallel`, a walk takes one step outside its partition at most, and no batch needs messages.

use super::{PartSize, Sizes};
use crate::config::{Fanout, Model, NegativeSampler, Sampler, Train};

/// The largest batch of any partition.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Batch {
    /// Seeds, then nodes after each hop; of a subgraph, seeds and all nodes.
    pub(super) nodes: Vec<u64>,
    /// Edges by hop.
    pub(super) edges: Vec<u64>,
    /// Whether all layers read all nodes.
    pub(super) subgraph: bool,
    /// Steps in an epoch.
    pub(super) steps: u64,
    /// Seeds in a step, over all partitions.
    pub(super) seeds: u64,
    /// Rounds of messages for sampling: with partitioned and with replicated topology.
    pub(super) rounds: [u64; 2],
    /// Bytes of requests and replies if all nodes except the seeds are in other processes: with partitioned and with replicated
    /// topology.
    pub(super) bytes: [u64; 2],
    /// Bytes of the adjacency lists from which a hop is drawn.
    pub(super) rows: u64,
    /// Whether the batch may have nodes of other partitions.
    pub(super) leaves: bool,
}

impl Batch {
    pub(super) fn of(train: &Train, model: &Model, graph: &Sizes) -> Self {
        if train.draws_subgraphs() && model.uses_edges() {
            Self::subgraph(train, graph)
        } else {
            Self::hops(train, model, graph)
        }
    }

    fn hops(train: &Train, model: &Model, graph: &Sizes) -> Self {
        let batch = train.batch as u64;
        let (parts, all) = (graph.parts.len() as u64, graph.parts.iter().map(|part| part.train).sum::<u64>());
        let cut = |i: u64| (u128::from(i) * u128::from(all) / u128::from(parts)) as u64;
        let own: Vec<u64> = graph.parts.iter().map(|part| part.train).collect();
        let even = !train.learns_edges() && train.splits_evenly(&own);
        let seeds_of = |part: u64| if even { cut(part + 1) - cut(part) } else { own[part as usize] };
        let most = (0..parts).map(seeds_of).max().unwrap_or(0);
        // An edge has two endpoints, and the nodes of its negatives.
        let link = train.link();
        let ends = |edges: u64| match link.negative_sampler {
            _ if !train.learns_edges() => edges,
            _ if !train.predicts_links() => 2 * edges,
            NegativeSampler::InBatch => 2 * edges,
            NegativeSampler::Joint => 2 * edges + link.num_negative_edges as u64,
            NegativeSampler::Uniform | NegativeSampler::Degree => (2 + link.num_negative_edges as u64) * edges,
        };
        let seeds = if train.learns_edges() { ends(most.min(batch)).min(graph.nodes) } else { most.min(batch) };
        let mean_degree = mean_degree(graph);
        let (layer, temporal) = (train.sampler.draws_layers(), train.sampler.is_temporal());
        let copies = if temporal { seeds.max(1) } else { 1 };
        let (most_nodes, most_edges) = (graph.nodes.saturating_mul(copies), graph.edges.saturating_mul(copies));
        let fanouts = if model.uses_edges() { train.fanouts(model.layers) } else { Vec::new() };
        let mut this =
            Self { nodes: vec![seeds], steps: most.div_ceil(batch), leaves: !fanouts.is_empty(), ..Self::default() };
        this.seeds = (0..parts).map(|part| seeds_of(part).min(batch)).sum();
        for fanout in fanouts.iter().map(Fanout::most) {
            let nodes = this.nodes.last().copied().unwrap_or(0);
            let all = (nodes as f64 * mean_degree).ceil() as u64;
            let edges = match u64::try_from(fanout) {
                Ok(k) => nodes.saturating_mul(k),
                Err(_) => all,
            };
            let edges = edges.min(most_edges);
            let found = match u64::try_from(fanout) {
                Ok(k) if layer => k.min(edges),
                _ => edges,
            };
            if this.nodes.len() > 1 {
                // Ids and replies; the seeds of the first hop are local. LADIES draws from adjacency lists.
                let reply = match train.sampler {
                    Sampler::Ladies if fanout >= 0 => 4 * all,
                    Sampler::FastGcn => 8 * edges,
                    _ => 4 * edges,
                };
                this.bytes[0] += nodes * if temporal { 24 } else { 8 } + reply;
            }
            if train.sampler == Sampler::Ladies && fanout >= 0 {
                this.rows = this.rows.max(4 * all);
            }
            this.edges.push(edges);
            this.nodes.push(nodes.saturating_add(found).min(most_nodes));
        }
        this.rounds = [2 * (fanouts.len() as u64).saturating_sub(1), 0];
        this
    }

    fn subgraph(train: &Train, graph: &Sizes) -> Self {
        let (draws, all) = (train.batch as u64, graph.nodes);
        let clusters = match &train.sampler {
            Sampler::Cluster(options) => {
                let clusters = options.clusters(graph.parts.iter().map(|part| part.nodes));
                Some((clusters, options.clusters_per_batch(clusters) as u64))
            }
            _ => None,
        };
        let walk = match &train.sampler {
            Sampler::SaintWalk(walk) => Some(walk),
            _ => None,
        };
        let nodes = |part: &PartSize| match (&train.sampler, clusters, walk) {
            (_, Some((clusters, per_batch)), _) => {
                let mean = part.nodes as f64 / clusters.max(1) as f64;
                (per_batch * (mean.ceil() as u64).max((1.05 * mean) as u64)).min(part.nodes)
            }
            (_, _, Some(walk)) => draws.saturating_mul(1 + u64::from(walk.length())).min(all),
            (Sampler::SaintEdge(_), ..) => (2 * draws).min(all),
            _ => draws.min(part.nodes),
        };
        let largest = graph.parts.iter().map(nodes).max().unwrap_or(0);
        let seeds = |part: &PartSize| part.train.min(nodes(part));
        let edges = ((largest as f64 * mean_degree(graph)).ceil() as u64).min(graph.edges);
        let most = graph.parts.iter().map(|part| part.train).max().unwrap_or(0);
        let leaves = matches!(train.sampler, Sampler::SaintEdge(_) | Sampler::SaintWalk(_));
        // The first step of a walk is local. Afterwards the list requests its edges and their weights, with any topology.
        let steps = walk.map_or(0, |walk| u64::from(walk.length()) - 1);
        // The reply to a biased walk has the adjacency list of its position, not one node.
        let biased = walk.is_some_and(|walk| walk.bias().is_some());
        let row = if biased { 12 + (4.0 * mean_degree(graph)).ceil() as u64 } else { 12 };
        let induced = if leaves { 4 * (largest + 1) + 8 * edges } else { 0 };
        Self {
            nodes: vec![graph.parts.iter().map(seeds).max().unwrap_or(0), largest],
            edges: vec![edges],
            subgraph: true,
            steps: match clusters {
                Some((clusters, per_batch)) => (clusters as u64).div_ceil(per_batch.max(1)),
                None => most.div_ceil(draws),
            },
            seeds: graph.parts.iter().map(seeds).sum(),
            rounds: if leaves { [2 * steps + 2, 2] } else { [0, 0] },
            bytes: [steps * draws * row + induced, induced],
            rows: 0,
            leaves,
        }
    }
}

fn mean_degree(graph: &Sizes) -> f64 {
    graph.edges as f64 / graph.nodes.max(1) as f64
}

/// Returns the bytes of a sampler's state in a process with the partitions `own`.
///
/// `fastgcn`: 8 per node of the graph (16 while they are summed). `cluster`: 4 per own node; clustering before training needs
/// up to `partition.method_memory`. GraphSAINT: 4 per own training node, and [`count_bytes`] except in `partition-parallel`.
/// `saint-edge` also 8 per source of a partition's edges.
pub(super) fn sampler_bytes(train: &Train, graph: &Sizes, own: &[PartSize]) -> u64 {
    let sum = |of: &dyn Fn(&PartSize) -> u64| own.iter().map(of).sum::<u64>();
    let counts = if train.schedule.is_partition_parallel() { 0 } else { count_bytes(train, own) };
    match train.sampler {
        Sampler::FastGcn => 16 * graph.nodes,
        Sampler::Cluster(_) => 4 * sum(&|part| part.nodes),
        Sampler::SaintNode(_) | Sampler::SaintWalk(_) => 4 * sum(&|part| part.train) + counts,
        Sampler::SaintEdge(_) => sum(&|part| 4 * part.train + 8 * part.edges.min(graph.nodes)) + counts,
        _ => 0,
    }
}

/// Returns the bytes of GraphSAINT's counts in a process with the partitions `own`: 4 per own node and edge. They are scratch
/// files in `partition-parallel`.
pub(super) fn count_bytes(train: &Train, own: &[PartSize]) -> u64 {
    match train.sampler {
        Sampler::SaintNode(_) | Sampler::SaintWalk(_) | Sampler::SaintEdge(_) => {
            4 * own.iter().map(|part| part.nodes + part.edges).sum::<u64>()
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::sampler::{ClusterSampler, SaintWalk};

    fn sizes() -> Sizes {
        let part = |nodes, edges, train| PartSize { nodes, edges, train, ..PartSize::default() };
        Sizes::of_parts(vec![part(4_000, 40_000, 3_000), part(6_000, 60_000, 2_000)])
    }

    fn sampler(word: &str) -> Sampler {
        serde_json::from_value(serde_json::json!({ "kind": word })).unwrap()
    }

    fn batch(word: &str, change: impl FnOnce(&mut Train)) -> Batch {
        let mut train = Train { sampler: sampler(word), batch: 100, ..Train::default() };
        change(&mut train);
        let model = Model { kind: "sage".into(), layers: 2, ..Model::default() };
        Batch::of(&train, &model, &sizes())
    }

    fn fanouts(list: [i64; 2]) -> impl FnOnce(&mut Train) {
        move |train| train.fanouts = Some(list.map(Fanout::Each).to_vec())
    }

    #[test]
    fn batch_sizes_equal_the_bounds_of_the_table() {
        let uniform = batch("uniform", fanouts([10, 5]));
        assert_eq!((uniform.nodes, uniform.edges, uniform.steps), (vec![100, 1100, 6600], vec![1000, 5500], 25));
        assert_eq!((uniform.rounds, uniform.bytes[1], uniform.seeds), ([2, 0], 0, 200));
        // The trees of 100 seeds may have each node a hundred times.
        let temporal = batch("temporal", fanouts([50, 50]));
        assert_eq!((temporal.nodes, temporal.edges), (vec![100, 5100, 260_100], vec![5000, 255_000]));
        assert_eq!(batch("uniform", fanouts([50, 50])).nodes, [100, 5100, 10_000]);
        let ladies = batch("ladies", fanouts([300, 400]));
        assert_eq!((ladies.nodes, ladies.edges), (vec![100, 400, 800], vec![30_000, 100_000]));
        assert_eq!((ladies.rows, ladies.bytes), (4 * 4000, [400 * 8 + 4 * 4000, 0]));
        let fastgcn = batch("fastgcn", fanouts([300, 400]));
        assert_eq!((fastgcn.nodes, fastgcn.rows), (vec![100, 400, 800], 0));
        let cluster = batch("cluster", |train| {
            train.sampler = Sampler::Cluster(ClusterSampler { clusters: Some(100), clusters_per_batch: Some(7) });
        });
        assert_eq!((cluster.nodes, cluster.edges, cluster.steps), (vec![441, 441], vec![4410], 15));
        assert!(cluster.subgraph && !cluster.leaves && cluster.rounds == [0, 0]);
        assert_eq!(batch("saint-node", |_| {}).nodes, [100, 100]);
        assert_eq!(batch("saint-edge", |_| {}).nodes, [200, 200]);
        let walk = batch("saint-walk", |train| {
            train.sampler = Sampler::SaintWalk(SaintWalk { walk_length: 3, ..SaintWalk::default() });
        });
        assert_eq!((walk.nodes, walk.rounds, walk.steps), (vec![400, 400], [6, 2], 30));
    }

    #[test]
    fn sampler_bytes_equal_the_documented_numbers() {
        let of = |word: &str, own: &[PartSize]| {
            sampler_bytes(&Train { sampler: sampler(word), ..Train::default() }, &sizes(), own)
        };
        let parts = sizes().parts;
        assert_eq!(of("uniform", &parts), 0);
        assert_eq!(of("fastgcn", &parts[..1]), 160_000);
        assert_eq!(of("cluster", &parts[..1]), 16_000);
        assert_eq!(of("saint-walk", &parts[..1]), 4 * 47_000);
        assert_eq!(of("saint-edge", &parts[..1]), 4 * 47_000 + 80_000);
        let schedule = serde_json::from_value(serde_json::json!({ "kind": "partition-parallel" })).unwrap();
        let train = Train { sampler: sampler("saint-walk"), schedule, ..Train::default() };
        assert_eq!(sampler_bytes(&train, &sizes(), &parts[..1]), 4 * 3_000);
        assert_eq!(count_bytes(&train, &parts[..1]), 4 * 44_000);
    }
}
