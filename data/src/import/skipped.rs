//! Counts what an import of text files leaves out.

use std::collections::BTreeMap;

use serde::Serialize;

use super::EmptyIds;
use super::records::Records;
use super::text_sample::Sample;
use crate::error::Result;
use crate::format::counted;

/// What an import of text files leaves out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Lines that begin with `#` or `%`.
    pub comment_lines: u64,
    /// Lines without any character but blanks.
    pub empty_lines: u64,
    /// Lines with an empty id, with [`EmptyIds::Skip`].
    pub empty_ids: u64,
    /// The columns of each file that were not used: their names, or their numbers from 1 if the file has no header.
    pub columns: BTreeMap<String, Vec<String>>,
}

impl Skipped {
    /// Adds the lines that `records` has skipped.
    pub(super) fn add_lines(&mut self, records: &Records<'_>) {
        self.comment_lines += records.comment_lines;
        self.empty_lines += records.empty_lines;
    }

    /// Returns whether a line is skipped because one of its fields `ids` is empty.
    ///
    /// # Errors
    /// If such a line is refused.
    #[inline]
    pub(super) fn skips(&mut self, records: &Records<'_>, ids: &[usize], empty_ids: EmptyIds) -> Result<bool> {
        let is_empty = |field: &&usize| records.get(**field).is_some_and(<[u8]>::is_empty);
        let Some(field) = ids.iter().find(is_empty) else { return Ok(false) };
        if empty_ids == EmptyIds::Refuse {
            return Err(records.empty(*field, "id", "fill it in, or skip such lines with --empty-ids skip"));
        }
        self.empty_ids += 1;
        Ok(true)
    }

    /// Adds the columns of a file that are not among `used`, and returns a note about them.
    pub(super) fn add_columns(&mut self, sample: &Sample, used: &[usize]) -> Option<String> {
        let others = sample.others(used);
        let show = |name: &String| if sample.header.is_some() { format!("\"{name}\"") } else { name.clone() };
        let shown: Vec<String> = others.iter().take(8).map(show).collect();
        let more = if others.len() > 8 { format!(" and {} more", others.len() - 8) } else { String::new() };
        let path = sample.path.display().to_string();
        (!others.is_empty()).then(|| {
            let note = format!("{path}: ignored columns: {}{more}", shown.join(", "));
            self.columns.insert(path, others);
            note
        })
    }

    /// Returns a note about the skipped lines; `None` if there are none. `place` follows the first word, such as `" in the first 10
    /// rows"`; it is empty for all lines.
    pub fn note(&self, place: &str) -> Option<String> {
        let count = |number: u64, word: &str| (number > 0).then(|| counted(number, word));
        let with = |lines: String| format!("{lines} with an empty id");
        let parts = [
            count(self.comment_lines, "comment line"),
            count(self.empty_lines, "empty line"),
            count(self.empty_ids, "line").map(with),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| format!("skipped{place}: {}", parts.join(", ")))
    }
}
