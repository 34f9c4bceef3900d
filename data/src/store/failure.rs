//! Converts failed requests to errors: which may be retried, and the text for the user.

use std::error::Error as StdError;
use std::fmt;

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};

use super::address::Kind;
use crate::error::Fault;

/// Error bodies of this length or more are not read.
const MAX_ERROR_BODY: u64 = 64 << 10;

/// The status of a server without space.
const INSUFFICIENT_STORAGE: u16 = 507;

/// Hosts of cloud metadata services, which give credentials to virtual machines.
const METADATA_HOSTS: [&str; 3] = ["169.254.169.254", "169.254.170.2", "metadata.google.internal"];

/// The reason of a failed request.
#[derive(Debug)]
pub(super) enum Failure {
    /// A temporary failure; the request can be retried.
    Temporary(String),
    /// There is no such object or bucket.
    Missing(String),
    /// Access was refused, or there are no credentials.
    Refused(String),
    /// The object has changed since it was opened.
    Changed,
    /// A permanent failure; retries do not help.
    Permanent {
        /// The problem and the remedy.
        problem: String,
        /// The party at fault.
        fault: Fault,
    },
}

impl Failure {
    /// Converts an error of the library.
    pub(super) fn new(error: &object_store::Error, kind: Kind) -> Self {
        if let Some(failure) = Self::in_chain(error, kind) {
            return failure;
        }
        match error {
            object_store::Error::Precondition { .. } | object_store::Error::NotModified { .. } => Self::Changed,
            object_store::Error::InvalidPath { .. } => {
                let problem = format!("{}; rename or remove this object", one_line(&error.to_string()));
                Self::Permanent { problem, fault: Fault::Input }
            }
            _ => Self::Permanent { problem: one_line(&error.to_string()), fault: Fault::Input },
        }
    }

    /// Converts an error of the creation of a client: an invalid setting in the environment.
    pub(super) fn setting(error: &object_store::Error, kind: Kind) -> Self {
        let problem = format!("{}; {}", one_line(&error.to_string()), kind.credentials());
        Self::Permanent { problem, fault: Fault::Usage }
    }

    fn in_chain(error: &object_store::Error, kind: Kind) -> Option<Self> {
        let text = error.to_string();
        if METADATA_HOSTS.iter().any(|host| text.contains(host)) {
            // Clients use the metadata service when there are no other credentials.
            return Some(Self::Refused(format!("no credentials; {}", kind.credentials())));
        }
        for error in chain(error) {
            if let Some(response) = error.downcast_ref::<ErrorResponse>() {
                return Some(response.failure(kind));
            }
            if let Some(tls) = tls(error) {
                let problem = format!(
                    "TLS failed ({tls}); check the address, the clock, and the certificates of this machine (or set \
                     SSL_CERT_FILE)"
                );
                return Some(Self::Permanent { problem, fault: Fault::Cluster });
            }
            if error.to_string().contains("URL scheme is not allowed") {
                let name = kind.allow_http();
                let problem = format!("the endpoint has no TLS; use an https endpoint, or set {name}=true");
                return Some(Self::Permanent { problem, fault: Fault::Usage });
            }
        }
        let http = chain(error).find_map(|error| error.downcast_ref::<HttpError>())?;
        let cause = chain(http).last().map_or_else(|| http.to_string(), ToString::to_string);
        Some(Self::Temporary(one_line(&match http.kind() {
            HttpErrorKind::Connect => format!("no connection: {cause}"),
            HttpErrorKind::Timeout => "no answer in time".to_owned(),
            _ => format!("connection lost: {cause}"),
        })))
    }
}

/// Returns an error and its chain of causes.
fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// Returns a TLS error, also from inside I/O errors.
fn tls<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    error.downcast_ref().or_else(|| tls(error.downcast_ref::<std::io::Error>()?.get_ref()?))
}

/// Returns code and message of an XML error body of an object store.
fn xml_error(text: &str) -> Option<String> {
    let tag = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        Some(one_line(rest.split_once('<')?.0))
    };
    let (code, message) = (tag("Code")?, tag("Message"));
    Some(message.map_or_else(|| code.clone(), |message| format!("{code}: {message}")))
}

/// Returns a text on one line of at most 300 characters.
pub(super) fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(300) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// A response without an object, with details that `object_store` drops.
#[derive(Debug)]
enum ErrorResponse {
    /// Status and message.
    Status(u16, String),
    /// The whole object instead of the requested range.
    Whole,
}

impl ErrorResponse {
    /// Returns whether there is no space left. Ceph's code is `QuotaExceeded`; those of MinIO are `XMinioStorageFull` and `XMinioAdminBucketQuotaExceeded`.
    fn is_full(&self) -> bool {
        match self {
            Self::Status(429, _) | Self::Whole => false,
            Self::Status(status, message) => {
                let code = message.split(':').next().unwrap_or_default();
                *status == INSUFFICIENT_STORAGE
                    || ["QuotaExceeded", "StorageFull"].iter().any(|end| code.ends_with(end))
            }
        }
    }

    fn failure(&self, kind: Kind) -> Failure {
        let input = |problem: String| Failure::Permanent { problem, fault: Fault::Input };
        match self {
            _ if self.is_full() => {
                let problem = format!(
                    "the {} is full ({self}); remove objects that are no longer needed, or raise its quota",
                    kind.bucket()
                );
                Failure::Permanent { problem, fault: Fault::Machine }
            }
            Self::Whole => input("the server ignores the header Range; download the file".into()),
            Self::Status(401 | 403, _) => Failure::Refused(format!("access refused ({self}); {}", kind.credentials())),
            Self::Status(404, message)
                if ["NoSuchBucket", "ContainerNotFound"].iter().any(|code| message.starts_with(code)) =>
            {
                let container = kind.bucket();
                Failure::Missing(format!("there is no such {container}; check its name, the region and the endpoint"))
            }
            Self::Status(404, _) => Failure::Missing("there is no such object".to_owned()),
            Self::Status(408 | 429 | 500.., _) => Failure::Temporary(self.to_string()),
            Self::Status(300..400, _) if kind == Kind::S3 => {
                input(format!("the bucket is in another region ({self}); set AWS_REGION"))
            }
            Self::Status(400, message) if message.contains("Token") || message.contains("Authorization") => {
                Failure::Refused(format!("access refused ({self}); {}", kind.credentials()))
            }
            Self::Status(416, _) => Failure::Changed,
            Self::Status(..) => input(format!("the server answered {self}")),
        }
    }
}

impl fmt::Display for ErrorResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("the whole file instead of the requested range"),
            Self::Status(status, message) if message.is_empty() => write!(f, "status {status}"),
            Self::Status(status, message) => write!(f, "status {status}, {message}"),
        }
    }
}

impl StdError for ErrorResponse {}

/// Creates clients that preserve error responses as [`ErrorResponse`], where `object_store` makes texts of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatusConnector {
    /// Whether the client repeats requests after temporary failures. It then receives their responses as they are.
    pub(super) client_retries: bool,
}

impl HttpConnector for StatusConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(StatusClient { client, connector: *self }))
    }
}

#[derive(Debug)]
struct StatusClient {
    client: HttpClient,
    connector: StatusConnector,
}

#[async_trait]
impl HttpService for StatusClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let ranged = request.headers().contains_key("range");
        let metadata = request.uri().host().is_some_and(|host| METADATA_HOSTS.contains(&host));
        let response = self.client.execute(request).await?;
        let status = response.status().as_u16();
        let fail = |response| Err(HttpError::new(HttpErrorKind::Unknown, response));
        match status {
            200 if ranged => fail(ErrorResponse::Whole),
            // The library handles these, and all responses of metadata services.
            200..300 | 304 | 412 => Ok(response),
            _ if metadata => Ok(response),
            408 | 429 | 500.. if self.connector.client_retries && status != INSUFFICIENT_STORAGE => Ok(response),
            _ => {
                let length =
                    response.headers().get("content-length").and_then(|length| length.to_str().ok()?.parse().ok());
                let text = match length {
                    Some(MAX_ERROR_BODY..) => Default::default(),
                    _ => response.into_body().bytes().await?,
                };
                let text = String::from_utf8_lossy(&text);
                fail(ErrorResponse::Status(status, xml_error(&text).unwrap_or_default()))
            }
        }
    }
}
