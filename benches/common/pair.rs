//! Two processes on this machine, met as `gnnflow run --processes 2` meets: handshake, own sockets, one worker each.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use gnnflow::cluster::{Failure, Launch, Membership, execute, seat_from_launcher};
use gnnflow_operators::wire::MESSAGE_BYTES;
use timely::worker::Worker;

/// How long a worker parks at most before it looks again.
pub(crate) const PARK: Option<Duration> = Some(Duration::from_millis(10));

/// Runs `work` in two processes and returns what it gave at rank 0; every other process, and the parent, ends here.
pub(crate) fn in_two_processes<T: Send + 'static>(work: impl Fn(&mut Worker) -> T + Send + Sync + 'static) -> T {
    let Some(config) = seat_from_launcher().unwrap_or_else(|error| panic!("{error}")) else {
        let code = Launch::new(2).run().unwrap_or_else(|error| panic!("{error}"));
        std::process::exit(code.into());
    };
    let rank = config.rank;
    let result = Membership::join(config)
        .and_then(|members| execute(members, move |worker| Ok::<_, Failure>(work(worker))))
        .unwrap_or_else(|error| {
            eprintln!("error: {error}");
            std::process::exit(error.exit_code().into());
        });
    if rank > 0 {
        std::process::exit(0);
    }
    result
}

/// Seconds for `bytes` from one thread to another over a socket of this machine, in pieces of a message.
#[allow(dead_code, reason = "not every bench that includes this file compares with it")]
pub(crate) fn raw_tcp(bytes: u64) -> f64 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let reader = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the writer dials");
        let (mut buffer, mut read) = (vec![0; MESSAGE_BYTES], 0);
        while read < bytes {
            match stream.read(&mut buffer).expect("the writer lives") {
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
        stream.write_all(&buffer[..piece]).expect("the reader lives");
        left -= piece;
    }
    stream.read_exact(&mut [0]).expect("the reader answers");
    let seconds = start.elapsed().as_secs_f64();
    reader.join().expect("it has answered");
    seconds
}
