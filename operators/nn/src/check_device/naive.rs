//! Operations as plain tensor arithmetic: slow, and as short as their definitions. For double precision on the CPU.

use candle_core::{DType, Device, Result, Tensor};

use gnnflow_kernels::block::Block;

/// Both ends of every edge.
pub(super) struct Ends {
    pub(super) sources: Vec<u32>,
    pub(super) destinations: Vec<u32>,
    pub(super) num_src: usize,
    pub(super) num_dst: usize,
}

impl Ends {
    pub(super) fn of(block: &Block) -> Self {
        let mut destinations = Vec::new();
        for i in 0..block.num_dst() {
            destinations.extend(block.neighbors(i).iter().map(|_| i as u32));
        }
        let (num_src, num_dst) = (block.num_src(), block.num_dst());
        Self { sources: block.indices().to_vec(), destinations, num_src, num_dst }
    }
}

/// Returns the rows of `x` at `index`.
pub(super) fn gather(x: &Tensor, index: &[u32]) -> Result<Tensor> {
    if index.is_empty() {
        return x.narrow(0, 0, 0);
    }
    x.index_select(&Tensor::new(index, &Device::Cpu)?, 0)
}

/// Sums the rows of `x` into `rows` rows: row `i` is added to row `index[i]`.
pub(super) fn scatter(x: &Tensor, index: &[u32], rows: usize) -> Result<Tensor> {
    let zeros = Tensor::zeros((rows, x.dim(1)?), x.dtype(), &Device::Cpu)?;
    if index.is_empty() { Ok(zeros) } else { zeros.index_add(&Tensor::new(index, &Device::Cpu)?, x, 0) }
}

pub(super) fn segment_sum(ends: &Ends, x: &Tensor) -> Result<Tensor> {
    scatter(&gather(x, &ends.sources)?, &ends.destinations, ends.num_dst)
}

pub(super) fn segment_mean(ends: &Ends, x: &Tensor) -> Result<Tensor> {
    let mut degrees = vec![0f64; ends.num_dst];
    ends.destinations.iter().for_each(|&i| degrees[i as usize] += 1.0);
    let inverse: Vec<f64> = degrees.iter().map(|&d| if d == 0.0 { 0.0 } else { 1.0 / d }).collect();
    segment_sum(ends, x)?.broadcast_mul(&Tensor::from_vec(inverse, (ends.num_dst, 1), &Device::Cpu)?)
}

pub(super) fn segment_max(ends: &Ends, x: &Tensor) -> Result<Tensor> {
    let (values, width) = (x.to_vec2::<f64>()?, x.dim(1)?);
    let mut largest: Vec<Option<u32>> = vec![None; ends.num_dst * width];
    for (&s, &d) in ends.sources.iter().zip(&ends.destinations) {
        for c in 0..width {
            let best = &mut largest[d as usize * width + c];
            if best.is_none_or(|b| values[s as usize][c] > values[b as usize][c]) {
                *best = Some(s);
            }
        }
    }
    let place = |(i, s): (usize, &Option<u32>)| s.map_or(0, |s| s * width as u32 + (i % width) as u32);
    let places: Vec<u32> = largest.iter().enumerate().map(place).collect();
    let exists: Vec<f64> = largest.iter().map(|s| f64::from(u8::from(s.is_some()))).collect();
    let shape = (ends.num_dst, width);
    gather(&x.flatten_all()?, &places)?.reshape(shape)? * Tensor::from_vec(exists, shape, &Device::Cpu)?
}

pub(super) fn weighted_sum(ends: &Ends, x: &Tensor, weights: &Tensor) -> Result<Tensor> {
    let (edges, heads, columns) = (ends.sources.len(), weights.dim(1)?, x.dim(1)?);
    if edges == 0 {
        return Tensor::zeros((ends.num_dst, columns), x.dtype(), &Device::Cpu);
    }
    let rows = gather(x, &ends.sources)?.reshape((edges, heads, columns / heads))?;
    let rows = rows.broadcast_mul(&weights.unsqueeze(2)?)?.reshape((edges, columns))?;
    scatter(&rows, &ends.destinations, ends.num_dst)
}

pub(super) fn edge_add(ends: &Ends, left: &Tensor, right: &Tensor) -> Result<Tensor> {
    gather(left, &ends.sources)? + gather(right, &ends.destinations)?
}

pub(super) fn edge_softmax(ends: &Ends, logits: &Tensor) -> Result<Tensor> {
    let powers = logits.exp()?;
    let totals = scatter(&powers, &ends.destinations, ends.num_dst)?;
    powers / gather(&totals, &ends.destinations)?
}

pub(super) fn head_dot(x: &Tensor, a: &Tensor) -> Result<Tensor> {
    let (heads, width) = a.dims2()?;
    x.reshape((x.dim(0)?, heads, width))?.broadcast_mul(&a.unsqueeze(0)?)?.sum(2)
}

pub(super) fn head_mean(x: &Tensor, heads: usize) -> Result<Tensor> {
    x.reshape((x.dim(0)?, heads, x.dim(1)? / heads))?.mean(1)
}

/// `max(x, 0)` and `max(−x, 0)`.
fn parts(x: &Tensor) -> Result<(Tensor, Tensor)> {
    Ok((x.relu()?, x.neg()?.relu()?))
}

pub(super) fn leaky_relu(x: &Tensor, slope: f64) -> Result<Tensor> {
    // Sums may be exactly 0, where the slope is that below 0.
    x.gt(0.0)?.where_cond(x, &(x * slope)?)
}

pub(super) fn elu(x: &Tensor) -> Result<Tensor> {
    let (above, below) = parts(x)?;
    above + (below.neg()?.exp()? - 1.0)?
}

pub(super) fn tanh(x: &Tensor) -> Result<Tensor> {
    let power = (x * 2.0)?.exp()?;
    (&power - 1.0)? / (power + 1.0)?
}

pub(super) fn gelu(x: &Tensor) -> Result<Tensor> {
    let inner = ((x + ((x * x)? * x)?.affine(0.044_715, 0.0)?)? * (2.0 / std::f64::consts::PI).sqrt())?;
    (x * (tanh(&inner)? + 1.0)?)? * 0.5
}

pub(super) fn log_softmax(x: &Tensor) -> Result<Tensor> {
    x.broadcast_sub(&x.exp()?.sum_keepdim(1)?.log()?)
}

pub(super) fn cross_entropy(logits: &Tensor, labels: &[u32]) -> Result<Tensor> {
    let (rows, classes) = logits.dims2()?;
    let mut one_hot = vec![0f64; rows * classes];
    labels.iter().enumerate().for_each(|(r, &label)| one_hot[r * classes + label as usize] = 1.0);
    (log_softmax(logits)? * Tensor::from_vec(one_hot, (rows, classes), &Device::Cpu)?)?.sum_all()?.neg()
}

pub(super) fn sigmoid_focal_loss(logits: &Tensor, weights: &Tensor, gamma: f64) -> Result<Tensor> {
    let weights = weights.to_dtype(DType::F64)?;
    let p = ((logits * weights.sign()?)?.neg()?.exp()? + 1.0)?.recip()?;
    ((p.log()? * p.affine(-1.0, 1.0)?.powf(gamma)?)? * weights.abs()?)?.sum_all()?.neg()
}

pub(super) fn binary_cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let (above, below) = parts(logits)?;
    let absolute = (&above + &below)?;
    let each = ((above - (logits * targets.to_dtype(DType::F64)?)?)? + (absolute.neg()?.exp()? + 1.0)?.log()?)?;
    each.sum_all()
}
