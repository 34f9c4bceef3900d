//! The sections of a checked pipeline, and the names that it may use.

use super::cluster::Cluster;
use super::debug::Debug;
use super::graph::Graph;
use super::infer::Infer;
use super::model::Model;
use super::partition::{Halo, Partition};
use super::price::Price;
use super::resolved::{AutoParts, AutoSchedule};
use super::section::section;
use super::train::Train;
use super::values::Parts;
use crate::error::{Error, Location, Problem, Problems};
use gnnflow_data::{Dataset, PrepareSettings};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

section! {
    /// A checked pipeline. The sections that are present are the stages that run.
    pub struct Config {
        /// Name of the run: letters, digits, "-", "_" and ".". Unset: the pipeline file's name without `.toml`.
        #[schemars(extend("x-results" = false), extend("examples" = ["cora-gcn"]))]
        pub name: String = String::new(),
        /// Where the graph comes from.
        pub graph: Graph = Graph::default(),
        /// How the graph is partitioned.
        pub partition: Partition = Partition::default(),
        /// The model.
        pub model: Option<Model> = None,
        /// How the model is trained.
        pub train: Option<Train> = None,
        /// Results that are written for every node after training.
        pub infer: Option<Infer> = None,
        /// Several processes.
        pub cluster: Cluster = Cluster::default(),
        /// Prices of machines.
        pub price: Option<Price> = None,
        /// Keys for measurements of gnnflow itself.
        pub debug: Debug = Debug::default(),
        /// The position of each key, for later messages.
        #[serde(skip)]
        #[schemars(skip)]
        pub source: Source = Source::default(),
    }
}

/// The file that a [`Config`] was read from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Source {
    pub(super) file: PathBuf,
    /// The position of each key in the file or in a `--set`.
    pub(super) places: BTreeMap<String, Location>,
    /// How `partition.parts = "auto"` was resolved.
    pub(crate) auto: Option<AutoParts>,
    /// How `train.schedule = "auto"` was resolved.
    pub(crate) auto_schedule: Option<AutoSchedule>,
    /// With `train.schedule = "auto"`: the candidates that do not support the pipeline, and why.
    pub(crate) refusals: Vec<(String, String)>,
}

/// Memory of the program while it prepares a dataset, without the graph: code, stacks, and pages that the allocator holds.
const PREPARE_PROGRAM: u64 = 48 << 20;

/// Registered names, which a pipeline file may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registered {
    /// For `partition.method`.
    pub partitioners: Vec<String>,
    /// For `train.sampler`.
    pub samplers: Vec<String>,
    /// For `model.kind`.
    pub layers: Vec<String>,
    /// For `train.operators`.
    pub operators: Vec<String>,
}

impl Config {
    /// Returns the pipeline of `gnnflow infer`: the same model with a prepared dataset. It has neither tensor workers nor a trace. Without `[infer]`, it writes predictions.
    ///
    /// ```
    /// use gnnflow_pipelines::config::{Config, Registered};
    /// use std::path::Path;
    ///
    /// let text = "[graph]\nnodes = 'n.parquet'\nedges = 'e.parquet'\n[model]\nhidden = 8\n[train]";
    /// let trained = Config::parse(text, Path::new("p.toml"), &[], &Registered::default())?;
    /// let config = trained.for_inference(Path::new("prepared/tuesday"));
    /// assert_eq!(config.dataset_folder(), Path::new("prepared/tuesday"));
    /// assert_eq!((config.model.unwrap().hidden, config.infer.unwrap().predictions), (8, true));
    /// # Ok::<(), gnnflow_pipelines::Error>(())
    /// ```
    #[must_use]
    pub fn for_inference(mut self, dataset: &Path) -> Self {
        let same = self.graph.dataset.as_deref() == Some(dataset);
        let dataset_cache = self.graph.dataset_cache.filter(|_| same);
        self.graph =
            Graph { dataset: Some(dataset.to_owned()), dataset_cache, retry: self.graph.retry, ..Graph::default() };
        self.graph.set_dataset_cache(&std::env::current_dir().unwrap_or_default());
        self.partition = self.partition.of_dataset();
        self.without_training()
    }

    /// Like [`Config::for_inference`], with the graph and the partition of another pipeline.
    #[must_use]
    pub fn for_inference_on(self, graph: Self) -> Self {
        let mut this = Self { graph: graph.graph, partition: graph.partition, ..self.without_training() };
        let of_graph = |key: &String| key.starts_with("graph") || key.starts_with("partition");
        let places = graph.source.places.into_iter().filter(|(key, _)| of_graph(key)).collect();
        this.source = Source { file: graph.source.file, places, auto: graph.source.auto, ..Source::default() };
        this
    }

    fn without_training(mut self) -> Self {
        self.infer.get_or_insert_default();
        if let Some(train) = &mut self.train {
            // The memory of training is no bound of inference.
            (train.from, train.from_optimizer) = (None, false);
            (train.tensor_workers, train.memory, train.trace) = (None, None, false);
            if let Some(classes) = &mut train.classes {
                (classes.weights, classes.node_weights) = (None, None);
            }
        }
        self
    }

    /// Opens the prepared dataset. One that is elsewhere (`graph.dataset_cache`) is asked for its manifest.
    ///
    /// # Errors
    /// [`Error::Data`] if there is no such dataset, or it cannot be read.
    pub fn open_dataset(&self) -> Result<Dataset, Error> {
        Ok(match (&self.graph.dataset, &self.graph.dataset_cache) {
            (Some(dataset), Some(copies)) => Dataset::open_copies(dataset, copies, self.graph.retry.0)?,
            _ => Dataset::open(self.dataset_folder())?,
        })
    }

    /// Returns what the user calls the prepared dataset: its URL or folder.
    pub fn dataset_name(&self) -> &Path {
        self.graph.dataset.as_deref().unwrap_or(self.dataset_folder())
    }

    /// Returns the folder with the files of the prepared dataset: `graph.dataset_cache`, `graph.dataset` or `partition.out`.
    pub fn dataset_folder(&self) -> &Path {
        let graph = &self.graph;
        let folder = graph.dataset_cache.as_ref().or(graph.dataset.as_ref()).or(self.partition.out.as_ref());
        folder.map_or(Path::new("dataset"), PathBuf::as_path)
    }

    /// Returns the number of partitions in the file; 1 for an unresolved `auto`. With `graph.dataset` the manifest has it.
    pub fn parts(&self) -> usize {
        match self.partition.parts {
            Parts::Count(count) => count,
            Parts::Auto => 1,
        }
    }

    /// Returns whether partitions contain the features of their halo nodes.
    pub(crate) fn stores_halo_features(&self) -> bool {
        let local = self.train.as_ref().is_some_and(|train| train.schedule.is_partition_parallel());
        self.partition.halo.unwrap_or(if local { Halo::Features } else { Halo::Ids }) == Halo::Features
    }

    /// Returns the settings of the preparation in the folder `out`.
    pub(crate) fn prepare_settings(&self, out: PathBuf) -> PrepareSettings {
        PrepareSettings {
            parts: self.parts() as u32,
            out,
            memory: self.partition.memory.0,
            program: Some(PREPARE_PROGRAM),
            method_memory: self.partition.method_memory(),
            seed: self.partition.seed,
            balance: self.partition.balance.targets(&self.partition.method),
            halo_features: self.stores_halo_features(),
        }
    }

    /// Returns an error about a key of this pipeline, with file and line.
    pub fn problem(&self, key: &str, message: impl Into<String>) -> Error {
        let mut path = Some(key);
        let mut place = Location::File;
        while let Some(here) = path {
            if let Some(found) = self.source.places.get(here) {
                place = found.clone();
                break;
            }
            // Items of lists have the position of the list.
            let list = here.strip_suffix(']').and_then(|here| here.rsplit_once('['));
            path = list.or_else(|| here.rsplit_once('.')).map(|(parent, _)| parent);
        }
        Error::Config(Problems::new(&self.source.file, vec![Problem::new(place, key, message)]))
    }

    /// Refuses more processes than partitions.
    ///
    /// # Errors
    /// [`Error::Config`] at `partition.parts`; [`Error::Usage`] with the dataset, if it has been prepared.
    pub fn check_processes(&self, processes: usize, parts: usize) -> Result<(), Error> {
        if processes <= parts {
            return Ok(());
        }
        let remedy = "use at most one process per partition";
        Err(match &self.graph.dataset {
            Some(dataset) => {
                let dataset = dataset.display();
                Error::Usage(format!(
                    "more processes ({processes}) than the dataset {dataset} has partitions ({parts}); {remedy}"
                ))
            }
            None => {
                let message = format!("more processes ({processes}) than partitions ({parts}); {remedy}");
                self.problem("partition.parts", message)
            }
        })
    }
}
