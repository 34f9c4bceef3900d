//! A web server for files with `Range`, `If-Match` and injected faults.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Faults of the server; none by default.
#[derive(Clone, Default)]
pub(super) struct Faults {
    /// Number of responses to GET that are cut off, and the length of the sent body.
    pub(super) cut: Option<(u32, usize)>,
    /// Number of requests that fail, and their status.
    pub(super) status: Option<(u32, u16)>,
    /// Number of requests without a response.
    pub(super) silent: u32,
    /// Whether every response to GET has a shorter range than requested.
    pub(super) short: bool,
    /// Whether `Range` is ignored.
    pub(super) whole: bool,
    /// Whether responses have no ETags.
    pub(super) no_tags: bool,
    /// Whether `If-Match` is ignored.
    pub(super) no_conditions: bool,
    /// Whether HEAD is refused.
    pub(super) no_head: bool,
}

pub(super) struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    files: Mutex<HashMap<String, (Vec<u8>, u64)>>,
    faults: Mutex<Faults>,
    sent: AtomicU64,
    requests: AtomicU64,
    closing: AtomicBool,
}

impl Server {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, shared) = (listener.local_addr().unwrap(), Arc::new(Shared::default()));
        let served = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if served.closing.load(Ordering::Relaxed) {
                    return;
                }
                let (stream, served) = (stream.unwrap(), served.clone());
                // Without this, each response waits 40 ms for the acknowledgment of its header.
                stream.set_nodelay(true).unwrap();
                // A client may close its connection early.
                std::thread::spawn(move || served.serve(&stream));
            }
        });
        Self { address, shared }
    }

    /// Adds or replaces a file.
    pub(super) fn put(&self, name: &str, bytes: Vec<u8>) {
        let mut files = self.shared.files.lock().unwrap();
        let version = files.get(name).map_or(1, |(_, version)| version + 1);
        files.insert(name.to_owned(), (bytes, version));
    }

    pub(super) fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.address)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn faults(&self, faults: Faults) {
        *self.shared.faults.lock().unwrap() = faults;
    }

    /// Returns whether all faults have occurred.
    pub(super) fn faults_done(&self) -> bool {
        let faults = self.shared.faults.lock().unwrap();
        faults.silent == 0 && faults.cut.is_none_or(|(n, _)| n == 0) && faults.status.is_none_or(|(n, _)| n == 0)
    }

    /// Returns the bytes of bodies sent since the last call.
    pub(super) fn sent(&self) -> u64 {
        self.shared.sent.swap(0, Ordering::Relaxed)
    }

    /// Returns the number of requests since the last call.
    pub(super) fn requests(&self) -> u64 {
        self.shared.requests.swap(0, Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn serve(&self, stream: &TcpStream) -> Option<()> {
        let mut lines = BufReader::new(stream).lines();
        loop {
            let first = lines.next()?.ok()?;
            let mut headers = HashMap::new();
            loop {
                let line = lines.next()?.ok()?;
                let Some((name, value)) = line.split_once(':') else { break };
                headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
            }
            let mut words = first.split(' ');
            let (method, target) = (words.next()?, words.next()?);
            self.requests.fetch_add(1, Ordering::Relaxed);
            self.respond(stream, method, target, &headers)?;
        }
    }

    /// Responds to a request. `None` ends the connection.
    fn respond(&self, stream: &TcpStream, method: &str, target: &str, headers: &HashMap<String, String>) -> Option<()> {
        let (faults, cut) = self.next_faults(method == "GET");
        if faults.silent > 0 {
            std::thread::sleep(Duration::from_secs(20));
            return None;
        }
        let status = match faults.status {
            Some((1.., status)) => Some(status),
            _ if faults.no_head && method == "HEAD" => Some(403),
            _ => None,
        };
        if let Some(status) = status {
            return plain(stream, status);
        }
        let name = target.split('?').next()?.trim_start_matches('/').replace("%20", " ");
        let (file, version) = match self.files.lock().unwrap().get(&name) {
            Some((file, version)) => (file.clone(), *version),
            None => return plain(stream, 404),
        };
        let tag = format!("\"v{version}\"");
        if !faults.no_conditions && headers.get("if-match").is_some_and(|wanted| *wanted != tag) {
            return plain(stream, 412);
        }
        let range = headers.get("range").filter(|_| !faults.whole).and_then(|range| {
            let (start, end) = range.strip_prefix("bytes=")?.split_once('-')?;
            let (start, end) = (start.parse::<usize>().ok()?, end.parse::<usize>().ok()? + 1);
            Some((start, end.min(file.len()) - if faults.short { 1 } else { 0 }))
        });
        let mut head = match range {
            Some((start, end)) => {
                format!("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {start}-{}/{}\r\n", end - 1, file.len())
            }
            None => "HTTP/1.1 200 OK\r\n".to_owned(),
        };
        let (start, end) = range.unwrap_or((0, file.len()));
        head +=
            &format!("Content-Length: {}\r\nLast-Modified: Fri, 20 Nov 2026 09:00:{version:02} GMT\r\n", end - start);
        if !faults.no_tags {
            head += &format!("ETag: {tag}\r\n");
        }
        let mut out = stream;
        out.write_all((head + "\r\n").as_bytes()).ok()?;
        if method == "HEAD" {
            return Some(());
        }
        let end = cut.map_or(end, |length| end.min(start + length));
        for piece in file[start..end].chunks(1 << 16) {
            self.sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
            out.write_all(piece).ok()?;
        }
        if cut.is_some() {
            let _ = stream.shutdown(Shutdown::Both);
            return None;
        }
        Some(())
    }

    /// Returns the faults of this request and the cut of its body, and counts them down.
    fn next_faults(&self, get: bool) -> (Faults, Option<usize>) {
        let mut faults = self.faults.lock().unwrap();
        let these = faults.clone();
        faults.silent = faults.silent.saturating_sub(1);
        if let Some((times @ 1.., _)) = &mut faults.status {
            *times -= 1;
            return (these, None);
        }
        let mut cut = None;
        if let (true, Some((times @ 1.., length))) = (get, &mut faults.cut) {
            *times -= 1;
            cut = Some(*length);
        }
        (these, cut)
    }
}

fn plain(mut stream: &TcpStream, status: u16) -> Option<()> {
    stream.write_all(format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n").as_bytes()).ok()
}
