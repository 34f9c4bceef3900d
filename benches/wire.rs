//! Wire blocks between two processes over loopback, compared with raw TCP in the same run.
//!
//! Rank 0 sends blocks of rows to rank 1, which copies the rows and replies with an empty block. Enough blocks are in
//! flight to keep the link busy. Raw TCP has one writing and one reading thread and no copy. Wire blocks include
//! gathering, framing and copying, so they should reach half of the rate of raw TCP.

mod common;
#[path = "common/pair.rs"]
mod pair;
#[path = "common/raw_tcp.rs"]
mod raw_tcp;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use common::{Seconds, Session};
use gnnflow_dataflow::storage::{Busy, RowReader, RowSource};
use gnnflow_dataflow::wire::{Codec, Header, MESSAGE_BYTES, Rows, WireBlock, set_codec, to_destination};
use pair::{PARK, in_two_processes};
use raw_tcp::raw_tcp;
use serde_json::json;
use timely::container::NoopBuilder;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::{Input, Probe};
use timely::worker::Worker;

/// Columns of a row.
const WIDTH: usize = 128;
const ROWS: usize = MESSAGE_BYTES / (4 * WIDTH);
/// Number of blocks in flight.
const WINDOW: u64 = 16;

/// Source of the rows of a block.
#[derive(Clone, Copy)]
enum Case {
    /// Consecutive rows of a matrix.
    Shared(Codec),
    /// Scattered rows of a matrix, gathered during the write to the network.
    Gathered,
}

/// Seconds per repetition, by case, raw TCP first.
type Measured = Vec<(&'static str, Vec<f64>)>;

fn main() {
    let mut session = Session::new("wire");
    let blocks = if session.smoke { 40 } else { 4000 };
    let repeats = session.repeats(9);
    let measured = in_two_processes(move |worker| measure(worker, blocks, repeats));

    let bytes = (blocks * MESSAGE_BYTES as u64) as f64;
    session.about("block_bytes", MESSAGE_BYTES as u64);
    session.about("window", WINDOW);
    let raw = Seconds::new(measured[0].1.clone()).median();
    for (case, seconds) in measured {
        let seconds = Seconds::new(seconds);
        session.result(case, json!({ "times_raw_tcp": raw / seconds.median() }), &seconds, bytes, "B");
    }
    session.finish();
}

/// Runs all cases in turn, `repeats` times. Returns the seconds at rank 0.
fn measure(worker: &mut Worker, blocks: u64, repeats: usize) -> Measured {
    let cases = [
        ("wire blocks", Case::Shared(Codec::Plain)),
        ("wire blocks, gathered", Case::Gathered),
        #[cfg(feature = "abomonation")]
        ("wire blocks, abomonation", Case::Shared(Codec::Abomonation)),
    ];
    let mut measured: Measured = vec![("raw TCP", Vec::new())];
    measured.extend(cases.iter().map(|&(name, _)| (name, Vec::new())));
    let matrix = Arc::new(Matrix(Arc::new((0..WIDTH << 15).map(|i| i as f32).collect())));
    for repeat in 0..=repeats {
        let raw = if worker.index() == 0 { raw_tcp(blocks * MESSAGE_BYTES as u64) } else { 0.0 };
        let sent = cases.iter().map(|&(_, case)| send(worker, case, &matrix, blocks));
        let seconds: Vec<f64> = std::iter::once(raw).chain(sent).collect();
        // The first repetition is the warm-up.
        if repeat > 0 {
            measured.iter_mut().zip(seconds).for_each(|(case, seconds)| case.1.push(seconds));
        }
    }
    measured
}

struct Matrix(Arc<Vec<f32>>);

impl RowSource for Matrix {
    fn row_bytes(&self) -> usize {
        4 * WIDTH
    }
    fn open(&self) -> Result<Box<dyn RowReader + '_>, Busy> {
        Ok(Box::new(self))
    }
}

impl RowReader for Matrix {
    fn row(&self, node: u32) -> &[u8] {
        bytemuck::cast_slice(&self.0[node as usize * WIDTH..][..WIDTH])
    }
}

/// Seconds from the first block to the last reply.
fn send(worker: &mut Worker, case: Case, matrix: &Arc<Matrix>, blocks: u64) -> f64 {
    if let Case::Shared(codec) = case {
        set_codec(codec);
    }
    let rank = worker.index();
    let matrix = Arc::clone(matrix);
    let num_replies = Rc::new(Cell::new(0));
    let count = Rc::clone(&num_replies);
    let (mut input, probe) = worker.dataflow::<u64, _, _>(|scope| {
        let (input, numbers) = scope.new_input::<Vec<u64>>();
        let sent = numbers.unary::<NoopBuilder<WireBlock>, _, _, _>(Pipeline, "send", move |_, _| {
            move |input, output| {
                input.for_each(|time, numbers| {
                    for number in numbers.drain(..) {
                        let header = Header { to: 1, from: 0, key: number, ..Header::default() };
                        let mut block = WireBlock::new(header, vec![], vec![], rows(case, &matrix, number as usize));
                        output.session_with_builder(&time).give_container(&mut block);
                    }
                });
            }
        });
        let mut copied = Vec::with_capacity(MESSAGE_BYTES);
        let replies = sent.unary::<NoopBuilder<WireBlock>, _, _, _>(to_destination(), "receive", move |_, _| {
            move |input, output| {
                input.for_each(|time, block| {
                    copied.clear();
                    block.for_each_row_bytes(|rows| copied.extend_from_slice(rows));
                    assert_eq!(std::hint::black_box(&copied).len(), MESSAGE_BYTES);
                    let header = Header { to: 0, from: 1, ..block.header() };
                    let mut reply = WireBlock::new(header, vec![], vec![], Rows::None);
                    output.session_with_builder(&time).give_container(&mut reply);
                });
            }
        });
        let counted = replies.unary::<NoopBuilder<WireBlock>, _, _, _>(to_destination(), "count", move |_, _| {
            move |input, _output| input.for_each(|_, _| count.set(count.get() + 1))
        });
        (input, counted.probe().0)
    });
    let start = Instant::now();
    let mut next = 0;
    while rank == 0 && num_replies.get() < blocks {
        while next < blocks && next - num_replies.get() < WINDOW {
            input.send(next);
            next += 1;
            input.advance_to(next);
        }
        worker.step_or_park(PARK);
    }
    let seconds = start.elapsed().as_secs_f64();
    drop(input);
    while !probe.done() {
        worker.step_or_park(PARK);
    }
    set_codec(Codec::Plain);
    seconds
}

/// The rows of block `number`.
fn rows(case: Case, matrix: &Arc<Matrix>, number: usize) -> Rows {
    let nodes = matrix.0.len() / WIDTH;
    match case {
        Case::Shared(_) => {
            let first = number * ROWS % (nodes - ROWS);
            Rows::Shared(Arc::clone(&matrix.0), first * WIDTH..(first + ROWS) * WIDTH)
        }
        Case::Gathered => {
            let scattered = (0..ROWS).map(|i| ((number * ROWS + i) * 7919 % nodes) as u32).collect();
            Rows::Gather(Arc::clone(matrix) as Arc<dyn RowSource>, scattered)
        }
    }
}
