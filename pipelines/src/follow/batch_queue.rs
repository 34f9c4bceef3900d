//! Batches of changes that wait, in the order in which they are applied.

use std::collections::BTreeSet;

use super::place::Place;
use crate::error::Error;

/// Batches of changes, which are applied in the order of their names.
pub(crate) struct BatchQueue {
    /// Where they appear.
    pub(crate) place: Place,
    /// Batches up to this name are in the dataset already.
    after: Option<String>,
    /// Batches that are applied.
    applied: BTreeSet<String>,
}

impl BatchQueue {
    pub(crate) fn new(place: Place, after: Option<String>, applied: BTreeSet<String>) -> Self {
        Self { place, after, applied }
    }

    /// Returns whether no batch is applied.
    pub(crate) fn is_new(&self) -> bool {
        self.applied.is_empty()
    }

    /// Returns the applied batches after `name`.
    pub(crate) fn applied_after(&self, name: Option<&str>) -> impl Iterator<Item = &String> {
        self.applied.iter().filter(move |applied| name.is_none_or(|name| applied.as_str() > name))
    }

    pub(crate) fn is_applied(&self, name: &str) -> bool {
        self.applied.contains(name)
    }

    /// Marks a batch as applied.
    pub(crate) fn apply(&mut self, name: &str) {
        self.applied.insert(name.to_owned());
    }

    /// Returns the number of batches that are in the dataset already, and whether one has the name of the last one.
    ///
    /// # Errors
    /// If the batches cannot be listed.
    pub(crate) fn skipped(&self) -> Result<(usize, bool), Error> {
        let Some(after) = &self.after else { return Ok((0, false)) };
        let names = self.place.folders()?;
        let skipped = names.iter().filter(|name| *name <= after && !is_hidden(name)).count();
        Ok((skipped, names.contains(after)))
    }

    /// Returns the next batch, if it is complete. A batch waits for those before it.
    ///
    /// # Errors
    /// If the batches cannot be listed, or a batch comes before one that is applied already.
    pub(crate) fn next(&self) -> Result<Next, Error> {
        let is_new = |name: &String| {
            !self.applied.contains(name) && self.after.as_ref().is_none_or(|after| name > after) && !is_hidden(name)
        };
        let next = self.place.folders()?.into_iter().filter(is_new).min();
        let Some(name) = next else { return Ok(Next::None) };
        if let Some(last) = self.applied.last().filter(|last| **last > name) {
            let message = format!(
                "{}: the batch comes before {last:?}, which is applied already: batches are applied in the order of their names; give it a later \
                 name, or move it out of the folder",
                self.place.path(&name).display()
            );
            return Err(Error::Input(message));
        }
        Ok(if self.place.is_complete(&name)? { Next::Complete(name) } else { Next::Incomplete(name) })
    }
}

fn is_hidden(name: &str) -> bool {
    name.starts_with(['.', '_'])
}

/// The next batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// There is none.
    None,
    /// Its files are being written.
    Incomplete(String),
    /// It can be applied.
    Complete(String),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::follow::place::SUCCESS;
    use std::time::Duration;

    #[test]
    fn batches_come_in_the_order_of_their_names_when_they_are_complete() {
        let place = tempfile::tempdir().unwrap();
        let add = |name: &str, complete: bool| {
            std::fs::create_dir_all(place.path().join(name)).unwrap();
            if complete {
                std::fs::write(place.path().join(name).join(SUCCESS), "").unwrap();
            }
        };
        let mut queue =
            BatchQueue::new(Place::open(place.path(), Duration::ZERO).unwrap(), Some("b".into()), BTreeSet::new());
        assert_eq!(queue.next().unwrap(), Next::None);
        assert_eq!(queue.skipped().unwrap(), (0, false));
        add("a", true);
        assert_eq!(queue.skipped().unwrap(), (1, false));
        add(".tmp", true);
        std::fs::write(place.path().join("_SUCCESS"), "").unwrap();
        assert_eq!(queue.next().unwrap(), Next::None);
        std::fs::write(place.path().join("c.parquet"), "").unwrap();
        let error = queue.next().unwrap_err().to_string();
        assert!(error.contains("c.parquet: a batch is a folder"), "{error}");
        std::fs::remove_file(place.path().join("c.parquet")).unwrap();
        add("e", true);
        add("d", false);
        assert_eq!(queue.next().unwrap(), Next::Incomplete("d".into()));
        add("d", true);
        assert_eq!(queue.next().unwrap(), Next::Complete("d".into()));
        queue.apply("d");
        assert_eq!(queue.next().unwrap(), Next::Complete("e".into()));
        queue.apply("e");
        add("c", true);
        let error = queue.next().unwrap_err().to_string();
        assert!(error.contains("comes before \"e\", which is applied already"), "{error}");
    }
}
