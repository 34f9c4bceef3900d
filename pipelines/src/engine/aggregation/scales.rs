//! The factors of rows before and after a sum, and of a node's own row in its sum.
//!
//! `aggregated[v] = after[v] · (Σ_u before[u] · sent[u] + own[v] · before[v] · sent[v])`. The owner multiplies by `before` when it sends, so
//! receivers need the row only. The gradient is the same formula over the out-edges, with `before` and `after` exchanged.

use std::sync::Arc;

use gnnflow_dataflow::graph::local_graph::InEdges;
use gnnflow_nn::layers::Aggregation;
use rayon::prelude::*;

/// Factors by own node, or by slot, in the order of ids; `None` for ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Scales {
    pub(crate) before: Option<Vec<f32>>,
    pub(crate) after: Option<Vec<f32>>,
    /// The factor of the node's own row; `None` for zeros.
    pub(crate) own: Option<Vec<f32>>,
}

impl Scales {
    /// Returns the scales of the nodes, or slots, of these partitions. `first` is the first node.
    pub(crate) fn of_parts(aggregation: Aggregation, mut first: u32, parts: &[Arc<dyn InEdges>]) -> Self {
        let parts = parts.iter().map(|part| {
            let begin = first;
            first += part.indptr().len() as u32 - 1;
            (begin, Arc::clone(part))
        });
        Self::of(aggregation, &parts.collect::<Vec<_>>())
    }

    /// Returns the scales of these partitions, each given with its first node.
    fn of(aggregation: Aggregation, parts: &[(u32, Arc<dyn InEdges>)]) -> Self {
        // Calls `of(in-edges, self-loops)` for each node.
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
        // A self-loop of the graph counts once.
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

    /// Returns the scales of gradients: `before` and `after` exchanged.
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
