//! Sends the gradients of rows to the rows' owners: the push of DistDGL's key-value store (section III).
//!
//! *In*: one [`RowGradients`] per partition and time, at the worker that hosts the partition. *Out*: [`PushedRows`] at the workers
//! that host the rows: the gradients of all batches of a time together, or of each batch separately ([`Arrival`]).
//! *Kept per time*: messages that wait for others. *Capabilities*: held with them.
//!
//! A message holds at most 256 KB of rows. Every partition sends at least one message, perhaps empty, to every worker, so that
//! receivers can count. Complete gradients are ordered by partition, then by the node list of the batch. Sums in that order have
//! bits that depend on the partitions alone.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;
use std::sync::Arc;

use timely::container::{CapacityContainerBuilder, NoopBuilder};
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::operator::Operator;

use crate::flow::waits::{Cause, Reported};
use crate::graph::local_graph::LocalGraph;
use crate::time::MessageTime;
use crate::wire::meter::{Meter, Stage};
use crate::wire::{Header, MESSAGE_BYTES, Rows, WireBlock, to_destination};

/// The gradients of a batch's rows.
#[derive(Clone, Debug, Default)]
pub struct RowGradients {
    /// The partition of the batch.
    pub partition: u32,
    /// The number of examples in the batch's loss.
    pub examples: u64,
    /// Global ids, perhaps with repeats.
    pub nodes: Vec<u32>,
    /// A gradient for each of `nodes`, `[nodes, dim]`.
    pub rows: Arc<Vec<f32>>,
}

/// When received gradients are passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// When those of all partitions' batches of a time have arrived. The bits are the same on any number of workers.
    Together,
    /// Each batch's when they have arrived, in any order. The number of examples is multiplied by the number of partitions, as if
    /// all batches of the time were equal.
    EachBatch,
}

/// The parameters of a push.
#[derive(Clone)]
pub struct PushTo {
    /// This worker's part of the graph, which names the owners of rows.
    pub graph: Arc<LocalGraph>,
    /// Numbers in a row.
    pub dim: usize,
    /// When received gradients are passed on.
    pub arrival: Arrival,
    /// Counts messages and time.
    pub meter: Rc<Meter>,
}

/// Gradients of rows that one worker hosts.
#[derive(Clone, Default)]
pub struct PushedRows {
    /// The time of the batches.
    pub timestamp: u64,
    /// The number of examples in all batches of the time. Sums of gradients are divided by it.
    pub examples: u64,
    /// By partition, then in the order of sending.
    blocks: Vec<WireBlock>,
}

impl PushedRows {
    /// Creates local gradients, which need no message: `rows` has one row for each of `nodes`.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use gnnflow_dataflow::embed::push_rows::PushedRows;
    ///
    /// let pushed = PushedRows::at_home(0, 7, vec![3, 4], Arc::new(vec![0.5, 1.0, 1.5, 2.0]));
    /// assert_eq!(pushed.examples, 7);
    /// assert_eq!(pushed.pieces().next(), Some((&[3, 4][..], &[0.5, 1.0, 1.5, 2.0][..])));
    /// ```
    pub fn at_home(timestamp: u64, examples: u64, nodes: Vec<u32>, rows: Arc<Vec<f32>>) -> Self {
        let values = 0..rows.len();
        Self {
            timestamp,
            examples,
            blocks: vec![WireBlock::new(Header::default(), vec![], nodes, Rows::Shared(rows, values))],
        }
    }

    /// Returns global ids and their gradients, in the order in which gradients are summed.
    pub fn pieces(&self) -> impl Iterator<Item = (&[u32], &[f32])> {
        self.blocks.iter().map(|block| (block.ids(), block.rows_f32().expect("gradients are numbers")))
    }
}

/// Sends gradients to the owners of rows.
pub trait PushRows<'scope> {
    /// Sends every row's gradient to the worker that hosts the row.
    ///
    /// Every partition pushes once per time, perhaps an empty list.
    ///
    /// # Panics
    /// When there is not one row per node, or a partition pushes twice to one time.
    ///
    /// # Example
    /// ```
    /// # use std::sync::Arc;
    /// # use gnnflow_data::PartitionBook;
    /// # use gnnflow_dataflow::graph::local_graph::{InEdges, LocalGraph, OwnedInEdges};
    /// # use gnnflow_dataflow::graph::placement::Placement;
    /// use gnnflow_dataflow::embed::push_rows::{Arrival, PushRows, PushTo, RowGradients};
    /// use timely::dataflow::operators::{ToStream, core::Inspect};
    /// # let book = PartitionBook::new(vec![0, 4, 8]).unwrap();
    /// # let load = |_| {
    /// #     let edges = OwnedInEdges { indptr: vec![0; 5], ..OwnedInEdges::default() };
    /// #     Ok::<_, ()>(Arc::new(edges) as Arc<dyn InEdges>)
    /// # };
    /// # let graph = Arc::new(LocalGraph::load(&book, Placement::new(2, 1), 0, false, load).unwrap());
    ///
    /// timely::example(move |scope| {
    ///     let push = |partition: u32| RowGradients {
    ///         partition,
    ///         examples: 1,
    ///         nodes: vec![partition, 5],
    ///         rows: Arc::new(vec![0.5; 2 * 3]),
    ///     };
    ///     let to = PushTo { graph, dim: 3, arrival: Arrival::Together, meter: Default::default() };
    ///     (0..2u32).map(push).to_stream(scope).container::<Vec<RowGradients>>().push_rows(to).inspect(|pushed| {
    ///         let nodes: Vec<&[u32]> = pushed.pieces().map(|(nodes, _)| nodes).collect();
    ///         assert_eq!((pushed.examples, nodes), (2, vec![&[0, 5][..], &[1, 5]]));
    ///     });
    /// });
    /// ```
    fn push_rows(self, to: PushTo) -> StreamVec<'scope, u64, PushedRows>;
}

impl<'scope> PushRows<'scope> for StreamVec<'scope, u64, RowGradients> {
    fn push_rows(self, to: PushTo) -> StreamVec<'scope, u64, PushedRows> {
        let me = self.scope().index();
        let (parts, arrival, meter) = (to.graph.placement().parts(), to.arrival, Rc::clone(&to.meter));

        let sent = self.unary::<NoopBuilder<WireBlock>, _, _, _>(Pipeline, "push_rows: send", move |_, _| {
            move |input, output| {
                input.for_each(|time, pushes| {
                    for push in pushes.drain(..) {
                        let mut blocks = to.meter.time(Stage::Reduce, || blocks(&to, me, *time.time(), push));
                        blocks.iter().for_each(|block| to.meter.sent(me, Stage::Fetch, block));
                        output.session_with_builder(&time).give_containers(blocks.iter_mut());
                    }
                });
            }
        });

        type Builder = CapacityContainerBuilder<Vec<PushedRows>>;
        sent.unary::<Builder, _, _, _>(to_destination(), "push_rows: collect", move |_, _| {
            // By time, and by partition if each batch is passed on separately.
            type Open = HashMap<(u64, u32), (Capability<u64>, Collected)>;
            let open = Reported::new("push_rows", (Open::new(), arrival), |(open, arrival), wait| {
                for ((time, partition), (_, collected)) in open {
                    let partitions = match arrival {
                        Arrival::Together => collected.incomplete(),
                        Arrival::EachBatch => vec![*partition],
                    };
                    wait(*time, Cause::Partitions(partitions));
                }
            });
            move |input, output| {
                let (open, _) = &mut *open.borrow_mut();
                input.for_each(|time, block| {
                    let (timestamp, partition) = (block.header().key, block.header().partition);
                    let (key, batches) = match arrival {
                        Arrival::Together => ((timestamp, 0), parts),
                        Arrival::EachBatch => ((timestamp, partition), 1),
                    };
                    let mut entry = match open.entry(key) {
                        Entry::Occupied(entry) => entry,
                        Entry::Vacant(entry) => {
                            entry.insert_entry((time.retain(output.output_index()), Collected::new(parts, batches)))
                        }
                    };
                    let (_, collected) = entry.get_mut();
                    meter.time(Stage::Reduce, || collected.add(block.detach()));
                    if collected.waiting == 0 {
                        let (time, mut collected) = entry.remove();
                        collected.blocks.sort_unstable_by_key(|block| (block.header().partition, block.header().seq));
                        let batches = if arrival == Arrival::EachBatch { parts as u64 } else { 1 };
                        let (examples, blocks) = (collected.examples * batches, collected.blocks);
                        output.session(&time).give(PushedRows { timestamp, examples, blocks });
                    }
                });
            }
        })
    }
}

/// Returns a batch's messages: at least one to every worker. Each holds the number of messages to its worker.
fn blocks(to: &PushTo, me: usize, timestamp: u64, push: RowGradients) -> Vec<WireBlock> {
    let RowGradients { partition, examples, nodes, rows } = push;
    assert_eq!(rows.len(), nodes.len() * to.dim, "one gradient per node");
    let header = |worker: usize, seq: usize, of: usize| Header {
        to: worker as u32,
        from: me as u32,
        partition,
        tag: 0,
        key: timestamp,
        seq: seq as u32,
        aux: of as u32,
    };
    if to.graph.is_whole() {
        let rows = Rows::Shared(rows, 0..nodes.len() * to.dim);
        return vec![WireBlock::new(header(me, 0, 1), vec![examples], nodes, rows)];
    }
    let mut positions = vec![Vec::new(); to.graph.placement().workers()];
    for (position, &node) in nodes.iter().enumerate() {
        positions[to.graph.worker_of(node)].push(position);
    }
    let per_message = (MESSAGE_BYTES / (4 * to.dim + 4)).max(1);
    let mut blocks = Vec::new();
    for (worker, positions) in positions.iter().enumerate() {
        // Own rows stay in one block, which is not sent.
        let per_message = if worker == me { positions.len().max(1) } else { per_message };
        let of = positions.len().div_ceil(per_message).max(1);
        for seq in 0..of {
            let positions = &positions[seq * per_message..((seq + 1) * per_message).min(positions.len())];
            let mut values = Vec::with_capacity(positions.len() * to.dim);
            positions.iter().for_each(|&i| values.extend_from_slice(&rows[i * to.dim..(i + 1) * to.dim]));
            let ids = positions.iter().map(|&position| nodes[position]).collect();
            blocks.push(WireBlock::new(header(worker, seq, of), vec![examples], ids, Rows::F32(values)));
        }
    }
    blocks
}

/// Messages that have arrived, of all batches of a time or of one batch.
struct Collected {
    blocks: Vec<WireBlock>,
    examples: u64,
    /// The number of missing messages, by partition; unknown before the first.
    missing: Vec<Option<u32>>,
    /// The number of incomplete batches.
    waiting: usize,
}

impl Collected {
    fn new(parts: usize, batches: usize) -> Self {
        Self { blocks: Vec::new(), examples: 0, missing: vec![None; parts], waiting: batches }
    }

    /// Returns the partitions of which messages are missing.
    fn incomplete(&self) -> Vec<u32> {
        (0..).zip(&self.missing).filter(|(_, missing)| **missing != Some(0)).map(|(part, _)| part).collect()
    }

    fn add(&mut self, block: WireBlock) {
        let header = block.header();
        let missing = &mut self.missing[header.partition as usize];
        if missing.is_none() {
            self.examples += block.words().first().copied().unwrap_or(0);
        }
        let left = missing.get_or_insert(header.aux).checked_sub(1);
        let left = left.unwrap_or_else(|| panic!("partition {} pushes twice", header.partition));
        *missing = Some(left);
        self.waiting -= usize::from(left == 0);
        if !block.ids().is_empty() {
            self.blocks.push(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use gnnflow_data::rng::{Key, Purpose};
    use timely::dataflow::operators::core::Inspect;
    use timely::dataflow::operators::vec::ToStream;

    use super::*;
    use crate::embed::table::{Draw, EmbeddingTable};
    use crate::flow::advance_times::AdvanceTimes;
    use crate::storage::Place;
    use crate::testing::{book, local, random_graph};
    use gnnflow_kernels::sparse::SparseOptimizer;

    const NODES: u32 = 300;
    const PARTS: usize = 4;

    /// The push of partition `part` at `timestamp`: sometimes empty, and some nodes twice.
    fn push(part: usize, timestamp: u64, dim: usize, nodes: u64) -> RowGradients {
        let key = Key::new(11, Purpose::Dropout).fold(part as u64).fold(timestamp);
        let count = if (part as u64 + timestamp).is_multiple_of(5) { 0 } else { nodes };
        let rows = (0..count * dim as u64).map(|i| key.fold(1).normal(i) as f32).collect();
        RowGradients {
            partition: part as u32,
            examples: count / 3,
            nodes: (0..count).map(|i| key.below(i, u64::from(NODES)) as u32).collect(),
            rows: Arc::new(rows),
        }
    }

    /// A naive implementation: for each node, sums over partitions in order, then one optimizer step.
    fn expected(optimizer: SparseOptimizer, times: u64, dim: usize, nodes: u64) -> Vec<Vec<u32>> {
        let graph = Arc::new(local(&random_graph(NODES, 2), &book(NODES, PARTS), 1, 0, false));
        let table = EmbeddingTable::create(&Place::Memory, &graph, 0, dim, optimizer).unwrap();
        let table = table.drawn(Draw::Uniform(0.1), 5);
        for timestamp in 0..times {
            let pushes: Vec<RowGradients> = (0..PARTS).map(|part| push(part, timestamp, dim, nodes)).collect();
            let examples: u64 = pushes.iter().map(|push| push.examples).sum();
            for node in 0..NODES {
                let mut sum: Option<Vec<f32>> = None;
                for push in &pushes {
                    for (_, row) in push.nodes.iter().zip(push.rows.chunks(dim)).filter(|(n, _)| **n == node) {
                        match &mut sum {
                            None => sum = Some(row.to_vec()),
                            Some(sum) => sum.iter_mut().zip(row).for_each(|(s, x)| *s += x),
                        }
                    }
                }
                if let Some(rows) = sum {
                    let block = WireBlock::new(Header::default(), vec![], vec![node], Rows::F32(rows));
                    let pushed = PushedRows { timestamp, examples, blocks: vec![block] };
                    table.apply(&pushed, 0.1).unwrap();
                }
            }
        }
        let rows = table.read().unwrap();
        (0..NODES).map(|node| bits(rows.row(node))).collect()
    }

    fn bits(row: &[f32]) -> Vec<u32> {
        row.iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn tables_equal_a_naive_loop_bit_for_bit_at_1_2_and_4_workers() {
        let adam = SparseOptimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
        let adagrad = SparseOptimizer::Adagrad { epsilon: 1e-10 };
        // The last is more than a message from each partition to each worker.
        for (optimizer, dim, nodes) in [(adam, 5, 90), (adagrad, 8, 200), (SparseOptimizer::Sgd, 600, 700)] {
            let times = 6;
            let wanted = expected(optimizer, times, dim, nodes);
            for workers in [1, 2, 4] {
                let seen = Arc::new(Mutex::new(vec![Vec::new(); NODES as usize]));
                let results = Arc::clone(&seen);
                timely::execute(timely::Config::process(workers), move |worker| {
                    let me = worker.index();
                    let graph =
                        Arc::new(local(&random_graph(NODES, 2), &book(NODES, PARTS), worker.peers(), me, false));
                    let table = EmbeddingTable::create(&Place::Memory, &graph, me, dim, optimizer).unwrap();
                    let table = Rc::new(table.drawn(Draw::Uniform(0.1), 5));
                    let (updated, mine) = (Rc::clone(&table), graph.placement().parts_of(me));
                    let hosted = Arc::clone(&graph);
                    worker.dataflow::<u64, _, _>(|scope| {
                        let to = PushTo { graph, dim, arrival: Arrival::Together, meter: Default::default() };
                        let mut done = 0;
                        let pushes = mine.rev().map(|part| push(part, 0, dim, nodes)).collect::<Vec<_>>();
                        let first = pushes.to_stream(scope);
                        // Later times are made from the first, so that all are in flight at once.
                        let all = timely::dataflow::operators::vec::Map::flat_map(first, move |push0| {
                            (0..times).map(move |timestamp| (timestamp, push0.partition)).collect::<Vec<_>>()
                        });
                        let all = all.advance_times(|&(timestamp, _)| timestamp);
                        let all = timely::dataflow::operators::vec::Map::map(all, move |(timestamp, part)| {
                            push(part as usize, timestamp, dim, nodes)
                        });
                        all.push_rows(to).inspect(move |pushed| {
                            // The test applies times in order.
                            assert_eq!(pushed.timestamp, done, "one time after another");
                            done += 1;
                            updated.apply(pushed, 0.1).unwrap();
                        });
                    });
                    while worker.step() {}
                    let (mut seen, rows) = (results.lock().unwrap(), table.read().unwrap());
                    for node in (0..NODES).filter(|&node| hosted.hosts(node)) {
                        seen[node as usize] = bits(rows.row(node));
                    }
                })
                .unwrap()
                .join()
                .into_iter()
                .for_each(Result::unwrap);
                assert!(*seen.lock().unwrap() == wanted, "{optimizer:?} on {workers} workers");
            }
        }
    }

    #[test]
    fn each_batch_is_passed_on_by_itself_with_each_batch_arrival() {
        for workers in [1, 2, 4] {
            let seen = Arc::new(Mutex::new(Vec::new()));
            let results = Arc::clone(&seen);
            timely::execute(timely::Config::process(workers), move |worker| {
                let me = worker.index();
                let graph = Arc::new(local(&random_graph(NODES, 2), &book(NODES, PARTS), worker.peers(), me, false));
                let mine = graph.placement().parts_of(me);
                let results = Arc::clone(&results);
                worker.dataflow::<u64, _, _>(|scope| {
                    let to = PushTo { graph, dim: 3, arrival: Arrival::EachBatch, meter: Default::default() };
                    let pushes = mine.map(|part| push(part, 1, 3, 60)).collect::<Vec<_>>();
                    pushes.to_stream(scope).push_rows(to).inspect(move |pushed| {
                        let nodes: Vec<u32> = pushed.pieces().flat_map(|(nodes, _)| nodes.to_vec()).collect();
                        results.lock().unwrap().push((pushed.examples, nodes));
                    });
                });
                while worker.step() {}
            })
            .unwrap()
            .join()
            .into_iter()
            .for_each(Result::unwrap);
            let seen = seen.lock().unwrap();
            assert_eq!(seen.len(), workers * PARTS, "each batch once at each worker");
            let mut nodes: Vec<u32> = seen.iter().flat_map(|(_, nodes)| nodes.clone()).collect();
            let mut wanted: Vec<u32> = (0..PARTS).flat_map(|part| push(part, 1, 3, 60).nodes).collect();
            nodes.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(nodes, wanted);
            let examples: Vec<u64> = (0..PARTS).map(|part| push(part, 1, 3, 60).examples * PARTS as u64).collect();
            assert!(seen.iter().all(|(of, _)| examples.contains(of)));
        }
    }
}
