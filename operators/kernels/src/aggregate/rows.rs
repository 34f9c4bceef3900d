//! The loop of all aggregations: `out[r] = own(r) + scale(r) · Σ over edges e of row r: weight(e) · x[index(e)]`.
//!
//! One thread sums a row's edges in order, so any number of threads gives the same bits. Columns of a row are summed in
//! registers, in tiles of up to eight vectors. Rows of `x` are prefetched some edges ahead, because they are random.

use std::ops::Range;

use super::pieces::{pieces, split};
use super::sources::{Base, Sources};
use super::weight::Weight;
use crate::aggregate::offsets::{Offset, SMALL, prefetch as prefetch_bytes};
use crate::parallel;
use crate::prefetch::prefetch;
use crate::simd::dispatch::{Level, level};
use crate::simd::element::{Element, Real};
use crate::simd::isa::{Generic, Isa};
#[cfg(target_arch = "x86_64")]
use crate::simd::isa::{V3, V4};
use crate::simd::lanes::Lanes;

/// Cache lines prefetched ahead: many more than a core can have in flight, so that it always has requests.
const LINES: usize = 224;

/// The factor of a row after summation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale<'a, A> {
    /// Always 1.
    One,
    /// One over the number of edges: the mean. A row without edges stays 0.
    InverseDegree,
    /// One number per row.
    ByRow(&'a [A]),
}

/// A row that is added to each result, unscaled: a self loop, or the initial row (APPNP).
#[derive(Clone, Copy, Debug)]
pub struct Own<'a, T: Element> {
    /// Row `r` begins at `r · stride`. Missing rows are not added.
    pub rows: &'a [T],
    /// Numbers from one row to the next.
    pub stride: usize,
    /// The factor of these rows.
    pub coefficient: Coefficient<'a, T::Acc>,
}

/// The factor of [`Own`] rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Coefficient<'a, A> {
    /// One number for all rows.
    Same(A),
    /// One number per row.
    ByRow(&'a [A]),
}

/// The use of the previous contents of `out`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Onto {
    /// They are overwritten: `out = own + scale · Σ`.
    Nothing,
    /// They are the start of the sum: `out = own + scale · (out + Σ)`. Summing edges in several calls gives the bits of
    /// one call.
    Sum,
    /// They are added to the result: `out = out + (own + scale · Σ)`.
    Result,
}

/// One aggregation over `indptr`/`indices`.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a, P, T: Element> {
    pub indptr: &'a [P],
    pub indices: &'a [u32],
    /// `[sources, heads · width]`
    pub x: Sources<'a, T>,
    pub heads: usize,
    pub width: usize,
    pub scale: Scale<'a, T::Acc>,
    pub own: Option<Own<'a, T>>,
    pub onto: Onto,
    /// Row `r` is copied in front of the sum of row `r`.
    pub front: Option<&'a [T]>,
    /// Numbers from one row of `out` to the next.
    pub out_stride: usize,
}

impl<'a, P: Offset, T: Element> Rows<'a, P, T> {
    /// The plain sum, into contiguous rows.
    pub(crate) fn sum(indptr: &'a [P], indices: &'a [u32], x: Sources<'a, T>, heads: usize, width: usize) -> Self {
        let (scale, onto, out_stride) = (Scale::One, Onto::Nothing, heads * width);
        Self { indptr, indices, x, heads, width, scale, own: None, onto, front: None, out_stride }
    }

    /// Fills `out`, `[indptr.len() - 1, out_stride]`; the last row may end after its last column.
    ///
    /// # Panics
    /// If lengths do not match or an index is past the last row of `x`.
    pub(crate) fn run<W: Weight<T::Acc>>(&self, weight: &W, out: &mut [T::Acc]) {
        let rows = self.indptr.len() - 1;
        let columns = self.out_columns();
        if rows == 0 || self.heads * self.width == 0 {
            return;
        }
        let lengths = (rows - 1) * self.out_stride + columns..=rows * self.out_stride;
        assert!(columns <= self.out_stride && lengths.contains(&out.len()), "one output row per row of edges");
        self.check();
        let edges = self.indptr[rows].at().saturating_sub(self.indptr[0].at());
        if edges * columns < SMALL {
            return self.some_rows(0..rows, weight, out);
        }
        let pieces = pieces(self.indptr);
        let parts = split(&pieces, self.out_stride, out);
        let parts = pieces.into_iter().zip(parts).collect();
        parallel::each(parts, &|(rows, out): (Range<usize>, &mut [T::Acc])| self.some_rows(rows, weight, out));
    }

    /// Returns the numbers per row of `out`.
    fn out_columns(&self) -> usize {
        self.heads * self.width * if self.front.is_some() { 2 } else { 1 }
    }

    /// Panics unless all arrays by row have the right lengths.
    pub(crate) fn check(&self) {
        let (rows, columns) = (self.indptr.len() - 1, self.heads * self.width);
        self.x.check(columns);
        if let Scale::ByRow(scale) = self.scale {
            assert_eq!(scale.len(), rows, "one scale per row");
        }
        if let Some(own) = self.own {
            assert!(own.stride >= columns, "own rows have all columns");
            if let Coefficient::ByRow(coefficients) = own.coefficient {
                assert_eq!(coefficients.len(), rows, "one coefficient per row");
            }
        }
        assert!(self.front.is_none_or(|front| front.len() >= rows * columns), "one front row per output row");
    }

    /// Panics unless the edges of `rows` are valid and their indices are rows of `x`, which the loops read unchecked.
    /// Runs per piece, when the indices are about to be read anyway; the maximum vectorizes.
    #[inline(always)]
    pub(crate) fn check_edges(&self, rows: &Range<usize>) {
        let indptr = &self.indptr[rows.start..=rows.end];
        assert!(indptr.windows(2).all(|w| w[0].at() <= w[1].at()), "indptr never decreases");
        let edges = &self.indices[indptr[0].at()..indptr[rows.len()].at()];
        let last = edges.iter().fold(0, |max, &i| max.max(i));
        assert!(edges.is_empty() || (last as usize) < self.x.len(), "an index is past the last row");
    }

    fn some_rows<W: Weight<T::Acc>>(&self, rows: Range<usize>, weight: &W, out: &mut [T::Acc]) {
        #[cfg(target_arch = "x86_64")]
        if T::VECTORS {
            match level() {
                // SAFETY: `level` found the features; `run` checked the arrays by row and the length of `out`.
                Level::V4 => return unsafe { rows_v4(self, rows, weight, out) },
                // SAFETY: as above.
                Level::V3 => return unsafe { rows_v3(self, rows, weight, out) },
                Level::Baseline => {}
            }
        }
        // SAFETY: as above; `Generic` needs no features.
        unsafe { self.body::<Generic, W>(rows, weight, out) }
    }

    /// # Safety
    /// The machine has `I`, [`Rows::check`] passed, and `out` holds exactly `rows`, the last one to its last column.
    #[inline(always)]
    unsafe fn body<I: Isa, W: Weight<T::Acc>>(&self, rows: Range<usize>, weight: &W, out: &mut [T::Acc]) {
        self.check_edges(&rows);
        let (bases, columns) = (self.x.base(), self.heads * self.width);
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

    /// Returns the edges of row `r`.
    #[inline(always)]
    pub(crate) fn edges(&self, r: usize) -> Range<usize> {
        self.indptr[r].at()..self.indptr[r + 1].at()
    }

    /// Returns the prefetch distance in edges, for rows or tiles of `columns` columns.
    #[inline(always)]
    pub(crate) fn ahead(&self, columns: usize) -> usize {
        (LINES / (columns * size_of::<T>()).div_ceil(64).max(1)).clamp(2, 32)
    }

    /// Computes one row from `edges`, all of its edges or some. With `fetch`, prefetches later rows.
    ///
    /// # Safety
    /// The machine has `I`, [`Rows::check`] and [`Rows::check_edges`] passed, and `out` can hold the row.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub(crate) unsafe fn row<I: Isa, W: Weight<T::Acc>>(
        &self,
        bases: &Base<T>,
        r: usize,
        edges: Range<usize>,
        weight: &W,
        onto: Onto,
        fetch: bool,
        out: *mut T::Acc,
    ) {
        let columns = self.heads * self.width;
        let ahead = self.ahead(if self.heads == 1 { columns.min(8 * I::Of::<T::Acc>::N) } else { columns });
        // Also prefetches beyond these rows: the same thread most likely continues there.
        let fetch_until = if fetch { self.indices.len().saturating_sub(ahead) } else { 0 };
        let scale = match self.scale {
            Scale::One => None,
            Scale::InverseDegree if edges.is_empty() => None,
            Scale::InverseDegree => Some(T::Acc::ONE / T::Acc::from_f64(edges.len() as f64)),
            // SAFETY: `check` verified one scale per row.
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
                // With one head, a tile prefetches its columns; with several, the first tile prefetches the whole row.
                let fetch_until = if self.heads == 1 || (head == 0 && column == 0) { fetch_until } else { 0 };
                let edges = edges.clone();
                let astride = astride || !(column * size_of::<T>()).is_multiple_of(64);
                let tile = Tile { edges, head, column, fetch_until, ahead, astride, scale, own, onto };
                let vectors = left.div_ceil(lanes).min(8);
                let tail = left.min(vectors * lanes) - (vectors - 1) * lanes;
                // SAFETY: the tile is within the row, and the caller ensures the rest.
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
    /// As [`Rows::row`]; `out` can hold the tile.
    #[inline(always)]
    unsafe fn tile<I: Isa, W: Weight<T::Acc>, const V: usize>(
        &self,
        bases: &Base<T>,
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
                    let later = *self.indices.get_unchecked(e + t.ahead);
                    weight.prefetch(later as usize);
                    let later = bases.row(later);
                    if self.heads == 1 {
                        // The number of lines is a compile-time constant: a loop here costs as much as the sums.
                        for v in (0..V).filter(|v| (v * lanes * size_of::<T>()).is_multiple_of(64)) {
                            prefetch(later.wrapping_add(first + v * lanes));
                        }
                        if t.astride {
                            prefetch(later.wrapping_add(first + (V - 1) * lanes + tail - 1));
                        }
                    } else {
                        prefetch_bytes(later, bytes);
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
/// The machine has `I`; `from` is readable and `to` writable for `count` numbers.
#[inline(always)]
unsafe fn copy<I: Isa, T: Element>(from: *const T, to: *mut T::Acc, count: usize) {
    let lanes = I::Of::<T::Acc>::N;
    let whole = count / lanes * lanes;
    // SAFETY: guaranteed by the caller.
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
    /// Edges before this one prefetch the row `ahead` edges later.
    fetch_until: usize,
    ahead: usize,
    /// Whether the tile may start within a cache line and so end in one more.
    astride: bool,
    scale: Option<T::Acc>,
    /// The row of [`Own`], and its factor.
    own: Option<(*const T, T::Acc)>,
    onto: Onto,
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
unsafe fn rows_v4<P: Offset, T: Element, W: Weight<T::Acc>>(
    job: &Rows<'_, P, T>,
    rows: Range<usize>,
    weight: &W,
    out: &mut [T::Acc],
) {
    // SAFETY: the features are enabled here; the caller guarantees the rest.
    unsafe { job.body::<V4, W>(rows, weight, out) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn rows_v3<P: Offset, T: Element, W: Weight<T::Acc>>(
    job: &Rows<'_, P, T>,
    rows: Range<usize>,
    weight: &W,
    out: &mut [T::Acc],
) {
    // SAFETY: as above.
    unsafe { job.body::<V3, W>(rows, weight, out) }
}
