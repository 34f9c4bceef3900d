//! The names and kinds of files, and the state of their verification.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

use super::manifest::{FileInfo, PartitionInfo};

/// Name of the file with the quality of the partitioning.
pub(crate) const QUALITY_FILE: &str = "partition.json";

/// Returns the name of a partition's folder in the dataset's folder.
pub(crate) fn part_folder(part: usize) -> String {
    format!("part-{part:05}")
}

/// A kind of file: every partition has at most one of each. Files are verified in this order. The topology is last because training
/// reads it most, and the files verified last are the most likely to stay in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileKind {
    /// `features.arrow`.
    Features,
    /// `halo.arrow`.
    Halo,
    /// `nodes.arrow`.
    Nodes,
    /// `topology.arrow`.
    Topology,
}

impl FileKind {
    /// All kinds.
    pub(crate) const ALL: [Self; 4] = [Self::Features, Self::Halo, Self::Nodes, Self::Topology];

    /// The file's name in the partition's folder.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Features => "features.arrow",
            Self::Halo => "halo.arrow",
            Self::Nodes => "nodes.arrow",
            Self::Topology => "topology.arrow",
        }
    }

    /// Returns what the manifest says about the partition's file of this kind; `None` if the partition has no such file.
    pub(crate) fn info(self, part: &PartitionInfo) -> Option<FileInfo> {
        match self {
            Self::Features => part.features,
            Self::Halo => part.halo,
            Self::Nodes => Some(part.node_columns),
            Self::Topology => Some(part.topology),
        }
    }
}

/// Identifies the content of a file without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    modified: (i64, i64),
}

impl Identity {
    pub(super) fn of(metadata: &Metadata) -> Self {
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        Self { device: metadata.dev(), inode: metadata.ino(), modified }
    }
}

/// The state of verification of one file.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The file that was verified.
    verified: Mutex<Option<Identity>>,
    /// Whether its values have been checked against the manifest.
    pub(super) checked: AtomicBool,
}

impl State {
    /// Returns the file that was verified, locked.
    pub(super) fn verified(&self) -> std::sync::MutexGuard<'_, Option<Identity>> {
        // The guarded value is written in one step, so a panic leaves it valid.
        self.verified.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
