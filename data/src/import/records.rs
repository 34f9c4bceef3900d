//! Splits lines into fields: at runs of whitespace, or at a delimiter with quotes.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;

use super::input::Lines;
use crate::error::{Error, Result};
use crate::format::plural;
use crate::progress::Progress;

/// Remedy for an empty field that must have a number.
pub(super) const FILL_IN: &str = "fill in a number, or remove the line";

/// Delimiter of fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delimiter {
    /// One or more spaces or tabs.
    Blanks,
    /// This character. Fields may be in double quotes, and may then contain it.
    Char(u8),
}

impl FromStr for Delimiter {
    type Err = String;

    /// `blanks`, `tab`, `comma`, `semicolon`, `pipe`, or the character itself.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "blanks" | "blank" | "space" | " " => Ok(Self::Blanks),
            "tab" | "\\t" => Ok(Self::Char(b'\t')),
            "comma" => Ok(Self::Char(b',')),
            "semicolon" => Ok(Self::Char(b';')),
            "pipe" => Ok(Self::Char(b'|')),
            _ => match text.as_bytes() {
                &[byte] if byte.is_ascii() && !byte.is_ascii_alphanumeric() && byte != b'"' => Ok(Self::Char(byte)),
                _ => Err("must be blanks, tab, comma, semicolon, pipe, or one other character".into()),
            },
        }
    }
}

impl fmt::Display for Delimiter {
    /// The words of [`FromStr`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blanks => f.write_str("blanks"),
            Self::Char(b'\t') => f.write_str("tab"),
            Self::Char(b',') => f.write_str("comma"),
            Self::Char(b';') => f.write_str("semicolon"),
            Self::Char(b'|') => f.write_str("pipe"),
            Self::Char(other) => write!(f, "{}", char::from(*other)),
        }
    }
}

/// The records of a text file: its lines without empty ones and comments (`#` or `%` at the start).
pub(super) struct Records<'a> {
    lines: Lines<'a>,
    delimiter: Delimiter,
    /// The text that `fields` points into: the line, with quotes removed.
    text: Vec<u8>,
    fields: Vec<Range<usize>>,
    /// Names of the columns, for errors; none without a header.
    pub(super) names: Vec<String>,
    /// Numbers of skipped lines.
    pub(super) comment_lines: u64,
    pub(super) empty_lines: u64,
}

impl<'a> Records<'a> {
    pub(super) fn open(path: &Path, delimiter: Delimiter, progress: Option<&'a dyn Progress>) -> Result<Self> {
        let lines = Lines::open(path, progress)?;
        let (text, fields, names) = Default::default();
        Ok(Self { lines, delimiter, text, fields, names, comment_lines: 0, empty_lines: 0 })
    }

    /// Goes to the next record; `false` at the end.
    pub(super) fn advance(&mut self) -> Result<bool> {
        loop {
            if !self.lines.advance()? {
                return Ok(false);
            }
            let line = self.lines.line();
            if !is_comment(line) {
                self.split()?;
                return Ok(true);
            }
            match line.trim_ascii().is_empty() {
                true => self.empty_lines += 1,
                false => self.comment_lines += 1,
            }
        }
    }

    fn split(&mut self) -> Result<()> {
        self.fields.clear();
        self.text.clear();
        let Delimiter::Char(delimiter) = self.delimiter else {
            self.text.extend_from_slice(self.lines.line());
            let mut start = None;
            for (i, byte) in self.text.iter().enumerate() {
                match (byte.is_ascii_whitespace(), start) {
                    (false, None) => start = Some(i),
                    (true, Some(from)) => {
                        self.fields.push(from..i);
                        start = None;
                    }
                    _ => {}
                }
            }
            self.fields.extend(start.map(|from| from..self.text.len()));
            return Ok(());
        };
        if !self.lines.line().contains(&b'"') {
            self.text.extend_from_slice(self.lines.line());
            let mut start = 0;
            for (i, _) in self.text.iter().enumerate().filter(|&(_, &byte)| byte == delimiter) {
                self.fields.push(start..i);
                start = i + 1;
            }
            self.fields.push(start..self.text.len());
            return Ok(());
        }
        self.split_quoted(delimiter)
    }

    /// Splits as in RFC 4180: a quoted field may contain delimiters, line breaks and doubled quotes.
    fn split_quoted(&mut self, delimiter: u8) -> Result<()> {
        let begun = self.lines.number();
        let (mut at, mut start) = (0, 0);
        let mut quoted = false;
        loop {
            let line = self.lines.line();
            match (line.get(at), quoted) {
                (Some(b'"'), true) if line.get(at + 1) == Some(&b'"') => {
                    self.text.push(b'"');
                    at += 1;
                }
                (Some(b'"'), true) => quoted = false,
                (Some(b'"'), false) if self.text.len() == start => quoted = true,
                (Some(&byte), false) if byte == delimiter => {
                    self.fields.push(start..self.text.len());
                    start = self.text.len();
                }
                (Some(&byte), _) => self.text.push(byte),
                (None, true) => {
                    self.text.push(b'\n');
                    if !self.lines.append()? {
                        let reason = "a quote that is not closed before the end of the file".into();
                        return Err(Error::Line { path: self.lines.path().into(), line: begun, reason });
                    }
                    continue;
                }
                (None, false) => {
                    self.fields.push(start..self.text.len());
                    return Ok(());
                }
            }
            at += 1;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.fields.len()
    }

    /// Returns field `i` without surrounding whitespace, or `None` if there are fewer fields.
    #[inline]
    pub(super) fn get(&self, i: usize) -> Option<&[u8]> {
        self.fields.get(i).map(|field| self.text[field.clone()].trim_ascii())
    }

    /// Returns field `i` as text.
    pub(super) fn text(&self, i: usize) -> Result<&str> {
        let field = self.needed(i)?;
        std::str::from_utf8(field).map_err(|_| self.wrong(format!("field {} is not UTF-8 text", i + 1)))
    }

    /// Returns field `i` as an integer.
    #[inline]
    pub(super) fn int(&self, i: usize, what: &str) -> Result<i64> {
        let field = self.needed(i)?;
        int(field).ok_or_else(|| self.wrong(format!("{what} {} is not an integer", show(field))))
    }

    /// Returns field `i` as a finite number.
    #[inline]
    pub(super) fn float(&self, i: usize, what: &str) -> Result<f32> {
        let field = self.needed(i)?;
        let wrong = || match field {
            [] => self.empty(i, what, FILL_IN),
            _ => self.wrong(format!("{what} {} is not a number", show(field))),
        };
        let value = float(field).ok_or_else(wrong)?;
        match value.is_finite() {
            true => Ok(value),
            false => {
                Err(self.wrong(format!("{what} {} is not a finite number; fill in or drop such rows", show(field))))
            }
        }
    }

    #[inline]
    fn needed(&self, i: usize) -> Result<&[u8]> {
        self.get(i).ok_or_else(|| {
            let hint = if self.len() == 1 { "; is the delimiter right (--delimiter)?" } else { "" };
            self.wrong(format!("{}, but field {} is needed{hint}", plural(self.len(), "field"), i + 1))
        })
    }

    /// Returns the error that field `i` is empty, with a remedy.
    pub(super) fn empty(&self, i: usize, what: &str, remedy: &str) -> Error {
        let name = self.names.get(i).map_or_else(|| (i + 1).to_string(), |name| show(name.as_bytes()));
        self.wrong(format!("the {what} in column {name} is empty; {remedy}"))
    }

    pub(super) fn path(&self) -> &Path {
        self.lines.path()
    }

    pub(super) fn wrong(&self, reason: impl Into<String>) -> Error {
        self.lines.wrong(reason)
    }
}

/// Whether a line has no record.
pub(super) fn is_comment(line: &[u8]) -> bool {
    matches!(line.trim_ascii_start().first(), None | Some(b'#' | b'%'))
}

/// Returns a field for an error message.
pub(super) fn show(field: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(field).chars().take(40).collect();
    format!("{text:?}")
}

/// Parses all of `field` as a decimal integer.
#[inline]
pub(super) fn int(field: &[u8]) -> Option<i64> {
    let (negative, digits) = match field {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, field),
    };
    if digits.is_empty() {
        return None;
    }
    let mut value: i64 = 0;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        // Accumulates negative values, because their range is larger by one.
        value = value.checked_mul(10)?.checked_sub(i64::from(digit))?;
    }
    if negative { Some(value) } else { value.checked_neg() }
}

/// Parses all of `field` as a decimal number, NaN and infinities included.
#[inline]
pub(super) fn float(field: &[u8]) -> Option<f32> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Parses a class: an integer, also in the form `3.0`. Empty fields and NaN give −1, that is, no class.
pub(super) fn class(field: &[u8]) -> Option<i64> {
    if field.is_empty() {
        return Some(-1);
    }
    int(field).or_else(|| match float(field)? {
        value if value.is_nan() => Some(-1),
        value if value.fract() == 0.0 && value.abs() < 1e7 => Some(value as i64),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str, delimiter: Delimiter) -> Result<Vec<Vec<String>>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, text).unwrap();
        let mut records = Records::open(&path, delimiter, None)?;
        let mut rows = Vec::new();
        while records.advance()? {
            rows.push((0..records.len()).map(|i| records.text(i).unwrap().to_string()).collect());
        }
        Ok(rows)
    }

    #[test]
    fn fields_split_at_blanks_or_delimiters() {
        let blanks = all("# c\n 1\t 2 \r\n\n% d\n3 4 5", Delimiter::Blanks).unwrap();
        assert_eq!(blanks, [vec!["1", "2"], vec!["3", "4", "5"]]);
        let commas = all("a,,c\n\"x,y\",\"say \"\"so\"\"\",\n\"two\nlines\",1\n", Delimiter::Char(b',')).unwrap();
        assert_eq!(commas, [vec!["a", "", "c"], vec!["x,y", "say \"so\"", ""], vec!["two\nlines", "1"]]);
        let open = all("a,b\n\"x,y\n1,2\n", Delimiter::Char(b',')).unwrap_err();
        assert!(open.to_string().ends_with("f:2: a quote that is not closed before the end of the file"), "{open}");
    }

    #[test]
    fn integers_parse_as_in_the_standard_library() {
        for text in [
            "0",
            "-0",
            "+7",
            "12a",
            "",
            "-",
            "9223372036854775807",
            "9223372036854775808",
            "-9223372036854775808",
            "1.0",
        ] {
            assert_eq!(int(text.as_bytes()), text.parse().ok(), "{text}");
        }
    }
}
