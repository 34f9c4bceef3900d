//! Assigns training nodes to partitions as seeds.
//!
//! DistDGL (section III-E) splits training nodes in two levels: into contiguous ranges of ids, one per machine, each assigned
//! to the machine whose partition overlaps it most; then evenly among a machine's trainers. Here every partition is one
//! trainer, and the lengths of the ranges differ by at most one node, so all batches of a step have equal work. A seed of
//! another partition costs as much as a neighbor of another partition.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use gnnflow_data::dataset::{Labels, Nodes};

use crate::config;
use crate::context::TRAIN;
use crate::context::feature_store::FeatureStore;
use crate::error::Error;
use crate::runtime::job::Job;

/// The seeds of this worker's partitions.
pub(crate) struct SeedSplit {
    /// Global ids by partition; empty for partitions of other workers.
    pub(crate) train: Vec<Vec<u32>>,
    /// Their times, if nodes have times.
    pub(crate) times: Vec<Vec<i64>>,
    /// Labels of the seeds that other workers host, as bytes of the dataset's column.
    pub(crate) foreign: HashMap<u32, Box<[u8]>>,
    /// Number of seeds by partition, of all workers.
    pub(crate) counts: Vec<u64>,
}

impl SeedSplit {
    /// Finds the seeds of this worker's partitions `hosted`.
    ///
    /// # Errors
    /// If a partition's nodes cannot be read.
    pub(crate) fn open(
        job: &Job,
        train: &config::Train,
        parts: &Arc<FeatureStore>,
        hosted: Range<usize>,
    ) -> Result<Self, Error> {
        let manifest = job.dataset.manifest();
        let counts: Vec<u64> = manifest.partitions.iter().map(|part| part.train).collect();
        let starts: Vec<u64> = std::iter::once(0)
            .chain(counts.iter().scan(0, |sum, count| {
                *sum += count;
                Some(*sum)
            }))
            .collect();
        let ranges = if train.splits_evenly(&counts) { matched(&starts) } else { own(&starts) };
        let mut split = Self {
            train: vec![vec![]; counts.len()],
            times: vec![vec![]; counts.len()],
            foreign: HashMap::new(),
            counts: ranges.iter().map(|range| range.end - range.start).collect(),
        };
        for source in 0..counts.len() {
            let recipients =
                || hosted.clone().filter(|&part| overlap(&ranges[part], &(starts[source]..starts[source + 1])) > 0);
            if recipients().next().is_none() {
                continue;
            }
            let is_here = hosted.contains(&source);
            let nodes = if is_here { parts.get(source).nodes.clone() } else { job.dataset.nodes(source)? };
            let (local, first) = (nodes.in_split(TRAIN), job.dataset.book().range(source).start as u32);
            for part in recipients() {
                let range = ranges[part].start.max(starts[source])..ranges[part].end.min(starts[source + 1]);
                let seeds = &local[(range.start - starts[source]) as usize..(range.end - starts[source]) as usize];
                split.train[part].extend(seeds.iter().map(|&local| first + local));
                if let Some(times) = nodes.times() {
                    split.times[part].extend(seeds.iter().map(|&local| times[local as usize]));
                }
                if !is_here {
                    let labels =
                        seeds.iter().filter_map(|&local| Some((first + local, label(&nodes, local as usize)?)));
                    split.foreign.extend(labels);
                }
            }
        }
        Ok(split)
    }
}

/// Returns a node's label as bytes of its column.
fn label(nodes: &Nodes, local: usize) -> Option<Box<[u8]>> {
    match nodes.labels() {
        Labels::None => None,
        Labels::Class(classes) => Some(bytemuck::bytes_of(&classes[local]).into()),
        Labels::Value(values) => Some(bytemuck::bytes_of(&values[local]).into()),
        Labels::Multi(flags, width) => Some(flags[local * width..(local + 1) * width].into()),
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> u64 {
    a.end.min(b.end).saturating_sub(a.start.max(b.start))
}

/// Returns each partition's own training nodes: `starts[p]..starts[p + 1]` of all training nodes.
fn own(starts: &[u64]) -> Vec<Range<u64>> {
    starts.windows(2).map(|ends| ends[0]..ends[1]).collect()
}

/// Returns equal ranges of all training nodes, by partition. Pairs of partition and range are matched by decreasing overlap.
fn matched(starts: &[u64]) -> Vec<Range<u64>> {
    let (own, parts) = (own(starts), starts.len() as u64 - 1);
    let all = starts[parts as usize];
    let cut = |i: u64| (u128::from(i) * u128::from(all) / u128::from(parts)) as u64;
    let mut ranges: Vec<Option<Range<u64>>> = (0..parts).map(|i| Some(cut(i)..cut(i + 1))).collect();
    let mut pairs = Vec::new();
    for (part, own) in own.iter().enumerate() {
        for (i, range) in ranges.iter().flatten().enumerate() {
            pairs.push((std::cmp::Reverse(overlap(own, range)), part, i));
        }
    }
    pairs.sort_unstable();
    let mut assigned = vec![None; own.len()];
    for (_, part, i) in pairs {
        if assigned[part].is_none() {
            assigned[part] = ranges[i].take();
        }
    }
    assigned.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_ranges_are_matched_by_overlap() {
        assert_eq!(matched(&[0, 4, 8]), [0..4, 4..8]);
        assert_eq!(matched(&[0, 6, 8]), [0..4, 4..8]);
        // The second partition has no training nodes, and gets the remaining range.
        assert_eq!(matched(&[0, 5, 5, 10]), [0..3, 3..6, 6..10]);
        assert_eq!(matched(&[0, 0, 0, 3]), [1..2, 2..3, 0..1]);
        assert_eq!(matched(&[0, 10, 10]), [0..5, 5..10]);
        assert_eq!(matched(&[0, 0]), vec![0..0; 1]);
        // Each node is assigned once, for any sizes.
        for starts in [vec![0, 1, 2, 50, 51], vec![0, 90, 91, 92, 93, 94], vec![0, 7]] {
            let mut ranges = matched(&starts);
            ranges.sort_unstable_by_key(|range| range.start);
            let ends: Vec<u64> = ranges.iter().flat_map(|range| [range.start, range.end]).collect();
            assert_eq!((ends[0], ends[ends.len() - 1]), (0, starts[starts.len() - 1]));
            assert!(ends[1..ends.len() - 1].chunks(2).all(|pair| pair[0] == pair[1]), "{ranges:?}");
            let lengths = ranges.iter().map(|range| range.end - range.start);
            assert!(lengths.clone().max().unwrap() - lengths.min().unwrap() <= 1);
        }
    }
}
