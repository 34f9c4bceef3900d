//! The edges of a worker as row numbers, for aggregation over the full graph.
//!
//! A table has a row for each own node (or some of them), then one for each ghost, by ascending id. If a worker hosts all nodes
//! and all of them have rows, ids equal row numbers, and the mapped topology is used directly. Otherwise row numbers are stored,
//! four bytes per edge, in memory or in a scratch file. Neighbors stay in the order of their ids, so that a sum has the same bits
//! wherever its rows lie.

use std::ops::Range;
use std::sync::Arc;

use super::numbering::Numbering;
use crate::graph::local_graph::InEdges;
use crate::storage::array::{Array, Place};
use gnnflow_kernels::node_index::NodeIndex;

/// Edges by row, and the ghosts that they need.
pub struct Links {
    /// The own nodes that receive sums, one row of edges each.
    rows: Numbering,
    /// The own nodes that have rows in the table.
    table: Numbering,
    ghosts: NodeIndex,
    edges: Edges,
    /// By worker: the rows of the table that are ghosts there, ascending.
    wanted: Vec<Vec<u32>>,
}

enum Edges {
    /// For each partition: its first row, and its edges, whose indices are global ids.
    InPlace(Vec<(usize, Arc<dyn InEdges>)>),
    /// Edges whose indices are row numbers of the table.
    Numbered { indptr: Vec<i64>, indices: Array<u32> },
}

/// The ids of both ends of a worker's edges. Receivers have ids of their own if each node receives several sums.
#[derive(Clone, Debug)]
pub struct Ends {
    /// Own ids at the receiving end.
    pub rows: Range<u32>,
    /// Own ids at the end whose rows are added up.
    pub table: Range<u32>,
    /// The number of ids at that end, over all workers.
    pub all: u64,
}

impl Ends {
    /// Edges between nodes: `own` nodes, of `nodes` in total.
    pub fn nodes(own: Range<u32>, nodes: u64) -> Self {
        Self { rows: own.clone(), table: own, all: nodes }
    }
}

/// Restricts edges to some receivers and some neighbors. The default keeps all.
#[derive(Clone, Copy, Default)]
pub struct Filter<'a> {
    /// Returns whether an own node receives sums.
    pub rows: Option<&'a dyn Fn(u32) -> bool>,
    /// Returns whether the rows of a node, own or not, are added up.
    pub neighbors: Option<&'a dyn Fn(u32) -> bool>,
    /// Whether every node has exactly one self-loop. Otherwise self-loops are those of the graph.
    pub self_loops: bool,
}

impl Links {
    /// Numbers the edges of consecutive partitions `parts`, whose ids are `ends`.
    ///
    /// # Errors
    /// When memory or disk is full.
    pub fn new(ends: Ends, parts: &[Arc<dyn InEdges>], filter: Filter<'_>, place: &Place) -> std::io::Result<Self> {
        let Ends { rows: receivers, table: own, all } = ends;
        let rows = Numbering::new(receivers.clone(), filter.rows);
        let table = Numbering::new(own.clone(), filter.neighbors);
        let starts: Vec<usize> = std::iter::once(0)
            .chain(parts.iter().scan(0, |sum, part| {
                *sum += part.indptr().len() - 1;
                Some(*sum)
            }))
            .collect();
        assert_eq!(starts[parts.len()], receivers.len(), "the partitions have as many nodes as there are own rows");
        let all_edges = filter.rows.is_none() && filter.neighbors.is_none() && !filter.self_loops;
        if all_edges && own.len() as u64 == all {
            let edges = Edges::InPlace(starts.into_iter().zip(parts.iter().cloned()).collect());
            return Ok(Self { rows, table, ghosts: NodeIndex::default(), edges, wanted: Vec::new() });
        }
        let is_kept = |node: u32| filter.neighbors.is_none_or(|wanted| wanted(node));
        let row = |row: usize| {
            let node = rows.node(row);
            let local = (node - receivers.start) as usize;
            let part = starts.partition_point(|&start| start <= local) - 1;
            let (part, local) = (&parts[part], local - starts[part]);
            let neighbors = &part.indices()[part.indptr()[local] as usize..part.indptr()[local + 1] as usize];
            // The self-loop is placed in the order of ids, like all neighbors.
            let (before, after) = match filter.self_loops {
                true => (neighbors.partition_point(|&n| n < node), neighbors.partition_point(|&n| n <= node)),
                false => (neighbors.len(), neighbors.len()),
            };
            let own = filter.self_loops.then_some(node);
            neighbors[..before].iter().copied().chain(own).chain(neighbors[after..].iter().copied())
        };
        // A bit for each node, freed at the end of this function.
        let mut foreign = vec![0u64; (all as usize).div_ceil(64)];
        let mut indptr = Vec::with_capacity(rows.len() + 1);
        indptr.push(0);
        let mut total = 0;
        for r in 0..rows.len() {
            for node in row(r).filter(|&node| is_kept(node)) {
                total += 1;
                if !own.contains(&node) {
                    foreign[node as usize / 64] |= 1 << (node % 64);
                }
            }
            indptr.push(total);
        }
        let set = foreign.iter().enumerate().flat_map(|(word, &bits)| {
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| (word * 64 + bit) as u32)
        });
        let ghosts = NodeIndex::new(set.collect());
        let mut indices = Array::<u32>::zeros(total as usize, place)?;
        let mut next = 0;
        for r in 0..rows.len() {
            for node in row(r).filter(|&node| is_kept(node)) {
                let number = match table.find(node) {
                    Some(number) => number,
                    None => table.len() + ghosts.find(node).expect("a neighbor that is not own is a ghost"),
                };
                indices[next] = number as u32;
                next += 1;
            }
        }
        Ok(Self { rows, table, ghosts, edges: Edges::Numbered { indptr, indices }, wanted: Vec::new() })
    }

    /// Sets the own nodes that are ghosts at each worker: their ids, ascending, by worker.
    ///
    /// # Panics
    /// When one of them has no row here.
    pub fn set_wanted(&mut self, wanted: Vec<Vec<u32>>) {
        let number = |node: u32| self.table.find(node).expect("a requested node has a row here") as u32;
        self.wanted = wanted.into_iter().map(|nodes| nodes.into_iter().map(number).collect()).collect();
    }

    /// Returns the own nodes that receive sums.
    #[inline]
    pub fn rows(&self) -> &Numbering {
        &self.rows
    }

    /// Returns the own nodes that have rows in the table.
    #[inline]
    pub fn table(&self) -> &Numbering {
        &self.table
    }

    /// Returns the number of rows of the table: own nodes and ghosts.
    #[inline]
    pub fn table_rows(&self) -> usize {
        self.table.len() + self.ghosts.nodes().len()
    }

    /// Returns the ghosts: nodes of other workers whose rows follow the own ones, ascending.
    #[inline]
    pub fn ghosts(&self) -> &[u32] {
        self.ghosts.nodes()
    }

    /// Returns the number of edges.
    pub fn num_edges(&self) -> usize {
        match &self.edges {
            Edges::InPlace(parts) => parts.iter().map(|(_, part)| part.indices().len()).sum(),
            Edges::Numbered { indices, .. } => indices.len(),
        }
    }

    /// Returns the edges of `rows`, all of one partition: their bounds, and the indices that the bounds refer to. Without ghosts,
    /// bounds count from the partition's first edge.
    ///
    /// # Panics
    /// When the rows belong to several partitions.
    pub fn edges(&self, rows: Range<usize>) -> (&[i64], &[u32]) {
        match &self.edges {
            Edges::Numbered { indptr, indices } => (&indptr[rows.start..=rows.end], indices),
            Edges::InPlace(parts) => {
                let part = parts.partition_point(|&(start, _)| start <= rows.start).saturating_sub(1);
                // An empty partition starts at the same row as the next one.
                let (start, edges) = &parts[part];
                (&edges.indptr()[rows.start - start..=rows.end - start], edges.indices())
            }
        }
    }

    /// Returns, for each worker that has any of the table's `rows` as ghosts: the worker, the position of the first one among its
    /// ghosts from this worker, and the rows.
    pub fn wanted(&self, rows: Range<usize>) -> impl Iterator<Item = (usize, usize, &[u32])> {
        self.wanted.iter().enumerate().filter_map(move |(worker, wanted)| {
            let at = |row: usize| wanted.partition_point(|&known| (known as usize) < row);
            let (first, end) = (at(rows.start), at(rows.end));
            (first < end).then(|| (worker, first, &wanted[first..end]))
        })
    }

    /// Returns all rows of the table that are ghosts at `worker`, in the order that they have there.
    pub fn wanted_by(&self, worker: usize) -> &[u32] {
        self.wanted.get(worker).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use gnnflow_data::rng::{Key, Purpose};

    use super::*;
    use crate::graph::local_graph::OwnedInEdges;

    /// In-neighbors of every node, sorted: loops, parallel edges and nodes without any among them.
    fn neighbors(nodes: u32) -> Vec<Vec<u32>> {
        let key = Key::new(5, Purpose::GenerateEdges);
        let of = |node: u32| {
            let key = key.fold(u64::from(node));
            let mut all: Vec<u32> = (0..key.below(0, 9)).map(|i| key.below(1 + i, u64::from(nodes)) as u32).collect();
            if node % 7 == 3 {
                all.push(node);
            }
            all.sort_unstable();
            all
        };
        (0..nodes).map(of).collect()
    }

    fn part(all: &[Vec<u32>], nodes: Range<u32>) -> Arc<dyn InEdges> {
        let mut edges = OwnedInEdges { indptr: vec![0], ..OwnedInEdges::default() };
        for node in nodes {
            edges.indices.extend(&all[node as usize]);
            edges.indptr.push(edges.indices.len() as i64);
        }
        Arc::new(edges)
    }

    /// The neighbors of a node, by a naive implementation.
    fn expected(all: &[Vec<u32>], node: u32, filter: &Filter<'_>) -> Vec<u32> {
        let mut found = all[node as usize].clone();
        if filter.self_loops {
            found.retain(|&neighbor| neighbor != node);
            found.push(node);
            found.sort_unstable();
        }
        found.retain(|&neighbor| filter.neighbors.is_none_or(|wanted| wanted(neighbor)));
        found
    }

    #[test]
    fn links_equal_plain_lists_for_all_filters() {
        let all = neighbors(60);
        let folder = tempfile::tempdir().unwrap();
        let (third, even) = (|node: u32| node.is_multiple_of(3), |node: u32| node.is_multiple_of(2));
        let filters = [
            Filter::default(),
            Filter { self_loops: true, ..Filter::default() },
            Filter { rows: Some(&third), ..Filter::default() },
            Filter { neighbors: Some(&third), ..Filter::default() },
            Filter { rows: Some(&even), neighbors: Some(&third), self_loops: true },
        ];
        for cuts in [&[0, 60][..], &[0, 20, 20, 60], &[10, 35], &[30, 30, 45, 60]] {
            let own = cuts[0]..cuts[cuts.len() - 1];
            let parts: Vec<_> = cuts.windows(2).map(|cut| part(&all, cut[0]..cut[1])).collect();
            for (i, filter) in filters.iter().enumerate() {
                for place in [Place::Memory, Place::Folder(folder.path().to_owned())] {
                    let links = Links::new(Ends::nodes(own.clone(), 60), &parts, *filter, &place).unwrap();
                    let rows: Vec<u32> = own.clone().filter(|&node| filter.rows.is_none_or(|has| has(node))).collect();
                    let table: Vec<u32> =
                        own.clone().filter(|&node| filter.neighbors.is_none_or(|has| has(node))).collect();
                    assert_eq!((links.rows().len(), links.table().len()), (rows.len(), table.len()), "{cuts:?} {i}");
                    let (mut edges, mut foreign) = (0, std::collections::BTreeSet::new());
                    let node_at = |row: u32| match table.get(row as usize) {
                        Some(&own) => own,
                        None => links.ghosts()[row as usize - table.len()],
                    };
                    for (row, &node) in rows.iter().enumerate() {
                        assert_eq!(links.rows().node(row), node);
                        let (indptr, indices) = links.edges(row..row + 1);
                        let found: Vec<u32> =
                            indices[indptr[0] as usize..indptr[1] as usize].iter().map(|&row| node_at(row)).collect();
                        let wanted = expected(&all, node, filter);
                        assert_eq!(found, wanted, "node {node} of {cuts:?}, filter {i}");
                        edges += wanted.len();
                        foreign.extend(wanted.into_iter().filter(|node| !own.contains(node)));
                    }
                    assert_eq!(links.num_edges(), edges, "{cuts:?} {i}");
                    assert_eq!(links.ghosts(), foreign.into_iter().collect::<Vec<_>>(), "{cuts:?} {i}");
                    assert_eq!(links.table_rows(), table.len() + links.ghosts().len());
                }
            }
        }
    }

    #[test]
    fn wanted_rows_have_the_positions_of_ghosts_at_the_other_worker() {
        let all = neighbors(40);
        let odd = |node: u32| node % 2 == 1;
        let filter = Filter { neighbors: Some(&odd), ..Filter::default() };
        let mut links = Links::new(Ends::nodes(10..30, 40), &[part(&all, 10..30)], filter, &Place::Memory).unwrap();
        let lists = [vec![11, 13, 21, 29], vec![], vec![21, 23]];
        links.set_wanted(lists.to_vec());
        for first in 0..=links.table().len() {
            for end in first..=links.table().len() {
                let found: Vec<(usize, usize, Vec<u32>)> =
                    links.wanted(first..end).map(|(worker, at, rows)| (worker, at, rows.to_vec())).collect();
                let mut wanted = Vec::new();
                for (worker, list) in lists.iter().enumerate() {
                    let rows: Vec<usize> = list.iter().map(|&node| links.table().find(node).unwrap()).collect();
                    let inside: Vec<u32> =
                        rows.iter().filter(|&row| (first..end).contains(row)).map(|&row| row as u32).collect();
                    if !inside.is_empty() {
                        wanted.push((worker, rows.iter().filter(|&&row| row < first).count(), inside));
                    }
                }
                assert_eq!(found, wanted, "rows {first} to {end}");
                for (worker, at, rows) in found {
                    assert_eq!(links.wanted_by(worker)[at..at + rows.len()], rows);
                }
            }
        }
    }
}
