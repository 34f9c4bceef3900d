//! The graph of a bench: that of the peers, or an R-MAT graph of similar shape.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use std::time::Instant;

use gnnflow_data::rng::{Key, Permutation, Purpose};

use super::common::{Seconds, Session};

/// In-edges of every node, and training nodes.
pub(crate) struct Graph {
    /// Node `v`'s in-neighbors are `indices[indptr[v]..indptr[v + 1]]`.
    pub(crate) indptr: Vec<i64>,
    /// See `indptr`.
    pub(crate) indices: Vec<u32>,
    /// Training nodes, shuffled.
    pub(crate) train: Vec<u32>,
}

/// Environment variable with the folder of `indptr.npy`, `indices.npy`, `train.npy` and `feat.npy`.
pub(crate) const FOLDER: &str = "GNNFLOW_BENCH_GRAPH";

impl Graph {
    /// Loads the graph from the folder in [`FOLDER`], or generates an R-MAT of 2²¹ nodes and 2 · 52 million edges.
    pub(crate) fn load(session: &mut Session) -> Self {
        let graph = match std::env::var_os(FOLDER) {
            Some(folder) if !session.smoke => {
                let read = |name| {
                    let mut values = Vec::new();
                    read_npy(&Path::new(&folder).join(name), "<i8", |bytes: [u8; 8]| {
                        values.push(i64::from_le_bytes(bytes))
                    });
                    values
                };
                let ids =
                    |values: Vec<i64>| values.into_iter().map(|v| u32::try_from(v).expect("ids are 32-bit")).collect();
                session.about(
                    "graph",
                    Path::new(&folder).file_name().map_or("?".into(), |n| n.to_string_lossy()).as_ref(),
                );
                Self { indptr: read("indptr.npy"), indices: ids(read("indices.npy")), train: ids(read("train.npy")) }
            }
            _ => {
                let (scale, edge_factor) = if session.smoke { (11, 12) } else { (21, 25) };
                session
                    .about("graph", format!("rmat scale {scale}, edge factor {edge_factor}, both directions, seed 1"));
                Self::rmat(scale, edge_factor)
            }
        };
        session.about("nodes", graph.num_nodes() as u64);
        session.about("edges", graph.indices.len() as u64);
        session.about("train_nodes", graph.train.len() as u64);
        graph
    }

    pub(crate) fn num_nodes(&self) -> usize {
        self.indptr.len() - 1
    }

    /// Generates `2^scale` nodes and `edge_factor` times as many edges in both directions, with shuffled ids. The
    /// probabilities of the quadrants are 0.45, 0.22, 0.22, 0.11, as in the peers' graph.
    fn rmat(scale: u32, edge_factor: u64) -> Self {
        let nodes = 1u64 << scale;
        let order = Permutation::new(Key::new(1, Purpose::GenerateNodes), nodes);
        let name: Vec<u32> = (0..nodes).map(|v| order.at(v) as u32).collect();
        let edges: Vec<(u32, u32)> = (0..nodes * edge_factor)
            .map(|e| {
                let key = Key::new(1, Purpose::GenerateEdges).fold(e);
                let (mut from, mut to) = (0, 0);
                for level in 0..u64::from(scale) {
                    let quadrant = match key.below(level, 100) {
                        0..45 => (0, 0),
                        45..67 => (0, 1),
                        67..89 => (1, 0),
                        _ => (1, 1),
                    };
                    (from, to) = (2 * from + quadrant.0, 2 * to + quadrant.1);
                }
                (name[from], name[to])
            })
            .collect();
        let both = || edges.iter().flat_map(|&(a, b)| [(a, b), (b, a)]);
        let mut indptr = vec![0i64; nodes as usize + 1];
        both().for_each(|(_, to)| indptr[to as usize + 1] += 1);
        (0..nodes as usize).for_each(|v| indptr[v + 1] += indptr[v]);
        let mut next = indptr.clone();
        let mut indices = vec![0; 2 * edges.len()];
        both().for_each(|(from, to)| {
            indices[next[to as usize] as usize] = from;
            next[to as usize] += 1;
        });
        let shuffled = Permutation::new(Key::new(1, Purpose::Split), nodes);
        Self { indptr, indices, train: (0..nodes / 12).map(|i| shuffled.at(i) as u32).collect() }
    }
}

/// Runs `work` twice to warm up, then measures it `repeats` times.
pub(crate) fn repeat(repeats: usize, mut work: impl FnMut()) -> Seconds {
    work();
    work();
    let time = |_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    Seconds::new((0..repeats).map(time).collect())
}

/// Calls `each` with every little-endian element of a NumPy file in C order. Returns the header.
pub(crate) fn read_npy<const BYTES: usize>(path: &Path, element: &str, mut each: impl FnMut([u8; BYTES])) -> String {
    let fail = |what: &str| -> ! { panic!("{}: {what}", path.display()) };
    let Ok(file) = File::open(path) else { fail("cannot be opened") };
    let mut file = BufReader::with_capacity(1 << 20, file);
    let mut start = [0; 10];
    if file.read_exact(&mut start).is_err() || start[..7] != *b"\x93NUMPY\x01" {
        fail("is not a NumPy file of version 1");
    }
    let mut header = vec![0; usize::from(u16::from_le_bytes([start[8], start[9]]))];
    if file.read_exact(&mut header).is_err() {
        fail("is truncated");
    }
    let header = String::from_utf8_lossy(&header).into_owned();
    if !header.contains(&format!("'{element}'")) || header.contains("'fortran_order': True") {
        fail(&format!("does not hold {element} in C order: {header}"));
    }
    let mut value = [0; BYTES];
    while file.read_exact(&mut value).is_ok() {
        each(value);
    }
    header
}
