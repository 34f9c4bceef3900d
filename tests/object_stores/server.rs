//! A real object store on this machine, started and ended by a test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts the program that `variable` names, or `name` on the `PATH`. Prints a line and returns `None` without it.
    pub(crate) fn start<'a>(
        variable: &str,
        name: &str,
        args: impl FnOnce(u16) -> (Vec<String>, &'a [(&'a str, &'a str)]),
    ) -> Option<Self> {
        let program = std::env::var(variable).unwrap_or_default();
        let on_path =
            || std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(name)).find(|f| f.is_file());
        let program = match program.as_str() {
            "" => on_path().map(|path| path.display().to_string()),
            program => Some(program.to_owned()),
        };
        let Some(program) = program else {
            println!("skipped: no {name} on the PATH, nor named by {variable}");
            return None;
        };
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        // The server ends when its stdin closes, which every kind of end of this test does.
        let script = "\"$0\" \"$@\" >/dev/null 2>&1 </dev/null & server=$!; cat >/dev/null; kill $server; wait $server";
        let (args, variables) = args(port);
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).arg(&program).args(args).envs(variables.iter().copied()).stdin(Stdio::piped());
        let server = Self { child: command.spawn().unwrap(), address };
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < deadline, "{program} does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(server)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Uploads an object, or creates a bucket.
    pub(crate) fn put(&self, path: &str, body: &[u8], headers: &[(&str, &str)]) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let mut head = format!("PUT {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n", self.address, body.len());
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        stream.write_all((head + "Connection: close\r\n\r\n").as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = BufReader::new(stream);
        let mut status = String::new();
        answer.read_line(&mut status).unwrap();
        let mut rest = String::new();
        let _ = answer.read_to_string(&mut rest);
        let good = status.split(' ').nth(1).is_some_and(|status| status.starts_with('2'));
        assert!(good, "PUT {path}: {status}{rest}");
    }
}

impl Server {
    /// Downloads an object; `None` if there is none.
    pub(crate) fn get(&self, path: &str) -> Option<Vec<u8>> {
        let mut stream = TcpStream::connect(self.address).unwrap();
        // moto refuses only requests without any signature.
        let credential = "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/s3/aws4_request";
        let host = self.address;
        let head =
            format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: {credential}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        answer.starts_with(b"HTTP/1.1 200").then(|| answer.split_off(end + 4))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
