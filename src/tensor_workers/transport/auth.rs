//! Authentication: both sides prove the shared secret in Flight's handshake, as on the connections between processes.
//!
//! ```text
//! client → server   version, nonce
//! server → client   version, nonce
//! client → server   HMAC(secret, "flight client" | both)
//! server → client   HMAC(secret, "flight server" | both), a token     or: wrong secret; or: another version
//! ```
//!
//! Versions are compared after the proof. The server sends its proof only after the client's. The token is part of every call;
//! it carries the server's own signature, so the server keeps no list of tokens.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use arrow_flight::HandshakeRequest;
use arrow_flight::flight_service_client::FlightServiceClient;
use gnnflow_data::format::hex;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use super::{CONNECTION_WINDOW, FRAME_BYTES, PROTOCOL, STREAM_WINDOW, VERSION};
use crate::cluster::{Secret, constant_time_eq, mac, random_hex};

/// Name of the token in a call's metadata.
const TOKEN: &str = "authorization";
/// Maximum number of log lines about refused clients.
const MAX_WARNINGS: u32 = 20;
/// Time limit of a handshake.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The first message of each side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) gnnflow: String,
    pub(super) protocol: u32,
    pub(super) nonce: String,
}

impl Hello {
    pub(super) fn new() -> Result<Self, Status> {
        let nonce = random_hex(32).map_err(|error| Status::internal(error.to_string()))?;
        Ok(Self { gnnflow: VERSION.to_owned(), protocol: PROTOCOL, nonce })
    }

    fn version(&self) -> String {
        format!("gnnflow {} (protocol {})", self.gnnflow.chars().take(40).collect::<String>(), self.protocol)
    }

    /// Returns an error text if the other side has another version.
    fn version_mismatch(&self, other: &Self) -> Option<String> {
        let same = self.gnnflow == other.gnnflow && self.protocol == other.protocol;
        (!same).then(|| format!("is {}, and this is {}; both must be the same", other.version(), self.version()))
    }
}

/// The second message of each side. The server's has a token.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Proof {
    proof: String,
    #[serde(default)]
    token: String,
}

/// Without a secret (on this machine only), the proof uses a constant key.
fn key(secret: Option<&Secret>) -> &[u8] {
    secret.map_or(&b"loopback"[..], Secret::as_bytes)
}

fn proof(secret: Option<&Secret>, role: &str, client: &Hello, server: &Hello) -> String {
    let both = serde_json::to_vec(&[client, server]).unwrap_or_default();
    hex(&mac(key(secret), role, &both))
}

fn equal(a: &str, b: &str) -> bool {
    constant_time_eq(a.as_bytes(), b.as_bytes())
}

/// The server's side of the handshake.
#[derive(Debug)]
pub(super) struct Guard {
    secret: Option<Secret>,
    /// Signs tokens; random in each process.
    key: Vec<u8>,
    refused: AtomicU32,
}

impl Guard {
    pub(super) fn new(secret: Option<Secret>) -> Result<Self, Status> {
        let key = random_hex(32).map_err(|error| Status::internal(error.to_string()))?.into_bytes();
        Ok(Self { secret, key, refused: AtomicU32::new(0) })
    }

    /// Logs that a client has been refused, a limited number of times.
    pub(super) fn log_refusal(&self, status: &Status) {
        if self.refused.fetch_add(1, Ordering::Relaxed) < MAX_WARNINGS {
            tracing::warn!("this process's Flight server refused a client: {}", status.message());
        }
    }

    /// Answers a client's first message. Returns it and this side's.
    pub(super) fn hello(&self, payload: &[u8]) -> Result<(Hello, Hello), Status> {
        let theirs = serde_json::from_slice(payload)
            .map_err(|_| Status::unauthenticated("does not speak gnnflow's tensor-worker protocol"))?;
        Ok((theirs, Hello::new()?))
    }

    /// Checks a client's proof and answers with this side's proof and a token.
    pub(super) fn admit(&self, client: &Hello, server: &Hello, payload: &[u8]) -> Result<Vec<u8>, Status> {
        let shown: Proof = serde_json::from_slice(payload).unwrap_or_default();
        let secret = self.secret.as_ref();
        if !equal(&shown.proof, &proof(secret, "flight client", client, server)) {
            return Err(Status::unauthenticated("wrong secret"));
        }
        if let Some(error) = server.version_mismatch(client) {
            return Err(Status::failed_precondition(format!("the client {error}")));
        }
        let token = format!("{}.{}", server.nonce, self.sign(&server.nonce));
        let answer = Proof { proof: proof(secret, "flight server", client, server), token };
        serde_json::to_vec(&answer).map_err(|error| Status::internal(error.to_string()))
    }

    fn sign(&self, nonce: &str) -> String {
        hex(&mac(&self.key, "flight token", nonce.as_bytes()))
    }

    /// Checks the token of a call.
    ///
    /// # Errors
    /// If the token is missing or not of this server.
    pub(super) fn check(&self, metadata: &MetadataMap) -> Result<(), Status> {
        let token = metadata.get(TOKEN).and_then(|token| token.to_str().ok()).unwrap_or_default();
        match token.split_once('.') {
            Some((nonce, signature)) if equal(signature, &self.sign(nonce)) => Ok(()),
            _ => Err(Status::unauthenticated("the call has no token of this server; a handshake gives one")),
        }
    }
}

/// A connection could not be made, or was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ConnectError {
    /// A later attempt would fail in the same way.
    Refused(String),
    /// A later attempt may succeed.
    Lost(String),
}

impl ConnectError {
    /// Makes the error of a status.
    pub(super) fn of(status: &Status) -> Self {
        use tonic::Code::{FailedPrecondition, InvalidArgument, Unauthenticated, Unimplemented};
        match status.code() {
            Unauthenticated | FailedPrecondition | InvalidArgument | Unimplemented => Self::Refused(describe(status)),
            _ => Self::Lost(describe(status)),
        }
    }
}

impl From<ConnectError> for String {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Refused(text) | ConnectError::Lost(text) => text,
        }
    }
}

/// A client of a server that has proven the secret.
#[derive(Clone, Debug)]
pub(super) struct AuthenticatedClient {
    client: FlightServiceClient<Channel>,
    token: String,
}

impl AuthenticatedClient {
    /// Connects to `address` and makes the handshake.
    ///
    /// # Errors
    /// If the server cannot be reached, refuses this client, or fails to prove the secret.
    pub(super) async fn connect(address: &str, secret: Option<&Secret>, limit: Duration) -> Result<Self, ConnectError> {
        let client = tokio::time::timeout(limit.min(HANDSHAKE_TIMEOUT), Self::handshake(address, secret));
        let late = || Err(ConnectError::Lost("did not answer the handshake in time".to_owned()));
        client.await.unwrap_or_else(|_| late())
    }

    async fn handshake(address: &str, secret: Option<&Secret>) -> Result<Self, ConnectError> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let endpoint = endpoint.map_err(|error| ConnectError::Refused(error.to_string()))?;
        let endpoint = endpoint.connect_timeout(HANDSHAKE_TIMEOUT).tcp_nodelay(true);
        let endpoint = endpoint.initial_stream_window_size(STREAM_WINDOW).max_frame_size(FRAME_BYTES);
        let endpoint = endpoint.initial_connection_window_size(CONNECTION_WINDOW);
        let unreachable =
            |error: &dyn std::error::Error| ConnectError::Lost(format!("cannot be reached: {}", root(error)));
        let channel = endpoint.connect().await.map_err(|error| unreachable(&error))?;
        let mut client = FlightServiceClient::new(channel);
        // The HTTP/2 library reports a server of another protocol, or one that hangs up, by this text.
        let failed = |status: Status| {
            if status.message().starts_with("h2 protocol error") {
                let text = "does not speak gnnflow's tensor-worker protocol, or closed the connection";
                return ConnectError::Lost(text.to_owned());
            }
            ConnectError::of(&status)
        };
        let text = |error: serde_json::Error| ConnectError::Refused(error.to_string());
        let (sender, receiver) = mpsc::channel::<HandshakeRequest>(2);
        let mine = Hello::new().map_err(failed)?;
        let request =
            |payload: Vec<u8>| HandshakeRequest { protocol_version: u64::from(PROTOCOL), payload: payload.into() };
        let closed = || ConnectError::Lost("closed the connection during the handshake".to_owned());
        sender.send(request(serde_json::to_vec(&mine).map_err(text)?)).await.map_err(|_| closed())?;
        let requests = futures_util::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|next| (next, receiver))
        });
        let mut responses = client.handshake(requests).await.map_err(failed)?.into_inner();
        let hello = responses.message().await.map_err(failed)?.ok_or_else(closed)?;
        let theirs: Hello = serde_json::from_slice(&hello.payload)
            .map_err(|_| ConnectError::Refused("does not speak gnnflow's tensor-worker protocol".to_owned()))?;
        let own = Proof { proof: proof(secret, "flight client", &mine, &theirs), token: String::new() };
        sender.send(request(serde_json::to_vec(&own).map_err(text)?)).await.map_err(|_| closed())?;
        let answer = responses.message().await.map_err(failed)?.ok_or_else(closed)?;
        let answer: Proof = serde_json::from_slice(&answer.payload).unwrap_or_default();
        if !equal(&answer.proof, &proof(secret, "flight server", &mine, &theirs)) {
            return Err(ConnectError::Refused("proved a wrong secret".to_owned()));
        }
        if let Some(error) = mine.version_mismatch(&theirs) {
            return Err(ConnectError::Refused(error));
        }
        Ok(Self { client, token: answer.token })
    }

    /// Returns a Flight client, and `message` as a request with the token.
    pub(super) fn request<T>(&self, message: T) -> Result<(FlightServiceClient<Channel>, Request<T>), String> {
        let mut request = Request::new(message);
        let token = self.token.parse().map_err(|_| "sent a token that is not text".to_owned())?;
        request.metadata_mut().insert(TOKEN, token);
        Ok((self.client.clone(), request))
    }
}

/// Describes a status as a predicate of the server.
pub(super) fn describe(status: &Status) -> String {
    match (status.code(), status.message()) {
        (tonic::Code::Unauthenticated, "wrong secret") => "says that this process has a wrong secret".to_owned(),
        (tonic::Code::Unauthenticated | tonic::Code::FailedPrecondition | tonic::Code::InvalidArgument, message) => {
            format!("refused: {}", message.chars().take(300).collect::<String>())
        }
        (tonic::Code::Unimplemented, _) => "does not speak gnnflow's tensor-worker protocol".to_owned(),
        (_, message) => message.chars().take(300).collect(),
    }
}

/// Returns the innermost cause of an error.
fn root(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => root(source),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Option<Secret> {
        Some(Secret::from_text(text, "test").unwrap())
    }

    #[test]
    fn admit_gives_a_token_only_for_the_secret() {
        let guard = Guard::new(secret("sixteen bytes ok")).unwrap();
        let mine = Hello::new().unwrap();
        let (client, server) = guard.hello(&serde_json::to_vec(&mine).unwrap()).unwrap();
        assert_eq!(client, mine);
        let show = |secret: Option<Secret>, role: &str| {
            let proof = proof(secret.as_ref(), role, &client, &server);
            guard.admit(&client, &server, &serde_json::to_vec(&Proof { proof, token: String::new() }).unwrap())
        };
        let answer: Proof =
            serde_json::from_slice(&show(secret("sixteen bytes ok"), "flight client").unwrap()).unwrap();
        let mut metadata = MetadataMap::new();
        assert!(guard.check(&metadata).is_err());
        metadata.insert(TOKEN, answer.token.parse().unwrap());
        guard.check(&metadata).unwrap();
        // Another server's token is not valid here.
        assert!(Guard::new(secret("sixteen bytes ok")).unwrap().check(&metadata).is_err());
        for (wrong, role) in [
            (secret("sixteen bytes no"), "flight client"),
            (secret("sixteen bytes ok"), "flight server"),
            (None, "flight client"),
        ] {
            assert_eq!(show(wrong, role).unwrap_err().message(), "wrong secret");
        }
        assert!(guard.hello(b"GET / HTTP/1.1").is_err());
    }

    #[test]
    fn admit_of_another_version_names_both() {
        let guard = Guard::new(None).unwrap();
        let other = Hello { gnnflow: "9.9.9".to_owned(), ..Hello::new().unwrap() };
        let (client, server) = guard.hello(&serde_json::to_vec(&other).unwrap()).unwrap();
        let shown = Proof { proof: proof(None, "flight client", &client, &server), token: String::new() };
        let status = guard.admit(&client, &server, &serde_json::to_vec(&shown).unwrap()).unwrap_err();
        assert!(status.message().contains("9.9.9") && status.message().contains(VERSION), "{status}");
    }
}
