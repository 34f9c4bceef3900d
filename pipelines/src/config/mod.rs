//! Reads and checks `pipeline.toml`.
//!
//! Each section is a file with one struct, and each key is a field with type, default and documentation. [`Config::load`]
//! reports all problems of a file, each with line, key and "did you mean".

mod check;
mod checkpoint_every;
mod classes;
mod cluster;
mod debug;
mod device;
mod digest;
mod edge;
pub mod embedding;
mod fanout;
mod generate;
mod graph;
mod infer;
mod link;
mod metric;
mod model;
mod moved;
pub mod optimizer;
mod overrides;
mod partition;
mod pipeline;
mod price;
pub mod reference;
mod resolved;
mod rules;
pub mod sampler;
pub mod schedule;
mod schema;
mod section;
mod tables;
mod tensor_workers;
mod train;
mod tree;
mod uses;
mod values;

pub use checkpoint_every::CheckpointEvery;
pub use classes::{ClassOptions, ClassWeights, ComputedWeights};
pub use cluster::Cluster;
pub use debug::Debug;
pub use device::Device;
pub use edge::EdgeTask;
pub use embedding::{Embedding, EmbeddingInit, EmbeddingMode, SparseOptimizer};
pub use fanout::{Fanout, FanoutsByType};
pub use generate::{Generate, GenerateKind, Generator};
pub(crate) use graph::HAS_SPLITS;
pub use graph::{Columns, Duplicates, FeatureDtype, Graph, Normalize, SelfLoops};
pub use infer::{EmbeddingDtype, Infer};
pub(crate) use link::EDGE_SPLIT_FRACTIONS;
pub use link::{Decoder, Link, LinkLoss, NegativeSampler};
pub use metric::Metric;
pub(crate) use model::is_builtin as is_builtin_layer;
pub use model::{Activation, Aggregator, JumpingKnowledge, Model, Norm};
pub use optimizer::{LrSchedule, Optimizer};
pub use overrides::Override;
pub use partition::{Balance, Degrees, Features, FileColumns, Halo, Limit, NoLimit, Partition, Topology};
pub use pipeline::{Config, Registered, Source};
pub use price::Price;
pub use resolved::{AutoParts, AutoSchedule, Candidate};
pub use sampler::Sampler;
pub use schedule::{CachePolicy, Mode, RowDtype, Schedule, SeedSplit};
pub use tables::Tables;
pub use tensor_workers::{Tensor, WhenGone};
pub(crate) use train::DEFAULT_EPOCHS;
pub use train::{Task, Train};
pub use values::{Bytes, OneOrMany, Parts, RankAmong, Span, TypeName};

use crate::error::Error;
use crate::error::{Location, Problem, Problems};
use digest::digest;
use gnnflow_data::format::hex;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf, absolute};
use tree::Node;

impl Config {
    /// Reads and checks a pipeline file. `overrides` are applied in order before anything is checked.
    ///
    /// # Errors
    /// [`Error::Config`] with all problems; [`Error::Usage`] if the file cannot be read.
    pub fn load(file: &Path, overrides: &[Override], registered: &Registered) -> Result<Self, Error> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| Error::Usage(format!("cannot read pipeline file {}: {error}", file.display())))?;
        Self::parse(&text, file, overrides, registered)
    }

    /// Reads and checks `text` as the content of `file`, which need not exist. Relative paths are relative to the file.
    ///
    /// ```
    /// use gnnflow_pipelines::config::{Config, Override, Registered};
    /// use std::path::Path;
    ///
    /// let text = "[graph]\nnodes = 'n.parquet'\nedges = 'e.parquet'\nundirectd = true";
    /// let error = Config::parse(text, Path::new("p.toml"), &[], &Registered::default()).unwrap_err();
    /// assert_eq!(error.to_string(), "p.toml:4: graph.undirectd: unknown key; did you mean \"undirected\"?");
    ///
    /// let overrides = [Override::Unset("graph.undirectd".into()), Override::Set("graph.nodes=other.parquet".into())];
    /// let config = Config::parse(text, Path::new("p.toml"), &overrides, &Registered::default())?;
    /// assert_eq!(config.name, "p");
    /// assert!(config.graph.nodes.unwrap().paths()[0].ends_with("other.parquet"));
    /// # Ok::<(), gnnflow_pipelines::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] with all problems.
    pub fn parse(text: &str, file: &Path, overrides: &[Override], registered: &Registered) -> Result<Self, Error> {
        let fail = |problems| Err(Error::Config(Problems::new(file, problems)));
        let mut root = match Node::parse(text) {
            Ok(root) => root,
            Err(problems) => return fail(problems),
        };
        check::expand(reference::schema(), &mut root);
        let mut problems = overrides::apply(&mut root, overrides);
        moved::report(&mut root, &mut problems);
        check::check(reference::schema(), &root, "", &mut problems);
        if !problems.is_empty() {
            return fail(problems);
        }
        let mut config: Self = match serde_json::from_value(root.json()) {
            Ok(config) => config,
            Err(error) => return fail(vec![Problem::new(Location::File, "", error.to_string())]),
        };
        if root.entry("name").is_none() {
            config.name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        }
        if config.graph.generate.is_some() && root.entry("graph.undirected").is_none() {
            config.graph.undirected = !config.graph.reverse_edges;
        }
        let (problems, refusals) = rules::of_schedules(&config, &root, registered);
        if !problems.is_empty() {
            return fail(problems);
        }
        let folder = absolute(file).ok().and_then(|file| file.parent().map(Path::to_owned)).unwrap_or_default();
        config.resolve_paths(&folder);
        if let (Some(train), Some(model)) = (&mut config.train, &config.model) {
            train.fanouts = uses::is_used("fanouts", train).then(|| train.fanouts(model.layers));
        }
        let mut places = BTreeMap::new();
        collect_places(&root, "", &mut places);
        config.source = Source { file: file.into(), places, refusals, ..Source::default() };
        Ok(config)
    }

    /// Makes all paths absolute, and sets the default of the dataset folder.
    fn resolve_paths(&mut self, folder: &Path) {
        let join = |path: &mut PathBuf| *path = folder.join(&*path);
        let graph = &mut self.graph;
        let tables = [&mut graph.nodes, &mut graph.edges].into_iter().flatten().flat_map(Tables::paths_mut);
        let parts = self.partition.file.iter_mut().flat_map(|files| &mut files.0);
        tables.chain(parts).filter(|path| !gnnflow_data::source::is_url(path)).for_each(join);
        let (link, classes) =
            self.train.as_mut().map_or((None, None), |train| (train.link.as_mut(), train.classes.as_mut()));
        let candidates = link.and_then(|link| link.eval_negative_dstnode.as_mut());
        let weights = classes.and_then(|classes| classes.node_weights.as_mut());
        let tables = candidates.into_iter().chain(weights);
        tables.flat_map(|files| &mut files.0).filter(|path| !gnnflow_data::source::is_url(path)).for_each(join);
        let dataset = graph.dataset.iter_mut().filter(|path| !gnnflow_data::source::is_url(path));
        dataset.chain(&mut graph.dataset_cache).chain(&mut graph.encode_like).for_each(join);
        graph.set_dataset_cache(folder);
        self.train.iter_mut().filter_map(|train| train.from.as_mut()).for_each(join);
        if let Some(generate) = &mut graph.generate {
            let name = format!("{}-{}", generate.kind, &digest(&serde_json::json!(generate))[..8]);
            let default = || PathBuf::from(".gnnflow").join(name);
            join(generate.out.get_or_insert_with(default));
        }
        self.cluster.secret_file.iter_mut().for_each(join);
        match &mut self.partition.out {
            Some(out) => join(out),
            None if self.graph.dataset.is_some() => {}
            None => {
                let name = format!("{}-{}", self.name, &self.dataset_hash()[..8]);
                self.partition.out = Some(folder.join(".gnnflow").join(name));
            }
        }
    }

    /// Returns the effective configuration as a pipeline file with absolute paths. It defines the same run.
    pub fn resolved_toml(&self) -> String {
        let mut config = self.clone();
        if config.graph.dataset.is_some() {
            config.partition = config.partition.of_dataset();
        }
        let mut value = toml::Value::try_from(&config).expect("all keys are TOML values");
        remove_conflicting_defaults(&mut value, &config);
        toml::to_string(&value).expect("a TOML value can be printed")
    }

    /// Returns the SHA-256, in hexadecimal, of all keys with their values.
    pub fn hash(&self) -> String {
        hex(&Sha256::digest(self.resolved_toml()))
    }

    /// Returns the SHA-256, in hexadecimal, of all keys of `[graph]` and `[partition]` that change the dataset: without performance keys and its
    /// folder.
    pub fn dataset_hash(&self) -> String {
        let default = Partition::default();
        let cut = Partition {
            topology: default.topology,
            features: default.features,
            memory: default.memory,
            out: None,
            ..self.partition.clone()
        };
        let graph = Graph { retry: Graph::default().retry, dataset_cache: None, ..self.graph.clone() };
        digest(&serde_json::json!([graph, cut]))
    }

    /// Returns the SHA-256, in hexadecimal, of all keys that can change results, without performance keys (⚙ in the
    /// reference). The content of input files is in the fingerprint of the dataset. Equal on all processes of a run.
    pub fn fingerprint(&self) -> String {
        self.digest_without(&[])
    }

    /// Returns [`Config::fingerprint`] without `train.epochs`, `train.early_stop` and `[infer]`. A checkpoint can be resumed
    /// with an equal value.
    pub(crate) fn model_fingerprint(&self) -> String {
        self.digest_without(&["infer", "train.epochs", "train.early_stop"])
    }

    fn digest_without(&self, more: &[&str]) -> String {
        let mut value = serde_json::to_value(self).expect("all keys are JSON values");
        let keys = reference::sections().into_iter().flat_map(|section| section.keys);
        let performance: Vec<String> = keys.filter(|key| !key.results).map(|key| key.path).collect();
        // Tables of performance keys only, and the path of a model, which runs compare by its content.
        let others = ["price", "train.tensor_workers", "train.from"];
        let debug = if self.debug.graph_on_device { "debug.fused_sampling" } else { "debug" };
        for path in performance.iter().map(String::as_str).chain(more.iter().copied()).chain(others).chain([debug]) {
            let (parent, key) = path.rsplit_once('.').unwrap_or(("", path));
            let pointer = if parent.is_empty() { String::new() } else { format!("/{}", parent.replace('.', "/")) };
            if let Some(table) = value.pointer_mut(&pointer).and_then(|table| table.as_object_mut()) {
                table.remove(key);
            }
        }
        // Equal GPUs give equal results.
        if let Some(device) = value.pointer_mut("/train/device") {
            *device = device.as_str().and_then(|name| name.split(':').next()).into();
        }
        // Tensor workers on another kind of device round differently, and with tensor workers, a GPU does not keep the graph.
        if let Some(train) = &self.train
            && let Some(device) = train.tensor_workers.as_ref().map(|tensor| tensor.device(train.device))
            && (device.is_gpu() || train.device.is_gpu())
        {
            value["train"]["tensor_workers"] = device.kind().into();
        }
        digest(&value)
    }
}

fn collect_places(node: &Node, path: &str, places: &mut BTreeMap<String, Location>) {
    let tree::Value::Table(entries) = &node.value else { return };
    for entry in entries {
        let inner = if path.is_empty() { entry.key.clone() } else { format!("{path}.{}", entry.key) };
        places.insert(inner.clone(), entry.place.clone());
        collect_places(&entry.node, &inner, places);
    }
}

/// Removes defaults that the checks would refuse beside the other keys of a resolved pipeline.
fn remove_conflicting_defaults(value: &mut toml::Value, config: &Config) {
    let mut remove = |section: &[&str], keys: &[&str]| {
        let table = section.iter().try_fold(&mut *value, |value, key| value.get_mut(key));
        if let Some(table) = table.and_then(toml::Value::as_table_mut) {
            keys.iter().for_each(|key| drop(table.remove(*key)));
        }
    };
    if config.graph.dataset.is_some() {
        let reading = ["undirected", "duplicates", "self_loops", "columns", "normalize_features", "feature_dtype"];
        remove(&["graph"], &reading);
        remove(&["graph"], &["unknown_nodes", "isolated", "reverse_edges", "k_core", "largest_component"]);
        remove(&["partition"], &["method", "parts", "seed", "out", "balance", "refine"]);
    }
    if !config.cluster.elastic {
        remove(&["cluster"], &["elastic_wait"]);
    }
    if config.partition.parts != Parts::Auto {
        remove(&["partition"], &["workers"]);
    }
    if config.partition.method != "file" {
        remove(&["partition"], &["file_columns"]);
    }
    if config.graph.generate.is_some() {
        remove(&["graph"], &["columns"]);
    }
    if config.debug == Debug::default() {
        remove(&[], &["debug"]);
    }
    if let Some(model) = &config.model {
        let decoded = config.train.as_ref().is_some_and(|train| train.learns_edges());
        remove(&["model"], &model.refused_defaults(decoded));
    }
    let Some(train) = &config.train else { return };
    remove(&["train"], &uses::unused(train));
    for path in ["train.schedule", "train.sampler", "train.optimizer", "train.lr_schedule", "model.embedding.optimizer"]
    {
        let value = path.split('.').try_fold(&mut *value, |value, key| value.get_mut(key));
        let schema = schema::at(reference::schema(), path);
        if let Some((value, schema)) = value.zip(schema) {
            shorten(schema, value);
        }
    }
}

/// Removes defaults that need another key from the table of a choice. A table with only defaults becomes a word.
fn shorten(schema: &serde_json::Value, value: &mut toml::Value) {
    if let Some(items) = value.get_mut("candidates").and_then(toml::Value::as_array_mut) {
        let schema = schema::at(schema, "candidates");
        items.iter_mut().zip(schema.into_iter().cycle()).for_each(|(item, schema)| shorten(&schema["items"], item));
    }
    if let Some(table) = value.as_table_mut() {
        if table.get("mode").and_then(toml::Value::as_str) != Some(Mode::Async.word()) {
            table.remove("staleness");
        }
        if !table.contains_key("cache") {
            table.remove("cache_policy");
        }
    }
    let json = serde_json::to_value(&*value).unwrap_or_default();
    if let Some(word) = reference::short(schema, &json).as_str() {
        *value = toml::Value::String(word.into());
    }
}

#[cfg(test)]
mod tests;
