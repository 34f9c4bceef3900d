//! Properties of a text file that its first lines show: delimiter, header, columns, and metadata in comments.

use std::path::{Path, PathBuf};

use super::TextOptions;
use super::header::{Expected, FirstLine, first_line};
use super::input::Lines;
use super::records::{Delimiter, Records, int, is_comment, show};
use crate::dataset::IdKind;
use crate::error::{Error, Result, closest};
use crate::format::plural;

const SAMPLE: usize = 1000;

#[derive(Debug)]
pub(super) struct Sample {
    pub(super) path: PathBuf,
    pub(super) delimiter: Delimiter,
    /// Names of the columns, if the first record has them.
    pub(super) header: Option<Vec<String>>,
    /// Fields of the first records, without the header.
    pub(super) rows: Vec<Vec<String>>,
    pub(super) width: usize,
    /// Metadata in comments: whether edges are undirected, and the numbers of nodes and edges.
    pub(super) undirected: Option<bool>,
    pub(super) counts: Option<(u64, u64)>,
    /// Whether the file is in MatrixMarket format. Its first record has the sizes.
    pub(super) matrix_market: bool,
    /// A note about a first line that was understood by a guess.
    pub(super) guess: Option<String>,
}

impl Sample {
    /// Reads a sample of a file. The expected columns show whether the file has a header.
    ///
    /// # Errors
    /// When the file cannot be read, or it is not clear whether it has a header.
    pub(super) fn take(path: &Path, options: &TextOptions, expected: Expected<'_>) -> Result<Self> {
        let mut sample = Self {
            path: path.into(),
            delimiter: Delimiter::Blanks,
            header: None,
            rows: Vec::new(),
            width: 0,
            undirected: None,
            counts: None,
            matrix_market: false,
            guess: None,
        };
        let first = sample.comments(path)?;
        let Some(first) = first else { return Ok(sample) };
        sample.delimiter = options.delimiter.unwrap_or_else(|| guess_delimiter(path, &first));
        let mut records = Records::open(path, sample.delimiter, None)?;
        while sample.rows.len() < SAMPLE && records.advance()? {
            let field = |i| String::from_utf8_lossy(records.get(i).unwrap_or_default()).into_owned();
            sample.rows.push((0..records.len()).map(field).collect());
        }
        if sample.matrix_market && !sample.rows.is_empty() {
            sample.rows.remove(0);
        }
        if sample.has_header(options.header, expected)? && !sample.rows.is_empty() {
            sample.header = Some(sample.rows.remove(0));
        }
        sample.width = sample.header.as_ref().or(sample.rows.first()).map_or(0, Vec::len);
        Ok(sample)
    }

    /// Reads the comments before the first record. Returns the line of that record.
    fn comments(&mut self, path: &Path) -> Result<Option<Vec<u8>>> {
        let mut lines = Lines::open(path, None)?;
        while lines.advance()? {
            if !is_comment(lines.line()) {
                return Ok(Some(lines.line().to_vec()));
            }
            let text = String::from_utf8_lossy(lines.line()).to_lowercase();
            let words: Vec<&str> =
                text.split(|c: char| c.is_whitespace() || c == ':').filter(|w| !w.is_empty()).collect();
            if let Some(kind) = text.strip_prefix("%%matrixmarket") {
                if !kind.contains("coordinate") {
                    return Err(lines.wrong("a dense MatrixMarket file; use a sparse one (coordinate)"));
                }
                self.matrix_market = true;
                self.undirected = Some(kind.contains("symmetric"));
            } else if text.contains("undirected graph") || words.starts_with(&["%", "sym"]) {
                self.undirected = self.undirected.or(Some(true));
            } else if text.contains("directed graph") || words.starts_with(&["%", "asym"]) {
                self.undirected = self.undirected.or(Some(false));
            }
            let after = |word: &str| {
                let at = words.iter().position(|other| *other == word)?;
                words.get(at + 1)?.parse().ok()
            };
            self.counts = self.counts.or_else(|| after("nodes").zip(after("edges")));
        }
        Ok(None)
    }

    /// Returns whether the first record has column names. A guess that may be wrong becomes a note.
    fn has_header(&mut self, wanted: Option<bool>, expected: Expected<'_>) -> Result<bool> {
        if self.matrix_market {
            return Ok(false);
        }
        if let Some(wanted) = wanted {
            return Ok(wanted);
        }
        let blanks = self.delimiter == Delimiter::Blanks;
        let line = first_line(&self.rows, &Expected { blanks, ..expected });
        let path = self.path.display();
        let shown: Vec<String> = self.rows.iter().take(1).flatten().map(|field| show(field.as_bytes())).collect();
        let shown = shown.join(", ");
        self.guess = match line {
            FirstLine::Unknown => {
                let reason =
                    format!("the first line may have column names or data: {shown}; use --header yes or --header no");
                return Err(Error::File { path: self.path.clone(), reason });
            }
            FirstLine::Names { certain: false } => {
                Some(format!("{path}: the first line is read as column names: {shown} (--header no if it is data)"))
            }
            FirstLine::Data { certain: false } => {
                Some(format!("{path}: the first line is read as data: {shown} (--header yes if it has column names)"))
            }
            FirstLine::Names { .. } | FirstLine::Data { .. } => None,
        };
        Ok(matches!(line, FirstLine::Names { .. }))
    }

    /// Returns the column that the user names.
    pub(super) fn column(&self, wanted: &str) -> Result<usize> {
        if let Some(header) = &self.header
            && let Some(at) = header.iter().position(|name| name == wanted)
        {
            return Ok(at);
        }
        if let Ok(number) = wanted.parse::<usize>()
            && (1..=self.width).contains(&number)
        {
            return Ok(number - 1);
        }
        let reason = match &self.header {
            Some(header) => {
                let near = closest(wanted, header.iter().map(String::as_str));
                let near = near.map(|near| format!("did you mean \"{near}\"? ")).unwrap_or_default();
                format!("no column \"{wanted}\"; {near}it has \"{}\"", header.join("\", \""))
            }
            None => format!(
                "no column \"{wanted}\": the first line has no column names (--header yes if it does); use a number from 1 to {}",
                self.width
            ),
        };
        Err(Error::File { path: self.path.clone(), reason })
    }

    /// Returns the column that the user names, or one with a usual name, or `else_`.
    pub(super) fn find(&self, wanted: Option<&String>, usual: &[&str], else_: Option<usize>) -> Result<Option<usize>> {
        if let Some(wanted) = wanted {
            return self.column(wanted).map(Some);
        }
        let header = self.header.iter().flatten().map(|name| name.to_lowercase());
        let named = header.enumerate().find(|(_, name)| usual.contains(&name.as_str())).map(|(at, _)| at);
        let found = named.or(else_);
        match found {
            Some(at) if at >= self.width && self.width > 0 => {
                let reason = format!(
                    "{} in its first line, but at least {} are needed; is the delimiter right (--delimiter)?",
                    plural(self.width, "field"),
                    at + 1
                );
                Err(Error::File { path: self.path.clone(), reason })
            }
            found => Ok(found),
        }
    }

    /// Returns the columns of a list of names, numbers and ranges.
    pub(super) fn columns(&self, wanted: &[String]) -> Result<Vec<usize>> {
        let mut all = Vec::new();
        for item in wanted {
            match item.split_once("..") {
                Some((from, to)) => {
                    let last = if to.is_empty() { self.width.saturating_sub(1) } else { self.column(to)? };
                    let first = self.column(from)?;
                    if first > last {
                        let reason = format!("columns {item}: the first comes after the last");
                        return Err(Error::File { path: self.path.clone(), reason });
                    }
                    all.extend(first..=last);
                }
                None => all.push(self.column(item)?),
            }
        }
        Ok(all)
    }

    /// Returns whether the ids in a column are integers, from the first id only. A later id that is not an integer is
    /// then an error, which the user sees.
    pub(super) fn id_kind(&self, column: usize) -> IdKind {
        match self.values(column).find(|id| !id.is_empty()).is_none_or(|id| int(id.as_bytes()).is_some()) {
            true => IdKind::Int,
            false => IdKind::Text,
        }
    }

    /// Returns the values of a column in the sample.
    pub(super) fn values(&self, column: usize) -> impl Iterator<Item = &str> {
        self.rows.iter().filter_map(move |row| row.get(column)).map(String::as_str)
    }

    /// Returns the name of a column, or its number from 1 if there is no header.
    pub(super) fn name(&self, column: usize) -> String {
        let name = self.header.as_ref().and_then(|header| header.get(column)).cloned();
        name.unwrap_or_else(|| (column + 1).to_string())
    }

    /// Returns the names of the columns that are not among `used`.
    pub(super) fn others(&self, used: &[usize]) -> Vec<String> {
        (0..self.width).filter(|column| !used.contains(column)).map(|column| self.name(column)).collect()
    }

    /// Number of records before the first row.
    pub(super) fn preamble(&self) -> usize {
        usize::from(self.header.is_some()) + usize::from(self.matrix_market)
    }
}

/// Guesses the delimiter from the file name and the first line.
fn guess_delimiter(path: &Path, line: &[u8]) -> Delimiter {
    let name = path.to_string_lossy().to_lowercase();
    let name = name.trim_end_matches(".gz").trim_end_matches(".zst");
    let has = |byte: u8| line.contains(&byte);
    let named = if name.ends_with(".tsv") || name.ends_with(".tab") { b'\t' } else { b',' };
    match [named, b',', b';', b'|'].into_iter().find(|&byte| has(byte)) {
        Some(byte) => Delimiter::Char(byte),
        None if name.ends_with(".csv") && has(b'\t') => Delimiter::Char(b'\t'),
        None if name.ends_with(".csv") && !has(b' ') => Delimiter::Char(b','),
        None => Delimiter::Blanks,
    }
}
