//! The loop behind every aggregation: `out[r] = scale(r) · Σ over edges e of row r: weight(e) · x[index(e)]`.
//!
//! Rows are split into chunks of fixed size, which rayon shares out; a row's edges are summed in order by one thread, so
//! any number of threads gives the same bits. Within a row, columns go through registers in tiles of up to eight
//! vectors, and the rows of `x` that are due some edges ahead are prefetched: they are random, and memory is slow.

use std::ops::Range;

use rayon::prelude::*;

use super::dispatch::{Level, level};
use super::element::{Element, Real};
use super::lanes::{Generic, Isa, Lanes};
#[cfg(target_arch = "x86_64")]
use super::lanes::{V3, V4};

/// Rows that one task takes.
pub(super) const ROWS: usize = 256;
/// Below this many numbers read, threads cost more than they bring.
pub(super) const SMALL: usize = 1 << 15;
/// Cache lines kept in flight by prefetching.
const LINES: usize = 112;

/// Edges by row: `u32` in blocks, `i64` in a prepared partition.
pub trait Offset: Copy + Send + Sync {
    /// As an index.
    fn at(self) -> usize;
}

impl Offset for u32 {
    #[inline(always)]
    fn at(self) -> usize {
        self as usize
    }
}

impl Offset for i64 {
    #[inline(always)]
    fn at(self) -> usize {
        self as usize
    }
}

/// What multiplies the row of `x` at the end of an edge.
pub(super) trait Weight<A>: Sync {
    /// Whether every weight is 1 and need not be asked for.
    const UNIT: bool = false;
    /// The weight for columns of `head` of edge `e` (a position in `indices`), whose row of `x` is `index`.
    fn at(&self, e: usize, index: usize, head: usize) -> A;
}

/// No weights.
pub(super) struct Unit;

impl<A: Real> Weight<A> for Unit {
    const UNIT: bool = true;
    #[inline(always)]
    fn at(&self, _: usize, _: usize, _: usize) -> A {
        A::ONE
    }
}

/// A weight for each row of `x`.
pub(super) struct ByIndex<'a>(pub &'a [f64]);

impl<A: Real> Weight<A> for ByIndex<'_> {
    #[inline(always)]
    fn at(&self, _: usize, index: usize, _: usize) -> A {
        A::from_f64(self.0[index])
    }
}

/// A weight for each edge and head, `[E, H]`.
pub(super) struct ByEdge<'a, A> {
    pub weights: &'a [A],
    pub heads: usize,
    /// Where the edge at each position lies in `weights`; `None` when in the same place.
    pub edges: Option<&'a [u32]>,
}

impl<A: Real> Weight<A> for ByEdge<'_, A> {
    #[inline(always)]
    fn at(&self, e: usize, _: usize, head: usize) -> A {
        let edge = self.edges.map_or(e, |edges| edges[e] as usize);
        self.weights[edge * self.heads + head]
    }
}

/// What a row is multiplied by when it has been summed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    One,
    /// One over the number of edges; 0 for none.
    InverseDegree,
}

/// Where the sums stand when rows hold something else, too: beside every sum a row of its own, in front of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Beside {
    /// Rows in and out are just what is summed.
    Nothing,
    /// `out[r]` is row `r` of `x`, then the sum.
    Out,
    /// A row of `x` is two: what is summed is the second; row `r`'s sum begins with the first of `x[r]`, if there is one.
    In,
}

/// One aggregation over `indptr`/`indices`.
pub(super) struct Rows<'a, P, T, W> {
    pub indptr: &'a [P],
    pub indices: &'a [u32],
    /// `[rows, heads · width]`
    pub x: &'a [T],
    pub heads: usize,
    pub width: usize,
    pub weight: W,
    pub scale: Scale,
    pub beside: Beside,
}

impl<P: Offset, T: Element, W: Weight<T::Acc>> Rows<'_, P, T, W> {
    /// Fills `out`, `[indptr.len() - 1, heads · width]`.
    ///
    /// # Panics
    /// When lengths disagree or an index is past the last row of `x`.
    pub(super) fn run(&self, out: &mut [T::Acc]) {
        let rows = self.indptr.len() - 1;
        let (columns, stride) = (self.out_stride(), self.stride());
        assert_eq!(out.len(), rows * columns, "one row out for each row of edges");
        assert_eq!(self.indptr[rows].at(), self.indices.len(), "indptr ends at the number of edges");
        if columns == 0 {
            return;
        }
        assert_eq!(self.x.len() % stride, 0, "whole rows in");
        let own = if self.beside == Beside::Out { rows } else { 0 };
        assert!(own <= self.x.len() / stride, "a row in for each row out");
        // The loops read rows of `x` unchecked after this; the maximum vectorises and costs a percent of the sums.
        let last = parallel_max(self.indices);
        assert!(self.indices.is_empty() || (last as usize) < self.x.len() / stride, "an index is past the last row");
        assert!(self.indptr.windows(2).all(|w| w[0].at() <= w[1].at()), "indptr never decreases");
        let task = |(chunk, out): (usize, &mut [T::Acc])| {
            let first = chunk * ROWS;
            self.some_rows(first..(first + ROWS).min(rows), out);
        };
        if self.indices.len() * columns < SMALL {
            out.chunks_mut(ROWS * columns).enumerate().for_each(task);
        } else {
            out.par_chunks_mut(ROWS * columns).enumerate().for_each(task);
        }
    }

    /// Numbers from one row of `x` to the next.
    #[inline(always)]
    fn stride(&self) -> usize {
        self.heads * self.width * if self.beside == Beside::In { 2 } else { 1 }
    }

    /// Numbers from one row of `out` to the next.
    #[inline(always)]
    fn out_stride(&self) -> usize {
        self.heads * self.width * if self.beside == Beside::Out { 2 } else { 1 }
    }

    fn some_rows(&self, rows: Range<usize>, out: &mut [T::Acc]) {
        match level() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `level` found the features; `run` checked the indices and the length of `out`.
            Level::V4 => unsafe { rows_v4(self, rows, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::V3 => unsafe { rows_v3(self, rows, out) },
            // SAFETY: as above; `Generic` needs no features.
            _ => unsafe { self.body::<Generic>(rows, out) },
        }
    }

    /// # Safety
    /// The machine has `I`, every index is a row of `x`, and `out` holds exactly `rows`.
    #[inline(always)]
    unsafe fn body<I: Isa>(&self, rows: Range<usize>, out: &mut [T::Acc]) {
        let columns = self.heads * self.width;
        let (stride, out_stride) = (self.stride(), self.out_stride());
        let bytes = columns * size_of::<T>();
        let ahead = (LINES / bytes.div_ceil(64)).clamp(2, 16);
        // Past the end of these rows, too: most likely the same thread goes on there.
        let prefetch_until = self.indices.len().saturating_sub(ahead);
        let first_row = rows.start;
        for r in rows {
            let (begin, end) = (self.indptr[r].at(), self.indptr[r + 1].at());
            let scale = match self.scale {
                Scale::One => None,
                Scale::InverseDegree if end == begin => None,
                Scale::InverseDegree => Some(T::Acc::ONE / T::Acc::from_f64((end - begin) as f64)),
            };
            // SAFETY: `out` holds `rows`, of which `r` is one.
            let row_out = unsafe { out.as_mut_ptr().add((r - first_row) * out_stride + out_stride - columns) };
            if self.beside == Beside::Out {
                // SAFETY: `run` saw that `x` has row `r`, and the row's place in `out` begins `columns` before its sum.
                unsafe {
                    for c in 0..columns {
                        *row_out.sub(columns).add(c) = (*self.x.get_unchecked(r * stride + c)).widen();
                    }
                }
            }
            // What the sum begins with.
            let begin_with = (self.beside == Beside::In && r * stride < self.x.len()).then_some(r * stride);
            for head in 0..self.heads {
                let mut column = 0;
                while column < self.width {
                    let (lanes, left) = (I::Of::<T::Acc>::N, self.width - column);
                    // With one head a tile asks for its own columns; with several the first one asks for the whole row.
                    let fetch = if self.heads == 1 || (head == 0 && column == 0) { prefetch_until } else { 0 };
                    let tile = Tile { edges: begin..end, head, column, fetch, ahead, bytes, scale, begin_with };
                    let vectors = left.div_ceil(lanes).min(8);
                    let tail = left.min(vectors * lanes) - (vectors - 1) * lanes;
                    // SAFETY: the tile lies within the row, and the caller's promise holds.
                    unsafe {
                        let o = row_out.add(head * self.width + column);
                        match vectors {
                            1 => self.tile::<I, 1>(tile, tail, o),
                            2 => self.tile::<I, 2>(tile, tail, o),
                            3 => self.tile::<I, 3>(tile, tail, o),
                            4 => self.tile::<I, 4>(tile, tail, o),
                            5 => self.tile::<I, 5>(tile, tail, o),
                            6 => self.tile::<I, 6>(tile, tail, o),
                            7 => self.tile::<I, 7>(tile, tail, o),
                            _ => self.tile::<I, 8>(tile, tail, o),
                        }
                    }
                    column += (vectors - 1) * lanes + tail;
                }
            }
        }
    }

    /// Sums `V` vectors' worth of columns of one row in registers; the last vector has `tail` lanes.
    ///
    /// # Safety
    /// As [`Rows::body`]; `out` has room for the tile.
    #[inline(always)]
    unsafe fn tile<I: Isa, const V: usize>(&self, t: Tile<T::Acc>, tail: usize, out: *mut T::Acc) {
        let columns = self.stride();
        let lanes = I::Of::<T::Acc>::N;
        // SAFETY: every `e` is an edge, every index a row of `x`, and columns stay within the row.
        unsafe {
            let mut sums = [I::Of::<T::Acc>::zero(); V];
            let x = self.x.as_ptr();
            if let Some(own) = t.begin_with {
                let row = x.add(own + t.head * self.width + t.column);
                for (v, sum) in sums.iter_mut().enumerate() {
                    let p = row.add(v * lanes);
                    *sum = if v + 1 < V { I::load(p) } else { I::load_head(p, tail) };
                }
            }
            let first = columns - self.heads * self.width + t.head * self.width + t.column;
            for e in t.edges {
                if e < t.fetch {
                    let due = x.add(*self.indices.get_unchecked(e + t.ahead) as usize * columns);
                    if self.heads == 1 {
                        // As many lines as the compiler can count: a loop here costs as much as the sums.
                        for v in (0..V).filter(|v| (v * lanes * size_of::<T>()).is_multiple_of(64)) {
                            super::prefetch(due.wrapping_add(first + v * lanes));
                        }
                    } else {
                        prefetch(due, t.bytes);
                    }
                }
                let index = *self.indices.get_unchecked(e) as usize;
                let row = x.add(index * columns + first);
                let weight = I::Of::<T::Acc>::splat(self.weight.at(e, index, t.head));
                for (v, sum) in sums.iter_mut().enumerate() {
                    let p = row.add(v * lanes);
                    let value = if v + 1 < V { I::load(p) } else { I::load_head(p, tail) };
                    *sum = if W::UNIT { sum.add(value) } else { sum.add(value.mul(weight)) };
                }
            }
            for (v, sum) in sums.into_iter().enumerate() {
                let sum = t.scale.map_or(sum, |scale| sum.mul(I::Of::<T::Acc>::splat(scale)));
                let o = out.add(v * lanes);
                if v + 1 < V { sum.store(o) } else { sum.store_head(o, tail) }
            }
        }
    }
}

/// Some columns of one row.
struct Tile<A> {
    edges: Range<usize>,
    head: usize,
    column: usize,
    /// Edges before this one prefetch the row `ahead` edges on.
    fetch: usize,
    ahead: usize,
    bytes: usize,
    scale: Option<A>,
    /// Where in `x` the row is that the sum begins with.
    begin_with: Option<usize>,
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
unsafe fn rows_v4<P: Offset, T: Element, W: Weight<T::Acc>>(
    job: &Rows<'_, P, T, W>,
    rows: Range<usize>,
    out: &mut [T::Acc],
) {
    // SAFETY: the features are enabled here; the rest is the caller's promise.
    unsafe { job.body::<V4>(rows, out) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn rows_v3<P: Offset, T: Element, W: Weight<T::Acc>>(
    job: &Rows<'_, P, T, W>,
    rows: Range<usize>,
    out: &mut [T::Acc],
) {
    // SAFETY: as above.
    unsafe { job.body::<V3>(rows, out) }
}

/// Asks for `bytes` from `p` to be brought near.
#[inline(always)]
pub(super) fn prefetch<T>(p: *const T, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        super::prefetch(p.cast::<u8>().wrapping_add(line));
    }
}

/// The largest of `indices`; 0 for none.
pub(super) fn parallel_max(indices: &[u32]) -> u32 {
    const PIECE: usize = 1 << 16;
    let max = |piece: &[u32]| piece.iter().fold(0, |max, &i| max.max(i));
    if indices.len() <= PIECE { max(indices) } else { indices.par_chunks(PIECE).map(max).max().unwrap_or(0) }
}

/// Splits `values`, `width` numbers an edge, into the pieces that belong to chunks of [`ROWS`] rows: (first row, its
/// edges' values).
pub(super) fn split_by_row<'a, P: Offset, A>(
    indptr: &[P],
    width: usize,
    mut values: &'a mut [A],
) -> Vec<(usize, &'a mut [A])> {
    let rows = indptr.len() - 1;
    let mut pieces = Vec::with_capacity(rows.div_ceil(ROWS));
    for first in (0..rows).step_by(ROWS) {
        let edges = indptr[(first + ROWS).min(rows)].at() - indptr[first].at();
        let (piece, rest) = values.split_at_mut(edges * width);
        pieces.push((first, piece));
        values = rest;
    }
    pieces
}
