//! What URLs stand for.

use std::collections::HashMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path as Key;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt};

use super::address::{Address, Kind};
use super::answer::Trouble;
use super::connect::connect;
use super::object::{Object, error};
use super::patience::Patience;
use super::{AT_ONCE, wait};
use crate::error::{Error, Fault, Result};

/// Nothing is under way yet when an object is looked for: a mistyped address is told after this time.
const OPENING: Duration = Duration::from_secs(15);

/// The objects that URLs stand for: one, or the `*.parquet` directly below a prefix in the order of their names.
///
/// # Errors
/// A URL that is none or names nothing, credentials refused, a server that cannot be reached.
pub(crate) fn find(urls: Vec<PathBuf>, role: &'static str, retry: Duration) -> Result<Vec<Vec<Arc<Object>>>> {
    let finder = Arc::new(Finder { role, retry, stores: Mutex::default() });
    wait(async move {
        let found = urls.into_iter().map(|url| Arc::clone(&finder).find(url));
        stream::iter(found).buffered(AT_ONCE).try_collect().await
    })
}

/// Looks for objects, with one client per bucket or server.
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
        let store = self.store(&address).map_err(|trouble| error(&url, trouble))?;
        let object = |url: PathBuf, meta: ObjectMeta| {
            Arc::new(Object::new(url, address.kind, Arc::clone(&store), meta, self.retry))
        };
        let mut missing = None;
        if !address.prefix {
            match self.patiently(|| head(&store, &address)).await {
                Ok(meta) => return Ok(vec![object(url, meta)]),
                Err(Trouble::Missing(problem)) if address.kind != Kind::Http => missing = Some(problem),
                Err(trouble) => return Err(error(&url, with_role(trouble, role))),
            }
        }
        let mut metas = match (self.patiently(|| list(&store, &address)).await, missing) {
            // Who may read one object need not be allowed to list.
            (Err(Trouble::Refused(_)), Some(problem)) => {
                return Err(error(&url, with_role(Trouble::Missing(problem), role)));
            }
            (Ok(found), Some(problem)) if found.is_empty() => {
                return Err(error(&url, with_role(Trouble::Missing(problem), role)));
            }
            (Ok(found), _) => found,
            (Err(trouble), _) => return Err(error(&url, with_role(trouble, role))),
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

    fn store(&self, address: &Address) -> Result<Arc<dyn ObjectStore>, Trouble> {
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (address.kind, address.holder.clone());
        if let Some(store) = stores.get(&key) {
            return Ok(Arc::clone(store));
        }
        let store = connect(address, self.retry).map_err(|error| Trouble::setting(&error, address.kind))?;
        stores.insert(key, Arc::clone(&store));
        Ok(store)
    }

    async fn patiently<T, F: Future<Output = Result<T, Trouble>>>(
        &self,
        attempt: impl Fn() -> F,
    ) -> Result<T, Trouble> {
        let mut patience = Patience::new(self.retry.min(OPENING));
        loop {
            match attempt().await {
                Ok(result) => return Ok(result),
                Err(trouble) => patience.bear(trouble).await?,
            }
        }
    }
}

/// What there is under a key.
async fn head(store: &Arc<dyn ObjectStore>, address: &Address) -> Result<ObjectMeta, Trouble> {
    let head = store.head(&address.key).await.map_err(|error| Trouble::new(&error, address.kind));
    match head {
        // A signed URL may be read and not asked about, and some servers know GET only.
        Err(Trouble::Refused(_) | Trouble::Final { fault: Fault::Input, .. }) if address.kind == Kind::Http => {
            let options = GetOptions { range: Some(GetRange::Bounded(0..1)), ..GetOptions::default() };
            let first = store.get_opts(&address.key, options).await;
            first.map(|answer| answer.meta).map_err(|error| Trouble::new(&error, address.kind))
        }
        head => head,
    }
}

/// The Parquet files directly below a prefix.
async fn list(store: &Arc<dyn ObjectStore>, address: &Address) -> Result<Vec<ObjectMeta>, Trouble> {
    let prefix = Some(&address.key).filter(|key| !key.as_ref().is_empty());
    let found = store.list_with_delimiter(prefix).await.map_err(|error| Trouble::new(&error, address.kind))?;
    Ok(found.objects.into_iter().filter(|meta| is_parquet(&meta.location)).collect())
}

fn with_role(trouble: Trouble, role: &'static str) -> Trouble {
    match trouble {
        Trouble::Missing(problem) => Trouble::Missing(format!("{problem} ({role})")),
        other => other,
    }
}

fn is_parquet(key: &Key) -> bool {
    key.extension() == Some("parquet") && key.filename().is_some_and(|name| !name.starts_with('.'))
}
