//! The handshake of a connection, before HTTP/2: both sides prove the secret, as on the connections between processes.
//!
//! ```text
//! client → server   magic, Noise message: version, whether to encrypt
//! server → client   magic, Noise message: version                        or an empty message: wrong secret
//! client → server   an encrypted record                                  which completes the client's proof
//! ```
//!
//! Each side compares versions when it has read the other's message. The client decides whether the connection is encrypted.

use std::io::{self, ErrorKind};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{PROTOCOL, VERSION};
use crate::cluster::Secret;
use crate::encryption::{CHANGED, Handshake, Records, Sealer, Stream};

/// Time limit of a handshake.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

const MAGIC: &[u8; 8] = b"gnnflowT";
/// Maximum bytes of a message.
const MAX_MESSAGE: usize = 1 << 10;

/// The content of a Noise message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Hello {
    gnnflow: String,
    protocol: u32,
    encrypt: bool,
}

impl Hello {
    fn new(encrypt: bool) -> Self {
        Self { gnnflow: VERSION.to_owned(), protocol: PROTOCOL, encrypt }
    }

    /// Returns an error text if the other side has another version.
    fn version_mismatch(&self, other: &Self) -> Option<String> {
        let same = self.gnnflow == other.gnnflow && self.protocol == other.protocol;
        (!same).then(|| format!("is {}, and this is {}; both must be the same", other.version(), self.version()))
    }

    fn version(&self) -> String {
        format!("gnnflow {} (protocol {})", self.gnnflow.chars().take(40).collect::<String>(), self.protocol)
    }
}

/// A handshake failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HandshakeError {
    /// The server says that the client has another secret; or the client has proven a wrong one.
    WrongSecret,
    /// The server has proven a wrong secret.
    WrongProof,
    /// The two sides have different versions.
    Version(String),
    /// The other side speaks another protocol, or the connection was lost.
    Lost(String),
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        Self::Lost(match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                "closed the connection during the handshake".to_owned()
            }
            _ if error.to_string() == CHANGED => "sent no valid proof of the secret".to_owned(),
            _ => error.to_string(),
        })
    }
}

fn other_protocol() -> HandshakeError {
    HandshakeError::Lost("does not speak gnnflow's tensor-worker protocol".to_owned())
}

async fn write(socket: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    socket.write_all(&[&MAGIC[..], &(message.len() as u32).to_le_bytes(), message].concat()).await
}

async fn read(socket: &mut TcpStream) -> Result<Vec<u8>, HandshakeError> {
    let (mut magic, mut length) = ([0; 8], [0; 4]);
    socket.read_exact(&mut magic).await?;
    if &magic != MAGIC {
        return Err(other_protocol());
    }
    socket.read_exact(&mut length).await?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_MESSAGE {
        return Err(other_protocol());
    }
    let mut message = vec![0; length];
    socket.read_exact(&mut message).await?;
    Ok(message)
}

fn hello_of(payload: &[u8]) -> Result<Hello, HandshakeError> {
    serde_json::from_slice(payload).map_err(|_| other_protocol())
}

/// Makes the client's handshake. `encrypt` is the user's choice; by default, connections are encrypted unless the server's address is a
/// loopback address.
///
/// # Errors
/// If the server has another secret or version, or closes the connection.
pub(super) async fn dial(
    mut socket: TcpStream,
    secret: Option<&Secret>,
    encrypt: Option<bool>,
) -> Result<Stream, HandshakeError> {
    let encrypt = match encrypt {
        Some(encrypt) => encrypt,
        None => !socket.peer_addr()?.ip().is_loopback(),
    };
    let (hello, mut noise) = (Hello::new(encrypt), Handshake::dialer(&Secret::key(secret), MAGIC));
    let payload = serde_json::to_vec(&hello).map_err(io::Error::from)?;
    write(&mut socket, &noise.write(&payload)?).await?;
    let answer = read(&mut socket).await?;
    if answer.is_empty() {
        return Err(HandshakeError::WrongSecret);
    }
    let theirs = hello_of(&noise.read(&answer).ok_or(HandshakeError::WrongProof)?)?;
    if let Some(mismatch) = hello.version_mismatch(&theirs) {
        return Err(HandshakeError::Version(mismatch));
    }
    let (mut channel, mut records) = (noise.finish()?, Records::default());
    channel.seal.seal(&[1], &mut records)?;
    socket.write_all(records.unsent()).await?;
    Ok(if encrypt { Stream::encrypted(socket, channel) } else { Stream::plain(socket) })
}

/// Makes the server's handshake.
///
/// # Errors
/// If the client has another secret or version, or closes the connection.
pub(super) async fn accept(mut socket: TcpStream, secret: Option<&Secret>) -> Result<Stream, HandshakeError> {
    let message = read(&mut socket).await?;
    let mut noise = Handshake::listener(&Secret::key(secret), MAGIC);
    let Some(payload) = noise.read(&message) else {
        write(&mut socket, &[]).await?;
        return Err(HandshakeError::WrongSecret);
    };
    let theirs = hello_of(&payload)?;
    let hello = Hello::new(theirs.encrypt);
    let payload = serde_json::to_vec(&hello).map_err(io::Error::from)?;
    write(&mut socket, &noise.write(&payload)?).await?;
    if let Some(mismatch) = hello.version_mismatch(&theirs) {
        return Err(HandshakeError::Version(mismatch));
    }
    let mut channel = noise.finish()?;
    let mut record = [0; Sealer::bytes_of(1)];
    socket.read_exact(&mut record).await?;
    channel.open.open_one(&mut &record[..])?;
    Ok(if theirs.encrypt { Stream::encrypted(socket, channel) } else { Stream::plain(socket) })
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn secret(text: &str) -> Option<Secret> {
        Some(Secret::from_text(text, "test").unwrap())
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(future)
    }

    /// Returns the results of a client and a server, which have these secrets.
    fn both(
        client: Option<Secret>,
        server: Option<Secret>,
        encrypt: Option<bool>,
    ) -> [Result<Stream, HandshakeError>; 2] {
        run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let accepted = tokio::spawn(async move {
                let (socket, _) = listener.accept().await.unwrap();
                accept(socket, server.as_ref()).await
            });
            [dial(socket, client.as_ref(), encrypt).await, accepted.await.unwrap()]
        })
    }

    #[test]
    fn handshake_succeeds_only_with_equal_secrets() {
        for encrypt in [None, Some(true), Some(false)] {
            let [client, server] = both(secret("sixteen bytes ok"), secret("sixteen bytes ok"), encrypt);
            let (client, server) = (client.unwrap(), server.unwrap());
            assert_eq!([&client, &server].map(Stream::is_encrypted), [encrypt == Some(true); 2]);
        }
        assert!(both(None, None, None).iter().all(Result::is_ok));
        for other in [secret("sixteen bytes no"), None] {
            let results = both(secret("sixteen bytes ok"), other, None);
            assert!(results.iter().all(|result| matches!(result, Err(HandshakeError::WrongSecret))), "{results:?}");
        }
    }

    #[test]
    fn other_protocols_are_refused() {
        for sent in [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], b"gnnflow\0", b"gnnflowT\xff\xff\xff\xff", b""] {
            let result = run(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let mut socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
                socket.write_all(sent).await.unwrap();
                socket.shutdown().await.unwrap();
                accept(listener.accept().await.unwrap().0, None).await
            });
            assert!(matches!(result, Err(HandshakeError::Lost(_))), "{sent:?}: {result:?}");
        }
    }

    #[test]
    fn error_of_another_version_names_both() {
        let other = Hello { gnnflow: "9.9.9".to_owned(), ..Hello::new(false) };
        let text = Hello::new(false).version_mismatch(&other).unwrap();
        assert!(text.contains("9.9.9") && text.contains(VERSION), "{text}");
        assert_eq!(Hello::new(false).version_mismatch(&Hello::new(true)), None);
    }
}
