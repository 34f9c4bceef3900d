//! Problems of a pipeline file, with their positions.

use std::{fmt, path::PathBuf};

/// A position in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Location {
    /// The file without a line, or a default.
    File,
    /// A line of the file (1-based).
    Line(usize),
    /// `--set KEY=…` or `--vary KEY=…`.
    Set { option: &'static str, key: String },
    /// `--unset KEY`, with the key.
    Unset(String),
}

/// One problem of a pipeline file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub(crate) place: Location,
    pub(crate) key: String,
    pub(crate) message: String,
}

impl Problem {
    pub(crate) fn new(place: Location, key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { place, key: key.into(), message: message.into() }
    }

    /// Returns the line (1-based); `None` for a default or a key of the command line.
    pub fn line(&self) -> Option<usize> {
        match self.place {
            Location::Line(line) => Some(line),
            Location::File | Location::Set { .. } | Location::Unset(_) => None,
        }
    }

    /// Returns the dotted key; empty if the file is not TOML.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the message, in one line.
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// All problems of a pipeline file, in the order of the file; prints one line per problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    file: PathBuf,
    list: Vec<Problem>,
}

impl Problems {
    pub(crate) fn new(file: impl Into<PathBuf>, mut list: Vec<Problem>) -> Self {
        list.sort_by(|a, b| a.place.cmp(&b.place));
        Self { file: file.into(), list }
    }

    /// Returns the problems; at least one.
    pub fn list(&self) -> &[Problem] {
        &self.list
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.list.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            match &problem.place {
                Location::File => write!(f, "{}: ", self.file.display())?,
                Location::Line(line) => write!(f, "{}:{line}: ", self.file.display())?,
                Location::Set { option, key } if *key == problem.key => write!(f, "{option} ")?,
                Location::Set { option, key } => write!(f, "{option} {key}: ")?,
                Location::Unset(_) => f.write_str("--unset ")?,
            }
            if !problem.key.is_empty() {
                write!(f, "{}: ", problem.key)?;
            }
            f.write_str(&problem.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
