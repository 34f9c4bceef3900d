//! The metrics and the pipeline of a run as a TensorBoard event file.
//!
//! The file is a sequence of records. A record has the length of its data, the data, and a checksum of each. The data is a protocol
//! buffer, TensorFlow's `Event`. Only the fields that are needed are written here, because the crates for event files are not
//! maintained.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crc_fast::CrcAlgorithm::Crc32Iscsi;

use gnnflow_nn::params::Param;

use crate::error::Error;
use crate::runtime::records::EpochRecord;

/// The beginning of the names of event files, by which TensorBoard finds them. The time and a number follow.
const PREFIX: &str = "events.out.tfevents.";

/// Number of buckets of a histogram.
const BUCKETS: usize = 64;

/// An event file of a run. Every record is written at once, so that TensorBoard shows a running training.
pub(crate) struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// Creates the next event file of the run folder `dir`, for the epochs after `epochs`. TensorBoard reads the files in order;
    /// what an earlier file has of these epochs is not shown.
    pub(crate) fn create(dir: &Path, epochs: usize, pipeline: &str) -> Result<Self, Error> {
        let (path, file) = next(dir)?;
        let mut events = Self { path, file };
        // The version that has `SessionLog` events.
        events.record(0, &Message::new().text(3, "brain.Event:2"))?;
        let start = 1;
        events.record(epochs as u64 + 1, &Message::new().message(7, &Message::new().integer(1, start)))?;
        // Indented lines are code in Markdown.
        let code: String = pipeline.lines().map(|line| format!("    {line}\n")).collect();
        events.record(epochs as u64, &summary([text_value("pipeline", &code)]))?;
        Ok(events)
    }

    /// Writes the metrics of an epoch: `loss/steps`, and for each evaluated split `loss/SPLIT` and `METRIC/SPLIT`. Also writes histograms of
    /// `parameters`.
    pub(crate) fn epoch(&mut self, record: &EpochRecord, parameters: &[Param]) -> Result<(), Error> {
        let EpochRecord { epoch, loss, lr, seconds, evaluate_seconds, train, val, test, .. } = record;
        let mut values = vec![
            scalar("loss/steps", *loss),
            scalar("optimizer/learning_rate", *lr),
            scalar("seconds/train", *seconds),
        ];
        values.extend(evaluate_seconds.map(|seconds| scalar("seconds/evaluate", seconds)));
        for (split, scores) in [("train", train), ("val", val), ("test", test)] {
            let Some(scores) = scores else { continue };
            values.push(scalar(&format!("loss/{split}"), scores.loss));
            values.extend(scores.metrics.iter().map(|(name, value)| scalar(&format!("{name}/{split}"), *value)));
        }
        values.extend(parameters.iter().map(|param| histogram(&format!("parameters/{}", param.name), &param.values)));
        self.record(*epoch as u64, &summary(values))
    }

    /// Writes an event of `step` with the current time.
    fn record(&mut self, step: u64, content: &Message) -> Result<(), Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let mut event = Message::new().double(1, now).integer(2, step);
        event.bytes.extend_from_slice(&content.bytes);
        let length = (event.bytes.len() as u64).to_le_bytes();
        let checksums = [&length[..], &event.bytes].map(masked_checksum);
        let record = [&length[..], &checksums[0], &event.bytes, &checksums[1]].concat();
        self.file.write_all(&record).map_err(Error::io("write", &self.path))
    }
}

/// Returns the event files in `dir`.
pub(super) fn event_files(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(Error::io("read", dir))?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::io("read", dir))?;
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            files.push(entry.path());
        }
    }
    Ok(files)
}

/// Creates a file with a new name. TensorBoard sorts names as text, and does not open a name twice, so a run that begins anew in the
/// same folder has another one.
fn next(dir: &Path) -> Result<(PathBuf, File), Error> {
    let milliseconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    for number in 1.. {
        let path = dir.join(format!("{PREFIX}{milliseconds:013}.{number}"));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::io("create", &path)(error)),
        }
    }
    unreachable!("a folder has fewer files than there are numbers")
}

/// Returns the checksum of the format: CRC-32C, rotated, plus a constant, so that checksums of checksums differ.
fn masked_checksum(bytes: &[u8]) -> [u8; 4] {
    let checksum = crc_fast::checksum(Crc32Iscsi, bytes) as u32;
    checksum.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// Returns the content of an event with a `Summary` of `values`.
fn summary(values: impl IntoIterator<Item = Message>) -> Message {
    let summary = values.into_iter().fold(Message::new(), |summary, value| summary.message(1, &value));
    Message::new().message(5, &summary)
}

fn scalar(tag: &str, value: f64) -> Message {
    Message::new().text(1, tag).float(2, value as f32)
}

/// Returns the distribution of `numbers` in buckets of equal width. Infinite numbers and NaN are left out.
fn histogram(tag: &str, numbers: &[f32]) -> Message {
    let finite = || numbers.iter().map(|&x| f64::from(x)).filter(|x| x.is_finite());
    let (smallest, largest) = finite().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), x| (a.min(x), b.max(x)));
    let (smallest, largest) = if smallest > largest { (0.0, 0.0) } else { (smallest, largest) };
    let width = (largest - smallest) / BUCKETS as f64;
    let limits: Vec<f64> = match width > 0.0 {
        true => (1..BUCKETS).map(|bucket| smallest + bucket as f64 * width).chain([largest]).collect(),
        false => vec![largest],
    };
    let mut counts = vec![0.0; limits.len()];
    // A bucket has the numbers up to its limit.
    finite().for_each(|x| counts[limits.partition_point(|&limit| limit < x).min(limits.len() - 1)] += 1.0);
    let of_all = [finite().count() as f64, finite().sum(), finite().map(|x| x * x).sum()];
    let all = [smallest, largest].into_iter().chain(of_all).zip(1..);
    let all = all.fold(Message::new(), |message, (value, number)| message.double(number, value));
    Message::new().text(1, tag).message(5, &all.doubles(6, &limits).doubles(7, &counts))
}

/// Returns a value for TensorBoard's page of texts: a tensor with one string.
fn text_value(tag: &str, text: &str) -> Message {
    let plugin = Message::new().text(1, "text");
    let of_strings = 7;
    let shape = Message::new().message(2, &Message::new().integer(1, 1));
    let tensor = Message::new().integer(1, of_strings).message(2, &shape).text(8, text);
    Message::new().text(1, tag).message(8, &tensor).message(9, &Message::new().message(1, &plugin))
}

/// The bytes of a protocol buffer, built field by field. Fields have numbers.
struct Message {
    bytes: Vec<u8>,
}

impl Message {
    fn new() -> Self {
        Self { bytes: Vec::new() }
    }

    /// Appends a whole number: seven bits per byte, the lowest first.
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    fn field(mut self, number: u64, kind: u64) -> Self {
        self.varint(number << 3 | kind);
        self
    }

    fn integer(self, number: u64, value: u64) -> Self {
        let mut message = self.field(number, 0);
        message.varint(value);
        message
    }

    fn double(self, number: u64, value: f64) -> Self {
        let mut message = self.field(number, 1);
        message.bytes.extend_from_slice(&value.to_le_bytes());
        message
    }

    fn doubles(self, number: u64, values: &[f64]) -> Self {
        let mut message = self.field(number, 2);
        message.varint(8 * values.len() as u64);
        values.iter().for_each(|value| message.bytes.extend_from_slice(&value.to_le_bytes()));
        message
    }

    fn float(self, number: u64, value: f32) -> Self {
        let mut message = self.field(number, 5);
        message.bytes.extend_from_slice(&value.to_le_bytes());
        message
    }

    fn text(self, number: u64, text: &str) -> Self {
        let mut message = self.field(number, 2);
        message.varint(text.len() as u64);
        message.bytes.extend_from_slice(text.as_bytes());
        message
    }

    fn message(self, number: u64, inner: &Self) -> Self {
        let mut message = self.field(number, 2);
        message.varint(inner.bytes.len() as u64);
        message.bytes.extend_from_slice(&inner.bytes);
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::records::Scores;

    /// Returns the data of all records, whose lengths must fit.
    fn records(path: &Path) -> Vec<Vec<u8>> {
        let bytes = std::fs::read(path).unwrap();
        let (mut rest, mut found) = (&bytes[..], Vec::new());
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            assert_eq!(masked_checksum(&rest[..8]), rest[8..12]);
            found.push(rest[12..12 + length].to_vec());
            assert_eq!(masked_checksum(&rest[12..12 + length]), rest[12 + length..16 + length]);
            rest = &rest[16 + length..];
        }
        found
    }

    fn contains(record: &[u8], part: &[u8]) -> bool {
        record.windows(part.len()).any(|window| window == part)
    }

    #[test]
    fn checksum_is_that_of_the_format() {
        // CRC-32C of "123456789" is e3069283.
        assert_eq!(masked_checksum(b"123456789"), 0xc78a_b0e5_u32.to_le_bytes());
    }

    #[test]
    fn message_has_the_bytes_of_the_encoding_guide() {
        assert_eq!(Message::new().integer(1, 150).bytes, [0x08, 0x96, 0x01]);
        assert_eq!(Message::new().text(2, "testing").bytes, *b"\x12\x07testing");
        let inner = Message::new().integer(1, 150);
        assert_eq!(Message::new().message(3, &inner).bytes, [0x1a, 0x03, 0x08, 0x96, 0x01]);
        assert_eq!(Message::new().float(2, 0.5).bytes, [0x15, 0, 0, 0, 0x3f]);
    }

    #[test]
    fn file_has_the_pipeline_and_the_metrics_of_all_epochs() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = EventFile::create(folder.path(), 0, "name = \"cora\"\n").unwrap();
        let scores = Scores { nodes: 9, loss: 0.25, metrics: [("accuracy".into(), 0.75)].into() };
        let record = EpochRecord { epoch: 300, loss: 0.5, val: Some(scores), ..EpochRecord::default() };
        events.epoch(&record, &[]).unwrap();
        let records = records(&events.path);
        assert_eq!(records.len(), 4);
        assert!(contains(&records[0], b"brain.Event:2"));
        assert!(contains(&records[2], b"    name = \"cora\"\n"));
        // Step 300, and scalars as floats.
        assert!(contains(&records[3], &[0x10, 0xac, 0x02]));
        let scalar = |tag: &str, value: f32| [tag.as_bytes(), &[0x15], &value.to_le_bytes()].concat();
        for (tag, value) in [("loss/steps", 0.5), ("loss/val", 0.25), ("accuracy/val", 0.75)] {
            assert!(contains(&records[3], &scalar(tag, value)), "{tag}");
        }
        assert!(!contains(&records[3], b"test"));
    }

    #[test]
    fn histogram_counts_finite_numbers_in_buckets() {
        let doubles = |values: &[f64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let found = histogram("w", &[-1.0, 0.0, 0.0, 3.0, f32::NAN, f32::INFINITY]).bytes;
        // Smallest, largest, number, sum, sum of squares, each after the byte of its field.
        for (field, value) in (1u8..).zip([-1.0, 3.0, 4.0, 2.0, 10.0]) {
            assert!(contains(&found, &[&[field << 3 | 1][..], &doubles(&[value])].concat()), "field {field}");
        }
        let mut counts = [0.0; BUCKETS];
        // The bucket of 0 ends at -1 + 16 · 4 / 64.
        (counts[0], counts[15], counts[BUCKETS - 1]) = (1.0, 2.0, 1.0);
        assert!(contains(&found, &doubles(&counts)));
        for same in [&[0.5; 7][..], &[]] {
            let found = histogram("w", same).bytes;
            let value = same.first().map_or(0.0, |&x| f64::from(x));
            assert!(contains(
                &found,
                &[&[0x32, 8][..], &doubles(&[value]), &[0x3a, 8], &doubles(&[same.len() as f64])].concat()
            ));
        }
    }

    #[test]
    fn resumed_run_has_another_file() {
        let folder = tempfile::tempdir().unwrap();
        let paths = [0; 2].map(|_| EventFile::create(folder.path(), 5, "").unwrap().path);
        assert!(paths[0] < paths[1], "{paths:?}");
        let mut found = event_files(folder.path()).unwrap();
        found.sort();
        assert_eq!(found, paths);
    }
}
