//! Measures the rates of this machine for [`train.schedule.rates`](crate::config::schedule::Rates).
//!
//! Each rate is that of the loops that training runs, on made-up data that exceeds a core's caches. Several processes on one machine share
//! its memory, so they are measured at the same time, each by a group of threads.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use candle_core::{Device, Tensor, Var};
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_kernels::aggregate::segment;
use gnnflow_kernels::compact::Compactor;
use gnnflow_kernels::dense::elementwise::Dropout;
use gnnflow_kernels::dense::gather::gather_rows;
use gnnflow_kernels::parallel;
use gnnflow_kernels::sample::{Csc, Fanout, sample_hop};
use gnnflow_nn::ops::{inject_gradient, linear, linear_relu};

use crate::config::Bytes;
use crate::config::schedule::Rates;
use crate::error::Error;

/// Nodes of the made-up graph.
const NODES: usize = 1 << 18;
/// In-edges of each node.
const DEGREE: usize = 16;
/// Rows of a product.
const ROWS: usize = 1 << 15;
/// Columns of rows.
const WIDTH: usize = 64;
/// Seeds of a batch.
const SEEDS: usize = 1000;
/// Neighbors in each hop of a batch.
const FANOUTS: [u32; 2] = [15, 10];
/// How long each rate is measured.
const ENOUGH: Duration = Duration::from_millis(250);
/// Bytes that are sent or written to measure the bandwidth and files.
const STREAM: usize = 1 << 28;
/// Bytes of a message, or of a write.
const MESSAGE: usize = 1 << 20;

/// Measures the rates of each of `processes` processes of `threads` threads on this machine; takes a few seconds. `folder` is where a scratch
/// file is written. The bandwidth is that of the loopback interface; the latency is not measured.
///
/// # Errors
/// If threads cannot be started, or sockets and files cannot be used.
pub fn measure(processes: usize, threads: usize, folder: &Path) -> Result<Rates, Error> {
    let graph = Graph::new();
    let everything = || -> Result<Rates, Error> {
        let (multiplications, activations) = products().map_err(|error| Error::Bug(error.to_string()))?;
        let (sums, sampled_edges) = (graph.sums(), graph.sampled_edges());
        let memory = Bytes(graph.gathered() as u64);
        Ok(Rates { multiplications, activations, sums, sampled_edges, memory, ..Rates::default() })
    };
    let all = together(processes, threads, everything)?;
    let mean = |of: fn(&Rates) -> f64| rounded(all.iter().map(of).sum::<f64>() / all.len() as f64);
    Ok(Rates {
        multiplications: mean(|rates| rates.multiplications),
        activations: mean(|rates| rates.activations),
        sums: mean(|rates| rates.sums),
        sampled_edges: mean(|rates| rates.sampled_edges),
        memory: Bytes(mean(|rates| rates.memory.0 as f64) as u64),
        bandwidth: Bytes(rounded(loopback().map_err(Error::io("send on", "the loopback interface"))?) as u64),
        files: Bytes(rounded(written(folder).map_err(Error::io("write", folder))?) as u64),
        ..Rates::default()
    })
}

/// Returns the table of these rates for a pipeline file.
///
/// # Errors
/// Never, unless there is a bug.
pub fn table(rates: &Rates) -> Result<String, Error> {
    let keys = toml::to_string(rates).map_err(|error| Error::Bug(error.to_string()))?;
    Ok(format!("[train.schedule.rates]\n{keys}"))
}

/// Rounds to two digits.
fn rounded(rate: f64) -> f64 {
    let digit = 10f64.powf(rate.max(1.0).log10().floor() - 1.0);
    (rate / digit).round() * digit
}

/// Runs `measure` in `groups` groups of `threads` threads at the same time.
fn together<T: Send>(
    groups: usize,
    threads: usize,
    measure: impl Fn() -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let pool = |_| {
        let built = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        built.map_err(|error| Error::Machine(format!("cannot start {threads} threads: {error}")))
    };
    let pools = (0..groups).map(pool).collect::<Result<Vec<_>, Error>>()?;
    let measure = &measure;
    std::thread::scope(|scope| {
        let running: Vec<_> = pools.iter().map(|pool| scope.spawn(|| pool.install(measure))).collect();
        let ended = running.into_iter().map(|thread| thread.join());
        ended.map(|result| result.unwrap_or_else(|_| Err(Error::Bug("a measuring thread panicked".into())))).collect()
    })
}

/// Returns the median seconds of `work`, without the first time.
fn seconds<E>(mut work: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    work()?;
    let (start, mut times) = (Instant::now(), Vec::new());
    while times.len() < 3 || start.elapsed() < ENOUGH {
        let begin = Instant::now();
        work()?;
        times.push(begin.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Returns multiplications per second of a layer's products, and values per second of its bias, activation and dropout.
fn products() -> candle_core::Result<(f64, f64)> {
    let var = |shape: &[usize]| Var::rand(-0.1f32, 0.1, shape, &Device::Cpu);
    let (x, gradient) = (var(&[ROWS, WIDTH])?, var(&[ROWS, WIDTH])?.as_detached_tensor());
    let (weight, bias) = (var(&[WIDTH, WIDTH])?, var(&[WIDTH])?);
    let learn = |result: Tensor| -> candle_core::Result<()> {
        black_box(inject_gradient(&result, &gradient)?.backward()?);
        Ok(())
    };
    let product = seconds(|| learn(linear(&x, &weight, None)?))?;
    let dropout = Some(Dropout::new(0.5, Key::new(1, Purpose::Dropout)));
    let layer = seconds(|| learn(linear_relu(&x, &weight, &bias, dropout)?))?;
    // A product has two gradients.
    let multiplications = (3 * ROWS * WIDTH * WIDTH) as f64 / product;
    Ok((multiplications, (ROWS * WIDTH) as f64 / (layer - product).max(product / 16.0)))
}

/// A random graph with rows of its nodes.
struct Graph {
    indptr: Vec<i64>,
    indices: Vec<u32>,
    rows: Vec<f32>,
}

impl Graph {
    fn new() -> Self {
        let key = Key::new(1, Purpose::User);
        Self {
            indptr: (0..=NODES as i64).map(|node| node * DEGREE as i64).collect(),
            indices: (0..(NODES * DEGREE) as u64).map(|edge| (key.draw(edge) % NODES as u64) as u32).collect(),
            rows: (0..NODES * WIDTH).map(|at| at as f32).collect(),
        }
    }

    /// Returns values per second that are summed along edges.
    fn sums(&self) -> f64 {
        let mut out = vec![0.0f32; NODES * WIDTH];
        let sum = || -> Result<(), std::convert::Infallible> {
            segment::sum(&self.indptr, &self.indices, &self.rows, WIDTH, &mut out);
            Ok(())
        };
        let Ok(time) = seconds(sum);
        (self.indices.len() * WIDTH) as f64 / time
    }

    /// Returns edges per second that one thread samples.
    fn sampled_edges(&self) -> f64 {
        let csc = Csc::new(&self.indptr, &self.indices);
        let mut compactor = Compactor::new(NODES as u64);
        let (mut batch, mut edges) = (0, 0);
        let sample = || -> Result<(), std::convert::Infallible> {
            let first = batch * SEEDS % NODES;
            let mut list: Vec<u32> = (first..first + SEEDS).map(|node| (node % NODES) as u32).collect();
            compactor.start(&list);
            edges = 0;
            for (hop, k) in FANOUTS.into_iter().enumerate() {
                let key = Key::new(batch as u64, Purpose::Sample).fold(hop as u64);
                edges += sample_hop(&csc, &mut list, Fanout::Uniform { k }, key, &mut compactor).num_edges();
            }
            batch += 1;
            Ok(())
        };
        let Ok(time) = seconds(sample);
        edges as f64 / time
    }

    /// Returns bytes per second of rows that are copied from random positions.
    fn gathered(&self) -> f64 {
        let bytes: &[u8] = bytemuck::cast_slice(&self.rows);
        let (row, nodes) = (4 * WIDTH, &self.indices[..NODES]);
        let chunk = NODES / 64;
        let mut out = vec![0u8; NODES * row];
        let gather = || -> Result<(), std::convert::Infallible> {
            parallel::chunks(&mut out, chunk * row, &|at, out| {
                gather_rows(row, |node| &bytes[node as usize * row..][..row], parallel::chunk(nodes, at, chunk), out);
            });
            Ok(())
        };
        let Ok(time) = seconds(gather);
        (NODES * row) as f64 / time
    }
}

/// Returns bytes per second between two threads over TCP on this machine.
fn loopback() -> std::io::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::scope(|scope| {
        let receiver = scope.spawn(move || -> std::io::Result<f64> {
            let (mut stream, _) = listener.accept()?;
            let (begin, mut block) = (Instant::now(), vec![0; MESSAGE]);
            let mut received = 0;
            loop {
                match stream.read(&mut block)? {
                    0 => return Ok(received as f64 / begin.elapsed().as_secs_f64()),
                    bytes => received += bytes,
                }
            }
        });
        let mut stream = TcpStream::connect(address)?;
        let block = vec![1; MESSAGE];
        for _ in 0..STREAM / MESSAGE {
            stream.write_all(&block)?;
        }
        drop(stream);
        receiver.join().unwrap_or_else(|_| Err(std::io::Error::other("the receiving thread panicked")))
    })
}

/// Returns bytes per second that are written to a file in `folder`, until they are on the disk.
fn written(folder: &Path) -> std::io::Result<f64> {
    let mut file = tempfile::tempfile_in(folder)?;
    let (begin, block) = (Instant::now(), vec![1; MESSAGE]);
    for _ in 0..STREAM / MESSAGE {
        file.write_all(&block)?;
    }
    file.sync_data()?;
    Ok(STREAM as f64 / begin.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_rounded_to_two_digits() {
        assert_eq!([12_345.0, 0.0, 987.0].map(rounded), [12_000.0, 0.0, 990.0]);
    }

    #[test]
    fn groups_run_with_their_threads_and_report_the_first_error() {
        let threads = together(2, 3, || Ok(rayon::current_num_threads())).unwrap();
        assert_eq!(threads, [3, 3]);
        let failed = together(2, 1, || Err::<(), _>(Error::Input("broken".into()))).unwrap_err();
        assert!(failed.to_string().contains("broken"), "{failed}");
    }
}
