//! Chunks of nodes that are aggregated one after another (NeutronTP, section 4.2.1): ranges of ids within a partition, equal at all workers.

use std::ops::Range;
use std::sync::Arc;

use gnnflow_dataflow::ghost::intervals::intervals;
use gnnflow_dataflow::graph::local_graph::InEdges;
use gnnflow_nn::layers::Aggregation;
use gnnflow_nn::model::Hop;

use super::chain_attention::ChainAttention;
use super::head_shards::HeadShards;
use super::topology::AllEdges;
use crate::config::Bytes;
use crate::error::Error;

/// The chunks of column shards.
pub(crate) struct Cut {
    pub(crate) chunks: Vec<Range<usize>>,
    /// Whether rows are sent chunk by chunk.
    pub(crate) pipelined: bool,
}

/// Cuts all nodes into chunks for these hops. All workers compute equal chunks, from the widest column shard of any worker.
///
/// # Errors
/// When one node exceeds the memory of a chunk.
pub(crate) fn cut(graph: &AllEdges, hops: &[Hop]) -> Result<Vec<Range<usize>>, Error> {
    let workers = graph.starts.len() - 1;
    let width = |hop: &Hop| match hop.aggregation {
        Aggregation::Nothing => 0,
        Aggregation::Attention { .. } => {
            let cut = HeadShards::of_hop(hop, graph.parts.len(), workers);
            let row = |worker| ChainAttention::ranges(&cut, worker, hop.width).iter().map(Range::len).sum();
            (0..workers).map(row).max().unwrap_or(0)
        }
        _ => intervals(hop.width, workers).iter().map(Range::len).max().unwrap_or(0),
    };
    chunks(&graph.parts, graph.slots, hops.iter().map(width).max().unwrap_or(0), graph.chunk_memory)
}

/// Cuts all nodes into ranges, each of one partition, of at most `memory` bytes: sources of edges, their shards of `width` numbers, and
/// `slots` sums per node.
fn chunks(parts: &[Arc<dyn InEdges>], slots: usize, width: usize, memory: u64) -> Result<Vec<Range<usize>>, Error> {
    let (mut chunks, mut first) = (Vec::new(), 0);
    for part in parts {
        let indptr: Vec<i64> = part.indptr().iter().step_by(slots).copied().collect();
        let nodes = indptr.len() - 1;
        let bytes = |start: usize, end: usize| {
            let edges = (indptr[end] - indptr[start]) as u64;
            edges * (4 + 4 * width as u64) + (end - start) as u64 * 4 * (slots * width) as u64
        };
        let mut start = 0;
        while start < nodes {
            let mut end = start
                + indptr[start..]
                    .partition_point(|&bound| (bound - indptr[start]) as u64 * (4 + 4 * width as u64) <= memory);
            end = end.min(nodes);
            while end > start && bytes(start, end) > memory {
                end -= 1.max((end - start) / 16);
            }
            if end == start {
                let each = |part: &Arc<dyn InEdges>| {
                    let bounds = || part.indptr().iter().step_by(slots);
                    bounds().skip(1).zip(bounds()).map(|(end, start)| end - start).max().unwrap_or(0) as u64
                };
                let most = parts.iter().map(each).max().unwrap_or(0);
                let least = most * (4 + 4 * width as u64) + 4 * (slots * width) as u64;
                let message = format!(
                    "train.schedule.chunk_memory is {}, but one node with {} in-edges takes {}; set it to at least {}",
                    Bytes(memory),
                    indptr[start + 1] - indptr[start],
                    Bytes(bytes(start, start + 1)),
                    Bytes(least)
                );
                return Err(Error::Usage(message));
            }
            chunks.push(first + start..first + end);
            start = end;
        }
        first += nodes;
    }
    Ok(chunks)
}

#[cfg(test)]
mod tests {
    use gnnflow_dataflow::graph::local_graph::OwnedInEdges;

    use super::*;

    fn parts(degrees: &[&[i64]]) -> Vec<Arc<dyn InEdges>> {
        let part = |degrees: &&[i64]| {
            let mut indptr = vec![0];
            degrees.iter().for_each(|degree| indptr.push(indptr[indptr.len() - 1] + degree));
            let edges = indptr[indptr.len() - 1] as usize;
            Arc::new(OwnedInEdges { indptr, indices: vec![0; edges], ..Default::default() }) as Arc<dyn InEdges>
        };
        degrees.iter().map(part).collect()
    }

    #[test]
    fn chunks_cover_all_nodes_within_their_memory() {
        let graph = parts(&[&[3, 0, 9, 1], &[], &[0, 0], &[5, 5, 5]]);
        for memory in [120, 200, 1000, 1 << 20] {
            let cut = chunks(&graph, 1, 2, memory).unwrap();
            let all: Vec<usize> = cut.iter().cloned().flatten().collect();
            assert_eq!(all, (0..9).collect::<Vec<_>>(), "{memory}");
        }
        assert_eq!(chunks(&graph, 1, 2, 1 << 20).unwrap().len(), 3, "a chunk is within one partition");
        let error = chunks(&graph, 1, 2, 115).unwrap_err().to_string();
        assert!(error.contains("9 in-edges") && error.contains("at least 116"), "{error}");
    }
}
