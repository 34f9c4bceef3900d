//! The partitions of a worker, and where the rows of features are read.

use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use gnnflow_data::dataset::{Features, FileKind, Partition};
use gnnflow_dataflow::graph::placement::Placement;
use gnnflow_dataflow::storage::{Array, Busy, Place, RowReader, RowSource};

use super::machine;
use crate::config::{self, Config};
use crate::error::Error;
use crate::runtime::job::Job;

/// Bytes that a thread copies at a time.
const PIECE: usize = 4 << 20;

/// The partitions of a worker: labels and features; and the features of other partitions on its host.
pub(crate) struct FeatureStore {
    pub(super) offsets: Vec<u64>,
    pub(super) parts: Vec<Option<Arc<Partition>>>,
    /// By partition; of own partitions, too.
    pub(super) features: Vec<Option<Features>>,
    /// Whether features are read ahead of their use (`train.read_ahead`).
    reads_ahead: bool,
    /// A copy of the features of own partitions, once [`FeatureStore::copy_to_memory`] has made it; `None` if there was no memory for it.
    copy: OnceLock<Option<CopiedRows>>,
}

/// Features of successive nodes in large pages. Rows of a batch are at random places. A mapped file has pages of 4 KiB, and the processor
/// takes as long to find a page as to read a row.
struct CopiedRows {
    /// The global id of the first node.
    first: u32,
    row_bytes: usize,
    rows: Array<u8>,
}

impl CopiedRows {
    /// Returns the row of `node`, if it is one of the nodes.
    #[inline]
    fn get(&self, node: u32) -> Option<&[u8]> {
        let start = node.checked_sub(self.first)? as usize * self.row_bytes;
        self.rows.get(start..start + self.row_bytes)
    }
}

impl FeatureStore {
    /// Opens the partitions of `worker`, one of `workers`. Verifies the checksums of all files that the worker always reads;
    /// other files are verified when they are opened.
    ///
    /// # Errors
    /// If a file is damaged or cannot be read.
    pub(crate) fn open(job: &Job, worker: usize, workers: usize) -> Result<Arc<Self>, Error> {
        let placement = Placement::new(job.dataset.manifest().parts(), workers);
        job.dataset.verify_files(&files_read(job, placement, worker), job.runtime.progress())?;
        let mut parts: Vec<Option<Arc<Partition>>> = vec![None; placement.parts()];
        for part in placement.parts_of(worker) {
            parts[part] = Some(Arc::new(job.dataset.partition(part)?));
        }
        let shares = |part: usize| {
            let hosts = [worker, placement.worker_of(part)].map(|worker| job.hosts[worker]);
            job.config.partition.features == config::Features::Shared && hosts[0] == hosts[1]
        };
        let open = |part: usize| match &parts[part] {
            Some(own) => Ok(Some(own.features.clone())),
            None if shares(part) => job.dataset.features_verified_elsewhere(part).map(Some),
            None => Ok(None),
        };
        let features: Vec<Option<Features>> = (0..placement.parts()).map(open).collect::<Result<_, _>>()?;
        let bytes: usize = features.iter().flatten().map(|features| features.bytes().len()).sum();
        let setting = job.config.train.as_ref().and_then(|train| train.read_ahead);
        let reads_ahead = setting.unwrap_or_else(|| bytes as u64 > machine::memory() / 2);
        if reads_ahead {
            features.iter().flatten().for_each(Features::read_at_random);
        }
        Ok(Arc::new(Self {
            offsets: job.dataset.book().offsets().to_vec(),
            parts,
            features,
            reads_ahead,
            copy: OnceLock::new(),
        }))
    }

    /// Copies the features of own partitions into memory in large pages, from which rows are read afterwards. Does nothing the second time, or if
    /// features are read ahead, because they may be larger than memory.
    pub(crate) fn copy_to_memory(&self, job: &Job) {
        if self.reads_ahead {
            return;
        }
        self.copy.get_or_init(|| {
            let _busy = job.runtime.busy("copying features to memory");
            self.copied(job.threads).unwrap_or_else(|error| {
                job.runtime.say(&format!("note: features stay in files, where reading takes longer: {error}"));
                None
            })
        });
    }

    /// Returns a copy of the features of own partitions, made by `threads` threads; `None` if there are no features.
    fn copied(&self, threads: usize) -> io::Result<Option<CopiedRows>> {
        let own: Vec<&Arc<Partition>> = self.parts.iter().flatten().collect();
        let bytes: usize = own.iter().map(|part| part.features.bytes().len()).sum();
        let Some(first) = own.first().filter(|_| bytes > 0) else { return Ok(None) };
        let mut rows = Array::<u8>::zeros(bytes, &Place::Memory)?;
        let (mut pieces, mut rest) = (Vec::new(), &mut rows[..]);
        for features in own.iter().map(|part| &part.features) {
            let (into, after) = rest.split_at_mut(features.bytes().len());
            pieces.extend(into.chunks_mut(PIECE).enumerate().map(|(at, into)| (features, at * PIECE, into)));
            rest = after;
        }
        let pieces = Mutex::new(pieces.into_iter());
        let copy = || {
            loop {
                let next = pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((features, start, into)) = next else { return };
                features.copy_bytes(start, into);
            }
        };
        std::thread::scope(|scope| -> io::Result<()> {
            for _ in 0..threads.max(1) {
                std::thread::Builder::new().name("copy features".into()).spawn_scoped(scope, copy)?;
            }
            Ok(())
        })?;
        Ok(Some(CopiedRows { first: first.range.start as u32, row_bytes: first.features.row_bytes(), rows }))
    }

    fn owner(&self, node: u32) -> usize {
        match self.offsets.len() {
            2 => 0,
            _ => self.offsets.partition_point(|&start| start <= u64::from(node)) - 1,
        }
    }

    /// Returns the partition that owns `node`, and the node's local id.
    ///
    /// # Panics
    /// If another worker hosts it.
    pub(crate) fn find(&self, node: u32) -> (&Partition, usize) {
        let part = self.get(self.owner(node));
        (part, (u64::from(node) - part.range.start) as usize)
    }

    /// Returns whether the features of all partitions are read here.
    pub(super) fn has_all(&self) -> bool {
        self.features.iter().all(Option::is_some)
    }

    /// Returns whether features of other workers are read here.
    pub(crate) fn shares_any(&self) -> bool {
        self.features.iter().flatten().count() > self.parts.iter().flatten().count()
    }

    /// Returns partition `part`.
    ///
    /// # Panics
    /// If another worker hosts it.
    pub(crate) fn get(&self, part: usize) -> &Partition {
        self.parts[part].as_ref().expect("this worker hosts the partition")
    }
}

/// Whether a worker reads the topology of all partitions.
pub(super) fn replicates_topology(config: &Config) -> bool {
    let column_parallel = config.train.as_ref().is_some_and(|train| train.schedule.is_tensor_parallel());
    column_parallel || config.partition.topology == config::Topology::Replicated
}

/// Returns the files that `worker` always reads: those of its partitions, and the topology of all partitions if replicated.
/// Halos are included only if their features are read.
fn files_read(job: &Job, placement: Placement, worker: usize) -> Vec<(usize, FileKind)> {
    let partition_local = job.config.train.as_ref().is_some_and(|train| train.schedule.is_partition_parallel());
    let reads_halo = job.dataset.manifest().halo_features && (partition_local || placement.workers() > 1);
    let mut files = Vec::new();
    for part in placement.parts_of(worker) {
        files.extend([FileKind::Topology, FileKind::Nodes, FileKind::Features].map(|kind| (part, kind)));
        files.extend(reads_halo.then_some((part, FileKind::Halo)));
    }
    if replicates_topology(&job.config) {
        files.extend((0..placement.parts()).map(|part| (part, FileKind::Topology)));
    }
    files
}

impl RowSource for FeatureStore {
    fn row_bytes(&self) -> usize {
        self.features.iter().flatten().next().map_or(0, Features::row_bytes)
    }

    fn open(&self) -> Result<Box<dyn RowReader + '_>, Busy> {
        Ok(Box::new(self))
    }

    fn reads_ahead(&self) -> bool {
        self.reads_ahead
    }

    fn will_need(&self, nodes: &[u32]) {
        let mut rows = vec![Vec::new(); self.parts.len()];
        for &node in nodes {
            let owner = self.owner(node);
            rows[owner].push((u64::from(node) - self.offsets[owner]) as usize);
        }
        for (features, rows) in self.features.iter().zip(rows) {
            features.iter().for_each(|features| features.will_need(rows.iter().copied()));
        }
    }

    fn shares(&self, node: u32) -> bool {
        let owner = self.owner(node);
        self.features[owner].is_some() && self.parts[owner].is_none()
    }
}

impl RowReader for FeatureStore {
    fn row(&self, node: u32) -> &[u8] {
        if let Some(row) = self.copy.get().and_then(|copy| copy.as_ref()?.get(node)) {
            return row;
        }
        let owner = self.owner(node);
        let features = self.features[owner].as_ref().expect("this worker hosts the partition, or shares its features");
        let (row, bytes) = ((u64::from(node) - self.offsets[owner]) as usize, features.row_bytes());
        &features.bytes()[row * bytes..(row + 1) * bytes]
    }

    fn all(&self) -> Option<&[u8]> {
        let copy = self.copy.get()?.as_ref()?;
        let nodes = *self.offsets.last()? as usize;
        (copy.rows.len() == nodes * copy.row_bytes).then_some(&copy.rows[..])
    }
}
