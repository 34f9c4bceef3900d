//! Messages between workers outside of any order of times.
//!
//! *In*: blocks for their destinations. *Out*: nothing; received blocks are appended to a queue. *State per time*: none. *Capabilities*:
//! none; the input holds time 0 until it is dropped.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use timely::container::NoopBuilder;
use timely::dataflow::operators::Input;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::{InputHandle, Stream};
use timely::worker::Worker;

use crate::collective::group::LoopState;
use crate::wire::{Header, MESSAGE_BYTES, Rows, WireBlock, to_destination};

/// Longest wait of an idle worker, so that it keeps reporting.
const PARK: Duration = Duration::from_millis(10);

/// The meaning of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Kind {
    /// A request for a pong.
    Ping,
    /// The answer to a ping, with the time of the sender's clock.
    Pong,
    /// A large message, which is acknowledged.
    Block,
    /// The answer to a block.
    Ack,
    /// The sender has measured its link to the receiver.
    Turn,
    /// The sender has reached a barrier.
    Arrived,
    /// All have reached a barrier.
    Continue,
}

/// A message without its rows.
#[derive(Debug)]
pub(super) struct Letter {
    tag: u32,
    from: usize,
    /// Numbers that the kind defines.
    pub(super) words: Vec<u64>,
}

type Inbox = Rc<RefCell<VecDeque<Letter>>>;

/// Appends received blocks to a queue.
trait Deposit<'scope> {
    fn deposit(self, inbox: Inbox);
}

impl<'scope> Deposit<'scope> for Stream<'scope, u64, WireBlock> {
    fn deposit(self, inbox: Inbox) {
        self.sink(to_destination(), "deposit", move |(input, _)| {
            input.for_each(|_, block| {
                let Header { tag, from, .. } = block.header();
                inbox.borrow_mut().push_back(Letter { tag, from: from as usize, words: block.words().to_vec() });
            });
        });
    }
}

/// A worker that did not send a message in time.
#[derive(Debug)]
pub(super) struct Silent {
    pub(super) rank: usize,
    pub(super) waited: Duration,
}

/// This worker's end of the messages. While it waits, it answers pings and blocks.
pub(super) struct Mailbox<'a> {
    worker: &'a mut Worker,
    input: InputHandle<u64, NoopBuilder<WireBlock>>,
    inbox: Inbox,
    /// Received messages that are no pings and blocks.
    kept: VecDeque<Letter>,
    rows: Arc<Vec<f32>>,
    report: &'a dyn Fn(LoopState),
}

impl<'a> Mailbox<'a> {
    /// Builds the dataflow. A collective operation.
    pub(super) fn open(worker: &'a mut Worker, report: &'a dyn Fn(LoopState)) -> Self {
        let inbox = Inbox::default();
        let received = inbox.clone();
        let input = worker.dataflow::<u64, _, _>(|scope| {
            let (input, stream) = scope.new_input_with_builder::<NoopBuilder<WireBlock>>();
            stream.deposit(received);
            input
        });
        let rows = (0..MESSAGE_BYTES / 4).map(|i| i as f32).collect();
        Self { worker, input, inbox, kept: VecDeque::new(), rows: Arc::new(rows), report }
    }

    /// The number of this worker.
    pub(super) fn rank(&self) -> usize {
        self.worker.index()
    }

    /// Sends a message.
    pub(super) fn send(&mut self, to: usize, kind: Kind, words: Vec<u64>) {
        let rows = match kind {
            Kind::Block => Rows::Shared(self.rows.clone(), 0..self.rows.len()),
            _ => Rows::None,
        };
        let (to, from) = (to as u32, self.worker.index() as u32);
        let header = Header { to, from, tag: kind as u32, ..Header::default() };
        self.input.send_batch(&mut WireBlock::new(header, words, Vec::new(), rows));
        // A turn that finds nothing to do would wait before it sends.
        self.worker.step();
    }

    /// Waits for a message of a kind from a worker, at most `limit`.
    pub(super) fn receive(&mut self, kind: Kind, from: usize, limit: Duration) -> Result<Letter, Silent> {
        let begin = Instant::now();
        let is_wanted = |letter: &Letter| letter.tag == kind as u32 && letter.from == from;
        loop {
            if let Some(letter) = self.kept.iter().position(is_wanted).and_then(|at| self.kept.remove(at)) {
                return Ok(letter);
            }
            if begin.elapsed() >= limit {
                return Err(Silent { rank: from, waited: limit });
            }
            (self.report)(LoopState::Turn);
            self.worker.step_or_park(Some(PARK));
            self.answer();
        }
    }

    /// Answers the received pings and blocks, and keeps all other messages.
    fn answer(&mut self) {
        loop {
            let Some(letter) = self.inbox.borrow_mut().pop_front() else { return };
            (self.report)(LoopState::Progress);
            let from = letter.from;
            match letter.tag {
                tag if tag == Kind::Ping as u32 => self.send(from, Kind::Pong, vec![wall_clock()]),
                tag if tag == Kind::Block as u32 => self.send(from, Kind::Ack, Vec::new()),
                _ => self.kept.push_back(letter),
            }
        }
    }

    /// Waits until all workers have called this method, for each at most `limit`.
    pub(super) fn barrier(&mut self, limit: Duration) -> Result<(), Silent> {
        let others = 1..self.worker.peers();
        if self.rank() > 0 {
            self.send(0, Kind::Arrived, Vec::new());
            return self.receive(Kind::Continue, 0, limit).map(drop);
        }
        for rank in others.clone() {
            self.receive(Kind::Arrived, rank, limit)?;
        }
        others.for_each(|rank| self.send(rank, Kind::Continue, Vec::new()));
        Ok(())
    }
}

/// Returns the nanoseconds since 1970 of this machine's clock; 0 before.
pub(super) fn wall_clock() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
