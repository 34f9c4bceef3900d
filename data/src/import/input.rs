//! Files as streams of bytes or lines, decompressed while they are read.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::progress::Progress;

/// Size of read buffers in bytes.
pub(super) const BUFFER: usize = 1 << 18;

/// What to do with a Parquet file.
pub(super) const PARQUET: &str = "is a Parquet file, which needs no import; write a pipeline file with \
                                  `gnnflow init --nodes NODES --edges EDGES`";

/// The length limit of a line in bytes.
const LONGEST_LINE: u64 = 256 << 20;

/// A file that is decompressed while it is read if it starts with the magic bytes of gzip or Zstandard. Its name does
/// not matter.
pub(super) struct Input<'a> {
    path: PathBuf,
    reader: Box<dyn BufRead + 'a>,
    packing: &'static str,
}

/// Opens an input file.
pub(super) fn open(path: &Path) -> Result<File> {
    let file = File::open(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => Error::Missing { path: path.to_path_buf(), role: "import" },
        _ => Error::io(path, "open")(source),
    })?;
    if file.metadata().map_err(Error::io(path, "read"))?.is_dir() {
        return Err(Error::File { path: path.into(), reason: "is a folder; name the files in it".into() });
    }
    Ok(file)
}

impl<'a> Input<'a> {
    /// Opens a file. `progress` counts the bytes that are read from disk.
    pub(super) fn open(path: &Path, progress: Option<&'a dyn Progress>) -> Result<Self> {
        let counted = Counted { inner: open(path)?, progress };
        let mut plain = BufReader::with_capacity(BUFFER, counted);
        let begin = plain.fill_buf().map_err(Error::io(path, "read"))?;
        let mut packing = "";
        let fail = |reason: &str| Err(Error::File { path: path.into(), reason: reason.into() });
        let reader: Box<dyn BufRead + 'a> = match begin {
            [0x1f, 0x8b, ..] => {
                packing = "gzip";
                Box::new(BufReader::with_capacity(BUFFER, flate2::bufread::MultiGzDecoder::new(plain)))
            }
            [0x28, 0xb5, 0x2f, 0xfd, ..] => {
                packing = "zstd";
                let decoder = zstd::Decoder::with_buffer(plain).map_err(Error::io(path, "read"))?;
                Box::new(BufReader::with_capacity(BUFFER, decoder))
            }
            [b'B', b'Z', b'h', ..] => return fail("is packed with bzip2; unpack it first (bunzip2)"),
            [0xfd, b'7', b'z', b'X', b'Z', ..] => return fail("is packed with xz; unpack it first (unxz)"),
            [b'P', b'K', 3, 4, ..] => return fail("is a zip archive; unpack it first (unzip)"),
            [b'P', b'A', b'R', b'1', ..] => {
                return fail(PARQUET);
            }
            _ => Box::new(plain),
        };
        Ok(Self { path: path.into(), reader, packing })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the next buffered bytes; empty at the end of the file.
    pub(super) fn fill(&mut self) -> Result<&[u8]> {
        match self.reader.fill_buf() {
            // The borrow checker rejects returning this buffer from a match on the error, so it is requested again
            // below.
            Ok(_) => {}
            Err(error) => return Err(broken(&self.path, self.packing, error)),
        }
        self.reader.fill_buf().map_err(|error| broken(&self.path, self.packing, error))
    }

    /// Marks the first `bytes` bytes of [`fill`](Input::fill) as read.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.reader.consume(bytes);
    }
}

/// Converts an error of a decompressing reader.
pub(super) fn broken(path: &Path, packing: &str, error: io::Error) -> Error {
    use io::ErrorKind::{InvalidData, InvalidInput, Other, UnexpectedEof};
    match error.kind() {
        UnexpectedEof if !packing.is_empty() => {
            Error::File { path: path.into(), reason: format!("the {packing} data ends early; fetch the file again") }
        }
        InvalidData | InvalidInput | Other if !packing.is_empty() => {
            Error::File { path: path.into(), reason: format!("damaged {packing} data ({error}); fetch the file again") }
        }
        _ => Error::io(path, "read")(error),
    }
}

struct Counted<'a> {
    inner: File,
    progress: Option<&'a dyn Progress>,
}

impl Read for Counted<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(into)?;
        if let Some(progress) = self.progress {
            progress.advance(length as u64);
        }
        Ok(length)
    }
}

/// The lines of a text file, numbered from 1.
pub(super) struct Lines<'a> {
    input: Input<'a>,
    line: Vec<u8>,
    number: u64,
}

impl<'a> Lines<'a> {
    pub(super) fn open(path: &Path, progress: Option<&'a dyn Progress>) -> Result<Self> {
        Ok(Self { input: Input::open(path, progress)?, line: Vec::new(), number: 0 })
    }

    /// Goes to the next line; `false` at the end.
    pub(super) fn advance(&mut self) -> Result<bool> {
        self.line.clear();
        self.append()
    }

    /// Appends the next line to the current line, for quoted fields with line breaks.
    pub(super) fn append(&mut self) -> Result<bool> {
        let Input { path, reader, packing } = &mut self.input;
        let read = reader.take(LONGEST_LINE).read_until(b'\n', &mut self.line);
        let length = read.map_err(|error| broken(path, packing, error))?;
        if length == 0 {
            return Ok(false);
        }
        self.number += 1;
        if length as u64 == LONGEST_LINE {
            return Err(self.wrong("longer than 256 MiB; use a text file with shorter lines"));
        }
        while matches!(self.line.last(), Some(b'\n' | b'\r')) {
            self.line.pop();
        }
        if self.number == 1 && self.line.starts_with(b"\xef\xbb\xbf") {
            self.line.drain(..3);
        }
        Ok(true)
    }

    /// Returns the current line without its line break.
    pub(super) fn line(&self) -> &[u8] {
        &self.line
    }

    /// Returns the number of the current line.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn path(&self) -> &Path {
        self.input.path()
    }

    pub(super) fn wrong(&self, reason: impl Into<String>) -> Error {
        Error::Line { path: self.path().into(), line: self.number, reason: reason.into() }
    }
}
