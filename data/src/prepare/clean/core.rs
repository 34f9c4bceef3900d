//! `k_core`: keeps the largest subgraph in which every node has at least k neighbors.
//!
//! All processes sort the edges, on disk if necessary, into a list of distinct neighbors for every node. Multiple edges and self-loops do
//! not count. The first process then peels (Batagelj and Zaveršnik, "An O(m) algorithm for cores decomposition of networks", 2003): it
//! removes nodes with too few neighbors, and reads only the lists of removed nodes. So every list is read at most once, and the cost of
//! long chains is that of other graphs. Memory: 12 bytes per node.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::node_set::NodeSet;
use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::partitioner::GraphStream;
use crate::prepare::stream::DumpStream;

/// Number of neighbors per read.
const WINDOW: usize = 4096;

/// Removes the nodes outside the k-core from `remaining`, which must contain all nodes.
pub(super) fn keep_core<C: ProcessGroup>(
    stream: &DumpStream<'_, C>,
    k: u32,
    remaining: &mut NodeSet,
    memory: u64,
) -> Result<()> {
    let mut lists = (stream.processes.rank() == 0).then(|| Lists::create(stream.scratch, remaining)).transpose()?;
    let both_ways = |src: u32, dst: u32, put: &mut dyn FnMut(u64)| {
        if src != dst {
            put(u64::from(src) << 32 | u64::from(dst));
            put(u64::from(dst) << 32 | u64::from(src));
        }
    };
    stream.sorted_keys("listing neighbors", memory, &both_ways, &mut |some| match &mut lists {
        Some(lists) => some.iter().try_for_each(|&(key, _)| lists.add((key >> 32) as u32, key as u32)),
        None => Ok(()),
    })?;
    let bytes = stream.once("peeling to the core", &mut || {
        let lists = lists.take().ok_or_else(|| Error::Bug("there are no lists of neighbors".into()))?;
        let mut left = remaining.clone();
        lists.finish()?.peel(k, &mut left)?;
        Ok(left.bytes().to_vec())
    })?;
    let nodes = stream.num_nodes() as usize;
    *remaining =
        NodeSet::from_bytes(&bytes, nodes).ok_or_else(|| Error::Bug("a core has another number of nodes".into()))?;
    Ok(())
}

/// The neighbors of every node, on disk.
struct Lists<'a> {
    dir: &'a Path,
    file: BufWriter<File>,
    /// `ends[v]..ends[v + 1]` are the neighbors of `v`. Until [`Lists::finish`], `ends[v + 1]` is their number.
    ends: Vec<u64>,
}

impl<'a> Lists<'a> {
    fn create(dir: &'a Path, nodes: &NodeSet) -> Result<Self> {
        let file = tempfile::tempfile_in(dir).map_err(Error::io(dir, "create a temporary file in"))?;
        Ok(Self { dir, file: BufWriter::with_capacity(1 << 20, file), ends: vec![0; nodes.count() as usize + 1] })
    }

    /// Adds a neighbor. Nodes must be in ascending order.
    fn add(&mut self, node: u32, neighbor: u32) -> Result<()> {
        self.ends[node as usize + 1] += 1;
        self.file.write_all(&neighbor.to_le_bytes()).map_err(Error::io(self.dir, "write a temporary file in"))
    }

    fn finish(mut self) -> Result<Neighbors<'a>> {
        for node in 1..self.ends.len() {
            self.ends[node] += self.ends[node - 1];
        }
        let file =
            self.file.into_inner().map_err(|e| Error::io(self.dir, "write a temporary file in")(e.into_error()))?;
        Ok(Neighbors { dir: self.dir, file, ends: self.ends, first: 0, window: Vec::new() })
    }
}

struct Neighbors<'a> {
    dir: &'a Path,
    file: File,
    ends: Vec<u64>,
    /// The position of the first neighbor in `window`.
    first: u64,
    window: Vec<u32>,
}

impl Neighbors<'_> {
    fn peel(mut self, k: u32, remaining: &mut NodeSet) -> Result<()> {
        let mut degrees: Vec<u32> = self.ends.windows(2).map(|ends| (ends[1] - ends[0]) as u32).collect();
        let mut removed: Vec<u32> =
            (0..).zip(&degrees).filter(|(_, degree)| **degree < k).map(|(node, _)| node).collect();
        for &node in &removed {
            remaining.remove(node);
        }
        while !removed.is_empty() {
            let mut next = Vec::new();
            for node in removed {
                for at in self.ends[node as usize]..self.ends[node as usize + 1] {
                    let neighbor = self.at(at)?;
                    let degree = &mut degrees[neighbor as usize];
                    *degree -= 1;
                    if *degree < k && remaining.remove(neighbor) {
                        next.push(neighbor);
                    }
                }
            }
            // Ascending order makes the file access sequential.
            next.sort_unstable();
            removed = next;
        }
        Ok(())
    }

    #[inline]
    fn at(&mut self, at: u64) -> Result<u32> {
        if at < self.first || at - self.first >= self.window.len() as u64 {
            let all = self.ends.last().copied().unwrap_or(0);
            self.window.resize((all - at).min(WINDOW as u64) as usize, 0);
            let bytes = bytemuck::cast_slice_mut(&mut self.window);
            self.file.read_exact_at(bytes, 4 * at).map_err(Error::io(self.dir, "read a temporary file in"))?;
            self.first = at;
        }
        Ok(self.window[(at - self.first) as usize])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::testing::{graphs, power_law};

    #[test]
    fn core_equals_that_of_a_naive_program() {
        for graph in graphs().into_iter().chain([power_law(3000, 9000, 5)]) {
            let mut neighbors = vec![BTreeSet::new(); graph.nodes as usize];
            for &(a, b) in graph.edges.iter().filter(|(a, b)| a != b) {
                neighbors[a as usize].insert(b);
                neighbors[b as usize].insert(a);
            }
            for k in [0, 1, 2, 3, 5, 100] {
                let dir = tempfile::tempdir().unwrap();
                let mut remaining = NodeSet::all(graph.nodes as usize);
                let mut lists = Lists::create(dir.path(), &remaining).unwrap();
                for (node, list) in (0..).zip(&neighbors) {
                    list.iter().for_each(|&neighbor| lists.add(node, neighbor).unwrap());
                }
                lists.finish().unwrap().peel(k, &mut remaining).unwrap();

                let mut left: BTreeSet<u32> = (0..graph.nodes).collect();
                let degree = |node: &u32, left: &BTreeSet<u32>| neighbors[*node as usize].intersection(left).count();
                while let Some(node) = left.iter().copied().find(|node| degree(node, &left) < k as usize) {
                    left.remove(&node);
                }
                assert_eq!(remaining.iter().collect::<BTreeSet<_>>(), left, "{}, k = {k}", graph.name);
            }
        }
    }
}
