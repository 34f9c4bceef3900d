//! Opens the training engine of the pipeline's schedule, with its samplers and batches.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use gnnflow_data::error::FEWER_THREADS;
use gnnflow_data::format::count;
use gnnflow_dataflow::flow::compute_thread::ComputeThread;
use gnnflow_dataflow::sample::sample_hop::Strategy;
use gnnflow_dataflow::sample::seeds::BatchSource;
use gnnflow_dataflow::storage::Place;
use gnnflow_kernels::sample::Fanout;
use gnnflow_nn::model::ModelSpec;
use gnnflow_nn::parameter_versions::ParameterVersions;

use super::tensor_workers;
use crate::collectives::{Collectives, Driver};
use crate::compute::{ComputeState, Held, Passes};
use crate::config::schedule::{self, FullGraphOptions};
use crate::config::{Device, Model, Sampler, Schedule, Train};
use crate::context::WorkerContext;
use crate::engine::Engine;
use crate::engine::device_graph::{DeviceGraphTraining, on_device};
use crate::engine::full_graph;
use crate::engine::full_graph::topology::Topology;
use crate::engine::mini_batch::{Batches, Features, MiniBatchTraining, READY};
use crate::engine::partition_local::partition_view::PartitionViews;
use crate::engine::partition_local::{LocalTraining, PartitionParallel};
use crate::engine::pause::Pause;
use crate::engine::sampling::node_batches::node_batches;
use crate::engine::sampling::operators::Operators;
use crate::engine::sampling::strategies;
use crate::engine::sampling::subgraphs::Subgraphs;
use crate::engine::stages::dataflow::StagedTraining;
use crate::engine::stages::intervals::EdgeNeeds;
use crate::engine::stages::learned_rows::LearnedRows;
use crate::engine::stages::pair_results::PairTargets;
use crate::engine::stages::runner::StageRunner;
use crate::engine::stages::score_pairs::PairSource;
use crate::engine::stages::state::{EpochState, StageConfig};
use crate::engine::stages::synchrony::Synchrony;
use crate::engine::tensor_parallel;
use crate::engine::tensor_parallel::topology::AllEdges;
use crate::error::{Error, LESS_GPU_MEMORY};
use crate::plan::{DeviceNeeds, RowsInMemory};
use crate::runtime::job::Job;
use crate::task::{Source, Task};

/// How batches are sampled.
pub(super) struct Sampling {
    strategies: Vec<Strategy>,
    operators: Operators,
    subgraphs: Option<Subgraphs>,
}

impl Sampling {
    /// Opens the samplers and operators of the pipeline. A collective operation.
    pub(super) fn open(
        driver: &mut Driver<'_>,
        job: &Job,
        context: &WorkerContext,
        collectives: &mut Collectives,
        (model, train): (&Model, &Train),
        examples: &Source,
    ) -> Result<Self, Error> {
        let importance = match train.sampler {
            Sampler::FastGcn => Some(strategies::importance(driver, context, collectives)?),
            _ => None,
        };
        let strategies = strategies::strategies(job, context, model, train, importance)?;
        let operators = Operators::open(job, train)?;
        let subgraphs = match examples {
            Source::Nodes(split) => Subgraphs::open(job, context, train, &split.train)?,
            Source::Links(_) | Source::Edges(..) => None,
        };
        if let Some(subgraphs) = &subgraphs {
            subgraphs.profile(driver, context)?;
        }
        Ok(Self { strategies, operators, subgraphs })
    }
}

/// Returns the batches of training examples, and the edges that are evaluated, in tasks on edges.
pub(super) fn open_batches(
    context: &WorkerContext,
    task: &Task,
    train: &Train,
    examples: Source,
) -> Result<(Arc<dyn BatchSource>, Option<Source>), Error> {
    let opened: (Arc<dyn BatchSource>, _) = match examples {
        Source::Nodes(split) => (Arc::new(node_batches(context, task, train, split)?), None),
        Source::Links(mut edges) => (Arc::new(edges.batches(train, &train.link())), Some(Source::Links(edges))),
        Source::Edges(edges, classes) => (Arc::new(edges.batches(train)), Some(Source::Edges(edges, classes))),
    };
    Ok(opened)
}

/// The inputs of every engine's constructor.
pub(super) struct EngineSetup<'a> {
    pub(super) job: &'a Job,
    pub(super) train: &'a Train,
    pub(super) context: &'a WorkerContext,
    pub(super) compute_thread: &'a ComputeThread<ComputeState>,
    pub(super) batches: Arc<dyn BatchSource>,
    pub(super) sampling: Sampling,
    pub(super) model: ModelSpec,
    /// Whether the model reads degrees.
    pub(super) degrees: bool,
    /// Number of parameters of the model.
    pub(super) params: usize,
    /// Width of the model's results.
    pub(super) width: usize,
    /// Maximum number of steps in flight.
    pub(super) window: usize,
    /// Maximum number of jobs of a process at the same time.
    pub(super) jobs: usize,
    pub(super) pause: Rc<Pause>,
    /// Whether full-graph tables are mapped scratch files.
    pub(super) tables_mapped: bool,
    /// The rows that are copied into memory: features.
    pub(super) rows_in_memory: RowsInMemory,
    /// What this process needs of its GPU.
    pub(super) device_needs: Option<DeviceNeeds>,
}

impl EngineSetup<'_> {
    /// Opens the engine of the schedule. A collective operation.
    pub(super) fn open(self, driver: &mut Driver<'_>, collectives: &mut Collectives) -> Result<Box<dyn Engine>, Error> {
        let train = self.train;
        match on_device(&self.job.config, self.context.placement.parts()) {
            Some(Ok(())) => {
                let Self { job, context, compute_thread, degrees, .. } = self;
                return Ok(Box::new(DeviceGraphTraining::build(driver.worker, job, context, degrees, compute_thread)?));
            }
            Some(Err(reason)) if self.context.worker == 0 => driver.runtime.warn(&format!(
                "the graph does not stay on the device, and the CPU adds the rows of neighbors, which is slower: {reason}"
            )),
            _ => {}
        }
        let engine: Box<dyn Engine> = match (train.schedule.full_graph_options(), &train.schedule) {
            (Some(options), _) => Box::new(self.full_graph(driver, collectives, &options)?),
            (None, Schedule::PartitionParallel(_)) => Box::new(self.partition_parallel(driver)?),
            (None, Schedule::MiniBatch(options)) => Box::new(self.mini_batch(driver, options)?),
            (None, schedule) => return Err(Error::Bug(format!("the schedule `{schedule}` is not resolved"))),
        };
        Ok(engine)
    }

    /// Opens `full-graph` and `tensor-parallel` training.
    fn full_graph(
        self,
        driver: &mut Driver<'_>,
        collectives: &mut Collectives,
        options: &FullGraphOptions,
    ) -> Result<StagedTraining, Error> {
        let Self { job, train, context, compute_thread, jobs, .. } = self;
        let source = match train.learns_edges() {
            true => Some(PairSource { batches: self.batches, targets: PairTargets::open(context, train, self.width)? }),
            false => None,
        };
        let (profile, seed) =
            compute_thread.call(|compute: &mut ComputeState| Ok::<_, Error>((compute.profile()?, compute.seed())))?;
        let synchrony = Synchrony::of(options, &profile.hops);
        let place = if self.tables_mapped { Place::Folder(context.scratch.clone()) } else { Place::Memory };
        let config = StageConfig { profile, synchrony, row_dtype: options.row_dtype, seed, place };
        let needs = EdgeNeeds::of(&config.profile.hops);
        let count = options.intervals;
        let (own, intervals, program) = match &train.schedule {
            Schedule::TensorParallel(columns) => {
                let memory = columns.chunk_memory.0;
                let mut edges = AllEdges::open(driver, job, context, collectives, count, memory, needs)?;
                let intervals = std::mem::take(&mut edges.intervals);
                let device = self.job.config.debug.graph_on_device || train.device.is_gpu();
                let device =
                    device.then(|| compute_thread.call(|compute| compute.with_model(|model| model.device().clone())));
                (edges.own.clone(), intervals, tensor_parallel::open(edges, &config, device)?)
            }
            _ => {
                let graph = Topology::open(driver, job, context, collectives, count, needs)?;
                let program = full_graph::open(&graph, &config)?;
                (graph.own, graph.intervals, program)
            }
        };
        let (rank, workers) = (driver.worker.index(), driver.worker.peers());
        let parameters = Arc::new(ParameterVersions::new(rank, workers, synchrony.staleness() as usize));
        let published = Arc::clone(&parameters);
        compute_thread.call(move |compute| compute.publish_to(published));
        let of_model = (&self.model, &config.profile, &intervals[..]);
        let executor = tensor_workers::executor(driver, job, train, collectives, &parameters, of_model)?;
        let examples = context.train_nodes.iter().sum();
        let learned = context.embeddings.as_ref().map(|rows| LearnedRows::new(rows, train, examples));
        let pairs = source.as_ref().map(|source| source.targets.clone());
        let features = context.features.clone();
        let state = EpochState::new(&config, (own, intervals), program, features, parameters, pairs)?;
        let state = StageRunner::new(state.learning(learned), compute_thread.clone(), executor, jobs);
        Ok(StagedTraining::build(driver.worker, context, train, self.params, (state, source), compute_thread))
    }

    fn partition_parallel(self, driver: &mut Driver<'_>) -> Result<PartitionParallel, Error> {
        let Self { job, train, context, compute_thread, batches, degrees, window, rows_in_memory, .. } = self;
        let Sampling { strategies, operators, subgraphs } = self.sampling;
        if rows_in_memory >= RowsInMemory::Features {
            context.parts.copy_to_memory(job);
        }
        let views = PartitionViews::open(driver, job, context, degrees)?;
        let train = train.clone();
        let options = LocalTraining { views, batches, strategies, subgraphs, operators, degrees, window, train };
        Ok(PartitionParallel::build(driver.worker, context, options, compute_thread))
    }

    /// Whether a GPU computes, or a test that imitates one.
    fn is_on_device(&self) -> bool {
        self.train.device.is_gpu() || self.job.config.debug.graph_on_device
    }

    /// Starts the thread that copies batches to the GPU, if one computes.
    fn ready_thread(&self) -> Result<Option<ComputeThread<Arc<Passes>>>, Error> {
        if !self.is_on_device() {
            return Ok(None);
        }
        let passes = self.compute_thread.call(|compute: &mut ComputeState| compute.passes());
        passes.start_uploads()?;
        let thread = ComputeThread::start(READY, move || passes);
        thread.map(Some).map_err(|error| {
            Error::Machine(format!(
                "cannot start the thread that copies batches to the device: {error}; {FEWER_THREADS}"
            ))
        })
    }

    /// Copies features to the GPU, if one computes, in the memory of `train.schedule.device_cache`. Returns how many, or `None` if there are none.
    fn hold_features(&self, driver: &Driver<'_>, limit: Option<u64>) -> Result<Option<Held>, Error> {
        let Self { job, context, .. } = self;
        let unused = limit == Some(0) || context.embeddings.is_some() || !self.sampling.operators.is_empty();
        if !self.is_on_device() || unused {
            return Ok(None);
        }
        let device = self.compute_thread.call(|compute| compute.with_model(|model| model.device().clone()));
        let sharing = match self.train.device {
            Device::CudaOfRank => 1,
            _ => job.local(context.worker) as u64,
        };
        let free = gnnflow_nn::device_memory(&device)?.map(|memory| memory.free / sharing);
        let bytes = match (limit, free, self.device_needs) {
            (Some(limit), ..) => limit,
            (None, Some(free), Some(needs)) => needs.room_for_features(free),
            (None, Some(free), None) => free / 2,
            (None, None, _) => u64::MAX,
        };
        let (features, graph) = (context.features.clone(), Arc::clone(&context.graph));
        let busy = job.runtime.busy("copying features to the device");
        let held = self.compute_thread.call(move |compute| compute.hold_rows(&features, &graph, bytes))?;
        drop(busy);
        if held.rows < held.of {
            let (rows, of) = (count(held.rows as u64), count(held.of as u64));
            driver.runtime.say(&format!(
                "note: the GPU holds the features of {rows} of {of} nodes; those of the others are copied with each batch \
                 (train.schedule.device_cache)"
            ));
        }
        Ok(Some(held).filter(|held| held.rows > 0))
    }

    /// Makes the compute thread read the features of batches where they lie, if it can. Returns whether it does.
    fn reads_in_place(&self) -> bool {
        let context = self.context;
        let edges_have_columns = !context.columns.is_empty() || self.train.sampler.weighs_edges();
        if edges_have_columns || context.embeddings.is_some() || !self.sampling.operators.is_empty() {
            return false;
        }
        let features = context.features.clone();
        self.compute_thread.call(move |compute: &mut ComputeState| compute.read_in_place(&features))
    }

    /// Checks that this process holds what a GPU needs to sample the batches: the edges of all partitions, and access to all features.
    fn check_device_sampling(&self) -> Result<(), Error> {
        let (job, graph, source) = (self.job, &self.context.graph, &self.context.features.source);
        let refuse = |message: &str| Err(job.config.problem("train.schedule.device_sampling", message));
        if !graph.has_whole_topology() {
            return refuse(
                "each GPU samples from the edges of all partitions; set partition.topology = \"replicated\", or use one process",
            );
        }
        if !(0..graph.num_nodes() as u32).all(|node| graph.hosts(node) || source.shares(node)) {
            return refuse(
                "a process needs the features of all nodes, and cannot read those of other processes; use one process, or, on one host, \
                 partition.features = \"shared\"",
            );
        }
        Ok(())
    }

    /// Copies the edges of the graph to the GPU, which then samples the batches. `held` are the features that it holds.
    ///
    /// # Errors
    /// If it holds none, or is out of memory.
    fn sample_on_device(&mut self, held: Option<Held>) -> Result<(), Error> {
        let Self { job, context, .. } = self;
        let strategies = std::mem::take(&mut self.sampling.strategies);
        let fanouts: Option<Vec<Fanout>> = strategies.iter().map(Strategy::fanout).collect();
        let fanouts = fanouts.filter(|fanouts| !fanouts.is_empty() && !self.degrees && context.columns.is_empty());
        let fanouts = fanouts.ok_or_else(|| Error::Bug("a GPU cannot sample the batches of this pipeline".into()))?;
        if held.is_none() {
            return Err(Error::Machine(format!(
                "the GPU has no memory for features; set a larger train.schedule.device_cache, or {LESS_GPU_MEMORY}"
            )));
        }
        let graph = Arc::clone(&context.graph);
        let _busy = job.runtime.busy("copying edges to the device");
        self.compute_thread.call(move |compute| compute.sample_on_device(&graph, fanouts))
    }

    fn mini_batch(
        mut self,
        driver: &mut Driver<'_>,
        options: &schedule::MiniBatch,
    ) -> Result<MiniBatchTraining, Error> {
        if self.train.samples_on_device() {
            self.check_device_sampling()?;
        }
        let held = self.hold_features(driver, options.device_cache.map(|bytes| bytes.0))?;
        let holds_all = held.is_some_and(|held| held.rows == held.of);
        if self.train.samples_on_device() {
            self.sample_on_device(held)?;
        }
        // Replies to other processes read them here.
        if self.rows_in_memory >= RowsInMemory::Features && !(holds_all && self.context.graph.is_whole()) {
            self.context.parts.copy_to_memory(self.job);
        }
        let features = match held {
            Some(_) if holds_all => Features::Read,
            Some(_) => Features::ReadAhead,
            None if self.reads_in_place() => Features::Read,
            None => Features::Fetched,
        };
        let ready_thread = self.ready_thread()?;
        let Self { train, context, compute_thread, batches: source, degrees, params, window, jobs, pause, .. } = self;
        let Sampling { strategies, operators, subgraphs } = self.sampling;
        let cache = context.cache(options).map(|cache| Rc::new(RefCell::new(cache)));
        if options.cache.is_some() && cache.is_none() && context.parts.shares_any() && context.worker == 0 {
            let message = "train.schedule.cache has no effect: all processes are on one host and read each other's features from files or memory; \
                           remove this key, or set partition.features = \"partitioned\"";
            driver.runtime.warn(message);
        }
        let batches = Batches {
            source,
            strategies,
            subgraphs,
            operators,
            degrees,
            params,
            window,
            jobs,
            pause,
            cache,
            features,
            ready_thread,
        };
        Ok(MiniBatchTraining::build(driver.worker, context, train, batches, compute_thread))
    }
}
