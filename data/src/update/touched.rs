//! The edges that an update touches: where they stand, and which of them go or come.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::dataset::{Dataset, Topology, UpdateCounts};
use crate::error::{Error, Result};
use crate::source::{Duplicates, GraphSource, SelfLoops};

use super::Missing;
use super::ids::NONE;
use super::incremental::{Change, EdgeKey, Incremental, Outcome};
use super::input::{Input, Rows};

/// A row of the update, in one direction.
struct Event {
    key: EdgeKey,
    batch: u32,
    change: Change,
    row: u32,
    /// The other direction of a row of an undirected graph.
    mirror: bool,
}

/// An edge that comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Added {
    pub(super) dst: u32,
    pub(super) src: u32,
    /// Batch and row that say what it carries; none = a self-loop that the dataset's policy adds.
    pub(super) row: Option<(u32, u32)>,
}

/// What changes in the files. Nodes are numbered as in [`Input`].
#[derive(Debug, Default)]
pub(super) struct Delta {
    /// Partition and position of the edges that go, ascending.
    pub(super) removed: Vec<(usize, u64)>,
    /// Of these, edges between partitions.
    pub(super) removed_cross: u64,
    pub(super) added: Vec<Added>,
    /// Nodes whose in-edges change, ascending.
    pub(super) changed: Vec<u32>,
    /// By how much the number of self-loops grows.
    pub(super) loops: i64,
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
    /// By key, batch, change and row.
    events: Vec<Event>,
    /// Positions of the copies of every key that stands in the dataset.
    present: BTreeMap<EdgeKey, Vec<u64>>,
    /// Positions of self-loops that the dataset's policy has added, by node.
    blank: BTreeMap<u32, u64>,
    /// Nodes with self-loops of types that the update does not name.
    other_loops: BTreeSet<u32>,
    missing: Vec<(u32, u32)>,
}

impl<'a> Touched<'a> {
    /// Finds all edges that the update names.
    pub(super) fn find(dataset: &'a Dataset, source: &'a GraphSource, input: &'a Input) -> Result<Self> {
        let mut this = Self {
            dataset,
            source,
            input,
            events: Vec::new(),
            present: BTreeMap::new(),
            blank: BTreeMap::new(),
            other_loops: BTreeSet::new(),
            missing: Vec::new(),
        };
        for (batch, rows) in (0..).zip(&input.batches) {
            rows.removed.iter().for_each(|rows| this.read(batch, Change::Remove, rows));
            rows.added.iter().for_each(|rows| this.read(batch, Change::Add, rows));
        }
        this.events.sort_unstable_by_key(|event| (event.key, event.batch, event.change, event.row));
        this.look()?;
        Ok(this)
    }

    fn read(&mut self, batch: u32, change: Change, rows: &Rows) {
        for row in 0..rows.src.len() {
            if rows.left_out[row] {
                continue;
            }
            let (src, dst, row) = (rows.src[row], rows.dst[row], row as u32);
            if src == NONE {
                self.missing.push((batch, row));
                continue;
            }
            let edge_type = rows.types.get(row as usize).copied().unwrap_or(0);
            self.events.push(Event { key: EdgeKey { dst, src, edge_type }, batch, change, row, mirror: false });
            if self.source.undirected && src != dst {
                let key = EdgeKey { dst: src, src: dst, edge_type };
                self.events.push(Event { key, batch, change, row, mirror: true });
            }
        }
    }

    fn look(&mut self) -> Result<()> {
        let (book, old) = (self.dataset.book(), self.dataset.manifest().nodes as u32);
        let adds_loops = self.source.self_loops == SelfLoops::Add;
        let types = self.dataset.manifest().edge_columns.edge_type.as_ref();
        let loop_type = types.map(|types| types.count.saturating_sub(1) as u16);
        let mut open: Option<(usize, Topology)> = None;
        for same in self.events.chunk_by(|a, b| (a.key.dst, a.key.src) == (b.key.dst, b.key.src)) {
            let EdgeKey { dst, src, .. } = same[0].key;
            if dst >= old || src >= old {
                continue;
            }
            let part = book.owner(u64::from(dst)).ok_or_else(|| Error::Bug("a node of no partition".into()))?;
            if open.as_ref().is_none_or(|(opened, _)| *opened != part) {
                open = Some((part, self.dataset.topology(part)?));
            }
            let Some((_, topology)) = &open else { continue };
            let list = topology.edge_range((u64::from(dst) - book.range(part).start) as usize);
            let sources = &topology.indices()[list.clone()];
            let copies = sources.partition_point(|&node| node < src)..sources.partition_point(|&node| node <= src);
            let mut copies: Vec<u64> = copies.map(|i| (list.start + i) as u64).collect();
            if adds_loops && dst == src {
                let blank = match (topology.edge_types(), loop_type) {
                    (Some(types), Some(loop_type)) => copies.iter().position(|&at| types[at as usize] == loop_type),
                    // Nothing tells it from a row that carries the same. Who removes it, means a row.
                    _ => (copies.len() == 1 && same[0].change == Change::Add && is_blank(topology, copies[0]))
                        .then_some(0),
                };
                if let Some(blank) = blank {
                    self.blank.insert(dst, copies.remove(blank));
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

    /// Lets `incremental` say what becomes of the edges, and finds what that means for the files.
    pub(super) fn settle(mut self, incremental: &dyn Incremental, missing: Missing) -> Result<Delta> {
        let mut batches: Vec<Vec<(EdgeKey, Change)>> = vec![Vec::new(); self.input.batches.len()];
        self.events.iter().for_each(|event| batches[event.batch as usize].push((event.key, event.change)));
        let present: Vec<(EdgeKey, u32)> =
            self.present.iter().map(|(&key, copies)| (key, copies.len() as u32)).collect();
        let outcomes = incremental.net(self.source.duplicates, &present, &batches)?;
        drop(batches);

        let mut delta = Delta {
            counts: UpdateCounts {
                nodes_added: self.input.nodes.len() as u64,
                unknown_dropped: self.input.unknown_dropped,
                self_loops_dropped: self.input.self_loops_dropped,
                ..UpdateCounts::default()
            },
            ..Delta::default()
        };
        let mut twice: Option<(u32, u32)> = None;
        // Nodes with loops of their own, of those whose loops are touched.
        let mut own_loops: BTreeMap<u32, bool> = BTreeMap::new();
        let mut rest = &outcomes[..];
        let mut not_there = std::mem::take(&mut self.missing);
        for events in self.events.chunk_by(|a, b| a.key == b.key) {
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
                not_there.extend(lost.filter(|event| !event.mirror).map(|event| (event.batch, event.row)));
                copies.drain(..outcome.removed as usize);
                let Outcome { added, dropped, .. } = *outcome;
                copies.extend(rows(Change::Add).take(added as usize).map(|event| Copy::New(event.batch, event.row)));
                delta.counts.duplicates_dropped += u64::from(dropped);
                let first = rows(Change::Add).nth(added as usize).map(|event| (event.batch, event.row));
                twice = twice.into_iter().chain(first).min();
            }
            // Where a loop carries nothing, that which is added and that of a row are alike: there is always one.
            let old = u64::from(key.dst) < self.dataset.manifest().nodes;
            let always = old && self.source.self_loops == SelfLoops::Add && self.source.duplicates != Duplicates::Keep;
            if key.dst == key.src && always && self.plain() {
                continue;
            }
            if key.dst == key.src {
                let others = self.other_loops.contains(&key.dst);
                *own_loops.entry(key.dst).or_default() |= others || !copies.is_empty();
            }
            self.replace(key, before, copies, &mut delta)?;
        }
        if let Some((batch, row)) = twice.filter(|_| self.source.duplicates == Duplicates::Fail) {
            return Err(self.duplicate(batch, row)?);
        }
        not_there.sort_unstable();
        not_there.dedup();
        if let (Missing::Fail, Some(&(batch, row))) = (missing, not_there.first()) {
            return Err(self.not_there(batch, row)?);
        }
        delta.counts.missing_ignored = not_there.len() as u64;
        if self.source.self_loops == SelfLoops::Add {
            self.add_loops(&own_loops, &mut delta)?;
        }
        let changed: BTreeSet<u32> = delta.changed.drain(..).collect();
        delta.changed = changed.into_iter().collect();
        delta.removed.sort_unstable();
        Ok(delta)
    }

    /// Notes what has become of the copies of an edge.
    fn replace(&self, key: EdgeKey, before: &[u64], after: VecDeque<Copy>, delta: &mut Delta) -> Result<()> {
        let mut left = after.iter().filter(|copy| matches!(copy, Copy::Old)).count();
        let mut new = after.len() - left;
        if self.plain() {
            // Edges that carry nothing are all alike: what comes in the place of one that goes is that one.
            let same = new.min(before.len() - left);
            (left, new) = (left + same, new - same);
        }
        let is_loop = key.dst == key.src;
        // The first have gone.
        for &at in &before[..before.len() - left] {
            self.remove(key.dst, key.src, at, delta)?;
        }
        let rows = after.into_iter().filter_map(|copy| match copy {
            Copy::New(batch, row) => Some((batch, row)),
            Copy::Old => None,
        });
        let added = rows.take(new).map(|row| Added { dst: key.dst, src: key.src, row: Some(row) });
        delta.added.extend(added);
        delta.counts.edges_added += new as u64;
        delta.loops += if is_loop { new as i64 } else { 0 };
        if new > 0 || left < before.len() {
            delta.changed.push(key.dst);
        }
        Ok(())
    }

    fn remove(&self, dst: u32, src: u32, at: u64, delta: &mut Delta) -> Result<()> {
        let owner = |node: u32| {
            let owner = self.dataset.book().owner(u64::from(node));
            owner.ok_or_else(|| Error::Bug("a node of no partition".into()))
        };
        let part = owner(dst)?;
        delta.removed.push((part, at));
        delta.removed_cross += u64::from(part != owner(src)?);
        delta.counts.edges_removed += 1;
        delta.loops -= i64::from(dst == src);
        Ok(())
    }

    /// Gives nodes without a loop one, and takes it from those that have got another.
    fn add_loops(&self, own: &BTreeMap<u32, bool>, delta: &mut Delta) -> Result<()> {
        let old = self.dataset.manifest().nodes as u32;
        let new = (old..old + self.input.nodes.len() as u32).filter(|node| !own.contains_key(node));
        for (node, has) in own.iter().map(|(&node, &has)| (node, has)).chain(new.map(|node| (node, false))) {
            match (has, self.blank.get(&node)) {
                (true, Some(&at)) => self.remove(node, node, at, delta)?,
                (false, None) => {
                    delta.added.push(Added { dst: node, src: node, row: None });
                    delta.counts.edges_added += 1;
                    delta.loops += 1;
                }
                _ => continue,
            }
            delta.changed.push(node);
        }
        Ok(())
    }

    /// Whether edges carry nothing.
    fn plain(&self) -> bool {
        let columns = &self.dataset.manifest().edge_columns;
        !columns.weight && columns.edge_type.is_none() && !columns.time && columns.features == 0
    }

    fn rows(&self, batch: u32, change: Change) -> Result<&Rows> {
        let rows = &self.input.batches[batch as usize];
        let rows = if change == Change::Add { &rows.added } else { &rows.removed };
        rows.as_ref().ok_or_else(|| Error::Bug("a row of no file".into()))
    }

    fn not_there(&self, batch: u32, row: u32) -> Result<Error> {
        let rows = self.rows(batch, Change::Remove)?;
        let [src, dst] = rows.ids(row as usize)?;
        Ok(Error::MissingEdge { place: rows.place(row as usize), src, dst })
    }

    fn duplicate(&self, batch: u32, row: u32) -> Result<Error> {
        let rows = self.rows(batch, Change::Add)?;
        let [src, dst] = rows.ids(row as usize)?;
        let first = "the dataset or an earlier row".into();
        Ok(Error::DuplicateEdge { place: rows.place(row as usize), first, src, dst })
    }
}

/// Whether an edge carries what the self-loops carry that the policy adds.
fn is_blank(topology: &Topology, at: u64) -> bool {
    let at = at as usize;
    topology.weights().is_none_or(|weights| weights[at] == 1.0)
        && topology.times().is_none_or(|times| times[at] == 0)
        && topology
            .edge_features()
            .is_none_or(|(values, width)| values[at * width..(at + 1) * width].iter().all(|&value| value == 0.0))
}
