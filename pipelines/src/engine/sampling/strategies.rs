//! The sampling strategies of hops: from the configuration to those of the kernels, checked against the dataset.

use std::rc::Rc;
use std::sync::Arc;

use gnnflow_data::dataset::TypeInfo;
use gnnflow_dataflow::graph::local_graph::LocalGraph;
use gnnflow_dataflow::sample::sample_hop::{CompactorPool, Hop};
use gnnflow_kernels::sample::{Columns, Draw, EdgeFanout, Fanout, Importance, PerEdgeStrategy, SquaredNorms, Strategy};

use crate::collectives::{Collectives, Driver, ROUND_WORDS};
use crate::config;
use crate::config::Config;
use crate::config::sampler::{Replace, Sampler, Take, Temporal};
use crate::context::WorkerContext;
use crate::context::edge_types::find_type;
use crate::error::Error;
use crate::runtime::job::Job;

/// Returns the columns of a batch's blocks: also weights, if the sampler weighs edges.
fn batch_columns(columns: Columns, sampler: &Sampler) -> Columns {
    let weights = sampler.weighs_edges() && *sampler != Sampler::Ladies;
    Columns { weights: columns.weights || weights, ..columns }
}

/// Returns the hops of a batch on `graph`, the seeds' hop first.
pub(crate) fn hops(
    context: &WorkerContext,
    graph: &Arc<LocalGraph>,
    train: &config::Train,
    strategies: Vec<Strategy>,
) -> Vec<Hop> {
    let (count, seed, pool) = (strategies.len(), train.seed, CompactorPool::on(Arc::clone(&context.sampling)));
    let pool = if context.fused_sampling { pool } else { pool.in_two_steps() };
    let hop = |(hop, strategy)| Hop {
        graph: Arc::clone(graph),
        seed,
        hop: hop as u32,
        strategy,
        columns: batch_columns(context.columns, &train.sampler),
        last: hop + 1 == count,
        pool: pool.clone(),
        meter: Rc::clone(&context.meter),
    };
    strategies.into_iter().enumerate().map(hop).collect()
}

/// Returns the distribution of `fastgcn`'s sources: the sums of squares over the rows of all workers.
pub(crate) fn importance(
    driver: &mut Driver<'_>,
    context: &WorkerContext,
    collectives: &mut Collectives,
) -> Result<Arc<Importance>, Error> {
    let graph = &context.graph;
    let mut norms = SquaredNorms::new(graph.num_nodes());
    let view = graph.view();
    context.placement.parts_of(context.worker).for_each(|part| norms.add(&view, graph.range(part)));
    let nodes = graph.num_nodes() as usize;
    // Two words per node.
    for first in (0..nodes).step_by(ROUND_WORDS / 2) {
        let own = norms.words(first..nodes.min(first + ROUND_WORDS / 2));
        norms.absorb(first, &collectives.all_reduce_counts(driver, &own)?);
    }
    Ok(Arc::new(Importance::new(&norms)))
}

/// Returns the strategy of each hop, from the seeds on. There are none for models that read no edges, and for subgraph samplers. `importance` is
/// set for `fastgcn`.
///
/// # Errors
/// When the dataset lacks a required column or edge type, a weight is invalid, or the model needs edges that a registered sampler does not
/// return.
pub(crate) fn strategies(
    job: &Job,
    context: &WorkerContext,
    model: &config::Model,
    train: &config::Train,
    importance: Option<Arc<Importance>>,
) -> Result<Vec<Strategy>, Error> {
    if !model.uses_edges() || train.draws_subgraphs() {
        return Ok(Vec::new());
    }
    let fanouts = train.fanouts(model.layers);
    let types = job.dataset.manifest().edge_columns.edge_type.as_ref();
    if let Some(sampler) = job.registry.sampler(train.sampler.word()) {
        if !context.columns.is_empty() {
            let message = format!(
                "a registered sampler returns sources, not edges, and {:?} layers read the {} of edges; use a built-in \
                 sampler",
                model.kind,
                if context.columns.ids { "features" } else { "types" }
            );
            return Err(job.config.problem("train.sampler", message));
        }
        return Ok(fanouts.iter().map(|fanout| Strategy::Registered(Arc::clone(&sampler), fanout.most())).collect());
    }
    let draw = match &train.sampler {
        Sampler::Weighted(Replace { replace: false }) => Draw::Weighted,
        Sampler::Weighted(Replace { replace: true }) => Draw::WeightedWithReplacement,
        Sampler::Labor => Draw::Labor,
        Sampler::Temporal(Temporal { take: Take::Last }) => Draw::Last,
        Sampler::Uniform(Replace { replace: true }) => Draw::UniformWithReplacement,
        _ => Draw::Uniform,
    };
    if matches!(draw, Draw::Weighted | Draw::WeightedWithReplacement) {
        check_weights(job, context)?;
    }
    if train.sampler == Sampler::Ladies {
        let layer = |nodes: i64| u32::try_from(nodes).map_or(Strategy::Fanout(Fanout::All), Strategy::Layer);
        return Ok(fanouts.iter().map(|fanout| layer(fanout.most())).collect());
    }
    if let Some(importance) = importance {
        let draws = |fanout: &config::Fanout| u32::try_from(fanout.most()).unwrap_or(u32::MAX);
        return Ok(fanouts.iter().map(|fanout| Strategy::Importance(draws(fanout), Arc::clone(&importance))).collect());
    }
    let temporal = train.sampler.is_temporal();
    if temporal {
        check_times(job)?;
    }
    let strategy = |(hop, fanout): (usize, &config::Fanout)| {
        let fanouts = match fanout {
            config::Fanout::Each(k) if matches!(draw, Draw::Uniform | Draw::UniformWithReplacement) && !temporal => {
                return Ok(Strategy::Fanout(Fanout::new(*k, draw == Draw::UniformWithReplacement)));
            }
            config::Fanout::Each(k) => EdgeFanout::Each(*k),
            config::Fanout::ByType(fanouts) => EdgeFanout::ByType(by_type(&job.config, hop, fanouts, types)?),
        };
        Ok(Strategy::PerEdge(PerEdgeStrategy { draw, fanouts, temporal }))
    };
    fanouts.iter().enumerate().map(strategy).collect()
}

/// Refuses fanouts of unknown edge types.
///
/// # Errors
/// If the dataset lacks an edge type of `train.fanouts`.
pub(crate) fn check_types(config: &Config, types: Option<&TypeInfo>) -> Result<(), Error> {
    let fanouts = config.train.as_ref().and_then(|train| train.fanouts.as_ref());
    for (hop, fanout) in fanouts.into_iter().flatten().enumerate() {
        if let config::Fanout::ByType(fanouts) = fanout {
            by_type(config, hop, fanouts, types)?;
        }
    }
    Ok(())
}

/// Returns the fanouts of a hop by number of the edge type.
fn by_type(
    config: &Config,
    hop: usize,
    fanouts: &config::FanoutsByType,
    types: Option<&TypeInfo>,
) -> Result<Vec<i64>, Error> {
    numbers(fanouts, types).map_err(|message| config.problem(&format!("train.fanouts[{hop}]"), message))
}

/// Returns the fanouts by number of the edge type. The error of an unknown type lists the types.
fn numbers(fanouts: &config::FanoutsByType, types: Option<&TypeInfo>) -> Result<Vec<i64>, String> {
    let types =
        types.ok_or("fanouts by edge type, but edges have none; name their column in graph.columns.edge_type")?;
    let mut all = vec![0; types.count as usize];
    for (name, &fanout) in fanouts {
        all[find_type(types, name)?] = fanout;
    }
    Ok(all)
}

/// Refuses graphs without times of edges or nodes.
fn check_times(job: &Job) -> Result<(), Error> {
    let manifest = job.dataset.manifest();
    let missing = match (manifest.edge_columns.time, manifest.node_times) {
        (true, true) => return Ok(()),
        (false, true) => "edges have none; name their column in graph.columns.time",
        (true, false) => "nodes have none; name their column in graph.columns.node_time",
        (false, false) => "both have none; name their columns in graph.columns.time and graph.columns.node_time",
    };
    let message = format!("\"temporal\" compares times of edges and training nodes, and {missing}");
    Err(job.config.problem("train.sampler", message))
}

/// Refuses negative and infinite weights and NaN, in one pass over the partitions hosted here.
fn check_weights(job: &Job, context: &WorkerContext) -> Result<(), Error> {
    for part in context.placement.parts_of(context.worker) {
        let partition = context.parts.get(part);
        let Some(weights) = partition.topology.weights() else {
            let message = "\"weighted\" needs edge weights, and edges have none; name their column in \
                           graph.columns.weight, or use \"uniform\"";
            return Err(job.config.problem("train.sampler", message));
        };
        let is_weight = |weight: &f32| *weight >= 0.0 && weight.is_finite();
        let Some(edge) = weights.iter().position(|weight| !is_weight(weight)) else { continue };
        let node = partition.topology.indptr().partition_point(|&start| start <= edge as i64) - 1;
        let message = format!(
            "partition {part}: an edge to node {} has weight {}, and \"weighted\" needs finite weights of at least 0; \
             correct the column graph.columns.weight and prepare again, or use train.sampler = \"uniform\"",
            partition.nodes.ids().display(node),
            weights[edge]
        );
        return Err(Error::Input(message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_type_finds_types_by_name_and_by_number() {
        let named = TypeInfo { count: 3, names: vec!["cites".into(), "writes".into(), "rev_cites".into()] };
        let numbered = TypeInfo { count: 3, names: vec![] };
        let fanouts = |pairs: &[(&str, i64)]| pairs.iter().map(|&(name, k)| (name.to_owned(), k)).collect();
        let writes = fanouts(&[("writes", 5), ("cites", -1)]);
        assert_eq!(numbers(&writes, Some(&named)), Ok(vec![-1, 5, 0]));
        assert_eq!(numbers(&fanouts(&[("2", 5)]), Some(&numbered)), Ok(vec![0, 0, 5]));
        assert_eq!(numbers(&fanouts(&[("2", 5)]), Some(&named)), Ok(vec![0, 0, 5]));
        assert_eq!(
            numbers(&fanouts(&[("wrotes", 5)]), Some(&named)).unwrap_err(),
            "no edge has type \"wrotes\"; the types are \"cites\", \"writes\", \"rev_cites\"; did you mean \"writes\"?"
        );
        let past = numbers(&fanouts(&[("3", 5)]), Some(&numbered)).unwrap_err();
        assert_eq!(past, "no edge has type \"3\"; the types are 0 to 2");
        assert!(numbers(&writes, None).unwrap_err().contains("graph.columns.edge_type"));
    }
}
