//! The edges of link prediction, their known ends and their candidates.
//!
//! Every process reads the structure of all partitions once, from the dataset's mapped files, and keeps the edges of its own partitions. So no
//! messages are needed, and the number of processes does not change the result.

use std::ops::Range;
use std::sync::Arc;

use gnnflow_data::dataset::{Dataset, split};
use gnnflow_dataflow::sample::edge_seeds::{EdgeBatches, NegativeKind, Negatives};
use gnnflow_dataflow::sample::node_groups::NodeGroups;
use gnnflow_kernels::pairs::Edge;

use super::candidates::Candidates;
use super::known::Known;
use super::recommended::Recommended;
use super::sources::Sources;
use crate::config::{Link, NegativeSampler, Train};
use crate::context::EdgeFilter;
use crate::error::Error;
use crate::runtime::job::Job;
use crate::task::target_edges::{TargetRules, none_left};

/// The edges of link prediction, by partition. Edges are of partitions hosted here only.
pub(crate) struct LinkEdges {
    /// Training edges.
    train: Vec<Vec<Edge>>,
    /// Number of training edges of every partition.
    pub(crate) counts: Vec<u64>,
    /// Validation and test edges.
    pub(crate) held_out: Vec<[Vec<Edge>; 2]>,
    /// Number of held-out edges of every partition.
    pub(crate) held_out_counts: Vec<u64>,
    pub(crate) known: Known,
    pub(crate) nodes: Arc<NodeGroups>,
    /// The candidates of held-out edges.
    pub(crate) candidates: Candidates,
    /// For metrics of recommendations.
    pub(crate) recommended: Option<Recommended>,
    /// For recommendations, if these are wanted.
    pub(crate) sources: Option<Box<Sources>>,
    reverses: Vec<Option<u16>>,
}

impl LinkEdges {
    /// Reads the edges of all partitions; `hosted` are hosted here.
    ///
    /// # Errors
    /// When the dataset or the candidates cannot be read or, for training, there are no training edges, or early stopping has no validation edges.
    pub(crate) fn read(job: &Job, rules: &TargetRules, hosted: &Range<usize>, train: &Train) -> Result<Self, Error> {
        let (dataset, parts, link) = (&job.dataset, job.dataset.manifest().parts(), train.link());
        let (mut own, mut held_out) = (vec![Vec::new(); parts], vec![[Vec::new(), Vec::new()]; parts]);
        let (mut counts, mut held_out_counts) = (vec![0; parts], vec![0; parts]);
        let (mut validated, mut loops) = (0u64, false);
        let mut recommended = link.top_k.map(Recommended::new);
        for part in 0..parts {
            let (topology, first) = (dataset.topology(part)?, dataset.book().range(part).start as u32);
            let here = hosted.contains(&part);
            rules.for_each(&topology, first, |edge, split, _| {
                loops |= edge.head == edge.tail;
                match split {
                    split::TRAIN => {
                        counts[part] += 1;
                        if here {
                            own[part].push(edge);
                        }
                    }
                    split::VAL | split::TEST => {
                        let which = usize::from(split == split::TEST);
                        held_out_counts[part] += 1;
                        validated += u64::from(split == split::VAL);
                        if let Some(recommended) = &mut recommended {
                            recommended.add(edge, which);
                        }
                        if here {
                            held_out[part][which].push(edge);
                        }
                    }
                    _ => {}
                }
            });
        }
        if job.trains() && counts.iter().sum::<u64>() == 0 {
            return Err(none_left("train.link", "train"));
        }
        if job.trains() && validated == 0 && train.early_stop.is_some() {
            let message = "no edge is left in the validation split, which early stopping needs; remove this key to keep the \
                           last epoch's model";
            return Err(job.config.problem("train.early_stop", message));
        }
        let mut nodes = groups(dataset)?;
        if link.negative_sampler == NegativeSampler::Degree {
            let degrees = degrees(dataset, rules)?;
            nodes = nodes.with_weights(|node| u64::from(degrees[node as usize]));
        }
        let mut known = Known::of(held_out.iter().flatten().flatten(), loops);
        for part in 0..parts {
            let (topology, first) = (dataset.topology(part)?, dataset.book().range(part).start as u32);
            rules.for_each(&topology, first, |edge, split, _| known.add(edge, split));
        }
        let candidates = Candidates::open(job, &link, train.seed, held_out.iter().flatten().flatten())?;
        let (known, nodes, reverses) = (known.sorted(), Arc::new(nodes), rules.reverses().to_vec());
        let length = job.config.infer.as_ref().and_then(|infer| infer.recommendations);
        let sources = length.map(|length| Sources::find(length, dataset, rules, &nodes)).transpose()?;
        let sources = sources.map(Box::new);
        Ok(Self {
            train: own,
            counts,
            held_out,
            held_out_counts,
            known,
            nodes,
            candidates,
            recommended,
            sources,
            reverses,
        })
    }

    /// Returns the batches of training edges, which it takes.
    pub(crate) fn batches(&mut self, train: &Train, link: &Link) -> EdgeBatches {
        let kind = match link.negative_sampler {
            NegativeSampler::Uniform => NegativeKind::Uniform,
            NegativeSampler::Joint => NegativeKind::Joint,
            NegativeSampler::InBatch => NegativeKind::InBatch,
            NegativeSampler::Degree => NegativeKind::Degree,
        };
        let negatives = Negatives { kind, count: link.num_negative_edges, nodes: Arc::clone(&self.nodes) };
        let (edges, reverses) = (std::mem::take(&mut self.train), self.reverses.clone());
        let hides = train.excludes_targets();
        let share = train.edge_share(&self.counts);
        EdgeBatches {
            batch: train.batch,
            seed: train.seed,
            edges,
            labels: Vec::new(),
            negatives,
            hides,
            reverses,
            share,
        }
    }
}

/// Returns the nodes grouped by type.
fn groups(dataset: &Dataset) -> Result<NodeGroups, Error> {
    let nodes = dataset.book().nodes() as u32;
    if dataset.manifest().node_types.is_none() {
        return Ok(NodeGroups::one(nodes));
    }
    let mut runs: Vec<(u32, u16)> = Vec::new();
    for part in 0..dataset.manifest().parts() {
        let (first, nodes) = (dataset.book().range(part).start as u32, dataset.nodes(part)?);
        for (node, &kind) in (first..).zip(nodes.node_types().unwrap_or_default()) {
            if runs.last().is_none_or(|run| run.1 != kind) {
                runs.push((node, kind));
            }
        }
    }
    Ok(NodeGroups::new(&runs, nodes))
}

/// Returns the in-degrees of all nodes, over visible edges.
fn degrees(dataset: &Dataset, rules: &TargetRules) -> Result<Vec<u32>, Error> {
    let mut degrees = Vec::new();
    for part in 0..dataset.manifest().parts() {
        let visible = rules.visible(dataset.topology(part)?, dataset.book().range(part).start as u32);
        degrees.extend(visible.indptr().windows(2).map(|bounds| (bounds[1] - bounds[0]) as u32));
    }
    Ok(degrees)
}
