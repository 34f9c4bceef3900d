//! `spring`: the streaming partitioner of SDT-GNN, by clusters and richest neighbors.
//!
//! X. Huang et al., SDT-GNN: Streaming-based Distributed Training Framework for Graph Neural Networks, Algorithm 1. The
//! three steps, with the cases that the paper leaves open:
//!
//! 1. **Node clustering** reads the edges in dump order. The name of a cluster is the index of its first node. If an
//!    edge joins two clusters of volume at most τ, the end in the smaller cluster (the source on a tie) moves to the
//!    other. τ is [`volume`](Spring::volume) times the mean volume of a part, 2|E| / p. A node's *richest neighbor* has
//!    the highest degree, then the lowest index. Directed edges count as undirected (the paper's footnote 2); self
//!    loops count in degrees only.
//! 2. **Cluster merging** processes clusters in ascending order of size, then name. A cluster's representative is the
//!    node with the richest neighbor of all, then the lowest index. If that neighbor's cluster is another one and both
//!    have at most β|V|/p nodes together, they are merged under the target's name. The merged cluster is processed
//!    again.
//! 3. **Assigning** places clusters, by descending size, then name, in the part with the fewest nodes, the lowest on a
//!    tie.
//!
//! Step 3 alone does not guarantee the balance: three equal clusters do not fit in two parts. So a cluster that would
//! raise the part above max(⌊β|V|/p⌋, ⌈|V|/p⌉) nodes is divided into the clusters that it was merged from. Those that
//! are still too large are divided into nodes. The bound always holds. Each node without edges is a cluster and is
//! placed last.
//!
//! Two passes, or one with [`Degrees::Online`]. Memory: 24 bytes per node, and 25 per cluster.

use gnnflow_data::partitioner::Goal;
use gnnflow_data::{Assignment, GraphSize, GraphStream, Partitioner, Result};

use super::clusters::{Clusters, Node, merge};
use super::degrees::Degrees;
use super::schedule::{max_nodes, schedule};

/// The method's settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spring {
    /// Exact or online degrees. Online, an edge is counted in degrees and volumes before it is processed.
    pub degrees: Degrees,
    /// Bound on a cluster's volume relative to the mean volume of a part.
    pub volume: f64,
}

impl Spring {
    /// The best of 0.01 to 4, on seven real graphs in two edge orders with 4, 8 and 16 parts. The mean replication
    /// factor is 3% higher with 0.5, 5% with 0.1, and 6% with 2.
    pub(crate) const VOLUME: f64 = 1.0;
}

impl Default for Spring {
    fn default() -> Self {
        Self { degrees: Degrees::Exact, volume: Self::VOLUME }
    }
}

/// Name of the clustered nodes in the journal.
const JOURNAL_NAME: &str = "spring-nodes";

impl Partitioner for Spring {
    fn name(&self) -> &str {
        "spring"
    }

    fn settings(&self) -> String {
        format!("degrees = {}, volume = {}", self.degrees.word(), self.volume)
    }

    fn needed_bytes(&self, size: GraphSize, _: &Goal) -> u64 {
        // Reading the journal takes twice the nodes' state; clustering takes 24 bytes, merging 20 and 25 per cluster, and
        // there are at most as many clusters as nodes.
        (size_of::<Node>() as u64 + 4 + 25 + 2) * size.nodes
    }

    fn assign(&self, graph: &dyn GraphStream, goal: &Goal) -> Result<Assignment> {
        let nodes = match clustered_nodes(graph)? {
            Some(nodes) => nodes,
            None => {
                let nodes = self.cluster(graph, goal)?;
                graph.save(JOURNAL_NAME, bytemuck::cast_slice(&nodes))?;
                nodes
            }
        };
        let n = nodes.len() as u64;
        let max = (goal.balance.nodes * n as f64 / f64::from(goal.parts)) as u64;
        let mut clusters = Clusters::new(&nodes);
        merge(&mut clusters, &nodes, max);
        let max = max_nodes(n, goal);
        Ok(Assignment::Stored(schedule(&clusters, nodes, goal.parts, max)))
    }
}

/// Reads nodes that an interrupted preparation has clustered.
fn clustered_nodes(graph: &dyn GraphStream) -> Result<Option<Vec<Node>>> {
    let n = graph.num_nodes() as usize;
    let fits = |node: &Node| (node.cluster as usize) < n && (node.richest as usize) < n;
    let nodes = graph.load(JOURNAL_NAME)?.filter(|bytes| bytes.len() == n * size_of::<Node>());
    let nodes = nodes.map(|bytes| bytes.chunks_exact(size_of::<Node>()).map(bytemuck::pod_read_unaligned).collect());
    Ok(nodes.filter(|nodes: &Vec<Node>| nodes.iter().all(fits)))
}

impl Spring {
    /// Step 1, lines 1 to 17 of the algorithm.
    fn cluster(&self, graph: &dyn GraphStream, goal: &Goal) -> Result<Vec<Node>> {
        let bound = (self.volume * 2.0 * graph.num_edges() as f64 / f64::from(goal.parts)) as u64;
        let degrees = self.degrees.begin(graph)?;
        let node = |(index, &degree): (u32, &u32)| Node { degree, cluster: index, richest: index, richest_degree: 0 };
        let mut nodes: Vec<Node> = (0..).zip(&degrees).map(node).collect();
        drop(degrees);
        let mut volumes: Vec<u64> = nodes.iter().map(|node| node.degree.into()).collect();
        graph.for_each_edges("clustering nodes", &mut |edges| {
            match self.degrees {
                Degrees::Exact => edges.iter().for_each(|&edge| visit::<false>(&mut nodes, &mut volumes, bound, edge)),
                Degrees::Online => edges.iter().for_each(|&edge| visit::<true>(&mut nodes, &mut volumes, bound, edge)),
            }
            Ok(())
        })?;
        Ok(nodes)
    }
}

#[inline(always)]
fn visit<const ONLINE: bool>(nodes: &mut [Node], volumes: &mut [u64], bound: u64, (src, dst): (u32, u32)) {
    let (mut u, mut v) = (nodes[src as usize], nodes[dst as usize]);
    if ONLINE {
        volumes[u.cluster as usize] += 1;
        volumes[v.cluster as usize] += 1;
        u.degree += 1;
        v.degree += 1;
    }
    if src == dst {
        if ONLINE {
            nodes[src as usize].degree += 2;
        }
        return;
    }
    if u.cluster != v.cluster {
        let (of_u, of_v) = (volumes[u.cluster as usize], volumes[v.cluster as usize]);
        if of_u <= bound && of_v <= bound {
            if of_u <= of_v {
                volumes[u.cluster as usize] = of_u - u64::from(u.degree);
                volumes[v.cluster as usize] = of_v + u64::from(u.degree);
                u.cluster = v.cluster;
            } else {
                volumes[v.cluster as usize] = of_v - u64::from(v.degree);
                volumes[u.cluster as usize] = of_u + u64::from(v.degree);
                v.cluster = u.cluster;
            }
        }
    }
    if ONLINE {
        // Degrees have grown since the richest neighbor was chosen, including those of this edge's ends.
        let now = |node: u32, of: u32, of_degree: u32| if node == of { of_degree } else { nodes[node as usize].degree };
        u.richest_degree = if u.richest == src { 0 } else { now(u.richest, dst, v.degree) };
        v.richest_degree = if v.richest == dst { 0 } else { now(v.richest, src, u.degree) };
    }
    if v.degree > u.richest_degree || v.degree == u.richest_degree && dst < u.richest {
        (u.richest, u.richest_degree) = (dst, v.degree);
    }
    if u.degree > v.richest_degree || u.degree == v.richest_degree && src < v.richest {
        (v.richest, v.richest_degree) = (src, u.degree);
    }
    nodes[src as usize] = u;
    nodes[dst as usize] = v;
}
