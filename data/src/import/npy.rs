//! NumPy arrays as streams.
//!
//! Format: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>, versions 1 to 3.

use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use half::f16;

use super::input::{BUFFER, broken, open};
use crate::error::{Error, Result};

/// The largest width of a row: a row group holds at least a thousand rows.
pub(super) const WIDEST: usize = 1 << 16;

/// Type of an array's items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Bool,
    Int(usize),
    Uint(usize),
    Float(usize),
    /// Byte strings of this length.
    Bytes(usize),
}

impl Item {
    fn size(self) -> usize {
        match self {
            Self::Bool => 1,
            Self::Int(size) | Self::Uint(size) | Self::Float(size) | Self::Bytes(size) => size,
        }
    }

    /// Parses `'<f4'` and the like. Also returns whether the bytes are in big-endian order.
    fn parse(text: &str) -> Option<(Self, bool)> {
        let (order, rest) = text.split_at_checked(1)?;
        let (kind, size) = rest.split_at_checked(1)?;
        let size: usize = size.parse().ok()?;
        let item = match (kind, size) {
            ("b", 1) => Self::Bool,
            ("i", 1 | 2 | 4 | 8) => Self::Int(size),
            ("u", 1 | 2 | 4 | 8) => Self::Uint(size),
            ("f", 2 | 4 | 8) => Self::Float(size),
            ("S", 1..=64) => Self::Bytes(size),
            _ => return None,
        };
        Some((item, order == ">"))
    }
}

/// An array that is read once from start to end.
pub(super) struct Array {
    /// The file, and the name of the array in it.
    path: PathBuf,
    name: String,
    packing: &'static str,
    pub(super) item: Item,
    swapped: bool,
    pub(super) shape: Vec<u64>,
    reader: Box<dyn Read>,
    /// Number of unread items.
    left: u64,
    bytes: Vec<u8>,
    /// Position of the items in the file; `None` if they are compressed.
    begin: Option<u64>,
}

impl Array {
    /// Reads the header. `at` is the position of the array in the file; `None` if it is compressed.
    pub(super) fn begin(
        path: &Path,
        name: &str,
        at: Option<u64>,
        mut reader: Box<dyn Read>,
        bytes: u64,
    ) -> Result<Self> {
        let packing = if name.is_empty() { "" } else { "zip" };
        let place = if name.is_empty() { String::new() } else { format!("array \"{name}\" ") };
        let fail = |reason: String| Error::File { path: path.into(), reason: format!("{place}{reason}") };
        let (dict, header) = read_header(&mut reader).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData if packing.is_empty() => fail(error.to_string()),
            io::ErrorKind::UnexpectedEof if packing.is_empty() => fail("is cut off; fetch it again".into()),
            _ => broken(path, packing, error),
        })?;
        let descr = value_of(&dict, "descr").unwrap_or_default();
        let descr = descr.trim_matches(['\'', '"']);
        // The start of a damaged type may be shown, but in one line.
        let shown = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
        let parsed = Item::parse(descr);
        let descr: String = descr.chars().take(40).map(shown).collect();
        let Some((item, swapped)) = parsed else {
            return Err(fail(format!(
                "holds items of type {descr}, which cannot be imported: save it as bool, int, uint or float \
                 (numpy's astype)"
            )));
        };
        let shape: Option<Vec<u64>> = value_of(&dict, "shape").and_then(|text| {
            let numbers = text.trim_matches(['(', ')']).split(',').map(str::trim).filter(|number| !number.is_empty());
            numbers.map(|number| number.parse().ok()).collect()
        });
        let shape = shape.ok_or_else(|| fail("has a header without shape".into()))?;
        if value_of(&dict, "fortran_order") == Some("True") && shape.iter().filter(|&&length| length > 1).count() > 1 {
            return Err(fail("is in Fortran order, column by column; save numpy.ascontiguousarray(…) of it".into()));
        }
        let left = shape.iter().try_fold(1u64, |all, &length| all.checked_mul(length));
        let whole = left.and_then(|left| left.checked_mul(item.size() as u64)?.checked_add(header));
        let left = left.filter(|_| whole == Some(bytes)).ok_or_else(|| {
            fail(format!("has {bytes} bytes, but {shape:?} items of type {descr} need another size; is it cut off?"))
        })?;
        Ok(Self {
            path: path.into(),
            name: name.into(),
            packing,
            item,
            swapped,
            shape,
            reader,
            left,
            bytes: Vec::new(),
            begin: at.map(|at| at + header),
        })
    }

    pub(super) fn wrong(&self, reason: impl std::fmt::Display) -> Error {
        let name = if self.name.is_empty() { "the array".into() } else { format!("array \"{}\"", self.name) };
        Error::File { path: self.path.clone(), reason: format!("{name} {reason}") }
    }

    pub(super) fn len(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Number of unread items.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Number of items that have been read.
    fn at(&self) -> u64 {
        self.len() - self.left
    }

    /// Returns rows and columns. An array of one dimension is one column.
    pub(super) fn matrix(&self) -> Result<(u64, usize)> {
        match self.shape[..] {
            [rows] => Ok((rows, 1)),
            [rows, columns] if columns <= WIDEST as u64 => Ok((rows, columns as usize)),
            [_, columns] => Err(self.wrong(format!("has {columns} columns; the limit is {WIDEST}"))),
            _ => Err(self.wrong(format!("has shape {:?}; it must have one or two dimensions", self.shape))),
        }
    }

    /// Skips `items` items.
    pub(super) fn skip(&mut self, mut items: u64) -> Result<()> {
        if let Some(begin) = self.begin {
            let size = self.item.size() as u64;
            self.left = self.left.checked_sub(items).ok_or_else(|| self.wrong("is too short"))?;
            let mut file = open(&self.path)?;
            file.seek(SeekFrom::Start(begin + size * self.at())).map_err(Error::io(&self.path, "read"))?;
            self.reader = Box::new(BufReader::with_capacity(BUFFER, file.take(size * self.left)));
            return Ok(());
        }
        while items > 0 {
            let some = items.min((BUFFER / self.item.size()) as u64);
            self.load(some as usize)?;
            items -= some;
        }
        Ok(())
    }

    fn load(&mut self, items: usize) -> Result<()> {
        if items as u64 > self.left {
            return Err(self.wrong(format!("has only {} items", self.len())));
        }
        self.bytes.resize(items * self.item.size(), 0);
        let packing = if self.packing.is_empty() { "npy" } else { self.packing };
        self.reader.read_exact(&mut self.bytes).map_err(|error| broken(&self.path, packing, error))?;
        self.left -= items as u64;
        if self.swapped {
            self.bytes.chunks_exact_mut(self.item.size()).for_each(<[u8]>::reverse);
        }
        Ok(())
    }

    /// Reads the next items into `into` as integers. Floats have to be integral; `nan` replaces NaN.
    pub(super) fn ints(&mut self, items: usize, nan: Option<i64>, into: &mut Vec<i64>) -> Result<()> {
        let begun = self.at();
        self.load(items)?;
        into.clear();
        let bytes = &self.bytes;
        let float = |(i, value): (usize, f64)| match value {
            value if value.is_nan() && nan.is_some() => Ok(nan.unwrap_or_default()),
            value if value.fract() == 0.0 && value.abs() < 9e15 => Ok(value as i64),
            value => Err(self.wrong(format!("has {value} as item {}, which is not an integer", begun + i as u64))),
        };
        match self.item {
            Item::Bool | Item::Uint(1) => into.extend(bytes.iter().map(|&byte| i64::from(byte))),
            Item::Int(1) => into.extend(bytes.iter().map(|&byte| i64::from(byte as i8))),
            Item::Int(2) => into.extend(each(bytes, |b| i64::from(i16::from_le_bytes(b)))),
            Item::Int(4) => into.extend(each(bytes, |b| i64::from(i32::from_le_bytes(b)))),
            Item::Int(_) => into.extend(each(bytes, i64::from_le_bytes)),
            Item::Uint(2) => into.extend(each(bytes, |b| i64::from(u16::from_le_bytes(b)))),
            Item::Uint(4) => into.extend(each(bytes, |b| i64::from(u32::from_le_bytes(b)))),
            Item::Uint(_) => {
                for (i, value) in each(bytes, u64::from_le_bytes).enumerate() {
                    let value = i64::try_from(value);
                    into.push(value.map_err(|_| self.wrong(format!("has item {} beyond 2^63", begun + i as u64)))?);
                }
            }
            Item::Float(2) => {
                let values = each(bytes, |b| f64::from(f16::from_le_bytes(b))).enumerate().map(float);
                into.extend(values.collect::<Result<Vec<_>>>()?);
            }
            Item::Float(4) => {
                let values = each(bytes, |b| f64::from(f32::from_le_bytes(b))).enumerate().map(float);
                into.extend(values.collect::<Result<Vec<_>>>()?);
            }
            Item::Float(_) => {
                let values = each(bytes, f64::from_le_bytes).enumerate().map(float);
                into.extend(values.collect::<Result<Vec<_>>>()?);
            }
            Item::Bytes(_) => return Err(self.wrong("has strings instead of numbers")),
        }
        Ok(())
    }

    /// Reads the next items into `into` as finite numbers.
    pub(super) fn floats(&mut self, items: usize, into: &mut Vec<f32>) -> Result<()> {
        let begun = self.at();
        match self.item {
            Item::Float(_) => self.load(items)?,
            _ => {
                let mut integers = Vec::new();
                self.ints(items, None, &mut integers)?;
                into.clear();
                into.extend(integers.into_iter().map(|value| value as f32));
                return Ok(());
            }
        }
        into.clear();
        match self.item.size() {
            2 => into.extend(each(&self.bytes, |b| f16::from_le_bytes(b).to_f32())),
            4 => into.extend(each(&self.bytes, f32::from_le_bytes)),
            _ => into.extend(each(&self.bytes, |b| f64::from_le_bytes(b) as f32)),
        }
        match into.iter().position(|value| !value.is_finite()) {
            Some(i) => Err(self.wrong(format!("has {} as item {}: not a finite number", into[i], begun + i as u64))),
            None => Ok(()),
        }
    }

    /// Returns a small array of strings, or one string, as text.
    pub(super) fn string(mut self) -> Result<String> {
        let items = self.len() as usize;
        self.load(items.min(64))?;
        Ok(String::from_utf8_lossy(&self.bytes).trim_matches('\0').to_string())
    }

    /// Returns all items of a small array.
    pub(super) fn all_ints(mut self) -> Result<Vec<i64>> {
        let items = self.len().min(1 << 20) as usize;
        let mut all = Vec::new();
        self.ints(items, None, &mut all)?;
        Ok(all)
    }
}

fn each<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> impl Iterator<Item = T> {
    bytes.as_chunks::<N>().0.iter().map(move |&chunk| read(chunk))
}

/// Returns the dictionary in the header, and the length of the header in bytes.
fn read_header(reader: &mut dyn Read) -> io::Result<(String, u64)> {
    let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text);
    let mut magic = [0; 8];
    reader.read_exact(&mut magic)?;
    if &magic[..6] != b"\x93NUMPY" {
        return Err(invalid("is not a NumPy array in .npy format"));
    }
    let (length, fixed) = match magic[6] {
        1 => {
            let mut length = [0; 2];
            reader.read_exact(&mut length)?;
            (u32::from(u16::from_le_bytes(length)), 10)
        }
        2 | 3 => {
            let mut length = [0; 4];
            reader.read_exact(&mut length)?;
            (u32::from_le_bytes(length), 12)
        }
        _ => return Err(invalid("has an unsupported version of the .npy format; save it again with NumPy")),
    };
    if length > 1 << 20 {
        return Err(invalid("has a damaged header"));
    }
    let mut dict = vec![0; length as usize];
    reader.read_exact(&mut dict)?;
    Ok((String::from_utf8_lossy(&dict).into_owned(), fixed + u64::from(length)))
}

/// Returns the value of a key in a Python dictionary of strings, booleans and tuples.
fn value_of<'a>(dict: &'a str, key: &str) -> Option<&'a str> {
    let after = dict.split_once(&format!("'{key}':"))?.1.trim_start();
    let end = match after.as_bytes().first()? {
        b'(' => after.find(')')? + 1,
        b'[' => after.find(']')? + 1,
        quote @ (b'\'' | b'"') => after[1..].find(char::from(*quote))? + 2,
        _ => after.find([',', '}'])?,
    };
    Some(after[..end].trim())
}
