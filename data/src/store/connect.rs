//! The client of a bucket or a server, from the environment.

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::{ClientConfigKey, ObjectStore, RetryConfig};

use super::address::{Address, Kind};
use super::answer::Attentive;

/// A connection is made within this time,
const CONNECT: Duration = Duration::from_secs(10);
/// something comes within this time,
const STALL: Duration = Duration::from_secs(30);
/// and a request ends within this time: some MiB over the slowest line that is worth waiting for.
const REQUEST: Duration = Duration::from_secs(300);

/// The client. Credentials, region, endpoint and proxy are read from the environment, as `object_store` documents it for
/// `AWS_…`, `GOOGLE_…` and `AZURE_…`. Makes no request.
pub(super) fn connect(address: &Address, retry: Duration) -> object_store::Result<Arc<dyn ObjectStore>> {
    let holder = address.holder.as_str();
    let limits = [
        (ClientConfigKey::ConnectTimeout, CONNECT.min(retry)),
        (ClientConfigKey::ReadTimeout, STALL.min(retry)),
        (ClientConfigKey::Timeout, REQUEST),
    ];
    let limits = limits.map(|(key, limit)| (key, format!("{} ms", limit.as_millis().max(1))));
    // What is tried again is decided in one place, `patience`.
    let once = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    Ok(match address.kind {
        Kind::S3 => {
            let store = AmazonS3Builder::from_env().with_bucket_name(holder);
            let store = store.with_retry(once).with_http_connector(Attentive);
            let limited =
                |store: AmazonS3Builder, (key, limit)| store.with_config(AmazonS3ConfigKey::Client(key), limit);
            Arc::new(limits.into_iter().fold(store, limited).build()?)
        }
        Kind::Google => {
            let store = GoogleCloudStorageBuilder::from_env().with_bucket_name(holder);
            let store = store.with_retry(once).with_http_connector(Attentive);
            let limited =
                |store: GoogleCloudStorageBuilder, (key, limit)| store.with_config(GoogleConfigKey::Client(key), limit);
            Arc::new(limits.into_iter().fold(store, limited).build()?)
        }
        Kind::Azure => {
            let store = MicrosoftAzureBuilder::from_env();
            let store = match holder.contains('@') {
                true => store.with_url(format!("abfss://{holder}/")),
                false => store.with_container_name(holder),
            };
            let store = store.with_retry(once).with_http_connector(Attentive);
            let limited =
                |store: MicrosoftAzureBuilder, (key, limit)| store.with_config(AzureConfigKey::Client(key), limit);
            Arc::new(limits.into_iter().fold(store, limited).build()?)
        }
        Kind::Http => {
            let store = HttpBuilder::new().with_url(holder).with_retry(once).with_http_connector(Attentive);
            let store = store.with_config(ClientConfigKey::AllowHttp, "true");
            let limited = |store: HttpBuilder, (key, limit)| store.with_config(key, limit);
            Arc::new(limits.into_iter().fold(store, limited).build()?)
        }
    })
}
