//! Scores of pairs of rows.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor, bail};

use super::{elements, expect, gradient_of, linear, store, zeros};
use gnnflow_kernels::pair_scores as edge_scores;
use gnnflow_kernels::pair_scores::Ends;
use gnnflow_kernels::pairs::{Pairs, Shared};

/// `x [rows, F]` → `[pairs]`: dot products.
#[derive(Clone, Debug)]
pub(crate) struct PairDot(pub Arc<Pairs>);

/// `(x [rows, F], relations [R, F])` → `[pairs]`: DistMult's scores.
#[derive(Clone, Debug)]
pub(crate) struct PairDistMult(pub Arc<Pairs>);

/// Gradient of [`PairDot`]: `(x, gradient [pairs])` → `[rows, F]`.
#[derive(Clone, Debug)]
pub(crate) struct PairDotRows(pub Arc<Pairs>);

/// Gradient of [`PairDistMult`] with respect to the rows: `(x, relations · gradient [pairs])` → `[rows, F]`.
#[derive(Clone, Debug)]
pub(crate) struct PairDistMultRows(pub Arc<Pairs>, pub Tensor);

/// Gradient of [`PairDistMult`] with respect to its `R` (second field) relations: `(x, gradient [pairs])` → `[R, F]`.
#[derive(Clone, Debug)]
pub(crate) struct PairDistMultRelations(pub Arc<Pairs>, pub usize);

/// Returns the score of each pair: the sum over columns of the product of its two rows of `x [rows, F]` and, if given,
/// its relation's row of `relations [R, F]`. On a GPU, composed of gathers and products.
///
/// # Errors
/// When widths disagree, or a pair refers to a missing row or relation.
pub fn pair_scores(x: &Tensor, relations: Option<&Tensor>, pairs: &Arc<Pairs>) -> Result<Tensor> {
    let ((rows, width), count) = (x.dims2()?, relations.map_or(Ok(0), |relations| relations.dim(0))?);
    let most = pairs.heads.iter().chain(&pairs.tails).max().map_or(0, |&end| end as usize + 1);
    expect("pair-scores", "rows", rows.max(most), rows)?;
    if let Some(relations) = relations {
        let most = pairs.relations.iter().max().map_or(0, |&relation| usize::from(relation) + 1);
        expect("pair-scores", "relations", count.max(most), count)?;
        expect("pair-scores", "columns of relations", relations.dim(1)?, width)?;
    }
    if !x.device().is_cpu() {
        return composed(x, relations, pairs);
    }
    match relations {
        Some(relations) => x.contiguous()?.apply_op2(&relations.contiguous()?, PairDistMult(pairs.clone())),
        None => x.contiguous()?.apply_op1(PairDot(pairs.clone())),
    }
}

/// Returns the scores of each positive of `pairs` with each shared node, `[positives, nodes]`, by a matrix product.
///
/// # Errors
/// As [`pair_scores`]; and when the pairs share no nodes.
pub fn shared_scores(x: &Tensor, relations: Option<&Tensor>, pairs: &Pairs) -> Result<Tensor> {
    let Some(Shared { nodes, tails }) = &pairs.shared else { bail!("shared-scores: the pairs share no nodes") };
    let select = |from: &Tensor, ids: &[u32]| from.index_select(&Tensor::new(ids, x.device())?, 0);
    let fixed = select(x, if *tails { &pairs.heads } else { &pairs.tails })?;
    let queries = match relations {
        Some(relations) => {
            let types: Vec<u32> = pairs.relations.iter().map(|&relation| u32::from(relation)).collect();
            fixed.mul(&select(relations, &types)?)?
        }
        None => fixed,
    };
    linear(&queries, &select(x, nodes)?, None)
}

fn composed(x: &Tensor, relations: Option<&Tensor>, pairs: &Arc<Pairs>) -> Result<Tensor> {
    let select = |from: &Tensor, ids: Vec<u32>| from.index_select(&Tensor::new(ids, x.device())?, 0);
    let product = select(x, pairs.heads.clone())?.mul(&select(x, pairs.tails.clone())?)?;
    let product = match relations {
        Some(relations) => {
            product.mul(&select(relations, pairs.relations.iter().map(|&relation| u32::from(relation)).collect())?)?
        }
        None => product,
    };
    product.sum(1)
}

fn ends(pairs: &Pairs) -> Ends<'_> {
    Ends { heads: &pairs.heads, tails: &pairs.tails, relations: &pairs.relations }
}

impl CustomOp1 for PairDot {
    fn name(&self) -> &'static str {
        "pair-dot"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, width) = lx.shape().dims2()?;
        let mut out = zeros::<f32>(self.0.len());
        edge_scores::scores(ends(&self.0), elements(x, lx, self.name())?, None, width, &mut out);
        Ok((store(out), self.0.len().into()))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        gradient_of(x, || x.apply_op2_no_bwd(&g.contiguous()?, &PairDotRows(self.0.clone())))
    }
}

impl CustomOp2 for PairDotRows {
    fn name(&self) -> &'static str {
        "pair-dot-rows"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, g: &CpuStorage, lg: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, width) = lx.shape().dims2()?;
        let (x, g) = (elements::<f32>(x, lx, self.name())?, elements::<f32>(g, lg, self.name())?);
        let mut out = zeros::<f32>(rows * width);
        edge_scores::backward_rows(ends(&self.0), x, None, width, g, &mut out);
        Ok((store(out), (rows, width).into()))
    }
}

impl CustomOp2 for PairDistMult {
    fn name(&self) -> &'static str {
        "pair-distmult"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, r: &CpuStorage, lr: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, width) = lx.shape().dims2()?;
        let (x, r) = (elements::<f32>(x, lx, self.name())?, elements::<f32>(r, lr, self.name())?);
        let mut out = zeros::<f32>(self.0.len());
        edge_scores::scores(ends(&self.0), x, Some(r), width, &mut out);
        Ok((store(out), self.0.len().into()))
    }

    fn bwd(&self, x: &Tensor, r: &Tensor, _: &Tensor, g: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let g = g.contiguous()?;
        let dx = gradient_of(x, || x.apply_op2_no_bwd(&g, &PairDistMultRows(self.0.clone(), r.detach())))?;
        let dr = gradient_of(r, || x.apply_op2_no_bwd(&g, &PairDistMultRelations(self.0.clone(), r.dim(0)?)))?;
        Ok((dx, dr))
    }
}

impl CustomOp2 for PairDistMultRows {
    fn name(&self) -> &'static str {
        "pair-distmult-rows"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, g: &CpuStorage, lg: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, width) = lx.shape().dims2()?;
        let (x, g) = (elements::<f32>(x, lx, self.name())?, elements::<f32>(g, lg, self.name())?);
        let (storage, layout) = self.1.storage_and_layout();
        let candle_core::Storage::Cpu(storage) = &*storage else {
            candle_core::bail!("{}: relations are on another device than the rows", self.name())
        };
        let mut out = zeros::<f32>(rows * width);
        let relations = elements::<f32>(storage, layout, self.name())?;
        edge_scores::backward_rows(ends(&self.0), x, Some(relations), width, g, &mut out);
        Ok((store(out), (rows, width).into()))
    }
}

impl CustomOp2 for PairDistMultRelations {
    fn name(&self) -> &'static str {
        "pair-distmult-relations"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, g: &CpuStorage, lg: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, width) = lx.shape().dims2()?;
        let (x, g) = (elements::<f32>(x, lx, self.name())?, elements::<f32>(g, lg, self.name())?);
        let mut out = zeros::<f32>(self.1 * width);
        edge_scores::backward_relations(ends(&self.0), x, width, g, &mut out);
        Ok((store(out), (self.1, width).into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Var};

    #[test]
    fn pair_scores_equal_gathers_and_products() {
        let numbers = |n: usize, c: f32| (0..n).map(|i| (i as f32 * c).sin()).collect::<Vec<_>>();
        let x = Var::from_tensor(&Tensor::from_vec(numbers(5 * 9, 0.7), (5, 9), &Device::Cpu).unwrap()).unwrap();
        let r = Var::from_tensor(&Tensor::from_vec(numbers(3 * 9, 1.3), (3, 9), &Device::Cpu).unwrap()).unwrap();
        let pairs = Arc::new(Pairs {
            heads: vec![0, 1, 4, 4, 2, 0],
            tails: vec![1, 0, 4, 3, 2, 1],
            relations: vec![0, 2, 2, 0, 0, 2],
            positives: 2,
            negatives: 2,
            ..Pairs::default()
        });
        let weights = Tensor::from_vec(numbers(6, 0.4), 6, &Device::Cpu).unwrap();
        for relations in [None, Some(r.as_tensor())] {
            let graded = |scores: Tensor| {
                let loss = (&scores * &weights).unwrap().sum_all().unwrap();
                let gradients = loss.backward().unwrap();
                let of = |var: &Var| gradients.get(var).map(|g| g.flatten_all().unwrap().to_vec1::<f32>().unwrap());
                (scores.to_vec1::<f32>().unwrap(), of(&x), of(&r))
            };
            let found = graded(pair_scores(&x, relations, &pairs).unwrap());
            let expected = graded(composed(&x, relations, &pairs).unwrap());
            let close = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
            assert!(close(&found.0, &expected.0) && close(&found.1.unwrap(), &expected.1.unwrap()));
            assert_eq!(found.2.is_some(), relations.is_some());
            assert!(found.2.is_none_or(|found| close(&found, &expected.2.unwrap())));
        }
        // Shared nodes score the same as listed pairs.
        for tails in [true, false] {
            let nodes = vec![3, 0, 2];
            let with = |own: &[u32], replaced: bool| -> Vec<u32> {
                own[..2].iter().flat_map(|&end| nodes.iter().map(move |&n| if replaced { n } else { end })).collect()
            };
            let shared = Pairs {
                shared: Some(Shared { nodes: nodes.clone(), tails }),
                heads: pairs.heads[..2].to_vec(),
                tails: pairs.tails[..2].to_vec(),
                relations: pairs.relations[..2].to_vec(),
                positives: 2,
                negatives: 3,
                labels: vec![],
            };
            let listed = Arc::new(Pairs {
                heads: with(&shared.heads, !tails),
                tails: with(&shared.tails, tails),
                relations: shared.relations.iter().flat_map(|&r| [r; 3]).collect(),
                ..Pairs::default()
            });
            let graded = |scores: Tensor| {
                let scores = scores.flatten_all().unwrap();
                let gradients = (&scores * &weights).unwrap().sum_all().unwrap().backward().unwrap();
                let of = |var: &Var| gradients.get(var).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
                [scores.to_vec1::<f32>().unwrap(), of(&x), of(&r)].concat()
            };
            let found = graded(shared_scores(&x, Some(&r), &shared).unwrap());
            let expected = graded(pair_scores(&x, Some(&r), &listed).unwrap());
            assert_eq!(found.len(), expected.len());
            assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?} {expected:?}");
        }
        assert!(shared_scores(&x, None, &pairs).is_err());
        let wrong = Arc::new(Pairs { heads: vec![5], tails: vec![0], relations: vec![0], ..Pairs::default() });
        assert!(pair_scores(&x, None, &wrong).is_err());
    }
}
