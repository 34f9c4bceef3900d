//! Creates the client of a bucket or server.

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::{ClientConfigKey, ObjectStore, RetryConfig};

use super::address::{Address, Kind};
use super::failure::StatusConnector;

/// Time limit of a connection attempt.
const CONNECT: Duration = Duration::from_secs(10);
/// Time limit without data.
const STALL: Duration = Duration::from_secs(30);
/// Time limit of a request: enough for some MiB over a slow connection.
const REQUEST: Duration = Duration::from_secs(300);

/// What a client is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// The caller repeats failed requests, for the missing bytes only.
    Read,
    /// The client repeats failed requests: a part of an object is sent as a whole.
    Write,
}

/// Creates a client without sending a request. Credentials, region, endpoint and proxy are read from the environment, as
/// `object_store` documents it for `AWS_…`, `GOOGLE_…` and `AZURE_…`.
pub(super) fn connect(address: &Address, retry: Duration, purpose: Use) -> object_store::Result<Arc<dyn ObjectStore>> {
    let container = address.container.as_str();
    let request = match purpose {
        Use::Read => REQUEST,
        // Short enough that a request without an answer is repeated.
        Use::Write => (retry / 2).clamp(2 * STALL, REQUEST),
    };
    let limits = [
        Some((ClientConfigKey::ConnectTimeout, CONNECT.min(retry))),
        // It includes the time of sending a request, which is short only for requests without data.
        (purpose == Use::Read).then_some((ClientConfigKey::ReadTimeout, STALL.min(retry))),
        Some((ClientConfigKey::Timeout, request)),
    ];
    let limits = limits.into_iter().flatten().map(|(key, limit)| (key, format!("{} ms", limit.as_millis().max(1))));
    let retries = match purpose {
        // Only `retry` repeats requests.
        Use::Read => RetryConfig { max_retries: 0, ..RetryConfig::default() },
        Use::Write => RetryConfig { max_retries: usize::MAX, retry_timeout: retry, ..RetryConfig::default() },
    };
    let status = StatusConnector { client_retries: purpose == Use::Write };
    Ok(match address.kind {
        Kind::S3 => {
            // Some compatible stores have no request that removes several objects.
            let store = AmazonS3Builder::from_env().with_bucket_name(container).with_disable_bulk_delete(true);
            let store = store.with_retry(retries).with_http_connector(status);
            let limited =
                |store: AmazonS3Builder, (key, limit)| store.with_config(AmazonS3ConfigKey::Client(key), limit);
            Arc::new(limits.fold(store, limited).build()?)
        }
        Kind::Google => {
            let store = GoogleCloudStorageBuilder::from_env().with_bucket_name(container);
            let store = store.with_retry(retries).with_http_connector(status);
            let limited =
                |store: GoogleCloudStorageBuilder, (key, limit)| store.with_config(GoogleConfigKey::Client(key), limit);
            Arc::new(limits.fold(store, limited).build()?)
        }
        Kind::Azure => {
            let store = MicrosoftAzureBuilder::from_env();
            let store = match container.contains('@') {
                true => store.with_url(format!("abfss://{container}/")),
                false => store.with_container_name(container),
            };
            let store = store.with_retry(retries).with_http_connector(status);
            let limited =
                |store: MicrosoftAzureBuilder, (key, limit)| store.with_config(AzureConfigKey::Client(key), limit);
            Arc::new(limits.fold(store, limited).build()?)
        }
        Kind::Http => {
            let store = HttpBuilder::new().with_url(container).with_retry(retries).with_http_connector(status);
            let store = store.with_config(ClientConfigKey::AllowHttp, "true");
            let limited = |store: HttpBuilder, (key, limit)| store.with_config(key, limit);
            Arc::new(limits.fold(store, limited).build()?)
        }
    })
}
