//! A TCP connection of tokio, encrypted or plain.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::records::{Opener, Sealer};
use super::{Channel, Records};

/// Encrypted bytes that wait for the socket, at most. A further write waits for it.
const WAITING_BYTES: usize = 256 << 10;

/// A connection after its handshake.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: TcpStream,
    encryption: Option<Encryption>,
}

#[derive(Debug)]
struct Encryption {
    seal: Sealer,
    open: Opener,
    records: Records,
}

impl Stream {
    /// Makes a connection without encryption.
    pub(crate) fn plain(socket: TcpStream) -> Self {
        Stream { socket, encryption: None }
    }

    /// Makes a connection with the encryption of a handshake.
    pub(crate) fn encrypted(socket: TcpStream, Channel { seal, open }: Channel) -> Self {
        Stream { socket, encryption: Some(Encryption { seal, open, records: Records::default() }) }
    }

    /// Returns whether the connection is encrypted.
    #[cfg(test)]
    pub(crate) fn is_encrypted(&self) -> bool {
        self.encryption.is_some()
    }
}

impl Encryption {
    /// Sends encrypted bytes until none waits.
    fn poll_send(&mut self, socket: &mut TcpStream, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.records.unsent().is_empty() {
            match ready!(Pin::new(&mut *socket).poll_write(context, self.records.unsent()))? {
                0 => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                count => self.records.sent(count),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Encrypts and sends the first of `slices`. Bytes count as written when they are encrypted.
    fn poll_write(
        &mut self,
        socket: &mut TcpStream,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.records.unsent().len() >= WAITING_BYTES {
            ready!(self.poll_send(socket, context))?;
        }
        let mut count = 0;
        for slice in slices {
            let mut rest = &slice[..];
            while !rest.is_empty() && self.records.unsent().len() < WAITING_BYTES {
                let sealed = self.seal.seal(rest, &mut self.records)?;
                rest = &rest[sealed..];
                count += sealed;
            }
        }
        match self.poll_send(socket, context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(count)),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { socket, encryption } = self.get_mut();
        let Some(Encryption { open, .. }) = encryption else { return Pin::new(socket).poll_read(context, buffer) };
        loop {
            match open.read(buffer.initialize_unfilled())? {
                0 if buffer.remaining() > 0 => {}
                count => {
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
            }
            let mut space = ReadBuf::new(open.space());
            ready!(Pin::new(&mut *socket).poll_read(context, &mut space))?;
            match space.filled().len() {
                0 if open.is_between_records() => return Poll::Ready(Ok(())),
                0 => return Poll::Ready(Err(ErrorKind::UnexpectedEof.into())),
                count => open.receive(count),
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Self { socket, encryption } = self.get_mut();
        match encryption {
            Some(encryption) => encryption.poll_write(socket, context, slices),
            None => Pin::new(socket).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { socket, encryption } = self.get_mut();
        if let Some(encryption) = encryption {
            ready!(encryption.poll_send(socket, context))?;
        }
        Pin::new(socket).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { socket, encryption } = self.get_mut();
        if let Some(encryption) = encryption {
            ready!(encryption.poll_send(socket, context))?;
        }
        Pin::new(socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::super::Handshake;
    use super::*;

    async fn sockets() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dialer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (dialer, listener.accept().await.unwrap().0)
    }

    async fn streams() -> (Stream, Stream) {
        let (dialer, listener) = sockets().await;
        let (mut mine, mut theirs) = (Handshake::dialer(&[7; 32], b""), Handshake::listener(&[7; 32], b""));
        theirs.read(&mine.write(b"").unwrap()).unwrap();
        mine.read(&theirs.write(b"").unwrap()).unwrap();
        (Stream::encrypted(dialer, mine.finish().unwrap()), Stream::encrypted(listener, theirs.finish().unwrap()))
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn both_directions_carry_bytes_at_the_same_time() {
        run(async {
            let (one, two) = streams().await;
            let data: Vec<u8> = (0..3_000_000u32).map(|i| (i ^ (i >> 9)) as u8).collect();
            let transfer = |end: Stream| {
                let data = data.clone();
                async move {
                    let (mut reader, mut writer) = tokio::io::split(end);
                    let expected = data.clone();
                    let write = tokio::spawn(async move {
                        writer.write_all(&data).await.unwrap();
                        writer.shutdown().await.unwrap();
                    });
                    let mut read = Vec::new();
                    reader.read_to_end(&mut read).await.unwrap();
                    write.await.unwrap();
                    assert!(read == expected);
                }
            };
            let other = tokio::spawn(transfer(two));
            transfer(one).await;
            other.await.unwrap();
        });
    }

    #[test]
    fn a_connection_cut_inside_a_record_is_an_error() {
        run(async {
            let (mut one, mut two) = streams().await;
            one.socket.write_all(&[100, 0, 1]).await.unwrap();
            one.socket.shutdown().await.unwrap();
            assert_eq!(two.read(&mut [0; 8]).await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
            let (mut one, mut two) = streams().await;
            one.socket.write_all(&[0xff; 100]).await.unwrap();
            assert_eq!(two.read(&mut [0; 8]).await.unwrap_err().kind(), ErrorKind::InvalidData);
        });
    }
}
