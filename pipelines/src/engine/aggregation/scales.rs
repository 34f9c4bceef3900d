//! What rows are multiplied by before and after they are added up, and how much of a node's own row belongs to its sum.
//!
//! `arrived[v] = after[v] · (Σ_u before[u] · sent[u] + own[v] · before[v] · sent[v])`. The owner multiplies by `before` when it
//! sends, so that nobody needs to know anything of a foreign node but its row; and the gradient is the same formula over the
//! out-edges, `before` and `after` exchanged.

use std::sync::Arc;

use gnnflow_dataflow::graph::local_graph::InEdges;
use gnnflow_nn::layers::Aggregation;
use rayon::prelude::*;

/// By own node, or by slot of one, in the order of ids; ones where there is nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Scales {
    pub(crate) before: Option<Vec<f32>>,
    pub(crate) after: Option<Vec<f32>>,
    /// The node's own row; zeros where there is nothing.
    pub(crate) own: Option<Vec<f32>>,
}

impl Scales {
    /// The scales of the nodes, or slots, of these partitions, the first of which is node `first`.
    pub(crate) fn of_parts(aggregation: Aggregation, mut first: u32, parts: &[Arc<dyn InEdges>]) -> Self {
        let parts = parts.iter().map(|part| {
            let begin = first;
            first += part.indptr().len() as u32 - 1;
            (begin, Arc::clone(part))
        });
        Self::of(aggregation, &parts.collect::<Vec<_>>())
    }

    /// The scales of these partitions' nodes; the first node of each stands with it.
    fn of(aggregation: Aggregation, parts: &[(u32, Arc<dyn InEdges>)]) -> Self {
        // In-edges with and without self-loops.
        let degrees = |of: &(dyn Fn(usize, usize) -> f32 + Sync)| -> Vec<f32> {
            let mut all = Vec::new();
            for (first, edges) in parts {
                let (indptr, indices) = (edges.indptr(), edges.indices());
                all.par_extend((0..indptr.len() - 1).into_par_iter().map(|local| {
                    let neighbors = &indices[indptr[local] as usize..indptr[local + 1] as usize];
                    let node = first + local as u32;
                    let loops = neighbors.partition_point(|&n| n <= node) - neighbors.partition_point(|&n| n < node);
                    of(neighbors.len(), loops)
                }));
            }
            all
        };
        // A self-loop that is in the graph is not counted twice.
        let own = || Some(degrees(&|_, loops| 1.0 - loops as f32));
        match aggregation {
            Aggregation::Nothing | Aggregation::Sum | Aggregation::Max => Self::default(),
            Aggregation::Mean | Aggregation::MeanByRelation { .. } => {
                let inverse = degrees(&|all, _| if all == 0 { 0.0 } else { (1.0 / all as f64) as f32 });
                Self { after: Some(inverse), ..Self::default() }
            }
            Aggregation::MeanWithSelf => {
                let inverse = degrees(&|all, loops| (1.0 / (all - loops + 1) as f64) as f32);
                Self { after: Some(inverse), own: own(), ..Self::default() }
            }
            Aggregation::Symmetric => {
                let norm = degrees(&|all, loops| (1.0 / ((all - loops + 1) as f64).sqrt()) as f32);
                Self { before: Some(norm.clone()), after: Some(norm), own: own() }
            }
            Aggregation::Attention { .. } => Self { own: own(), ..Self::default() },
        }
    }

    /// For gradients: what comes before, comes after.
    pub(crate) fn reversed(&self) -> Self {
        Self { before: self.after.clone(), after: self.before.clone(), own: self.own.clone() }
    }
}

/// Multiplies row r of `rows` by `scale[r]`.
pub(crate) fn scale_rows(rows: &mut [f32], width: usize, scale: Option<&[f32]>) {
    let Some(scale) = scale else { return };
    assert_eq!(rows.len(), scale.len() * width, "a number for each row");
    if width > 0 {
        rows.par_chunks_exact_mut(width).zip(scale).for_each(|(row, &scale)| row.iter_mut().for_each(|x| *x *= scale));
    }
}
