//! Frames of limited length on sockets, with deadlines.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum bytes of a frame. A longer length is an error before memory is allocated.
pub(super) const FRAME_BYTES: usize = 16 << 10;

/// A socket with one deadline for all reads and writes, however small they are.
pub(super) struct Timed<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl<'a> Timed<'a> {
    pub(super) fn new(stream: &'a TcpStream, limit: Duration) -> Self {
        Timed { stream, deadline: Instant::now() + limit }
    }

    fn remaining(&self) -> io::Result<Duration> {
        match self.deadline.checked_duration_since(Instant::now()) {
            Some(rest) if !rest.is_zero() => Ok(rest),
            _ => Err(io::Error::new(ErrorKind::TimedOut, "no answer in time")),
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.remaining()?))?;
        (&mut &*self.stream).read(buffer).map_err(in_time)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.remaining()?))?;
        (&mut &*self.stream).write(buffer).map_err(in_time)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Gives socket timeouts a clear text; the system's is "resource temporarily unavailable".
fn in_time(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => io::Error::new(ErrorKind::TimedOut, "no answer in time"),
        _ => error,
    }
}

/// Writes `value` as a frame of length and JSON, in one write.
pub(super) fn write_frame(writer: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(value)?;
    if body.len() > FRAME_BYTES {
        return Err(io::Error::new(ErrorKind::InvalidInput, format!("frame of {} bytes", body.len())));
    }
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend(body);
    writer.write_all(&frame)
}

/// Reads the bytes of one frame.
pub(super) fn read_bytes(reader: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    reader.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > FRAME_BYTES {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            format!("frame of {length} bytes, {FRAME_BYTES} are allowed"),
        ));
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(body)
}

/// Reads one frame. A body that is not a `T` is [`ErrorKind::InvalidData`].
pub(super) fn read_frame<T: DeserializeOwned>(reader: &mut impl Read) -> io::Result<T> {
    serde_json::from_slice(&read_bytes(reader)?).map_err(|e| io::Error::new(ErrorKind::InvalidData, e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn frames_are_read_back_and_wrong_lengths_are_errors() {
        let mut wire = Vec::new();
        write_frame(&mut wire, &("heartbeat", 7)).unwrap();
        assert_eq!(read_frame::<(String, u32)>(&mut &wire[..]).unwrap(), ("heartbeat".to_string(), 7));
        assert_eq!(read_frame::<u32>(&mut &wire[..]).unwrap_err().kind(), ErrorKind::InvalidData);
        let forged = (FRAME_BYTES as u32 + 1).to_le_bytes();
        assert_eq!(read_bytes(&mut &forged[..]).unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(read_bytes(&mut &wire[..6]).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert!(write_frame(&mut Vec::new(), &"x".repeat(FRAME_BYTES)).is_err());
    }

    #[test]
    fn small_reads_do_not_extend_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let drip = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            for _ in 0..40 {
                if stream.write_all(&[1]).is_err() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let (stream, _) = listener.accept().unwrap();
        let start = Instant::now();
        let error = Timed::new(&stream, Duration::from_millis(300)).read_exact(&mut [0; 100]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(start.elapsed() < Duration::from_millis(1500));
        drop(stream);
        drip.join().unwrap();
    }
}
