//! Folders below a prefix of an object store: their names, and copies of their objects.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use super::connect::Use;
use super::failure::Failure;
use super::object::Object;
use super::prefix::Prefix;
use crate::error::{Error, Result};

/// Checks the form of a URL below which folders can be listed, without a request.
///
/// ```
/// use gnnflow_data::folders::check_place;
/// use std::path::Path;
///
/// assert!(check_place(Path::new("s3://lake/changes")).is_ok());
/// assert!(check_place(Path::new("https://host/changes")).is_err());
/// ```
///
/// # Errors
/// The reason why folders cannot be listed there.
pub fn check_place(url: &Path) -> std::result::Result<(), String> {
    Prefix::address(url, Use::Read).map(drop)
}

/// The folders below a prefix of a store. Requests are repeated after temporary failures, until no data has arrived for a given time.
pub struct Folders(Prefix);

impl Folders {
    /// Creates the client of a store, without a request. `key` is the setting that names the prefix, for messages.
    ///
    /// # Errors
    /// [`Error::Setting`] if it is not a URL of a store that lists folders; [`Error::Remote`] if settings of the store in the environment are invalid.
    pub fn open(url: &Path, key: &'static str, retry: Duration) -> Result<Self> {
        Prefix::connect(url, (key, Use::Read), retry).map(Self)
    }

    /// Returns the URL of a folder.
    pub fn url(&self, folder: &str) -> PathBuf {
        self.0.url(folder)
    }

    /// Returns the names of the folders directly below the prefix. A prefix without objects has none.
    ///
    /// # Errors
    /// [`Error::Remote`] if the store refuses the request, or cannot be reached.
    pub fn names(&self) -> Result<Vec<String>> {
        let found = self.0.request("", |store, key| async move {
            store.list_with_delimiter(Some(&key).filter(|key| !key.as_ref().is_empty())).await
        })?;
        Ok(found.common_prefixes.iter().filter_map(|folder| folder.filename()).map(str::to_owned).collect())
    }

    /// Returns whether a folder has the object `name`.
    ///
    /// # Errors
    /// As [`Folders::names`].
    pub fn has(&self, folder: &str, name: &str) -> Result<bool> {
        let name = format!("{folder}/{name}");
        match self.0.attempt(&name, |store, key| async move { store.head(&key).await })? {
            Ok(_) => Ok(true),
            Err(Failure::Missing(_)) => Ok(false),
            Err(failure) => Err(self.0.failed(&name, failure)),
        }
    }

    /// Returns all objects below a folder, except those without data that stand for folders.
    ///
    /// # Errors
    /// As [`Folders::names`].
    pub fn objects(&self, folder: &str) -> Result<Vec<RemoteFile>> {
        let prefix = self.0.key(folder)?;
        let found: Vec<ObjectMeta> =
            self.0.request(folder, |store, key| async move { store.list(Some(&key)).try_collect().await })?;
        let name = |meta: &ObjectMeta| {
            let parts: Vec<String> =
                meta.location.prefix_match(&prefix)?.map(|part| part.as_ref().to_owned()).collect();
            Some(parts.join("/")).filter(|name| !name.is_empty())
        };
        let named: BTreeMap<String, ObjectMeta> =
            found.into_iter().filter_map(|meta| Some((name(&meta)?, meta))).collect();
        let is_folder = |name: &str| {
            let below = format!("{name}/");
            named.range(below.clone()..).next().is_some_and(|(other, _)| other.starts_with(&below))
        };
        let files = named.iter().filter(|(name, meta)| meta.size > 0 || !is_folder(name));
        let file = |(name, meta): (&String, &ObjectMeta)| {
            let object = self.0.object(&format!("{folder}/{name}"), meta.clone());
            RemoteFile { name: name.clone(), object }
        };
        Ok(files.map(file).collect())
    }
}

/// An object of a folder.
pub struct RemoteFile {
    /// Its name, relative to the folder.
    pub name: String,
    object: Arc<Object>,
}

impl RemoteFile {
    /// Copies the object to a new local file, which is then on disk.
    ///
    /// # Errors
    /// [`Error::Remote`] if the object has changed since it was listed, or cannot be read; [`Error::Io`] if the file cannot be written.
    pub fn copy(&self, to: &Path) -> Result<()> {
        let mut file = File::create(to).map_err(Error::io(to, "create"))?;
        self.object.for_each_piece(|piece| file.write_all(piece).map_err(Error::io(to, "write")))?;
        file.sync_all().map_err(Error::io(to, "write"))
    }
}
