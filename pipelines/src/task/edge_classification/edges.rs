//! The edges that are classified.
//!
//! Every process reads the structure of all partitions once, from the dataset's mapped files, and keeps what is of its own
//! partitions' edges.

use std::ops::Range;
use std::sync::Arc;

use gnnflow_data::dataset::split;
use gnnflow_dataflow::sample::edge_seeds::{EdgeBatches, NegativeWay, Negatives};
use gnnflow_dataflow::sample::node_groups::NodeGroups;
use gnnflow_kernels::pairs::Edge;

use crate::config::Train;
use crate::context::edge_columns::show;
use crate::error::Error;
use crate::runtime::job::Job;
use crate::task::target_edges::{TargetRules, none_left};

/// Edges of the types that are classified, by partition; nothing of partitions hosted elsewhere but their numbers.
pub(crate) struct ClassedEdges {
    /// As they are stored.
    pub(crate) edges: Vec<Vec<Edge>>,
    /// Their classes; −1 is none.
    pub(crate) labels: Vec<Vec<i32>>,
    /// Their splits.
    pub(crate) splits: Vec<Vec<u8>>,
    /// How many they are.
    pub(crate) totals: Vec<u64>,
    /// How many of them are trained on.
    pub(crate) counts: Vec<u64>,
    reverses: Vec<Option<u16>>,
    nodes: u32,
}

impl ClassedEdges {
    /// Reads the edges of all partitions, of which `hosted` are hosted here. Where splits are drawn, edges without class are in none.
    ///
    /// # Errors
    /// When the dataset cannot be read, no edge is left to train on, one of those has no class, or none is left to stop early by.
    pub(crate) fn read(job: &Job, rules: &TargetRules, hosted: &Range<usize>, train: &Train) -> Result<Self, Error> {
        let (dataset, parts) = (&job.dataset, job.dataset.manifest().parts());
        let mut this = Self {
            edges: vec![Vec::new(); parts],
            labels: vec![Vec::new(); parts],
            splits: vec![Vec::new(); parts],
            totals: vec![0; parts],
            counts: vec![0; parts],
            reverses: rules.reverses().to_vec(),
            nodes: dataset.book().nodes() as u32,
        };
        let (drawn, mut unlabelled, mut validated) = (rules.draws_splits(), None, 0u64);
        for part in 0..parts {
            let (topology, first) = (dataset.topology(part)?, dataset.book().range(part).start as u32);
            let (here, labels) = (hosted.contains(&part), topology.labels().unwrap_or_default());
            rules.for_each(&topology, first, |edge, split, at| {
                let label = labels.get(at).copied().unwrap_or(-1);
                let split = if label < 0 && drawn { split::NONE } else { split };
                this.totals[part] += 1;
                validated += u64::from(split == split::VAL && label >= 0);
                if split == split::TRAIN {
                    this.counts[part] += 1;
                    unlabelled = unlabelled.or((label < 0).then_some(edge));
                }
                if here {
                    this.edges[part].push(edge);
                    this.labels[part].push(label);
                    this.splits[part].push(split);
                }
            });
        }
        if this.counts.iter().sum::<u64>() == 0 {
            return Err(none_left("train.edge", "train"));
        }
        if let Some(edge) = unlabelled {
            let (head, tail) = (show(job, edge.head)?, show(job, edge.tail)?);
            let message = format!(
                "the edge from node {head} to node {tail} is in the train split but has no label (graph.columns.edge_label)"
            );
            return Err(Error::Input(message));
        }
        if validated == 0 && train.early_stop.is_some() {
            let message = "no labeled edge is left in the validation split, which early stopping needs; remove this key to \
                           keep the last epoch's model";
            return Err(job.config.problem("train.early_stop", message));
        }
        Ok(this)
    }

    /// The batches of an epoch.
    pub(crate) fn batches(&self, train: &Train) -> EdgeBatches {
        let to_train = |part: usize| (0..self.edges[part].len()).filter(move |&i| self.splits[part][i] == split::TRAIN);
        let parts = 0..self.edges.len();
        EdgeBatches {
            batch: train.batch,
            seed: train.seed,
            edges: parts.clone().map(|part| to_train(part).map(|i| self.edges[part][i]).collect()).collect(),
            labels: parts.map(|part| to_train(part).map(|i| self.labels[part][i] as u32).collect()).collect(),
            negatives: Negatives { way: NegativeWay::Uniform, count: 0, nodes: Arc::new(NodeGroups::one(self.nodes)) },
            hides: train.excludes_targets(),
            reverses: self.reverses.clone(),
            share: train.edge_share(&self.counts),
        }
    }
}
