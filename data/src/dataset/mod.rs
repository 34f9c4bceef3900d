//! A prepared dataset: a folder of memory-mapped Arrow files, used in place.
//!
//! ```text
//! manifest.json            counts, offsets, fingerprint, file sizes          Manifest
//! partition.json           quality of the partitioning                       prepare::Quality
//! part-00000/topology.arrow   in-edges of the core nodes, by destination    Topology
//!            nodes.arrow      id, label, split, type, time                  Nodes
//!            features.arrow   one contiguous matrix                         Features
//!            halo.arrow       nodes of other partitions (and their features) Halo
//! part-00001/…
//! ```
//!
//! Each Arrow file is an IPC file with one record batch and one row per core (or halo) node; any Arrow reader opens it.

mod copies;
mod differences;
mod encoding;
mod feature_columns;
mod features;
mod files;
mod halo;
pub(crate) mod ipc;
pub(crate) mod kept;
mod manifest;
mod mapped;
mod nodes;
mod open_copies;
mod row_layout;
mod snapshot;
pub mod split;
mod topology;
mod verify;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::RecordBatch;
use memmap2::Mmap;

use copies::Copies;
pub use differences::Differences;
pub use encoding::{Encoding, LabelEncoding};
pub use feature_columns::{FeatureColumn, FeatureColumns};
pub(crate) use features::feature_field;
pub use features::{DTYPE_KEY, Features};
pub use files::FileKind;
pub(crate) use files::{QUALITY_FILE, part_folder};
pub use halo::Halo;
pub(crate) use halo::NODE as HALO_NODE;
pub use manifest::{
    Cleaning, ColumnScale, EdgeColumns, FORMAT, FORWARD_AND_REVERSE, FeatureInfo, FileInfo, IdKind, InputFile,
    LabelInfo, LabelKind, ListForm, Manifest, PartitionInfo, SCHEMA_VERSION, SplitCounts, TypeInfo, UpdateCounts,
    UpdateInfo,
};
pub(crate) use nodes::schema as nodes_schema;
pub use nodes::{IdColumn, Labels, Nodes};
pub use row_layout::{RowLayout, Stretch};
pub use topology::Topology;
pub(crate) use topology::names as edge_names;

use crate::error::{Error, Result};
use crate::partition_book::PartitionBook;

/// A prepared dataset, opened. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Dataset {
    dir: PathBuf,
    manifest: Arc<Manifest>,
    book: Arc<PartitionBook>,
    /// The state of verification of each file, by partition and kind.
    states: Arc<[files::State]>,
    /// Where its files are copied from; `None` if they are all here.
    copies: Option<Arc<Copies>>,
}

/// One memory-mapped partition.
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
    /// Opens the dataset in folder `dir`. Reads only the manifest.
    ///
    /// # Errors
    /// See [`Manifest::read`].
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = dir.as_ref().to_path_buf();
        let manifest = Manifest::read(&dir)?;
        let damaged = |reason: &str| Error::Damaged { path: dir.join(Manifest::FILE), reason: reason.into() };
        let book = PartitionBook::new(manifest.offsets.clone())
            .ok_or_else(|| damaged("its offsets do not start at 0, or decrease"))?;
        let sizes = || manifest.partitions.iter().zip(manifest.offsets.windows(2));
        let valid = book.parts() == manifest.parts()
            && book.nodes() == manifest.nodes
            && manifest.nodes < u64::from(u32::MAX)
            && sizes().all(|(part, ends)| part.nodes == ends[1] - ends[0]);
        if !valid {
            return Err(damaged("its offsets do not match its counts"));
        }
        if manifest.partitions.iter().any(|part| part.features.is_some() != (manifest.features.dim > 0)) {
            return Err(damaged("its partitions do not match its number of features"));
        }
        if manifest.halo_features && manifest.partitions.iter().any(|part| part.halo.is_none()) {
            return Err(damaged("it declares halo features, but a partition has none"));
        }
        let states = (0..FileKind::ALL.len() * book.parts()).map(|_| files::State::default()).collect();
        Ok(Self { dir, manifest: Arc::new(manifest), book: Arc::new(book), states, copies: None })
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The contents of the dataset.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The map from nodes to the partitions that own them.
    pub fn book(&self) -> &PartitionBook {
        &self.book
    }

    /// Opens all files of partition `part` except the halo.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a file that does not match the manifest.
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

    /// Opens the topology of partition `part`. The first call in a process verifies its checksum and checks all its values.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a file that does not match the manifest.
    ///
    /// # Panics
    /// When there is no such partition.
    pub fn topology(&self, part: usize) -> Result<Topology> {
        let info = &self.manifest.partitions[part];
        let Mapped { path, batch, .. } = self.map(part, FileKind::Topology, &info.topology, info.nodes)?;
        let checked = &self.state(part, FileKind::Topology).checked;
        let check = !checked.load(Ordering::Relaxed);
        let topology = Topology::from_batch(&batch, &path, &self.manifest.edge_columns, self.manifest.nodes, check)?;
        if topology.num_edges() != info.edges {
            let reason = format!("it has {} edges, but the manifest says {}", topology.num_edges(), info.edges);
            return Err(Error::Damaged { path, reason });
        }
        checked.store(true, Ordering::Relaxed);
        Ok(topology)
    }

    /// Opens the small node columns of partition `part`. The first call in a process verifies their checksum and checks all their values.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a file that does not match the manifest.
    ///
    /// # Panics
    /// When there is no such partition.
    pub fn nodes(&self, part: usize) -> Result<Nodes> {
        let info = &self.manifest.partitions[part];
        let Mapped { path, batch, .. } = self.map(part, FileKind::Nodes, &info.node_columns, info.nodes)?;
        let checked = &self.state(part, FileKind::Nodes).checked;
        let nodes = Nodes::from_batch(&batch, &path, &self.manifest, !checked.load(Ordering::Relaxed))?;
        checked.store(true, Ordering::Relaxed);
        Ok(nodes)
    }

    /// Opens the features of partition `part`. The first call in a process verifies their checksum.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a file that does not match the manifest.
    ///
    /// # Panics
    /// When there is no such partition.
    pub fn features(&self, part: usize) -> Result<Features> {
        let info = &self.manifest.partitions[part];
        match &info.features {
            None => Ok(Features::none(info.nodes as usize)),
            Some(file) => {
                let Mapped { path, batch, map } = self.map(part, FileKind::Features, file, info.nodes)?;
                Features::from_batch((&batch, map), &path, self.manifest.features.layout())
            }
        }
    }

    /// Opens the features of partition `part`, which another process verifies. Of a dataset that is elsewhere, this process verifies its copy, too.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a file whose size or headers do not match the manifest.
    ///
    /// # Panics
    /// When there is no such partition.
    pub fn features_verified_elsewhere(&self, part: usize) -> Result<Features> {
        let info = &self.manifest.partitions[part];
        let Some(file) = &info.features else { return Ok(Features::none(info.nodes as usize)) };
        if self.copies.is_some() {
            // The other process may still replace a damaged copy.
            return self.features(part);
        }
        let path = self.file(part, FileKind::Features);
        let (opened, _) = mapped::open_file(&path, file)?;
        let (batch, map) = mapped::map(&opened, &path, file, info.nodes)?;
        Features::from_batch((&batch, map), &path, self.manifest.features.layout())
    }

    /// Opens the halo of partition `part`; `None` for a dataset of an older version of gnnflow. The first call in a process verifies its
    /// checksum and checks its nodes.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a file that does not match the manifest.
    ///
    /// # Panics
    /// When there is no such partition.
    pub fn halo(&self, part: usize) -> Result<Option<Halo>> {
        let info = &self.manifest.partitions[part];
        let Some(file) = &info.halo else { return Ok(None) };
        let Mapped { path, batch, map } = self.map(part, FileKind::Halo, file, info.halo_nodes)?;
        let features = self.manifest.halo_features.then_some(&self.manifest.features);
        let halo = Halo::from_batch((batch, map), &path, features)?;
        let checked = &self.state(part, FileKind::Halo).checked;
        if !checked.load(Ordering::Relaxed) {
            let nodes = halo.nodes();
            let in_graph = nodes.last().is_none_or(|&last| u64::from(last) < self.manifest.nodes);
            if !in_graph || !nodes.is_sorted_by(|a, b| a < b) {
                let reason = "its nodes are not in ascending order, or not in the graph".into();
                return Err(Error::Damaged { path, reason });
            }
            checked.store(true, Ordering::Relaxed);
        }
        Ok(Some(halo))
    }

    /// Verifies and maps a file.
    fn map(&self, part: usize, kind: FileKind, info: &FileInfo, rows: u64) -> Result<Mapped> {
        let (path, file) = self.open_verified(part, kind, info)?;
        let (batch, map) = mapped::map(&file, &path, info, rows)?;
        Ok(Mapped { path, batch, map })
    }

    /// Compares the lengths of all files with the manifest.
    ///
    /// # Errors
    /// [`Error::Damaged`] for the first file that is missing, too short or too long.
    pub(crate) fn check_lengths(&self) -> Result<()> {
        self.files().try_for_each(|(path, info)| {
            let found = std::fs::metadata(&path).map_or(0, |meta| meta.len());
            if found == 0
                && let Some(origin) = copies::origin_of(&self.dir)
            {
                return Err(Error::Copies { path: self.dir.clone(), origin });
            }
            let reason = || format!("it has {found} bytes, but the manifest says {}", info.bytes);
            if found == info.bytes { Ok(()) } else { Err(Error::Damaged { reason: reason(), path }) }
        })
    }

    /// Returns the names of its files, relative to its folder. The manifest is the last one.
    pub fn file_names(&self) -> Vec<String> {
        let of_parts = self.manifest.partitions.iter().enumerate().flat_map(|(part, info)| {
            let kinds = FileKind::ALL.into_iter().filter(|kind| kind.info(info).is_some());
            kinds.map(move |kind| format!("{}/{}", part_folder(part), kind.name()))
        });
        // Older versions wrote no report.
        let report = self.dir.join(QUALITY_FILE).exists().then(|| QUALITY_FILE.to_owned());
        of_parts.chain(report).chain([Manifest::FILE.to_owned()]).collect()
    }

    fn files(&self) -> impl Iterator<Item = (PathBuf, FileInfo)> {
        self.manifest.partitions.iter().enumerate().flat_map(move |(part, info)| {
            let kinds = FileKind::ALL.into_iter();
            kinds.filter_map(move |kind| Some((self.file(part, kind), kind.info(info)?)))
        })
    }
}

/// A mapped file and its only record batch.
struct Mapped {
    path: PathBuf,
    batch: RecordBatch,
    map: Arc<Mmap>,
}

pub(crate) const TOPOLOGY: &str = FileKind::Topology.name();
pub(crate) const NODES: &str = FileKind::Nodes.name();
pub(crate) const FEATURES: &str = FileKind::Features.name();
pub(crate) const HALO: &str = FileKind::Halo.name();
