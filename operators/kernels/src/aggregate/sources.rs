//! Rows of sources at a fixed distance.

/// Source rows: row `s` starts at `s · stride`.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a, T> {
    rows: &'a [T],
    stride: usize,
}

impl<'a, T> Sources<'a, T> {
    /// Rows at a distance of `stride` numbers. To omit the first columns of rows, start the slice after them.
    ///
    /// ```
    /// use gnnflow_kernels::aggregate::Sources;
    ///
    /// let sources = Sources::new(&[1, 2, 3, 4], 2);
    /// assert_eq!((sources.len(), sources.row(1, 2)), (2, &[3, 4][..]));
    /// ```
    ///
    /// # Panics
    /// If `stride` is 0.
    pub fn new(rows: &'a [T], stride: usize) -> Self {
        assert!(stride > 0, "the stride is positive");
        Self { rows, stride }
    }

    /// Returns the number of rows; the last row may end after its last column.
    pub fn len(&self) -> usize {
        self.rows.len().div_ceil(self.stride)
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the first `columns` numbers of row `index`.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline(always)]
    pub fn row(&self, index: usize, columns: usize) -> &'a [T] {
        &self.rows[index * self.stride..][..columns]
    }

    /// Panics unless every row has `columns` numbers.
    pub(crate) fn check(&self, columns: usize) {
        let last = self.len().saturating_sub(1) * self.stride;
        let complete = self.is_empty() || columns <= self.stride && last + columns <= self.rows.len();
        assert!(complete, "every row has {columns} columns");
    }

    /// Returns the addresses, for loops without bounds checks.
    #[inline(always)]
    pub(crate) fn base(&self) -> Base<T> {
        let at_line = |at: usize| at.is_multiple_of(64);
        let at_lines = at_line(self.rows.as_ptr() as usize) && at_line(self.stride * size_of::<T>());
        Base { rows: self.rows.as_ptr(), stride: self.stride, at_lines: at_lines || self.is_empty() }
    }
}

/// [`Sources`] as an address.
pub(crate) struct Base<T> {
    rows: *const T,
    stride: usize,
    /// Whether every row starts at a cache line.
    pub(crate) at_lines: bool,
}

impl<T> Base<T> {
    /// Returns the address of row `index`, even if there is no such row.
    #[inline(always)]
    pub(crate) fn row(&self, index: u32) -> *const T {
        self.rows.wrapping_add(index as usize * self.stride)
    }
}
