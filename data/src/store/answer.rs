//! What servers and networks say, made sense of: what may be tried again, and what to tell the user.

use std::error::Error as StdError;
use std::fmt;

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};

use super::address::Kind;
use crate::error::Fault;

/// Length of an error's text that is no longer read.
const TEXT: u64 = 64 << 10;

/// Where clouds tell their own machines credentials.
const METADATA: [&str; 3] = ["169.254.169.254", "169.254.170.2", "metadata.google.internal"];

/// Why a request failed.
#[derive(Debug)]
pub(super) enum Trouble {
    /// It may pass.
    Passing(String),
    /// There is no such object or bucket.
    Missing(String),
    /// The credentials were refused, or there are none.
    Refused(String),
    /// The object is no longer the one that was opened.
    Changed,
    /// It will not do, however often it is tried.
    Final {
        /// What is wrong and what to do.
        problem: String,
        /// Whose fault it is.
        fault: Fault,
    },
}

impl Trouble {
    /// Makes sense of an error of the library.
    pub(super) fn new(error: &object_store::Error, kind: Kind) -> Self {
        if let Some(trouble) = Self::in_chain(error, kind) {
            return trouble;
        }
        match error {
            object_store::Error::Precondition { .. } | object_store::Error::NotModified { .. } => Self::Changed,
            _ => Self::Final { problem: one_line(&error.to_string()), fault: Fault::Input },
        }
    }

    /// A setting of the environment that no client can be made with.
    pub(super) fn setting(error: &object_store::Error, kind: Kind) -> Self {
        let problem = format!("{}; {}", one_line(&error.to_string()), kind.credentials());
        Self::Final { problem, fault: Fault::Usage }
    }

    fn in_chain(error: &object_store::Error, kind: Kind) -> Option<Self> {
        let text = error.to_string();
        if METADATA.iter().any(|host| text.contains(host)) {
            // The last resort of every client is to ask the cloud's machine that it runs on.
            return Some(Self::Refused(format!("no credentials; {}", kind.credentials())));
        }
        for error in chain(error) {
            if let Some(answer) = error.downcast_ref::<Answer>() {
                return Some(answer.trouble(kind));
            }
            if let Some(tls) = tls(error) {
                let problem = format!(
                    "TLS failed ({tls}); check the address, the clock, and the certificates of this machine (or set \
                     SSL_CERT_FILE)"
                );
                return Some(Self::Final { problem, fault: Fault::Cluster });
            }
            if error.to_string().contains("URL scheme is not allowed") {
                let name = kind.allow_http();
                let problem = format!("the endpoint has no TLS; use an https endpoint, or set {name}=true");
                return Some(Self::Final { problem, fault: Fault::Usage });
            }
        }
        let http = chain(error).find_map(|error| error.downcast_ref::<HttpError>())?;
        let cause = chain(http).last().map_or_else(|| http.to_string(), ToString::to_string);
        Some(Self::Passing(one_line(&match http.kind() {
            HttpErrorKind::Connect => format!("no connection: {cause}"),
            HttpErrorKind::Timeout => "no answer in time".to_owned(),
            _ => format!("connection lost: {cause}"),
        })))
    }
}

/// An error and what caused it, and so on.
fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// An error of TLS, which may hide in errors of the system.
fn tls<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    error.downcast_ref().or_else(|| tls(error.downcast_ref::<std::io::Error>()?.get_ref()?))
}

/// Code and message of the XML that object stores explain errors with.
fn said(text: &str) -> Option<String> {
    let tag = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        Some(one_line(rest.split_once('<')?.0))
    };
    let (code, message) = (tag("Code")?, tag("Message"));
    Some(message.map_or_else(|| code.clone(), |message| format!("{code}: {message}")))
}

/// A text of another program: on one line, and not too long.
pub(super) fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(300) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// An answer that is no object, and that `object_store` would not tell apart.
#[derive(Debug)]
enum Answer {
    /// Status and explanation.
    Status(u16, String),
    /// All of the object, where a part was asked for.
    Whole,
}

impl Answer {
    fn trouble(&self, kind: Kind) -> Trouble {
        let input = |problem: String| Trouble::Final { problem, fault: Fault::Input };
        match self {
            Self::Whole => input("the server ignores the header Range; download the file".into()),
            Self::Status(401 | 403, _) => Trouble::Refused(format!("access refused ({self}); {}", kind.credentials())),
            Self::Status(404, said)
                if ["NoSuchBucket", "ContainerNotFound"].iter().any(|code| said.starts_with(code)) =>
            {
                let holder = kind.bucket();
                Trouble::Missing(format!("there is no such {holder}; check its name, the region and the endpoint"))
            }
            Self::Status(404, _) => Trouble::Missing("there is no such object".to_owned()),
            Self::Status(408 | 429 | 500.., _) => Trouble::Passing(self.to_string()),
            Self::Status(300..400, _) if kind == Kind::S3 => {
                input(format!("the bucket is in another region ({self}); set AWS_REGION"))
            }
            Self::Status(400, said) if said.contains("Token") || said.contains("Authorization") => {
                Trouble::Refused(format!("access refused ({self}); {}", kind.credentials()))
            }
            Self::Status(416, _) => Trouble::Changed,
            Self::Status(..) => input(format!("the server answered {self}")),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("the whole file instead of the requested range"),
            Self::Status(status, said) if said.is_empty() => write!(f, "status {status}"),
            Self::Status(status, said) => write!(f, "status {status}, {said}"),
        }
    }
}

impl StdError for Answer {}

/// Makes clients that keep what a server answered, as an [`Answer`], where `object_store` would make it a text.
#[derive(Debug)]
pub(super) struct Attentive;

impl HttpConnector for Attentive {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(AttentiveClient(ReqwestConnector::default().connect(options)?)))
    }
}

#[derive(Debug)]
struct AttentiveClient(HttpClient);

#[async_trait]
impl HttpService for AttentiveClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let part = request.headers().contains_key("range");
        let metadata = request.uri().host().is_some_and(|host| METADATA.contains(&host));
        let response = self.0.execute(request).await?;
        let status = response.status().as_u16();
        let fail = |answer| Err(HttpError::new(HttpErrorKind::Unknown, answer));
        match status {
            200 if part => fail(Answer::Whole),
            // These mean something to the library too, as anything does that the cloud's machine says.
            200..300 | 304 | 412 => Ok(response),
            _ if metadata => Ok(response),
            _ => {
                let length =
                    response.headers().get("content-length").and_then(|length| length.to_str().ok()?.parse().ok());
                let text = match length {
                    Some(TEXT..) => Default::default(),
                    _ => response.into_body().bytes().await?,
                };
                let text = String::from_utf8_lossy(&text);
                fail(Answer::Status(status, said(&text).unwrap_or_default()))
            }
        }
    }
}
