//! Gradients of every operation against central differences in `f64`.

use candle_core::{Device, Result, Tensor, Var};
use gnnflow_kernels::dense::elementwise::{Activation, Dropout};
use gnnflow_nn::{GraphBlock, loss, ops};

use crate::factory::{key, normal64, random};

fn var(rows: usize, columns: usize, seed: u64) -> Var {
    let values = normal64(rows * columns, seed);
    Var::from_tensor(&Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap()).unwrap()
}

/// Compares the gradient of `Σ f(vars) · probe` with central differences, at up to 25 places of each variable.
fn check(name: &str, vars: &[Var], f: impl Fn(&[&Tensor]) -> Result<Tensor>) {
    let inputs: Vec<&Tensor> = vars.iter().map(Var::as_tensor).collect();
    let value = |probe: Option<&Tensor>| -> Tensor {
        let out = f(&inputs).unwrap();
        match probe {
            Some(probe) => (out * probe).unwrap().sum_all().unwrap(),
            None => out,
        }
    };
    let shape = value(None).shape().clone();
    let probe = Tensor::from_vec(normal64(shape.elem_count(), 99), shape, &Device::Cpu).unwrap();
    let gradients = value(Some(&probe)).backward().unwrap();
    const STEP: f64 = 1e-6;
    for (k, var) in vars.iter().enumerate() {
        let gradient: Vec<f64> = gradients.get(var).expect(name).flatten_all().unwrap().to_vec1().unwrap();
        let start: Vec<f64> = var.flatten_all().unwrap().to_vec1().unwrap();
        for place in (0..start.len()).step_by(start.len().div_ceil(25).max(1)) {
            let at = |step: f64| {
                let mut moved = start.clone();
                moved[place] += step;
                var.set(&Tensor::from_vec(moved, var.shape(), &Device::Cpu).unwrap()).unwrap();
                value(Some(&probe)).to_scalar::<f64>().unwrap()
            };
            let difference = (at(STEP) - at(-STEP)) / (2.0 * STEP);
            let error = (difference - gradient[place]).abs() / (1.0 + difference.abs());
            assert!(error < 1e-6, "{name}, input {k}, place {place}: {} against {difference}", gradient[place]);
        }
        var.set(&Tensor::from_vec(start, var.shape(), &Device::Cpu).unwrap()).unwrap();
    }
}

#[test]
fn aggregation_gradients_equal_differences() {
    let block = GraphBlock::new(random(40, 60, 7, 3));
    for width in [1, 5, 37] {
        check("sum", &[var(60, width, 1)], |v| ops::segment_sum(&block, v[0]));
        check("mean", &[var(60, width, 2)], |v| ops::segment_mean(&block, v[0]));
        check("self and mean", &[var(60, width, 2)], |v| ops::self_and_mean(&block, v[0]));
        check("max", &[var(60, width, 3)], |v| ops::segment_max(&block, v[0]));
    }
    for (heads, width) in [(1, 9), (3, 4), (2, 18)] {
        let inputs = [var(60, heads * width, 4), var(block.num_edges(), heads, 5)];
        check("weighted sum", &inputs, |v| ops::weighted_sum(&block, v[0], v[1]));
    }
}

#[test]
fn attention_gradients_equal_differences() {
    let block = GraphBlock::new(random(40, 60, 7, 4));
    check("edge add", &[var(60, 3, 1), var(40, 3, 2)], |v| ops::edge_add(&block, v[0], v[1]));
    check("edge softmax", &[var(block.num_edges(), 3, 3)], |v| ops::edge_softmax(&block, v[0]));
    check("attention softmax", &[var(60, 3, 1), var(40, 3, 2)], |v| ops::attention_softmax(&block, v[0], v[1], 0.2));
    check("head dot", &[var(60, 12, 4), var(3, 4, 5)], |v| ops::head_dot(v[0], v[1]));
    check("head mean", &[var(60, 12, 6)], |v| ops::head_mean(v[0], 3));
    let inputs = [var(60, 12, 7), var(3, 4, 8), var(3, 4, 9)];
    check("all of attention", &inputs, |v| {
        let right = ops::head_dot(&ops::prefix(v[0], 40)?, v[2])?;
        let logits = ops::edge_add(&block, &ops::head_dot(v[0], v[1])?, &right)?;
        let logits = ops::activate(&logits, Activation::LeakyRelu(0.2), None)?;
        ops::weighted_sum(&block, v[0], &ops::edge_softmax(&block, &logits)?)
    });
}

#[test]
fn gatv2_attention_gradients_equal_differences() {
    let block = GraphBlock::new(random(40, 60, 7, 4));
    for (heads, width) in [(1, 5), (3, 4), (2, 19)] {
        let inputs = [var(60, heads * width, 1), var(40, heads * width, 2), var(heads, width, 3)];
        check("attention logits", &inputs, |v| ops::attention_logits(&block, v[0], v[1], v[2], 0.2));
    }
}

#[test]
fn edge_message_gradients_equal_differences() {
    let block = GraphBlock::new(random(40, 60, 7, 4));
    for width in [1, 6, 19] {
        let inputs = [var(60, width, 1), var(block.num_edges(), width, 2)];
        check("message sum", &inputs, |v| ops::message_sum(&block, v[0], v[1]));
    }
    // Edge features enter attention before the activation.
    let inputs = [var(60, 12, 1), var(40, 12, 2), var(block.num_edges(), 4, 3), var(12, 4, 4), var(3, 4, 5)];
    check("attention with edges", &inputs, |v| {
        let sums = (ops::edge_add(&block, v[0], v[1])? + ops::linear(v[2], v[3], None)?)?;
        ops::head_dot(&ops::activate(&sums, Activation::LeakyRelu(0.2), None)?, v[4])
    });
}

#[test]
fn relation_sum_gradients_equal_differences() {
    let block = random(40, 60, 7, 5);
    let types = (0..block.num_edges() as u64).map(|e| key(6).below(e, 5) as u16 * 2).collect();
    let block = GraphBlock::new(block.with_edge_types(types));
    for (input, output) in [(3, 5), (9, 2)] {
        let inputs = [var(60, input, 1), var(10 * output, input, 2)];
        let weights = |v: &Tensor| v.reshape((10, output, input));
        check("relation sum", &inputs, |v| ops::relation_sum(&block, v[0], &weights(v[1])?));
        check("relation sum, composed", &inputs, |v| ops::relation_sum_composed(&block, v[0], &weights(v[1])?));
        let inputs = [var(60, input, 1), var(10, output, 3)];
        check("relation mix", &inputs, |v| ops::relation_mix(&block, v[0], v[1]));
    }
}

#[test]
fn norm_gradients_equal_differences() {
    for (rows, width) in [(1, 4), (7, 1), (30, 5), (600, 37)] {
        let inputs = [var(rows, width, 1), var(1, width, 2), var(1, width, 3)];
        // Few rows or columns of nearly equal numbers curve too sharply for differences; a larger ε smooths them.
        check("batch norm", &inputs, |v| Ok(ops::batch_norm(v[0], &v[1].flatten_all()?, &v[2].flatten_all()?, 0.1)?.0));
        check("layer norm", &inputs, |v| ops::layer_norm(v[0], &v[1].flatten_all()?, &v[2].flatten_all()?, 0.1));
    }
}

#[test]
fn product_gradients_equal_differences() {
    for rows in [1, 30, 1100] {
        let inputs = [var(rows, 12, 1), var(5, 12, 2), var(1, 5, 3)];
        check("linear with bias", &inputs, |v| ops::linear(v[0], v[1], Some(&v[2].flatten_all()?)));
        check("linear onto rows", &[var(rows, 12, 1), var(5, 12, 2), var(rows, 5, 3)], |v| {
            ops::linear(v[0], v[1], Some(v[2]))
        });
        check("linear", &[var(rows, 12, 1), var(5, 12, 2)], |v| ops::linear(v[0], v[1], None));
        check("matmul", &[var(rows, 12, 1), var(12, 7, 2)], |v| ops::matmul(v[0], v[1]));
    }
    for (transpose_a, transpose_b) in [(false, true), (true, false), (true, true)] {
        let a = if transpose_a { var(12, 6, 1) } else { var(6, 12, 1) };
        let b = if transpose_b { var(7, 12, 2) } else { var(12, 7, 2) };
        check("transposed matmul", &[a, b], |v| v[0].apply_op2(v[1], ops::MatMul { transpose_a, transpose_b }));
    }
}

#[test]
fn elementwise_gradients_equal_differences() {
    let smooth = [Activation::Elu, Activation::Tanh, Activation::Gelu];
    for activation in [Activation::Identity, Activation::Relu, Activation::LeakyRelu(0.2)].into_iter().chain(smooth) {
        for dropout in [None, Some(Dropout::new(0.4, key(8)))] {
            check("activate", &[var(50, 9, 1)], |v| {
                // The identity would return the variable itself, whose gradient candle does not keep.
                v[0].affine(1.0, 0.0).and_then(|x| ops::activate(&x, activation, dropout))
            });
        }
    }
    check("bias", &[var(600, 5, 2), var(1, 5, 3)], |v| ops::add_bias(v[0], &v[1].flatten_all()?));
    check("log-softmax", &[var(9, 5, 4)], |v| ops::log_softmax(v[0]));
}

#[test]
fn loss_gradients_equal_differences() {
    let labels: Vec<u32> = (0..70).map(|i| key(1).below(i, 6) as u32).collect();
    let targets: Vec<f32> = (0..420).map(|i| key(2).below(i, 2) as f32).collect();
    let error = |e: gnnflow_nn::Error| candle_core::Error::Msg(e.to_string());
    check("cross-entropy", &[var(70, 6, 5)], |v| loss::cross_entropy(v[0], &labels).map_err(error));
    let weights: Vec<f32> = (0..70).map(|i| 0.5 + (i % 7) as f32).collect();
    for gamma in [0.0, 0.5, 2.0] {
        check("focal loss", &[var(70, 6, 5)], |v| loss::focal_loss(v[0], &labels, &weights, gamma).map_err(error));
    }
    check("binary cross-entropy", &[var(70, 6, 6)], |v| loss::binary_cross_entropy(v[0], &targets).map_err(error));
    let weights: Vec<f32> = targets.iter().zip(0..).map(|(y, i)| (2.0 * y - 1.0) * (i % 5) as f32).collect();
    for gamma in [0.0, 0.5, 2.0] {
        check("sigmoid focal loss", &[var(70, 6, 6)], |v| {
            loss::sigmoid_focal_loss(v[0], &weights, gamma).map_err(error)
        });
    }
}

#[test]
fn sigmoid_focal_loss_equals_its_formula() {
    // sigmoid(ln 3) = 3/4: of a label that the node has with weight 5, and of one that it does not have.
    let logits = Var::new(&[[3f64.ln(), 3f64.ln()]], &Device::Cpu).unwrap();
    let (log, other) = (0.75f64.ln(), 0.25f64.ln());
    let cases = [
        (0.0, -5.0 * log - other, [-5.0 * 0.25, 0.75]),
        // d/dx (1 − p)² · −log p = −(1 − p)² · (1 − p − 2 p log p), and p falls where the label is absent.
        (
            2.0,
            -5.0 * 0.0625 * log - 0.5625 * other,
            [-5.0 * 0.0625 * (0.25 - 1.5 * log), 0.5625 * (0.75 - 0.5 * other)],
        ),
    ];
    for (gamma, value, slopes) in cases {
        let loss = loss::sigmoid_focal_loss(&logits, &[5.0, -1.0], gamma).unwrap();
        assert!((loss.to_scalar::<f64>().unwrap() - value).abs() < 1e-12, "{gamma}");
        let gradient = loss.backward().unwrap().remove(&logits).unwrap().to_vec2::<f64>().unwrap();
        gradient[0].iter().zip(slopes).for_each(|(found, slope)| assert!((found - slope).abs() < 1e-12, "{gamma}"));
    }
    // Weights of 1 and −1 without an exponent: binary cross-entropy.
    let plain = loss::binary_cross_entropy(&logits, &[1.0, 0.0]).unwrap().to_scalar::<f64>().unwrap();
    let ours = loss::sigmoid_focal_loss(&logits, &[1.0, -1.0], 0.0).unwrap().to_scalar::<f64>().unwrap();
    assert!((plain - ours).abs() < 1e-12);
}

#[test]
fn arguments_without_gradient_get_none() {
    let block = GraphBlock::new(random(40, 60, 7, 3));
    let (features, weight) = (Tensor::ones((60, 4), candle_core::DType::F64, &Device::Cpu).unwrap(), var(3, 4, 1));
    let mean = ops::segment_mean(&block, &features).unwrap();
    let gradients = ops::linear(&mean, &weight, None).unwrap().sum_all().unwrap().backward().unwrap();
    assert!(gradients.get(&weight).is_some());
    assert!(gradients.get(&mean).is_none() && gradients.get(&features).is_none());
}
