//! `2ps-l`: two-phase streaming in linear time. Phase 1 clusters nodes; phase 2 places edges in the parts of their
//! ends' clusters.
//!
//! R. Mayer, K. Orujzade, H.-A. Jacobsen, Out-of-Core Edge Partitioning at Linear Run-Time, ICDE 2022.
//!
//! 1. **Clustering**, in dump order. The name of a cluster is the index of its first node. τ is
//!    [`volume`](TwoPsL::volume) times 2|E|/p (1 in the paper). At an edge between two clusters of volume at most τ,
//!    the end in the cluster that is smaller without it moves to the other cluster (the source on a tie). It stays if
//!    the other cluster would exceed τ.
//! 2. **Clusters to parts**, by descending volume, then name. Each cluster is placed in the part of least volume, then
//!    the lowest.
//! 3. **Edges to parts**. First, edges with both ends in one part are placed there. Then all others are placed in that
//!    of their ends' parts P with the higher score, the source's on a tie:
//!
//! ```text
//! score = g(u) + g(v) + s(u) + s(v)
//! g(u)  = 1 + (1 − d(u) / (d(u) + d(v)))        if P has an edge of u already, else 0
//! s(u)  = vol(c(u)) / (vol(c(u)) + vol(c(v)))   if the cluster of u is in P, else 0
//! ```
//!
//! A part has at most 1.05 |E|/p edges (or `balance.edges`). If the parts of an edge are full, it is placed by the hash
//! of its end with the higher degree (the destination on a tie). If that part is full too, the part with the fewest
//! edges is used.
//!
//! Four passes, or three with [`Degrees::Online`]. Memory: one bit per node and part, 18 bytes per node, and the
//! counters of [`VertexCut`].

use std::cmp::Reverse;

use gnnflow_data::partitioner::Goal;
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_data::{Assignment, GraphSize, GraphStream, Partitioner, Result};

use super::degrees::Degrees;
use super::loads::Loads;
use super::replicas::Replicas;
use super::schedule::PartQueue;
use super::vertex_cut::VertexCut;

/// The method's settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TwoPsL {
    /// Settings common to all vertex cuts.
    pub cut: VertexCut,
    /// Bound on a cluster's volume relative to the mean volume of a part.
    pub volume: f64,
}

impl TwoPsL {
    /// The bound of the paper.
    pub(crate) const VOLUME: f64 = 1.0;
}

impl Default for TwoPsL {
    fn default() -> Self {
        Self { cut: VertexCut::default(), volume: Self::VOLUME }
    }
}

struct Clustering {
    degrees: Vec<u32>,
    /// By node.
    cluster: Vec<u32>,
    /// By name of the cluster.
    volume: Vec<u64>,
}

impl Partitioner for TwoPsL {
    fn name(&self) -> &str {
        "2ps-l"
    }

    fn settings(&self) -> String {
        format!("{}, volume = {}", self.cut.settings(), self.volume)
    }

    fn needed_bytes(&self, size: GraphSize, goal: &Goal) -> u64 {
        // Sorting clusters takes six bytes for each. Edges are read in order, so processes do not exchange counters.
        let own = own_bytes(size.nodes, goal);
        6 * size.nodes + self.cut.needed_bytes(GraphSize { processes: 1, ..size }, goal, own)
    }

    fn memory_decides(&self) -> bool {
        true
    }

    fn assign(&self, graph: &dyn GraphStream, goal: &Goal) -> Result<Assignment> {
        let mut replicas = Replicas::new(graph.num_nodes(), goal.parts);
        let mut counters = self.cut.counters(graph, goal, own_bytes(graph.num_nodes(), goal));
        let mut loads = Loads::new(graph.num_edges(), goal);
        let Clustering { degrees, cluster, volume } = self.cluster(graph, goal)?;
        let part = parts_of_clusters(&volume, goal.parts);
        let part: Vec<u16> = cluster.iter().map(|&cluster| part[cluster as usize]).collect();

        let key = Key::new(goal.seed, Purpose::Partition);
        let overflow = |loads: &Loads, src: u32, dst: u32| {
            let higher = if degrees[src as usize] > degrees[dst as usize] { src } else { dst };
            let hashed = key.below(u64::from(higher), u64::from(goal.parts)) as u32;
            if loads.has_capacity(hashed) { hashed } else { loads.least() }
        };
        self.cut.stream(graph, "placing edges inside", &mut counters, |src, dst| {
            let (of_src, of_dst) = (u32::from(part[src as usize]), u32::from(part[dst as usize]));
            (of_src == of_dst).then(|| {
                let part = if loads.has_capacity(of_src) { of_src } else { overflow(&loads, src, dst) };
                place(&mut replicas, &mut loads, [src, dst], part)
            })
        })?;
        self.cut.stream(graph, "placing edges between", &mut counters, |src, dst| {
            let ends = [src, dst];
            let parts = ends.map(|end| u32::from(part[end as usize]));
            (parts[0] != parts[1]).then(|| {
                let degrees = ends.map(|end| f64::from(degrees[end as usize]));
                let volumes = ends.map(|end| volume[cluster[end as usize] as usize] as f64);
                let score = |of: usize| {
                    let gain = |end: usize| match replicas.has(ends[end], parts[of]) {
                        true => 1.0 + (1.0 - degrees[end] / (degrees[0] + degrees[1])),
                        false => 0.0,
                    };
                    gain(0) + gain(1) + volumes[of] / (volumes[0] + volumes[1])
                };
                let part = match [0, 1].map(|of| loads.has_capacity(parts[of])) {
                    [true, true] => parts[usize::from(score(1) > score(0))],
                    [true, false] => parts[0],
                    [false, true] => parts[1],
                    [false, false] => overflow(&loads, src, dst),
                };
                place(&mut replicas, &mut loads, ends, part)
            })
        })?;
        Ok(Assignment::Stored(self.cut.core_parts(&counters, graph.num_nodes(), goal)))
    }
}

/// Bytes without the counters: degrees, clusters, volumes and parts.
fn own_bytes(nodes: u64, goal: &Goal) -> u64 {
    Replicas::bytes(nodes, goal.parts) + 18 * nodes
}

/// Places an edge in a part, and returns the part.
#[inline]
fn place(replicas: &mut Replicas, loads: &mut Loads, ends: [u32; 2], part: u32) -> u32 {
    ends.into_iter().for_each(|end| replicas.set(end, part));
    loads.add(part);
    part
}

impl TwoPsL {
    /// Phase 1: clusters nodes in one pass.
    fn cluster(&self, graph: &dyn GraphStream, goal: &Goal) -> Result<Clustering> {
        let bound = (self.volume * 2.0 * graph.num_edges() as f64 / f64::from(goal.parts)) as u64;
        let online = self.cut.degrees == Degrees::Online;
        let mut degrees = self.cut.degrees.begin(graph)?;
        let mut cluster: Vec<u32> = (0..degrees.len() as u32).collect();
        let mut volume: Vec<u64> = degrees.iter().map(|&degree| degree.into()).collect();
        graph.for_each_edges("clustering nodes", &mut |edges| {
            for &(src, dst) in edges {
                let (u, v) = (src as usize, dst as usize);
                let (of_u, of_v) = (cluster[u] as usize, cluster[v] as usize);
                if online {
                    for (node, cluster) in [(u, of_u), (v, of_v)] {
                        degrees[node] += 1;
                        volume[cluster] += 1;
                    }
                }
                if of_u == of_v || volume[of_u] > bound || volume[of_v] > bound {
                    continue;
                }
                let (degree_u, degree_v) = (u64::from(degrees[u]), u64::from(degrees[v]));
                let moves_u = volume[of_u] - degree_u <= volume[of_v] - degree_v;
                let (node, degree, from, to) =
                    if moves_u { (u, degree_u, of_u, of_v) } else { (v, degree_v, of_v, of_u) };
                if volume[to] + degree <= bound {
                    volume[to] += degree;
                    volume[from] -= degree;
                    cluster[node] = to as u32;
                }
            }
            Ok(())
        })?;
        Ok(Clustering { degrees, cluster, volume })
    }
}

/// Phase 2, step 1: the part of every cluster.
fn parts_of_clusters(volume: &[u64], parts: u32) -> Vec<u16> {
    let mut order: Vec<u32> = (0..volume.len() as u32).filter(|&cluster| volume[cluster as usize] > 0).collect();
    order.sort_unstable_by_key(|&cluster| (Reverse(volume[cluster as usize]), cluster));
    let mut queue = PartQueue::new((0..parts).map(|_| 0));
    let mut part = vec![0; volume.len()];
    order
        .into_iter()
        .for_each(|cluster| part[cluster as usize] = queue.add_to_smallest(volume[cluster as usize]) as u16);
    part
}
