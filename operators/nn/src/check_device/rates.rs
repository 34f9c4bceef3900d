//! Rates of operations over edges, beside the rate at which the device copies its memory.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use candle_core::{Device, Tensor};
use gnnflow_data::rng::{Key, Permutation, Purpose};
use serde::Serialize;

use super::cases::random_block;
use crate::error::Result;
use crate::graph_block::GraphBlock;
use crate::ops;
use crate::ops::attention::{AttentionLogits, AttentionLogitsBackward, Wanted};
use crate::ops::edges::EdgeSoftmaxBackward;
use crate::ops::gather::GatherRows;
use crate::ops::segment::SegmentReduceBackward;

/// The time of an operation on a random graph, with `f32` numbers.
#[derive(Clone, Debug, Serialize)]
pub struct Rate {
    /// The operation.
    pub operation: &'static str,
    /// Bytes that it reads and writes: a row for every edge that reads it, and every result once.
    pub bytes: u64,
    /// Seconds, the median of several rounds.
    pub seconds: f64,
    /// Its bytes per second, divided by those of a copy. Above 1 if caches serve many reads.
    pub share_of_copy: f64,
}

/// The sizes of the graphs that operations are timed on.
#[derive(Clone, Copy, Debug)]
struct Size {
    nodes: usize,
    /// In-edges of every node.
    degree: usize,
    columns: usize,
    heads: usize,
    /// Nodes of another graph, which have many in-edges.
    hubs: usize,
    hub_degree: usize,
}

const ROUNDS: usize = 5;
/// Runs of an operation per round, without waiting for the device.
const RUNS: usize = 4;

/// Returns the median seconds of one run of `work`.
fn time(device: &Device, work: impl Fn() -> Result<Tensor>) -> Result<f64> {
    work()?;
    device.synchronize()?;
    let mut seconds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..RUNS {
            work()?;
        }
        device.synchronize()?;
        seconds.push(start.elapsed().as_secs_f64() / RUNS as f64);
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[ROUNDS / 2])
}

/// Times operations over the edges of random graphs on the device called `name`. The first one is a copy.
///
/// # Errors
/// [`Error::Device`](crate::Error::Device) when the device cannot be used; [`Error::OutOfMemory`](crate::Error::OutOfMemory) for a GPU with
/// less than about 2 GiB of free memory.
pub fn device_rates(name: &str) -> Result<Vec<Rate>> {
    let device = crate::device(name)?;
    // Rows that exceed caches, and a second or less for each operation.
    let nodes = if device.is_cpu() { 100_000 } else { 1_000_000 };
    rates(&device, Size { nodes, degree: 25, columns: 100, heads: 4, hubs: nodes / 10_000, hub_degree: 20_000 })
}

fn rates(device: &Device, size: Size) -> Result<Vec<Rate>> {
    let Size { nodes, degree, columns, heads, hubs, hub_degree } = size;
    let graph = |rows: usize, degree: usize| {
        let key = Key::new(3, Purpose::Sample).fold(degree as u64);
        GraphBlock::new(random_block(key, rows as u64, nodes as u64, |_| degree as u64))
    };
    let (block, of_hubs) = (graph(nodes, degree), graph(hubs, hub_degree));
    let (edges, hub_edges) = (nodes * degree, hubs * hub_degree);
    let random = |rows: usize, columns: usize| Tensor::rand(-1f32, 1f32, (rows, columns), device);
    let x = random(nodes, columns)?;
    let [logits, weights] = [random(edges, heads)?, random(edges, heads)?];
    let ([left, right], vectors) = ([random(nodes, heads)?, random(nodes, heads)?], random(heads, columns / heads)?);
    let (row, list) = (columns * size_of::<f32>(), edges * size_of::<u32>());
    let numbers = edges * heads * size_of::<f32>();
    let of_mean = SegmentReduceBackward { block: Arc::clone(&block), reduce: ops::Reduce::Mean };
    let of_softmax = EdgeSoftmaxBackward { block: Arc::clone(&block) };
    let alpha = ops::edge_softmax(&block, &logits)?;
    const SLOPE: f64 = 0.2;
    let of_logits = |wanted| AttentionLogitsBackward {
        of: AttentionLogits { block: Arc::clone(&block), slope: SLOPE },
        vectors: vectors.clone(),
        gradient: weights.clone(),
        wanted,
    };
    let [of_left, of_vectors] = [Wanted::Left, Wanted::Vectors].map(of_logits);
    let shuffled = Permutation::new(Key::new(5, Purpose::Sample), nodes as u64);
    let order: Vec<u32> = (0..nodes as u64).map(|row| shuffled.at(row) as u32).collect();
    let order = Tensor::from_vec(order, nodes, device)?;
    type Work<'a> = Box<dyn Fn() -> Result<Tensor> + 'a>;
    let all: [(&str, usize, Work<'_>); 12] = [
        ("copy", 2 * nodes * row, Box::new(|| Ok(x.copy()?))),
        (
            "gather-rows",
            nodes * (2 * row + size_of::<u32>()),
            Box::new(|| Ok(x.apply_op3_no_bwd(&x, &order, &GatherRows)?)),
        ),
        ("segment-mean", (edges + nodes) * row + list, Box::new(|| Ok(ops::segment_mean(&block, &x)?))),
        (
            "segment-mean of hubs",
            (hub_edges + hubs) * row + hub_edges * size_of::<u32>(),
            Box::new(|| Ok(ops::segment_mean(&of_hubs, &x)?)),
        ),
        (
            "segment-mean, backward",
            // Also one over the degree of every edge's destination.
            (edges + nodes) * row + 2 * list,
            Box::new(|| Ok(x.apply_op1_no_bwd(&of_mean)?)),
        ),
        (
            "weighted-sum",
            (edges + nodes) * row + list + numbers,
            Box::new(|| Ok(ops::weighted_sum(&block, &x, &weights)?)),
        ),
        ("edge-softmax", 2 * numbers, Box::new(|| Ok(ops::edge_softmax(&block, &logits)?))),
        ("edge-softmax, backward", 3 * numbers, Box::new(|| Ok(alpha.apply_op2_no_bwd(&weights, &of_softmax)?))),
        (
            "attention-softmax",
            2 * numbers + list + nodes * heads * size_of::<f32>(),
            Box::new(|| Ok(ops::attention_softmax(&block, &left, &right, SLOPE)?)),
        ),
        (
            "attention-logits",
            (edges + nodes) * row + 2 * list + numbers,
            Box::new(|| Ok(ops::attention_logits(&block, &x, &x, &vectors, SLOPE)?)),
        ),
        (
            "attention-logits, left",
            (edges + 2 * nodes) * row + 2 * list + numbers,
            Box::new(|| Ok(x.apply_op2_no_bwd(&x, &of_left)?)),
        ),
        (
            "attention-logits, vectors",
            (edges + nodes) * row + 2 * list + numbers,
            Box::new(|| Ok(x.apply_op2_no_bwd(&x, &of_vectors)?)),
        ),
    ];
    let mut found: Vec<Rate> = Vec::with_capacity(all.len());
    for (operation, bytes, work) in all {
        let seconds = time(device, work)?;
        let rate = bytes as f64 / seconds;
        let copy = found.first().map_or(rate, |copy| copy.bytes as f64 / copy.seconds);
        found.push(Rate { operation, bytes: bytes as u64, seconds, share_of_copy: rate / copy });
    }
    Ok(found)
}

/// One line: the operation, its rate, and its share of the copy.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rate, milliseconds) = (self.bytes as f64 / self.seconds / 1e9, self.seconds * 1e3);
        let (operation, share) = (self.operation, self.share_of_copy);
        write!(f, "{operation:<24} {milliseconds:>9.3} ms {rate:>9.1} GB/s {share:>6.2} of a copy")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_relative_to_the_copy() -> Result<()> {
        let found = rates(&Device::Cpu, Size { nodes: 50, degree: 3, columns: 8, heads: 2, hubs: 2, hub_degree: 600 })?;
        assert_eq!((found[0].operation, found[0].share_of_copy), ("copy", 1.0));
        assert_eq!(found[1].bytes, 50 * (2 * 32 + 4));
        assert_eq!(found[2].bytes, (150 + 50) * 32 + 150 * 4);
        for Rate { operation, seconds, share_of_copy, .. } in &found {
            assert!(*seconds > 0.0 && share_of_copy.is_finite() && *share_of_copy > 0.0, "{operation}");
        }
        Ok(())
    }
}
