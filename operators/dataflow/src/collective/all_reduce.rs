//! Sums one vector per partition, in partition order, and sends the sum to every worker.
//!
//! *In*: one [`Contribution`] per partition and time, at the worker that hosts the partition. *Out*: one [`Reduced`]
//! per time at every worker. *State per time*: partial sums of this worker's chunks, and the received chunks of the
//! result. *Capabilities*: one per chunk, until the pieces of all partitions have arrived.
//!
//! The operator is a reduce-scatter followed by an all-gather, in blocks of at most 128 KB. It counts pieces instead of
//! waiting for a frontier. Pieces are added in partition order, independent of their arrival. The first one is copied,
//! not added to zero. So the bits of the sum depend on the partitions only.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use timely::container::{CapacityContainerBuilder, NoopBuilder};
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::operator::Operator;

use crate::flow::waits::{Cause, Reported};
use crate::time::MessageTime;
use crate::wire::meter::{Meter, Stage};
use crate::wire::{Header, Rows, WireBlock, to_destination};

/// Number of values in one chunk of 128 KB.
const CHUNK: usize = 32 << 10;

/// The contribution of one partition to a sum.
#[derive(Clone, Debug)]
pub struct Contribution {
    /// The contributing partition.
    pub partition: u32,
    /// Its vector, or `None` to add nothing.
    pub vector: Option<Arc<Vec<f32>>>,
    /// Metadata that every worker receives unchanged: counts, losses as bits, digests.
    pub words: Vec<u64>,
}

impl Contribution {
    /// Creates the contribution of `partition`.
    pub fn new(partition: u32, vector: Vec<f32>, words: Vec<u64>) -> Self {
        Self { partition, vector: Some(Arc::new(vector)), words }
    }
}

/// The combined contributions of all partitions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reduced {
    /// The time of the contributions.
    pub time: u64,
    /// The sum in partition order; zeros if no partition has a vector.
    pub sum: Vec<f32>,
    /// The metadata of every partition, by partition.
    pub words: Vec<Vec<u64>>,
}

impl Reduced {
    /// Returns the sum of word `i` over all partitions. Missing words count as 0.
    pub fn total(&self, i: usize) -> u64 {
        self.words.iter().filter_map(|words| words.get(i)).sum()
    }
}

/// Sums vectors over all partitions, in partition order.
pub trait AllReduce<'scope> {
    /// Sums vectors of `length` values over `parts` partitions. Every partition contributes once per time, with or
    /// without a vector.
    ///
    /// # Panics
    /// If a vector has another length, or a partition contributes twice to one time.
    ///
    /// # Example
    /// ```
    /// use std::sync::Arc;
    /// use gnnflow_dataflow::collective::all_reduce::{AllReduce, Contribution};
    /// use timely::dataflow::operators::{ToStream, core::Inspect};
    ///
    /// timely::example(|scope| {
    ///     (0..3u32)
    ///         .map(|partition| Contribution { partition, vector: Some(Arc::new(vec![1.0; 4])), words: vec![] })
    ///         .to_stream(scope)
    ///         .container::<Vec<Contribution>>()
    ///         .all_reduce(3, 4, Default::default())
    ///         .inspect(|reduced| assert_eq!(reduced.sum, [3.0; 4]));
    /// });
    /// ```
    fn all_reduce(self, parts: usize, length: usize, meter: Rc<Meter>) -> StreamVec<'scope, u64, Reduced>;
}

impl<'scope> AllReduce<'scope> for StreamVec<'scope, u64, Contribution> {
    fn all_reduce(self, parts: usize, length: usize, meter: Rc<Meter>) -> StreamVec<'scope, u64, Reduced> {
        let (me, peers) = (self.scope().index(), self.scope().peers());
        let chunks = length.div_ceil(CHUNK).max(1);

        let scattered = Rc::clone(&meter);
        let pieces = self.unary::<NoopBuilder<WireBlock>, _, _, _>(Pipeline, "all_reduce: scatter", move |_, _| {
            move |input, output| {
                input.for_each(|time, contributions| {
                    for Contribution { partition, vector, words } in contributions.drain(..) {
                        if let Some(vector) = &vector {
                            assert_eq!(
                                vector.len(),
                                length,
                                "partition {partition} contributes a vector of the wrong length"
                            );
                        }
                        let mut words = Some(words);
                        for chunk in 0..chunks {
                            let rows = match &vector {
                                Some(vector) => {
                                    Rows::Shared(vector.clone(), chunk * CHUNK..((chunk + 1) * CHUNK).min(length))
                                }
                                None => Rows::None,
                            };
                            let header = Header {
                                to: (chunk % peers) as u32,
                                from: me as u32,
                                partition,
                                tag: u32::from(vector.is_some()),
                                key: *time.time(),
                                seq: chunk as u32,
                                aux: 0,
                            };
                            let words = words.take().unwrap_or_default();
                            let mut block = WireBlock::new(header, words, Vec::new(), rows);
                            scattered.sent(me, Stage::Reduce, &block);
                            output.session_with_builder(&time).give_container(&mut block);
                        }
                    }
                });
            }
        });

        let sums = pieces.unary::<NoopBuilder<WireBlock>, _, _, _>(to_destination(), "all_reduce: sum", move |_, _| {
            type Open = HashMap<(u64, u32), (Capability<u64>, OrderedSum)>;
            let open = Reported::new("all_reduce: sum", Open::new(), |open, wait| {
                open.iter().for_each(|((time, _), (_, sum))| wait(*time, Cause::Partitions(sum.missing())));
            });
            move |input, output| {
                let mut open = open.borrow_mut();
                input.for_each(|time, block| {
                    let header = block.header();
                    let key = (header.key, header.seq);
                    let (_, sum) =
                        open.entry(key).or_insert_with(|| (time.retain(output.output_index()), OrderedSum::new(parts)));
                    meter.time(Stage::Reduce, || sum.add(block));
                    if sum.is_complete() {
                        let (time, sum) = open.remove(&key).expect("the entry exists");
                        let (total, words) = sum.finish();
                        let total = total.map(Arc::new);
                        for worker in 0..peers {
                            let rows = match &total {
                                Some(total) => Rows::Shared(total.clone(), 0..total.len()),
                                None => Rows::None,
                            };
                            let to = Header { to: worker as u32, from: me as u32, ..header };
                            let mut block = WireBlock::new(to, words.clone(), Vec::new(), rows);
                            meter.sent(me, Stage::Reduce, &block);
                            output.session_with_builder(&time).give_container(&mut block);
                        }
                    }
                });
            }
        });

        sums.unary::<CapacityContainerBuilder<Vec<Reduced>>, _, _, _>(
            to_destination(),
            "all_reduce: gather",
            move |_, _| {
                // Of each time, the chunks that have not arrived.
                type Open = HashMap<u64, (Capability<u64>, Reduced, BTreeSet<usize>)>;
                let open = Reported::new("all_reduce: gather", (Open::new(), peers), |(open, peers), wait| {
                    for (time, (_, _, missing)) in open {
                        let ranks: BTreeSet<u32> = missing.iter().map(|chunk| (chunk % peers) as u32).collect();
                        wait(*time, Cause::Workers(ranks.into_iter().collect()));
                    }
                });
                move |input, output| {
                    let (open, _) = &mut *open.borrow_mut();
                    input.for_each(|time, block| {
                        let header = block.header();
                        let (_, reduced, missing) = open.entry(header.key).or_insert_with(|| {
                            let reduced = Reduced { time: header.key, sum: vec![0.0; length], words: Vec::new() };
                            (time.retain(output.output_index()), reduced, (0..chunks).collect())
                        });
                        let rows = block.rows_f32().expect("sums are numbers");
                        let start = header.seq as usize * CHUNK;
                        reduced.sum[start..start + rows.len()].copy_from_slice(rows);
                        if header.seq == 0 {
                            reduced.words = unpack(block.words(), parts);
                        }
                        missing.remove(&(header.seq as usize));
                        if missing.is_empty() {
                            let (time, reduced, _) = open.remove(&header.key).expect("the entry exists");
                            output.session(&time).give(reduced);
                        }
                    });
                }
            },
        )
    }
}

/// A sum of one piece per partition, added in partition order.
struct OrderedSum {
    /// The sum of the partitions below `next`.
    total: Option<Vec<f32>>,
    next: usize,
    /// Pieces that arrived before the piece of a lower partition.
    early: HashMap<usize, Option<Vec<f32>>>,
    words: Vec<Vec<u64>>,
    received: usize,
}

impl OrderedSum {
    fn new(parts: usize) -> Self {
        Self { total: None, next: 0, early: HashMap::new(), words: vec![Vec::new(); parts], received: 0 }
    }

    fn add(&mut self, block: &WireBlock) {
        let header = block.header();
        let part = header.partition as usize;
        assert!(part >= self.next && !self.early.contains_key(&part), "partition {part} contributes twice");
        self.words[part] = block.words().to_vec();
        self.received += 1;
        let rows = (header.tag == 1).then(|| block.rows_f32().expect("contributions are numbers"));
        if part != self.next {
            self.early.insert(part, rows.map(<[f32]>::to_vec));
            return;
        }
        self.accumulate(rows);
        while let Some(rows) = self.early.remove(&self.next) {
            self.accumulate(rows.as_deref());
        }
    }

    fn accumulate(&mut self, rows: Option<&[f32]>) {
        self.next += 1;
        match (&mut self.total, rows) {
            (_, None) => {}
            (None, Some(rows)) => self.total = Some(rows.to_vec()),
            (Some(total), Some(rows)) => total.iter_mut().zip(rows).for_each(|(sum, x)| *sum += x),
        }
    }

    /// Returns the partitions that have not contributed.
    fn missing(&self) -> Vec<u32> {
        (self.next..self.words.len()).filter(|part| !self.early.contains_key(part)).map(|part| part as u32).collect()
    }

    fn is_complete(&self) -> bool {
        self.received == self.words.len()
    }

    /// Returns the sum and the packed metadata: `length, words…` for each partition.
    fn finish(self) -> (Option<Vec<f32>>, Vec<u64>) {
        let words = self.words.into_iter().flat_map(|words| std::iter::once(words.len() as u64).chain(words));
        (self.total, words.collect())
    }
}

fn unpack(mut packed: &[u64], parts: usize) -> Vec<Vec<u64>> {
    let mut next = || {
        let (&length, rest) = packed.split_first()?;
        let (words, rest) = rest.split_at_checked(length as usize)?;
        packed = rest;
        Some(words.to_vec())
    };
    (0..parts).map(|part| next().unwrap_or_else(|| panic!("the metadata of partition {part} is truncated"))).collect()
}

#[cfg(test)]
mod tests {
    use gnnflow_data::rng::{Key, Purpose};
    use timely::dataflow::operators::vec::ToStream;
    use timely::dataflow::operators::{Capture, capture::Event};

    use super::*;
    use crate::graph::placement::Placement;

    fn vector(part: usize, length: usize) -> Option<Arc<Vec<f32>>> {
        let key = Key::new(part as u64, Purpose::Init);
        (part % 3 != 2).then(|| Arc::new((0..length).map(|i| key.normal(i as u64) as f32).collect()))
    }

    /// Reference implementation: one loop over partitions.
    fn expected(parts: usize, length: usize) -> Vec<f32> {
        let mut sum: Option<Vec<f32>> = None;
        for part in 0..parts {
            match (&mut sum, vector(part, length)) {
                (_, None) => {}
                (None, Some(v)) => sum = Some(v.to_vec()),
                (Some(sum), Some(v)) => sum.iter_mut().zip(v.iter()).for_each(|(s, x)| *s += x),
            }
        }
        sum.unwrap_or_else(|| vec![0.0; length])
    }

    #[test]
    fn sum_has_equal_bits_for_1_2_and_4_workers() {
        for (parts, length) in [(4, 0), (4, 1), (5, CHUNK), (7, 3 * CHUNK + 17)] {
            for workers in [1, 2, 4] {
                let outputs = timely::execute(timely::Config::process(workers), move |worker| {
                    let mine = Placement::new(parts, worker.peers()).parts_of(worker.index());
                    worker.dataflow::<u64, _, _>(move |scope| {
                        mine.rev() // not in partition order
                            .map(move |part| Contribution {
                                partition: part as u32,
                                vector: vector(part, length),
                                words: vec![part as u64; part],
                            })
                            .to_stream(scope)
                            .all_reduce(parts, length, Default::default())
                            .capture()
                    })
                })
                .unwrap();
                for captured in outputs.join() {
                    let all: Vec<Reduced> = (captured.unwrap().into_iter())
                        .filter_map(|event| match event {
                            Event::Messages(_, reduced) => Some(reduced),
                            Event::Progress(_) => None,
                        })
                        .flatten()
                        .collect();
                    assert_eq!(all.len(), 1);
                    let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&all[0].sum), bits(&expected(parts, length)), "{parts} parts, {workers} workers");
                    assert_eq!(all[0].words, (0..parts).map(|p| vec![p as u64; p]).collect::<Vec<_>>());
                }
            }
        }
    }
}
