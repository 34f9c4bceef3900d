//! A graph that changes in memory: the edges of a dataset, and the differences since.
//!
//! ```text
//! dataset (mapped files) ─┐
//!                         ├─► in-edges of a node now
//! EdgeDeltas ─────────────┘
//! ```
//!
//! **Live ids.** Each partition has room for new nodes after those of the dataset, so global ids do not shift when nodes are added. Live ids are the
//! global ids of this roomier graph. They are in the same order as the global ids of a dataset with the new nodes, so in-neighbors are in the same
//! order, too.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use gnnflow_data::PartitionBook;
use gnnflow_data::source::Duplicates;
use gnnflow_data::update::{Change, ChangedEdge, EdgeKey, settle};
use gnnflow_kernels::compact::Compactor;
use gnnflow_kernels::sample::{Columns, EdgeSlices, Edges, assemble_edges};
use rayon::prelude::*;
use timely::dataflow::operators::probe;
use timely::worker::Worker;

use crate::batch::mini_batch::MiniBatch;
use crate::graph::local_graph::LocalGraph;
use crate::incremental::edge_deltas::{EdgeCopy, EdgeDelta, EdgeDeltas};

/// The graph of one worker, which changes.
pub struct LiveGraph {
    /// The dataset's edges of own nodes, by global ids.
    base: Arc<LocalGraph>,
    /// Which worker hosts which nodes, and the degrees, by live ids.
    nodes: Arc<LocalGraph>,
    numbering: RefCell<Numbering>,
    deltas: RefCell<EdgeDeltas>,
    /// Own nodes with differences.
    changed: RefCell<HashSet<u32>>,
    compactor: RefCell<Compactor>,
    /// Whether edges have columns, which distinguish copies.
    has_columns: bool,
}

/// The live ids of nodes.
struct Numbering {
    /// The first global id of each partition of the dataset.
    starts: Vec<u64>,
    /// By partition, what is added to a global id of the dataset.
    shift: Vec<u32>,
    /// By partition, the number of nodes now.
    sizes: Vec<u64>,
    /// The live ids of the new nodes, in the order in which they were added.
    new: Vec<u32>,
}

impl Numbering {
    fn part_of(&self, node: u32) -> usize {
        self.starts.partition_point(|&start| start <= u64::from(node)) - 1
    }
}

/// The in-edges of some nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InEdgeList {
    /// Sources, by live ids, ascending for each node.
    pub sources: Vec<u32>,
    /// Types; 0 if edges have none.
    pub types: Vec<u16>,
}

/// What a batch of changes has done to the nodes of one worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Own nodes with other in-edges, by live ids, ascending.
    pub changed: Vec<u32>,
    /// Added in-edges of own nodes.
    pub added: u64,
    /// Removed in-edges of own nodes.
    pub removed: u64,
    /// Added in-edges of own nodes that exist and were dropped.
    pub dropped: u64,
    /// The first row that removes an edge which does not exist.
    pub missing: Option<u32>,
    /// The first row that adds an edge which exists.
    pub duplicate: Option<u32>,
}

impl LiveGraph {
    /// Opens the graph of a dataset, with room for `room` new nodes in each partition. Degrees are counted if `base` has them.
    ///
    /// # Panics
    /// If the nodes with the room are more than 2³² − 1.
    pub fn build(worker: &mut Worker, base: &Arc<LocalGraph>, room: u32, degrees: bool, has_columns: bool) -> Self {
        let parts = base.placement().parts();
        let starts: Vec<u64> = (0..parts).map(|part| u64::from(base.range(part).start)).collect();
        let sizes: Vec<u64> = (0..parts).map(|part| base.range(part).len() as u64).collect();
        let mut offsets = vec![0];
        for size in &sizes {
            offsets.push(offsets[offsets.len() - 1] + size + u64::from(room));
        }
        let shift = starts.iter().zip(&offsets).map(|(start, live)| (live - start) as u32).collect();
        let book = PartitionBook::new(offsets).expect("offsets ascend from 0");
        let nodes = LocalGraph::of_nodes(&book, base.placement(), worker.index());
        let nodes = if degrees { nodes.with_zero_degrees() } else { nodes };
        let live = Self {
            base: Arc::clone(base),
            compactor: RefCell::new(Compactor::new(nodes.num_nodes())),
            nodes: Arc::new(nodes),
            numbering: RefCell::new(Numbering { starts, shift, sizes, new: Vec::new() }),
            deltas: RefCell::new(EdgeDeltas::build(worker)),
            changed: RefCell::default(),
            has_columns,
        };
        if degrees {
            for part in base.hosted() {
                for node in base.range(part) {
                    live.nodes.set_degree(live.node(node), base.degree(node));
                }
            }
        }
        live
    }

    /// Returns which worker hosts which nodes, by live ids. It has no edges.
    pub fn nodes(&self) -> &Arc<LocalGraph> {
        &self.nodes
    }

    /// Returns the live id of a node, from its number in a batch of changes.
    pub fn node(&self, number: u32) -> u32 {
        let numbering = self.numbering.borrow();
        match u64::from(number).checked_sub(self.base.num_nodes()) {
            None => number + numbering.shift[numbering.part_of(number)],
            Some(new) => numbering.new[new as usize],
        }
    }

    /// Returns the number of nodes of each partition.
    pub fn sizes(&self) -> Vec<u64> {
        self.numbering.borrow().sizes.clone()
    }

    /// Returns the position of a node among the new nodes of its partition; `None` for a node of the dataset.
    pub fn new_in_part(&self, node: u32) -> Option<usize> {
        let part = self.nodes.partition_of(node);
        let local = (node - self.nodes.range(part).start) as usize;
        local.checked_sub(self.base.range(part).len())
    }

    /// Returns the global id in the dataset of a node that is not new.
    pub fn in_dataset(&self, node: u32) -> u32 {
        node - self.numbering.borrow().shift[self.nodes.partition_of(node)]
    }

    /// Returns whether every partition has room for the new nodes of `partitions`.
    pub fn has_room(&self, partitions: &[usize]) -> bool {
        let mut sizes = self.sizes();
        partitions.iter().for_each(|&part| sizes[part] += 1);
        sizes.iter().enumerate().all(|(part, &size)| size <= self.nodes.range(part).len() as u64)
    }

    /// Adds new nodes to `partitions`. Returns the live ids of those of this worker.
    ///
    /// # Panics
    /// If there is no room for them.
    pub fn add_nodes(&self, partitions: &[usize]) -> Vec<u32> {
        let mut numbering = self.numbering.borrow_mut();
        let mut own = Vec::new();
        for &part in partitions {
            let range = self.nodes.range(part);
            let node = range.start + numbering.sizes[part] as u32;
            assert!(range.contains(&node), "partition {part} has no room for another node");
            numbering.sizes[part] += 1;
            numbering.new.push(node);
            own.extend(self.nodes.hosts(node).then_some(node));
        }
        own
    }

    /// Applies `edges`, sorted by key, to the own nodes. `batch` is the number of the batch. Call [`LiveGraph::commit`] after it.
    pub fn apply(&self, edges: &[ChangedEdge], duplicates: Duplicates, batch: u32) -> Applied {
        let mut applied = Applied::default();
        let mut deltas = self.deltas.borrow_mut();
        for same in edges.chunk_by(|a, b| a.key == b.key) {
            let EdgeKey { dst, src, edge_type } = same[0].key;
            let (dst, src) = (self.node(dst), self.node(src));
            if !self.nodes.hosts(dst) {
                continue;
            }
            let (of_dataset, of_batches) = self.copies(&mut deltas, dst, (src, edge_type));
            let (removals, additions) = same.split_at(same.partition_point(|edge| edge.change == Change::Remove));
            let rows = [(0, Change::Remove, removals.len() as u32), (0, Change::Add, additions.len() as u32)];
            let rows: Vec<_> = rows.into_iter().filter(|(_, _, count)| *count > 0).collect();
            let present = of_dataset + of_batches.len();
            let Some(outcome) = settle(duplicates, present as u32, &rows).pop() else { continue };
            let lost = removals[removals.len() - outcome.missing as usize..].iter().filter(|edge| !edge.mirror);
            applied.missing = applied.missing.into_iter().chain(lost.map(|edge| edge.row)).min();
            let again = additions.get(outcome.added as usize).filter(|_| duplicates == Duplicates::Fail);
            applied.duplicate = applied.duplicate.into_iter().chain(again.map(|edge| edge.row)).min();
            applied.dropped += u64::from(outcome.dropped);
            let (mut removed, mut added) = (outcome.removed as usize, outcome.added as usize);
            if !self.has_columns {
                // All copies are equal, so an added copy replaces a removed one.
                let same = removed.min(added);
                (removed, added) = (removed - same, added - same);
            }
            if removed + added == 0 {
                continue;
            }
            let first = removed.min(of_dataset);
            remove(&mut deltas, dst, (src, edge_type), (first, &of_batches[..removed - first]));
            for edge in &additions[..added] {
                let copy = EdgeCopy::Added(u64::from(batch) << 32 | u64::from(edge.row));
                deltas.change(dst, EdgeDelta { src, copy, edge_type }, 1);
            }
            applied.removed += removed as u64;
            applied.added += added as u64;
            applied.changed.push(dst);
        }
        applied.changed.sort_unstable();
        applied.changed.dedup();
        applied
    }

    /// Removes the edges of nodes that are removed: the in-edges of own ones, and those of `readers` from them. `nodes` are the live ids of all of them,
    /// ascending, and `readers` are the own nodes that have an in-edge from one of them. Returns these own nodes, ascending, and the number of removed
    /// in-edges. Changes before must be readable. Call [`LiveGraph::commit`] after it.
    pub fn remove_edges_of(&self, nodes: &[u32], readers: &[u32]) -> (Vec<u32>, u64) {
        let is_removed = |node: &u32| nodes.binary_search(node).is_ok();
        let own = nodes.iter().filter(|node| self.nodes.hosts(**node));
        let mut changed: Vec<u32> = own.chain(readers).copied().collect();
        changed.sort_unstable();
        changed.dedup();
        let mut count = 0;
        for &dst in &changed {
            let mut list = InEdgeList::default();
            self.in_edges(dst, &mut list);
            let edges = list.sources.iter().copied().zip(list.types.iter().copied());
            let edges: BTreeSet<(u32, u16)> = edges.filter(|(src, _)| is_removed(src) || is_removed(&dst)).collect();
            let mut deltas = self.deltas.borrow_mut();
            for edge in edges {
                let (of_dataset, of_batches) = self.copies(&mut deltas, dst, edge);
                remove(&mut deltas, dst, edge, (of_dataset, &of_batches));
                count += of_dataset + of_batches.len();
            }
        }
        (changed, count as u64)
    }

    /// Ends a batch of changes. It can be read when [`LiveGraph::probe`] has passed the returned time.
    pub fn commit(&self) -> u64 {
        self.deltas.borrow_mut().commit()
    }

    /// Returns the probe of the changes.
    pub fn probe(&self) -> probe::Handle<u64> {
        self.deltas.borrow().probe().clone()
    }

    /// Counts the degrees of nodes with other in-edges. Call it when their changes can be read.
    pub fn count_degrees(&self, changed: &[u32]) {
        self.changed.borrow_mut().extend(changed);
        let mut list = InEdgeList::default();
        for &node in changed {
            list.sources.clear();
            list.types.clear();
            self.in_edges(node, &mut list);
            let degree = list.sources.iter().filter(|&&source| source != node).count();
            self.nodes.set_degree(node, degree as u32);
        }
    }

    /// Returns the number of differences that are kept.
    pub fn differences(&self) -> usize {
        self.deltas.borrow().records()
    }

    /// Returns the number of in-edges of an own node, at most those of now and those removed since.
    pub fn num_in_edges(&self, node: u32) -> usize {
        let of_dataset = self.dataset_edges(node).map_or(0, |(_, range)| range.len());
        if !self.changed.borrow().contains(&node) {
            return of_dataset;
        }
        of_dataset + self.deltas.borrow_mut().of(node).len()
    }

    /// Appends the in-edges of an own node.
    pub fn in_edges(&self, node: u32, list: &mut InEdgeList) {
        let deltas = match self.changed.borrow().contains(&node) {
            true => self.deltas.borrow_mut().of(node),
            false => Vec::new(),
        };
        let mut deltas = deltas.into_iter().peekable();
        let mut push = |source: u32, edge_type: u16| {
            list.sources.push(source);
            list.types.push(edge_type);
        };
        if let Some((part, range)) = self.dataset_edges(node) {
            let edges = self.base.in_edges(part);
            let (sources, types) = (&edges.indices()[range.clone()], edges.columns().types.map(|types| &types[range]));
            let numbering = self.numbering.borrow();
            let mut owner = 0;
            let mut at = 0;
            for same in sources.chunk_by(|a, b| a == b) {
                while owner + 1 < numbering.starts.len() && numbering.starts[owner + 1] <= u64::from(same[0]) {
                    owner += 1;
                }
                let source = same[0] + numbering.shift[owner];
                while let Some((delta, _)) = deltas.next_if(|(delta, _)| delta.src < source) {
                    push(delta.src, delta.edge_type);
                }
                let mut removed: Vec<(u16, isize)> = Vec::new();
                while let Some((delta, times)) =
                    deltas.next_if(|(delta, _)| delta.src == source && delta.copy == EdgeCopy::Removed)
                {
                    removed.push((delta.edge_type, times));
                }
                for _ in same {
                    let edge_type = types.map_or(0, |types| types[at]);
                    at += 1;
                    match removed.iter_mut().find(|(of, left)| *of == edge_type && *left > 0) {
                        Some((_, left)) => *left -= 1,
                        None => push(source, edge_type),
                    }
                }
                while let Some((delta, _)) = deltas.next_if(|(delta, _)| delta.src == source) {
                    push(delta.src, delta.edge_type);
                }
            }
        }
        deltas.for_each(|(delta, _)| push(delta.src, delta.edge_type));
    }

    /// Adds the block of a batch of own nodes: all their in-edges.
    pub fn add_block(&self, batch: &mut MiniBatch, columns: Columns) {
        let (mut all, mut ends) = (InEdgeList::default(), Vec::with_capacity(batch.nodes.len()));
        for &node in &batch.nodes {
            self.in_edges(node, &mut all);
            ends.push(all.sources.len());
        }
        let mut compactor = self.compactor.borrow_mut();
        compactor.start(&batch.nodes);
        let (mut start, mut ends) = (0, ends.into_iter());
        let edges_of = |_| {
            let end = ends.next().expect("one list for each node");
            let range = std::mem::replace(&mut start, end)..end;
            let types = columns.types.then(|| &all.types[range.clone()]);
            Edges { sources: &all.sources[range], columns: EdgeSlices { types, ..EdgeSlices::default() } }
        };
        let block = assemble_edges(&mut batch.nodes, edges_of, columns, &mut compactor);
        batch.blocks.push(block);
    }

    /// Returns the own nodes that are not `known` and have an in-edge from a node that is `wanted`. Reads all own in-edges.
    pub fn readers(&self, wanted: impl Fn(u32) -> bool, known: impl Fn(u32) -> bool + Sync) -> Vec<u32> {
        // The wanted nodes of the dataset as a bit set by their ids there, so that edges are compared without translating their ids.
        let mut of_dataset = vec![0u64; self.base.num_nodes() as usize / 64 + 1];
        for part in 0..self.base.placement().parts() {
            let live = self.nodes.range(part).start;
            for (local, node) in self.base.range(part).enumerate() {
                of_dataset[node as usize / 64] |= u64::from(wanted(live + local as u32)) << (node % 64);
            }
        }
        let changed = self.changed.borrow();
        let (base, changed_set): (&LocalGraph, &HashSet<u32>) = (&self.base, &changed);
        let mut found = Vec::new();
        for part in base.hosted() {
            let edges = base.in_edges(part);
            let (indptr, indices) = (edges.indptr(), edges.indices());
            let live = self.nodes.range(part).start;
            let reads = |&local: &u32| {
                let range = indptr[local as usize] as usize..indptr[local as usize + 1] as usize;
                indices[range].iter().any(|&source| of_dataset[source as usize / 64] & (1 << (source % 64)) != 0)
                    && !known(live + local)
                    && !changed_set.contains(&(live + local))
            };
            let own: Vec<u32> = (0..base.range(part).len() as u32).into_par_iter().filter(reads).collect();
            found.extend(own.into_iter().map(|local| live + local));
        }
        let mut list = InEdgeList::default();
        for &node in changed.iter().filter(|node| !known(**node)) {
            list.sources.clear();
            list.types.clear();
            self.in_edges(node, &mut list);
            found.extend(list.sources.iter().any(|&source| wanted(source)).then_some(node));
        }
        found
    }

    /// Returns the partition and the positions of the in-edges that an own node has in the dataset; `None` for a new node.
    fn dataset_edges(&self, node: u32) -> Option<(usize, std::ops::Range<usize>)> {
        let part = self.nodes.partition_of(node);
        let local = (node - self.nodes.range(part).start) as usize;
        let indptr = self.base.in_edges(part).indptr();
        (local < indptr.len() - 1).then(|| (part, indptr[local] as usize..indptr[local + 1] as usize))
    }

    /// Returns the copies of an in-edge of an own node, given by its source and type: the number of those of the dataset, and the numbers of added ones.
    fn copies(&self, deltas: &mut EdgeDeltas, dst: u32, (src, edge_type): (u32, u16)) -> (usize, Vec<u64>) {
        let (mut of_dataset, mut of_batches) = (self.copies_in_dataset(dst, src, edge_type), Vec::new());
        for (delta, times) in deltas.of(dst) {
            match delta.copy {
                _ if (delta.src, delta.edge_type) != (src, edge_type) => {}
                EdgeCopy::Removed => of_dataset -= times as usize,
                EdgeCopy::Added(number) => of_batches.push(number),
            }
        }
        (of_dataset, of_batches)
    }

    fn copies_in_dataset(&self, dst: u32, src: u32, edge_type: u16) -> usize {
        let Some((part, range)) = self.dataset_edges(dst).filter(|_| self.new_in_part(src).is_none()) else { return 0 };
        let (edges, source) = (self.base.in_edges(part), self.in_dataset(src));
        let sources = &edges.indices()[range.clone()];
        let same = range.start + sources.partition_point(|&node| node < source)
            ..range.start + sources.partition_point(|&node| node <= source);
        match edges.columns().types {
            None => same.len(),
            Some(types) => types[same].iter().filter(|&&other| other == edge_type).count(),
        }
    }
}

/// Removes copies of an in-edge of a node: this many of the dataset, and those with these numbers.
fn remove(deltas: &mut EdgeDeltas, dst: u32, (src, edge_type): (u32, u16), (of_dataset, of_batches): (usize, &[u64])) {
    let delta = |copy| EdgeDelta { src, copy, edge_type };
    if of_dataset > 0 {
        deltas.change(dst, delta(EdgeCopy::Removed), of_dataset as isize);
    }
    of_batches.iter().for_each(|&number| deltas.change(dst, delta(EdgeCopy::Added(number)), -1));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gnnflow_data::rng::{Key, Purpose};

    use super::*;
    use crate::graph::local_graph::{InEdges, OwnedInEdges};
    use crate::graph::placement::Placement;

    const NODES: u32 = 60;
    const PARTS: usize = 4;
    const ROOM: u32 = 9;

    /// A batch: the partitions of new nodes, changed edges, and removed nodes, ascending.
    type Batch = (Vec<usize>, Vec<ChangedEdge>, Vec<u32>);

    fn key(dst: u32, src: u32, edge_type: u16) -> EdgeKey {
        EdgeKey { dst, src, edge_type }
    }

    /// The edges of the dataset, by destination; sources ascend.
    fn dataset() -> BTreeMap<u32, Vec<(u32, u16)>> {
        let draw = Key::new(3, Purpose::GenerateEdges);
        let mut lists: BTreeMap<u32, Vec<(u32, u16)>> = (0..NODES).map(|node| (node, Vec::new())).collect();
        for edge in 0..240 {
            let [dst, src, edge_type] = [NODES, NODES, 2].map(|below| (below, draw.fold(u64::from(below))));
            let of = |(below, key): (u32, Key)| key.below(edge, u64::from(below)) as u32;
            // Some nodes have an edge from themselves.
            let (dst, src) = (of(dst), if edge % 20 == 0 { of(dst) } else { of((src.0, src.1.fold(7))) });
            lists.get_mut(&dst).unwrap().push((src, of(edge_type) as u16));
        }
        lists.values_mut().for_each(|list| list.sort_by_key(|(src, _)| *src));
        lists
    }

    /// Draws batches. Half of the removals are of edges that existed at the beginning.
    fn batches() -> Vec<Batch> {
        let draw = Key::new(4, Purpose::GenerateEdges);
        let first: Vec<EdgeKey> =
            dataset().iter().flat_map(|(&dst, list)| list.iter().map(move |&(src, of)| key(dst, src, of))).collect();
        let mut nodes = NODES;
        (0..8u64)
            .map(|batch| {
                let of = |at: u64, below: u32| draw.fold(batch).below(at, u64::from(below)) as u32;
                let new: Vec<usize> = (0..of(0, 4)).map(|at| of(u64::from(at) + 1, PARTS as u32) as usize).collect();
                nodes += new.len() as u32;
                let random =
                    |at: u64| key(of(100 + 3 * at, nodes), of(101 + 3 * at, nodes), of(102 + 3 * at, 2) as u16);
                let mut edges: Vec<ChangedEdge> = Vec::new();
                for row in 0..24 {
                    let removed = if row % 2 == 0 { first[of(900 + row, 240) as usize] } else { random(row) };
                    let edge = |key, change| ChangedEdge { key, change, row: row as u32, mirror: false };
                    edges.push(edge(removed, Change::Remove));
                    edges.push(edge(if row % 3 == 0 { removed } else { random(50 + row) }, Change::Add));
                }
                edges.sort_by_key(|edge| (edge.key, edge.change, edge.row));
                // Some nodes of the dataset and, in later batches, new ones.
                let removed: BTreeSet<u32> = (0..batch % 3).map(|at| of(2000 + at, nodes)).collect();
                (new, edges, removed.into_iter().collect())
            })
            .collect()
    }

    /// The obvious program: lists of copies. A node's place orders sources: its partition, and its number there.
    struct Plain {
        lists: BTreeMap<u32, Vec<(u32, u16)>>,
        places: Vec<(usize, u32)>,
        sizes: Vec<u32>,
    }

    impl Plain {
        fn new() -> Self {
            let book = PartitionBook::even(u64::from(NODES), PARTS);
            let of = |part: usize| (book.range(part).start as u32..book.range(part).end as u32, part);
            let places = (0..PARTS).map(of).flat_map(|(range, part)| range.map(move |node| (part, node)));
            let sizes = (0..PARTS).map(|part| of(part).0.end).collect();
            Self { lists: dataset(), places: places.collect(), sizes }
        }

        /// Applies a batch. Returns the smallest row of a removal without an edge, and the nodes with other in-edges.
        fn apply(&mut self, (new, edges, removed): &Batch, keep: bool) -> (Option<u32>, Vec<u32>) {
            for &part in new {
                self.lists.insert(self.places.len() as u32, Vec::new());
                self.places.push((part, self.sizes[part]));
                self.sizes[part] += 1;
            }
            let (before, places) = (self.lists.clone(), self.places.clone());
            let mut missing: Option<u32> = None;
            for ChangedEdge { key: EdgeKey { dst, src, edge_type }, change, row, .. } in edges {
                let list = self.lists.get_mut(dst).unwrap();
                let copies = || list.iter().filter(|edge| **edge == (*src, *edge_type)).count();
                match change {
                    Change::Remove if copies() == 0 => {
                        // With one copy or none, equal rows of a batch count once.
                        let existed = before[dst].contains(&(*src, *edge_type));
                        if keep || !existed {
                            missing = missing.into_iter().chain([*row]).min();
                        }
                    }
                    Change::Remove => {
                        let at = list.iter().position(|edge| *edge == (*src, *edge_type)).unwrap();
                        list.remove(at);
                        if !keep {
                            list.retain(|edge| *edge != (*src, *edge_type));
                        }
                    }
                    Change::Add if !keep && copies() > 0 => {}
                    Change::Add => {
                        let at = list.iter().filter(|(other, _)| places[*other as usize] <= places[*src as usize]);
                        list.insert(at.count(), (*src, *edge_type));
                    }
                }
            }
            for (dst, list) in &mut self.lists {
                list.retain(|(src, _)| !removed.contains(src) && !removed.contains(dst));
            }
            let mut changed: Vec<u32> =
                self.lists.keys().copied().filter(|dst| before[dst] != self.lists[dst]).collect();
            changed.sort_unstable();
            changed.dedup();
            (missing, changed)
        }
    }

    fn base(rank: usize, workers: usize) -> Arc<LocalGraph> {
        let (book, lists) = (PartitionBook::even(u64::from(NODES), PARTS), dataset());
        let load = |part: usize| -> Result<Arc<dyn InEdges>, ()> {
            let range = book.range(part);
            let mut edges = OwnedInEdges::from_fn(range.clone(), |node| lists[&node].iter().map(|(src, _)| *src));
            edges.types = Some(range.flat_map(|node| lists[&(node as u32)].iter().map(|(_, of)| *of)).collect());
            Ok(Arc::new(edges))
        };
        Arc::new(LocalGraph::load(&book, Placement::new(PARTS, workers), rank, false, load).unwrap().with_degrees())
    }

    #[test]
    fn in_edges_and_degrees_equal_plain_lists_at_1_2_and_4_workers() {
        for (workers, duplicates) in [1, 2, 4].into_iter().flat_map(|w| [(w, Duplicates::Keep), (w, Duplicates::Drop)])
        {
            timely::execute(timely::Config::process(workers), move |worker| {
                let (rank, base) = (worker.index(), base(worker.index(), workers));
                let live = LiveGraph::build(worker, &base, ROOM, true, true);
                let mut plain = Plain::new();
                for (number, batch) in (0..).zip(batches()) {
                    let (missing, changed) = plain.apply(&batch, duplicates == Duplicates::Keep);
                    assert!(live.has_room(&batch.0));
                    live.add_nodes(&batch.0);
                    let mut applied = live.apply(&batch.1, duplicates, number);
                    let time = live.commit();
                    let probe = live.probe();
                    worker.step_while(|| probe.less_than(&time));
                    live.count_degrees(&applied.changed);
                    let mut removed: Vec<u32> = batch.2.iter().map(|&node| live.node(node)).collect();
                    removed.sort_unstable();
                    let readers = live.readers(|node| removed.contains(&node), |_| false);
                    let (changed_by, _) = live.remove_edges_of(&removed, &readers);
                    let time = live.commit();
                    worker.step_while(|| probe.less_than(&time));
                    live.count_degrees(&changed_by);
                    applied.changed.extend(changed_by);
                    if workers == 1 {
                        assert_eq!(applied.missing, missing, "batch {number}, {duplicates:?}");
                    }
                    let hosted = |node: &u32| live.nodes().hosts(live.node(*node));
                    // A copy that was removed and added again is a change, too.
                    for node in changed.iter().copied().filter(hosted) {
                        assert!(applied.changed.contains(&live.node(node)), "batch {number}: node {node}");
                    }
                    for (&node, expected) in plain.lists.iter().filter(|(node, _)| hosted(node)) {
                        let mut list = InEdgeList::default();
                        live.in_edges(live.node(node), &mut list);
                        let (sources, types): (Vec<u32>, Vec<u16>) =
                            expected.iter().map(|&(src, of)| (live.node(src), of)).unzip();
                        assert_eq!(list, InEdgeList { sources, types }, "batch {number}, node {node}, {duplicates:?}");
                        assert!(live.num_in_edges(live.node(node)) >= expected.len());
                        let degree = expected.iter().filter(|(src, _)| *src != node).count();
                        assert_eq!(live.nodes().degree(live.node(node)), degree as u32, "batch {number}, node {node}");
                    }
                    let (wanted, known) = (live.node(5), live.node(NODES / 2));
                    let reads = |node: &u32| plain.lists[node].iter().any(|(src, _)| live.node(*src) == wanted);
                    let readers = plain.lists.keys().copied().filter(hosted).filter(reads).map(|node| live.node(node));
                    let mut readers: Vec<u32> = readers.filter(|node| *node != known).collect();
                    readers.sort_unstable();
                    let mut found = live.readers(|node| node == wanted, |node| node == known);
                    found.sort_unstable();
                    assert_eq!(found, readers, "batch {number}, rank {rank}");
                }
                assert!(!live.has_room(&[0; ROOM as usize + 1]));
            })
            .unwrap()
            .join()
            .into_iter()
            .for_each(|ended| ended.unwrap());
        }
    }

    #[test]
    fn changes_that_cancel_out_take_no_space() {
        timely::execute_directly(|worker| {
            let live = LiveGraph::build(worker, &base(0, 1), ROOM, false, true);
            let edge = |dst, change| ChangedEdge { key: key(dst, 3, 0), change, row: 0, mirror: false };
            for batch in 0..200 {
                let change = if batch % 2 == 0 { Change::Add } else { Change::Remove };
                // The dataset has no such edge of some nodes.
                let edges: Vec<ChangedEdge> = (0..NODES).map(|dst| edge(dst, change)).collect();
                live.apply(&edges, Duplicates::Keep, batch);
                let time = live.commit();
                let probe = live.probe();
                worker.step_while(|| probe.less_than(&time));
            }
            assert!(live.differences() <= 10 * NODES as usize, "{} differences", live.differences());
        });
    }
}
