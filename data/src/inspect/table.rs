//! Tables of Parquet files: facts from their footers, and a streaming reader of some columns.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Schema};
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::file::statistics::Statistics;
use serde::Serialize;
use serde_json::Value;

use crate::dump::{DumpFile, Files};
use crate::error::{Error, Result};
use crate::generate::RECIPE_KEY;
use crate::progress::Progress;

/// Keys in the footers for the origin of a dump, and the names of these origins.
const ORIGINS: [(&str, &str); 2] = [(crate::import::NOTE_KEY, "import"), (crate::export::NOTE_KEY, "export")];
/// The role of the files in errors.
const ROLE: &str = "inspect";
/// Rows per record batch.
const ROWS: usize = 1 << 14;

/// A table in one or more Parquet files.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// Name of the file or folder.
    pub name: String,
    /// Number of files.
    pub files: usize,
    /// Rows in all files.
    pub rows: u64,
    /// Row groups in all files.
    pub row_groups: u64,
    /// Rows of the largest row group.
    pub largest_row_group: u64,
    /// Size of all files.
    pub bytes: u64,
    /// The columns of the first file.
    pub columns: Vec<Column>,
    /// The program that wrote the first file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
    /// Generator and settings, if `gnnflow generate` made the table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recipe: Option<Value>,
    /// `import` or `export` and the origin, if `gnnflow import` or `gnnflow export` made the table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub made_by: Option<(String, Value)>,
    #[serde(skip)]
    sources: Vec<DumpFile>,
}

/// A column, over all files of its table.
#[derive(Clone, Debug, Serialize)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its Arrow type.
    #[serde(rename = "type")]
    pub data_type: String,
    /// Values per row, for lists of fixed size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<usize>,
    /// Number of nulls, if the statistics of all row groups have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nulls: Option<u64>,
    /// Smallest value of integers, floats and text, if the statistics of all row groups have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<Value>,
    /// Largest value, in the same way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<Value>,
    /// Compressed size in bytes.
    pub bytes: u64,
    #[serde(skip)]
    pub(crate) arrow_type: DataType,
}

impl Table {
    /// Reads the footers of `files`, which must not be empty. `role` is their setting, for errors.
    pub(crate) fn read(
        name: String,
        files: Vec<DumpFile>,
        role: &'static str,
        notes: &mut Vec<String>,
    ) -> Result<Self> {
        let mut table: Option<(Self, Arc<Schema>)> = None;
        for (file, footer) in files.iter().zip(DumpFile::metadata(&files, role)?) {
            let (path, bytes) = (file.path(), file.bytes()?);
            let schema = footer.schema().clone();
            let metadata = footer.metadata();
            let (table, first) = table.get_or_insert_with(|| (Self::empty(&name, &files, &footer), schema.clone()));
            if !same_columns(first, &schema) {
                notes.push(format!(
                    "{}: its columns differ from those of {}",
                    path.display(),
                    files[0].path().display()
                ));
            }
            table.rows = table.rows.saturating_add(metadata.file_metadata().num_rows() as u64);
            table.row_groups += metadata.num_row_groups() as u64;
            table.bytes += bytes;
            for group in metadata.row_groups() {
                table.largest_row_group = table.largest_row_group.max(group.num_rows() as u64);
                for column in &mut table.columns {
                    let leaves = group.columns().iter();
                    let mut leaves = leaves.filter(|leaf| leaf.column_path().parts().first() == Some(&column.name));
                    let first = leaves.next();
                    column.bytes +=
                        first.into_iter().chain(leaves).map(|leaf| leaf.compressed_size() as u64).sum::<u64>();
                    column.merge(first.and_then(|leaf| leaf.statistics()));
                }
            }
        }
        let (mut table, _) = table.ok_or_else(|| Error::Bug(format!("{name}: a table without files")))?;
        if table.row_groups == 0 {
            table.columns.iter_mut().for_each(|column| column.nulls = Some(0));
        }
        Ok(table)
    }

    fn empty(name: &str, files: &[DumpFile], footer: &ArrowReaderMetadata) -> Self {
        let meta = footer.metadata().file_metadata();
        let value = |key: &str| -> Option<Value> {
            let pair = meta.key_value_metadata()?.iter().find(|pair| pair.key == key)?;
            serde_json::from_str(pair.value.as_deref()?).ok()
        };
        let made_by = ORIGINS.iter().find_map(|&(key, name)| Some((name.to_owned(), value(key)?)));
        Self {
            name: name.to_owned(),
            files: files.len(),
            rows: 0,
            row_groups: 0,
            largest_row_group: 0,
            bytes: 0,
            columns: footer.schema().fields().iter().map(|f| Column::empty(f.name(), f.data_type())).collect(),
            created_by: meta.created_by().map(str::to_owned),
            recipe: value(RECIPE_KEY),
            made_by,
            sources: files.to_vec(),
        }
    }

    /// Returns the column with this name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// Returns the first rows, at most `rows`, of the first file with rows; `None` if there are none.
    pub(crate) fn first(&self, rows: usize) -> Result<Option<RecordBatch>> {
        let columns: Vec<&str> = self.columns.iter().map(|column| column.name.as_str()).collect();
        let chunk = Files::open(&self.sources, ROLE)?.first(&columns, rows)?;
        Ok(chunk.map(|chunk| chunk.into_batch()))
    }

    /// Passes some columns of all files to `visit`, in the order of the files.
    pub(super) fn scan(
        &self,
        columns: &[&str],
        progress: &dyn Progress,
        mut visit: impl FnMut(&RecordBatch) -> Result<()>,
    ) -> Result<()> {
        progress.stage(&format!("read {} of {}", columns.join(", "), self.name), Some(self.rows), "rows");
        let files = Files::open(&self.sources, ROLE)?;
        for column in columns {
            files.column_type(column, ROLE, |_| Ok(()))?;
        }
        files.scan(
            columns,
            ROWS,
            |chunk| Ok(chunk.into_batch()),
            |batch| {
                visit(&batch)?;
                progress.advance(batch.num_rows() as u64);
                Ok(())
            },
        )?;
        progress.done();
        Ok(())
    }
}

impl Column {
    fn empty(name: &str, data_type: &DataType) -> Self {
        let width = match data_type {
            DataType::FixedSizeList(_, width) => usize::try_from(*width).ok(),
            _ => None,
        };
        let (nulls, min, max) = (Some(0), Some(Value::Null), Some(Value::Null));
        let (name, data_type, arrow_type) = (name.to_owned(), describe(data_type), data_type.clone());
        Self { name, data_type, width, nulls, min, max, bytes: 0, arrow_type }
    }

    /// Adds the statistics of one row group. A value that is missing there becomes unknown for the column.
    fn merge(&mut self, statistics: Option<&Statistics>) {
        let nested = self.arrow_type.is_nested();
        let statistics = statistics.filter(|_| !nested);
        let nulls = statistics.and_then(Statistics::null_count_opt);
        self.nulls = self.nulls.zip(nulls).map(|(sum, nulls)| sum + nulls);
        let (low, high) = statistics.map_or((None, None), |s| bounds(s, &self.arrow_type));
        let extend = |known: Option<Value>, new: Option<Value>, smaller: bool| match (known?, new?) {
            (Value::Null, new) => Some(new),
            (known, new) => Some(if is_below(&new, &known) == smaller { new } else { known }),
        };
        self.min = extend(self.min.take(), low, true);
        self.max = extend(self.max.take(), high, false);
    }

    /// Returns the smallest and the largest value of an integer column.
    pub(crate) fn integer_range(&self) -> Option<(i64, i64)> {
        Some((self.min.as_ref()?.as_i64()?, self.max.as_ref()?.as_i64()?))
    }
}

fn is_below(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::String(a), Value::String(b)) => a < b,
        _ => match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => a < b,
            _ => a.as_f64() < b.as_f64(),
        },
    }
}

/// Returns bounds as JSON values. Statistics store unsigned values as signed ones of equal bits.
fn bounds(statistics: &Statistics, data_type: &DataType) -> (Option<Value>, Option<Value>) {
    let integers = |low: Option<i64>, high: Option<i64>| (low.map(Value::from), high.map(Value::from));
    let text = |bytes: Option<&[u8]>| bytes.and_then(|b| std::str::from_utf8(b).ok()).map(Value::from);
    match (statistics, data_type) {
        (Statistics::Int32(s), DataType::UInt32) => {
            let unsigned = |x: Option<&i32>| x.map(|&x| i64::from(x as u32));
            integers(unsigned(s.min_opt()), unsigned(s.max_opt()))
        }
        (Statistics::Int64(s), DataType::UInt64) => {
            let unsigned = |x: Option<&i64>| x.map(|&x| Value::from(x as u64));
            (unsigned(s.min_opt()), unsigned(s.max_opt()))
        }
        (Statistics::Int32(s), t) if t.is_integer() => {
            integers(s.min_opt().map(|&x| x.into()), s.max_opt().map(|&x| x.into()))
        }
        (Statistics::Int64(s), t) if t.is_integer() => integers(s.min_opt().copied(), s.max_opt().copied()),
        (Statistics::Float(s), _) => (s.min_opt().map(|&x| x.into()), s.max_opt().map(|&x| x.into())),
        (Statistics::Double(s), _) => (s.min_opt().map(|&x| x.into()), s.max_opt().map(|&x| x.into())),
        (s @ Statistics::ByteArray(_), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View) => {
            (text(s.min_bytes_opt()), text(s.max_bytes_opt()))
        }
        _ => (None, None),
    }
}

fn describe(data_type: &DataType) -> String {
    match data_type {
        DataType::FixedSizeList(item, width) => format!("FixedSizeList<{}>[{width}]", describe(item.data_type())),
        DataType::List(item) => format!("List<{}>", describe(item.data_type())),
        DataType::LargeList(item) => format!("LargeList<{}>", describe(item.data_type())),
        other => other.to_string(),
    }
}

fn same_columns(a: &Schema, b: &Schema) -> bool {
    let plain = |s: &Schema| s.fields().iter().map(|f| (f.name().clone(), describe(f.data_type()))).collect::<Vec<_>>();
    plain(a) == plain(b)
}
