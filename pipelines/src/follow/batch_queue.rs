//! The folder in which batches of changes appear.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use gnnflow_data::fs::{remove, sync_folder};
use gnnflow_data::update::Batch;

use crate::error::Error;

/// The file that says that a batch is complete.
const SUCCESS: &str = "_SUCCESS";
/// Maximum bytes of a batch's name. Temporary names are longer.
const LONGEST_NAME: usize = 200;

/// Batches of changes, which are applied in the order of their names.
pub(crate) struct BatchFolder {
    folder: PathBuf,
    /// Batches up to this name are in the dataset already.
    after: Option<String>,
    /// Batches that are applied.
    applied: BTreeSet<String>,
}

impl BatchFolder {
    pub(crate) fn new(folder: &Path, after: Option<String>, applied: BTreeSet<String>) -> Self {
        Self { folder: folder.to_owned(), after, applied }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
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

    /// Returns the next batch, if it is complete. A batch waits for those before it.
    ///
    /// # Errors
    /// If the folder cannot be read, or a batch comes before one that is applied already.
    pub(crate) fn next(&self) -> Result<Next, Error> {
        let list = |error| match std::io::Error::kind(&error) {
            ErrorKind::NotFound => {
                let message = "the folder of changes is gone; create it, and start again";
                Error::Input(format!("{}: {message}", self.folder.display()))
            }
            _ => Error::io("list", &self.folder)(error),
        };
        let mut next: Option<String> = None;
        for entry in std::fs::read_dir(&self.folder).map_err(list)? {
            let entry = entry.map_err(list)?;
            let name = entry.file_name();
            let fits = |name: &&str| name.len() <= LONGEST_NAME && !name.contains(char::is_control);
            let Some(name) = name.to_str().filter(fits) else {
                let message = format!(
                    "{:?}: the name of a batch must be UTF-8 without control characters, and have at most {LONGEST_NAME} bytes; rename it",
                    entry.path()
                );
                return Err(Error::Input(message));
            };
            let is_new = !self.applied.contains(name) && self.after.as_deref().is_none_or(|after| name > after);
            let hidden = name.starts_with(['.', '_']);
            if is_new && !hidden && next.as_deref().is_none_or(|next| name < next) && entry.path().is_dir() {
                next = Some(name.to_owned());
            }
        }
        let Some(name) = next else { return Ok(Next::None) };
        if let Some(last) = self.applied.last().filter(|last| **last > name) {
            let message = format!(
                "{}: the batch comes before {last:?}, which is applied already: batches are applied in the order of their names; give it a later \
                 name, or move it out of the folder",
                self.path(&name).display()
            );
            return Err(Error::Input(message));
        }
        Ok(if self.path(&name).join(SUCCESS).exists() { Next::Complete(name) } else { Next::Incomplete(name) })
    }
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

/// Copies the files of a batch.
///
/// # Errors
/// If the batch has no files or others, or they cannot be copied.
pub(crate) fn copy_batch(from: &Path, to: &Path) -> Result<(), Error> {
    remove(to).map_err(Error::io("remove", to))?;
    std::fs::create_dir_all(to).map_err(Error::io("create", to))?;
    let mut files = 0;
    for entry in std::fs::read_dir(from).map_err(Error::io("list", from))? {
        let path = entry.map_err(Error::io("list", from))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(['.', '_']) {
            continue;
        }
        if !Batch::FILES.contains(&&*name) {
            let message = format!("{}: a batch has the files {} only", path.display(), Batch::FILES.join(", "));
            return Err(Error::Input(message));
        }
        copy(&path, &to.join(&*name))?;
        files += 1;
    }
    for folder in [Some(to), to.parent()].into_iter().flatten() {
        sync_folder(folder).map_err(Error::io("write", folder))?;
    }
    if files == 0 {
        let message = format!("{}: the batch has none of {}", from.display(), Batch::FILES.join(", "));
        return Err(Error::Input(message));
    }
    Ok(())
}

/// Copies a file, or a folder of Parquet files.
fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    if !from.is_dir() {
        return copy_file(from, to);
    }
    std::fs::create_dir(to).map_err(Error::io("create", to))?;
    for entry in std::fs::read_dir(from).map_err(Error::io("list", from))? {
        let path = entry.map_err(Error::io("list", from))?.path();
        if path.extension().is_some_and(|extension| extension == "parquet") {
            copy_file(&path, &to.join(path.file_name().unwrap_or_default()))?;
        }
    }
    sync_folder(to).map_err(Error::io("write", to))
}

fn copy_file(from: &Path, to: &Path) -> Result<(), Error> {
    let copied = std::fs::copy(from, to).and_then(|_| File::open(to)?.sync_all());
    copied.map_err(Error::io("copy", from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_come_in_the_order_of_their_names_when_they_are_complete() {
        let place = tempfile::tempdir().unwrap();
        let add = |name: &str, complete: bool| {
            std::fs::create_dir_all(place.path().join(name)).unwrap();
            if complete {
                std::fs::write(place.path().join(name).join(SUCCESS), "").unwrap();
            }
        };
        let mut folder = BatchFolder::new(place.path(), Some("b".into()), BTreeSet::new());
        assert_eq!(folder.next().unwrap(), Next::None);
        add("a", true);
        add(".tmp", true);
        std::fs::write(place.path().join("c.parquet"), "").unwrap();
        assert_eq!(folder.next().unwrap(), Next::None);
        add("e", true);
        add("d", false);
        assert_eq!(folder.next().unwrap(), Next::Incomplete("d".into()));
        add("d", true);
        assert_eq!(folder.next().unwrap(), Next::Complete("d".into()));
        folder.apply("d");
        assert_eq!(folder.next().unwrap(), Next::Complete("e".into()));
        folder.apply("e");
        add("c", true);
        let error = folder.next().unwrap_err().to_string();
        assert!(error.contains("comes before \"e\", which is applied already"), "{error}");
    }
}
