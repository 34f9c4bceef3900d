//! Where batches of changes appear: a folder, or a prefix of an object store.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gnnflow_data::folders::Folders;
use gnnflow_data::fs::{remove, sync_folder};
use gnnflow_data::source::is_url;
use gnnflow_data::update::Batch;

use crate::error::Error;

/// The file that says that a batch is complete.
pub(super) const SUCCESS: &str = "_SUCCESS";
/// Maximum bytes of a batch's name. Temporary names are longer.
const LONGEST_NAME: usize = 200;
/// Pause between two looks at a folder.
const PAUSE: Duration = Duration::from_millis(100);
/// Pause between two looks at a store, which may charge for each.
const STORE_PAUSE: Duration = Duration::from_secs(5);

/// Where batches appear. Each is a folder.
pub(crate) enum Place {
    /// A local folder.
    Folder(PathBuf),
    /// A prefix of an object store.
    Store(Folders),
}

impl Place {
    /// Opens `changes`, a folder or a URL. Requests to a store are repeated for `retry`.
    ///
    /// # Errors
    /// If it is a URL whose folders cannot be listed.
    pub(crate) fn open(changes: &Path, retry: Duration) -> Result<Self, Error> {
        match is_url(changes) {
            true => {
                let store = Folders::open(changes, "--changes", retry)?;
                // Errors of access are reported at once.
                store.names()?;
                Ok(Self::Store(store))
            }
            false => Ok(Self::Folder(changes.to_owned())),
        }
    }

    /// Returns the pause between two looks.
    pub(crate) fn pause(&self) -> Duration {
        match self {
            Self::Folder(_) => PAUSE,
            Self::Store(_) => STORE_PAUSE,
        }
    }

    /// Returns the path or URL of a batch.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        match self {
            Self::Folder(folder) => folder.join(name),
            Self::Store(store) => store.url(name),
        }
    }

    /// Returns the names of all folders.
    ///
    /// # Errors
    /// If they cannot be listed, there are Parquet files, or a name cannot be that of a batch.
    pub(super) fn folders(&self) -> Result<Vec<String>, Error> {
        match self {
            Self::Folder(folder) => batches_in(folder),
            Self::Store(store) => {
                let names = store.names()?;
                names.iter().try_for_each(|name| check_name(Some(name), &store.url(name)))?;
                Ok(names)
            }
        }
    }

    /// Returns whether a batch has `_SUCCESS`.
    ///
    /// # Errors
    /// If a store cannot be reached.
    pub(super) fn is_complete(&self, name: &str) -> Result<bool, Error> {
        match self {
            Self::Folder(folder) => Ok(folder.join(name).join(SUCCESS).exists()),
            Self::Store(store) => Ok(store.has(name, SUCCESS)?),
        }
    }

    /// Copies the files of a batch to the folder `to`, which is replaced.
    ///
    /// # Errors
    /// If the batch has no files or others, or they cannot be copied.
    pub(super) fn copy(&self, name: &str, to: &Path) -> Result<(), Error> {
        remove(to).map_err(Error::io("remove", to))?;
        std::fs::create_dir_all(to).map_err(Error::io("create", to))?;
        let from = self.path(name);
        let tables = match self {
            Self::Folder(_) => copy_folder(&from, to)?,
            Self::Store(store) => copy_objects(store, name, to)?,
        };
        for folder in [Some(to), to.parent()].into_iter().flatten() {
            sync_folder(folder).map_err(Error::io("write", folder))?;
        }
        Ok(Batch::check_tables(&from, tables)?)
    }
}

/// Returns the names of the folders in `folder`, which are those of batches.
fn batches_in(folder: &Path) -> Result<Vec<String>, Error> {
    let list = |error| match std::io::Error::kind(&error) {
        ErrorKind::NotFound => {
            let message = "the folder of changes is gone; create it, and start again";
            Error::Input(format!("{}: {message}", folder.display()))
        }
        _ => Error::io("list", folder)(error),
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(list)? {
        let entry = entry.map_err(list)?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(list)?);
        let name = path.file_name().and_then(|name| name.to_str());
        check_name(name, &path)?;
        if kind.is_dir() || kind.is_symlink() && path.is_dir() {
            names.extend(name.map(str::to_owned));
        } else {
            Batch::check_is_folder(&path)?;
        }
    }
    Ok(names)
}

/// Checks the name of the file or folder at `path`. It is `None` if it is not UTF-8.
fn check_name(name: Option<&str>, path: &Path) -> Result<(), Error> {
    if name.is_some_and(|name| name.len() <= LONGEST_NAME && !name.contains(char::is_control)) {
        return Ok(());
    }
    Err(Error::Input(format!(
        "{path:?}: the name of a batch must be UTF-8 without control characters, and have at most {LONGEST_NAME} bytes; rename it"
    )))
}

/// Copies the objects of a batch. Returns the number of its tables.
fn copy_objects(store: &Folders, batch: &str, to: &Path) -> Result<usize, Error> {
    // By name, whether the table is a folder.
    let mut tables = BTreeMap::new();
    for object in store.objects(batch)? {
        let (name, part) = object.name.split_once('/').map_or((&*object.name, None), |(name, part)| (name, Some(part)));
        let url = store.url(&format!("{batch}/{name}"));
        if !Batch::is_table(&url)? {
            continue;
        }
        if *tables.entry(name.to_owned()).or_insert(part.is_some()) != part.is_some() {
            let message = format!("{}: the batch has this table as a file and as a folder; remove one", url.display());
            return Err(Error::Input(message));
        }
        let table = to.join(name);
        match part {
            None => object.copy(&table)?,
            Some(part) => {
                std::fs::create_dir_all(&table).map_err(Error::io("create", &table))?;
                if part.ends_with(".parquet") && !part.contains('/') {
                    object.copy(&table.join(part))?;
                }
            }
        }
    }
    for (name, _) in tables.iter().filter(|(_, is_folder)| **is_folder) {
        let table = to.join(name);
        sync_folder(&table).map_err(Error::io("write", &table))?;
    }
    Ok(tables.len())
}

/// Copies the tables in a folder. Returns their number.
fn copy_folder(from: &Path, to: &Path) -> Result<usize, Error> {
    let mut tables = 0;
    for entry in std::fs::read_dir(from).map_err(Error::io("list", from))? {
        let path = entry.map_err(Error::io("list", from))?.path();
        if !Batch::is_table(&path)? {
            continue;
        }
        copy(&path, &to.join(path.file_name().unwrap_or_default()))?;
        tables += 1;
    }
    Ok(tables)
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
