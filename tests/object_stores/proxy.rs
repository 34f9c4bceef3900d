//! A TCP proxy that injects connection faults.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Connection faults; none by default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// The number of next connections to close immediately.
    pub(crate) refuse: u32,
    /// The number of next connections to answer with 503.
    pub(crate) busy: u32,
    /// The answer to requests that write: status line, and code of the error. Others find nothing.
    pub(crate) answer: Option<(&'static str, &'static str)>,
    /// The number of next connections to cut, and the bytes from the server before each cut.
    pub(crate) cut: Option<(u32, usize)>,
    /// The delay of every connection in milliseconds.
    pub(crate) delay: u64,
    /// Whether no connection gets an answer.
    pub(crate) silent: bool,
}

pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    server: SocketAddr,
    faults: Mutex<Faults>,
    bytes: AtomicU64,
    closing: AtomicBool,
}

impl Proxy {
    pub(crate) fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (faults, bytes, closing) = (Mutex::default(), AtomicU64::new(0), AtomicBool::new(false));
        let shared = Arc::new(Shared { server, faults, bytes, closing });
        let (address, served) = (listener.local_addr().unwrap(), shared.clone());
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if served.closing.load(Ordering::Relaxed) {
                    return;
                }
                let (client, served) = (client.unwrap(), served.clone());
                client.set_nodelay(true).unwrap();
                std::thread::spawn(move || served.connection(client));
            }
        });
        Self { address, shared }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn faults(&self, faults: Faults) {
        *self.shared.faults.lock().unwrap() = faults;
    }

    /// Returns whether all counted faults have happened.
    pub(crate) fn faults_are_over(&self) -> bool {
        let faults = self.shared.faults.lock().unwrap();
        faults.refuse == 0 && faults.busy == 0 && faults.cut.is_none_or(|(times, _)| times == 0)
    }

    /// Returns the bytes from the server since the last call.
    pub(crate) fn take_bytes(&self) -> u64 {
        self.shared.bytes.swap(0, Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    /// Forwards a connection until either side closes it.
    fn connection(&self, mut client: TcpStream) -> Option<()> {
        let mut cut = usize::MAX;
        let delay = {
            let mut faults = self.faults.lock().unwrap();
            if faults.silent {
                drop(faults);
                std::thread::sleep(Duration::from_secs(15));
                return None;
            }
            if faults.refuse > 0 {
                faults.refuse -= 1;
                return None;
            }
            if faults.busy > 0 {
                faults.busy -= 1;
                drop(faults);
                let _ = client.read(&mut [0; 1 << 14]);
                return answer(client, "503 Slow Down", "");
            }
            if let Some((status, code)) = faults.answer {
                drop(faults);
                let mut request = [0; 1 << 14];
                let length = client.read(&mut request).ok()?;
                if !["PUT ", "POST "].iter().any(|method| request[..length].starts_with(method.as_bytes())) {
                    return answer(client, "404 Not Found", "");
                }
                let body = format!("<Error><Code>{code}</Code><Message>No room</Message></Error>");
                return answer(client, status, &body);
            }
            if let Some((times @ 1.., length)) = &mut faults.cut {
                *times -= 1;
                cut = *length;
            }
            faults.delay
        };
        std::thread::sleep(Duration::from_millis(delay));
        let mut server = TcpStream::connect(self.server).ok()?;
        server.set_nodelay(true).ok()?;
        let (mut from, mut to) = (client.try_clone().ok()?, server.try_clone().ok()?);
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
        let mut buffer = vec![0; 1 << 14];
        while cut > 0 {
            let length = server.read(&mut buffer).ok()?.min(cut);
            if length == 0 {
                break;
            }
            client.write_all(&buffer[..length]).ok()?;
            self.bytes.fetch_add(length as u64, Ordering::Relaxed);
            if cut != usize::MAX {
                cut -= length;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
        server.shutdown(Shutdown::Both).ok()
    }
}

/// Answers a request, and reads the rest of it, so that the answer is not lost with the connection.
fn answer(mut client: TcpStream, status: &str, body: &str) -> Option<()> {
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    client.write_all((head + body).as_bytes()).ok()?;
    client.shutdown(Shutdown::Write).ok()?;
    std::io::copy(&mut client, &mut std::io::sink()).ok().map(|_| ())
}
