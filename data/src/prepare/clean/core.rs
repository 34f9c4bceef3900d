//! `k_core`: the largest part of the graph in which every node has at least k neighbors.
//!
//! The edges are sorted, by all processes and on disk when they are many, into a list of distinct neighbors for every node: multiple
//! edges and edges to oneself do not count. Then the first process peels (Batagelj and Zaveršnik, "An O(m) algorithm for
//! cores decomposition of networks", 2003): whoever has too few neighbors goes, and only the lists of those that go are
//! read. So a long chain costs no more than any other graph, and every list is read at most once. Memory: 12 bytes a node.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::alive::Alive;
use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::partitioner::GraphStream;
use crate::prepare::stream::DumpStream;

/// Neighbors that are read at a time.
const WINDOW: usize = 4096;

/// Removes the nodes outside the k-core from `alive`, which holds all nodes.
pub(super) fn keep_core<C: ProcessGroup>(
    stream: &DumpStream<'_, C>,
    k: u32,
    alive: &mut Alive,
    memory: u64,
) -> Result<()> {
    let mut lists = (stream.processes.rank() == 0).then(|| Lists::create(stream.scratch, alive)).transpose()?;
    let both_ways = |src: u32, dst: u32, put: &mut dyn FnMut(u64)| {
        if src != dst {
            put(u64::from(src) << 32 | u64::from(dst));
            put(u64::from(dst) << 32 | u64::from(src));
        }
    };
    stream.sorted_keys("listing neighbours", memory, &both_ways, &mut |some| match &mut lists {
        Some(lists) => some.iter().try_for_each(|&(key, _)| lists.add((key >> 32) as u32, key as u32)),
        None => Ok(()),
    })?;
    let bytes = stream.once("peeling to the core", &mut || {
        let lists = lists.take().ok_or_else(|| Error::Bug("no lists of neighbours".into()))?;
        let mut left = alive.clone();
        lists.finish()?.peel(k, &mut left)?;
        Ok(left.bytes().to_vec())
    })?;
    let nodes = stream.num_nodes() as usize;
    *alive = Alive::from_bytes(&bytes, nodes).ok_or_else(|| Error::Bug("a core of another graph".into()))?;
    Ok(())
}

/// The neighbors of every node, on disk.
struct Lists<'a> {
    dir: &'a Path,
    file: BufWriter<File>,
    /// `ends[v]..ends[v + 1]` are those of `v`; while they are written, `ends[v + 1]` is their number.
    ends: Vec<u64>,
}

impl<'a> Lists<'a> {
    fn create(dir: &'a Path, nodes: &Alive) -> Result<Self> {
        let file = tempfile::tempfile_in(dir).map_err(Error::io(dir, "create a temporary file in"))?;
        Ok(Self { dir, file: BufWriter::with_capacity(1 << 20, file), ends: vec![0; nodes.count() as usize + 1] })
    }

    /// Adds a neighbor. Nodes come in ascending order.
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
    /// Neighbors `first..` of all lists, that have been read.
    first: u64,
    window: Vec<u32>,
}

impl Neighbors<'_> {
    fn peel(mut self, k: u32, alive: &mut Alive) -> Result<()> {
        let mut degrees: Vec<u32> = self.ends.windows(2).map(|ends| (ends[1] - ends[0]) as u32).collect();
        let mut going: Vec<u32> =
            (0..).zip(&degrees).filter(|(_, degree)| **degree < k).map(|(node, _)| node).collect();
        for &node in &going {
            alive.remove(node);
        }
        while !going.is_empty() {
            let mut next = Vec::new();
            for node in going {
                for at in self.ends[node as usize]..self.ends[node as usize + 1] {
                    let neighbor = self.at(at)?;
                    let degree = &mut degrees[neighbor as usize];
                    *degree -= 1;
                    if *degree < k && alive.remove(neighbor) {
                        next.push(neighbor);
                    }
                }
            }
            // Ascending, so that the file is gone through from its beginning to its end.
            next.sort_unstable();
            going = next;
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
    fn what_is_left_is_what_a_naive_program_leaves() {
        for graph in graphs().into_iter().chain([power_law(3000, 9000, 5)]) {
            let mut neighbors = vec![BTreeSet::new(); graph.nodes as usize];
            for &(a, b) in graph.edges.iter().filter(|(a, b)| a != b) {
                neighbors[a as usize].insert(b);
                neighbors[b as usize].insert(a);
            }
            for k in [0, 1, 2, 3, 5, 100] {
                let dir = tempfile::tempdir().unwrap();
                let mut alive = Alive::all(graph.nodes as usize);
                let mut lists = Lists::create(dir.path(), &alive).unwrap();
                for (node, list) in (0..).zip(&neighbors) {
                    list.iter().for_each(|&neighbor| lists.add(node, neighbor).unwrap());
                }
                lists.finish().unwrap().peel(k, &mut alive).unwrap();

                let mut left: BTreeSet<u32> = (0..graph.nodes).collect();
                let degree = |node: &u32, left: &BTreeSet<u32>| neighbors[*node as usize].intersection(left).count();
                while let Some(node) = left.iter().copied().find(|node| degree(node, &left) < k as usize) {
                    left.remove(&node);
                }
                assert_eq!(alive.iter().collect::<BTreeSet<_>>(), left, "{}, k = {k}", graph.name);
            }
        }
    }
}
