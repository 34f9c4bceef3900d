//! Features of a batch's edges. Each edge's row is stored once.

use gnnflow_kernels::block::Block;
use gnnflow_kernels::matrix::Matrix;

/// Features of a batch's edges: one row per different edge, and for every block the row number of each edge.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EdgeRows {
    /// A row for each different edge, ordered by the partition of its destination, then by its position among that partition's
    /// edges.
    pub rows: Matrix,
    /// For each block, the row number of each of its edges.
    pub positions: Vec<Vec<u32>>,
}

/// The different edges of some blocks, in the order of [`EdgeRows::rows`].
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Distinct {
    /// Positions among the in-edges of the partition that owns the destination.
    pub(crate) ids: Vec<u64>,
    /// Each partition that owns any of them, and the end of its edges in `ids`. Ascending.
    pub(crate) ends: Vec<(u32, usize)>,
    /// For each block, the row number of each of its edges.
    pub(crate) positions: Vec<Vec<u32>>,
}

impl Distinct {
    /// Finds the different edges of `blocks`, all of which have edge ids. `nodes` is the batch's node list, and `partition_of`
    /// returns the owner of a node.
    ///
    /// An edge belongs to its destination. The same edge can occur in several hops and, where seeds have trees, in several trees, but
    /// always at the same destination. Nodes are visited in ascending order, hence by partition, and the edges of a
    /// node in ascending order too. So rows are in the order of the partitions' files.
    pub(crate) fn of(blocks: &[Block], nodes: &[u32], partition_of: impl Fn(u32) -> usize) -> Self {
        let positions = blocks.iter().map(|block| vec![0; block.num_edges()]).collect();
        let mut found = Self { positions, ..Self::default() };
        let destinations = blocks.iter().map(Block::num_dst).max().unwrap_or(0);
        let mut order: Vec<u64> =
            nodes[..destinations].iter().zip(0u64..).map(|(&node, at)| u64::from(node) << 32 | at).collect();
        order.sort_unstable();
        // Edge, block and position there.
        let mut edges: Vec<(u64, u32, u32)> = Vec::new();
        for same in order.chunk_by(|a, b| a >> 32 == b >> 32) {
            edges.clear();
            for at in same.iter().map(|&entry| entry as u32 as usize) {
                for (block, number) in blocks.iter().zip(0u32..).filter(|(block, _)| at < block.num_dst()) {
                    let ids = block.edge_ids().expect("blocks have edge ids where edge features are fetched");
                    let range = block.indptr()[at]..block.indptr()[at + 1];
                    edges.extend(range.map(|edge| (ids[edge as usize], number, edge)));
                }
            }
            edges.sort_unstable();
            for same in edges.chunk_by(|a, b| a.0 == b.0) {
                let row = found.ids.len() as u32;
                found.ids.push(same[0].0);
                same.iter().for_each(|&(_, block, edge)| found.positions[block as usize][edge as usize] = row);
            }
            if !edges.is_empty() {
                let part = partition_of((same[0] >> 32) as u32) as u32;
                match found.ends.last_mut() {
                    Some((last, end)) if *last == part => *end = found.ids.len(),
                    _ => found.ends.push((part, found.ids.len())),
                }
            }
        }
        found
    }

    /// Returns the partitions that own any of the edges, each with the range of its edges.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (u32, std::ops::Range<usize>)> + '_ {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|&(_, end)| end));
        starts.zip(&self.ends).map(|(start, &(part, end))| (part, start..end))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_edge_has_one_row_that_all_its_occurrences_refer_to() {
        // Nodes 9 and 4 own edges; 9 stands twice (two trees). Partition: node / 5.
        let nodes = [9, 4, 9, 2];
        let near = Block::new(2, 4, vec![0, 2, 3], vec![1, 2, 3]).with_edge_ids(vec![31, 30, 7]);
        let far = Block::new(3, 4, vec![0, 2, 2, 4], vec![1, 3, 3, 0]).with_edge_ids(vec![30, 31, 31, 35]);
        let found = Distinct::of(&[near.clone(), far.clone()], &nodes, |node| node as usize / 5);
        assert_eq!((&found.ids[..], &found.ends[..]), (&[7, 30, 31, 35][..], &[(0, 1), (1, 4)][..]));
        assert_eq!(found.positions, [vec![2, 1, 0], vec![1, 2, 2, 3]]);
        assert_eq!(found.parts().collect::<Vec<_>>(), [(0, 0..1), (1, 1..4)]);
        assert_eq!(Distinct::of(&[], &nodes, |_| 0), Distinct::default());

        let key = gnnflow_data::rng::Key::new(5, gnnflow_data::rng::Purpose::Shuffle);
        let nodes: Vec<u32> = (0..40).map(|i| key.below(i, 60) as u32).collect();
        let block = |dst: u32, seed: u64| {
            let key = key.fold(seed);
            let (mut indptr, mut ids) = (vec![0u32], Vec::new());
            for at in 0..dst {
                // Ids of a node's own edges: its number, and one of ten.
                let node = u64::from(nodes[at as usize]);
                ids.extend((0..key.below(u64::from(at), 6)).map(|i| node % 20 * 10 + key.fold(i).below(node, 10)));
                indptr.push(ids.len() as u32);
            }
            Block::new(dst, 40, indptr, vec![0; ids.len()]).with_edge_ids(ids)
        };
        let blocks = [block(10, 1), block(25, 2), block(40, 3)];
        let found = Distinct::of(&blocks, &nodes, |node| node as usize / 20);
        let mut set = BTreeSet::new();
        let parts: Vec<u32> = found.parts().flat_map(|(part, range)| range.map(move |_| part)).collect();
        for (block, positions) in blocks.iter().zip(&found.positions) {
            for (ends, node) in block.indptr().windows(2).zip(&nodes) {
                let edges = ends[0] as usize..ends[1] as usize;
                for (&row, &id) in positions[edges.clone()].iter().zip(&block.edge_ids().unwrap()[edges]) {
                    assert_eq!((parts[row as usize], found.ids[row as usize]), (node / 20, id));
                    set.insert((node / 20, id));
                }
            }
        }
        let all: Vec<(u32, u64)> = parts.into_iter().zip(found.ids).collect();
        assert_eq!(all, set.into_iter().collect::<Vec<_>>(), "in order, and nothing twice");
    }
}
