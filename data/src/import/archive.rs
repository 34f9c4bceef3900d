//! Arrays by the names of their files, and `.npz` archives: zip files of arrays, stored or deflated.

use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::input::{BUFFER, open};
use super::npy::Array;
use crate::error::{Error, Result, closest};

/// A `.npz` archive.
pub(super) struct Npz {
    path: PathBuf,
    members: Vec<Member>,
}

struct Member {
    name: String,
    start: u64,
    packed: u64,
    bytes: u64,
    deflated: bool,
    crc: u32,
}

impl Npz {
    /// Reads the directory of the archive.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let fail = |reason: String| Error::File { path: path.into(), reason };
        let unreadable = |error: zip::result::ZipError| match error {
            zip::result::ZipError::Io(error) => Error::io(path, "read")(error),
            error => fail(format!("is not a complete .npz archive ({error}); fetch or save it again")),
        };
        let mut archive = zip::ZipArchive::new(BufReader::new(open(path)?)).map_err(unreadable)?;
        let mut members = Vec::with_capacity(archive.len());
        for i in 0..archive.len() {
            let member = archive.by_index_raw(i).map_err(unreadable)?;
            let name = member.name().map_err(unreadable)?;
            let name = name.strip_suffix(".npy").unwrap_or(&name).to_string();
            if name.contains(char::is_control) {
                return Err(fail(format!("has an array of the name {name:?}; save it again with NumPy")));
            }
            let deflated = match member.compression().to_string().to_lowercase().as_str() {
                "stored" => false,
                "deflated" => true,
                other => {
                    return Err(fail(format!(
                        "array \"{name}\" has the unsupported compression {other}; save it again with NumPy"
                    )));
                }
            };
            members.push(Member {
                name,
                start: member.data_start().ok_or_else(|| fail("is damaged; fetch or save it again".into()))?,
                packed: member.compressed_size(),
                bytes: member.size(),
                deflated,
                crc: member.crc32(),
            });
        }
        Ok(Self { path: path.into(), members })
    }

    /// Returns the name of the only array, or `None` if there are several.
    fn only(&self) -> Option<&str> {
        match &self.members[..] {
            [only] => Some(&only.name),
            _ => None,
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.members.iter().any(|member| member.name == name)
    }

    /// Opens an array. Each call opens the file again, so that several arrays can be read concurrently.
    pub(super) fn array(&self, name: &str) -> Result<Array> {
        let Some(member) = self.members.iter().find(|member| member.name == name) else {
            let near = closest(name, self.members.iter().map(|member| member.name.as_str()));
            let near = near.map(|near| format!("did you mean \"{near}\"? ")).unwrap_or_default();
            return Err(self.fail(format!("no array \"{name}\"; {near}{}", self.list())));
        };
        let mut file = open(&self.path)?;
        file.seek(SeekFrom::Start(member.start)).map_err(Error::io(&self.path, "read"))?;
        let packed = BufReader::with_capacity(BUFFER, file.take(member.packed));
        let inner: Box<dyn Read> = match member.deflated {
            true => Box::new(flate2::bufread::DeflateDecoder::new(packed)),
            false => Box::new(packed),
        };
        let reader = Checked { inner, crc: crc32fast::Hasher::new(), expected: member.crc, left: member.bytes };
        let at = (!member.deflated).then_some(member.start);
        Array::begin(&self.path, name, at, Box::new(reader), member.bytes)
    }

    pub(super) fn fail(&self, reason: impl Into<String>) -> Error {
        Error::File { path: self.path.clone(), reason: reason.into() }
    }

    fn list(&self) -> String {
        let names: Vec<_> = self.members.iter().map(|member| format!("\"{}\"", member.name)).collect();
        format!("it has {}", names.join(", "))
    }
}

/// Opens `FILE.npy`, `FILE.npz:NAME`, or a `.npz` file with one array only.
pub(super) fn open_array(what: &str) -> Result<Array> {
    if let Some((archive, name)) = what.rsplit_once(':').filter(|(archive, _)| archive.ends_with(".npz")) {
        return Npz::open(Path::new(archive))?.array(name);
    }
    let path = Path::new(what);
    if path.extension().is_some_and(|ext| ext == "npz") {
        let archive = Npz::open(path)?;
        return match archive.only() {
            Some(only) => archive.array(only),
            None => Err(archive.fail(format!("name one of its arrays, as in {what}:NAME; {}", archive.list()))),
        };
    }
    let file = open(path)?;
    let bytes = file.metadata().map_err(Error::io(path, "read"))?.len();
    Array::begin(path, "", Some(0), Box::new(BufReader::with_capacity(BUFFER, file)), bytes)
}

/// A reader that compares the checksum at the end of the data.
struct Checked {
    inner: Box<dyn Read>,
    crc: crc32fast::Hasher,
    expected: u32,
    left: u64,
}

impl Read for Checked {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = into.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        let length = self.inner.read(&mut into[..most])?;
        self.crc.update(&into[..length]);
        self.left -= length as u64;
        if self.left == 0 && self.crc.clone().finalize() != self.expected {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "wrong checksum"));
        }
        Ok(length)
    }
}
