//! Compares the content of a dataset's files with the checksums in the manifest.
//!
//! A process verifies a file once, before it interprets anything in it. [`Dataset::verify_files`] verifies many files before their use. A
//! file that was not verified before is verified when it is opened.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use rayon::prelude::*;

use super::files::{FileKind, Identity, State};
use super::manifest::FileInfo;
use super::{Dataset, mapped, part_folder};
use crate::error::{Error, Result};
use crate::progress::{Progress, Silent};

/// Bytes that a thread reads at a time.
const CHUNK: usize = 1 << 20;
/// Verifier of fewer bytes than this reports no progress.
const REPORTED: u64 = 256 << 20;

struct Target {
    part: usize,
    kind: FileKind,
    path: PathBuf,
    info: FileInfo,
    identity: Identity,
    /// Number of its first chunk, counted over all files.
    first: usize,
    /// Number of chunks that are not read yet.
    unread: AtomicUsize,
}

impl Dataset {
    /// Reads all files and compares their checksums with the manifest.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a file with another content.
    pub fn verify(&self, progress: &dyn Progress) -> Result<()> {
        self.check_lengths()?;
        for state in self.states.iter() {
            state.verified().take();
        }
        let parts = 0..self.manifest.parts();
        let all: Vec<_> =
            FileKind::ALL.into_iter().flat_map(|kind| parts.clone().map(move |part| (part, kind))).collect();
        self.verify_files(&all, progress)
    }

    /// Reads those of `files` that this process has not verified yet, on all threads, and compares their checksums with the manifest. Ignores
    /// files that the dataset does not have. Of a dataset that is elsewhere, missing and damaged files are copied first.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a file with another content. Those of [`Dataset::open_copies`] if a file cannot be copied.
    ///
    /// # Panics
    /// If a partition does not exist.
    pub fn verify_files(&self, files: &[(usize, FileKind)], progress: &dyn Progress) -> Result<()> {
        let mut files = files.to_vec();
        files.sort_unstable_by_key(|&(part, kind)| (kind, part));
        files.dedup();
        self.copy_missing(&files, progress)?;
        match self.verify_here(&files, progress) {
            // The next copy is verified while it is written, so this ends.
            Err(Error::Damaged { path, .. }) if self.discard_copy(&path, progress)? => {
                self.verify_files(&files, progress)
            }
            result => result,
        }
    }

    fn verify_here(&self, files: &[(usize, FileKind)], progress: &dyn Progress) -> Result<()> {
        let mut targets = Vec::new();
        let (mut chunks, mut bytes) = (0, 0);
        for &(part, kind) in files {
            let Some(info) = kind.info(&self.manifest.partitions[part]) else { continue };
            let path = self.file(part, kind);
            let (_, identity) = open(&path, &info)?;
            if *self.state(part, kind).verified() == Some(identity) {
                continue;
            }
            let own = info.bytes.div_ceil(CHUNK as u64) as usize;
            targets.push(Target { part, kind, path, info, identity, first: chunks, unread: AtomicUsize::new(own) });
            (chunks, bytes) = (chunks + own, bytes + info.bytes);
        }
        let reported = bytes >= REPORTED;
        if reported {
            progress.stage("verifying checksums", Some(bytes), "bytes");
        }
        let verifier = Verifier {
            targets: &targets,
            checksums: (0..chunks).map(|_| AtomicU32::new(0)).collect(),
            next: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            progress,
        };
        let threads = rayon::current_num_threads();
        let results: Vec<Result<()>> = (0..threads).into_par_iter().with_max_len(1).map(|_| verifier.run()).collect();
        // Also after a failure, so that nothing is read twice if a damaged copy is replaced.
        for target in &targets {
            if target.unread.load(Ordering::Acquire) == 0 && verifier.compare_target(target).is_ok() {
                *self.state(target.part, target.kind).verified() = Some(target.identity);
            }
        }
        if verifier.failed.load(Ordering::Relaxed) {
            // Reports the first file in order with a wrong checksum, not the first in time.
            targets.iter().try_for_each(|target| verifier.compare_target(target))?;
        }
        results.into_iter().collect::<Result<()>>()?;
        if reported {
            progress.done();
        }
        Ok(())
    }

    /// Opens a file. Verifies it first, on this thread, unless this process has already verified it. Threads that open the same file
    /// concurrently wait.
    pub(crate) fn open_verified(&self, part: usize, kind: FileKind, info: &FileInfo) -> Result<(PathBuf, File)> {
        let file = [(part, kind)];
        self.copy_missing(&file, &Silent)?;
        match self.verify_and_open(part, kind, info) {
            Err(Error::Damaged { path, .. }) if self.discard_copy(&path, &Silent)? => {
                self.copy_missing(&file, &Silent)?;
                self.verify_and_open(part, kind, info)
            }
            opened => opened,
        }
    }

    fn verify_and_open(&self, part: usize, kind: FileKind, info: &FileInfo) -> Result<(PathBuf, File)> {
        let path = self.file(part, kind);
        let (file, identity) = open(&path, info)?;
        let state = self.state(part, kind);
        // With the lock held, nothing waits for another thread: otherwise, a thread of a pool could wait for work of its own pool.
        let mut verified = state.verified();
        if *verified != Some(identity) {
            state.checked.store(false, Ordering::Relaxed);
            let mut crc = crc32fast::Hasher::new();
            let mut buffer = vec![0; CHUNK.min(info.bytes as usize)];
            let mut at = 0;
            while at < info.bytes {
                let length = (info.bytes - at).min(CHUNK as u64);
                let buffer = &mut buffer[..length as usize];
                file.read_exact_at(buffer, at).map_err(Error::io(&path, "read"))?;
                crc.update(buffer);
                at += length;
            }
            compare(&path, crc.finalize(), info)?;
            *verified = Some(identity);
        }
        drop(verified);
        Ok((path, file))
    }

    /// Copies the state of verification of those files that are also files of `older`.
    pub(crate) fn inherit(&self, older: &Self) {
        let both = self.manifest.partitions.iter().zip(&older.manifest.partitions).enumerate();
        for (part, (own, old)) in both {
            for kind in FileKind::ALL.into_iter().filter(|kind| kind.info(own) == kind.info(old)) {
                let verified = *older.state(part, kind).verified();
                *self.state(part, kind).verified() = verified;
            }
        }
    }

    pub(super) fn state(&self, part: usize, kind: FileKind) -> &State {
        &self.states[part * FileKind::ALL.len() + kind as usize]
    }

    pub(super) fn file(&self, part: usize, kind: FileKind) -> PathBuf {
        self.dir().join(part_folder(part)).join(kind.name())
    }
}

/// Files that several threads read together, chunk by chunk.
struct Verifier<'a> {
    targets: &'a [Target],
    /// Checksums by chunk, over all files.
    checksums: Vec<AtomicU32>,
    next: AtomicUsize,
    failed: AtomicBool,
    progress: &'a dyn Progress,
}

impl Verifier<'_> {
    /// Reads chunks until all have been read or an error or damage was found.
    fn run(&self) -> Result<()> {
        let mut buffer = vec![0; CHUNK];
        let mut open_file: Option<(usize, File)> = None;
        while !self.failed.load(Ordering::Relaxed) {
            let chunk = self.next.fetch_add(1, Ordering::Relaxed);
            if chunk >= self.checksums.len() {
                break;
            }
            let number = self.targets.partition_point(|target| target.first <= chunk) - 1;
            let target = &self.targets[number];
            let mut read = || -> Result<u64> {
                if open_file.as_ref().is_none_or(|(opened, _)| *opened != number) {
                    let (file, identity) = open(&target.path, &target.info)?;
                    if identity != target.identity {
                        return Err(damaged(&target.path, "it was replaced while it was read".into()));
                    }
                    open_file = Some((number, file));
                }
                let Some((_, file)) = &open_file else { return Err(Error::Bug("no file is open".into())) };
                let at = (chunk - target.first) as u64 * CHUNK as u64;
                let buffer = &mut buffer[..(target.info.bytes - at).min(CHUNK as u64) as usize];
                file.read_exact_at(buffer, at).map_err(Error::io(&target.path, "read"))?;
                self.checksums[chunk].store(crc32fast::hash(buffer), Ordering::Relaxed);
                Ok(buffer.len() as u64)
            };
            match read() {
                Ok(length) => self.progress.advance(length),
                Err(error) => {
                    self.failed.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
            // `AcqRel`: the thread that reads the last chunk of a file sees the checksums of all its chunks.
            if target.unread.fetch_sub(1, Ordering::AcqRel) == 1 && self.compare_target(target).is_err() {
                self.failed.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Compares the checksum of a file that was read completely. Returns `Ok` for an incompletely read file.
    fn compare_target(&self, target: &Target) -> Result<()> {
        if target.unread.load(Ordering::Acquire) > 0 {
            return Ok(());
        }
        let mut crc = crc32fast::Hasher::new();
        let mut rest = target.info.bytes;
        for checksum in &self.checksums[target.first..] {
            if rest == 0 {
                break;
            }
            let length = rest.min(CHUNK as u64);
            crc.combine(&crc32fast::Hasher::new_with_initial_len(checksum.load(Ordering::Relaxed), length));
            rest -= length;
        }
        compare(&target.path, crc.finalize(), &target.info)
    }
}

/// Opens a file and checks its length against the manifest.
fn open(path: &Path, info: &FileInfo) -> Result<(File, Identity)> {
    let (file, metadata) = mapped::open_file(path, info)?;
    Ok((file, Identity::of(&metadata)))
}

fn compare(path: &Path, found: u32, info: &FileInfo) -> Result<()> {
    if found == info.crc32 {
        Ok(())
    } else {
        Err(damaged(path, "its checksum differs from the one in manifest.json".into()))
    }
}

fn damaged(path: &Path, reason: String) -> Error {
    Error::Damaged { path: path.to_path_buf(), reason }
}
