//! A prepared dataset: a folder of memory-mapped Arrow files, used in place.
//!
//! ```text
//! manifest.json            counts, offsets, fingerprint, file sizes          Manifest
//! partition.json           how good the partition is                        prepare::Quality
//! part-00000/topology.arrow   in-edges of the core nodes, by destination    Topology
//!            nodes.arrow      id, label, split, type, time                  Nodes
//!            features.arrow   one contiguous matrix                         Features
//!            halo.arrow       foreign in-neighbours (and their features)    Halo
//! part-00001/…
//! ```
//!
//! Each Arrow file is an IPC file with one record batch and one row per core (or halo) node; any Arrow reader opens it.

mod features;
mod halo;
pub(crate) mod ipc;
mod manifest;
mod mapped;
mod nodes;
mod row_layout;
mod topology;

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use features::feature_field;
pub use features::{DTYPE_KEY, Features};
pub use halo::Halo;
pub(crate) use halo::NODE as HALO_NODE;
pub use manifest::{
    Cleaning, EdgeColumns, FORMAT, FORWARD_AND_REVERSE, FeatureInfo, FileInfo, IdKind, InputFile, LabelInfo, LabelKind,
    Manifest, PartitionInfo, SCHEMA_VERSION, SplitCounts, TypeInfo, UpdateCounts, UpdateInfo,
};
pub(crate) use nodes::schema as nodes_schema;
pub use nodes::{IdColumn, Labels, Nodes, split};
pub use row_layout::{RowLayout, Stretch};
pub use topology::Topology;
pub(crate) use topology::names as edge_names;

use crate::error::{Error, Result};
use crate::partition_book::PartitionBook;
use crate::progress::Progress;

/// A prepared dataset, opened. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Dataset {
    dir: PathBuf,
    manifest: Arc<Manifest>,
    book: Arc<PartitionBook>,
    /// Whether this process has read all indices of a partition once.
    checked: Arc<[AtomicBool]>,
}

/// One partition, mapped.
#[derive(Clone, Debug)]
pub struct Partition {
    /// Its number.
    pub part: usize,
    /// Global ids of its core nodes.
    pub range: Range<u64>,
    /// In-edges of its core nodes.
    pub topology: Topology,
    /// Ids, labels, splits of its core nodes.
    pub nodes: Nodes,
    /// Features of its core nodes.
    pub features: Features,
}

impl Dataset {
    /// Opens the dataset in folder `dir`. Reads the manifest only.
    ///
    /// # Errors
    /// See [`Manifest::read`].
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = dir.as_ref().to_path_buf();
        let manifest = Manifest::read(&dir)?;
        let damaged = |reason: &str| Error::Damaged { path: dir.join(Manifest::FILE), reason: reason.into() };
        let book =
            PartitionBook::new(manifest.offsets.clone()).ok_or_else(|| damaged("its offsets are no partition book"))?;
        let sizes = || manifest.partitions.iter().zip(manifest.offsets.windows(2));
        let whole = book.parts() == manifest.parts()
            && book.nodes() == manifest.nodes
            && manifest.nodes < u64::from(u32::MAX)
            && sizes().all(|(part, ends)| part.nodes == ends[1] - ends[0]);
        if !whole {
            return Err(damaged("its offsets contradict its counts"));
        }
        let checked = (0..book.parts()).map(|_| AtomicBool::new(false)).collect();
        Ok(Self { dir, manifest: Arc::new(manifest), book: Arc::new(book), checked })
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What the dataset holds.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Who owns which node.
    pub fn book(&self) -> &PartitionBook {
        &self.book
    }

    /// Opens everything of partition `part`.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a file that is not what the manifest says.
    ///
    /// # Panics
    /// When there is no such partition.
    pub fn partition(&self, part: usize) -> Result<Partition> {
        Ok(Partition {
            part,
            range: self.book.range(part),
            topology: self.topology(part)?,
            nodes: self.nodes(part)?,
            features: self.features(part)?,
        })
    }

    /// Opens the topology of partition `part`. The first time in a process, every index is read and checked.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a file that is not what the manifest says.
    ///
    /// # Panics
    /// When there is no such partition.
    pub fn topology(&self, part: usize) -> Result<Topology> {
        let path = self.file(part, TOPOLOGY);
        let info = &self.manifest.partitions[part];
        let batch = mapped::open(&path, &info.topology, info.nodes)?;
        let check = !self.checked[part].load(Ordering::Relaxed);
        let topology = Topology::from_batch(&batch, &path, &self.manifest.edge_columns, self.manifest.nodes, check)?;
        if topology.num_edges() != info.edges {
            let reason = format!("it has {} edges, the manifest says {}", topology.num_edges(), info.edges);
            return Err(Error::Damaged { path, reason });
        }
        self.checked[part].store(true, Ordering::Relaxed);
        Ok(topology)
    }

    /// Opens the small node columns of partition `part`.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a file that is not what the manifest says.
    ///
    /// # Panics
    /// When there is no such partition.
    pub fn nodes(&self, part: usize) -> Result<Nodes> {
        let path = self.file(part, NODES);
        let info = &self.manifest.partitions[part];
        Nodes::from_batch(&mapped::open(&path, &info.node_columns, info.nodes)?, &path, &self.manifest)
    }

    /// Opens the features of partition `part`.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a file that is not what the manifest says.
    ///
    /// # Panics
    /// When there is no such partition.
    pub fn features(&self, part: usize) -> Result<Features> {
        let path = self.file(part, FEATURES);
        let info = &self.manifest.partitions[part];
        match &info.features {
            None => Ok(Features::none(info.nodes as usize)),
            Some(file) => {
                let (batch, map) = mapped::open_mapped(&path, file, info.nodes)?;
                Features::from_batch((&batch, map), &path, self.manifest.features.layout())
            }
        }
    }

    /// Opens the halo of partition `part`; `None` for a dataset that an older version prepared.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a file that is not what the manifest says.
    ///
    /// # Panics
    /// When there is no such partition.
    pub fn halo(&self, part: usize) -> Result<Option<Halo>> {
        let path = self.file(part, HALO);
        let info = &self.manifest.partitions[part];
        let Some(file) = &info.halo else { return Ok(None) };
        let batch = mapped::open_mapped(&path, file, info.halo_nodes)?;
        let features = self.manifest.halo_features.then_some(&self.manifest.features);
        Halo::from_batch(batch, &path, features).map(Some)
    }

    /// Compares the lengths of all files with the manifest.
    ///
    /// # Errors
    /// [`Error::Damaged`] for the first file that is gone, too short or too long.
    pub fn check_lengths(&self) -> Result<()> {
        self.files().try_for_each(|(path, info)| {
            let found = std::fs::metadata(&path).map_or(0, |meta| meta.len());
            let reason = || format!("it has {found} bytes, the manifest says {}", info.bytes);
            if found == info.bytes { Ok(()) } else { Err(Error::Damaged { reason: reason(), path }) }
        })
    }

    /// Reads all files and compares their checksums with the manifest.
    ///
    /// # Errors
    /// [`Error::Damaged`] for the first file that is not what was written.
    pub fn verify(&self, progress: &dyn Progress) -> Result<()> {
        self.check_lengths()?;
        let total = self.files().map(|(_, info)| info.bytes).sum();
        progress.stage("verifying", Some(total), "bytes");
        let mut buffer = vec![0; 1 << 20];
        for (path, info) in self.files() {
            let mut file = File::open(&path).map_err(Error::io(&path, "open"))?;
            let mut crc = crc32fast::Hasher::new();
            loop {
                let length = file.read(&mut buffer).map_err(Error::io(&path, "read"))?;
                if length == 0 {
                    break;
                }
                crc.update(&buffer[..length]);
                progress.advance(length as u64);
            }
            if crc.finalize() != info.crc32 {
                return Err(Error::Damaged { path, reason: "its checksum is not the manifest's".into() });
            }
        }
        progress.done();
        Ok(())
    }

    fn files(&self) -> impl Iterator<Item = (PathBuf, FileInfo)> {
        self.manifest.partitions.iter().enumerate().flat_map(move |(part, info)| {
            let features = info.features.map(|file| (FEATURES, file));
            let halo = info.halo.map(|file| (HALO, file));
            let files = [(TOPOLOGY, info.topology), (NODES, info.node_columns)].into_iter().chain(features).chain(halo);
            files.map(move |(name, file)| (self.file(part, name), file))
        })
    }

    fn file(&self, part: usize, name: &str) -> PathBuf {
        self.dir.join(part_folder(part)).join(name)
    }
}

/// Name of a partition's folder within the dataset's.
pub(crate) fn part_folder(part: usize) -> String {
    format!("part-{part:05}")
}

pub(crate) const TOPOLOGY: &str = "topology.arrow";
pub(crate) const NODES: &str = "nodes.arrow";
pub(crate) const FEATURES: &str = "features.arrow";
pub(crate) const HALO: &str = "halo.arrow";
