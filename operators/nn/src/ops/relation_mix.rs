//! Per-relation means over a destination's edges, mixed with the relations' coefficients: one mixture per basis.
//!
//! `Σ_r (Σ_b c_rb V_b)·mean_r = Σ_b V_b·(Σ_r c_rb mean_r)`: mixing the means avoids computing the relations' matrices.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, bail};

use super::relations::{add_to_sources, means, typed};
use super::{elements, expect, gradient_of, store, with_element, with_real, zeros};
use crate::graph_block::GraphBlock;
use gnnflow_kernels::dense::mixed::{add_mixed, add_products, unmixed};
use gnnflow_kernels::simd::element::Element;

/// `(x [num_src, I], coefficients [R, B])` → `[num_dst, B · I]`; half precision in, `f32` out.
#[derive(Clone, Debug)]
pub(crate) struct RelationMix {
    /// The edges, with types below `R`.
    pub block: Arc<GraphBlock>,
}

/// Gradient of [`RelationMix`] with respect to `x`: `(gradient [num_dst, B · I], coefficients [R, B])` → `[num_src, I]`.
#[derive(Clone, Debug)]
pub(crate) struct RelationMixRows {
    /// The edges.
    pub block: Arc<GraphBlock>,
}

/// Gradient of [`RelationMix`] with respect to the coefficients: `(x [num_src, I], gradient [num_dst, B · I])` → `[R, B]`.
#[derive(Clone, Debug)]
pub(crate) struct RelationMixCoefficients {
    /// The edges.
    pub block: Arc<GraphBlock>,
    /// `R`
    pub relations: usize,
}

/// Returns `out[i, b] = Σ_r coefficients[r, b] · mean of x[j] over the edges j→i of relation r`, concatenated.
///
/// # Errors
/// When the edges have no types, a type is not below `R`, `x` does not fit the block, or the device is a GPU.
pub fn relation_mix(block: &Arc<GraphBlock>, x: &Tensor, coefficients: &Tensor) -> Result<Tensor> {
    if !x.device().is_cpu() {
        bail!("relation-mix: no kernel for this device");
    }
    x.contiguous()?.apply_op2(&coefficients.contiguous()?, RelationMix { block: block.clone() })
}

impl CustomOp2 for RelationMix {
    fn name(&self) -> &'static str {
        "relation-mix"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, c: &CpuStorage, lc: &Layout) -> Result<(CpuStorage, Shape)> {
        let ((sources, width), (relations, bases)) = (lx.shape().dims2()?, lc.shape().dims2()?);
        expect(self.name(), "source rows", sources, self.block.num_src())?;
        let (edges, rows) = (typed(&self.block, relations)?, self.block.num_dst());
        let out = with_element!(x, self.name(), T => {
            let x = elements::<T>(x, lx, self.name())?;
            let c = elements::<<T as Element>::Acc>(c, lc, self.name())?;
            let mut out = zeros::<<T as Element>::Acc>(rows * bases * width);
            for relation in edges {
                let mix = &c[relation.relation * bases..][..bases];
                add_mixed(&means(relation, x, width), width, &relation.rows, mix, &mut out);
            }
            store(out)
        });
        Ok((out, (rows, bases * width).into()))
    }

    fn bwd(&self, x: &Tensor, c: &Tensor, _: &Tensor, g: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (block, g) = (&self.block, g.contiguous()?);
        let dx = gradient_of(x, || g.apply_op2_no_bwd(c, &RelationMixRows { block: block.clone() }))?;
        let dc = gradient_of(c, || {
            x.apply_op2_no_bwd(&g, &RelationMixCoefficients { block: block.clone(), relations: c.dim(0)? })
        })?;
        Ok((dx, dc))
    }
}

impl CustomOp2 for RelationMixRows {
    fn name(&self) -> &'static str {
        "relation-mix-rows"
    }

    fn cpu_fwd(&self, g: &CpuStorage, lg: &Layout, c: &CpuStorage, lc: &Layout) -> Result<(CpuStorage, Shape)> {
        let ((rows, columns), (relations, bases)) = (lg.shape().dims2()?, lc.shape().dims2()?);
        expect(self.name(), "destination rows", rows, self.block.num_dst())?;
        let (edges, sources, width) = (typed(&self.block, relations)?, self.block.num_src(), columns / bases.max(1));
        let out = with_real!(g, self.name(), T => {
            let (g, c) = (elements::<T>(g, lg, self.name())?, elements::<T>(c, lc, self.name())?);
            let mut out = zeros::<T>(sources * width);
            for relation in edges {
                let of_means = unmixed(g, width, &relation.rows, &c[relation.relation * bases..][..bases]);
                add_to_sources(relation, &of_means, width, &mut out);
            }
            store(out)
        });
        Ok((out, (sources, width).into()))
    }
}

impl CustomOp2 for RelationMixCoefficients {
    fn name(&self) -> &'static str {
        "relation-mix-coefficients"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, g: &CpuStorage, lg: &Layout) -> Result<(CpuStorage, Shape)> {
        let ((_, width), (rows, columns)) = (lx.shape().dims2()?, lg.shape().dims2()?);
        expect(self.name(), "destination rows", rows, self.block.num_dst())?;
        let (edges, bases) = (typed(&self.block, self.relations)?, columns / width.max(1));
        let out = with_element!(x, self.name(), T => {
            let x = elements::<T>(x, lx, self.name())?;
            let g = elements::<<T as Element>::Acc>(g, lg, self.name())?;
            let mut out = zeros::<<T as Element>::Acc>(self.relations * bases);
            for relation in edges {
                let sums = &mut out[relation.relation * bases..][..bases];
                add_products(&means(relation, x, width), width, &relation.rows, g, sums);
            }
            store(out)
        });
        Ok((out, (self.relations, bases).into()))
    }
}
