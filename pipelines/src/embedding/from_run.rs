//! Learned rows of a finished run, from its `node_embeddings.parquet`.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Float32Type, Int64Type};
use gnnflow_data::dataset::IdColumn;
use gnnflow_data::format::counted;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::NodeEmbeddings;
use crate::error::Error;

/// What happens to a node that has no row in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// The file is refused.
    Refuse,
    /// The node keeps the row that it has.
    Keep,
}

/// Nodes without a row yet: their global ids, by the user's ids.
#[derive(Default)]
struct Waiting<'a> {
    ints: HashMap<i64, u32>,
    texts: HashMap<&'a str, u32>,
}

impl<'a> Waiting<'a> {
    fn add(&mut self, first: u32, ids: IdColumn<'a>) {
        match ids {
            IdColumn::Int(ids) => self.ints.extend(ids.iter().copied().zip(first..)),
            IdColumn::Text(ids) => self.texts.extend((0..ids.len()).map(|row| ids.value(row)).zip(first..)),
        }
    }

    /// Takes the node of each row of a batch that waits for one. `None` if the batch has ids of another kind.
    fn take(&mut self, ids: &dyn Array) -> Option<Vec<(usize, u32)>> {
        if let Some(ids) = ids.as_primitive_opt::<Int64Type>().filter(|_| self.texts.is_empty()) {
            return Some(
                ids.values().iter().enumerate().filter_map(|(row, id)| Some((row, self.ints.remove(id)?))).collect(),
            );
        }
        let ids = ids.as_string_opt::<i64>().filter(|_| self.ints.is_empty())?;
        Some((0..ids.len()).filter_map(|row| Some((row, self.texts.remove(ids.value(row))?))).collect())
    }

    /// Returns the nodes that still wait, ascending, and the smallest of their ids.
    fn left(&self) -> (Vec<u32>, String) {
        let int = self.ints.keys().min().map(ToString::to_string);
        let text = self.texts.keys().min().map(|id| format!("{id:?}"));
        let mut nodes: Vec<u32> = self.ints.values().chain(self.texts.values()).copied().collect();
        nodes.sort_unstable();
        (nodes, int.or(text).unwrap_or_default())
    }
}

impl NodeEmbeddings {
    /// Sets the rows of nodes from the file `path` of a run, by the user's ids. Returns the nodes without a row there, ascending. `nodes` has the first global id and the ids of each partition hosted here.
    ///
    /// # Errors
    /// [`Error::Input`] if the file is no output of such a run, or a node has no row and `unknown` refuses that; [`Error::Bug`] if the rows are open.
    pub(crate) fn read_from_run<'a>(
        &self,
        path: &Path,
        nodes: impl Iterator<Item = (u32, IdColumn<'a>)>,
        unknown: Unknown,
    ) -> Result<Vec<u32>, Error> {
        let mut waiting = Waiting::default();
        nodes.for_each(|(first, ids)| waiting.add(first, ids));
        let refuse = |message: &str| Error::Input(format!("{}: {message}", path.display()));
        let file = File::open(path).map_err(Error::io("read", path))?;
        let damaged = |error: &dyn std::fmt::Display| refuse(&format!("is damaged: {error}; restore it from a copy"));
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).and_then(|reader| reader.build());
        let mut rows = self.table.rows().write()?;
        for batch in reader.map_err(|error| damaged(&error))? {
            let batch = batch.map_err(|error| damaged(&error))?;
            let taken = self.rows_of(&batch).and_then(|(ids, values)| Some((waiting.take(ids)?, values)));
            let Some((taken, values)) = taken else {
                let message = format!(
                    "has no rows of {} numbers with ids of the type of the dataset's; use a dataset with the same node ids, and the pipeline.toml of \
                     this run",
                    self.dim()
                );
                return Err(refuse(&message));
            };
            for (row, node) in taken {
                rows.set(&[node], &values[row * self.dim()..(row + 1) * self.dim()]);
            }
        }
        match waiting.left() {
            (nodes, _) if nodes.is_empty() || unknown == Unknown::Keep => Ok(nodes),
            (nodes, first) => {
                let nodes = counted(nodes.len() as u64, "node");
                Err(refuse(&format!(
                    "has no learned row for {nodes} of the dataset, such as {first}; train a model on this dataset, or choose rows for them with \
                     `gnnflow infer --unseen mean` or `zero`"
                )))
            }
        }
    }

    /// Returns the ids and the values of a batch; `None` if it has other columns.
    fn rows_of<'a>(&self, batch: &'a RecordBatch) -> Option<(&'a dyn Array, &'a [f32])> {
        let lists = batch.column_by_name("embedding")?.as_fixed_size_list_opt()?;
        let values = lists.values().as_primitive_opt::<Float32Type>()?;
        let width = lists.value_length() as usize;
        (width == self.dim()).then_some((batch.column_by_name("node_id")?, &values.values()[lists.offset() * width..]))
    }
}
