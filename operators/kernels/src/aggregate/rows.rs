//! The loop behind every aggregation: `out[r] = own(r) + scale(r) · Σ over edges e of row r: weight(e) · x[index(e)]`.
//!
//! A row's edges are summed in order by one thread, so any number of threads gives the same bits. Within a row, columns go
//! through registers in tiles of up to eight vectors, and the rows of `x` that are due some edges ahead are prefetched: they
//! are random, and memory is slow.

use std::ops::Range;

use rayon::prelude::*;

use super::pieces::{pieces, split};
use super::sources::{Bases, Sources};
use super::weight::Weight;
use crate::aggregate::offsets::{Offset, SMALL, prefetch as prefetch_bytes};
use crate::prefetch;
use crate::simd::dispatch::{Level, level};
use crate::simd::element::{Element, Real};
use crate::simd::lanes::{Generic, Isa, Lanes};
#[cfg(target_arch = "x86_64")]
use crate::simd::lanes::{V3, V4};

/// Cache lines asked for ahead: far more than a core has on their way at a time, so that it is never out of them.
const LINES: usize = 224;

/// What a row is multiplied by when it has been summed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale<'a, A> {
    /// Nothing.
    One,
    /// One over the number of edges: the mean. A row without edges stays 0.
    InverseDegree,
    /// A number for each row.
    ByRow(&'a [A]),
}

/// A row of its own that every row gets in addition, unscaled: a self loop, or what a layer starts from (APPNP).
#[derive(Clone, Copy, Debug)]
pub struct Own<'a, T: Element> {
    /// Row `r` begins at `r · stride`. Rows past the end get nothing.
    pub rows: &'a [T],
    /// Numbers from one row to the next.
    pub stride: usize,
    /// What it is multiplied by.
    pub coefficient: Coefficient<'a, T::Acc>,
}

/// What [`Own`] rows are multiplied by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Coefficient<'a, A> {
    /// The same for all.
    Same(A),
    /// A number for each row.
    ByRow(&'a [A]),
}

/// What becomes of the numbers that are in `out` already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Onto {
    /// They are overwritten: `out = own + scale · Σ`.
    Nothing,
    /// The sum goes on from them, so that a sum over some edges and then over others has the bits of one sum over all:
    /// `out = own + scale · (out + Σ)`.
    Sum,
    /// The result is added to them: `out = out + (own + scale · Σ)`.
    Result,
}

/// One aggregation over `indptr`/`indices`; the rows of `x` are in one array unless `TWO`.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a, P, T: Element, const TWO: bool> {
    pub indptr: &'a [P],
    pub indices: &'a [u32],
    /// `[sources, heads · width]`
    pub x: Sources<'a, T>,
    pub heads: usize,
    pub width: usize,
    pub scale: Scale<'a, T::Acc>,
    pub own: Option<Own<'a, T>>,
    pub onto: Onto,
    /// Row `r` of these is written before the sum, in front of it.
    pub front: Option<&'a [T]>,
    /// Numbers from one row of `out` to the next.
    pub out_stride: usize,
}

impl<'a, P: Offset, T: Element, const TWO: bool> Rows<'a, P, T, TWO> {
    /// The plain sum, one row of `out` after another.
    pub(crate) fn sum(indptr: &'a [P], indices: &'a [u32], x: Sources<'a, T>, heads: usize, width: usize) -> Self {
        let (scale, onto, out_stride) = (Scale::One, Onto::Nothing, heads * width);
        Self { indptr, indices, x, heads, width, scale, own: None, onto, front: None, out_stride }
    }

    /// Fills `out`, `[indptr.len() - 1, out_stride]`, of which the last row may be cut behind its last column.
    ///
    /// # Panics
    /// When lengths disagree or an index is past the last row of `x`.
    pub(crate) fn run<W: Weight<T::Acc>>(&self, weight: &W, out: &mut [T::Acc]) {
        let rows = self.indptr.len() - 1;
        let columns = self.out_columns();
        if rows == 0 || self.heads * self.width == 0 {
            return;
        }
        let room = (rows - 1) * self.out_stride + columns..=rows * self.out_stride;
        assert!(columns <= self.out_stride && room.contains(&out.len()), "one row out for each row of edges");
        self.check();
        let edges = self.indptr[rows].at().saturating_sub(self.indptr[0].at());
        if edges * columns < SMALL {
            return self.some_rows(0..rows, weight, out);
        }
        let pieces = pieces(self.indptr);
        let parts = split(&pieces, self.out_stride, out);
        pieces.into_par_iter().zip(parts).for_each(|(rows, out)| self.some_rows(rows, weight, out));
    }

    /// Numbers of a row of `out`.
    fn out_columns(&self) -> usize {
        self.heads * self.width * if self.front.is_some() { 2 } else { 1 }
    }

    /// Panics unless all that is there by rows has them, and whole ones.
    pub(crate) fn check(&self) {
        let (rows, columns) = (self.indptr.len() - 1, self.heads * self.width);
        self.x.check(columns);
        assert!(TWO || self.x.in_one(), "rows of one array");
        if let Scale::ByRow(scale) = self.scale {
            assert_eq!(scale.len(), rows, "a scale for each row");
        }
        if let Some(own) = self.own {
            assert!(own.stride >= columns, "whole rows of their own");
            if let Coefficient::ByRow(coefficients) = own.coefficient {
                assert_eq!(coefficients.len(), rows, "a coefficient for each row");
            }
        }
        assert!(self.front.is_none_or(|front| front.len() >= rows * columns), "a row in for each row out");
    }

    /// Panics unless the edges of `rows` are edges, and their indices rows of `x`: the loops read those unchecked. Done piece
    /// by piece, when the indices are about to be read anyway; the maximum vectorizes.
    #[inline(always)]
    pub(crate) fn check_edges(&self, rows: &Range<usize>) {
        let indptr = &self.indptr[rows.start..=rows.end];
        assert!(indptr.windows(2).all(|w| w[0].at() <= w[1].at()), "indptr never decreases");
        let edges = &self.indices[indptr[0].at()..indptr[rows.len()].at()];
        let last = edges.iter().fold(0, |max, &i| max.max(i));
        assert!(edges.is_empty() || (last as usize) < self.x.len(), "an index is past the last row");
    }

    fn some_rows<W: Weight<T::Acc>>(&self, rows: Range<usize>, weight: &W, out: &mut [T::Acc]) {
        match level() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `level` found the features; `run` checked what there is by rows and the length of `out`.
            Level::V4 => unsafe { rows_v4(self, rows, weight, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::V3 => unsafe { rows_v3(self, rows, weight, out) },
            // SAFETY: as above; `Generic` needs no features.
            _ => unsafe { self.body::<Generic, W>(rows, weight, out) },
        }
    }

    /// # Safety
    /// The machine has `I`, [`Rows::check`] passed, and `out` holds exactly `rows`, the last one to its last column.
    #[inline(always)]
    unsafe fn body<I: Isa, W: Weight<T::Acc>>(&self, rows: Range<usize>, weight: &W, out: &mut [T::Acc]) {
        self.check_edges(&rows);
        let (bases, columns) = (self.x.bases(), self.heads * self.width);
        let first = rows.start;
        for r in rows {
            // SAFETY: `out` holds `rows`, of which `r` is one; `front` has row `r`; the edges were checked.
            unsafe {
                let mut place = out.as_mut_ptr().add((r - first) * self.out_stride);
                if let Some(front) = self.front {
                    copy::<I, T>(front.as_ptr().add(r * columns), place, columns);
                    place = place.add(columns);
                }
                self.row::<I, W>(&bases, r, self.edges(r), weight, self.onto, true, place);
            }
        }
    }

    /// The edges of row `r`.
    #[inline(always)]
    pub(crate) fn edges(&self, r: usize) -> Range<usize> {
        self.indptr[r].at()..self.indptr[r + 1].at()
    }

    /// How many edges ahead rows are prefetched: whole ones, or of one head the columns of a tile.
    #[inline(always)]
    pub(crate) fn ahead(&self, columns: usize) -> usize {
        (LINES / (columns * size_of::<T>()).div_ceil(64).max(1)).clamp(2, 32)
    }

    /// One row, or some of its edges: `edges` decides what is summed and `self` what is done with the sum. With `fetch`,
    /// rows that are due later are prefetched.
    ///
    /// # Safety
    /// The machine has `I`, [`Rows::check`] and [`Rows::check_edges`] passed, and `out` has room for the row.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub(crate) unsafe fn row<I: Isa, W: Weight<T::Acc>>(
        &self,
        bases: &Bases<T, TWO>,
        r: usize,
        edges: Range<usize>,
        weight: &W,
        onto: Onto,
        fetch: bool,
        out: *mut T::Acc,
    ) {
        let columns = self.heads * self.width;
        let ahead = self.ahead(if self.heads == 1 { columns.min(8 * I::Of::<T::Acc>::N) } else { columns });
        // Past the end of these rows, too: most likely the same thread goes on there.
        let fetch_until = if fetch { self.indices.len().saturating_sub(ahead) } else { 0 };
        let scale = match self.scale {
            Scale::One => None,
            Scale::InverseDegree if edges.is_empty() => None,
            Scale::InverseDegree => Some(T::Acc::ONE / T::Acc::from_f64(edges.len() as f64)),
            // SAFETY: `check` saw a scale for each row.
            Scale::ByRow(scale) => Some(unsafe { *scale.get_unchecked(r) }),
        };
        let own = self.own.and_then(|own| {
            let coefficient = match own.coefficient {
                Coefficient::Same(coefficient) => coefficient,
                Coefficient::ByRow(coefficients) => coefficients[r],
            };
            Some((own.rows.get(r * own.stride..r * own.stride + columns)?.as_ptr(), coefficient))
        });
        let astride = !bases.at_lines;
        for head in 0..self.heads {
            let mut column = 0;
            while column < self.width {
                let (lanes, left) = (I::Of::<T::Acc>::N, self.width - column);
                // With one head a tile asks for its own columns; with several the first one asks for the whole row.
                let fetch_until = if self.heads == 1 || (head == 0 && column == 0) { fetch_until } else { 0 };
                let edges = edges.clone();
                let astride = astride || !(column * size_of::<T>()).is_multiple_of(64);
                let tile = Tile { edges, head, column, fetch_until, ahead, astride, scale, own, onto };
                let vectors = left.div_ceil(lanes).min(8);
                let tail = left.min(vectors * lanes) - (vectors - 1) * lanes;
                // SAFETY: the tile lies within the row, and the caller's promise holds.
                unsafe {
                    let o = out.add(head * self.width + column);
                    match vectors {
                        1 => self.tile::<I, W, 1>(bases, tile, weight, tail, o),
                        2 => self.tile::<I, W, 2>(bases, tile, weight, tail, o),
                        3 => self.tile::<I, W, 3>(bases, tile, weight, tail, o),
                        4 => self.tile::<I, W, 4>(bases, tile, weight, tail, o),
                        5 => self.tile::<I, W, 5>(bases, tile, weight, tail, o),
                        6 => self.tile::<I, W, 6>(bases, tile, weight, tail, o),
                        7 => self.tile::<I, W, 7>(bases, tile, weight, tail, o),
                        _ => self.tile::<I, W, 8>(bases, tile, weight, tail, o),
                    }
                }
                column += (vectors - 1) * lanes + tail;
            }
        }
    }

    /// Sums `V` vectors' worth of columns of one row in registers; the last vector has `tail` lanes.
    ///
    /// # Safety
    /// As [`Rows::row`]; `out` has room for the tile.
    #[inline(always)]
    unsafe fn tile<I: Isa, W: Weight<T::Acc>, const V: usize>(
        &self,
        bases: &Bases<T, TWO>,
        t: Tile<T>,
        weight: &W,
        tail: usize,
        out: *mut T::Acc,
    ) {
        let lanes = I::Of::<T::Acc>::N;
        let first = t.head * self.width + t.column;
        let bytes = self.heads * self.width * size_of::<T>();
        // SAFETY: every `e` is an edge, every index a row of `x`, and columns stay within the row.
        unsafe {
            let load = |p: *const T, v: usize| {
                let p = p.add(v * lanes);
                if v + 1 < V { I::load(p) } else { I::load_head(p, tail) }
            };
            let load_out = |v: usize| {
                let p: *const T::Acc = out.add(v * lanes);
                if v + 1 < V { I::load::<T::Acc>(p) } else { I::load_head::<T::Acc>(p, tail) }
            };
            let mut sums = [I::Of::<T::Acc>::zero(); V];
            if t.onto == Onto::Sum {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = load_out(v);
                }
            }
            for e in t.edges {
                if e < t.fetch_until {
                    let due = *self.indices.get_unchecked(e + t.ahead);
                    weight.fetch(due as usize);
                    let due = bases.row(due);
                    if self.heads == 1 {
                        // As many lines as the compiler can count: a loop here costs as much as the sums.
                        for v in (0..V).filter(|v| (v * lanes * size_of::<T>()).is_multiple_of(64)) {
                            prefetch(due.wrapping_add(first + v * lanes));
                        }
                        if t.astride {
                            prefetch(due.wrapping_add(first + (V - 1) * lanes + tail - 1));
                        }
                    } else {
                        prefetch_bytes(due, bytes);
                    }
                }
                let index = *self.indices.get_unchecked(e);
                let row = bases.row(index).add(first);
                let weight = I::Of::<T::Acc>::splat(weight.at(e, index as usize, t.head));
                for (v, sum) in sums.iter_mut().enumerate() {
                    let value = load(row, v);
                    *sum = if W::UNIT { sum.add(value) } else { sum.add(value.mul(weight)) };
                }
            }
            if let Some(scale) = t.scale {
                for sum in &mut sums {
                    *sum = sum.mul(I::Of::<T::Acc>::splat(scale));
                }
            }
            if let Some((own, coefficient)) = t.own {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = load(own.add(first), v).mul(I::Of::<T::Acc>::splat(coefficient)).add(*sum);
                }
            }
            if t.onto == Onto::Result {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = load_out(v).add(*sum);
                }
            }
            for (v, sum) in sums.into_iter().enumerate() {
                let o = out.add(v * lanes);
                if v + 1 < V { sum.store(o) } else { sum.store_head(o, tail) }
            }
        }
    }
}

/// Widens `count` numbers.
///
/// # Safety
/// The machine has `I`, `from` is good for reading as many and `to` for writing them.
#[inline(always)]
unsafe fn copy<I: Isa, T: Element>(from: *const T, to: *mut T::Acc, count: usize) {
    let lanes = I::Of::<T::Acc>::N;
    let whole = count / lanes * lanes;
    // SAFETY: the caller's promise.
    unsafe {
        for c in (0..whole).step_by(lanes) {
            I::load(from.add(c)).store(to.add(c));
        }
        if whole < count {
            I::load_head(from.add(whole), count - whole).store_head(to.add(whole), count - whole);
        }
    }
}

/// Some columns of one row.
struct Tile<T: Element> {
    edges: Range<usize>,
    head: usize,
    column: usize,
    /// Edges before this one prefetch the row `ahead` edges on.
    fetch_until: usize,
    ahead: usize,
    /// Whether the tile may begin within a cache line, and so end in one more.
    astride: bool,
    scale: Option<T::Acc>,
    /// The row's own row of `x`, and what it is multiplied by.
    own: Option<(*const T, T::Acc)>,
    onto: Onto,
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
unsafe fn rows_v4<P: Offset, T: Element, W: Weight<T::Acc>, const TWO: bool>(
    job: &Rows<'_, P, T, TWO>,
    rows: Range<usize>,
    weight: &W,
    out: &mut [T::Acc],
) {
    // SAFETY: the features are enabled here; the rest is the caller's promise.
    unsafe { job.body::<V4, W>(rows, weight, out) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn rows_v3<P: Offset, T: Element, W: Weight<T::Acc>, const TWO: bool>(
    job: &Rows<'_, P, T, TWO>,
    rows: Range<usize>,
    weight: &W,
    out: &mut [T::Acc],
) {
    // SAFETY: as above.
    unsafe { job.body::<V3, W>(rows, weight, out) }
}
