//! Emits the messages that reading threads produce from this worker's units.
//!
//! *In*: nothing. *Out*: blocks at time `(unit, chunk)`, one per receiver of a message. For the worker itself the block
//! is empty, and the message is in a queue. *State*: messages outside the window. *Capabilities*: one, at the next
//! chunk.
//!
//! Back-pressure: a chunk is sent if it is fewer than `AHEAD` chunks from the frontier of consumed messages on all
//! workers. The channel of each thread holds two more chunks.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, TryRecvError};

use gnnflow_data::group::{Destination, Message};
use timely::container::NoopBuilder;
use timely::dataflow::operators::generic::operator::source;
use timely::dataflow::operators::probe;
use timely::dataflow::{Scope, Stream};
use timely::scheduling::{Activator, SyncActivator};

use super::{LocalMessages, pack_time, unpack_time};
use crate::wire::{Header, Rows, WireBlock};

/// Largest number of chunks of a unit in flight.
const AHEAD: u32 = 8;

/// The output of a reading thread: a message, the end of its unit (`Ok(None)`), or an error.
pub(super) type Read<T> = Result<Option<(Destination, T)>, gnnflow_data::Error>;

pub(super) struct Readers<T> {
    /// The units of this worker, ascending. Thread `i` of `n` reads those at positions `i`, `i + n`, ….
    pub(super) units: Vec<usize>,
    /// The output of the threads. A failed pass clears the list, which ends the threads.
    pub(super) channels: Rc<RefCell<Vec<Receiver<Read<T>>>>>,
    /// The first error.
    pub(super) first_error: Rc<RefCell<Option<gnnflow_data::Error>>>,
    /// Messages to this worker itself.
    pub(super) local: LocalMessages<T>,
}

pub(super) struct Activators {
    /// For the worker's thread, after a change of the frontier.
    pub(super) worker: Activator,
    /// For reading threads.
    pub(super) threads: SyncActivator,
}

/// A source of messages by unit.
pub(super) trait Units<'scope> {
    /// Emits the messages of `readers`, at most a few chunks ahead of `consumed`. `ready` receives the activators.
    fn units<T: Message>(
        self,
        readers: Readers<T>,
        consumed: &probe::Handle<u64>,
        ready: impl FnOnce(Activators) + 'static,
    ) -> Stream<'scope, u64, WireBlock>;
}

impl<'scope> Units<'scope> for Scope<'scope, u64> {
    fn units<T: Message>(
        self,
        readers: Readers<T>,
        consumed: &probe::Handle<u64>,
        ready: impl FnOnce(Activators) + 'static,
    ) -> Stream<'scope, u64, WireBlock> {
        let (rank, peers) = (self.worker().index(), self.worker().peers());
        let consumed = consumed.clone();
        source::<_, NoopBuilder<WireBlock>, _, _>(self, "units", move |capability, info| {
            let worker = self.worker();
            ready(Activators {
                worker: self.activator_for(info.address.clone()),
                threads: worker.sync_activator_for(info.address.to_vec()),
            });
            let mut capability = Some(capability);
            let (mut position, mut chunk) = (0, 0);
            move |output| {
                let Readers { units, channels, first_error, local } = &readers;
                let channels = channels.borrow();
                if channels.is_empty() {
                    // This worker has no units, or the pass has failed. A failed pass keeps the capability.
                    if units.is_empty() {
                        capability = None;
                    }
                    return;
                }
                while let Some(cap) = &mut capability {
                    let Some(&unit) = units.get(position) else {
                        capability = None;
                        break;
                    };
                    cap.downgrade(&pack_time(unit, chunk));
                    if !is_within_window(&consumed, unit, chunk) {
                        break;
                    }
                    match channels[position % channels.len()].try_recv() {
                        Ok(Ok(Some((to, message)))) => {
                            let mut send = |to: usize, rows: Rows| {
                                let header = Header { to: to as u32, from: rank as u32, ..Header::default() };
                                output.session_with_builder(&*cap).give_container(&mut WireBlock::new(
                                    header,
                                    vec![],
                                    vec![],
                                    rows,
                                ));
                            };
                            match to {
                                Destination::Rank(to) if to != rank => send(to, Rows::Bytes(message.encode())),
                                Destination::Rank(_) => {
                                    local.borrow_mut().push_back(message);
                                    send(rank, Rows::None);
                                }
                                Destination::All => {
                                    if peers > 1 {
                                        let bytes = message.encode();
                                        let others = (0..peers).filter(|&to| to != rank);
                                        others.for_each(|to| send(to, Rows::Bytes(bytes.clone())));
                                    }
                                    local.borrow_mut().push_back(message);
                                    send(rank, Rows::None);
                                }
                            }
                            chunk += 1;
                        }
                        Ok(Ok(None)) => {
                            position += 1;
                            chunk = 0;
                        }
                        Ok(Err(error)) => {
                            first_error.borrow_mut().get_or_insert(error);
                            break;
                        }
                        Err(TryRecvError::Empty) => break,
                        Err(TryRecvError::Disconnected) => {
                            let bug = || gnnflow_data::Error::Bug("a reading thread ended before its last unit".into());
                            first_error.borrow_mut().get_or_insert_with(bug);
                            break;
                        }
                    }
                }
            }
        })
    }
}

/// Whether a chunk is within the window of the frontier.
fn is_within_window(consumed: &probe::Handle<u64>, unit: usize, chunk: u32) -> bool {
    let first = consumed.with_frontier(|frontier| frontier.first().copied());
    let (first_unit, first_chunk) = first.map_or((usize::MAX, 0), unpack_time);
    let base = if unit == first_unit { first_chunk } else { 0 };
    chunk < base.saturating_add(AHEAD)
}
