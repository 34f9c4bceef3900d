//! Throughput of plain TCP sockets on this machine, as a reference.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use gnnflow_dataflow::wire::MESSAGE_BYTES;

/// Seconds to send `bytes` between two threads over a loopback socket, in pieces of the message size.
pub(crate) fn raw_tcp(bytes: u64) -> f64 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let reader = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the writer connects");
        let (mut buffer, mut read) = (vec![0; MESSAGE_BYTES], 0);
        while read < bytes {
            match stream.read(&mut buffer).expect("the writer is running") {
                0 => break,
                more => read += more as u64,
            }
        }
        stream.write_all(&[1]).expect("the writer waits");
    });
    let mut stream = TcpStream::connect(address).expect("the reader listens");
    stream.set_nodelay(true).expect("a socket option");
    let buffer = vec![7; MESSAGE_BYTES];
    let start = Instant::now();
    let mut left = bytes as usize;
    while left > 0 {
        let piece = left.min(buffer.len());
        stream.write_all(&buffer[..piece]).expect("the reader is running");
        left -= piece;
    }
    stream.read_exact(&mut [0]).expect("the reader replies");
    let seconds = start.elapsed().as_secs_f64();
    reader.join().expect("the reader has replied");
    seconds
}
