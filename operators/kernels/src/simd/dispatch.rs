//! Run-time choice of the instruction set, detected once per call from a cache.
//!
//! Loops that the compiler vectorizes are wrapped in [`multiversion!`]; loops with explicit lanes are generic over
//! `isa::Isa`. Both are compiled for AVX-512, AVX2 and the build's baseline. No kernel uses fused multiply-add, so
//! all give the same bits.

/// An instruction set for which loops are compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// AVX-512 F, BW, VL, DQ with F16C.
    V4,
    /// AVX2 with F16C.
    V3,
    /// The build's target features.
    Baseline,
}

/// Returns the best level of this machine.
#[inline]
pub fn level() -> Level {
    #[cfg(test)]
    if let Some(forced) = tests::forced() {
        return forced;
    }
    #[cfg(target_arch = "x86_64")]
    {
        use std::is_x86_feature_detected as has;
        if has!("avx2") && has!("f16c") {
            if has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512dq") {
                return Level::V4;
            }
            return Level::V3;
        }
    }
    Level::Baseline
}

/// Compiles a function for every [`Level`] and calls the best one at run time. Generic parameters are in brackets after
/// the name: `fn f [T: Real] (x: &[T]) { … }`. The trait of the first one has the constant `VECTORS`; if it is false, the function is
/// compiled for the baseline only.
#[doc(hidden)]
#[macro_export]
macro_rules! multiversion {
    (@versions $vectors:expr; $(#[$meta:meta])* $vis:vis fn $name:ident [$($generics:tt)*] ($($arg:ident : $ty:ty),*) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name <$($generics)*> ($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body <$($generics)*> ($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
            fn v4 <$($generics)*> ($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,f16c")]
            fn v3 <$($generics)*> ($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
            #[cfg(target_arch = "x86_64")]
            if $vectors {
                match $crate::simd::dispatch::level() {
                    // SAFETY: `level` found these features on this machine.
                    $crate::simd::dispatch::Level::V4 => return unsafe { v4($($arg),*) },
                    // SAFETY: as above.
                    $crate::simd::dispatch::Level::V3 => return unsafe { v3($($arg),*) },
                    $crate::simd::dispatch::Level::Baseline => {}
                }
            }
            body($($arg),*)
        }
    };
    ($(#[$meta:meta])* $vis:vis fn $name:ident [$first:ident : $bound:path $(, $($rest:tt)*)?] ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $crate::multiversion! {
            @versions $first::VECTORS;
            $(#[$meta])* $vis fn $name [$first: $bound $(, $($rest)*)?] ($($arg: $ty),*) $(-> $ret)? $body
        }
    };
    ($(#[$meta:meta])* $vis:vis fn $name:ident ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $crate::multiversion! { @versions true; $(#[$meta])* $vis fn $name [] ($($arg: $ty),*) $(-> $ret)? $body }
    };
}
pub use multiversion;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU8, Ordering};

    use gnnflow_data::rng::{Key, Purpose};
    use half::bf16;

    use super::{Level, level};
    use crate::aggregate as propagate;
    use crate::aggregate::Sources;
    use crate::aggregate::attention::STATE;
    use crate::aggregate::attention_backward::AttentionBackward;
    use crate::aggregate::attention_logits::Attention;
    use crate::aggregate::dynamic_attention::{DynamicAttention, SOFTMAX_STATE};
    use crate::aggregate::dynamic_attention_backward::DynamicAttentionBackward;
    use crate::aggregate::maximum::{Maximum, MaximumBackward};
    use crate::aggregate::transpose::transpose;
    use crate::aggregate::{edge_softmax, segment, weighted};
    use crate::dense::elementwise::{Activation, Dropout, activate, activate_backward, column_sum};
    use crate::dense::to_bf16::to_bf16;
    use crate::dense::{heads, loss, norm};
    use crate::pair_scores as edge_scores;
    use crate::pair_scores::Ends;
    use crate::score_matrix::{self, Interleaved, QUERIES, ROWS};

    /// 0: as detected; otherwise the level to use. Concurrent tests are not affected: all levels give the same results.
    static FORCED: AtomicU8 = AtomicU8::new(0);

    pub(crate) fn forced() -> Option<Level> {
        [None, Some(Level::Baseline), Some(Level::V3), Some(Level::V4)][FORCED.load(Ordering::Relaxed) as usize]
    }

    /// Results of many kernels on odd widths.
    fn results() -> Vec<u32> {
        let key = Key::new(4, Purpose::GenerateNodes);
        let normal =
            |len: usize, k: u64| -> Vec<f32> { (0..len as u64).map(|i| key.fold(k).normal(i) as f32).collect() };
        let (rows, sources) = (90, 120);
        let mut indptr = vec![0u32];
        for row in 0..rows as u64 {
            indptr.push(indptr[row as usize] + key.below(row, 12) as u32);
        }
        let indices: Vec<u32> =
            (0..u64::from(indptr[rows])).map(|e| key.below(1000 + e, sources as u64) as u32).collect();
        let by_source = transpose(sources, &indptr, &indices);
        let mut all = Vec::new();
        for width in [1, 7, 16, 33, 100, 135] {
            let x = normal(sources * width, 1);
            let mut half = vec![bf16::ZERO; x.len()];
            to_bf16(&x, 1.0, &mut half);
            all.extend(half.iter().map(|x| x.to_f32()));
            let w = normal(indices.len(), 2);
            let mut out = vec![0f32; rows * width];
            segment::mean(&indptr, &indices, &x, width, &mut out);
            all.extend_from_slice(&out);
            segment::sum(&indptr, &indices, &half, width, &mut out);
            all.extend_from_slice(&out);
            weighted::sum(&indptr, &indices, &w, 1, &x, width, &mut out);
            all.extend_from_slice(&out);
            let (mut dx, mut dw) = (vec![0f32; x.len()], vec![0f32; w.len()]);
            weighted::backward_rows(&by_source, &w, 1, &out, width, &mut dx);
            weighted::backward_weights(&indptr, &indices, &out, 1, &x, width, &mut dw);
            all.extend(dx.iter().chain(&dw));
            let mut alpha = vec![0f32; w.len()];
            edge_softmax::forward(&indptr, &w, 1, &mut alpha);
            all.extend_from_slice(&alpha);
            for activation in
                [Activation::Relu, Activation::Elu, Activation::LeakyRelu(0.2), Activation::Tanh, Activation::Gelu]
            {
                let dropout = Some(Dropout::new(0.3, key));
                activate(activation, dropout, &x, &mut dx);
                all.extend_from_slice(&dx);
                activate_backward(activation, dropout, &x, &normal(x.len(), 3), &mut dx);
                all.extend_from_slice(&dx);
            }
            let mut sums = vec![0f32; width];
            column_sum(&x, &mut sums);
            all.extend_from_slice(&sums);
            let (right, gradient) = (normal(rows * width, 5), normal(x.len(), 6));
            let vectors = sums.clone();
            let attention = Attention { left: &x, right: &right, vectors: &vectors, heads: 1, slope: 0.2 };
            attention.logits(&indptr, &indices, &mut alpha);
            attention.backward_left(&by_source, &w, &mut dx);
            attention.backward_vectors(&indptr, &indices, &w, &mut sums);
            all.extend(alpha.iter().chain(&dx).chain(&sums));
            norm::rows(&x, 0.1, &sums, &sums, &mut dx);
            all.extend_from_slice(&dx);
            norm::rows_backward(&x, 0.1, &sums, &gradient, &mut dx);
            all.extend_from_slice(&dx);
            let (mean, variance) = norm::column_moments(&x, width);
            let [mean, inverse] = [mean, variance].map(|v| v.iter().map(|&v| v as f32).collect::<Vec<_>>());
            let columns = norm::Columns { mean: &mean, inverse: &inverse };
            columns.normalize(&x, &sums, &sums, &mut dx);
            all.extend_from_slice(&dx);
            columns.backward(&x, &sums, &gradient, [&sums, &sums], &mut dx);
            all.extend_from_slice(&dx);
            let ends: [Vec<u32>; 2] =
                [7, 8].map(|k| (0..500).map(|i| key.fold(k).below(i, sources as u64) as u32).collect());
            let types: Vec<u16> = (0..500).map(|i| (i % 3) as u16).collect();
            let ends = Ends { heads: &ends[0], tails: &ends[1], relations: &types };
            let (vectors, gradient) = (normal(3 * width, 9), normal(500, 10));
            let (mut scores, mut of_vectors) = (vec![0f32; 500], vec![0f32; 3 * width]);
            edge_scores::scores(ends, &x, Some(&vectors), width, &mut scores);
            edge_scores::backward_rows(ends, &x, Some(&vectors), width, &gradient, &mut dx);
            edge_scores::backward_relations(ends, &x, width, &gradient, &mut of_vectors);
            all.extend(scores.iter().chain(&dx).chain(&of_vectors));
            let queries = Interleaved::new(&vectors, width);
            for rows in Interleaved::new(&x, width).groups(3) {
                let mut scores = vec![0f32; QUERIES * ROWS * rows.len() / width];
                score_matrix::scores(queries.groups(1).next().unwrap(), rows, &mut scores);
                all.extend_from_slice(&scores);
            }
            let (heads, slope) = (if width == 16 { 4 } else { 1 }, 0.2);
            let (left, mut states) = (normal(sources * heads, 7), normal(rows * STATE * heads, 8));
            let job = propagate::attention::Attention {
                indptr: &indptr,
                indices: &indices,
                x: Sources::new(&half, width),
                left: Sources::new(&left, heads),
                heads,
                width: width / heads,
                slope,
                dropout: None,
            };
            job.forward(&mut states, &mut out);
            let mut d_right = vec![0f32; rows * heads];
            job.backward_right(&right, &mut states, &mut d_right);
            let job = AttentionBackward {
                indptr: &by_source.indptr,
                indices: &by_source.indices,
                gradient: Sources::new(&right, width),
                states: Sources::new(&states, STATE * heads),
                x: &half,
                left: &left,
                heads,
                width: width / heads,
                slope,
                dropout: None,
            };
            let mut d_left = vec![0f32; sources * heads];
            job.run(&mut dx, &mut d_left);
            all.extend(out.iter().chain(&states).chain(&d_right).chain(&dx).chain(&d_left));
            let (slope, vectors) = (0.2, &normal(width, 9)[..]);
            let mut states = normal(rows * (width + SOFTMAX_STATE * heads), 10);
            let job = DynamicAttention {
                indptr: &indptr,
                indices: &indices,
                x: Sources::new(&half, width),
                vectors,
                heads,
                width: width / heads,
                slope,
                dropout: None,
            };
            job.forward(&mut states, &mut out);
            let mut d_right = vec![0f32; rows * width];
            job.backward_right(&right, &mut states, &mut d_right);
            let mut d_left = vec![0f32; sources * width];
            DynamicAttentionBackward {
                indptr: &by_source.indptr,
                indices: &by_source.indices,
                gradient: Sources::new(&right, width),
                states: Sources::new(&states, width + SOFTMAX_STATE * heads),
                x: &half,
                vectors,
                heads,
                width: width / heads,
                slope,
                dropout: None,
            }
            .run(&mut dx, &mut d_left);
            all.extend(out.iter().chain(&states).chain(&d_right).chain(&dx).chain(&d_left));
            let mut largest = vec![0; out.len()];
            Maximum { indptr: &indptr, indices: &indices, x: Sources::new(&x, width), width }
                .run(&mut out, &mut largest);
            let argmax: Vec<f32> = largest.iter().map(|&row| f32::from_bits(row)).collect();
            MaximumBackward {
                indptr: &by_source.indptr,
                indices: &by_source.indices,
                gradient: Sources::new(&right, width),
                largest: Sources::new(&argmax, width),
                ids: &(0..sources as u32).collect::<Vec<_>>(),
                width,
            }
            .run(&mut dx);
            all.extend(out.iter().chain(&dx));
            let labels: Vec<u32> = (0..sources as u64).map(|r| key.fold(11).below(r, width as u64) as u32).collect();
            let targets: Vec<f32> = x.iter().map(|x| f32::from(*x > 0.0)).collect();
            let losses = [
                loss::cross_entropy(&x, &labels, width),
                loss::binary_cross_entropy(&x, &targets, width),
                loss::sigmoid_focal_loss(&x, &x, 1.5, width),
            ];
            all.extend(losses.iter().flat_map(|loss| [*loss as f32, (loss - f64::from(*loss as f32)) as f32]));
            loss::cross_entropy_backward(&x, &labels, width, 0.3, &mut dx);
            all.extend_from_slice(&dx);
            loss::binary_cross_entropy_backward(&x, &targets, width, 0.3, &mut dx);
            all.extend_from_slice(&dx);
            loss::sigmoid_focal_loss_backward(&x, &x, 1.5, width, 0.3, &mut dx);
            all.extend_from_slice(&dx);
            let mut logarithms = vec![0f32; x.len()];
            loss::log_softmax(&x, width, &mut logarithms);
            loss::log_softmax_backward(&logarithms, &x, width, &mut dx);
            all.extend(logarithms.iter().chain(&dx));
            let mut dots = vec![0f32; sources];
            heads::dot(&x, &sums, 1, &mut dots);
            all.extend_from_slice(&dots);
        }
        all.into_iter().map(f32::to_bits).collect()
    }

    #[test]
    fn all_instruction_sets_give_the_same_bits() {
        let best = level();
        let wanted = results();
        for (k, other) in [(1, Level::Baseline), (2, Level::V3), (3, Level::V4)] {
            if other == Level::V3 && best == Level::Baseline || other == Level::V4 && best != Level::V4 {
                println!("this machine lacks {other:?}");
                continue;
            }
            FORCED.store(k, Ordering::Relaxed);
            assert!(results() == wanted, "{other:?} differs");
        }
        FORCED.store(0, Ordering::Relaxed);
    }
}
