//! R-GCN's sum: for each relation, a linear map of the mean over a destination's edges of that relation.
//!
//! Relations are computed in turn, so only the means of one relation are held. The backward pass computes them again.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, bail};

use super::linear::{times, times_transposed, transposed_times};
use super::{
    elements, expect, gradient_of, linear, segment_mean, segment_sum, store, widen, with_element, with_real, zeros,
};
use crate::graph_block::GraphBlock;
use gnnflow_kernels::aggregate::relations::{Relation, add_rows, take_rows};
use gnnflow_kernels::aggregate::segment;
use gnnflow_kernels::block::Block;
use gnnflow_kernels::simd::element::{Element, Real};

/// `(x [num_src, I], weights [R, O, I])` → `[num_dst, O]`; half precision in, `f32` out.
#[derive(Clone, Debug)]
pub(crate) struct RelationSum {
    /// The edges, with types below `R`.
    pub block: Arc<GraphBlock>,
}

/// Gradient of [`RelationSum`] with respect to `x`: `(gradient [num_dst, O], weights [R, O, I])` → `[num_src, I]`.
#[derive(Clone, Debug)]
pub(crate) struct RelationSumRows {
    /// The edges.
    pub block: Arc<GraphBlock>,
}

/// Gradient of [`RelationSum`] with respect to the weights: `(x [num_src, I], gradient [num_dst, O])` → `[R, O, I]`.
#[derive(Clone, Debug)]
pub(crate) struct RelationSumWeights {
    /// The edges.
    pub block: Arc<GraphBlock>,
    /// `R`
    pub relations: usize,
}

/// Returns `out[i] = Σ_r weights[r] · mean of x[j] over the edges j→i of relation r`. An empty mean is 0.
///
/// On the CPU, no table of edges × columns is computed or kept. A GPU runs [`relation_sum_composed`].
///
/// # Errors
/// When the edges have no types, a type is not below `R`, or shapes do not fit the block.
pub fn relation_sum(block: &Arc<GraphBlock>, x: &Tensor, weights: &Tensor) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return relation_sum_composed(block, x, weights);
    }
    x.contiguous()?.apply_op2(&weights.contiguous()?, RelationSum { block: block.clone() })
}

/// As [`relation_sum`], from operations of every device. Holds a mean per pair of destination and relation.
///
/// # Errors
/// As [`relation_sum`].
pub fn relation_sum_composed(block: &Arc<GraphBlock>, x: &Tensor, weights: &Tensor) -> Result<Tensor> {
    let (relations, _, columns) = weights.dims3()?;
    let edges = typed(block, relations)?;
    // The means of all relations in one table, then a sum over the means of each destination.
    let (mut indptr, mut indices, mut rows) = (vec![0u32], Vec::new(), Vec::new());
    for relation in edges {
        indptr.extend(relation.indptr[1..].iter().map(|end| indices.len() as u32 + end));
        indices.extend_from_slice(&relation.indices);
        rows.extend_from_slice(&relation.rows);
    }
    if rows.is_empty() {
        return Tensor::zeros((block.num_dst(), columns), weights.dtype(), weights.device());
    }
    let means = Block::rectangular(rows.len() as u32, block.num_src() as u32, indptr, indices);
    let means = segment_mean(&GraphBlock::new(means), &widen(x)?)?;
    let (mut mapped, mut first) = (Vec::new(), 0);
    for relation in edges {
        let means = means.narrow(0, first, relation.rows.len())?;
        mapped.push(linear(&means, &weights.get(relation.relation)?, None)?);
        first += relation.rows.len();
    }
    let mut places: Vec<(u32, u32)> = rows.iter().zip(0..).map(|(&row, place)| (row, place)).collect();
    places.sort_unstable();
    let mut indptr = vec![0u32; block.num_dst() + 1];
    rows.iter().for_each(|&row| indptr[row as usize + 1] += 1);
    (0..block.num_dst()).for_each(|row| indptr[row + 1] += indptr[row]);
    let places = places.into_iter().map(|(_, place)| place).collect();
    let sums = Block::rectangular(block.num_dst() as u32, rows.len() as u32, indptr, places);
    segment_sum(&GraphBlock::new(sums), &Tensor::cat(&mapped, 0)?)
}

/// Returns the block's edges by relation; fails unless all relations are below `relations`.
pub(super) fn typed(block: &GraphBlock, relations: usize) -> Result<&[Relation]> {
    let Some(edges) = block.relations() else { bail!("relation-sum: the block's edges have no types") };
    match edges.last() {
        Some(last) if last.relation >= relations => {
            bail!("relation-sum: an edge of relation {}, but there are {relations}", last.relation)
        }
        _ => Ok(edges),
    }
}

/// Returns the means over the edges of one relation, `[rows, width]`.
pub(super) fn means<T: Element>(relation: &Relation, x: &[T], width: usize) -> Vec<T::Acc> {
    let mut means = zeros::<T::Acc>(relation.rows.len() * width);
    segment::mean(&relation.indptr, &relation.indices, x, width, &mut means);
    means
}

/// Adds to `out [num_src, width]` the gradient of the sources' rows, given that of one relation's means.
pub(super) fn add_to_sources<T: Real>(relation: &Relation, of_means: &[T], width: usize, out: &mut [T]) {
    let back = relation.by_source();
    let mut of_sources = zeros::<T>(back.sources.len() * width);
    segment::mean_backward(&back.edges, &back.inverse, of_means, width, &mut of_sources);
    add_rows(&of_sources, width, &back.sources, out);
}

impl CustomOp2 for RelationSum {
    fn name(&self) -> &'static str {
        "relation-sum"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, w: &CpuStorage, lw: &Layout) -> Result<(CpuStorage, Shape)> {
        let ((sources, width), (relations, columns, in_dim)) = (lx.shape().dims2()?, lw.shape().dims3()?);
        expect(self.name(), "source rows", sources, self.block.num_src())?;
        expect(self.name(), "columns", width, in_dim)?;
        let (edges, rows) = (typed(&self.block, relations)?, self.block.num_dst());
        let out = with_element!(x, self.name(), T => {
            let x = elements::<T>(x, lx, self.name())?;
            let w = elements::<<T as Element>::Acc>(w, lw, self.name())?;
            let mut out = zeros::<<T as Element>::Acc>(rows * columns);
            for relation in edges {
                let weight = &w[relation.relation * columns * width..][..columns * width];
                let mapped = times_transposed(&means(relation, x, width), weight, width, columns);
                add_rows(&mapped, columns, &relation.rows, &mut out);
            }
            store(out)
        });
        Ok((out, (rows, columns).into()))
    }

    fn bwd(&self, x: &Tensor, w: &Tensor, _: &Tensor, g: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (block, g) = (&self.block, g.contiguous()?);
        let dx = gradient_of(x, || g.apply_op2_no_bwd(w, &RelationSumRows { block: block.clone() }))?;
        let dw = gradient_of(w, || {
            x.apply_op2_no_bwd(&g, &RelationSumWeights { block: block.clone(), relations: w.dim(0)? })
        })?;
        Ok((dx, dw))
    }
}

impl CustomOp2 for RelationSumRows {
    fn name(&self) -> &'static str {
        "relation-sum-rows"
    }

    fn cpu_fwd(&self, g: &CpuStorage, lg: &Layout, w: &CpuStorage, lw: &Layout) -> Result<(CpuStorage, Shape)> {
        let ((rows, columns), (relations, _, width)) = (lg.shape().dims2()?, lw.shape().dims3()?);
        expect(self.name(), "destination rows", rows, self.block.num_dst())?;
        let (edges, sources) = (typed(&self.block, relations)?, self.block.num_src());
        let out = with_real!(g, self.name(), T => {
            let (g, w) = (elements::<T>(g, lg, self.name())?, elements::<T>(w, lw, self.name())?);
            let mut out = zeros::<T>(sources * width);
            for relation in edges {
                let weight = &w[relation.relation * columns * width..][..columns * width];
                let of_means = times(&take_rows(g, columns, &relation.rows), weight, columns, width);
                add_to_sources(relation, &of_means, width, &mut out);
            }
            store(out)
        });
        Ok((out, (sources, width).into()))
    }
}

impl CustomOp2 for RelationSumWeights {
    fn name(&self) -> &'static str {
        "relation-sum-weights"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, g: &CpuStorage, lg: &Layout) -> Result<(CpuStorage, Shape)> {
        let ((_, width), (rows, columns)) = (lx.shape().dims2()?, lg.shape().dims2()?);
        expect(self.name(), "destination rows", rows, self.block.num_dst())?;
        let edges = typed(&self.block, self.relations)?;
        let out = with_element!(x, self.name(), T => {
            let x = elements::<T>(x, lx, self.name())?;
            let g = elements::<<T as Element>::Acc>(g, lg, self.name())?;
            let mut out = zeros::<<T as Element>::Acc>(self.relations * columns * width);
            for relation in edges {
                let gradient = take_rows(g, columns, &relation.rows);
                let of_weight = transposed_times(&gradient, &means(relation, x, width), columns, width);
                out[relation.relation * columns * width..][..columns * width].copy_from_slice(&of_weight);
            }
            store(out)
        });
        Ok((out, (self.relations, columns, width).into()))
    }
}
