//! Finds the edges that an update touches, and which copies it removes and adds.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use rayon::prelude::*;

use crate::dataset::{Dataset, Topology, UpdateCounts};
use crate::error::{Error, Result};
use crate::source::{Duplicates, GraphSource, SelfLoops};

use super::Missing;
use super::ids::NONE;
use super::input::{Input, Rows};
use super::policy::{Change, EdgeKey, Outcome, net};
use super::removed_nodes::RemovedNodes;

/// A row of the update, in one direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) key: EdgeKey,
    pub(super) batch: u32,
    pub(super) change: Change,
    pub(super) row: u32,
    /// Whether this is the reverse of a row of an undirected graph.
    pub(super) mirror: bool,
}

/// The rows of an update.
pub(super) struct Events {
    /// Sorted by key, batch, change and row.
    pub(super) rows: Vec<Event>,
    /// Batch and row of removals with an unknown node.
    pub(super) missing: Vec<(u32, u32)>,
}

impl Events {
    pub(super) fn of(source: &GraphSource, input: &Input) -> Self {
        let mut all = Self { rows: Vec::new(), missing: Vec::new() };
        for (batch, rows) in (0..).zip(&input.batches) {
            rows.removed.iter().for_each(|rows| all.read(source, batch, Change::Remove, rows));
            rows.added.iter().for_each(|rows| all.read(source, batch, Change::Add, rows));
        }
        all.rows.sort_unstable_by_key(|event| (event.key, event.batch, event.change, event.row));
        all
    }

    fn read(&mut self, source: &GraphSource, batch: u32, change: Change, rows: &Rows) {
        for row in 0..rows.src.len() {
            if rows.dropped[row] {
                continue;
            }
            let (src, dst, row) = (rows.src[row], rows.dst[row], row as u32);
            if src == NONE {
                self.missing.push((batch, row));
                continue;
            }
            let edge_type = rows.types.get(row as usize).copied().unwrap_or(0);
            self.rows.push(Event { key: EdgeKey { dst, src, edge_type }, batch, change, row, mirror: false });
            if source.undirected && src != dst {
                let key = EdgeKey { dst: src, src: dst, edge_type };
                self.rows.push(Event { key, batch, change, row, mirror: true });
            }
        }
    }
}

/// An added edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Added {
    pub(super) dst: u32,
    pub(super) src: u32,
    /// Batch and row of its columns; `None` for a self-loop that the policy of the dataset adds.
    pub(super) row: Option<(u32, u32)>,
}

/// Changes of the files. Nodes are numbered as in [`Input`].
#[derive(Debug, Default)]
pub(super) struct Delta {
    /// Partition and position of the removed edges, ascending.
    pub(super) removed: Vec<(usize, u64)>,
    /// Number of removed edges between partitions.
    pub(super) removed_cross: u64,
    pub(super) added: Vec<Added>,
    /// Nodes whose in-edges change, ascending, without removed nodes.
    pub(super) changed: Vec<u32>,
    /// Change of the number of self-loops.
    pub(super) self_loops: i64,
    /// Rows of the dump that are removed with their nodes.
    pub(super) rows_of_nodes: u64,
    pub(super) counts: UpdateCounts,
}

/// A copy of an edge.
enum Copy {
    Old,
    New(u32, u32),
}

pub(super) struct Touched<'a> {
    dataset: &'a Dataset,
    source: &'a GraphSource,
    input: &'a Input,
    events: Events,
    /// Positions of the copies of each key in the dataset.
    present: BTreeMap<EdgeKey, Vec<u64>>,
    /// Positions of the self-loops that the policy of the dataset added, by node.
    added_loops: BTreeMap<u32, u64>,
    /// Nodes with self-loops of types that are not in the update.
    other_loops: BTreeSet<u32>,
}

impl<'a> Touched<'a> {
    /// Finds all edges of the update in the dataset.
    pub(super) fn find(dataset: &'a Dataset, source: &'a GraphSource, input: &'a Input) -> Result<Self> {
        let mut this = Self {
            dataset,
            source,
            input,
            events: Events::of(source, input),
            present: BTreeMap::new(),
            added_loops: BTreeMap::new(),
            other_loops: BTreeSet::new(),
        };
        this.locate()?;
        Ok(this)
    }

    fn locate(&mut self) -> Result<()> {
        let (book, old) = (self.dataset.book(), self.dataset.manifest().nodes as u32);
        let adds_loops = self.source.self_loops == SelfLoops::Add;
        let mut open: Option<(usize, Topology)> = None;
        for same in self.events.rows.chunk_by(|a, b| (a.key.dst, a.key.src) == (b.key.dst, b.key.src)) {
            let EdgeKey { dst, src, .. } = same[0].key;
            if dst >= old || src >= old {
                continue;
            }
            let part = book.owner(u64::from(dst)).ok_or_else(|| Error::Bug("a node without a partition".into()))?;
            if open.as_ref().is_none_or(|(opened, _)| *opened != part) {
                open = Some((part, self.dataset.topology(part)?));
            }
            let Some((_, topology)) = &open else { continue };
            let list = topology.edge_range((u64::from(dst) - book.range(part).start) as usize);
            let sources = &topology.indices()[list.clone()];
            let copies = sources.partition_point(|&node| node < src)..sources.partition_point(|&node| node <= src);
            let mut copies: Vec<u64> = copies.map(|i| (list.start + i) as u64).collect();
            if adds_loops && dst == src {
                let added = copies.iter().position(|&at| self.is_added_loop(topology, at, copies.len()));
                // Without types, it can equal a row of the dump. A removal then means the row.
                let means_row = topology.edge_types().is_none() && same[0].change == Change::Remove;
                if let Some(at) = added.filter(|_| !means_row) {
                    self.added_loops.insert(dst, copies.remove(at));
                }
            }
            let mut named = 0;
            for key in same.chunk_by(|a, b| a.key == b.key).map(|same| same[0].key) {
                let of_type = |at: &u64| topology.edge_types().is_none_or(|types| types[*at as usize] == key.edge_type);
                let found: Vec<u64> = copies.iter().copied().filter(of_type).collect();
                named += found.len();
                if !found.is_empty() {
                    self.present.insert(key, found);
                }
            }
            if dst == src && named < copies.len() {
                self.other_loops.insert(dst);
            }
        }
        Ok(())
    }

    /// Computes the outcomes, and from them the changes of the files.
    pub(super) fn resolve(mut self, missing: Missing) -> Result<Delta> {
        let mut batches: Vec<Vec<(EdgeKey, Change)>> = vec![Vec::new(); self.input.batches.len()];
        self.events.rows.iter().for_each(|event| batches[event.batch as usize].push((event.key, event.change)));
        let present: HashMap<EdgeKey, u32> =
            self.present.iter().map(|(&key, copies)| (key, copies.len() as u32)).collect();
        let outcomes = net(self.source.duplicates, &present, &batches);
        drop(batches);

        let mut delta = Delta {
            counts: UpdateCounts {
                nodes_added: self.input.nodes.len() as u64,
                nodes_changed: self.input.values.len() as u64,
                nodes_removed: self.input.removed.len() as u64,
                missing_nodes_ignored: self.input.missing_nodes.len() as u64,
                unknown_dropped: self.input.unknown_dropped,
                self_loops_dropped: self.input.self_loops_dropped,
                ..UpdateCounts::default()
            },
            ..Delta::default()
        };
        let mut first_duplicate: Option<(u32, u32)> = None;
        // For nodes with touched self-loops: whether a self-loop of the dump remains.
        let mut own_loops: BTreeMap<u32, bool> = BTreeMap::new();
        let mut rest = &outcomes[..];
        let mut not_found = std::mem::take(&mut self.events.missing);
        for events in self.events.rows.chunk_by(|a, b| a.key == b.key) {
            let key = events[0].key;
            let length = rest.iter().take_while(|(found, _)| *found == key).count();
            let (own, after) = rest.split_at(length);
            rest = after;
            let before = self.present.get(&key).map_or(&[][..], |copies| &copies[..]);
            let mut copies: VecDeque<Copy> = before.iter().map(|_| Copy::Old).collect();
            for (_, outcome) in own {
                let rows =
                    |change| events.iter().filter(move |event| event.batch == outcome.batch && event.change == change);
                let removals = rows(Change::Remove).count();
                let lost = rows(Change::Remove).skip(removals - outcome.missing as usize);
                not_found.extend(lost.filter(|event| !event.mirror).map(|event| (event.batch, event.row)));
                copies.drain(..outcome.removed as usize);
                let Outcome { added, dropped, .. } = *outcome;
                copies.extend(rows(Change::Add).take(added as usize).map(|event| Copy::New(event.batch, event.row)));
                delta.counts.duplicates_dropped += u64::from(dropped);
                let first = rows(Change::Add).nth(added as usize).map(|event| (event.batch, event.row));
                first_duplicate = first_duplicate.into_iter().chain(first).min();
            }
            // Without columns, an added self-loop equals that of a row: every old node always has one.
            let old = u64::from(key.dst) < self.dataset.manifest().nodes;
            let always = old && self.source.self_loops == SelfLoops::Add && self.source.duplicates != Duplicates::Keep;
            if key.dst == key.src && always && self.has_no_columns() {
                continue;
            }
            if key.dst == key.src {
                let others = self.other_loops.contains(&key.dst);
                *own_loops.entry(key.dst).or_default() |= others || !copies.is_empty();
            }
            self.replace(key, before, copies, &mut delta)?;
        }
        if let Some((batch, row)) = first_duplicate.filter(|_| self.source.duplicates == Duplicates::Fail) {
            return Err(self.input.duplicate(batch, row)?);
        }
        if let (Missing::Fail, Some(&(batch, row))) = (missing, self.input.missing_nodes.first()) {
            return Err(self.input.missing_node(batch, row)?);
        }
        not_found.sort_unstable();
        not_found.dedup();
        if let (Missing::Fail, Some(&(batch, row))) = (missing, not_found.first()) {
            return Err(self.input.missing_edge(batch, row)?);
        }
        delta.counts.missing_ignored = not_found.len() as u64;
        if self.source.self_loops == SelfLoops::Add {
            self.add_loops(&own_loops, &mut delta)?;
        }
        self.remove_added_edges_of_nodes(&mut delta);
        self.remove_edges_of_nodes(&mut delta)?;
        let changed = delta.changed.drain(..).chain(delta.added.iter().map(|edge| edge.dst));
        let changed: BTreeSet<u32> = changed.filter(|node| self.input.removed.binary_search(node).is_err()).collect();
        delta.changed = changed.into_iter().collect();
        delta.removed.sort_unstable();
        Ok(delta)
    }

    /// Removes the edges of removed nodes that the update adds.
    fn remove_added_edges_of_nodes(&self, delta: &mut Delta) {
        let is_gone = |node: &u32| self.input.removed.binary_search(node).is_ok();
        let all = std::mem::take(&mut delta.added).into_iter();
        let (gone, added): (Vec<Added>, _) = all.partition(|edge| is_gone(&edge.dst) || is_gone(&edge.src));
        delta.added = added;
        delta.counts.edges_added -= gone.len() as u64;
        let loops = gone.iter().filter(|edge| edge.dst == edge.src).count();
        delta.self_loops -= loops as i64;
        let own_loops = gone.iter().filter(|edge| edge.dst == edge.src && edge.row.is_some()).count();
        delta.rows_of_nodes += self.rows(gone.len() - loops) + own_loops as u64;
    }

    /// Removes the edges of removed nodes that the dataset has. Reads all edges, since those from a node may be anywhere.
    fn remove_edges_of_nodes(&self, delta: &mut Delta) -> Result<()> {
        let (all, nodes) = (&self.input.removed, self.dataset.manifest().nodes);
        let of_dataset = all[..all.partition_point(|&node| u64::from(node) < nodes)].to_vec();
        let removed = RemovedNodes::new(of_dataset, nodes);
        if removed.is_empty() {
            return Ok(());
        }
        let mut known = delta.removed.clone();
        known.sort_unstable();
        let mut edges_between = 0;
        for part in 0..self.dataset.book().parts() {
            let (topology, first) = (self.dataset.topology(part)?, self.dataset.book().range(part).start as u32);
            let (topology, removed, known) = (&topology, &removed, &known);
            let edges = |local: usize| {
                let dst = first + local as u32;
                let range = topology.edge_range(local);
                let of_node = move |at: &usize| removed.contains(dst) || removed.contains(topology.indices()[*at]);
                let is_new = |at: &usize| known.binary_search(&(part, *at as u64)).is_err();
                range.filter(of_node).filter(is_new).map(move |at| (dst, topology.indices()[at], at as u64))
            };
            let found: Vec<(u32, u32, u64)> = (0..topology.num_nodes()).into_par_iter().flat_map_iter(edges).collect();
            let copies =
                |node: u32| topology.neighbors((node - first) as usize).iter().filter(|&&other| other == node).count();
            let loops = found.iter().filter(|(dst, src, _)| dst == src);
            let rows = loops.clone().filter(|(node, _, at)| !self.is_added_loop(topology, *at, copies(*node)));
            delta.rows_of_nodes += rows.count() as u64;
            edges_between += found.len() - loops.count();
            for (dst, src, at) in found {
                self.remove(dst, src, at, delta)?;
            }
        }
        delta.rows_of_nodes += self.rows(edges_between);
        Ok(())
    }

    /// Returns the number of rows of the dump for directed edges between different nodes.
    fn rows(&self, edges: usize) -> u64 {
        edges as u64 / if self.source.undirected { 2 } else { 1 }
    }

    /// Returns whether a self-loop of the dataset, one of `copies` of its node, was added by the policy. Without types, a row of the dump may look like it.
    fn is_added_loop(&self, topology: &Topology, at: u64, copies: usize) -> bool {
        let types = self.dataset.manifest().edge_columns.edge_type.as_ref();
        match (topology.edge_types(), types) {
            _ if self.source.self_loops != SelfLoops::Add => false,
            (Some(types), Some(info)) => u32::from(types[at as usize]) + 1 == info.count,
            _ => copies == 1 && is_like_added_loop(topology, at),
        }
    }

    /// Records the changed copies of an edge.
    fn replace(&self, key: EdgeKey, before: &[u64], after: VecDeque<Copy>, delta: &mut Delta) -> Result<()> {
        let mut kept_copies = after.iter().filter(|copy| matches!(copy, Copy::Old)).count();
        let mut new = after.len() - kept_copies;
        if self.has_no_columns() {
            // Edges without columns are all equal, so an added copy replaces a removed one.
            let same = new.min(before.len() - kept_copies);
            (kept_copies, new) = (kept_copies + same, new - same);
        }
        let is_loop = key.dst == key.src;
        // Removals take the first copies.
        for &at in &before[..before.len() - kept_copies] {
            self.remove(key.dst, key.src, at, delta)?;
        }
        let rows = after.into_iter().filter_map(|copy| match copy {
            Copy::New(batch, row) => Some((batch, row)),
            Copy::Old => None,
        });
        let added = rows.take(new).map(|row| Added { dst: key.dst, src: key.src, row: Some(row) });
        delta.added.extend(added);
        delta.counts.edges_added += new as u64;
        delta.self_loops += if is_loop { new as i64 } else { 0 };
        Ok(())
    }

    fn remove(&self, dst: u32, src: u32, at: u64, delta: &mut Delta) -> Result<()> {
        let owner = |node: u32| {
            let owner = self.dataset.book().owner(u64::from(node));
            owner.ok_or_else(|| Error::Bug("a node without a partition".into()))
        };
        let part = owner(dst)?;
        delta.removed.push((part, at));
        delta.changed.push(dst);
        delta.removed_cross += u64::from(part != owner(src)?);
        delta.counts.edges_removed += 1;
        delta.self_loops -= i64::from(dst == src);
        Ok(())
    }

    /// Adds a self-loop to nodes without one. Removes added self-loops of nodes that now have another one.
    fn add_loops(&self, own: &BTreeMap<u32, bool>, delta: &mut Delta) -> Result<()> {
        let old = self.dataset.manifest().nodes as u32;
        let new = (old..old + self.input.nodes.len() as u32).filter(|node| !own.contains_key(node));
        for (node, has) in own.iter().map(|(&node, &has)| (node, has)).chain(new.map(|node| (node, false))) {
            match (has, self.added_loops.get(&node)) {
                (true, Some(&at)) => self.remove(node, node, at, delta)?,
                (false, None) => {
                    delta.added.push(Added { dst: node, src: node, row: None });
                    delta.counts.edges_added += 1;
                    delta.self_loops += 1;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns whether edges have no columns.
    fn has_no_columns(&self) -> bool {
        let columns = &self.dataset.manifest().edge_columns;
        !columns.weight && columns.edge_type.is_none() && !columns.time && columns.features == 0
    }
}

/// Returns whether an edge has the column values of an added self-loop.
fn is_like_added_loop(topology: &Topology, at: u64) -> bool {
    let at = at as usize;
    topology.weights().is_none_or(|weights| weights[at] == 1.0)
        && topology.times().is_none_or(|times| times[at] == 0)
        && topology
            .edge_features()
            .is_none_or(|(values, width)| values[at * width..(at + 1) * width].iter().all(|&value| value == 0.0))
}
