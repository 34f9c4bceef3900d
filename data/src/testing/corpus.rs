//! Runs a fuzz target over the files of its corpus and over changed copies of them, without a fuzzer.
//!
//! The targets are functions in a file `fuzz.rs` of each crate. `fuzz/` has the corpora, and programs for `cargo fuzz`.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use crate::rng::{Key, Purpose};

/// The line between the parts of an input that stands for several files or messages.
const SEPARATOR: &[u8] = b"\n--\n";
/// Numbers at which lengths and counts are often wrong.
const EXTREMES: [u64; 8] = [0, 1, 0x7f, 0xffff, i32::MAX as u64, u32::MAX as u64, i64::MAX as u64, u64::MAX];

/// A decoder with its checks. It returns whether the decoder has accepted the bytes.
pub type Target = fn(&[u8]) -> bool;

/// Returns the parts of an input, at least one.
pub fn parts(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    while let Some(at) = bytes.windows(SEPARATOR.len()).position(|window| window == SEPARATOR) {
        parts.push(&bytes[..at]);
        bytes = &bytes[at + SEPARATOR.len()..];
    }
    parts.push(bytes);
    parts
}

/// Returns an input of these parts.
pub fn join<T: AsRef<[u8]>>(parts: &[T]) -> Vec<u8> {
    parts.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(SEPARATOR)
}

/// Runs `target` on the files of corpus `name` and on `changes` changed copies of each, which are the same in every run. Files whose
/// names begin with `valid` must be accepted.
///
/// # Panics
/// If the target panics, a valid file is refused, or the corpus is missing.
pub fn run(name: &str, target: Target, changes: u64) {
    let files: Vec<(PathBuf, Vec<u8>)> = files(name);
    assert!(!files.is_empty(), "the corpus {name} is empty");
    for (number, (path, bytes)) in files.iter().enumerate() {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let accepted = guarded(target, bytes, &format!("target {name}, file {file}"));
        assert!(accepted || !file.starts_with("valid"), "target {name} refuses {file}; see fuzz/README.md");
        let other = &files[(number + 1) % files.len()].1;
        for change in 0..changes {
            let key = Key::new(change, Purpose::User).fold_str(name).fold_str(&file);
            guarded(target, &changed(bytes, other, key), &format!("target {name}, file {file}, change {change}"));
        }
    }
}

/// Writes a file of a corpus, for tests that make corpora anew.
///
/// # Panics
/// If it cannot be written.
pub fn write(name: &str, file: &str, bytes: &[u8]) {
    let folder = folder(name);
    std::fs::create_dir_all(&folder).expect("a folder can be created");
    std::fs::write(folder.join(file), bytes).expect("a file can be written");
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(name)
}

/// Returns the files of a corpus, in order of their names.
fn files(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = folder(name);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path, bytes)
    };
    paths.into_iter().map(read).collect()
}

/// Runs `target`. If it panics, prints what it ran on.
fn guarded(target: Target, bytes: &[u8], what: &str) -> bool {
    catch_unwind(AssertUnwindSafe(|| target(bytes))).unwrap_or_else(|panic| {
        eprintln!("{what}: the target panics on these {} bytes: {}", bytes.len(), bytes.escape_ascii());
        resume_unwind(panic)
    })
}

/// Returns `bytes` with 1 to 4 changes. `other` is another input of the same target.
fn changed(bytes: &[u8], other: &[u8], key: Key) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for round in 0..1 + key.below(0, 4) {
        let key = key.fold(round);
        let draw = |i: u64, below: usize| key.below(i, below.max(1) as u64) as usize;
        let (at, length) = (draw(0, bytes.len()), 1 + draw(1, 16));
        let end = bytes.len().min(at + length);
        match draw(2, 8) {
            0 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << draw(3, 8)),
            1 => bytes.truncate(at),
            2 => drop(bytes.splice(at..at, (0..length as u64).map(|i| key.draw(8 + i) as u8))),
            3 => drop(bytes.drain(at..end)),
            4 => {
                let again = bytes[at..end].repeat(1 + draw(3, 8));
                drop(bytes.splice(at..at, again));
            }
            // The end of another input.
            5 => drop(bytes.splice(at.., other.iter().skip(draw(3, other.len())).copied())),
            // A length or a count in binary, of 1, 2, 4 or 8 bytes; or in digits.
            6 => {
                let number = EXTREMES[draw(3, EXTREMES.len())].to_le_bytes();
                let places = bytes[at..].iter_mut().take(1 << draw(4, 4));
                places.zip(number).for_each(|(byte, new)| *byte = new);
            }
            _ => {
                let digits = bytes[at..].iter().position(u8::is_ascii_digit).map_or(at..at, |first| {
                    let digits = bytes[at + first..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                    at + first..at + first + digits
                });
                drop(bytes.splice(digits, EXTREMES[draw(3, EXTREMES.len())].to_string().into_bytes()));
            }
        }
    }
    bytes
}
