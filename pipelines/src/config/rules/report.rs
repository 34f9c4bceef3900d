//! Collects the problems that the rules find.

use super::super::tree::Node;
use crate::error::{Location, Problem, did_you_mean};

/// Collects problems, each with the position at which its key is written.
pub(super) struct Report<'a> {
    pub(super) root: &'a Node,
    /// The path of the schedule: `train.schedule`, or one of its candidates.
    pub(super) schedule: &'a str,
    pub(super) problems: Vec<Problem>,
}

impl Report<'_> {
    pub(super) fn add(&mut self, key: &str, message: impl Into<String>) {
        self.problems.push(Problem::new(self.root.place(key), key, message));
    }

    pub(super) fn given(&self, key: &str) -> bool {
        self.root.entry(key).is_some()
    }

    /// Reports `message` for each of `keys` that is given. A key of the file can also be removed on the command line.
    pub(super) fn refuse(&mut self, keys: &[&str], message: &str) {
        for key in keys {
            match self.root.entry(key).map(|entry| &entry.place) {
                Some(Location::Line(_)) => self.add(key, format!("{message} (for one run: `--unset {key}`)")),
                Some(_) => self.add(key, message),
                None => {}
            }
        }
    }

    pub(super) fn option(&self, key: &str) -> String {
        format!("{}.{key}", self.schedule)
    }
}

/// Refuses a name that is neither built in nor registered.
pub(super) fn known(key: &str, name: &str, built_in: &[&str], registered: &[String], report: &mut Report<'_>) {
    let all = || built_in.iter().copied().chain(registered.iter().map(String::as_str));
    let listed = || all().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    if all().any(|known| known == name) {
        return;
    }
    let meant = did_you_mean(name, all()).map_or_else(String::new, |meant| format!("; did you mean \"{meant}\"?"));
    let others = if registered.is_empty() { " (this program registers no other)" } else { "" };
    report.add(key, format!("expected one of {}, or a registered name{others}, found \"{name}\"{meant}", listed()));
}
