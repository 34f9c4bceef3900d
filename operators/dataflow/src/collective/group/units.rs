//! Emits the messages that reading threads make of this worker's units.
//!
//! *In*: nothing. *Out*: blocks at time `(unit, chunk)`: one to each receiver of the message; to the worker itself an empty
//! one, while the message waits in a queue. *Kept*: messages of the threads that may not leave yet.
//! *Capabilities*: one, at the next chunk.
//!
//! Back-pressure: a chunk leaves when it is fewer than `AHEAD` chunks from the frontier of what has been consumed
//! everywhere; the threads' channels hold two chunks more each.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, TryRecvError};

use gnnflow_data::group::{Destination, Message};
use timely::container::NoopBuilder;
use timely::dataflow::operators::generic::operator::source;
use timely::dataflow::operators::probe;
use timely::dataflow::{Scope, Stream};
use timely::scheduling::{Activator, SyncActivator};

use super::{Own, tick, untick};
use crate::wire::{Header, Rows, WireBlock};

/// Chunks of a unit in flight.
const AHEAD: u32 = 8;

/// A report of a reading thread: a message, the end of its unit (`Ok(None)`), or an error.
pub type Read<T> = Result<Option<(Destination, T)>, gnnflow_data::Error>;

/// The reading threads of one pass, as the operator sees them.
pub struct Readers<T> {
    /// The units of this worker, ascending; thread `i` of `n` reads those at positions `i`, `i + n`, ….
    pub units: Vec<usize>,
    /// Their messages. The pass clears them when it fails: then the threads end.
    pub channels: Rc<RefCell<Vec<Receiver<Read<T>>>>>,
    /// The first error.
    pub failed: Rc<RefCell<Option<gnnflow_data::Error>>>,
    /// Parcels for this worker itself.
    pub own: Own<T>,
}

/// Activators of the operator.
pub struct Wake {
    /// For the worker's own thread, when the frontier has moved.
    pub here: Activator,
    /// For reading threads.
    pub anywhere: SyncActivator,
}

/// Units as a source.
pub trait Units<'scope> {
    /// Emits the messages of `readers`, only a few chunks ahead of `consumed`. `ready` gets the activators.
    fn units<T: Message>(
        self,
        readers: Readers<T>,
        consumed: &probe::Handle<u64>,
        ready: impl FnOnce(Wake) + 'static,
    ) -> Stream<'scope, u64, WireBlock>;
}

impl<'scope> Units<'scope> for Scope<'scope, u64> {
    fn units<T: Message>(
        self,
        readers: Readers<T>,
        consumed: &probe::Handle<u64>,
        ready: impl FnOnce(Wake) + 'static,
    ) -> Stream<'scope, u64, WireBlock> {
        let (me, peers) = (self.worker().index(), self.worker().peers());
        let consumed = consumed.clone();
        source::<_, NoopBuilder<WireBlock>, _, _>(self, "units", move |capability, info| {
            let worker = self.worker();
            ready(Wake {
                here: self.activator_for(info.address.clone()),
                anywhere: worker.sync_activator_for(info.address.to_vec()),
            });
            let mut capability = Some(capability);
            let (mut position, mut chunk) = (0, 0);
            move |output| {
                let Readers { units, channels, failed, own } = &readers;
                let channels = channels.borrow();
                if channels.is_empty() {
                    // No unit at all, or given up. In the latter case the capability stays: nothing is whole.
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
                    cap.downgrade(&tick(unit, chunk));
                    if !within(&consumed, unit, chunk) {
                        break;
                    }
                    match channels[position % channels.len()].try_recv() {
                        Ok(Ok(Some((to, message)))) => {
                            let mut send = |to: usize, rows: Rows| {
                                let header = Header { to: to as u32, from: me as u32, ..Header::default() };
                                output.session_with_builder(&*cap).give_container(&mut WireBlock::new(
                                    header,
                                    vec![],
                                    vec![],
                                    rows,
                                ));
                            };
                            match to {
                                Destination::Rank(to) if to != me => send(to, Rows::Bytes(message.encode())),
                                Destination::Rank(_) => {
                                    own.borrow_mut().push_back(message);
                                    send(me, Rows::None);
                                }
                                Destination::All => {
                                    if peers > 1 {
                                        let bytes = message.encode();
                                        let others = (0..peers).filter(|&to| to != me);
                                        others.for_each(|to| send(to, Rows::Bytes(bytes.clone())));
                                    }
                                    own.borrow_mut().push_back(message);
                                    send(me, Rows::None);
                                }
                            }
                            chunk += 1;
                        }
                        Ok(Ok(None)) => {
                            position += 1;
                            chunk = 0;
                        }
                        Ok(Err(error)) => {
                            failed.borrow_mut().get_or_insert(error);
                            break;
                        }
                        Err(TryRecvError::Empty) => break,
                        Err(TryRecvError::Disconnected) => {
                            let bug = || gnnflow_data::Error::Bug("a reading thread ended early".into());
                            failed.borrow_mut().get_or_insert_with(bug);
                            break;
                        }
                    }
                }
            }
        })
    }
}

/// Whether a chunk may leave already.
fn within(consumed: &probe::Handle<u64>, unit: usize, chunk: u32) -> bool {
    let first = consumed.with_frontier(|frontier| frontier.first().copied());
    let (first_unit, first_chunk) = first.map_or((usize::MAX, 0), untick);
    let base = if unit == first_unit { first_chunk } else { 0 };
    chunk < base.saturating_add(AHEAD)
}
