//! Merges old lists of in-edges with sorted changes into a new `topology.arrow`, in one pass.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::dataset::ipc::{IpcFile, Region, Span, align};
use crate::dataset::kept::Kept;
use crate::dataset::{Dataset, EdgeColumns, FileInfo, TOPOLOGY, Topology, part_folder};
use crate::error::{Error, Result};
use crate::prepare::{HaloFeatures, count_halo, topology_schema, write_halo};

use super::assign::Placement;
use super::input::Input;
use super::touched::Added;

const BUFFER: usize = 1 << 20;

/// Inputs that all partitions share.
pub(super) struct Merge<'a> {
    pub(super) dataset: &'a Dataset,
    pub(super) input: &'a Input,
    pub(super) placement: &'a Placement,
    pub(super) columns: &'a EdgeColumns,
    pub(super) loop_type: u16,
    pub(super) halo_features: Option<HaloFeatures<'a>>,
    /// The folder of the new dataset.
    pub(super) dir: &'a Path,
}

/// The written files of a partition.
pub(super) struct Merged {
    /// `None` if the partition keeps its topology.
    pub(super) topology: Option<FileInfo>,
    pub(super) edges: u64,
    pub(super) halo: FileInfo,
    /// Number of halo nodes by owner, or their sum if there are many partitions.
    pub(super) halo_nodes: Vec<u64>,
}

/// A range of a partition's new edges.
enum Piece {
    /// Positions of the old file.
    Old(Range<usize>),
    /// The added edge with this number.
    New(usize),
}

impl Merge<'_> {
    /// Writes topology and halo of partition `part`, without the edges at positions `removed` and with the edges `added`,
    /// whose ends are new global ids. Both lists are ascending.
    pub(super) fn run(&self, part: usize, removed: &[u64], added: &[Added]) -> Result<Merged> {
        let old = self.dataset.topology(part)?;
        let core = self.placement.book.range(part);
        let n = core.end - core.start;
        let gone = self.placement.removed_of(part);
        let (pieces, changes) = self.pieces(&old, (core.start, &gone), removed, added);
        let edges = old.num_edges() - removed.len() as u64 + added.len() as u64;

        let file = IpcFile::create(&self.dir.join(part_folder(part)).join(TOPOLOGY), topology_schema(self.columns))?;
        let mut offsets = file.region(0, BUFFER);
        write_offsets(&old, n as usize, &gone, &changes, &mut offsets)?;
        let mut indices = file.region(align(8 * (n + 1)), BUFFER);
        let halo = self.no_halo();
        self.write_indices(&old, &pieces, added, &core, &halo, &mut indices)?;

        let offset_span = offsets.span();
        let (mut nodes, mut buffers) = (vec![n, edges], vec![Span::NONE, offset_span, Span::NONE, indices.span()]);
        let mut next = indices.span().next();
        let mut regions = vec![offsets, indices];
        let mut column = |write: &dyn Fn(&mut Region) -> Result<()>, wide: usize| -> Result<()> {
            let mut region = file.region(next, BUFFER);
            write(&mut region)?;
            nodes.extend([n, edges]);
            buffers.extend([Span::NONE, offset_span, Span::NONE]);
            if wide > 0 {
                nodes.push(edges * wide as u64);
                buffers.push(Span::NONE);
            }
            buffers.push(region.span());
            next = region.span().next();
            regions.push(region);
            Ok(())
        };
        if let Some(values) = old.weights() {
            column(&|region| self.column(values, 1, &pieces, added, 1.0, |rows| &rows.weights, region), 0)?;
        }
        if let Some(values) = old.edge_types() {
            column(&|region| self.column(values, 1, &pieces, added, self.loop_type, |rows| &rows.types, region), 0)?;
        }
        if let Some(values) = old.times() {
            column(&|region| self.column(values, 1, &pieces, added, 0, |rows| &rows.times, region), 0)?;
        }
        if let Some((values, wide)) = old.edge_features() {
            column(&|region| self.column(values, wide, &pieces, added, 0.0, |rows| &rows.features, region), wide)?;
        }
        let halo_file = write_halo(self.dir, part, &self.placement.book, &halo, self.halo_features.as_ref())?;
        let topology = file.finish(&nodes, &buffers, regions)?;
        Ok(Merged {
            topology: Some(topology),
            edges,
            halo: halo_file,
            halo_nodes: count_halo(&halo, &self.placement.book),
        })
    }

    /// Writes the halo of partition `part` with other features. Its nodes, `nodes`, are those that it had.
    pub(super) fn halo(&self, part: usize, nodes: &[u32]) -> Result<Merged> {
        let bits = self.no_halo();
        nodes.iter().for_each(|node| mark(&bits, *node));
        let halo = write_halo(self.dir, part, &self.placement.book, &bits, self.halo_features.as_ref())?;
        let edges = self.dataset.manifest().partitions[part].edges;
        Ok(Merged { topology: None, edges, halo, halo_nodes: count_halo(&bits, &self.placement.book) })
    }

    /// Returns a bit for each node, none of them set.
    fn no_halo(&self) -> Vec<AtomicU64> {
        let words = self.placement.book.nodes() as usize / 64 + 1;
        std::iter::repeat_with(|| AtomicU64::new(0)).take(words).collect()
    }

    /// Returns the new edges in order, and the changes of list lengths as ascending pairs `(local node, change)`. New nodes follow the old ones there.
    /// `first` is the new global id of the partition's first node, and `gone` are its removed nodes.
    fn pieces(
        &self,
        old: &Topology,
        (first, gone): (u64, &[usize]),
        removed: &[u64],
        added: &[Added],
    ) -> (Vec<Piece>, Vec<(usize, i64)>) {
        let kept = Kept::without(gone.iter().map(|&local| local as u32));
        let mut pieces = Vec::with_capacity(2 * (removed.len() + added.len()) + 1);
        let mut changes: Vec<(usize, i64)> = Vec::with_capacity(removed.len() + added.len());
        let mut at = 0;
        let mut removed = removed.iter().map(|&position| position as usize).peekable();
        let copy = |pieces: &mut Vec<Piece>, at: &mut usize, to: usize| {
            if *at < to {
                pieces.push(Piece::Old(*at..to));
                *at = to;
            }
        };
        let skip = |pieces: &mut Vec<Piece>, at: &mut usize, position: usize, changes: &mut Vec<(usize, i64)>| {
            copy(pieces, at, position);
            *at = position + 1;
            changes.push((old.indptr().partition_point(|&start| start as usize <= position) - 1, -1));
        };
        for (number, edge) in added.iter().enumerate() {
            let local = kept.before_removal((u64::from(edge.dst) - first) as u32) as usize;
            let position = if local < old.num_nodes() {
                let list = old.edge_range(local);
                let below = |&node: &u32| self.placement.global(node) <= edge.src;
                list.start + old.indices()[list].partition_point(below)
            } else {
                old.indices().len()
            };
            while let Some(gone) = removed.next_if(|&gone| gone < position) {
                skip(&mut pieces, &mut at, gone, &mut changes);
            }
            copy(&mut pieces, &mut at, position);
            pieces.push(Piece::New(number));
            changes.push((local, 1));
        }
        for gone in removed {
            skip(&mut pieces, &mut at, gone, &mut changes);
        }
        copy(&mut pieces, &mut at, old.indices().len());
        changes.sort_unstable();
        (pieces, changes)
    }

    fn write_indices(
        &self,
        old: &Topology,
        pieces: &[Piece],
        added: &[Added],
        core: &Range<u64>,
        halo: &[AtomicU64],
        region: &mut Region,
    ) -> Result<()> {
        let mark = |node: u32| {
            if !core.contains(&u64::from(node)) {
                mark(halo, node);
            }
        };
        let shifts = self.placement.shifts();
        let mut shifted = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Old(range) if !shifts => {
                    let nodes = &old.indices()[range.clone()];
                    nodes.iter().for_each(|&node| mark(node));
                    region.write(bytemuck::cast_slice(nodes))?;
                }
                Piece::Old(range) => {
                    for nodes in old.indices()[range.clone()].chunks(BUFFER / 4) {
                        shifted.clear();
                        shifted.extend(nodes.iter().map(|&node| self.placement.global(node)));
                        shifted.iter().for_each(|&node| mark(node));
                        region.write(bytemuck::cast_slice(&shifted))?;
                    }
                }
                Piece::New(number) => {
                    let node = added[*number].src;
                    mark(node);
                    region.write(&node.to_le_bytes())?;
                }
            }
        }
        Ok(())
    }

    /// Writes one column of `width` values per edge. `fill` is the value for added self-loops.
    #[allow(clippy::too_many_arguments, reason = "all are needed, and each only here")]
    fn column<T: bytemuck::Pod>(
        &self,
        old: &[T],
        width: usize,
        pieces: &[Piece],
        added: &[Added],
        fill: T,
        new: impl Fn(&super::input::Rows) -> &[T],
        region: &mut Region,
    ) -> Result<()> {
        let fill = vec![fill; width];
        for piece in pieces {
            let values = match piece {
                Piece::Old(range) => &old[range.start * width..range.end * width],
                Piece::New(number) => match added[*number].row {
                    None => &fill[..],
                    Some((batch, row)) => {
                        let rows = self.input.batches[batch as usize].added.as_ref();
                        let rows = rows.ok_or_else(|| Error::Bug("an edge without a file".into()))?;
                        &new(rows)[row as usize * width..(row as usize + 1) * width]
                    }
                },
            };
            region.write(bytemuck::cast_slice(values))?;
        }
        Ok(())
    }
}

/// Sets the bit of a node.
fn mark(halo: &[AtomicU64], node: u32) {
    halo[node as usize / 64].fetch_or(1 << (node % 64), Ordering::Relaxed);
}

/// Writes the `n + 1` list offsets of a partition of `n` nodes. The old nodes `gone` are removed.
fn write_offsets(
    old: &Topology,
    n: usize,
    gone: &[usize],
    changes: &[(usize, i64)],
    region: &mut Region,
) -> Result<()> {
    let (mut grown, mut rest) = (0i64, changes);
    let mut gone = gone.iter().peekable();
    let last = old.indptr()[old.num_nodes()];
    region.write(&0i64.to_le_bytes())?;
    for local in 0..n + gone.len() {
        let length = rest.iter().take_while(|(node, _)| *node == local).count();
        grown += rest[..length].iter().map(|(_, by)| by).sum::<i64>();
        rest = &rest[length..];
        if gone.next_if_eq(&&local).is_some() {
            continue;
        }
        let end = old.indptr().get(local + 1).copied().unwrap_or(last);
        region.write(&(end + grown).to_le_bytes())?;
    }
    Ok(())
}
