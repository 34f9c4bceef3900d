//! Fetches the feature row of each node of each batch from its owner.
//!
//! *In*: batches with their node list. *Out*: the same batches with `features` (and `degrees`, if wanted). *Kept per
//! time*: batches that wait for replies. *Capabilities*: held with them.
//!
//! A request is a list of ids whose rows fit into one message. Owners gather rows directly into the network's buffer, and the
//! caller scatters them into the batch's matrix. Rows of own partitions are read locally, and so are rows that another worker
//! [shares](crate::storage::RowSource::shares). Rows in the [`HaloRows`](crate::batch::halo::HaloRows) or in a [`RowCache`] are
//! not requested. The degree of a halo node is requested once, without a row; that of a node whose row is shared, for each batch.
//!
//! [`FetchRows::fetch_remote_rows`] does not read local rows: the receiver of the batch does, and completes `features`, or it has the rows
//! already, on a GPU.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use timely::dataflow::StreamVec;

use super::cache::RowCache;
pub use crate::batch::feature_view::FeatureView;
use crate::batch::gather_buffer::GatherBuffer;
use crate::batch::mini_batch::MiniBatch;
use crate::flow::rpc::{CallRpc, Rpc};
use crate::graph::local_graph::LocalGraph;
use crate::wire::meter::{Meter, Stage};
use crate::wire::{Header, MESSAGE_BYTES, Rows, WireBlock};
use gnnflow_kernels::matrix::Matrix;

/// The source of rows.
#[derive(Clone)]
pub struct FetchFrom {
    /// This worker's partitions and the partition book.
    pub graph: Arc<LocalGraph>,
    /// The rows that this worker hosts, by time: the same rows for all times, or the outputs of a layer in inference.
    pub rows: Rc<dyn Fn(u64) -> FeatureView>,
    /// Whether to fetch each node's in-degree too.
    pub degrees: bool,
    /// A cache of other workers' rows. Only if all times have the same rows.
    pub cache: Option<Rc<RefCell<RowCache>>>,
    /// Counts messages and time.
    pub meter: Rc<Meter>,
}

/// The tag of requests and replies with degrees but without rows.
const DEGREES_ONLY: u32 = 1;

/// Fetches rows from their owners.
pub trait FetchRows<'scope> {
    /// Fetches a row for each node of each batch.
    fn fetch_rows(self, from: FetchFrom) -> Self;

    /// Fetches the rows that this worker cannot read itself. The receiver of a batch reads the others with
    /// [`FeatureView::complete`], for instance on a compute thread.
    fn fetch_remote_rows(self, from: FetchFrom) -> Self;
}

impl<'scope> FetchRows<'scope> for StreamVec<'scope, u64, MiniBatch> {
    fn fetch_rows(self, from: FetchFrom) -> Self {
        let me = self.scope().index();
        self.rpc("fetch_rows", || FetchRpc { me, from: from.clone(), leaves_local: false })
    }

    fn fetch_remote_rows(self, from: FetchFrom) -> Self {
        let me = self.scope().index();
        self.rpc("fetch_remote_rows", || FetchRpc { me, from: from.clone(), leaves_local: true })
    }
}

struct FetchRpc {
    me: usize,
    from: FetchFrom,
    /// Whether the receiver of a batch reads the local rows.
    leaves_local: bool,
}

impl FetchRpc {
    fn rows_per_message(&self, timestamp: u64) -> usize {
        (MESSAGE_BYTES / ((self.from.rows)(timestamp).row_bytes() + 4)).max(1)
    }

    /// Reserves memory for the rows of `batch`, once.
    fn prepare(&self, timestamp: u64, batch: &mut MiniBatch) {
        if batch.buffer.is_none() {
            let rows = (self.from.rows)(timestamp);
            batch.buffer = Some(GatherBuffer::new(rows.number, batch.nodes.len(), rows.dim));
            if self.from.degrees {
                batch.degrees = vec![0; batch.nodes.len()];
            }
        }
    }
}

impl Rpc<MiniBatch> for FetchRpc {
    fn partition(&self, batch: &MiniBatch) -> u32 {
        batch.key.partition
    }

    fn requests(&mut self, timestamp: u64, batch: &mut MiniBatch) -> Vec<WireBlock> {
        let (graph, me) = (&self.from.graph, self.me);
        batch.features = Matrix::default();
        if graph.is_self_contained() {
            return Vec::new();
        }
        let per_message = self.rows_per_message(timestamp);
        let requests = self.from.meter.time(Stage::Fetch, || {
            batch.positions.iter_mut().for_each(Vec::clear);
            batch.positions.resize(graph.placement().workers(), Vec::new());
            let mut cache = self.from.cache.as_ref().map(|cache| cache.borrow_mut());
            let rows = (self.from.rows)(timestamp);
            let halo = &rows.halo;
            if cache.is_some() || halo.is_some() {
                self.prepare(timestamp, batch);
            }
            // Positions of nodes whose rows are here and whose degrees are not, by owner.
            let mut unknown: Vec<Vec<u32>> = vec![Vec::new(); graph.placement().workers()];
            let MiniBatch { positions, nodes, buffer, degrees, .. } = &mut *batch;
            for (position, &node) in nodes.iter().enumerate() {
                let worker = graph.worker_of(node);
                if worker != me
                    && let Some(buffer) = buffer
                    && let Some(found) = halo.as_ref().and_then(|halo| halo.find(node))
                {
                    rows.put(found.row, position, buffer);
                    match found.degree {
                        _ if !self.from.degrees => {}
                        Some(degree) => degrees[position] = degree,
                        None => unknown[worker].push(position as u32),
                    }
                    continue;
                }
                if worker != me && rows.source.shares(node) {
                    positions[me].push(position as u32);
                    if self.from.degrees {
                        unknown[worker].push(position as u32);
                    }
                    continue;
                }
                // Copied now: another batch's rows may replace the cached row before the replies arrive.
                if worker != me
                    && let Some(buffer) = buffer
                    && let Some((row, degree)) = cache.as_mut().and_then(|cache| cache.find(node))
                {
                    buffer.put(position, row);
                    if self.from.degrees {
                        degrees[position] = degree;
                    }
                    continue;
                }
                positions[worker].push(position as u32);
            }
            let mut requests = Vec::new();
            for (worker, unknown) in unknown.into_iter().enumerate().filter(|&(worker, _)| worker != me) {
                let mut request = |tag: u32, first: usize, positions: &[u32]| {
                    let header = Header {
                        to: worker as u32,
                        from: me as u32,
                        partition: batch.key.partition,
                        tag,
                        key: timestamp,
                        seq: first as u32,
                        aux: positions.len() as u32,
                    };
                    let nodes = positions.iter().map(|&position| batch.nodes[position as usize]).collect();
                    requests.push(WireBlock::new(header, Vec::new(), nodes, Rows::None));
                };
                let rows = batch.positions[worker].len();
                for (seq, positions) in batch.positions[worker].chunks(per_message).enumerate() {
                    request(0, seq * per_message, positions);
                }
                for (seq, positions) in unknown.chunks(MESSAGE_BYTES / 4).enumerate() {
                    request(DEGREES_ONLY, rows + seq * (MESSAGE_BYTES / 4), positions);
                }
                batch.positions[worker].extend(unknown);
            }
            requests
        });
        requests.iter().for_each(|request| self.from.meter.sent(me, Stage::Fetch, request));
        batch.rounds += if requests.is_empty() { 0 } else { 2 };
        requests
    }

    fn serve(&mut self, timestamp: u64, request: &WireBlock, reply: &mut dyn FnMut(WireBlock)) {
        let (header, nodes) = (request.header(), request.ids());
        let (rows, graph) = ((self.from.rows)(timestamp), &self.from.graph);
        let block = self.from.meter.time(Stage::Fetch, || {
            for &node in nodes {
                assert!(graph.hosts(node), "worker {} requested node {node}, which is not here", header.from);
            }
            if header.tag != DEGREES_ONLY && rows.source.reads_ahead() {
                rows.source.will_need(nodes);
            }
            let degrees = if self.from.degrees { nodes.iter().map(|&n| graph.degree(n)).collect() } else { Vec::new() };
            let header = Header { to: header.from, from: self.me as u32, ..header };
            let rows = match header.tag {
                DEGREES_ONLY => Rows::None,
                _ if rows.source.changes() => {
                    let open = rows.open();
                    Rows::Bytes(nodes.iter().flat_map(|&node| open.row(node)).copied().collect())
                }
                _ => Rows::Gather(rows.source, nodes.to_vec()),
            };
            WireBlock::new(header, Vec::new(), degrees, rows)
        });
        self.from.meter.sent(self.me, Stage::Fetch, &block);
        reply(block);
    }

    fn local(&mut self, timestamp: u64, batch: &mut MiniBatch) {
        self.from.meter.time(Stage::Fetch, || {
            let (rows, graph) = ((self.from.rows)(timestamp), &self.from.graph);
            assert_eq!(rows.source.row_bytes(), rows.row_bytes(), "the row source has rows of another size");
            if graph.is_self_contained() {
                if !self.leaves_local {
                    batch.features = rows.gather(&batch.nodes);
                }
                if self.from.degrees {
                    batch.degrees = batch.nodes.iter().map(|&node| graph.degree(node)).collect();
                }
                return;
            }
            self.prepare(timestamp, batch);
            let MiniBatch { buffer, degrees, nodes, positions, .. } = batch;
            let buffer = buffer.as_mut().expect("`prepare` has just reserved it");
            if !self.leaves_local {
                rows.gather_at(nodes, &positions[self.me], buffer);
            }
            if self.from.degrees {
                let positions = positions[self.me].iter().map(|&position| position as usize);
                let own = positions.filter(|&position| graph.hosts(nodes[position]));
                own.for_each(|position| degrees[position] = graph.degree(nodes[position]));
            }
        });
    }

    fn on_reply(&mut self, timestamp: u64, batch: &mut MiniBatch, reply: &WireBlock) {
        let header = reply.header();
        let first = header.seq as usize;
        self.from.meter.time(Stage::Fetch, || {
            self.prepare(timestamp, batch);
            let MiniBatch { buffer, degrees, positions, nodes, .. } = batch;
            let buffer = buffer.as_mut().expect("`prepare` has just reserved it");
            let positions = &positions[header.from as usize][first..first + header.aux as usize];
            if self.from.degrees {
                positions.iter().zip(reply.ids()).for_each(|(&position, &degree)| degrees[position as usize] = degree);
            }
            if header.tag == DEGREES_ONLY {
                let halo = (self.from.rows)(timestamp).halo;
                let degrees = positions.iter().map(|&position| nodes[position as usize]).zip(reply.ids());
                halo.iter().for_each(|halo| degrees.clone().for_each(|(node, &degree)| halo.set_degree(node, degree)));
                return;
            }
            let rows = (self.from.rows)(timestamp);
            let packed = rows.row_bytes();
            assert_eq!(
                reply.row_bytes(),
                positions.len() * packed,
                "worker {} sent another number of rows",
                header.from
            );
            // A reply from the network has all rows in one piece. Inside a process, rows come one by one.
            let mut left = positions;
            reply.for_each_row_bytes(|stretch| {
                let (now, later) = left.split_at(stretch.len() / packed);
                rows.scatter(stretch, now, buffer);
                left = later;
            });
            if let Some(cache) = &self.from.cache {
                let mut cache = cache.borrow_mut();
                for position in positions.iter().map(|&position| position as usize) {
                    let row = buffer.row(position).expect("the row has just been written");
                    cache.insert(nodes[position], row, degrees.get(position).copied().unwrap_or(0));
                }
            }
        });
    }

    fn is_last(&self, _reply: &WireBlock) -> bool {
        true // every request has one reply
    }

    fn finish(&mut self, _timestamp: u64, batch: &mut MiniBatch) {
        if self.leaves_local {
            return;
        }
        if let Some(buffer) = batch.buffer.take() {
            batch.features = self.from.meter.time(Stage::Fetch, || buffer.finish());
        }
    }
}

#[cfg(test)]
mod tests;
