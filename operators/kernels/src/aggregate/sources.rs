//! Rows of sources in one array, or in two arrays with consecutive indices.

/// Source rows: row `s` of the first array, or, past its end, of the second.
///
/// A process numbers its own rows first and the rows received from other processes (Dorylus's ghost buffer) after them.
/// No copy into one array is needed.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a, T> {
    own: &'a [T],
    ghosts: &'a [T],
    stride: usize,
}

impl<'a, T> Sources<'a, T> {
    /// Rows at a distance of `stride` numbers. To omit the first columns of rows, start the slice after them.
    ///
    /// # Panics
    /// If `stride` is 0.
    pub fn new(rows: &'a [T], stride: usize) -> Self {
        Self::with_ghosts(rows, &[], stride)
    }

    /// Rows in two arrays with one `stride`: `own`, then `ghosts`.
    ///
    /// ```
    /// use gnnflow_kernels::aggregate::Sources;
    ///
    /// let sources = Sources::with_ghosts(&[1, 2, 3, 4], &[5, 6], 2);
    /// assert_eq!((sources.len(), sources.row(1, 2), sources.row(2, 2)), (3, &[3, 4][..], &[5, 6][..]));
    /// ```
    ///
    /// # Panics
    /// If `stride` is 0.
    pub fn with_ghosts(own: &'a [T], ghosts: &'a [T], stride: usize) -> Self {
        assert!(stride > 0, "the stride is positive");
        Self { own, ghosts, stride }
    }

    /// Returns the number of rows; the last row of each array may end after its last column.
    pub fn len(&self) -> usize {
        self.split() + self.ghosts.len().div_ceil(self.stride)
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.own.is_empty() && self.ghosts.is_empty()
    }

    /// Returns the first `columns` numbers of row `index`.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline(always)]
    pub fn row(&self, index: usize, columns: usize) -> &'a [T] {
        let split = self.split();
        let (rows, index) = if index < split { (self.own, index) } else { (self.ghosts, index - split) };
        &rows[index * self.stride..][..columns]
    }

    /// Returns the number of rows of the first array.
    fn split(&self) -> usize {
        self.own.len().div_ceil(self.stride)
    }

    /// Panics unless every row has `columns` numbers.
    pub(crate) fn check(&self, columns: usize) {
        for rows in [self.own, self.ghosts] {
            let last = rows.len().div_ceil(self.stride).saturating_sub(1) * self.stride;
            let whole = rows.is_empty() || columns <= self.stride && last + columns <= rows.len();
            assert!(whole, "every row has {columns} columns");
        }
    }

    /// Returns whether all rows are in the first array.
    pub(crate) fn is_one_array(&self) -> bool {
        self.ghosts.is_empty()
    }

    /// Returns whether every row starts at a cache line.
    fn at_lines(&self) -> bool {
        let lines = |at: usize| at.is_multiple_of(64);
        let begins = [self.own, self.ghosts].into_iter().all(|rows| rows.is_empty() || lines(rows.as_ptr() as usize));
        begins && lines(self.stride * size_of::<T>())
    }

    /// Returns the addresses, for loops without bounds checks.
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

/// [`Sources`] as two addresses, chosen by a conditional move, or as one unless `TWO`.
pub(crate) struct Bases<T, const TWO: bool> {
    own: *const T,
    ghosts: *const T,
    split: usize,
    stride: usize,
    /// Whether every row starts at a cache line.
    pub(crate) at_lines: bool,
}

impl<T, const TWO: bool> Bases<T, TWO> {
    /// Returns the address of row `index`, even if there is no such row.
    #[inline(always)]
    pub(crate) fn row(&self, index: u32) -> *const T {
        let index = index as usize;
        let base = if !TWO || index < self.split { self.own } else { self.ghosts };
        base.wrapping_add(index * self.stride)
    }
}
