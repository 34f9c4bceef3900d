//! What is wrong with a pipeline file, and where.

use std::{fmt, path::PathBuf};

/// Where something was written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// Somewhere in the file, or nowhere: a default.
    File,
    /// On this line (1-based).
    Line(usize),
    /// In `--set KEY=…`.
    Set(String),
}

/// One thing that is wrong with a pipeline file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub(crate) place: Place,
    pub(crate) key: String,
    pub(crate) message: String,
}

impl Problem {
    pub(crate) fn new(place: Place, key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { place, key: key.into(), message: message.into() }
    }

    /// The line (1-based) that is to blame; `None` for a default or a `--set`.
    pub fn line(&self) -> Option<usize> {
        match self.place {
            Place::Line(line) => Some(line),
            Place::File | Place::Set(_) => None,
        }
    }

    /// The dotted key that is to blame; empty when the file is no TOML.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// What is wrong with it, in one line.
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// Everything that is wrong with a pipeline file, in the file's order; one line each.
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

    /// Each of them. Never empty.
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
                Place::File => write!(f, "{}: ", self.file.display())?,
                Place::Line(line) => write!(f, "{}:{line}: ", self.file.display())?,
                Place::Set(key) if *key == problem.key => f.write_str("--set ")?,
                Place::Set(key) => write!(f, "--set {key}: ")?,
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

/// The candidate that `word` was most likely meant to be.
pub(crate) fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = |candidate: &str| strsim::jaro_winkler(&word.to_lowercase(), &candidate.to_lowercase());
    let scored = candidates.into_iter().map(|candidate| (likeness(candidate), candidate));
    scored.filter(|(score, _)| *score > 0.75).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, candidate)| candidate)
}
