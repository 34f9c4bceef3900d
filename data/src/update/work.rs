//! Runs the steps of an update.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use rayon::prelude::*;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::dataset::{
    Dataset, FEATURES, HALO, Halo, Manifest, NODES, SCHEMA_VERSION, TOPOLOGY, UpdateInfo, part_folder, split,
};
use crate::error::{Error, Result};
use crate::format::hex;
use crate::fs::link_or_copy;
use crate::prepare::{
    HaloFeatures, NodeFiles, PAIRS, Quality, Recorder, SCRATCH, StagingFolder, lock, restore, write_file,
};
use crate::process_memory;
use crate::progress::Progress;

use super::assign::{BALANCE, Placement, choose_partitions};
use super::input::{Input, source};
use super::merge::{Merge, Merged};
use super::node_columns::{count_labels, label_bytes, label_size};
use super::touched::{Added, Delta, Touched};
use super::write_nodes::{NodeChanges, write_columns, write_features};
use super::{AFFECTED, Batch, UpdateSettings, Updated, reach};

pub(super) fn run(
    dir: &Path,
    batches: &[Batch],
    settings: &UpdateSettings,
    progress: &dyn Progress,
) -> Result<Updated> {
    let began = Instant::now();
    let out = settings.out.as_deref().unwrap_or(dir);
    restore(dir, progress)?;
    // Checked first, so that no lock file appears beside a folder that is not a dataset.
    Manifest::read(dir)?;
    if let Some(origin) = Dataset::origin_of(dir) {
        return Err(Error::Copies { path: dir.to_path_buf(), origin });
    }
    if out.exists() && Manifest::read(out).is_err() {
        let empty = out.is_dir() && std::fs::read_dir(out).map_err(Error::io(out, "list"))?.next().is_none();
        if !empty {
            return Err(Error::Occupied { path: out.to_path_buf() });
        }
    }
    let _lock = lock(out, progress)?;
    let dataset = Dataset::open(dir)?;
    dataset.check_lengths()?;
    let quality = Quality::read(dir)?;
    let source = source(&dataset)?;
    let progress = Recorder::new(progress);
    let input = Input::read(&dataset, &source, batches, None, &progress)?;
    input.check_some_are_left(dataset.manifest().nodes, batches)?;
    progress.stage("finding what changes", None, "");
    let delta = Touched::find(&dataset, &source, &input)?.resolve(settings.missing)?;
    progress.done();
    let balance = &dataset.manifest().settings["partition"]["balance"]["nodes"];
    let owners = match &settings.partitions {
        Some(given) => {
            let valid = given.len() == input.nodes.len() && given.iter().all(|&part| part < dataset.book().parts());
            valid.then(|| given.clone()).ok_or_else(|| Error::Bug("the partitions are those of other nodes".into()))?
        }
        None => choose_partitions(&dataset, input.nodes.len(), &delta.added, balance.as_f64().unwrap_or(BALANCE))?,
    };
    let placement = Placement::new(&dataset, &owners, &input.removed)?;

    // The key is unique, because a folder of a killed update has links to dataset files and must not be continued.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_nanos());
    let key = format!("update of {} at {now} by {}", dataset.manifest().fingerprint, std::process::id());
    let growing = StagingFolder::create(out, &key)?;
    let before = dataset.manifest().nodes as u32;
    let values = input.values.of(0..before, dataset.manifest()).filter(|(_, values)| values.features.is_some());
    let features: Vec<u32> = values.map(|(node, _)| node).collect();
    let work = Work {
        dataset: &dataset,
        input: &input,
        delta: &delta,
        placement: &placement,
        changed_features: &features,
        dir: growing.path(),
    };
    let Written { manifest, rewritten, cross, halo } = work.write(&quality, &progress)?;
    let manifest = work.record_update(manifest, settings)?;
    write_file(&growing.path().join(Manifest::FILE), manifest.to_json()?.as_bytes())?;

    progress.stage("finding affected nodes", None, "");
    let updated = Dataset::open(growing.path())?;
    updated.inherit(&dataset);
    let mut degrees = BTreeMap::new();
    for part in 0..updated.manifest().parts() {
        for list in updated.topology(part)?.indptr().windows(2) {
            *degrees.entry((list[1] - list[0]) as u32).or_default() += 1;
        }
    }
    let mut changed: Vec<u32> = delta.changed.iter().map(|&node| placement.global(node)).collect();
    changed.extend(placement.members.iter().flatten().map(|&node| placement.global(before + node)));
    changed.sort_unstable();
    changed.dedup();
    let features: Vec<u32> = features.iter().map(|&node| placement.global(node)).collect();
    let affected = reach::affected(&updated, &features, &changed, settings.hops)?;
    reach::write(&updated, &affected, &growing.path().join(AFFECTED))?;
    progress.done();
    let quality = Quality {
        seconds: began.elapsed().as_secs_f64(),
        partition_seconds: quality.partition_seconds,
        partition_bytes: quality.partition_bytes,
        peak_rss_bytes: process_memory::peak(),
        passes: progress.records(),
        ..Quality::from_counts(&manifest, cross, halo, &degrees)
    };
    write_json(&growing.path().join(Quality::FILE), &quality)?;

    let scratch = growing.path().join(SCRATCH);
    std::fs::remove_dir_all(&scratch).map_err(Error::io(&scratch, "remove"))?;
    growing.publish()?;
    Ok(Updated {
        dataset: out.to_path_buf(),
        counts: delta.counts,
        nodes: manifest.nodes,
        edges: manifest.edges,
        affected: affected.len() as u64,
        rewritten,
        seconds: began.elapsed().as_secs_f64(),
        manifest,
    })
}

struct Work<'a> {
    dataset: &'a Dataset,
    input: &'a Input,
    delta: &'a Delta,
    placement: &'a Placement,
    /// The nodes of the dataset with new features, by their old global ids, ascending.
    changed_features: &'a [u32],
    /// The folder of the new dataset.
    dir: &'a Path,
}

/// Result of writing the files.
struct Written {
    manifest: Manifest,
    rewritten: Vec<usize>,
    /// Number of edges between partitions.
    cross: u64,
    /// Number of halo nodes of each partition, by owner.
    halo: Vec<Vec<u64>>,
}

impl Work<'_> {
    /// Writes or links all files except the reports.
    fn write(&self, quality: &Quality, progress: &dyn Progress) -> Result<Written> {
        let Self { dataset, input, delta, placement, dir, .. } = *self;
        let mut manifest = dataset.manifest().clone();
        let parts = manifest.parts();
        let mut added: Vec<Added> = delta
            .added
            .iter()
            .map(|edge| Added { dst: placement.global(edge.dst), src: placement.global(edge.src), ..*edge })
            .collect();
        added.par_sort_unstable();
        let owner = |node: u32| placement.book.owner(u64::from(node));
        let cross = added.iter().filter(|edge| owner(edge.dst) != owner(edge.src)).count() as u64;
        let cross_before = (quality.edge_cut * manifest.edges as f64).round() as u64;

        progress.stage("writing nodes", Some(placement.book.nodes()), "nodes");
        let mut files = Vec::with_capacity(parts);
        let mut rewritten = Vec::new();
        for part in 0..parts {
            let folder = dir.join(part_folder(part));
            std::fs::create_dir_all(&folder).map_err(Error::io(&folder, "create"))?;
            let old = dataset.book().range(part);
            let values = input.values.of(old.start as u32..old.end as u32, dataset.manifest());
            let values = values.map(|(node, values)| ((u64::from(node) - old.start) as usize, values));
            let (members, gone) = (&placement.members[part], placement.removed_of(part));
            let changes = NodeChanges { new: &input.nodes, members, values: values.collect(), gone };
            if changes.change_columns() || changes.change_features() {
                rewritten.push(part);
            }
            if changes.change_columns() {
                self.count_values(part, &changes, &mut manifest)?;
                manifest.partitions[part].node_columns = write_columns(dataset, part, &changes, dir)?;
            } else {
                self.link(part, NODES)?;
            }
            let info = &mut manifest.partitions[part];
            match info.features {
                Some(_) if changes.change_features() => {
                    info.features = Some(write_features(dataset, part, &changes, dir)?);
                }
                Some(_) => self.link(part, FEATURES)?,
                None => {}
            }
            info.nodes = info.nodes + members.len() as u64 - changes.gone.len() as u64;
            let splits = members.iter().map(|&node| input.nodes.splits[node as usize]);
            info.train += splits.filter(|&which| which == split::TRAIN).count() as u64;
            files.push(NodeFiles { nodes: info.node_columns, features: info.features, train: info.train });
            progress.advance(info.nodes);
        }
        progress.done();

        manifest.edge_columns.edge_type.clone_from(&input.edge_types);
        let loop_type = input.edge_types.as_ref().map_or(0, |types| types.count.saturating_sub(1) as u16);
        let merge = Merge {
            dataset,
            input,
            placement,
            columns: &manifest.edge_columns.clone(),
            loop_type,
            halo_features: manifest.halo_features.then_some(HaloFeatures {
                files: &files,
                layout: manifest.features.layout(),
                of: Some(dataset),
            }),
            dir,
        };
        progress.stage("writing edges", Some(manifest.edges), "edges");
        let merged: Vec<Option<Merged>> = (0..parts)
            .into_par_iter()
            .map(|part| {
                let merged = self.merge(&merge, part, &added)?;
                progress.advance(merged.as_ref().map_or(0, |merged| merged.edges));
                Ok(merged)
            })
            .collect::<Result<_>>()?;
        progress.done();

        let mut halo = Vec::with_capacity(parts);
        for (part, merged) in merged.into_iter().enumerate() {
            let info = &mut manifest.partitions[part];
            match merged {
                None => halo.push(match quality.halo.get(part) {
                    Some(row) if parts <= PAIRS => row.clone(),
                    _ => vec![info.halo_nodes],
                }),
                Some(Merged { topology, edges, halo: file, halo_nodes }) => {
                    if let Some(topology) = topology {
                        info.topology = topology;
                    }
                    rewritten.push(part);
                    info.edges = edges;
                    (info.halo, info.halo_nodes) = (Some(file), halo_nodes.iter().sum());
                    halo.push(halo_nodes);
                }
            }
        }
        manifest.edges = manifest.partitions.iter().map(|part| part.edges).sum();
        manifest.offsets = placement.book.offsets().to_vec();
        placement.members.iter().flatten().for_each(|&node| input.nodes.count(node as usize, &mut manifest));
        let cross = (cross_before + cross).saturating_sub(delta.removed_cross);
        rewritten.sort_unstable();
        rewritten.dedup();
        Ok(Written { manifest, rewritten, cross, halo })
    }

    /// Writes the edges of a partition if they change; links the files otherwise.
    fn merge(&self, merge: &Merge<'_>, part: usize, added: &[Added]) -> Result<Option<Merged>> {
        let core = self.placement.book.range(part);
        let from = added.partition_point(|edge| u64::from(edge.dst) < core.start);
        let to = added.partition_point(|edge| u64::from(edge.dst) < core.end);
        let all = &self.delta.removed;
        let removed_range = all.partition_point(|(of, _)| *of < part)..all.partition_point(|(of, _)| *of <= part);
        let removed: Vec<u64> = all[removed_range].iter().map(|(_, position)| *position).collect();
        let untouched = removed.is_empty() && from == to && self.placement.members[part].is_empty();
        if untouched && !self.placement.shifts() {
            self.link(part, TOPOLOGY)?;
            if let Some(halo) = self.changed_halo(part)? {
                return merge.halo(part, halo.nodes()).map(Some);
            }
            self.dataset.manifest().partitions[part].halo.map(|_| self.link(part, HALO)).transpose()?;
            return Ok(None);
        }
        merge.run(part, &removed, &added[from..to]).map(Some)
    }

    /// Returns the halo of a partition if it has features that change.
    fn changed_halo(&self, part: usize) -> Result<Option<Halo>> {
        if self.changed_features.is_empty() || !self.dataset.manifest().halo_features {
            return Ok(None);
        }
        let changes = |halo: &Halo| self.changed_features.iter().any(|node| halo.nodes().binary_search(node).is_ok());
        Ok(self.dataset.halo(part)?.filter(changes))
    }

    /// Counts the new labels and splits of a partition's old nodes in place of their old ones, and no longer counts its removed nodes.
    fn count_values(&self, part: usize, changes: &NodeChanges<'_>, manifest: &mut Manifest) -> Result<()> {
        let old = self.dataset.nodes(part)?;
        let (labels, size) = (label_bytes(old.labels()), label_size(self.dataset.manifest()));
        for (local, values) in &changes.values {
            if let (Some(label), Some(info)) = (values.label, &mut manifest.labels) {
                count_labels(&labels[local * size..(local + 1) * size], info, false);
                count_labels(label, info, true);
            }
            if let Some(now) = values.split {
                let before = old.split()[*local];
                manifest.splits.remove(before);
                manifest.splits.add(now);
                let train = &mut manifest.partitions[part].train;
                *train = *train + u64::from(now == split::TRAIN) - u64::from(before == split::TRAIN);
            }
        }
        for &local in &changes.gone {
            let which = old.split()[local];
            manifest.nodes -= 1;
            manifest.splits.remove(which);
            manifest.partitions[part].train -= u64::from(which == split::TRAIN);
            if let Some(info) = &mut manifest.labels {
                count_labels(&labels[local * size..(local + 1) * size], info, false);
            }
        }
        Ok(())
    }

    /// Hard-links a file into the new folder, or copies it if the file system has no hard links.
    fn link(&self, part: usize, name: &str) -> Result<()> {
        let (from, to) = (self.dataset.dir().join(part_folder(part)), self.dir.join(part_folder(part)));
        let (from, to): (PathBuf, PathBuf) = (from.join(name), to.join(name));
        link_or_copy(&from, &to).map_err(Error::io(&to, "write"))
    }

    /// Adds the update to the manifest: counts, files and fingerprint.
    fn record_update(&self, mut manifest: Manifest, settings: &UpdateSettings) -> Result<Manifest> {
        let counts = self.delta.counts;
        let loops = manifest.self_loops as i64 + self.delta.self_loops;
        manifest.self_loops = u64::try_from(loops).unwrap_or(0);
        manifest.duplicates_dropped += counts.duplicates_dropped;
        manifest.unknown_dropped += counts.unknown_dropped;
        let rows = |rows: Option<&super::input::Rows>| rows.map_or(0, |rows| rows.src.len() as u64);
        for batch in &self.input.batches {
            // Removals of missing edges are added back below.
            manifest.edge_rows =
                (manifest.edge_rows + rows(batch.added.as_ref())).saturating_sub(rows(batch.removed.as_ref()));
        }
        manifest.edge_rows += counts.missing_ignored;
        manifest.edge_rows = manifest.edge_rows.saturating_sub(self.delta.rows_of_nodes);
        let of_nodes = counts.nodes_added + counts.nodes_changed + counts.nodes_removed;
        if of_nodes + counts.edges_added + counts.edges_removed > 0 {
            let batches = self.input.files.clone();
            let text = json!({
                "schema": SCHEMA_VERSION,
                "dataset": manifest.fingerprint,
                "batches": batches,
                "missing": settings.missing,
            });
            manifest.fingerprint = hex(&Sha256::digest(text.to_string().as_bytes()));
            manifest.updates.push(UpdateInfo { batches, counts });
        }
        Ok(manifest)
    }
}

/// Writes a report. Reports are never linked from the old dataset.
fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Error::Bug(e.to_string()))?;
    write_file(path, text.as_bytes())
}
