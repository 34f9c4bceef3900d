//! The order in which column shards are sent: before each chunk, only the rows that it needs first (NeutronTP, section 4.2.2).
//!
//! The rows of the next chunk travel while this one is aggregated, and no row travels twice. Every worker has all edges and computes the same
//! order, so messages hold no ids.

use std::ops::Range;

use gnnflow_dataflow::ghost::Links;

/// All nodes, by the chunk that needs their rows first, then by worker and id.
#[derive(Debug)]
pub(crate) struct SendOrder {
    /// `None` for the order of ids.
    nodes: Option<Vec<u32>>,
    /// By chunk and worker, the first position; and the number of nodes.
    bounds: Vec<usize>,
    workers: usize,
}

impl SendOrder {
    /// Sends all rows before the first of `chunks` chunks. Worker w has the nodes `starts[w]..starts[w + 1]`.
    pub(crate) fn all_first(chunks: usize, starts: &[u32]) -> Self {
        let (workers, nodes) = (starts.len() - 1, starts[starts.len() - 1] as usize);
        let mut bounds: Vec<usize> = starts[..workers].iter().map(|&start| start as usize).collect();
        bounds.resize(chunks.max(1) * workers + 1, nodes);
        Self { nodes: None, bounds, workers }
    }

    /// Sends the rows of a chunk's nodes before the chunk.
    pub(crate) fn by_chunk(chunks: &[Range<usize>], starts: &[u32]) -> Self {
        let nodes = starts[starts.len() - 1] as usize;
        let first = |chunk: &Range<usize>| {
            let chunk = chunk.clone();
            starts[..starts.len() - 1].iter().map(move |&start| (start as usize).clamp(chunk.start, chunk.end))
        };
        let bounds = chunks.iter().flat_map(first).chain([nodes]).collect();
        Self { nodes: None, bounds, workers: starts.len() - 1 }
    }

    /// Before each chunk, sends the rows of its nodes and of their neighbors in `links` that have not been sent. Receivers have `slots` slots: at
    /// the rows of links or, in the backward pass, at their neighbors.
    pub(crate) fn of_sources(
        links: &Links,
        slots: usize,
        backward: bool,
        chunks: &[Range<usize>],
        starts: &[u32],
    ) -> Self {
        let nodes = starts[starts.len() - 1] as usize;
        let (row_slots, neighbor_slots) = if backward { (1, slots) } else { (slots, 1) };
        let mut first = vec![u32::MAX; nodes];
        for (chunk, rows) in (0u32..).zip(chunks) {
            first[rows.clone()].iter_mut().for_each(|first| *first = chunk.min(*first));
            let (indptr, indices) = links.edges(rows.start * row_slots..rows.end * row_slots);
            let edges = indptr[0] as usize..indptr[indptr.len() - 1] as usize;
            for &neighbor in &indices[edges] {
                let first = &mut first[neighbor as usize / neighbor_slots];
                *first = chunk.min(*first);
            }
        }
        let workers = starts.len() - 1;
        let mut counts = vec![0usize; chunks.len() * workers];
        let of_worker = |worker: usize| starts[worker] as usize..starts[worker + 1] as usize;
        for worker in 0..workers {
            first[of_worker(worker)].iter().for_each(|&chunk| counts[chunk as usize * workers + worker] += 1);
        }
        let mut bounds = Vec::with_capacity(counts.len() + 1);
        let mut sum = 0;
        for count in &counts {
            bounds.push(sum);
            sum += count;
        }
        bounds.push(sum);
        let (mut next, mut sorted) = (bounds.clone(), vec![0; nodes]);
        for worker in 0..workers {
            for node in of_worker(worker) {
                let place = &mut next[first[node] as usize * workers + worker];
                sorted[*place] = node as u32;
                *place += 1;
            }
        }
        Self { nodes: Some(sorted), bounds, workers }
    }

    /// Returns the node at a position.
    pub(crate) fn node(&self, position: usize) -> usize {
        self.nodes.as_ref().map_or(position, |nodes| nodes[position] as usize)
    }

    /// Returns the positions of those nodes of `nodes`, all of `worker`, that are sent before `chunk`.
    pub(crate) fn positions(&self, chunk: usize, nodes: Range<usize>, worker: usize) -> Range<usize> {
        let all = self.bounds[chunk * self.workers + worker]..self.bounds[chunk * self.workers + worker + 1];
        let at = |node: usize| match &self.nodes {
            None => node.clamp(all.start, all.end.max(all.start)),
            Some(sorted) => all.start + sorted[all.clone()].partition_point(|&known| (known as usize) < node),
        };
        at(nodes.start)..at(nodes.end)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gnnflow_data::rng::{Key, Purpose};
    use gnnflow_dataflow::ghost::Ends;
    use gnnflow_dataflow::ghost::links::Filter;
    use gnnflow_dataflow::graph::local_graph::{InEdges, OwnedInEdges};
    use gnnflow_dataflow::storage::Place;

    use super::*;

    /// Checks that every row is sent once, by its worker, before the first chunk that needs it.
    fn check(order: &SendOrder, chunks: usize, starts: &[u32], needs: impl Fn(usize) -> Vec<usize>) {
        let nodes = starts[starts.len() - 1] as usize;
        let mut sent = vec![false; nodes];
        for chunk in 0..chunks {
            for worker in 0..starts.len() - 1 {
                let own = starts[worker] as usize..starts[worker + 1] as usize;
                let middle = own.start + own.len() / 3;
                let positions = [own.start..middle, middle..own.end].map(|nodes| order.positions(chunk, nodes, worker));
                for node in positions.into_iter().flatten().map(|position| order.node(position)) {
                    assert!(own.contains(&node) && !sent[node], "chunk {chunk}: node {node}");
                    sent[node] = true;
                }
            }
            assert!(needs(chunk).into_iter().all(|node| sent[node]), "chunk {chunk}");
        }
        assert!(sent.into_iter().all(|sent| sent), "all rows are sent");
    }

    #[test]
    fn rows_are_sent_once_and_before_they_are_needed() {
        let key = Key::new(3, Purpose::GenerateEdges);
        let degrees = (0..60).map(|v| key.fold(1).below(v, 4) as i64);
        let indptr: Vec<i64> = std::iter::once(0)
            .chain(degrees.scan(0, |sum, d| {
                *sum += d;
                Some(*sum)
            }))
            .collect();
        let edges = *indptr.last().unwrap() as u64;
        let mut indices: Vec<u32> = (0..edges).map(|e| key.fold(2).below(e, 60) as u32).collect();
        indptr.windows(2).for_each(|bounds| indices[bounds[0] as usize..bounds[1] as usize].sort_unstable());
        let held: Arc<dyn InEdges> = Arc::new(OwnedInEdges { indptr, indices, ..Default::default() });
        let links = Links::new(Ends::nodes(0..60, 60), &[held], Filter::default(), &Place::Memory).unwrap();
        let (chunks, starts) = ([0..7, 7..20, 20..21, 21..55, 55..60], [0u32, 18, 18, 44, 60]);
        let needs = |chunk: usize| -> Vec<usize> {
            let rows = chunks[chunk].clone();
            let (indptr, indices) = links.edges(rows.clone());
            let edges = indptr[0] as usize..indptr[indptr.len() - 1] as usize;
            rows.chain(indices[edges].iter().map(|&node| node as usize)).collect()
        };
        let order = SendOrder::of_sources(&links, 1, false, &chunks, &starts);
        check(&order, 5, &starts, needs);
        assert!(order.bounds[starts.len() - 1] < 60, "not all rows are sent before the first chunk");
        check(&SendOrder::all_first(5, &starts), 5, &starts, needs);
        check(&SendOrder::by_chunk(&chunks, &starts), 5, &starts, |chunk| chunks[chunk].clone().collect());
    }
}
