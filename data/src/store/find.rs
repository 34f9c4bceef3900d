//! Finds the objects of URLs.

use std::collections::HashMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path as Key;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt};

use super::address::{Address, Kind};
use super::connect::{Use, connect};
use super::failure::Failure;
use super::object::{Object, error};
use super::retry::Retries;
use super::{MAX_CONCURRENT, wait};
use crate::error::{Error, Fault, Result};

/// Time limit for retries when an object is opened, so that a wrong address is reported soon.
const OPENING: Duration = Duration::from_secs(15);

/// Returns the objects of each URL: one object, or the `*.parquet` objects directly below a prefix, in order of their
/// names.
///
/// # Errors
/// When a URL is invalid or has no objects, access is refused, or a server cannot be reached.
pub(crate) fn find(urls: Vec<PathBuf>, role: &'static str, retry: Duration) -> Result<Vec<Vec<Arc<Object>>>> {
    let finder = Arc::new(Finder { role, retry, stores: Mutex::default() });
    wait(async move {
        let found = urls.into_iter().map(|url| Arc::clone(&finder).find(url));
        stream::iter(found).buffered(MAX_CONCURRENT).try_collect().await
    })
}

/// Returns the object of a URL.
///
/// # Errors
/// As [`find`], and if there is no such object.
pub(crate) fn find_one(url: PathBuf, role: &'static str, retry: Duration) -> Result<Arc<Object>> {
    let found = find(vec![url.clone()], role, retry)?.into_iter().flatten();
    let mut same = found.filter(|object| object.url() == url);
    same.next().ok_or(Error::Missing { path: url, role })
}

/// Finds objects, with one client per bucket or server.
struct Finder {
    role: &'static str,
    retry: Duration,
    stores: Mutex<HashMap<(Kind, String), Arc<dyn ObjectStore>>>,
}

impl Finder {
    async fn find(self: Arc<Self>, url: PathBuf) -> Result<Vec<Arc<Object>>> {
        let role = self.role;
        let text = url.to_str().unwrap_or_default();
        let address =
            Address::parse(text).map_err(|bad| Error::Setting { key: role, reason: format!("{text}: {bad}") })?;
        let store = self.store(&address).map_err(|failure| error(&url, failure))?;
        let object = |url: PathBuf, meta: ObjectMeta| {
            Arc::new(Object::new(url, address.kind, Arc::clone(&store), meta, self.retry))
        };
        let mut missing = None;
        if !address.prefix {
            match self.with_retries(|| head(&store, &address)).await {
                Ok(meta) => return Ok(vec![object(url, meta)]),
                Err(Failure::Missing(problem)) if address.kind != Kind::Http => missing = Some(problem),
                Err(failure) => return Err(error(&url, with_role(failure, role))),
            }
        }
        let mut metas = match (self.with_retries(|| list(&store, &address)).await, missing) {
            // Credentials that can read an object may not be able to list objects.
            (Err(Failure::Refused(_)), Some(problem)) => {
                return Err(error(&url, with_role(Failure::Missing(problem), role)));
            }
            (Ok(found), Some(problem)) if found.is_empty() => {
                return Err(error(&url, with_role(Failure::Missing(problem), role)));
            }
            (Ok(found), _) => found,
            (Err(failure), _) => return Err(error(&url, with_role(failure, role))),
        };
        if metas.is_empty() {
            return Err(Error::NoFiles { path: url, role });
        }
        metas.sort_by(|a, b| a.location.filename().cmp(&b.location.filename()));
        let folder = text.trim_end_matches('/');
        let name =
            |meta: &ObjectMeta| PathBuf::from(format!("{folder}/{}", meta.location.filename().unwrap_or_default()));
        Ok(metas.into_iter().map(|meta| object(name(&meta), meta)).collect())
    }

    fn store(&self, address: &Address) -> Result<Arc<dyn ObjectStore>, Failure> {
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (address.kind, address.container.clone());
        if let Some(store) = stores.get(&key) {
            return Ok(Arc::clone(store));
        }
        let store = connect(address, self.retry, Use::Read).map_err(|error| Failure::setting(&error, address.kind))?;
        stores.insert(key, Arc::clone(&store));
        Ok(store)
    }

    async fn with_retries<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        attempt: impl Fn() -> F,
    ) -> Result<T, Failure> {
        let mut retries = Retries::new(self.retry.min(OPENING));
        loop {
            match attempt().await {
                Ok(result) => return Ok(result),
                Err(failure) => retries.pause(failure).await?,
            }
        }
    }
}

/// Returns the metadata of an object.
async fn head(store: &Arc<dyn ObjectStore>, address: &Address) -> Result<ObjectMeta, Failure> {
    let head = store.head(&address.key).await.map_err(|error| Failure::new(&error, address.kind));
    match head {
        // A signed URL may permit GET only, and some servers implement GET only.
        Err(Failure::Refused(_) | Failure::Permanent { fault: Fault::Input, .. }) if address.kind == Kind::Http => {
            let options = GetOptions { range: Some(GetRange::Bounded(0..1)), ..GetOptions::default() };
            let first = store.get_opts(&address.key, options).await;
            first.map(|response| response.meta).map_err(|error| Failure::new(&error, address.kind))
        }
        head => head,
    }
}

/// Returns the Parquet objects directly below a prefix.
async fn list(store: &Arc<dyn ObjectStore>, address: &Address) -> Result<Vec<ObjectMeta>, Failure> {
    let prefix = Some(&address.key).filter(|key| !key.as_ref().is_empty());
    let found = store.list_with_delimiter(prefix).await.map_err(|error| Failure::new(&error, address.kind))?;
    Ok(found.objects.into_iter().filter(|meta| is_parquet(&meta.location)).collect())
}

fn with_role(failure: Failure, role: &'static str) -> Failure {
    match failure {
        Failure::Missing(problem) => Failure::Missing(format!("{problem} ({role})")),
        other => other,
    }
}

fn is_parquet(key: &Key) -> bool {
    key.extension() == Some("parquet") && key.filename().is_some_and(|name| !name.starts_with('.'))
}
