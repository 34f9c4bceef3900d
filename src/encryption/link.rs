//! A TCP connection between two processes, encrypted or plain, with blocking calls.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use timely::communication::allocator::zero_copy::stream::Stream;

use super::records::{Opener, Sealer};
use super::traffic::Traffic;
use super::{Channel, Records};

/// Bytes that one call of `write` encrypts at most.
const WRITE_BYTES: usize = 128 << 10;

/// A connection after its handshake. Clones share the connection and its encryption; one may read while another one writes.
///
/// The end of the connection is not authenticated. The messages that it carries have an end of their own: timely's last header, and the
/// goodbye of a process.
#[derive(Debug)]
pub(crate) struct Link {
    socket: TcpStream,
    encryption: Option<Arc<Encryption>>,
    traffic: Arc<Traffic>,
}

#[derive(Debug)]
struct Encryption {
    outgoing: Mutex<Outgoing>,
    incoming: Mutex<Opener>,
}

#[derive(Debug)]
struct Outgoing {
    seal: Sealer,
    records: Records,
    /// Whether a record was sent in part, after which nothing can be sent any more.
    broken: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    /// Makes a connection without encryption.
    pub(crate) fn plain(socket: TcpStream) -> Self {
        Link { socket, encryption: None, traffic: Arc::default() }
    }

    /// Makes a connection with the encryption of a handshake.
    pub(crate) fn encrypted(socket: TcpStream, Channel { seal, open }: Channel) -> Self {
        let outgoing = Outgoing { seal, records: Records::default(), broken: false };
        let encryption = Encryption { outgoing: outgoing.into(), incoming: open.into() };
        Link { socket, encryption: Some(Arc::new(encryption)), traffic: Arc::default() }
    }

    /// Adds the bytes of this connection, and of clones that are made later, to `traffic`.
    pub(crate) fn count_in(&mut self, traffic: &Arc<Traffic>) {
        self.traffic = Arc::clone(traffic);
    }

    /// Returns the socket, for its options.
    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }
}

impl Read for Link {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let Some(encryption) = &self.encryption else {
            return self.socket.read(bytes).inspect(|&count| self.traffic.add_received(count));
        };
        let mut open = lock(&encryption.incoming);
        loop {
            match open.read(bytes)? {
                0 if !bytes.is_empty() => {}
                count => return Ok(count),
            }
            match self.socket.read(open.space())? {
                0 if open.is_between_records() => return Ok(0),
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => {
                    self.traffic.add_received(count);
                    open.receive(count);
                }
            }
        }
    }
}

impl Write for Link {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(encryption) = &self.encryption else {
            return self.socket.write(bytes).inspect(|&count| self.traffic.add_sent(count));
        };
        let Outgoing { seal, records, broken } = &mut *lock(&encryption.outgoing);
        if *broken {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let bytes = &bytes[..bytes.len().min(WRITE_BYTES)];
        *broken = true;
        seal.seal_all(bytes, records)?;
        self.socket.write_all(records.unsent())?;
        self.traffic.add_sent(records.unsent().len());
        records.sent(records.unsent().len());
        *broken = false;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

impl Stream for Link {
    fn try_clone(&self) -> io::Result<Self> {
        let (encryption, traffic) = (self.encryption.clone(), Arc::clone(&self.traffic));
        Ok(Link { socket: self.socket.try_clone()?, encryption, traffic })
    }

    fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.socket.set_nonblocking(nonblocking)
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.socket.shutdown(how)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use super::super::Handshake;
    use super::*;

    fn sockets() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let dialer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (dialer, listener.accept().unwrap().0)
    }

    fn links(encrypted: bool) -> (Link, Link) {
        let (dialer, listener) = sockets();
        let (mut mine, mut theirs) = (Handshake::dialer(&[7; 32], b""), Handshake::listener(&[7; 32], b""));
        theirs.read(&mine.write(b"").unwrap()).unwrap();
        mine.read(&theirs.write(b"").unwrap()).unwrap();
        if encrypted {
            (Link::encrypted(dialer, mine.finish().unwrap()), Link::encrypted(listener, theirs.finish().unwrap()))
        } else {
            (Link::plain(dialer), Link::plain(listener))
        }
    }

    #[test]
    fn both_directions_carry_bytes_at_the_same_time() {
        for encrypted in [false, true] {
            let (one, two) = links(encrypted);
            let data: Vec<u8> = (0..3_000_000u32).map(|i| (i ^ (i >> 9)) as u8).collect();
            std::thread::scope(|scope| {
                for end in [&one, &two] {
                    let (mut writer, mut reader, data) = (end.try_clone().unwrap(), end.try_clone().unwrap(), &data);
                    scope.spawn(move || {
                        writer.write_all(data).unwrap();
                        writer.shutdown(Shutdown::Write).unwrap();
                    });
                    scope.spawn(move || {
                        let mut read = Vec::new();
                        reader.read_to_end(&mut read).unwrap();
                        assert!(read == *data);
                    });
                }
            });
        }
    }

    #[test]
    fn a_connection_cut_inside_a_record_is_an_error() {
        let (mut one, mut two) = links(true);
        one.socket.write_all(&[100, 0, 1]).unwrap();
        one.shutdown(Shutdown::Write).unwrap();
        assert_eq!(two.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        // Bytes of another program.
        let (mut one, mut two) = links(true);
        one.socket.write_all(&[0xff; 100]).unwrap();
        assert_eq!(two.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn nothing_follows_a_record_that_was_sent_in_part() {
        let (mut one, _two) = links(true);
        one.socket().set_write_timeout(Some(Duration::from_millis(50))).unwrap();
        let block = vec![0; WRITE_BYTES];
        while one.write(&block).is_ok() {}
        assert_eq!(one.write(&block).unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
}
