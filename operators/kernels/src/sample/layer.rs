//! Layer-wise sampling: one set of sources for all destinations of a hop.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use gnnflow_data::rng::Key;

use super::Edges;
use super::columns::{Columns, EdgeValues};
use super::hop::{edge_count, new_block, new_indptr};
use super::sum_tree::SumTree;
use crate::block::Block;
use crate::compact::{Compactor, IdHasher};

/// Builds the block of a hop with `nodes` common sources (LADIES; Zou et al., 2019, Algorithm 1).
///
/// Calls `samples_of` once per initial node of `list`, in order; it must return *all* in-edges. `P` is the
/// row-normalized adjacency: `P[v, u]` is the fraction of `v`'s in-edges that come from `u`. The probability of source
/// `u` is `p[u] ∝ Σ P[v, u]²` over the list. Sources are drawn without replacement in proportion to the remaining `p`.
/// Draw `j` is `unit j` under `key`, along the sources in order of first appearance. If there are at most `nodes`
/// sources, all are taken.
///
/// The block has the edges from these sources, in stored order. Their [weights](Block::edge_weights) are `P[v, u] /
/// (nodes · p[u])`, or `P[v, u]` if all sources are taken. Weights are divided among parallel edges and scaled to sum 1
/// for each destination with edges.
///
/// # Panics
/// If `compactor` belongs to another list, or a sample lacks one of `columns`.
pub fn assemble_layer<'a>(
    list: &mut Vec<u32>,
    mut samples_of: impl FnMut(u32) -> Edges<'a>,
    columns: Columns,
    nodes: u32,
    key: Key,
    compactor: &mut Compactor,
) -> Block {
    let rows: Vec<Edges<'a>> = list.iter().map(|&node| samples_of(node)).collect();
    let mut candidates: HashMap<u32, u32, BuildHasherDefault<IdHasher>> = HashMap::default();
    let mut norms: Vec<f64> = Vec::new();
    for row in &rows {
        // Neighbors are stored in ascending order, so parallel edges are adjacent.
        for parallel in row.sources.chunk_by(|a, b| a == b) {
            let share = parallel.len() as f64 / row.sources.len() as f64;
            let at = *candidates.entry(parallel[0]).or_insert(norms.len() as u32) as usize;
            norms.resize(norms.len().max(at + 1), 0.0);
            norms[at] += share * share;
        }
    }
    let scales = scales(&norms, nodes as usize, key);
    let (num_dst, mut indptr) = (list.len(), new_indptr(list.len()));
    let (mut indices, mut weights) = (Vec::new(), Vec::new());
    let mut values = EdgeValues::new(Columns { weights: false, ..columns });
    for row in &rows {
        let first = indices.len();
        let mut sum = 0.0;
        for (edge, &source) in row.sources.iter().enumerate() {
            let scale = scales[candidates[&source] as usize];
            if scale > 0.0 {
                indices.push(source);
                weights.push(scale);
                sum += scale;
                let mut one = row.columns;
                one.split_off(edge);
                values.extend(one.split_off(1));
            }
        }
        weights[first..].iter_mut().for_each(|weight| *weight /= sum);
        indptr.push(edge_count(indices.len()));
    }
    compactor.compact(&mut indices, list);
    let block = values.into_block(new_block(num_dst, list.len(), indptr, indices));
    block.with_edge_weights(weights.into_iter().map(|weight| weight as f32).collect())
}

/// Returns the unnormalized weight of an edge from each source; 0 for sources that are not drawn.
fn scales(norms: &[f64], nodes: usize, key: Key) -> Vec<f64> {
    if norms.len() <= nodes {
        return vec![1.0; norms.len()];
    }
    let mut tree = SumTree::default();
    tree.fill(norms.iter().copied());
    let mut scales = vec![0.0; norms.len()];
    for j in 0..nodes as u64 {
        let found = tree.find(key.unit(j));
        tree.remove(found);
        // The total and the number of draws are common factors, which the scaling of rows cancels.
        scales[found] = 1.0 / norms[found];
    }
    scales
}
