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

/// Creates a client without sending a request. Credentials, region, endpoint and proxy are read from the environment, as
/// `object_store` documents it for `AWS_…`, `GOOGLE_…` and `AZURE_…`.
pub(super) fn connect(address: &Address, retry: Duration) -> object_store::Result<Arc<dyn ObjectStore>> {
    let container = address.container.as_str();
    let limits = [
        (ClientConfigKey::ConnectTimeout, CONNECT.min(retry)),
        (ClientConfigKey::ReadTimeout, STALL.min(retry)),
        (ClientConfigKey::Timeout, REQUEST),
    ];
    let limits = limits.map(|(key, limit)| (key, format!("{} ms", limit.as_millis().max(1))));
    // Only `retry` repeats requests.
    let once = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    Ok(match address.kind {
        Kind::S3 => {
            let store = AmazonS3Builder::from_env().with_bucket_name(container);
            let store = store.with_retry(once).with_http_connector(StatusConnector);
            let limited =
                |store: AmazonS3Builder, (key, limit)| store.with_config(AmazonS3ConfigKey::Client(key), limit);
            Arc::new(limits.into_iter().fold(store, limited).build()?)
        }
        Kind::Google => {
            let store = GoogleCloudStorageBuilder::from_env().with_bucket_name(container);
            let store = store.with_retry(once).with_http_connector(StatusConnector);
            let limited =
                |store: GoogleCloudStorageBuilder, (key, limit)| store.with_config(GoogleConfigKey::Client(key), limit);
            Arc::new(limits.into_iter().fold(store, limited).build()?)
        }
        Kind::Azure => {
            let store = MicrosoftAzureBuilder::from_env();
            let store = match container.contains('@') {
                true => store.with_url(format!("abfss://{container}/")),
                false => store.with_container_name(container),
            };
            let store = store.with_retry(once).with_http_connector(StatusConnector);
            let limited =
                |store: MicrosoftAzureBuilder, (key, limit)| store.with_config(AzureConfigKey::Client(key), limit);
            Arc::new(limits.into_iter().fold(store, limited).build()?)
        }
        Kind::Http => {
            let store = HttpBuilder::new().with_url(container).with_retry(once).with_http_connector(StatusConnector);
            let store = store.with_config(ClientConfigKey::AllowHttp, "true");
            let limited = |store: HttpBuilder, (key, limit)| store.with_config(key, limit);
            Arc::new(limits.into_iter().fold(store, limited).build()?)
        }
    })
}
