//! Features of halo nodes, which are stored with each partition (`partition.halo = "features"`).
//!
//! A partition's halo consists of the nodes of other partitions that its edges start from. If their features are stored with
//! it, a one-hop batch sends no requests for rows. This is the halo of DistDGL and SDT-GNN.

use std::sync::atomic::{AtomicU32, Ordering};

use gnnflow_data::Halo;

use gnnflow_kernels::node_index::NodeIndex;

/// Marks an unknown degree. No node has as many in-edges.
const UNKNOWN: u32 = u32::MAX;

/// Rows of other workers' nodes that are stored with the partitions that a worker hosts.
///
/// ```
/// use gnnflow_data::{Features, Halo};
/// use gnnflow_dataflow::batch::halo::HaloRows;
///
/// let features = |node: f32| Some(Features::from_f32(2, vec![node, -node, 90.0, 9.0]));
/// // This worker hosts the nodes up to 50, and two partitions; node 60 is in the halo of one, 90 in that of both.
/// let halos = vec![Halo::new(vec![7, 90], features(7.0)), Halo::new(vec![60, 90], features(60.0))];
/// let rows = HaloRows::new(halos, |node| node > 50).unwrap();
/// assert_eq!(rows.index().nodes(), [60, 90]);
/// let row: &[f32] = bytemuck::cast_slice(rows.find(60).unwrap().row);
/// assert_eq!(row, [60.0, -60.0]);
/// assert!(rows.find(7).is_none() && rows.find(8).is_none());
/// ```
pub struct HaloRows {
    index: NodeIndex,
    /// For each node: the number of its halo, and its row there.
    places: Vec<(u32, u32)>,
    halos: Vec<Halo>,
    /// In-degrees without self loops, as far as they have been fetched from the owners.
    degrees: Vec<AtomicU32>,
}

/// The stored data of a halo node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HaloRow<'a> {
    /// Its row.
    pub row: &'a [u8],
    /// Its in-degree without self loops, once it is [known](HaloRows::set_degree).
    pub degree: Option<u32>,
}

impl HaloRows {
    /// Collects the rows of `halos`, those of the partitions that a worker hosts, for which `foreign` returns true: other workers
    /// host the nodes. Returns `None` if a halo has no features. Takes about 20 bytes per node besides the mapped files.
    pub fn new(halos: Vec<Halo>, foreign: impl Fn(u32) -> bool) -> Option<Self> {
        let mut nodes = Vec::new();
        for (halo, number) in halos.iter().zip(0u32..) {
            halo.features()?;
            let rows = halo.nodes().iter().zip(0u32..).filter(|&(&node, _)| foreign(node));
            nodes.extend(rows.map(|(&node, row)| (node, (number, row))));
        }
        // A node in the halos of several partitions has the same row in each.
        nodes.sort_unstable();
        nodes.dedup_by_key(|(node, _)| *node);
        let degrees = nodes.iter().map(|_| AtomicU32::new(UNKNOWN)).collect();
        let (nodes, places) = nodes.into_iter().unzip();
        Some(Self { index: NodeIndex::new(nodes), places, halos, degrees })
    }

    /// Returns the nodes.
    pub fn index(&self) -> &NodeIndex {
        &self.index
    }

    /// Returns the data of `node`, or `None` if it is in no halo.
    #[inline]
    pub fn find(&self, node: u32) -> Option<HaloRow<'_>> {
        let place = self.index.find(node)?;
        let (halo, row) = self.places[place];
        let features = self.halos[halo as usize].features()?;
        let width = features.row_bytes();
        let row = &features.bytes()[row as usize * width..][..width];
        let degree = Some(self.degrees[place].load(Ordering::Relaxed)).filter(|&degree| degree != UNKNOWN);
        Some(HaloRow { row, degree })
    }

    /// Starts reading from disk the rows of those `nodes` that are in a halo.
    pub fn will_need(&self, nodes: &[u32]) {
        let mut rows = vec![Vec::new(); self.halos.len()];
        for (halo, row) in nodes.iter().filter_map(|&node| self.index.find(node)).map(|place| self.places[place]) {
            rows[halo as usize].push(row as usize);
        }
        let files = self.halos.iter().filter_map(Halo::features).zip(rows);
        files.for_each(|(features, rows)| features.will_need(rows));
    }

    /// Stores the degree of a node. Degrees never change, so the order of calls does not matter.
    pub fn set_degree(&self, node: u32, degree: u32) {
        if let Some(place) = self.index.find(node) {
            self.degrees[place].store(degree, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnnflow_data::Features;

    fn halo(nodes: &[u32]) -> Halo {
        let rows = nodes.iter().map(|&node| node as f32).collect();
        Halo::new(nodes.to_vec(), Some(Features::from_f32(1, rows)))
    }

    #[test]
    fn rows_are_found_in_all_halos() {
        let halos = HaloRows::new(vec![halo(&[2, 5, 30]), halo(&[]), halo(&[1, 5, 9])], |node| node < 20).unwrap();
        for node in 0..40 {
            let found = halos.find(node).map(|found| bytemuck::cast_slice::<u8, f32>(found.row)[0]);
            assert_eq!(found, [1, 2, 5, 9].contains(&node).then_some(node as f32), "{node}");
        }
        assert!(HaloRows::new(vec![halo(&[1]), Halo::new(vec![1, 2], None)], |_| true).is_none());
    }

    #[test]
    fn degrees_are_unknown_until_they_are_stored() {
        let halos = HaloRows::new(vec![halo(&[2, 5])], |_| true).unwrap();
        assert_eq!(halos.find(5).unwrap().degree, None);
        halos.set_degree(5, 3);
        halos.set_degree(6, 4);
        assert_eq!(halos.find(5).unwrap().degree, Some(3));
        assert_eq!(halos.find(2).unwrap().degree, None);
    }
}
