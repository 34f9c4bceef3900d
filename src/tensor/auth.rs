//! Who may ask: both sides prove the shared secret in Flight's handshake, as on the connections between processes.
//!
//! ```text
//! client → server   version, nonce
//! server → client   version, nonce
//! client → server   HMAC(secret, "flight client" | both)
//! server → client   HMAC(secret, "flight server" | both), a token     or: wrong secret; or: another version
//! ```
//!
//! Versions are compared after the proof. The server shows its proof only to who has shown one. The token goes with every
//! call; it says itself that this server has made it, so that nothing is kept.

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

use super::{PROTOCOL, VERSION};
use crate::cluster::{Secret, mac, random_hex, same};

/// The name of the token among a call's metadata.
const TOKEN: &str = "authorization";
/// Lines about who was refused at most.
const LINES: u32 = 20;
/// How long a handshake may take.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(10);

/// What each side says of itself.
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

    /// What is wrong with another side's version.
    fn refuse(&self, other: &Self) -> Option<String> {
        let same = self.gnnflow == other.gnnflow && self.protocol == other.protocol;
        (!same).then(|| format!("is {}, and this is {}; both must be the same", other.version(), self.version()))
    }
}

/// What each side shows; the server with a token.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Proof {
    proof: String,
    #[serde(default)]
    token: String,
}

/// Without a secret (this machine only) the proof is one in form.
fn key(secret: Option<&Secret>) -> &[u8] {
    secret.map_or(&b"loopback"[..], Secret::as_bytes)
}

fn proof(secret: Option<&Secret>, role: &str, client: &Hello, server: &Hello) -> String {
    let both = serde_json::to_vec(&[client, server]).unwrap_or_default();
    hex(&mac(key(secret), role, &both))
}

fn equal(a: &str, b: &str) -> bool {
    same(a.as_bytes(), b.as_bytes())
}

/// The side that is asked.
#[derive(Debug)]
pub(super) struct Guard {
    secret: Option<Secret>,
    /// Of this process alone.
    key: Vec<u8>,
    refused: AtomicU32,
}

impl Guard {
    pub(super) fn new(secret: Option<Secret>) -> Result<Self, Status> {
        let key = random_hex(32).map_err(|error| Status::internal(error.to_string()))?.into_bytes();
        Ok(Self { secret, key, refused: AtomicU32::new(0) })
    }

    /// Somebody has been refused, which is worth a line, but not any number of them.
    pub(super) fn refused(&self, status: &Status) {
        if self.refused.fetch_add(1, Ordering::Relaxed) < LINES {
            tracing::warn!("refused somebody who asked this process's Flight server: {}", status.message());
        }
    }

    /// Answers a client's first word.
    pub(super) fn hello(&self, payload: &[u8]) -> Result<(Hello, Hello), Status> {
        let theirs = serde_json::from_slice(payload)
            .map_err(|_| Status::unauthenticated("does not speak gnnflow's protocol of tensor workers"))?;
        Ok((theirs, Hello::new()?))
    }

    /// Answers its proof.
    pub(super) fn admit(&self, client: &Hello, server: &Hello, payload: &[u8]) -> Result<Vec<u8>, Status> {
        let shown: Proof = serde_json::from_slice(payload).unwrap_or_default();
        let secret = self.secret.as_ref();
        if !equal(&shown.proof, &proof(secret, "flight client", client, server)) {
            return Err(Status::unauthenticated("wrong secret"));
        }
        if let Some(why) = server.refuse(client) {
            return Err(Status::failed_precondition(format!("who asks {why}")));
        }
        let token = format!("{}.{}", server.nonce, self.seal(&server.nonce));
        let answer = Proof { proof: proof(secret, "flight server", client, server), token };
        serde_json::to_vec(&answer).map_err(|error| Status::internal(error.to_string()))
    }

    fn seal(&self, nonce: &str) -> String {
        hex(&mac(&self.key, "flight token", nonce.as_bytes()))
    }

    /// Whether a call comes from somebody who has proven the secret.
    ///
    /// # Errors
    /// When it does not.
    pub(super) fn check(&self, metadata: &MetadataMap) -> Result<(), Status> {
        let token = metadata.get(TOKEN).and_then(|token| token.to_str().ok()).unwrap_or_default();
        match token.split_once('.') {
            Some((nonce, seal)) if equal(seal, &self.seal(nonce)) => Ok(()),
            _ => Err(Status::unauthenticated("no token of this server: shake hands first")),
        }
    }
}

/// Why somebody is not listened to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Why {
    /// It never will be: what it is does not change.
    Refused(String),
    /// It may be later.
    Lost(String),
}

impl Why {
    /// What a status says.
    pub(super) fn of(status: &Status) -> Self {
        use tonic::Code::{FailedPrecondition, InvalidArgument, Unauthenticated, Unimplemented};
        match status.code() {
            Unauthenticated | FailedPrecondition | InvalidArgument | Unimplemented => Self::Refused(refusal(status)),
            _ => Self::Lost(refusal(status)),
        }
    }
}

impl From<Why> for String {
    fn from(why: Why) -> Self {
        match why {
            Why::Refused(why) | Why::Lost(why) => why,
        }
    }
}

/// A connection to a server that has proven the secret.
#[derive(Clone, Debug)]
pub(super) struct Known {
    client: FlightServiceClient<Channel>,
    token: String,
}

impl Known {
    /// Connects to `address` and shakes hands.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) async fn connect(address: &str, secret: Option<&Secret>, limit: Duration) -> Result<Self, Why> {
        let all = tokio::time::timeout(limit.min(HANDSHAKE), Self::shake(address, secret));
        let late = || Err(Why::Lost("connected, or did not, but said nothing in time".to_owned()));
        all.await.unwrap_or_else(|_| late())
    }

    async fn shake(address: &str, secret: Option<&Secret>) -> Result<Self, Why> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let endpoint = endpoint.map_err(|error| Why::Refused(error.to_string()))?;
        let endpoint = endpoint.connect_timeout(HANDSHAKE).tcp_nodelay(true).initial_stream_window_size(1 << 20);
        let unreachable = |error: &dyn std::error::Error| Why::Lost(format!("cannot be reached: {}", root(error)));
        let channel = endpoint.connect().await.map_err(|error| unreachable(&error))?;
        let mut client = FlightServiceClient::new(channel);
        // Whoever answers in another protocol, or hangs up, is told of by the library that reads frames.
        let words = |status: Status| match status.message().starts_with("h2 protocol error") {
            true => Why::Lost("answers, but not in gnnflow's protocol of tensor workers, or hangs up".to_owned()),
            false => Why::of(&status),
        };
        let text = |error: serde_json::Error| Why::Refused(error.to_string());
        let (say, said) = mpsc::channel::<HandshakeRequest>(2);
        let mine = Hello::new().map_err(words)?;
        let send =
            |payload: Vec<u8>| HandshakeRequest { protocol_version: u64::from(PROTOCOL), payload: payload.into() };
        let closed = || Why::Lost("closed the connection during the handshake".to_owned());
        say.send(send(serde_json::to_vec(&mine).map_err(text)?)).await.map_err(|_| closed())?;
        let said =
            futures_util::stream::unfold(said, |mut said| async move { said.recv().await.map(|next| (next, said)) });
        let mut heard = client.handshake(said).await.map_err(words)?.into_inner();
        let hello = heard.message().await.map_err(words)?.ok_or_else(closed)?;
        let theirs: Hello = serde_json::from_slice(&hello.payload)
            .map_err(|_| Why::Refused("does not speak gnnflow's protocol of tensor workers".to_owned()))?;
        let shown = Proof { proof: proof(secret, "flight client", &mine, &theirs), token: String::new() };
        say.send(send(serde_json::to_vec(&shown).map_err(text)?)).await.map_err(|_| closed())?;
        let answer = heard.message().await.map_err(words)?.ok_or_else(closed)?;
        let answer: Proof = serde_json::from_slice(&answer.payload).unwrap_or_default();
        if !equal(&answer.proof, &proof(secret, "flight server", &mine, &theirs)) {
            return Err(Why::Refused("showed a wrong secret".to_owned()));
        }
        if let Some(why) = mine.refuse(&theirs) {
            return Err(Why::Refused(why));
        }
        Ok(Self { client, token: answer.token })
    }

    /// A client, and a request with the token.
    pub(super) fn ask<T>(&self, message: T) -> Result<(FlightServiceClient<Channel>, Request<T>), String> {
        let mut request = Request::new(message);
        let token = self.token.parse().map_err(|_| "gave a token that is no text".to_owned())?;
        request.metadata_mut().insert(TOKEN, token);
        Ok((self.client.clone(), request))
    }
}

/// A status in words.
pub(super) fn refusal(status: &Status) -> String {
    match (status.code(), status.message()) {
        (tonic::Code::Unauthenticated, "wrong secret") => "says that this process has a wrong secret".to_owned(),
        (tonic::Code::Unauthenticated | tonic::Code::FailedPrecondition | tonic::Code::InvalidArgument, message) => {
            format!("refused: {}", message.chars().take(300).collect::<String>())
        }
        (tonic::Code::Unimplemented, _) => "does not speak gnnflow's protocol of tensor workers".to_owned(),
        (_, message) => message.chars().take(300).collect(),
    }
}

/// The innermost cause of an error.
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
    fn who_knows_the_secret_gets_a_token_and_nobody_else() {
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
        // Another server's token is none of this one's.
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
    fn another_version_is_refused_with_both_named() {
        let guard = Guard::new(None).unwrap();
        let other = Hello { gnnflow: "9.9.9".to_owned(), ..Hello::new().unwrap() };
        let (client, server) = guard.hello(&serde_json::to_vec(&other).unwrap()).unwrap();
        let shown = Proof { proof: proof(None, "flight client", &client, &server), token: String::new() };
        let status = guard.admit(&client, &server, &serde_json::to_vec(&shown).unwrap()).unwrap_err();
        assert!(status.message().contains("9.9.9") && status.message().contains(VERSION), "{status}");
    }
}
