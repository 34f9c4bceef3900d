//! Fetches the feature row of each edge of each batch from the partition that owns the edge.
//!
//! *In*: batches whose blocks have edge ids. *Out*: the same batches with `edges`. *Kept per time*: batches that wait for
//! replies. *Capabilities*: held with them.
//!
//! **Ownership.** The row of a node is stored with the node. The row of an edge is stored with the partition of the edge's
//! destination, in the order of `topology.arrow`. DistDGL, too, has a partition policy for each kind of data. The rows of edges
//! into own partitions are local. If the topology is replicated, all rows are local, in mapped files.
//!
//! Rows are requested after sampling, once for each edge, even if several hops or trees have sampled it. Sampling replies with
//! rows would repeat those rows and delay the next hop. A request is an ascending list of positions, 4 bytes per edge. Owners gather
//! rows directly into the network's buffer, and the caller copies each reply as one range.

use std::rc::Rc;
use std::sync::Arc;

use timely::dataflow::StreamVec;

use crate::batch::edge_rows::Distinct;
use crate::batch::mini_batch::MiniBatch;
use crate::flow::rpc::{CallRpc, Rpc};
use crate::graph::local_graph::LocalGraph;
use crate::storage::{Busy, RowReader, RowSource};
use crate::wire::meter::{Meter, Stage};
use crate::wire::{Header, MESSAGE_BYTES, Rows, WireBlock};
use gnnflow_kernels::matrix::{Matrix, Number};

/// Feature rows of edges, by partition of the destination and position among that partition's edges.
pub trait EdgeSource: Send + Sync {
    /// Returns the number type of the rows.
    fn number(&self) -> Number;
    /// Returns the number of columns.
    fn dim(&self) -> usize;
    /// Returns all rows of partition `part`; `None` if this worker does not hold them.
    fn part(&self, part: usize) -> Option<&[u8]>;
}

/// The source of edge rows.
#[derive(Clone)]
pub struct FetchEdges {
    /// This worker's partitions and the partition book.
    pub graph: Arc<LocalGraph>,
    /// The rows that this worker holds, at least those of the partitions that it hosts.
    pub rows: Arc<dyn EdgeSource>,
    /// Counts messages and time.
    pub meter: Rc<Meter>,
}

/// Fetches rows of edges from their owners.
pub trait FetchEdgeRows<'scope> {
    /// Fetches a row for each edge of each batch's blocks. With `None`, batches pass unchanged.
    fn fetch_edge_rows(self, from: Option<FetchEdges>) -> Self;
}

impl<'scope> FetchEdgeRows<'scope> for StreamVec<'scope, u64, MiniBatch> {
    fn fetch_edge_rows(self, from: Option<FetchEdges>) -> Self {
        let Some(from) = from else { return self };
        let me = self.scope().index();
        self.rpc("fetch_edge_rows", || EdgeRpc { me, from: from.clone() })
    }
}

struct EdgeRpc {
    me: usize,
    from: FetchEdges,
}

/// Rows of a partition's edges from position `base` on, as a source for messages.
struct PartEdges {
    rows: Arc<dyn EdgeSource>,
    part: usize,
    base: usize,
    row_bytes: usize,
}

impl RowSource for PartEdges {
    fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    fn open(&self) -> Result<Box<dyn RowReader + '_>, Busy> {
        Ok(Box::new(self))
    }
}

impl RowReader for PartEdges {
    fn row(&self, at: u32) -> &[u8] {
        let all = self.rows.part(self.part).expect("this worker holds the rows of the partition");
        let row = self.base + at as usize;
        &all[row * self.row_bytes..(row + 1) * self.row_bytes]
    }
}

impl EdgeRpc {
    fn row_bytes(&self) -> usize {
        self.from.rows.number().bytes() * self.from.rows.dim()
    }
}

impl Rpc<MiniBatch> for EdgeRpc {
    fn partition(&self, batch: &MiniBatch) -> u32 {
        batch.key.partition
    }

    fn requests(&mut self, timestamp: u64, batch: &mut MiniBatch) -> Vec<WireBlock> {
        let (from, me) = (&self.from, self.me);
        let per_message = (MESSAGE_BYTES / (self.row_bytes() + 4)).max(1);
        let requests = from.meter.time(Stage::Fetch, || {
            let mut distinct = Distinct::of(&batch.blocks, &batch.nodes, |node| from.graph.partition_of(node));
            batch.edges.rows = Matrix::zeros(from.rows.number(), distinct.ids.len(), from.rows.dim());
            batch.edges.positions = std::mem::take(&mut distinct.positions);
            let mut requests = Vec::new();
            for (part, range) in distinct.parts().filter(|(part, _)| from.rows.part(*part as usize).is_none()) {
                let ids = &distinct.ids[range.clone()];
                // Positions are sent as four bytes relative to a base. A message ends where four bytes do not suffice.
                let mut begin = 0;
                while begin < ids.len() {
                    let base = ids[begin];
                    let fits = ids[begin..].partition_point(|&id| id - base <= u64::from(u32::MAX));
                    let end = begin + fits.min(per_message);
                    let header = Header {
                        to: from.graph.placement().worker_of(part as usize) as u32,
                        from: me as u32,
                        partition: batch.key.partition,
                        tag: part,
                        key: timestamp,
                        seq: (range.start + begin) as u32,
                        aux: (end - begin) as u32,
                    };
                    let positions = ids[begin..end].iter().map(|&id| (id - base) as u32).collect();
                    requests.push(WireBlock::new(header, vec![base], positions, Rows::None));
                    begin = end;
                }
            }
            batch.distinct_edges = distinct;
            requests
        });
        requests.iter().for_each(|request| from.meter.sent(me, Stage::Fetch, request));
        batch.rounds += if requests.is_empty() { 0 } else { 2 };
        requests
    }

    fn serve(&mut self, _timestamp: u64, request: &WireBlock, reply: &mut dyn FnMut(WireBlock)) {
        let header = request.header();
        let block = self.from.meter.time(Stage::Fetch, || {
            let base = request.words().first().copied().unwrap_or(0) as usize;
            let (rows, part) = (Arc::clone(&self.from.rows), header.tag as usize);
            let row_bytes = self.row_bytes();
            let here = rows.part(part).map_or(0, |all| all.len() / row_bytes.max(1));
            let last = request.ids().last().map_or(0, |&at| base + at as usize + 1);
            assert!(
                last <= here,
                "worker {} requested edge {last} of partition {part}, which is not here",
                header.from
            );
            let header = Header { to: header.from, from: self.me as u32, ..header };
            let source = Arc::new(PartEdges { rows, part, base, row_bytes });
            WireBlock::new(header, Vec::new(), Vec::new(), Rows::Gather(source, request.ids().to_vec()))
        });
        self.from.meter.sent(self.me, Stage::Fetch, &block);
        reply(block);
    }

    fn local(&mut self, _timestamp: u64, batch: &mut MiniBatch) {
        let row_bytes = self.row_bytes();
        self.from.meter.time(Stage::Fetch, || {
            let distinct = std::mem::take(&mut batch.distinct_edges);
            let into = batch.edges.rows.bytes_mut();
            for (part, range) in distinct.parts() {
                let Some(all) = self.from.rows.part(part as usize) else { continue };
                let into = into[range.start * row_bytes..range.end * row_bytes].chunks_exact_mut(row_bytes.max(1));
                for (&id, into) in distinct.ids[range].iter().zip(into) {
                    into.copy_from_slice(&all[id as usize * row_bytes..(id as usize + 1) * row_bytes]);
                }
            }
        });
    }

    fn on_reply(&mut self, _timestamp: u64, batch: &mut MiniBatch, reply: &WireBlock) {
        let header = reply.header();
        let row_bytes = self.row_bytes();
        self.from.meter.time(Stage::Fetch, || {
            let (first, rows) = (header.seq as usize, header.aux as usize);
            assert_eq!(reply.row_bytes(), rows * row_bytes, "worker {} sent another number of rows", header.from);
            let mut into = &mut batch.edges.rows.bytes_mut()[first * row_bytes..(first + rows) * row_bytes];
            reply.for_each_row_bytes(|rows| {
                let (now, later) = std::mem::take(&mut into).split_at_mut(rows.len());
                now.copy_from_slice(rows);
                into = later;
            });
        });
    }

    fn is_last(&self, _reply: &WireBlock) -> bool {
        true // every request has one reply
    }

    fn finish(&mut self, _timestamp: u64, _batch: &mut MiniBatch) {}
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use timely::dataflow::operators::core::Inspect;
    use timely::dataflow::operators::vec::ToStream;

    use super::*;
    use crate::batch::mini_batch::BatchKey;
    use crate::sample::sample_hop::{CompactorPool, Hop, SampleHop, Strategy};
    use crate::testing::{Adjacency, book, edge, local, random_graph};
    use gnnflow_kernels::matrix::Values;
    use gnnflow_kernels::sample::{Columns, Draw, EdgeFanout, Fanout, PerEdgeStrategy};

    const DIM: usize = 3;

    /// Rows that identify their edge by its weight, type and time.
    struct IdentifyingRows {
        parts: Vec<Option<Vec<f32>>>,
    }

    impl EdgeSource for IdentifyingRows {
        fn number(&self) -> Number {
            Number::F32
        }
        fn dim(&self) -> usize {
            DIM
        }
        fn part(&self, part: usize) -> Option<&[u8]> {
            self.parts[part].as_deref().map(bytemuck::cast_slice)
        }
    }

    fn row(node: u32, i: usize) -> [f32; DIM] {
        let (weight, edge_type, time) = edge(node, i);
        [weight, f32::from(edge_type) + node as f32, time as f32 + i as f32]
    }

    /// For each batch and block, the row of every edge; and messages sent.
    #[allow(clippy::type_complexity, reason = "a test's own")]
    fn run(
        graph: &Adjacency,
        workers: usize,
        replicated: bool,
        strategies: &[Strategy],
    ) -> (Vec<(BatchKey, Vec<Vec<f32>>)>, u64) {
        let (graph, strategies) = (graph.clone(), strategies.to_vec());
        let (send, receive) = mpsc::channel();
        let (count, counts) = mpsc::channel();
        let ends = std::sync::Mutex::new((send, count));
        let nodes = graph.len() as u32;
        timely::execute(timely::Config::process(workers), move |worker| {
            let (index, (send, count)) = (worker.index(), ends.lock().unwrap().clone());
            let local = Arc::new(local(&graph, &book(nodes, 4), workers, index, replicated));
            let meter = Rc::new(Meter::default());
            let of = |part: usize| -> Option<Vec<f32>> {
                let all = local.range(part).flat_map(|node| (0..graph[node as usize].len()).map(move |i| row(node, i)));
                local.has_topology(part).then(|| all.flatten().collect())
            };
            let rows = Arc::new(IdentifyingRows { parts: (0..4).map(of).collect() });
            let graph = graph.clone();
            let of_batch = local.clone();
            let sampled = Rc::new(std::cell::Cell::new(0));
            let (before, counted) = (sampled.clone(), meter.clone());
            worker.dataflow::<u64, _, _>(|scope| {
                let batch = |part: usize| {
                    let key = BatchKey { epoch: 1, step: 0, partition: part as u32 };
                    let seeds: Vec<u32> = local.range(part).step_by(3).take(12).collect();
                    let times = seeds.iter().map(|&seed| i64::from(seed % 30)).collect();
                    MiniBatch::new(key, seeds).with_seed_times(times)
                };
                let batches: Vec<MiniBatch> = local.placement().parts_of(index).map(batch).collect();
                let mut stream = batches.to_stream(scope);
                let pool = CompactorPool::default();
                for (hop, strategy) in strategies.iter().enumerate() {
                    stream = stream.sample_hop(Hop {
                        graph: local.clone(),
                        seed: 7,
                        hop: hop as u32,
                        strategy: strategy.clone(),
                        columns: Columns { ids: true, ..Columns::default() },
                        last: hop + 1 == strategies.len(),
                        pool: pool.clone(),
                        meter: Rc::new(Meter::default()),
                    });
                }
                let from = FetchEdges { graph: local.clone(), rows, meter: meter.clone() };
                stream.fetch_edge_rows(Some(from)).inspect(move |batch| {
                    let Values::F32(values) = &batch.edges.rows.values else { panic!("rows are f32 here") };
                    let mut blocks = Vec::new();
                    for (block, positions) in batch.blocks.iter().zip(&batch.edges.positions) {
                        let mut all = Vec::new();
                        for at in 0..block.num_dst() {
                            let node = batch.nodes[at];
                            let first = (of_batch.range(of_batch.partition_of(node)).start..node)
                                .map(|before| graph[before as usize].len())
                                .sum::<usize>();
                            for edge in block.indptr()[at] as usize..block.indptr()[at + 1] as usize {
                                let i = block.edge_ids().unwrap()[edge] as usize - first;
                                let source = batch.nodes[block.indices()[edge] as usize];
                                assert_eq!(graph[node as usize][i], source, "the edge that its id says");
                                let found = &values[positions[edge] as usize * DIM..][..DIM];
                                assert_eq!(found, row(node, i), "edge {i} of node {node}");
                                all.extend_from_slice(found);
                            }
                        }
                        blocks.push(all);
                    }
                    before.set(before.get() + 1);
                    send.send((batch.key, blocks)).unwrap();
                });
            });
            while worker.step_or_park(None) {}
            assert!(sampled.get() > 0);
            count.send(counted.messages()).unwrap();
        })
        .unwrap();
        let mut all: Vec<_> = receive.into_iter().collect();
        all.sort_by_key(|(key, _)| *key);
        (all, counts.into_iter().sum())
    }

    #[test]
    fn rows_belong_to_the_sampled_edges_at_1_2_and_4_workers() {
        let graph = random_graph(200, 12);
        let temporal =
            Strategy::PerEdge(PerEdgeStrategy { draw: Draw::Uniform, fanouts: EdgeFanout::Each(4), temporal: true });
        let weighted =
            Strategy::PerEdge(PerEdgeStrategy { draw: Draw::Weighted, fanouts: EdgeFanout::Each(5), temporal: false });
        for strategies in [
            vec![Strategy::Fanout(Fanout::Uniform { k: 3 }), Strategy::Fanout(Fanout::All)],
            vec![Strategy::Fanout(Fanout::UniformWithReplacement { k: 4 })],
            vec![temporal.clone(), temporal],
            vec![weighted.clone(), weighted],
        ] {
            let (one, none) = run(&graph, 1, false, &strategies);
            assert_eq!((one.len(), none), (4, 0));
            for workers in [2, 4] {
                let (some, requested) = run(&graph, workers, false, &strategies);
                assert_eq!(some, one, "on {workers}");
                assert!(strategies.len() == 1 || requested > 0, "rows of edges into other partitions are requested");
                let (some, requested) = run(&graph, workers, true, &strategies);
                assert_eq!((some, requested), (one.clone(), 0), "rows are local where the topology is replicated");
            }
        }
    }
}
