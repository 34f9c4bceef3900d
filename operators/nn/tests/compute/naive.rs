//! Kernels against naive loops, on every shape of block, every width and every number type.

use gnnflow_kernels::aggregate::attention_logits::Attention;
use gnnflow_kernels::aggregate::transpose::transpose;
use gnnflow_kernels::aggregate::{edge_add, edge_softmax, messages, segment, weighted};
use gnnflow_kernels::block::Block;
use gnnflow_kernels::dense::{elementwise, heads, loss, norm};
use gnnflow_kernels::simd::element::Element;
use half::{bf16, f16};

use crate::factory::{normal, shapes};

const WIDTHS: [usize; 9] = [1, 3, 8, 16, 17, 47, 100, 128, 300];

/// Calls `f(block, edge, source)` for every edge of destination `row`.
fn edges(block: &Block, row: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
    let range = block.indptr()[row] as usize..block.indptr()[row + 1] as usize;
    range.map(|e| (e, block.indices()[e] as usize))
}

#[track_caller]
fn assert_near(what: &str, found: &[f32], wanted: impl IntoIterator<Item = f64>) {
    let mut count = 0;
    for (i, w) in wanted.into_iter().enumerate() {
        assert!((f64::from(found[i]) - w).abs() <= 2e-5 * (1.0 + w.abs()), "{what}[{i}]: {}; expected {w}", found[i]);
        count = i + 1;
    }
    assert_eq!(found.len(), count, "{what}: size");
}

fn sums_and_means<T: Element<Acc = f32>>(from: impl Fn(f32) -> T) {
    for (name, block) in shapes() {
        for width in WIDTHS {
            let x: Vec<T> = normal(block.num_src() * width, 1).into_iter().map(&from).collect();
            let sums: Vec<f64> = (0..block.num_dst() * width)
                .map(|k| edges(&block, k / width).map(|(_, s)| f64::from(x[s * width + k % width].widen())).sum())
                .collect();
            let mut out = vec![f32::NAN; sums.len()];
            segment::sum(block.indptr(), block.indices(), &x, width, &mut out);
            assert_near(&format!("{name}: sum of {width}"), &out, sums.iter().copied());
            let wide: Vec<i64> = block.indptr().iter().map(|&p| i64::from(p)).collect();
            let mut again = vec![f32::NAN; sums.len()];
            segment::sum(&wide, block.indices(), &x, width, &mut again);
            assert_eq!(out, again, "{name}: i64 offsets");
            segment::mean(block.indptr(), block.indices(), &x, width, &mut out);
            let means = sums.iter().enumerate().map(|(k, sum)| sum / (block.neighbors(k / width).len().max(1) as f64));
            assert_near(&format!("{name}: mean of {width}"), &out, means);
        }
    }
}

#[test]
fn sums_and_means_of_every_type_equal_naive_loops() {
    sums_and_means(|x| x);
    sums_and_means(bf16::from_f32);
    sums_and_means(f16::from_f32);
}

#[test]
fn maxima_equal_naive_loops() {
    for (name, block) in shapes() {
        for width in WIDTHS {
            let x = normal(block.num_src() * width, 2);
            let mut arg = vec![0; block.num_dst() * width];
            segment::argmax(block.indptr(), block.indices(), &x, width, &mut arg);
            let mut out = vec![f32::NAN; arg.len()];
            segment::pick(block.indices(), &arg, &x, width, &mut out);
            let largest = |k: usize| edges(&block, k / width).map(|(_, s)| x[s * width + k % width]).reduce(f32::max);
            assert_near(
                &format!("{name}: max of {width}"),
                &out,
                (0..arg.len()).map(|k| f64::from(largest(k).unwrap_or(0.0))),
            );
            // Of equal numbers the first edge is picked, and NaN never replaces a number.
            let mut first = vec![0; block.num_dst()];
            segment::argmax(block.indptr(), block.indices(), &vec![1f32; block.num_src()], 1, &mut first);
            for (row, &edge) in first.iter().enumerate() {
                let wanted = if block.neighbors(row).is_empty() { segment::NO_EDGE } else { block.indptr()[row] };
                assert_eq!(edge, wanted, "{name}: first of equals");
            }
        }
    }
}

#[test]
fn weighted_sums_and_gradients_equal_naive_loops() {
    for (name, block) in shapes() {
        let by_source = transpose(block.num_src(), block.indptr(), block.indices());
        for (heads, width) in [(1, 1), (1, 100), (2, 5), (8, 8), (3, 40)] {
            let columns = heads * width;
            let x = normal(block.num_src() * columns, 3);
            let w = normal(block.num_edges() * heads, 4);
            let g = normal(block.num_dst() * columns, 5);
            let (mut out, mut dx, mut dw) = (vec![0.0; g.len()], vec![0.0; x.len()], vec![0.0; w.len()]);
            weighted::sum(block.indptr(), block.indices(), &w, heads, &x, width, &mut out);
            weighted::backward_rows(&by_source, &w, heads, &g, width, &mut dx);
            weighted::backward_weights(block.indptr(), block.indices(), &g, heads, &x, width, &mut dw);
            let (mut out2, mut dx2, mut dw2) = (vec![0f64; g.len()], vec![0f64; x.len()], vec![0f64; w.len()]);
            for row in 0..block.num_dst() {
                for (e, s) in edges(&block, row) {
                    for c in 0..columns {
                        let weight = e * heads + c / width;
                        let (xs, gr) = (s * columns + c, row * columns + c);
                        out2[gr] += f64::from(w[weight]) * f64::from(x[xs]);
                        dx2[xs] += f64::from(w[weight]) * f64::from(g[gr]);
                        dw2[weight] += f64::from(x[xs]) * f64::from(g[gr]);
                    }
                }
            }
            assert_near(&format!("{name}: weighted sum"), &out, out2);
            assert_near(&format!("{name}: gradient of rows"), &dx, dx2);
            assert_near(&format!("{name}: gradient of weights"), &dw, dw2);
        }
    }
}

#[test]
fn edge_messages_and_gradients_equal_naive_loops() {
    for (name, block) in shapes() {
        let by_source = transpose(block.num_src(), block.indptr(), block.indices());
        for width in [1, 5, 16, 100] {
            let (x, e) = (normal(block.num_src() * width, 3), normal(block.num_edges() * width, 4));
            let g = normal(block.num_dst() * width, 5);
            let (mut out, mut dx, mut de) = (vec![f32::NAN; g.len()], vec![f32::NAN; x.len()], vec![f32::NAN; e.len()]);
            messages::sum(block.indptr(), block.indices(), &x, &e, width, &mut out);
            messages::backward_rows(&by_source, &x, &e, &g, width, &mut dx);
            messages::backward_edges(block.indptr(), block.indices(), &x, &e, &g, width, &mut de);
            let (mut out2, mut dx2, mut de2) = (vec![0f64; g.len()], vec![0f64; x.len()], vec![0f64; e.len()]);
            for row in 0..block.num_dst() {
                for (edge, s) in edges(&block, row) {
                    for c in 0..width {
                        let (xs, er, gr) = (s * width + c, edge * width + c, row * width + c);
                        let message = f64::from(x[xs] + e[er]);
                        out2[gr] += message.max(0.0);
                        if message > 0.0 {
                            dx2[xs] += f64::from(g[gr]);
                            de2[er] += f64::from(g[gr]);
                        }
                    }
                }
            }
            assert_near(&format!("{name}: sum of messages"), &out, out2);
            assert_near(&format!("{name}: gradient of rows"), &dx, dx2);
            assert_near(&format!("{name}: gradient of edges"), &de, de2);
        }
    }
}

#[test]
fn edge_values_equal_naive_loops() {
    for (name, block) in shapes() {
        let by_source = transpose(block.num_src(), block.indptr(), block.indices());
        for heads in [1, 3, 8] {
            let (left, right) = (normal(block.num_src() * heads, 6), normal(block.num_dst() * heads, 7));
            let mut z = vec![0.0; block.num_edges() * heads];
            edge_add::forward(block.indptr(), block.indices(), &left, &right, heads, &mut z);
            let mut alpha = vec![0.0; z.len()];
            edge_softmax::forward(block.indptr(), &z, heads, &mut alpha);
            let (mut sums, mut by_src) = (vec![0.0; right.len()], vec![0.0; left.len()]);
            segment::edge_sum(block.indptr(), &z, heads, &mut sums);
            segment::edge_sum_by_source(&by_source, &z, heads, &mut by_src);
            let (mut sums2, mut by_src2) = (vec![0f64; right.len()], vec![0f64; left.len()]);
            for row in 0..block.num_dst() {
                for h in 0..heads {
                    let total: f64 = edges(&block, row).map(|(e, _)| f64::from(z[e * heads + h]).exp()).sum();
                    for (e, s) in edges(&block, row) {
                        let value = f64::from(z[e * heads + h]);
                        assert_eq!(z[e * heads + h], left[s * heads + h] + right[row * heads + h], "{name}: edge add");
                        let share = f64::from(alpha[e * heads + h]);
                        assert!((share - value.exp() / total).abs() < 1e-6, "{name}: softmax");
                        sums2[row * heads + h] += value;
                        by_src2[s * heads + h] += value;
                    }
                }
            }
            assert_near(&format!("{name}: edge sum"), &sums, sums2);
            assert_near(&format!("{name}: edge sum by source"), &by_src, by_src2);
        }
    }
}

#[test]
fn gatv2_attention_equals_naive_loops() {
    for (name, block) in shapes() {
        for (heads, width) in [(1, 1), (3, 20), (2, 33)] {
            let columns = heads * width;
            let (left, right) = (normal(block.num_src() * columns, 6), normal(block.num_dst() * columns, 7));
            let vectors = normal(columns, 8);
            let mut out = vec![f32::NAN; block.num_edges() * heads];
            let attention = Attention { left: &left, right: &right, vectors: &vectors, heads, slope: 0.2 };
            attention.logits(block.indptr(), block.indices(), &mut out);
            let mut wanted = vec![0f64; out.len()];
            for row in 0..block.num_dst() {
                for (e, s) in edges(&block, row) {
                    for c in 0..columns {
                        let sum = f64::from(left[s * columns + c]) + f64::from(right[row * columns + c]);
                        wanted[e * heads + c / width] += f64::from(vectors[c]) * sum.max(0.2 * sum);
                    }
                }
            }
            assert_near(&format!("{name}: attention"), &out, wanted);
        }
    }
}

#[test]
fn moments_and_norms_equal_naive_loops() {
    for (rows, width) in [(1, 3), (2, 1), (700, 33), (40, 100)] {
        let x: Vec<f32> = normal(rows * width, 9).iter().map(|x| 3.0 * x + 50.0).collect();
        let at = |r: usize, c: usize| f64::from(x[r * width + c]);
        let (mean, variance) = norm::column_moments(&x, width);
        for c in 0..width {
            let wanted = (0..rows).map(|r| at(r, c)).sum::<f64>() / rows as f64;
            let spread = (0..rows).map(|r| (at(r, c) - wanted).powi(2)).sum::<f64>() / rows as f64;
            assert!((mean[c] - wanted).abs() < 1e-4 && (variance[c] - spread).abs() < 1e-3 * (1.0 + spread));
        }
        let (weight, bias) = (normal(width, 1), normal(width, 2));
        let mut out = vec![f32::NAN; x.len()];
        norm::rows(&x, 0.1, &weight, &bias, &mut out);
        for r in 0..rows {
            let mean = (0..width).map(|c| at(r, c)).sum::<f64>() / width as f64;
            let variance = (0..width).map(|c| (at(r, c) - mean).powi(2)).sum::<f64>() / width as f64;
            for c in 0..width {
                let wanted = (at(r, c) - mean) / (variance + 0.1).sqrt() * f64::from(weight[c]) + f64::from(bias[c]);
                assert!((f64::from(out[r * width + c]) - wanted).abs() < 1e-4 * (1.0 + wanted.abs()));
            }
        }
    }
}

#[test]
fn softmax_of_huge_logits_is_finite() {
    let mut out = [0f32; 3];
    edge_softmax::forward(&[0u32, 3], &[1e30, 1e30, -1e30], 1, &mut out);
    assert_eq!(out[..2], [0.5, 0.5]);
    assert!(out[2] < 1e-30);
}

#[test]
fn transposes_equal_naive_loops() {
    for (name, block) in shapes() {
        let t = transpose(block.num_src(), block.indptr(), block.indices());
        let mut wanted: Vec<(u32, u32, u32)> = Vec::new();
        for row in 0..block.num_dst() {
            wanted.extend(edges(&block, row).map(|(e, s)| (s as u32, e as u32, row as u32)));
        }
        wanted.sort_unstable();
        let found: Vec<(u32, u32, u32)> = (0..block.num_src())
            .flat_map(|s| t.indptr[s]..t.indptr[s + 1])
            .map(|place| {
                let (edge, row) = (t.edges[place as usize], t.indices[place as usize]);
                (block.indices()[edge as usize], edge, row)
            })
            .collect();
        assert_eq!(found, wanted, "{name}");
    }
}

#[test]
fn column_sums_and_heads_equal_naive_loops() {
    for (rows, width) in [(0, 3), (1, 1), (511, 7), (512, 7), (1500, 33)] {
        let x = normal(rows * width, 8);
        let mut out = vec![f32::NAN; width];
        elementwise::column_sum(&x, &mut out);
        assert_near("column sum", &out, (0..width).map(|c| (0..rows).map(|r| f64::from(x[r * width + c])).sum()));
    }
    let (rows, heads, width) = (300, 3, 20);
    let (x, a) = (normal(rows * heads * width, 9), normal(heads * width, 10));
    let mut dots = vec![0.0; rows * heads];
    heads::dot(&x, &a, heads, &mut dots);
    let dot = |k: usize| (0..width).map(|c| f64::from(x[k * width + c]) * f64::from(a[k % heads * width + c])).sum();
    assert_near("head dot", &dots, (0..rows * heads).map(dot));
}

#[test]
fn dropout_drops_its_share() {
    let key = crate::factory::key(11);
    for p in [0.0, 0.1, 0.5, 0.9] {
        let dropout = elementwise::Dropout::new(p, key);
        let mut out = vec![0f32; 200_000];
        elementwise::activate(elementwise::Activation::Identity, Some(dropout), &vec![1f32; out.len()], &mut out);
        let kept = out.iter().filter(|&&x| x != 0.0).count() as f64 / out.len() as f64;
        assert!((kept - (1.0 - p)).abs() < 0.005, "{p}: {kept}");
        assert!(out.iter().enumerate().all(|(i, &x)| x == dropout.factor(i as u64) as f32));
    }
}

#[test]
fn losses_of_extreme_logits_are_finite() {
    let logits = [1e4f32, -1e4, 0.0, -1e4, 1e4, 0.0];
    assert!((loss::cross_entropy(&logits, &[1, 1], 3) - 2e4).abs() < 1.0);
    assert!((loss::binary_cross_entropy(&logits[..2], &[0.0, 1.0], 2) - 2e4).abs() < 1.0);
    assert!((loss::sigmoid_focal_loss(&logits[..2], &[-1.0, 1.0], 2.0, 2) - 2e4).abs() < 1.0);
    let mut gradient = [0f32; 2];
    loss::sigmoid_focal_loss_backward(&logits[..2], &[-1.0, 1.0], 2.0, 2, 1.0, &mut gradient);
    assert_eq!(gradient, [1.0, -1.0]);
}
