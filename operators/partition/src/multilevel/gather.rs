//! Clusters of nodes from a stream, in a few dozen bytes per node for any number of edges.
//!
//! A. Hollocou, J. Maudet, T. Bonald, M. Lelarge: A streaming algorithm for graph clustering. 2017.

use gnnflow_data::{GraphStream, Result};

use super::coarsen::number;

const NONE: u32 = u32::MAX;

/// The bounds on clusters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Largest number of edge ends of a cluster's nodes.
    pub(super) volume: u64,
    /// Largest number of nodes of a cluster.
    pub(super) nodes: u32,
    /// Largest number of clusters.
    pub(super) clusters: usize,
}

/// Returns the cluster of every node and the number of clusters, in two passes over the stream.
pub(super) fn gather(graph: &dyn GraphStream, degrees: &[u32], limits: Limits) -> Result<(Vec<u32>, usize)> {
    let mut labels = by_volume(graph, degrees, limits)?;
    by_vote(graph, &mut labels, limits.nodes)?;
    let count = number(&mut labels);
    let count = pack(&mut labels, count, limits.clusters);
    Ok((labels, count))
}

/// Hollocou's rule: if both clusters of an edge are within the volume limit, the end in the smaller one changes.
fn by_volume(graph: &dyn GraphStream, degrees: &[u32], limits: Limits) -> Result<Vec<u32>> {
    let mut labels: Vec<u32> = (0..degrees.len() as u32).collect();
    let mut volumes: Vec<u64> = degrees.iter().map(|&degree| u64::from(degree)).collect();
    let mut sizes = vec![1u32; degrees.len()];
    graph.for_each_edges("clustering", &mut |edges| {
        for &(src, dst) in edges {
            let (one, other) = (labels[src as usize] as usize, labels[dst as usize] as usize);
            if one == other || volumes[one].max(volumes[other]) > limits.volume {
                continue;
            }
            let (node, from, to) = if volumes[one] <= volumes[other] { (src, one, other) } else { (dst, other, one) };
            if sizes[to] < limits.nodes {
                let degree = u64::from(degrees[node as usize]);
                labels[node as usize] = to as u32;
                volumes[from] -= degree;
                volumes[to] += degree;
                sizes[from] -= 1;
                sizes[to] += 1;
            }
        }
        Ok(())
    })?;
    Ok(labels)
}

/// A pass of label propagation. Every node has one candidate (majority vote of R. S. Boyer and J S. Moore, 1981) and
/// joins it at the end if that cluster is below the size limit.
fn by_vote(graph: &dyn GraphStream, labels: &mut [u32], max_nodes: u32) -> Result<()> {
    let mut votes = vec![(NONE, 0u32); labels.len()];
    graph.for_each_edges("improving clusters", &mut |edges| {
        for &(src, dst) in edges.iter().filter(|(src, dst)| src != dst) {
            for (node, other) in [(src, dst), (dst, src)] {
                let label = labels[other as usize];
                let (candidate, lead) = &mut votes[node as usize];
                if *candidate == label {
                    *lead += 1;
                } else if *lead == 0 {
                    (*candidate, *lead) = (label, 1);
                } else {
                    *lead -= 1;
                }
            }
        }
        Ok(())
    })?;
    let mut sizes = vec![0u32; labels.len()];
    labels.iter().for_each(|&label| sizes[label as usize] += 1);
    for (label, (candidate, lead)) in labels.iter_mut().zip(votes) {
        if lead > 0 && candidate != *label && sizes[candidate as usize] < max_nodes {
            sizes[*label as usize] -= 1;
            sizes[candidate as usize] += 1;
            *label = candidate;
        }
    }
    Ok(())
}

/// Merges the smallest clusters, in order of number, into a quarter of `max_clusters` clusters. Returns the number of
/// clusters, at most `max_clusters`.
fn pack(labels: &mut [u32], count: usize, max_clusters: usize) -> usize {
    if count <= max_clusters {
        return count;
    }
    let bins = (max_clusters / 4).max(1);
    let stay = max_clusters - bins;
    let mut sizes = vec![0u64; count];
    labels.iter().for_each(|&label| sizes[label as usize] += 1);
    let mut order: Vec<u32> = (0..count as u32).collect();
    order.sort_by_key(|&cluster| std::cmp::Reverse(sizes[cluster as usize]));
    let (large, small) = order.split_at_mut(stay);
    small.sort_unstable();
    let mut renamed = vec![0u32; count];
    (0..).zip(large).for_each(|(number, &mut cluster)| renamed[cluster as usize] = number);
    let total: u64 = small.iter().map(|&cluster| sizes[cluster as usize]).sum();
    let mut before = 0;
    for &mut cluster in small {
        renamed[cluster as usize] = (stay as u64 + before * bins as u64 / total.max(1)) as u32;
        before += sizes[cluster as usize];
    }
    labels.iter_mut().for_each(|label| *label = renamed[*label as usize]);
    number(labels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::degrees::Degrees;
    use gnnflow_data::testing::graphs;

    #[test]
    fn clusters_are_bounded_and_densely_numbered() {
        for graph in graphs() {
            let degrees = Degrees::Exact.begin(&graph.stream()).unwrap();
            for (volume, nodes, max_clusters) in [(10, 4, 1000), (1000, 7, 1000), (1 << 40, 1 << 20, 3)] {
                let limits = Limits { volume, nodes, clusters: max_clusters };
                let (labels, count) = gather(&graph.stream(), &degrees, limits).unwrap();
                let mut sizes = vec![0u32; count];
                labels.iter().for_each(|&label| sizes[label as usize] += 1);
                assert!(count <= max_clusters && sizes.iter().all(|&size| size > 0), "{}: {sizes:?}", graph.name);
                assert!(max_clusters < 1000 || sizes.iter().all(|&size| size <= nodes), "{}: {sizes:?}", graph.name);
                let mut other = graph.stream();
                other.chunk = 1000;
                assert_eq!(gather(&other, &degrees, limits).unwrap(), (labels, count));
            }
        }
    }

    #[test]
    fn volume_limit_stops_growing_clusters() {
        // A star of 39 leaves: the center alone exceeds the volume limit.
        let star = graphs().into_iter().find(|graph| graph.name == "star").unwrap();
        let degrees = Degrees::Exact.begin(&star.stream()).unwrap();
        let limits = Limits { volume: 38, nodes: 100, clusters: 100 };
        let labels = by_volume(&star.stream(), &degrees, limits).unwrap();
        assert!((0..40).all(|node| labels[node] == node as u32));
        // The volume is checked before each leaf joins. So with a limit of 39, one leaf more joins than fits.
        let limits = Limits { volume: 39, ..limits };
        let labels = by_volume(&star.stream(), &degrees, limits).unwrap();
        assert_eq!(labels.iter().filter(|&&label| label == 0).count(), 2);
    }

    #[test]
    fn pack_merges_the_smallest_clusters() {
        let mut labels = vec![0, 0, 0, 1, 2, 3, 3, 3, 4];
        assert_eq!(pack(&mut labels, 5, 4), 4);
        assert_eq!(labels, [0, 0, 0, 1, 2, 3, 3, 3, 2]);
    }
}
