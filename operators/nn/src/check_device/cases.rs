//! The checked operations, with their inputs and tolerances.

use std::sync::Arc;

use candle_core::{DType, Result, Tensor};
use gnnflow_data::rng::{Key, Purpose};

use super::naive::{self, Ends};
use crate::graph_block::GraphBlock;
use crate::ops;
use crate::ops::Side;
use crate::ops::softmax_loss::{BinaryCrossEntropy, CrossEntropy, SigmoidFocalLoss};
use gnnflow_kernels::block::Block;
use gnnflow_kernels::dense::elementwise::{Activation, Dropout};

/// An operation or its naive version, on the case's inputs.
pub(super) type Function = Box<dyn Fn(&[Tensor]) -> Result<Tensor>>;

pub(super) struct Case {
    pub(super) operation: &'static str,
    /// The block and sizes.
    pub(super) on: String,
    pub(super) types: &'static [DType],
    pub(super) inputs: Vec<Input>,
    /// Whether gradients are compared. Half-precision inputs are features, which need no gradients.
    pub(super) differentiable: bool,
    /// The largest allowed error in single precision.
    pub(super) tolerance: f64,
    pub(super) ours: Function,
    pub(super) naive: Function,
}

pub(super) struct Input {
    pub(super) name: &'static str,
    pub(super) shape: Vec<usize>,
    pub(super) values: Vec<f32>,
    /// Whether it may be in half precision.
    pub(super) stored: bool,
}

/// Returns `n` numbers between −1 and 1, always equal for the same name.
pub(super) fn numbers(name: &str, n: usize) -> Vec<f32> {
    let key = Key::new(2, Purpose::Init).fold_str(name);
    (0..n as u64).map(|i| (2.0 * key.unit(i) - 1.0) as f32).collect()
}

fn input(name: &'static str, shape: &[usize]) -> Input {
    Input { name, shape: shape.to_vec(), values: numbers(name, shape.iter().product()), stored: false }
}

/// As [`input`], in the type that the case runs in.
fn stored(name: &'static str, shape: &[usize]) -> Input {
    Input { stored: true, ..input(name, shape) }
}

const REAL: &[DType] = &[DType::F32, DType::F64];
const ELEMENT: &[DType] = &[DType::F32, DType::F64, DType::BF16, DType::F16];

/// For results of at most a few products and sums: their rounding.
const FEW: f64 = 2e-6;
/// For sums over edges or rows of numbers about 1.
const SUM: f64 = 3e-5;

#[derive(Clone)]
struct Graph {
    name: &'static str,
    block: Arc<GraphBlock>,
}

/// Returns a block whose destination `i` has `degree(i)` edges from random sources.
pub(super) fn random_block(key: Key, num_dst: u64, num_src: u64, degree: impl Fn(u64) -> u64) -> Block {
    let (mut indptr, mut indices) = (vec![0u32], Vec::new());
    for i in 0..num_dst {
        indices.extend((0..degree(i)).map(|e| key.fold(i).below(e, num_src) as u32));
        indptr.push(indices.len() as u32);
    }
    Block::new(num_dst as u32, num_src as u32, indptr, indices)
}

/// Returns a small block, one without edges, two with a destination or a source of many edges, and one as samplers make them.
fn graphs() -> Vec<Graph> {
    let key = Key::new(1, Purpose::Sample);
    let graph = |name, block| Graph { name, block: GraphBlock::new(block) };
    let from_one = (0..600).flat_map(|i| [5, (7 * i + 3) % 620]).collect();
    vec![
        graph("small", Block::new(4, 6, vec![0, 3, 3, 4, 8], vec![5, 0, 5, 2, 1, 3, 4, 3])),
        graph("edgeless", Block::new(3, 5, vec![0; 4], Vec::new())),
        graph("hub", random_block(key, 40, 300, |i| if i == 7 { 1000 } else { i % 5 })),
        graph("source hub", Block::new(600, 620, (0..=600).map(|i| 2 * i).collect(), from_one)),
        graph("sampled", random_block(key, 700, 3000, |i| key.below(1 << 20 | i, 11))),
    ]
}

/// Returns the blocks with edges, since candle cannot hold an empty tensor over edges on a GPU, and layers create none.
fn graphs_with_edges() -> Vec<Graph> {
    graphs().into_iter().filter(|graph| graph.block.num_edges() > 0).collect()
}

/// Creates a case of an operation on a block.
fn case(
    operation: &'static str,
    on: String,
    inputs: Vec<Input>,
    tolerance: f64,
    ours: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
    naive: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
) -> Case {
    let types = if inputs.iter().any(|input| input.stored) { ELEMENT } else { REAL };
    let (ours, naive) = (Box::new(ours), Box::new(naive));
    Case { operation, on, types, inputs, differentiable: true, tolerance, ours, naive }
}

/// Returns every operation on every input, grouped by operation.
pub(super) fn all() -> Vec<Case> {
    let mut cases = over_rows();
    cases.extend(gathered());
    cases.extend(put());
    cases.extend(over_edges());
    cases.extend(attention());
    cases.extend(on_heads());
    cases.extend(elementwise());
    cases.extend(products());
    cases.extend(losses());
    cases
}

fn over_rows() -> Vec<Case> {
    type Ours = fn(&Arc<GraphBlock>, &Tensor) -> Result<Tensor>;
    type Naive = fn(&Ends, &Tensor) -> Result<Tensor>;
    let operations: [(&str, Ours, Naive); 3] = [
        ("segment-sum", ops::segment_sum, naive::segment_sum),
        ("segment-mean", ops::segment_mean, naive::segment_mean),
        ("segment-max", ops::segment_max, naive::segment_max),
    ];
    let mut cases = Vec::new();
    for (operation, ours, naive) in operations {
        for Graph { name, block } in graphs() {
            for width in [1, 8, 47, 100, 130] {
                let (ends, on) = (Ends::of(block.block()), format!("{name}, {width} columns"));
                let (inputs, block) = (vec![stored("x", &[block.num_src(), width])], block.clone());
                cases.push(case(
                    operation,
                    on,
                    inputs,
                    SUM,
                    move |x| ours(&block, &x[0]),
                    move |x| naive(&ends, &x[0]),
                ));
            }
        }
    }
    for Graph { name, block } in graphs_with_edges() {
        for (heads, width) in [(1, 1), (1, 100), (2, 4), (4, 8), (3, 5), (8, 16)] {
            let (ends, on) = (Ends::of(block.block()), format!("{name}, {heads} heads of {width} columns"));
            let inputs =
                vec![stored("x", &[block.num_src(), heads * width]), input("weights", &[block.num_edges(), heads])];
            let block = block.clone();
            let ours = move |x: &[Tensor]| ops::weighted_sum(&block, &x[0], &x[1]);
            cases.push(case("weighted-sum", on, inputs, SUM, ours, move |x| naive::weighted_sum(&ends, &x[0], &x[1])));
        }
    }
    cases
}

/// Rows of all sizes that are copied in pieces of 16, 4 and 2 bytes, from one matrix and from two.
fn gathered() -> Vec<Case> {
    let key = Key::new(4, Purpose::Sample);
    let each = [1, 2, 8, 47, 100, 130, 2080].into_iter().flat_map(|width| [1, 700].map(|rows| (rows, width)));
    let cases = each.flat_map(|(rows, width)| [300, 7].map(|held| (rows, width, held))).map(|(rows, width, held)| {
        let numbers: Vec<u32> = (0..rows).map(|i| key.below(i, 300) as u32).collect();
        let of_naive = numbers.clone();
        let on = match held {
            300 => format!("{rows} of 300 rows, {width} columns"),
            _ => format!("{rows} of {held} and {} rows, {width} columns", 300 - held),
        };
        // Widened, since results are compared in single or double precision.
        let ours = move |x: &[Tensor]| {
            let numbers = ops::RowNumbers::new(&numbers, x[0].device(), None).map_err(candle_core::Error::wrap)?;
            let more = x[0].narrow(0, held, 300 - held)?;
            ops::widen(&ops::gather_rows(&x[0].narrow(0, 0, held)?, Some(&more), &numbers)?)
        };
        let naive = move |x: &[Tensor]| naive::gather(&x[0], &of_naive);
        let compared = case("gather-rows", on, vec![stored("x", &[300, width])], 0.0, ours, naive);
        Case { differentiable: false, ..compared }
    });
    cases.collect()
}

/// Rows that are written to every third row of a table, in pieces of 16, 4 and 2 bytes.
fn put() -> Vec<Case> {
    let each = [1, 2, 8, 47, 130].into_iter().flat_map(|width| [1, 200].map(|rows| (rows, width)));
    let cases = each.map(|(rows, width)| {
        let on = format!("{rows} of 600 rows, {width} columns");
        let numbers = move || (0..rows as u32).map(|row| 599 - 3 * row).collect::<Vec<_>>();
        let ours = move |x: &[Tensor]| {
            let numbers = ops::RowNumbers::new(&numbers(), x[0].device(), None).map_err(candle_core::Error::wrap)?;
            let table = Tensor::zeros((600, width), x[0].dtype(), x[0].device())?;
            ops::put_rows(&table, &x[0], &numbers)?;
            ops::widen(&table)
        };
        let naive = move |x: &[Tensor]| naive::scatter(&x[0], &numbers(), 600);
        let compared = case("put-rows", on, vec![stored("x", &[rows, width])], 0.0, ours, naive);
        Case { differentiable: false, ..compared }
    });
    cases.collect()
}

fn over_edges() -> Vec<Case> {
    let mut cases = Vec::new();
    let graphs = graphs_with_edges();
    let each = || graphs.iter().flat_map(|graph| [1, 2, 8, 40].map(|heads| (graph.clone(), heads)));
    for (Graph { name, block }, heads) in each() {
        let (ends, on) = (Ends::of(block.block()), format!("{name}, {heads} heads"));
        let inputs = vec![input("left", &[block.num_src(), heads]), input("right", &[block.num_dst(), heads])];
        let ours = move |x: &[Tensor]| ops::edge_add(&block, &x[0], &x[1]);
        cases.push(case("edge-add", on, inputs, SUM, ours, move |x| naive::edge_add(&ends, &x[0], &x[1])));
    }
    for (Graph { name, block }, heads) in each() {
        let (ends, on) = (Ends::of(block.block()), format!("{name}, {heads} heads"));
        let inputs = vec![input("logits", &[block.num_edges(), heads])];
        let ours = move |x: &[Tensor]| ops::edge_softmax(&block, &x[0]);
        cases.push(case("edge-softmax", on, inputs, FEW, ours, move |x| naive::edge_softmax(&ends, &x[0])));
    }
    for side in [Side::Source, Side::Destination] {
        for (Graph { name, block }, heads) in each() {
            let (ends, on) = (Ends::of(block.block()), format!("{name}, {heads} heads, {side:?}"));
            let inputs = vec![input("values", &[block.num_edges(), heads])];
            let ours = move |x: &[Tensor]| ops::edge_sum(&block, &x[0], side);
            let naive = move |x: &[Tensor]| match side {
                Side::Source => naive::scatter(&x[0], &ends.sources, ends.num_src),
                Side::Destination => naive::scatter(&x[0], &ends.destinations, ends.num_dst),
            };
            let compared = case("edge-sum", on, inputs, SUM, ours, naive);
            cases.push(Case { differentiable: false, ..compared });
        }
    }
    cases
}

fn attention() -> Vec<Case> {
    const SLOPE: f64 = 0.2;
    let mut cases = Vec::new();
    for Graph { name, block } in graphs_with_edges() {
        for (heads, width) in [(1, 1), (1, 100), (2, 4), (4, 8), (3, 21), (8, 16)] {
            let (ends, on) = (Ends::of(block.block()), format!("{name}, {heads} heads of {width} columns"));
            let inputs = vec![
                input("left", &[block.num_src(), heads * width]),
                input("right", &[block.num_dst(), heads * width]),
                input("vectors", &[heads, width]),
            ];
            let block = block.clone();
            let ours = move |x: &[Tensor]| ops::attention_logits(&block, &x[0], &x[1], &x[2], SLOPE);
            let naive = move |x: &[Tensor]| {
                naive::head_dot(&naive::leaky_relu(&naive::edge_add(&ends, &x[0], &x[1])?, SLOPE)?, &x[2])
            };
            cases.push(case("attention-logits", on, inputs, SUM, ours, naive));
        }
    }
    for Graph { name, block } in graphs_with_edges() {
        for heads in [1, 2, 8, 40] {
            let (ends, on) = (Ends::of(block.block()), format!("{name}, {heads} heads"));
            let inputs = vec![input("left", &[block.num_src(), heads]), input("right", &[block.num_dst(), heads])];
            let block = block.clone();
            let ours = move |x: &[Tensor]| ops::attention_softmax(&block, &x[0], &x[1], SLOPE);
            let naive = move |x: &[Tensor]| {
                naive::edge_softmax(&ends, &naive::leaky_relu(&naive::edge_add(&ends, &x[0], &x[1])?, SLOPE)?)
            };
            cases.push(case("attention-softmax", on, inputs, SUM, ours, naive));
        }
    }
    cases
}

fn on_heads() -> Vec<Case> {
    let mut cases = Vec::new();
    let shapes = [(3, 1, 1), (300, 2, 4), (1300, 3, 21), (1025, 8, 16), (70, 4, 100)];
    let on = |rows, heads, width| format!("{rows} rows, {heads} heads of {width} columns");
    for (rows, heads, width) in shapes {
        let inputs = vec![input("x", &[rows, heads * width]), input("a", &[heads, width])];
        let ours = |x: &[Tensor]| ops::head_dot(&x[0], &x[1]);
        cases.push(case("head-dot", on(rows, heads, width), inputs, SUM, ours, |x| naive::head_dot(&x[0], &x[1])));
    }
    for (rows, heads, width) in shapes {
        let inputs = vec![input("x", &[rows, heads * width])];
        let ours = move |x: &[Tensor]| ops::head_mean(&x[0], heads);
        cases.push(case("head-mean", on(rows, heads, width), inputs, FEW, ours, move |x| {
            naive::head_mean(&x[0], heads)
        }));
    }
    cases
}

fn elementwise() -> Vec<Case> {
    let mut cases = Vec::new();
    let operations = [
        ("identity", Activation::Identity),
        ("relu", Activation::Relu),
        ("leaky-relu", Activation::LeakyRelu(0.2)),
        ("elu", Activation::Elu),
        ("tanh", Activation::Tanh),
        ("gelu", Activation::Gelu),
    ];
    for (operation, activation) in operations {
        for dropout in [None, Some(Dropout::new(0.3, Key::new(9, Purpose::Dropout).fold(4)))] {
            for (rows, columns) in [(1, 1), (37, 47), (600, 100)] {
                let on = format!("{rows} rows, {columns} columns{}", if dropout.is_some() { ", dropout" } else { "" });
                let inputs = vec![stored("x", &[rows, columns])];
                let naive = move |x: &[Tensor]| {
                    let value = match activation {
                        Activation::Identity => x[0].affine(1.0, 0.0)?,
                        Activation::Relu => x[0].relu()?,
                        Activation::LeakyRelu(slope) => naive::leaky_relu(&x[0], slope)?,
                        Activation::Elu => naive::elu(&x[0])?,
                        Activation::Tanh => naive::tanh(&x[0])?,
                        Activation::Gelu => naive::gelu(&x[0])?,
                    };
                    let factor = |i| dropout.map_or(1.0, |mask| mask.factor(i));
                    let factors: Vec<f64> = (0..(rows * columns) as u64).map(factor).collect();
                    value * Tensor::from_vec(factors, (rows, columns), x[0].device())?
                };
                let ours = move |x: &[Tensor]| ops::activate(&x[0], activation, dropout);
                cases.push(case(operation, on, inputs, FEW, ours, naive));
            }
        }
    }
    for (rows, columns) in [(1, 1), (37, 47), (1025, 100), (5, 300)] {
        let on = format!("{rows} rows, {columns} columns");
        let inputs = vec![input("x", &[rows, columns]), input("bias", &[columns])];
        let ours = |x: &[Tensor]| ops::add_bias(&x[0], &x[1]);
        cases.push(case("add-bias", on, inputs, SUM, ours, |x| x[0].broadcast_add(&x[1])));
    }
    for (rows, columns) in [(1, 1), (37, 47), (512, 64), (2000, 100)] {
        let on = format!("{rows} rows, {columns} columns");
        let ours = |x: &[Tensor]| ops::column_sum(&x[0]);
        let compared = case("column-sum", on, vec![input("x", &[rows, columns])], SUM, ours, |x| x[0].sum(0));
        cases.push(Case { differentiable: false, ..compared });
    }
    cases
}

fn products() -> Vec<Case> {
    let mut cases = Vec::new();
    let shapes = [(1, 1, 1), (37, 100, 47), (700, 130, 64), (1025, 8, 3)];
    let on = |rows, k, columns| format!("{rows} rows, {k} columns in, {columns} out");
    for (rows, k, columns) in shapes {
        for whole in [false, true] {
            let base = if whole { input("base", &[rows, columns]) } else { input("bias", &[columns]) };
            let inputs = vec![input("x", &[rows, k]), input("weight", &[columns, k]), base];
            let ours = |x: &[Tensor]| ops::linear(&x[0], &x[1], Some(&x[2]));
            let naive = |x: &[Tensor]| x[0].matmul(&x[1].t()?)?.broadcast_add(&x[2]);
            cases.push(case("linear", on(rows, k, columns), inputs, SUM, ours, naive));
        }
    }
    for (rows, k, columns) in shapes {
        let inputs = vec![input("x", &[rows, k]), input("weight", &[columns, k])];
        let ours = |x: &[Tensor]| ops::linear(&x[0], &x[1], None);
        cases.push(case("linear without bias", on(rows, k, columns), inputs, SUM, ours, |x| x[0].matmul(&x[1].t()?)));
    }
    for (rows, k, columns) in shapes {
        let inputs = vec![input("a", &[rows, k]), input("b", &[k, columns])];
        let ours = |x: &[Tensor]| ops::matmul(&x[0], &x[1]);
        cases.push(case("matmul", on(rows, k, columns), inputs, SUM, ours, |x| x[0].matmul(&x[1])));
    }
    cases
}

fn losses() -> Vec<Case> {
    let mut cases = Vec::new();
    let shapes = [(1, 2), (37, 7), (700, 47), (300, 172)];
    let on = |rows, columns| format!("{rows} rows, {columns} classes");
    for (rows, classes) in shapes {
        let key = Key::new(3, Purpose::Init);
        let labels: Vec<u32> = (0..rows as u64).map(|i| key.below(i, classes as u64) as u32).collect();
        let on_device = labels.clone();
        let ours =
            move |x: &[Tensor]| x[0].apply_op2(&Tensor::from_slice(&on_device, rows, x[0].device())?, CrossEntropy);
        let naive = move |x: &[Tensor]| naive::cross_entropy(&x[0], &labels);
        cases.push(case("cross-entropy", on(rows, classes), vec![input("logits", &[rows, classes])], FEW, ours, naive));
    }
    for (rows, labels) in shapes {
        let targets: Vec<f32> =
            numbers("targets", rows * labels).iter().map(|&x| f32::from(u8::from(x > 0.0))).collect();
        let on_device = targets.clone();
        let ours = move |x: &[Tensor]| {
            let targets = Tensor::from_slice(&on_device, (rows, labels), x[0].device())?.to_dtype(x[0].dtype())?;
            x[0].apply_op2(&targets, BinaryCrossEntropy)
        };
        let naive = move |x: &[Tensor]| {
            naive::binary_cross_entropy(&x[0], &Tensor::from_slice(&targets, (rows, labels), x[0].device())?)
        };
        let inputs = vec![input("logits", &[rows, labels])];
        cases.push(case("binary-cross-entropy", on(rows, labels), inputs, FEW, ours, naive));
    }
    for (rows, labels) in shapes {
        const GAMMA: f64 = 2.0;
        let weights = numbers("weights", rows * labels);
        let on_device = weights.clone();
        let ours = move |x: &[Tensor]| {
            let weights = Tensor::from_slice(&on_device, (rows, labels), x[0].device())?.to_dtype(x[0].dtype())?;
            x[0].apply_op2(&weights, SigmoidFocalLoss { gamma: GAMMA })
        };
        let naive = move |x: &[Tensor]| {
            naive::sigmoid_focal_loss(&x[0], &Tensor::from_slice(&weights, (rows, labels), x[0].device())?, GAMMA)
        };
        let inputs = vec![input("logits", &[rows, labels])];
        cases.push(case("sigmoid-focal-loss", on(rows, labels), inputs, FEW, ours, naive));
    }
    for (rows, classes) in shapes {
        let inputs = vec![input("x", &[rows, classes])];
        let ours = |x: &[Tensor]| ops::log_softmax(&x[0]);
        cases.push(case("log-softmax", on(rows, classes), inputs, SUM, ours, |x| naive::log_softmax(&x[0])));
    }
    cases
}
