//! What the machine allows: multiplications, copies of memory, and reads at random positions, in small and in large pages. `peers/epoch.py` and
//! `peers/full_graph.py` divide the work of an epoch by these rates.
//!
//! Also counts this work for the graph: the nodes and edges of the batches of an epoch (`--fanouts 15,10,5`, `--batch 1000`), and the
//! in-edges of training nodes.

mod common;
#[path = "common/graph.rs"]
mod graph;

use std::hint::black_box;

use candle_core::{Device, Tensor};
use common::Session;
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_kernels::compact::Compactor;
use gnnflow_kernels::pages::prefer_large;
use gnnflow_kernels::sample::{Csc, Fanout, sample_hop};
use gnnflow_nn::ops::linear;
use graph::{Graph, repeat};
use rayon::prelude::*;
use serde_json::json;

/// A cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u64; 8]);

/// Lines of a row of 100 `f32` numbers.
const LINES_OF_ROW: usize = 7;
/// How many reads ahead a line is requested.
const AHEAD: usize = 16;
/// Numbers of a vector, in `multiply`.
const LANES: usize = 16;
/// Independent sums. Two units with a latency of four cycles need eight.
const CHAINS: usize = 12;

fn main() {
    let mut session = Session::new("limits");
    let graph = Graph::load(&mut session);
    count(&mut session, &graph);
    drop(graph);
    let lines = if session.smoke { 1 << 12 } else { 1 << 25 };
    for threads in session.numbers("threads", &[1, 2]) {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads can be created");
        pool.install(|| {
            multiplications(&mut session, threads);
            for large in [true, false] {
                memory(&mut session, threads, lines, large);
            }
        });
    }
    session.finish();
}

/// Counts the nodes and edges of all batches of an epoch, by hops from the seeds, and the in-edges of training nodes.
fn count(session: &mut Session, graph: &Graph) {
    let (fanouts, batch) = (session.numbers("fanouts", &[15, 10, 5]), session.numbers("batch", &[1000])[0]);
    let (mut nodes, mut edges) = (vec![0; fanouts.len() + 1], vec![0; fanouts.len()]);
    let (csc, mut compactor) = (Csc::new(&graph.indptr, &graph.indices), Compactor::new(graph.num_nodes() as u64));
    for (step, seeds) in graph.train.chunks(batch).enumerate() {
        let mut list = seeds.to_vec();
        compactor.start(&list);
        nodes[0] += list.len();
        for (hop, &k) in fanouts.iter().enumerate() {
            let key = Key::new(1, Purpose::Sample).fold(step as u64).fold(hop as u64);
            edges[hop] += sample_hop(&csc, &mut list, Fanout::Uniform { k: k as u32 }, key, &mut compactor).num_edges();
            nodes[hop + 1] += list.len();
        }
    }
    let degree = |&node: &u32| graph.indptr[node as usize + 1] - graph.indptr[node as usize];
    session.about("fanouts", fanouts);
    session.about("epoch_nodes", nodes);
    session.about("epoch_edges", edges);
    session.about("train_edges", graph.train.iter().map(degree).sum::<i64>());
}

/// Measures multiplications: in registers, and in the product of a tall matrix with one of 256 × 256.
fn multiplications(session: &mut Session, threads: usize) {
    let times = if session.smoke { 1 << 10 } else { 1 << 24 };
    let seconds = repeat(session.repeats(5), || {
        rayon::broadcast(|_| black_box(multiply(times, black_box([0.999, 0.002]))));
    });
    let amount = (threads * times * CHAINS * LANES) as f64;
    session.result("multiply", json!({ "threads": threads }), &seconds, amount, "multiplications");

    let (rows, width) = (if session.smoke { 64 } else { 1 << 12 }, 256);
    let random = |rows| Tensor::rand(-1f32, 1.0, (rows, width), &Device::Cpu).expect("it has memory");
    let (x, weight) = (random(rows), random(width));
    let seconds = repeat(session.repeats(15), || {
        black_box(linear(&x, &weight, None).expect("the shapes fit"));
    });
    let details = json!({ "threads": threads, "rows": rows, "width": width });
    session.result("product", details, &seconds, (rows * width * width) as f64, "multiplications");
}

/// Multiplies vectors of `LANES` numbers by the first number and adds the second one, `times` times in each of `CHAINS` chains. The result
/// has no meaning.
fn multiply(times: usize, numbers: [f32; 2]) -> f32 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        if has!("avx512f") {
            // SAFETY: the machine has the feature.
            return unsafe { multiply_avx512(times, numbers) };
        }
        if has!("avx2") && has!("fma") {
            // SAFETY: the machine has the features.
            return unsafe { multiply_avx2(times, numbers) };
        }
    }
    let mut sums = starts();
    for _ in 0..times {
        for sum in sums.as_flattened_mut() {
            *sum = *sum * numbers[0] + numbers[1];
        }
    }
    sums.as_flattened().iter().sum()
}

/// Returns the first numbers of all chains, which differ.
fn starts() -> [[f32; LANES]; CHAINS] {
    std::array::from_fn(|chain| std::array::from_fn(|lane| (chain * LANES + lane) as f32))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn multiply_avx512(times: usize, [factor, summand]: [f32; 2]) -> f32 {
    use std::arch::x86_64::{__m512, _mm512_fmadd_ps, _mm512_reduce_add_ps, _mm512_set1_ps};
    let (factor, summand) = (_mm512_set1_ps(factor), _mm512_set1_ps(summand));
    // SAFETY: both have the same size, and all bits are valid numbers.
    let mut sums: [__m512; CHAINS] = unsafe { std::mem::transmute(starts()) };
    for _ in 0..times {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, factor, summand);
        }
    }
    sums.into_iter().map(|sum| _mm512_reduce_add_ps(sum)).sum()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn multiply_avx2(times: usize, [factor, summand]: [f32; 2]) -> f32 {
    use std::arch::x86_64::{__m256, _mm256_fmadd_ps, _mm256_set1_ps};
    let (factor, summand) = (_mm256_set1_ps(factor), _mm256_set1_ps(summand));
    // A vector has half of the lanes, so a chain is two.
    // SAFETY: both have the same size, and all bits are valid numbers.
    let mut sums: [[__m256; CHAINS]; 2] = unsafe { std::mem::transmute(starts()) };
    for sums in &mut sums {
        for _ in 0..times {
            for sum in sums.iter_mut() {
                *sum = _mm256_fmadd_ps(*sum, factor, summand);
            }
        }
    }
    // SAFETY: as above.
    let sums: [[f32; LANES]; CHAINS] = unsafe { std::mem::transmute(sums) };
    sums.as_flattened().iter().sum()
}

/// Measures a copy, reads of lines at random positions, and reads of rows at random positions.
fn memory(session: &mut Session, threads: usize, count: usize, large: bool) {
    // One half is copied to the other.
    let mut lines = lines(count, large);
    let pages = if large_pages() > count * size_of::<Line>() / 2 { "large" } else { "small" };
    let details = json!({ "threads": threads, "pages": pages });
    let bytes = (count * size_of::<Line>()) as f64;
    let seconds = repeat(session.repeats(5), || {
        let (from, to) = lines.split_at_mut(count / 2);
        let piece = 1 << 14;
        to.par_chunks_mut(piece).zip(from.par_chunks(piece)).for_each(|(to, from)| to.copy_from_slice(from));
    });
    session.result("copy", details.clone(), &seconds, bytes, "B");
    for (case, of_row) in [("lines", 1), ("rows", LINES_OF_ROW)] {
        let key = Key::new(1, Purpose::User);
        let reads = if session.smoke { 1 << 8 } else { (1 << 24) / of_row };
        let rows = (count / of_row) as u64;
        let places: Vec<u32> = (0..reads as u64).map(|read| (key.below(read, rows) * of_row as u64) as u32).collect();
        let seconds = repeat(session.repeats(5), || {
            places.par_chunks(reads.div_ceil(threads)).for_each(|places| _ = black_box(read(&lines, places, of_row)));
        });
        session.result(case, details.clone(), &seconds, (reads * of_row * size_of::<Line>()) as f64, "B");
    }
}

/// Reads `of_row` lines at each place, and requests those of later places.
fn read(lines: &[Line], places: &[u32], of_row: usize) -> u64 {
    let mut sum = 0;
    for (at, &place) in places.iter().enumerate() {
        if let Some(&next) = places.get(at + AHEAD) {
            lines[next as usize..][..of_row].iter().for_each(prefetch);
        }
        for Line(numbers) in &lines[place as usize..][..of_row] {
            sum += numbers[0];
        }
    }
    sum
}

fn prefetch(line: &Line) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint that is valid for any address; nothing is read.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(std::ptr::from_ref(line).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Creates lines, in large pages if they are wanted and if the system has them.
fn lines(count: usize, large: bool) -> Vec<Line> {
    let mut lines = Vec::with_capacity(count);
    if large {
        prefer_large(lines.spare_capacity_mut());
    }
    lines.extend((0..count as u64).map(|number| Line([number; 8])));
    lines
}

/// Returns the bytes of this process that are in large pages; 0 where the system does not say.
fn large_pages() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
    line.and_then(|value| value.trim().trim_end_matches(" kB").parse::<usize>().ok()).unwrap_or(0) << 10
}
