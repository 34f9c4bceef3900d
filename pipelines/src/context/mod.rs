//! The data of one worker: graph, features, threads and meters.

pub(crate) mod edge_columns;
pub(crate) mod edge_types;
pub(crate) mod feature_store;
pub(crate) mod live_features;
pub(crate) mod machine;
pub(crate) mod seed_split;
pub(crate) mod threads;

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use gnnflow_data::dataset::Topology;
use gnnflow_data::error::FEWER_THREADS;
use gnnflow_data::source::FeatureDtype;
use gnnflow_dataflow::batch::halo::HaloRows;
use gnnflow_dataflow::fetch::cache::{Policy, RowCache};
use gnnflow_dataflow::fetch::fetch_edge_rows::{EdgeSource, FetchEdges};
use gnnflow_dataflow::fetch::fetch_rows::FeatureView;
use gnnflow_dataflow::graph::local_graph::{InEdges, LocalGraph};
use gnnflow_dataflow::graph::placement::Placement;
use gnnflow_dataflow::sample::sampling_threads::SamplingThreads;
use gnnflow_dataflow::wire::meter::Meter;
use gnnflow_kernels::matrix::Number;
use gnnflow_kernels::sample::Columns;
use gnnflow_nn::model::{Decoder, ModelSpec};
use gnnflow_nn::{Model, device};

use self::feature_store::{FeatureStore, replicates_topology};
use crate::config::{self, CachePolicy};
use crate::embedding::NodeEmbeddings;
use crate::error::Error;
use crate::runtime::job::{Job, scratch_folder};

/// The split code of training nodes in a prepared dataset.
pub(crate) const TRAIN: u8 = 1;
/// Names of the split codes, by code.
pub(crate) const SPLITS: [&str; 4] = ["none", "train", "val", "test"];

/// Hides edges from sampling and aggregation, for tasks that predict them.
pub(crate) trait EdgeFilter {
    /// Returns the edges of a partition that are not hidden. `first` is the partition's first node.
    fn visible(&self, edges: Topology, first: u32) -> Arc<dyn InEdges>;
}

/// The data of one worker in a run.
pub(crate) struct WorkerContext {
    pub(crate) worker: usize,
    pub(crate) placement: Placement,
    pub(crate) graph: Arc<LocalGraph>,
    pub(crate) parts: Arc<FeatureStore>,
    /// Input rows of the first layer: features or learned rows.
    pub(crate) features: FeatureView,
    /// Features of edges, if the model reads them.
    pub(crate) edges: Option<Arc<dyn EdgeSource>>,
    /// The learned rows, if nodes have them.
    pub(crate) embeddings: Option<Arc<NodeEmbeddings>>,
    /// Columns of sampled edges in blocks, besides sources.
    pub(crate) columns: Columns,
    /// Number of training nodes that each partition takes as seeds.
    pub(crate) train_nodes: Vec<u64>,
    pub(crate) scratch: PathBuf,
    /// Counts messages of training epochs.
    pub(crate) meter: Rc<Meter>,
    /// Counts other messages. Separate, because processes may be in different phases at the same time.
    pub(crate) other_meter: Rc<Meter>,
    pub(crate) sampling: Arc<SamplingThreads>,
    /// Whether sampling and compaction are one loop if all edges are in this process.
    pub(crate) fused_sampling: bool,
}

/// Builds the model of the pipeline for this graph, on the device of the process of this rank. `width` is the width of its results.
pub(crate) fn model(
    job: &Job,
    rank: usize,
    (model, train): (&config::Model, &config::Train),
    width: usize,
) -> Result<Model, Error> {
    let manifest = job.dataset.manifest();
    let input = input_width(job, model)?;
    let relations = manifest.edge_columns.edge_type.as_ref().map_or(0, |types| types.count as usize);
    if model.reads_edge_types() && relations == 0 {
        let message = "model.kind = \"rgcn\" needs edge types, and edges have none; name their column in \
                       graph.columns.edge_type";
        return Err(Error::Input(message.into()));
    }
    if model.reads_edge_features() && manifest.edge_columns.features == 0 {
        let key = if model.kind == "gine" { "model.kind = \"gine\"" } else { "model.edge_features" };
        let message = format!(
            "{key} needs edge features, and edges have none; name their columns in graph.columns.edge_features"
        );
        return Err(Error::Input(message));
    }
    let config = ModelSpec {
        decoder: match train.task {
            config::Task::EdgeClassification => {
                let classes = job.labels().map_or(0, |labels| labels.classes as usize);
                Decoder::Pairs { outputs: classes, layers: train.edge().num_decoder_layers }
            }
            _ if train.decodes_relations() => Decoder::Relations(relations),
            _ => Decoder::None,
        },
        ..model.describe(input, width, relations, manifest.edge_columns.features)
    };
    let device = device(&train.device.of_process(job.numbers_on_host[rank]).to_string())?;
    let mut model = Model::build(&config, job.registry.layers(), &device, train.seed)?;
    model.set_check_values(train.check_values);
    Ok(model)
}

/// Returns the input width of the first layer: that of features or learned rows.
fn input_width(job: &Job, model: &config::Model) -> Result<usize, Error> {
    match (job.dataset.manifest().features.dim, &model.embedding) {
        (0, None) => {
            let message = "the graph has no features; name their columns in graph.columns.features, or learn a row for each \
                           node with model.embedding = { dim = 128 }";
            Err(Error::Input(message.into()))
        }
        (features, None) => Ok(features),
        (0, Some(embedding)) => Ok(embedding.dim),
        (features, Some(_)) => {
            let message = format!(
                "learned rows are for nodes without features, and these have {features}; leave model.embedding out to use \
                 the features, or prepare the graph without their column"
            );
            Err(job.config.problem("model.embedding", message))
        }
    }
}

/// Returns the columns of blocks: edge types if the graph has them and layers may read them, and edge ids if the model reads edge features.
fn columns(job: &Job, edge_features: bool) -> Columns {
    let (Some(model), Some(train)) = (&job.config.model, &job.config.train) else { return Columns::default() };
    let typed = job.dataset.manifest().edge_columns.edge_type.is_some();
    // A registered layer may read types; a registered sampler does not return them.
    let may_read = || !config::is_builtin_layer(&model.kind) && job.registry.sampler(train.sampler.word()).is_none();
    Columns { types: typed && (model.reads_edge_types() || may_read()), ids: edge_features, ..Columns::default() }
}

/// Inputs of a model besides the rows of nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelInputs {
    pub(crate) degrees: bool,
    pub(crate) edge_features: bool,
}

impl ModelInputs {
    pub(crate) fn of(model: &Model) -> Self {
        Self { degrees: model.needs_degrees(), edge_features: model.needs_edge_features() }
    }
}

/// Features of edges, mapped with the topology of the partitions that are in this process.
struct EdgeParts {
    dim: usize,
    parts: Vec<Option<Topology>>,
}

impl EdgeSource for EdgeParts {
    fn number(&self) -> Number {
        Number::F32
    }

    fn dim(&self) -> usize {
        self.dim
    }

    fn part(&self, part: usize) -> Option<&[u8]> {
        let (values, _) = self.parts[part].as_ref()?.edge_features()?;
        Some(bytemuck::cast_slice(values))
    }
}

/// Returns the features of halo nodes that are stored with the partitions of `worker`; `None` if the dataset has none.
///
/// # Errors
/// If they cannot be read.
pub(crate) fn halo_rows(job: &Job, graph: &LocalGraph, worker: usize) -> Result<Option<Arc<HaloRows>>, Error> {
    if !job.dataset.manifest().halo_features {
        return Ok(None);
    }
    let mut halos = Vec::new();
    for part in graph.placement().parts_of(worker) {
        halos.extend(job.dataset.halo(part)?);
    }
    Ok(HaloRows::new(halos, |node| !graph.hosts(node)).map(Arc::new))
}

impl WorkerContext {
    /// Samples on this number of threads.
    ///
    /// # Errors
    /// [`Error::Machine`] if the system cannot start a thread.
    pub(crate) fn sample_on(&self, threads: usize) -> Result<(), Error> {
        let start =
            |error| Error::Machine(format!("cannot start {threads} sampling threads: {error}; {FEWER_THREADS}"));
        self.sampling.resize(threads).map_err(start)
    }

    /// Opens the data of `worker`, one of `workers`, with the partitions `parts`. `filter` hides edges.
    pub(crate) fn open(
        job: &Job,
        worker: usize,
        workers: usize,
        parts: Arc<FeatureStore>,
        filter: Option<&dyn EdgeFilter>,
        needs: ModelInputs,
    ) -> Result<Self, Error> {
        let (dataset, config) = (&job.dataset, &job.config);
        let manifest = dataset.manifest();
        let placement = Placement::new(manifest.parts(), workers);
        let replicated = replicates_topology(config);
        let mut edges = EdgeParts { dim: manifest.edge_columns.features, parts: vec![None; manifest.parts()] };
        let load = |part: usize| -> Result<Arc<dyn InEdges>, Error> {
            let (topology, in_edges): (_, Arc<dyn InEdges>) = match &parts.parts[part] {
                Some(partition) => (partition.topology.clone(), Arc::clone(partition) as _),
                None => {
                    let topology = dataset.topology(part)?;
                    (topology.clone(), Arc::new(topology))
                }
            };
            edges.parts[part] = Some(topology);
            Ok(match filter {
                Some(filter) => filter.visible(dataset.topology(part)?, dataset.book().range(part).start as u32),
                None => in_edges,
            })
        };
        let graph = LocalGraph::load(dataset.book(), placement, worker, replicated, load)?;
        let graph = if needs.degrees { graph.with_degrees() } else { graph };
        let layout = manifest.features.layout();
        let (number, packed) = match layout.dtype() {
            Some(FeatureDtype::F32) => (Number::F32, None),
            Some(FeatureDtype::F16) => (Number::F16, None),
            Some(FeatureDtype::Bf16) => (Number::Bf16, None),
            None => (Number::F32, Some(Arc::new(layout))),
        };
        let halo = if graph.is_whole() { None } else { halo_rows(job, &graph, worker)? };
        let scratch = scratch_folder(&job.run_dir);
        std::fs::create_dir_all(&scratch).map_err(Error::io("create", &scratch))?;
        let graph = Arc::new(graph);
        let embeddings = match (&config.model, &config.train) {
            (Some(config::Model { embedding: Some(embedding), .. }), Some(train)) => {
                let rows = NodeEmbeddings::create(embedding, &scratch, &graph, worker, train.seed, job.threads)?;
                Some(Arc::new(rows))
            }
            _ => None,
        };
        let features = match &embeddings {
            Some(rows) => rows.rows(),
            None => FeatureView { source: Arc::clone(&parts) as _, number, dim: manifest.features.dim, packed, halo },
        };
        Ok(Self {
            worker,
            placement,
            graph,
            features,
            embeddings,
            edges: needs.edge_features.then(|| Arc::new(edges) as _),
            columns: columns(job, needs.edge_features),
            parts,
            train_nodes: manifest.partitions.iter().map(|part| part.train).collect(),
            scratch,
            meter: Rc::new(Meter::counting(job.runtime.messages())),
            other_meter: Rc::new(Meter::counting(job.runtime.messages())),
            sampling: threads::sampling(job.threads)?,
            fused_sampling: job.config.debug.fused_sampling,
        })
    }

    /// Returns the source of edge features for batches on `graph`, if the model reads them. `meter` counts messages.
    pub(crate) fn fetch_edges(&self, graph: &Arc<LocalGraph>, meter: &Rc<Meter>) -> Option<FetchEdges> {
        let rows = Arc::clone(self.edges.as_ref()?);
        Some(FetchEdges { graph: Arc::clone(graph), rows, meter: Rc::clone(meter) })
    }

    /// Returns a cache of other workers' features, if the pipeline has one and some features are fetched.
    pub(crate) fn cache(&self, options: &config::schedule::MiniBatch) -> Option<RowCache> {
        let bytes = options.cache?.0;
        if self.parts.has_all() {
            return None;
        }
        let policy = match options.cache_policy {
            CachePolicy::Degree => Policy::Degree,
            CachePolicy::Frequency => Policy::Frequency,
            CachePolicy::Dynamic => Policy::Dynamic,
        };
        let row_bytes = self.features.number.bytes() * self.features.dim;
        let fetches = |node| !self.features.source.shares(node);
        Some(RowCache::new(policy, usize::try_from(bytes).unwrap_or(usize::MAX), row_bytes, &self.graph, fetches))
    }

    /// Returns the steps of an epoch: those of the partition with most training nodes.
    pub(crate) fn steps(&self, batch: usize) -> u32 {
        let most = self.train_nodes.iter().copied().max().unwrap_or(0);
        most.div_ceil(batch as u64) as u32
    }
}
