//! In which order slices are sent: before a chunk is added up, only what it is the first to need (NeutronTP, section 4.2.2).
//!
//! So the rows of the next chunk travel while this one is added up, and none travels twice. Everybody knows all edges, and with
//! them the order: nobody needs to be told which rows come.

use std::ops::Range;

use gnnflow_dataflow::ghost::Links;

/// All nodes, by the chunk that needs their rows first, and by id.
#[derive(Debug)]
pub(crate) struct Order {
    /// Nothing where that is the order of ids.
    nodes: Option<Vec<u32>>,
    /// By chunk and worker, where their places begin; and the number of nodes behind the last.
    bounds: Vec<usize>,
    workers: usize,
}

impl Order {
    /// All rows are sent before the first of so many chunks; worker w has the nodes `starts[w]..starts[w + 1]`.
    pub(crate) fn at_once(chunks: usize, starts: &[u32]) -> Self {
        let (workers, nodes) = (starts.len() - 1, starts[starts.len() - 1] as usize);
        let mut bounds: Vec<usize> = starts[..workers].iter().map(|&start| start as usize).collect();
        bounds.resize(chunks.max(1) * workers + 1, nodes);
        Self { nodes: None, bounds, workers }
    }

    /// A chunk needs the rows of its own nodes.
    pub(crate) fn by_chunk(chunks: &[Range<usize>], starts: &[u32]) -> Self {
        let nodes = starts[starts.len() - 1] as usize;
        let first = |chunk: &Range<usize>| {
            let chunk = chunk.clone();
            starts[..starts.len() - 1].iter().map(move |&start| (start as usize).clamp(chunk.start, chunk.end))
        };
        let bounds = chunks.iter().flat_map(first).chain([nodes]).collect();
        Self { nodes: None, bounds, workers: starts.len() - 1 }
    }

    /// A chunk needs the rows of its own nodes and of all those that they have edges from; receivers have so many slots, at the
    /// rows of edges or, on the way back, at the edges' other ends.
    pub(crate) fn of_sources(
        links: &Links,
        [slots, one]: [usize; 2],
        back: bool,
        chunks: &[Range<usize>],
        starts: &[u32],
    ) -> Self {
        let nodes = starts[starts.len() - 1] as usize;
        let (at_rows, at_ends) = if back { (one, slots) } else { (slots, one) };
        let mut first = vec![u32::MAX; nodes];
        for (chunk, rows) in (0u32..).zip(chunks) {
            first[rows.clone()].iter_mut().for_each(|first| *first = chunk.min(*first));
            let (indptr, indices) = links.edges(rows.start * at_rows..rows.end * at_rows);
            let edges = indptr[0] as usize..indptr[indptr.len() - 1] as usize;
            for &end in &indices[edges] {
                let first = &mut first[end as usize / at_ends];
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

    /// The node at a place.
    pub(crate) fn node(&self, place: usize) -> usize {
        self.nodes.as_ref().map_or(place, |nodes| nodes[place] as usize)
    }

    /// The places of those nodes of `nodes`, all of `worker`, whose rows a chunk is the first to need.
    pub(crate) fn places(&self, chunk: usize, nodes: Range<usize>, worker: usize) -> Range<usize> {
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

    /// What each chunk sends, one worker after another, is what it needs and has not been sent yet.
    fn check(order: &Order, chunks: usize, starts: &[u32], needs: impl Fn(usize) -> Vec<usize>) {
        let nodes = starts[starts.len() - 1] as usize;
        let mut sent = vec![false; nodes];
        for chunk in 0..chunks {
            for worker in 0..starts.len() - 1 {
                let own = starts[worker] as usize..starts[worker + 1] as usize;
                let middle = own.start + own.len() / 3;
                let places = [own.start..middle, middle..own.end].map(|nodes| order.places(chunk, nodes, worker));
                for node in places.into_iter().flatten().map(|place| order.node(place)) {
                    assert!(own.contains(&node) && !sent[node], "chunk {chunk}: node {node}");
                    sent[node] = true;
                }
            }
            assert!(needs(chunk).into_iter().all(|node| sent[node]), "chunk {chunk}");
        }
        assert!(sent.into_iter().all(|sent| sent), "all are sent");
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
        let order = Order::of_sources(&links, [1, 1], false, &chunks, &starts);
        check(&order, 5, &starts, needs);
        assert!(order.bounds[starts.len() - 1] < 60, "not all are sent before the first chunk");
        check(&Order::at_once(5, &starts), 5, &starts, needs);
        check(&Order::by_chunk(&chunks, &starts), 5, &starts, |chunk| chunks[chunk].clone().collect());
    }
}
