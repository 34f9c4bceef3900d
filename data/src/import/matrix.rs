//! Features: rows of numbers from an array, a sparse matrix or a text file.

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field};

use super::archive::{Npz, open_array};
use super::columns::Column;
use super::npy::{Array, WIDEST};
use super::records::Records;
use super::rows::{element, matrix};
use super::text_rows::TextRows;
use crate::error::Result;
use crate::format::plural;

/// The source of rows of numbers.
pub(super) enum Source {
    Npy(Array),
    Text(TextRows),
    /// A sparse matrix in CSR format.
    Sparse(Box<Sparse>),
    /// All values are 0.
    Zeros,
}

/// A sparse matrix in CSR format, as SciPy stores it.
pub(super) struct Sparse {
    starts: Array,
    indices: Array,
    values: Array,
    last: i64,
}

/// Rows of `width` numbers.
pub(super) struct Matrix {
    pub(super) name: &'static str,
    pub(super) width: usize,
    pub(super) source: Source,
}

impl Matrix {
    /// Opens the features in array `what`: dense, or a CSR matrix.
    pub(super) fn open(name: &'static str, what: &str, rows: u64, count_source: &str) -> Result<Self> {
        if let Some(sparse) = what.ends_with(".npz").then(|| Npz::open(what.as_ref())).transpose()?
            && sparse.has("indptr")
        {
            return Self::sparse(name, &sparse, "", rows, count_source);
        }
        Self::dense(name, open_array(what)?, rows, count_source)
    }

    pub(super) fn dense(name: &'static str, array: Array, rows: u64, count_source: &str) -> Result<Self> {
        let (found, width) = array.matrix()?;
        if found != rows {
            return Err(array.wrong(format!("has {found} rows, but {count_source} {rows}")));
        }
        if width == 0 {
            return Err(array.wrong("has rows without values; leave it out"));
        }
        Ok(Self { name, width, source: Source::Npy(array) })
    }

    /// Opens the sparse matrix whose array names begin with `prefix`.
    pub(super) fn sparse(name: &'static str, npz: &Npz, prefix: &str, rows: u64, count_source: &str) -> Result<Self> {
        let array = |name: &str| npz.array(&format!("{prefix}{name}"));
        let by_rows = !npz.has(&format!("{prefix}format")) || array("format")?.string()? == "csr";
        let shape = array("shape")?.all_ints()?;
        let &[found, width] = &shape[..] else {
            return Err(npz.fail(format!("the features have shape {shape:?}; they must be a matrix")));
        };
        if !by_rows {
            return Err(npz.fail("the features must be a CSR matrix; save tocsr() of it"));
        }
        if found as u64 != rows {
            return Err(npz.fail(format!("the features have shape {shape:?}, but {count_source} {rows}")));
        }
        if !(1..=WIDEST as i64).contains(&width) {
            return Err(npz.fail(format!(
                "the features have {width} columns; must be 1 to {WIDEST}, because they are stored densely"
            )));
        }
        let mut starts = array("indptr")?;
        if starts.len() != rows + 1 {
            return Err(starts.wrong(format!("has {} items; {} rows need {}", starts.len(), rows, rows + 1)));
        }
        let mut first = Vec::new();
        starts.ints(1, None, &mut first)?;
        if first[0] != 0 {
            return Err(starts.wrong("does not begin with 0"));
        }
        let sparse = Sparse { starts, indices: array("indices")?, values: array("data")?, last: first[0] };
        Ok(Self { name, width: width as usize, source: Source::Sparse(Box::new(sparse)) })
    }

    /// Opens a text file of rows. The first row sets the width.
    pub(super) fn text(
        name: &'static str,
        mut records: Records<'static>,
        reopen: Records<'static>,
        rows: u64,
        by: &str,
    ) -> Result<Self> {
        let width = if records.advance()? { records.len() } else { 1 };
        Ok(Self { name, width, source: Source::Text(TextRows::new(reopen, rows, by)) })
    }

    /// Returns the next `rows` rows, concatenated.
    pub(super) fn values(&mut self, rows: usize) -> Result<Vec<f32>> {
        let mut into = Vec::with_capacity(rows * self.width);
        match &mut self.source {
            Source::Npy(array) => array.floats(rows * self.width, &mut into)?,
            Source::Zeros => into.resize(rows * self.width, 0.0),
            Source::Sparse(sparse) => {
                into.resize(rows * self.width, 0.0);
                sparse.rows(rows, self.width, &mut into)?;
            }
            Source::Text(source) => {
                for _ in 0..rows {
                    let records = source.advance()?;
                    if records.len() != self.width {
                        let found = plural(records.len(), "number");
                        return Err(records.wrong(format!("{found}, but the rows before have {}", self.width)));
                    }
                    for i in 0..self.width {
                        into.push(records.float(i, "feature")?);
                    }
                }
            }
        }
        Ok(into)
    }
}

impl Column for Matrix {
    fn field(&self) -> Field {
        Field::new(self.name, DataType::FixedSizeList(element(DataType::Float32), self.width as i32), false)
    }

    fn row_bytes(&self) -> usize {
        4 * self.width
    }

    fn take(&mut self, rows: usize) -> Result<ArrayRef> {
        let values = self.values(rows)?;
        matrix(values, self.width)
    }

    fn end(&mut self) -> Result<()> {
        match &mut self.source {
            Source::Text(source) => source.end(),
            Source::Sparse(sparse) => sparse.end(),
            Source::Npy(_) | Source::Zeros => Ok(()),
        }
    }
}

impl Sparse {
    fn rows(&mut self, rows: usize, width: usize, into: &mut [f32]) -> Result<()> {
        let (mut ends, mut columns, mut values) = (Vec::new(), Vec::new(), Vec::new());
        self.starts.ints(rows, None, &mut ends)?;
        for (row, &end) in ends.iter().enumerate() {
            let some = end.checked_sub(self.last).and_then(|some| usize::try_from(some).ok());
            let some = some.ok_or_else(|| self.starts.wrong("decreases"))?;
            self.indices.ints(some, None, &mut columns)?;
            self.values.floats(some, &mut values)?;
            for (&column, &value) in columns.iter().zip(&values) {
                let column = usize::try_from(column).ok().filter(|&column| column < width);
                let column = column
                    .ok_or_else(|| self.indices.wrong(format!("has a column number that is not below {width}")))?;
                // SciPy permits duplicate entries; their sum counts.
                into[row * width + column] += value;
            }
            self.last = end;
        }
        Ok(())
    }

    /// Checks that rows have all entries.
    fn end(&self) -> Result<()> {
        match self.indices.left() {
            0 => Ok(()),
            _ => {
                let (last, entries) = (self.last, self.indices.len());
                Err(self.starts.wrong(format!("ends at {last}, but there are {entries} entries")))
            }
        }
    }
}
