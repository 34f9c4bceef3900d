//! Subgraph samplers: the nodes of a batch, and the weights of its loss and its messages.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use gnnflow_data::partitioner::Goal;
use gnnflow_dataflow::batch::mini_batch::{BatchKey, MiniBatch};
use gnnflow_dataflow::graph::local_graph::LocalGraph;
use gnnflow_dataflow::sample::clusters::ClusterBatches;
use gnnflow_dataflow::sample::induce::{Induce, InduceBy, Norm};
use gnnflow_dataflow::sample::random_walk::{Bias, RandomWalk, Walk, WalkBy, Walks};
use gnnflow_dataflow::sample::saint::{Saint, SaintBatches, subgraph};
use gnnflow_dataflow::sample::sample_hop::CompactorPool;
use gnnflow_dataflow::sample::subgraph_counts::SubgraphCounts;
use gnnflow_dataflow::storage::Place;
use gnnflow_kernels::sample::Columns;
use gnnflow_partition::clusters_inside;
use timely::dataflow::operators::core::Inspect;
use timely::dataflow::operators::vec::Map;
use timely::dataflow::operators::{Input, Probe, probe};
use timely::dataflow::{InputHandle, StreamVec};

use crate::collectives::{Driver, FirstError};
use crate::config::{Sampler, Train};
use crate::context::WorkerContext;
use crate::error::Error;
use crate::runtime::job::Job;

/// The epoch number of subgraphs drawn before training.
const BEFORE: u32 = u32::MAX;
/// Maximum number of steps in flight before training.
const WINDOW: u64 = 4;

/// The subgraph sampler of a worker.
#[derive(Clone)]
pub(crate) struct Subgraphs {
    source: Source,
    /// The edges of subgraphs. In partition-parallel training, those of the batch's own partition.
    graph: Arc<LocalGraph>,
    /// Global ids of the train nodes of each partition hosted here, ascending.
    train: Arc<Vec<Vec<u32>>>,
    seed: u64,
}

#[derive(Clone)]
enum Source {
    Clusters {
        batches: Rc<ClusterBatches>,
        /// Number of steps in which a partition uses each cluster once.
        steps: u32,
    },
    Saint {
        batches: Rc<SaintBatches>,
        /// Number of draws in a step. An epoch has as many draws as a partition has training nodes.
        draws: u64,
        /// Length and bias of the walks from the drawn roots.
        walk: Option<(u32, Option<Bias>)>,
        counts: Rc<RefCell<SubgraphCounts>>,
        /// By partition and train node: the number of the partition's own subgraphs that contain it.
        own: Rc<RefCell<Vec<Vec<u32>>>>,
        /// Number of subgraphs that each partition draws before training.
        before: u32,
    },
}

impl Subgraphs {
    /// Opens the configured sampler, if it draws subgraphs. Cuts partitions into clusters.
    ///
    /// # Errors
    /// When there are more clusters than a partition has nodes, or the partitioner fails.
    pub(crate) fn open(
        job: &Job,
        context: &WorkerContext,
        train: &Train,
        seeds: &[Vec<u32>],
    ) -> Result<Option<Self>, Error> {
        let parts = &job.dataset.manifest().partitions;
        let graph = match train.schedule.is_partition_parallel() {
            true => &Arc::new(LocalGraph::clone(&context.graph).into_partition_views()),
            false => &context.graph,
        };
        let source = match &train.sampler {
            Sampler::Cluster(options) => {
                let count = options.clusters(parts.iter().map(|part| part.nodes));
                let small = parts.iter().position(|part| (1..count as u64).contains(&part.nodes));
                if let Some(part) = small {
                    let message = format!(
                        "{count} clusters, but partition {part} has {nodes} nodes; use at most {nodes} clusters, or fewer \
                         partitions",
                        nodes = parts[part].nodes
                    );
                    return Err(job.config.problem("train.sampler.clusters", message));
                }
                // It takes long, and the worker's loop stands still.
                let _busy = job.runtime.busy("cutting partitions into clusters");
                let mut batches = ClusterBatches::new(parts.len(), options.clusters_per_batch(count), train.seed);
                for part in graph.hosted().filter(|&part| parts[part].nodes > 0) {
                    let (memory, seed) = (job.config.partition.method_memory(), job.config.partition.seed);
                    let goal = Goal { memory, limit: memory, seed, ..Goal::new(count as u32) };
                    let edges = graph.in_edges(part);
                    let cluster_of = clusters_inside((edges.indptr(), edges.indices()), graph.range(part), &goal)?;
                    batches.add(part, graph.range(part).start, &cluster_of, count);
                }
                Source::Clusters { steps: batches.steps(count), batches: Rc::new(batches) }
            }
            Sampler::SaintNode(_) | Sampler::SaintEdge(_) | Sampler::SaintWalk(_) => {
                let (saint, walk, coverage) = match &train.sampler {
                    Sampler::SaintNode(options) => (Saint::Nodes, None, options.coverage),
                    Sampler::SaintEdge(options) => (Saint::Edges, None, options.coverage),
                    Sampler::SaintWalk(options) => {
                        let bias = options.bias().map(|[p, q]| Bias { p, q });
                        (Saint::Roots, Some((options.length(), bias)), options.coverage)
                    }
                    _ => return Ok(None),
                };
                let batches = Rc::new(SaintBatches::new(Arc::clone(graph), saint, train.batch, train.seed));
                // A process may have more partitions than fit into memory, and it trains one after another.
                let place = match graph.is_partition_local() {
                    true => Place::Folder(context.scratch.clone()),
                    false => Place::Memory,
                };
                let counts = SubgraphCounts::new(Arc::clone(graph), &place);
                let counts = counts.map_err(Error::io("write to", &context.scratch))?;
                let counts = Rc::new(RefCell::new(counts));
                let own = Rc::new(RefCell::new(seeds.iter().map(|nodes| vec![0; nodes.len()]).collect()));
                let most = parts.iter().map(|part| part.nodes).max().unwrap_or(0);
                let before = (most * coverage as u64).div_ceil(train.batch as u64);
                let before = u32::try_from(before.max(1)).unwrap_or(u32::MAX);
                Source::Saint { batches, draws: train.batch as u64, walk, counts, own, before }
            }
            _ => return Ok(None),
        };
        let (graph, train, seed) = (Arc::clone(graph), Arc::new(seeds.to_vec()), train.seed);
        Ok(Some(Self { source, graph, train, seed }))
    }

    /// Returns the number of steps of an epoch of a partition with `train_nodes` training nodes.
    pub(crate) fn steps(&self, train_nodes: u64) -> u64 {
        match &self.source {
            Source::Clusters { .. } if train_nodes == 0 => 0,
            Source::Clusters { steps, .. } => u64::from(*steps),
            Source::Saint { draws, .. } => train_nodes.div_ceil(*draws),
        }
    }

    /// Draws the batches of `keys`, with the weights of their losses.
    pub(crate) fn batches<'scope>(
        &self,
        keys: StreamVec<'scope, u64, BatchKey>,
        context: &WorkerContext,
    ) -> StreamVec<'scope, u64, MiniBatch> {
        let Source::Saint { counts, own, before, .. } = &self.source else {
            return self.drawn(keys, context, Norm::None);
        };
        let (own, train, before) = (Rc::clone(own), Arc::clone(&self.train), f64::from(*before));
        self.drawn(keys, context, Norm::Weigh(Rc::clone(counts))).map(move |mut batch| {
            // Weights 1 / p, with p estimated from the partition's own subgraphs: the sum over the batch estimates the sum over all train
            // nodes.
            let part = batch.key.partition as usize;
            let (train, own) = (&train[part], &own.borrow()[part]);
            let seeds = &batch.nodes[..batch.num_seeds];
            let place = |node| train.binary_search(node).expect("seeds are train nodes of the batch's partition");
            batch.seed_weights =
                seeds.iter().map(|node| (before / f64::from(own[place(node)].max(1))) as f32).collect();
            batch.represented_examples = Some(train.len() as u64);
            batch
        })
    }

    /// Draws batches without weights of the loss.
    fn drawn<'scope>(
        &self,
        keys: StreamVec<'scope, u64, BatchKey>,
        context: &WorkerContext,
        norm: Norm,
    ) -> StreamVec<'scope, u64, MiniBatch> {
        let train = Arc::clone(&self.train);
        let meter = if matches!(norm, Norm::Count(_)) { &context.other_meter } else { &context.meter };
        let batches = match &self.source {
            Source::Clusters { batches, .. } => {
                let batches = Rc::clone(batches);
                keys.map(move |key| batches.batch(key, &train[key.partition as usize]))
            }
            Source::Saint { batches, walk: None, .. } => {
                let batches = Rc::clone(batches);
                keys.map(move |key| subgraph(key, batches.draw(key), &train[key.partition as usize]))
            }
            Source::Saint { batches, walk: Some((length, bias)), .. } => {
                let batches = Rc::clone(batches);
                let by = WalkBy {
                    graph: Arc::clone(&self.graph),
                    seed: self.seed,
                    length: *length,
                    walk: Walk { bias: *bias, ..Walk::default() },
                    meter: Rc::clone(meter),
                };
                keys.map(move |key| Walks::new(key, batches.draw(key))).random_walk(by).map(move |walks| {
                    let mut batch = subgraph(walks.key, walks.visited, &train[walks.key.partition as usize]);
                    batch.rounds = walks.rounds;
                    batch
                })
            }
        };
        batches.induce(InduceBy {
            graph: Arc::clone(&self.graph),
            columns: match norm {
                Norm::Weigh(_) => Columns { weights: true, ..context.columns },
                _ => context.columns,
            },
            norm,
            pool: CompactorPool::default(),
            meter: Rc::clone(meter),
        })
    }

    /// Draws subgraphs before training and counts their nodes and edges. GraphSAINT weighs losses and messages by these frequencies.
    /// In partition-parallel training, partitions take turns, so that only one needs memory.
    pub(crate) fn profile(&self, driver: &mut Driver<'_>, context: &WorkerContext) -> Result<(), Error> {
        let Source::Saint { counts, own, before, .. } = &self.source else { return Ok(()) };
        let (mut input, probe) = (InputHandle::new(), probe::Handle::new());
        let (own, train) = (Rc::clone(own), Arc::clone(&self.train));
        driver.worker.dataflow::<u64, _, _>(|scope| {
            self.drawn(scope.input_from(&mut input), context, Norm::Count(Rc::clone(counts)))
                .inspect(move |batch| {
                    let part = batch.key.partition as usize;
                    for node in &batch.nodes[..batch.num_seeds] {
                        let place = train[part].binary_search(node).expect("seeds are train nodes of the partition");
                        own.borrow_mut()[part][place] += 1;
                    }
                })
                .probe_with(&probe);
        });
        let hosted = context.placement.parts_of(context.worker);
        let groups: Vec<Range<usize>> = match self.graph.is_partition_local() {
            true => hosted.map(|part| part..part + 1).collect(),
            false => vec![hosted],
        };
        let steps = groups.into_iter().flat_map(|parts| (0..*before).map(move |step| (step, parts.clone())));
        for (time, (step, parts)) in (0..).zip(steps) {
            input.advance_to(time);
            parts.for_each(|part| input.send(BatchKey { epoch: BEFORE, step, partition: part as u32 }));
            input.flush();
            driver.run_until(&probe, time.saturating_sub(WINDOW), &FirstError::default())?;
        }
        input.close();
        driver.run_until(&probe, u64::MAX, &FirstError::default())
    }
}
