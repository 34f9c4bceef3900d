//! The partitions of a worker, and where the rows of features are read.

use std::io;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use gnnflow_data::dataset::{Features, FileKind, Partition};
use gnnflow_dataflow::graph::placement::Placement;
use gnnflow_dataflow::storage::{Array, Busy, Place, RowReader, RowSource};

use super::machine;
use crate::config::{self, Config};
use crate::error::Error;
use crate::runtime::job::Job;

/// The partitions of a worker: labels and features; and the features of other partitions on its host.
pub(crate) struct FeatureStore {
    pub(super) offsets: Vec<u64>,
    pub(super) parts: Vec<Option<Arc<Partition>>>,
    /// By partition; of own partitions, too.
    pub(super) features: Vec<Option<Features>>,
    /// Whether features are read ahead of their use (`train.read_ahead`).
    reads_ahead: bool,
    /// A copy of the features of own partitions, once [`FeatureStore::copy_to_memory`] has made it.
    copy: OnceLock<CopiedRows>,
}

/// Features of successive nodes in large pages. Rows of a batch are at random places. A mapped file has pages of 4 KiB, and the processor
/// takes as long to find a page as to read a row.
struct CopiedRows {
    /// The global ids of the nodes.
    nodes: Range<u64>,
    rows: Array<u8>,
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

    /// Copies the features of own partitions into memory in large pages, from which rows are read afterwards. Does nothing if there is a copy
    /// already, or if features are read ahead, because they may be larger than memory.
    pub(crate) fn copy_to_memory(&self, job: &Job) {
        if self.reads_ahead || self.copy.get().is_some() {
            return;
        }
        let _busy = job.runtime.busy("copying features to memory");
        match self.copied(job.threads) {
            Ok(None) => {}
            // One thread calls this function, so there is no other copy.
            Ok(Some(copied)) => drop(self.copy.set(copied)),
            Err(error) => {
                let line = format!(
                    "note: features are read from files, which is slower, because there is no memory for a copy: {error}"
                );
                job.runtime.say(&line);
            }
        }
    }

    /// Returns a copy of the features of own partitions, if there are any. Partitions are copied at the same time, on up to `threads` threads.
    fn copied(&self, threads: usize) -> io::Result<Option<CopiedRows>> {
        let own: Vec<usize> = (0..self.parts.len()).filter(|&part| self.parts[part].is_some()).collect();
        let (Some(&first), Some(&last)) = (own.first(), own.last()) else { return Ok(None) };
        let features: Vec<&Features> = self.features[first..=last].iter().flatten().collect();
        let bytes: usize = features.iter().map(|features| features.bytes().len()).sum();
        if bytes == 0 {
            return Ok(None);
        }
        let mut rows = Array::<u8>::zeros(bytes, &Place::Memory)?;
        let (mut copies, mut rest) = (Vec::with_capacity(features.len()), &mut rows[..]);
        for features in features {
            let (into, after) = rest.split_at_mut(features.bytes().len());
            copies.push((features, into));
            rest = after;
        }
        let each = copies.len().div_ceil(threads.max(1));
        std::thread::scope(|scope| -> io::Result<()> {
            while !copies.is_empty() {
                let some = copies.split_off(copies.len().saturating_sub(each));
                let copy = move || some.into_iter().for_each(|(features, into)| features.copy_to(into));
                std::thread::Builder::new().name("copy features".into()).spawn_scoped(scope, copy)?;
            }
            Ok(())
        })?;
        Ok(Some(CopiedRows { nodes: self.offsets[first]..self.offsets[last + 1], rows }))
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
        if let Some(CopiedRows { nodes, rows }) = self.copy.get()
            && nodes.contains(&u64::from(node))
        {
            let bytes = rows.len() / (nodes.end - nodes.start) as usize;
            return &rows[(u64::from(node) - nodes.start) as usize * bytes..][..bytes];
        }
        let owner = self.owner(node);
        let features = self.features[owner].as_ref().expect("this worker hosts the partition, or shares its features");
        let (row, bytes) = ((u64::from(node) - self.offsets[owner]) as usize, features.row_bytes());
        &features.bytes()[row * bytes..(row + 1) * bytes]
    }
}
