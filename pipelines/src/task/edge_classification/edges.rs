//! The edges of edge classification.
//!
//! Every process reads the structure of all partitions once, from the dataset's mapped files, and keeps the edges of its own partitions.

use std::ops::Range;
use std::sync::Arc;

use gnnflow_data::dataset::split;
use gnnflow_dataflow::sample::edge_seeds::{EdgeBatches, NegativeKind, Negatives};
use gnnflow_dataflow::sample::node_groups::NodeGroups;
use gnnflow_kernels::pairs::Edge;

use crate::config::Train;
use crate::context::edge_columns::show;
use crate::error::Error;
use crate::runtime::job::Job;
use crate::task::target_edges::{TargetRules, none_left};

/// Edges of the classified types, by partition. Edges, labels and splits are of partitions hosted here only.
pub(crate) struct ClassedEdges {
    /// Edges in stored order.
    pub(crate) edges: Vec<Vec<Edge>>,
    /// Classes; −1 for none.
    pub(crate) labels: Vec<Vec<i32>>,
    pub(crate) splits: Vec<Vec<u8>>,
    /// Number of edges.
    pub(crate) totals: Vec<u64>,
    /// Number of training edges.
    pub(crate) counts: Vec<u64>,
    /// Number of validation and test edges.
    pub(crate) held_out: u64,
    /// Number of training edges of each class, in all partitions.
    pub(crate) training_classes: Vec<u64>,
    reverses: Vec<Option<u16>>,
    nodes: u32,
}

impl ClassedEdges {
    /// Reads the edges of all partitions; `hosted` are hosted here. If splits are drawn, edges without a class are in none.
    ///
    /// # Errors
    /// When the dataset cannot be read or, for training, there are no training edges, one of them has no class, or early stopping has no validation
    /// edges.
    pub(crate) fn read(job: &Job, rules: &TargetRules, hosted: &Range<usize>, train: &Train) -> Result<Self, Error> {
        let (dataset, parts) = (&job.dataset, job.dataset.manifest().parts());
        let classes = job.labels().map_or(0, |labels| labels.classes as usize);
        let mut this = Self {
            edges: vec![Vec::new(); parts],
            labels: vec![Vec::new(); parts],
            splits: vec![Vec::new(); parts],
            totals: vec![0; parts],
            counts: vec![0; parts],
            held_out: 0,
            training_classes: vec![0; classes],
            reverses: rules.reverses().to_vec(),
            nodes: dataset.book().nodes() as u32,
        };
        let (mut unlabeled, mut validated) = (None, 0u64);
        for part in 0..parts {
            let (topology, first) = (dataset.topology(part)?, dataset.book().range(part).start as u32);
            let (here, labels) = (hosted.contains(&part), topology.labels().unwrap_or_default());
            rules.for_each(&topology, first, |edge, split, at| {
                let label = labels.get(at).copied().unwrap_or(-1);
                let split = rules.of_labeled(split, label);
                this.totals[part] += 1;
                validated += u64::from(split == split::VAL && label >= 0);
                this.held_out += u64::from(matches!(split, split::VAL | split::TEST));
                if split == split::TRAIN {
                    this.counts[part] += 1;
                    unlabeled = unlabeled.or((label < 0).then_some(edge));
                    if let Some(count) =
                        usize::try_from(label).ok().and_then(|class| this.training_classes.get_mut(class))
                    {
                        *count += 1;
                    }
                }
                if here {
                    this.edges[part].push(edge);
                    this.labels[part].push(label);
                    this.splits[part].push(split);
                }
            });
        }
        if !job.trains() {
            return Ok(this);
        }
        if this.counts.iter().sum::<u64>() == 0 {
            return Err(none_left("train.edge", "train"));
        }
        if let Some(edge) = unlabeled {
            let (head, tail) = (show(job, edge.head)?, show(job, edge.tail)?);
            let message = format!(
                "the edge from node {head} to node {tail} is in the train split but has no label \
                 (graph.columns.edge_label; null or -1 means no label, classes are 0 or more); label it, or take it out of \
                 the split"
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

    pub(crate) fn batches(&self, train: &Train) -> EdgeBatches {
        let to_train = |part: usize| (0..self.edges[part].len()).filter(move |&i| self.splits[part][i] == split::TRAIN);
        let parts = 0..self.edges.len();
        let nodes = Arc::new(NodeGroups::one(self.nodes));
        EdgeBatches {
            batch: train.batch,
            seed: train.seed,
            edges: parts.clone().map(|part| to_train(part).map(|i| self.edges[part][i]).collect()).collect(),
            labels: parts.map(|part| to_train(part).map(|i| self.labels[part][i] as u32).collect()).collect(),
            negatives: Negatives { kind: NegativeKind::Uniform, count: 0, nodes },
            hides: train.excludes_targets(),
            reverses: self.reverses.clone(),
            share: train.edge_share(&self.counts),
        }
    }
}
