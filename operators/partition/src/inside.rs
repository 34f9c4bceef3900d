//! Clusters of the nodes of one partition, from its stored in-edges.

use std::ops::Range;
use std::sync::atomic::AtomicU32;

use gnnflow_data::ids::NodeIds;
use gnnflow_data::partitioner::{AddEdges, ConsumeKeys, EdgeKey, Goal, VisitEdges};
use gnnflow_data::{GraphStream, Partitioner, Result};

use super::multilevel::Multilevel;

/// Edges per visit.
const CHUNK: usize = 4096;
/// Number of key ranges, of which as many as fit in memory are counted per pass.
const KEY_RANGES: usize = 1 << 12;

/// Divides `nodes`, whose in-edges are `(indptr, indices)` in CSC form, into [`Goal::parts`] clusters and returns the
/// cluster of each.
///
/// Uses [`Multilevel`] within [`Goal::memory`]. Edges from other nodes are ignored. The result is equal for any number
/// of threads.
///
/// ```
/// use gnnflow_data::partitioner::Goal;
/// use gnnflow_partition::clusters_inside;
///
/// // Two triangles, 10, 11, 12 and 13, 14, 15; node 3 of another partition has an edge to 10.
/// let triangle = |first: u32| (0..3).map(move |i| [first + (i + 1) % 3, first + (i + 2) % 3]);
/// let mut indices: Vec<u32> = triangle(10).chain(triangle(13)).flatten().collect();
/// indices.insert(0, 3);
/// let indptr = [0, 3, 5, 7, 9, 11, 13];
/// let clusters = clusters_inside((&indptr, &indices), 10..16, &Goal::new(2))?;
/// assert!(clusters[..3].iter().all(|&c| c == clusters[0]) && clusters[3..].iter().all(|&c| c != clusters[0]));
/// # Ok::<(), gnnflow_data::Error>(())
/// ```
///
/// # Errors
/// As [`Multilevel`].
pub fn clusters_inside(in_edges: (&[i64], &[u32]), nodes: Range<u32>, goal: &Goal) -> Result<Vec<u16>> {
    let count = nodes.len();
    let mut stream =
        PartitionStream { in_edges, nodes: nodes.clone(), edges: 0, ids: NodeIds::dense(nodes.len() as u32) };
    let mut edges = 0;
    stream.for_each_edges("counting", &mut |chunk| {
        edges += chunk.len() as u64;
        Ok(())
    })?;
    stream.edges = edges;
    let assignment = Multilevel.assign(&stream, goal)?;
    Ok((0..count as u64).map(|node| assignment.part(node) as u16).collect())
}

/// The edges within a partition as a stream, in storage order.
struct PartitionStream<'a> {
    in_edges: (&'a [i64], &'a [u32]),
    nodes: Range<u32>,
    edges: u64,
    ids: NodeIds,
}

impl PartitionStream<'_> {
    fn each(&self, mut visit: impl FnMut(&[(u32, u32)]) -> Result<()>) -> Result<()> {
        let (indptr, indices) = self.in_edges;
        let mut chunk = Vec::with_capacity(CHUNK);
        for (dst, ends) in (0..).zip(indptr.windows(2)) {
            for source in &indices[ends[0] as usize..ends[1] as usize] {
                if self.nodes.contains(source) {
                    chunk.push((source - self.nodes.start, dst));
                    if chunk.len() == CHUNK {
                        visit(&chunk)?;
                        chunk.clear();
                    }
                }
            }
        }
        if chunk.is_empty() { Ok(()) } else { visit(&chunk) }
    }
}

impl GraphStream for PartitionStream<'_> {
    fn num_nodes(&self) -> u64 {
        self.nodes.len() as u64
    }

    fn num_edges(&self) -> u64 {
        self.edges
    }

    fn undirected(&self) -> bool {
        false
    }

    fn splits(&self) -> &[u8] {
        &[]
    }

    fn node_types(&self) -> &[u16] {
        &[]
    }

    fn node_ids(&self) -> &NodeIds {
        &self.ids
    }

    fn for_each_edges(&self, _pass: &str, visit: &mut VisitEdges<'_>) -> Result<()> {
        self.each(visit)
    }

    fn accumulate(&self, _pass: &str, _cells: &[AtomicU32], visit: &AddEdges<'_>) -> Result<()> {
        self.each(|edges| {
            visit(edges);
            Ok(())
        })
    }

    /// Divides keys into ranges by their leading bits. Each pass over the edges sorts as many ranges as fit in memory.
    /// Nothing is written to disk.
    fn count_keys(&self, _pass: &str, memory: u64, key: &EdgeKey<'_>, consume: &mut ConsumeKeys<'_>) -> Result<()> {
        let each_key = |with: &mut dyn FnMut(u64)| {
            self.each(|edges| {
                edges.iter().filter_map(|&(src, dst)| key(src, dst)).for_each(&mut *with);
                Ok(())
            })
        };
        let mut largest = 0;
        each_key(&mut |key| largest = largest.max(key))?;
        let shift = (u64::BITS - largest.leading_zeros()).saturating_sub(KEY_RANGES.ilog2());
        let mut counts = vec![0u64; KEY_RANGES];
        each_key(&mut |key| counts[(key >> shift) as usize] += 1)?;
        let max_keys = (memory / 16).max(1);
        let mut first = 0;
        while first < KEY_RANGES {
            let (mut end, mut keys) = (first + 1, counts[first]);
            while end < KEY_RANGES && keys + counts[end] <= max_keys {
                keys += counts[end];
                end += 1;
            }
            if keys > 0 {
                let mut found = Vec::with_capacity(keys as usize);
                each_key(&mut |key| {
                    if (first..end).contains(&((key >> shift) as usize)) {
                        found.push(key);
                    }
                })?;
                found.sort_unstable();
                let counted: Vec<(u64, u64)> =
                    found.chunk_by(|a, b| a == b).map(|same| (same[0], same.len() as u64)).collect();
                counted.chunks(CHUNK).try_for_each(&mut *consume)?;
            }
            first = end;
        }
        Ok(())
    }

    fn once(&self, _pass: &str, work: &mut dyn FnMut() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
        work()
    }

    fn load(&self, _name: &str) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn save(&self, _name: &str, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnnflow_data::testing::random_graph;
    use std::collections::BTreeMap;

    /// Nodes 40..140 of a random graph of 200.
    fn part() -> (Vec<i64>, Vec<u32>) {
        let (mut indptr, mut indices) = (vec![0], vec![]);
        for row in &random_graph(200, 9)[40..140] {
            indices.extend_from_slice(row);
            indptr.push(indices.len() as i64);
        }
        (indptr, indices)
    }

    #[test]
    fn clusters_are_balanced_and_deterministic() {
        let (indptr, indices) = part();
        let part = (&indptr[..], &indices[..]);
        for parts in [1, 2, 7, 50, 100] {
            let goal = Goal::new(parts);
            let found = clusters_inside(part, 40..140, &goal).unwrap();
            let mut sizes = vec![0; parts as usize];
            found.iter().for_each(|&cluster| sizes[usize::from(cluster)] += 1);
            let bound = (105 / parts).max(100_u32.div_ceil(parts)) as usize;
            assert!(sizes.iter().all(|&size| size <= bound), "{parts}: {sizes:?}");
            assert_eq!(found, clusters_inside(part, 40..140, &goal).unwrap());
            // The graph does not fit in memory, so it is streamed.
            let small = Goal { memory: 6000, ..goal };
            assert_eq!(clusters_inside(part, 40..140, &small).unwrap().len(), 100);
        }
    }

    #[test]
    fn keys_are_counted_in_order_for_any_memory() {
        let (indptr, indices) = part();
        let part = (&indptr[..], &indices[..]);
        let stream = PartitionStream { in_edges: part, nodes: 40..140, edges: 0, ids: NodeIds::dense(100) };
        let key = |src: u32, dst: u32| (src != dst).then(|| u64::from(src % 10) << 32 | u64::from(dst % 7));
        let mut expected = BTreeMap::new();
        stream
            .each(|edges| {
                edges.iter().filter_map(|&(s, d)| key(s, d)).for_each(|key| *expected.entry(key).or_insert(0) += 1);
                Ok(())
            })
            .unwrap();
        for memory in [0, 100, 1000, 1 << 20] {
            let mut found = vec![];
            let mut consume = |counts: &[(u64, u64)]| {
                found.extend_from_slice(counts);
                Ok(())
            };
            stream.count_keys("", memory, &key, &mut consume).unwrap();
            assert!(found.iter().copied().eq(expected.iter().map(|(&key, &count)| (key, count))), "{memory}");
        }
    }
}
