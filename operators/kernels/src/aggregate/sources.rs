//! Where the rows of sources lie: in one array, or in two that are numbered as one.

/// Rows of sources: source `s` is row `s` of the first array, or, past its end, row `s` less its rows of the second.
///
/// A process that has some nodes' rows itself and received others' (Dorylus's ghost buffer) numbers its own first and
/// the others after them, and never copies both into one array.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a, T> {
    own: &'a [T],
    ghosts: &'a [T],
    stride: usize,
}

impl<'a, T> Sources<'a, T> {
    /// Rows that begin `stride` numbers apart. To leave out a row's first columns, begin the slice behind them.
    ///
    /// # Panics
    /// When `stride` is 0.
    pub fn new(rows: &'a [T], stride: usize) -> Self {
        Self::with_ghosts(rows, &[], stride)
    }

    /// Rows in two arrays of one `stride`: those of `own`, then those of `ghosts`.
    ///
    /// ```
    /// use gnnflow_kernels::aggregate::Sources;
    ///
    /// let sources = Sources::with_ghosts(&[1, 2, 3, 4], &[5, 6], 2);
    /// assert_eq!((sources.len(), sources.row(1, 2), sources.row(2, 2)), (3, &[3, 4][..], &[5, 6][..]));
    /// ```
    ///
    /// # Panics
    /// When `stride` is 0.
    pub fn with_ghosts(own: &'a [T], ghosts: &'a [T], stride: usize) -> Self {
        assert!(stride > 0, "rows begin some numbers apart");
        Self { own, ghosts, stride }
    }

    /// How many rows, the last one of either array possibly cut behind its last column.
    pub fn len(&self) -> usize {
        self.split() + self.ghosts.len().div_ceil(self.stride)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.own.is_empty() && self.ghosts.is_empty()
    }

    /// The first `columns` numbers of row `index`.
    ///
    /// # Panics
    /// When there is no such row.
    #[inline(always)]
    pub fn row(&self, index: usize, columns: usize) -> &'a [T] {
        let split = self.split();
        let (rows, index) = if index < split { (self.own, index) } else { (self.ghosts, index - split) };
        &rows[index * self.stride..][..columns]
    }

    /// Rows of the first array.
    fn split(&self) -> usize {
        self.own.len().div_ceil(self.stride)
    }

    /// Panics unless every row has `columns` numbers.
    pub(crate) fn check(&self, columns: usize) {
        for rows in [self.own, self.ghosts] {
            let last = rows.len().div_ceil(self.stride).saturating_sub(1) * self.stride;
            let whole = rows.is_empty() || columns <= self.stride && last + columns <= rows.len();
            assert!(whole, "whole rows of {columns} columns");
        }
    }

    /// Whether all are in the first array.
    pub(crate) fn in_one(&self) -> bool {
        self.ghosts.is_empty()
    }

    /// Whether every row begins where a cache line does.
    fn at_lines(&self) -> bool {
        let lines = |at: usize| at.is_multiple_of(64);
        let begins = [self.own, self.ghosts].into_iter().all(|rows| rows.is_empty() || lines(rows.as_ptr() as usize));
        begins && lines(self.stride * size_of::<T>())
    }

    /// For loops that check nothing.
    #[inline(always)]
    pub(crate) fn bases<const TWO: bool>(&self) -> Bases<T, TWO> {
        let split = self.split();
        Bases {
            own: self.own.as_ptr(),
            ghosts: self.ghosts.as_ptr().wrapping_sub(split * self.stride),
            split,
            stride: self.stride,
            at_lines: self.at_lines(),
        }
    }
}

/// [`Sources`] as two addresses, between which a conditional move chooses; as one unless `TWO`.
pub(crate) struct Bases<T, const TWO: bool> {
    own: *const T,
    ghosts: *const T,
    split: usize,
    stride: usize,
    /// Whether every row begins where a cache line does.
    pub(crate) at_lines: bool,
}

impl<T, const TWO: bool> Bases<T, TWO> {
    /// Where row `index` begins, or would.
    #[inline(always)]
    pub(crate) fn row(&self, index: u32) -> *const T {
        let index = index as usize;
        let base = if !TWO || index < self.split { self.own } else { self.ghosts };
        base.wrapping_add(index * self.stride)
    }
}
