//! A prefix in an object store, and requests about objects below it.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use object_store::path::Path as Key;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use super::address::{Address, Kind, scheme};
use super::connect::{Use, connect};
use super::failure::{Failure, one_line};
use super::object::{Object, error};
use super::retry::Retries;
use super::{runtime, wait};
use crate::error::{Error, Fault, Result};

/// A prefix in a store.
pub(super) struct Prefix {
    url: PathBuf,
    address: Address,
    store: Arc<dyn ObjectStore>,
    retry: Duration,
}

impl Prefix {
    /// Parses the URL of a prefix.
    ///
    /// # Errors
    /// The reason why it cannot be used for `purpose`.
    pub(super) fn address(url: &Path, purpose: Use) -> std::result::Result<Address, String> {
        let text = url.to_str().unwrap_or_default();
        let parsed = match scheme(text) {
            None => return Err("not a URL of an object store; use s3://, gs:// or az://".into()),
            // An address that ends with `/` would be refused for another reason.
            Some((scheme, _)) if scheme.to_ascii_lowercase().starts_with("http") => None,
            Some(_) => Address::parse(text).map(Some).or_else(|bad| match bad.to_string() {
                other if other.starts_with("cannot read") => Ok(None),
                reason => Err(reason),
            })?,
        };
        parsed.filter(|address| address.kind != Kind::Http).ok_or_else(|| {
            let action = if purpose == Use::Write { "upload to" } else { "list folders of" };
            format!("cannot {action} this kind of URL; use s3://, gs:// or az://")
        })
    }

    /// Creates the client of the store, without a request. `key` is the setting that names `url`.
    pub(super) fn connect(url: &Path, (key, purpose): (&'static str, Use), retry: Duration) -> Result<Self> {
        let setting = |reason| Error::Setting { key, reason: format!("{}: {reason}", url.display()) };
        let address = Self::address(url, purpose).map_err(setting)?;
        // Clients need its TLS.
        runtime()?;
        let store = connect(&address, retry, purpose);
        let store = store.map_err(|cause| error(url, Failure::setting(&cause, address.kind)))?;
        Ok(Self { url: url.to_owned(), address, store, retry })
    }

    /// Returns the URL of the object or folder `name`.
    pub(super) fn url(&self, name: &str) -> PathBuf {
        self.url.join(name)
    }

    /// Returns the key of the object or folder `name`, which is as a store has it.
    pub(super) fn key(&self, name: &str) -> Result<Key> {
        let prefix = self.address.key.as_ref();
        let key =
            if prefix.is_empty() || name.is_empty() { format!("{prefix}{name}") } else { format!("{prefix}/{name}") };
        Key::parse(key).map_err(|cause| {
            let problem = format!("not a name of an object: {cause}");
            self.failed(name, Failure::Permanent { problem, fault: Fault::Input })
        })
    }

    /// Returns an object below the prefix, to read it.
    pub(super) fn object(&self, name: &str, meta: ObjectMeta) -> Arc<Object> {
        Arc::new(Object::new(self.url(name), self.address.kind, Arc::clone(&self.store), meta, self.retry))
    }

    /// Sends a request about the object or folder `name`, and repeats it after temporary failures.
    pub(super) fn request<T, F>(
        &self,
        name: &str,
        send: impl Fn(Arc<dyn ObjectStore>, Key) -> F + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = object_store::Result<T>> + Send + 'static,
    {
        self.attempt(name, send)?.map_err(|failure| self.failed(name, failure))
    }

    /// As [`Prefix::request`], with the reason of a failure.
    pub(super) fn attempt<T, F>(
        &self,
        name: &str,
        send: impl Fn(Arc<dyn ObjectStore>, Key) -> F + Send + 'static,
    ) -> Result<std::result::Result<T, Failure>>
    where
        T: Send + 'static,
        F: Future<Output = object_store::Result<T>> + Send + 'static,
    {
        let (store, key, retry, kind) = (Arc::clone(&self.store), self.key(name)?, self.retry, self.address.kind);
        wait(async move {
            let mut retries = Retries::new(retry);
            loop {
                let failure = match send(Arc::clone(&store), key.clone()).await {
                    Ok(answer) => return Ok(Ok(answer)),
                    Err(cause) => convert(&cause, (kind, retry)),
                };
                if let Err(failure) = retries.pause(failure).await {
                    return Ok(Err(failure));
                }
            }
        })
    }

    /// Converts an error of the library.
    pub(super) fn failure(&self, cause: &object_store::Error) -> Failure {
        convert(cause, (self.address.kind, self.retry))
    }

    /// Returns the error for a failed request about `name`.
    pub(super) fn failed(&self, name: &str, failure: Failure) -> Error {
        error(&self.url(name), failure)
    }

    /// Returns what is stored as `name` now, if there is such an object.
    pub(super) fn stored(&self, name: &str) -> Result<Option<ObjectMeta>> {
        match self.attempt(name, |store, key| async move { store.head(&key).await })? {
            Ok(meta) => Ok(Some(meta)),
            // A store may refuse to tell a user who may only write. Answers about a missing bucket look the same; the next request tells.
            Err(Failure::Missing(_) | Failure::Refused(_)) => Ok(None),
            Err(failure) => Err(self.failed(name, failure)),
        }
    }
}

/// Converts an error of the library. It has no type for a request that was repeated in vain, so its text tells.
fn convert(cause: &object_store::Error, (kind, retry): (Kind, Duration)) -> Failure {
    let text = cause.to_string();
    match Failure::new(cause, kind) {
        Failure::Permanent { .. } if text.contains(" retries, ") => {
            // What the server has answered is at the end, after details of the request.
            let answer = one_line(text.rsplit(" - ").next().unwrap_or_default());
            let problem = format!("{answer}; repeated for {} s (graph.retry)", retry.as_secs());
            Failure::Permanent { problem, fault: Fault::Cluster }
        }
        known => known,
    }
}
