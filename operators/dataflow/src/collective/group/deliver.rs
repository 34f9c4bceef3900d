//! Delivers messages to their workers, in ascending order of time.
//!
//! *In*: blocks at times `(unit, chunk)`. *Out*: nothing; messages are appended to a queue with their capabilities,
//! which the consumer drops. *State per time*: messages that the frontier has not passed. *Capabilities*: one per
//! message.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use gnnflow_data::group::Message;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::{Stream, StreamVec};
use timely::scheduling::Activator;

use super::{LocalMessages, unpack_time};
use crate::flow::waits::{Cause, Reported};
use crate::time::MessageTime;
use crate::wire::{WireBlock, to_destination};

pub(super) struct Delivered<T> {
    pub(super) unit: usize,
    /// The message, or an error if it cannot be decoded.
    pub(super) message: gnnflow_data::Result<T>,
    /// Holds the frontier until the message is consumed, which bounds reading ahead.
    pub(super) hold: Capability<u64>,
}

/// Delivered messages, in order.
pub(super) type Delivery<T> = Rc<RefCell<VecDeque<Delivered<T>>>>;

/// Delivery of messages in order of time.
pub(super) trait Deliver<'scope> {
    /// Appends messages to `delivery` in ascending order of time. An empty block from this worker is replaced by the
    /// next message of `local`. `ready` receives the operator's activator. The consumer calls it after each message, so
    /// that the frontier advances on all workers.
    fn deliver<T: Message>(
        self,
        local: LocalMessages<T>,
        delivery: Delivery<T>,
        ready: impl FnOnce(Activator) + 'static,
    ) -> StreamVec<'scope, u64, ()>;
}

impl<'scope> Deliver<'scope> for Stream<'scope, u64, WireBlock> {
    fn deliver<T: Message>(
        self,
        local: LocalMessages<T>,
        delivery: Delivery<T>,
        ready: impl FnOnce(Activator) + 'static,
    ) -> StreamVec<'scope, u64, ()> {
        let scope = self.scope();
        let rank = scope.worker().index();
        type Builder = CapacityContainerBuilder<Vec<()>>;
        self.unary_frontier::<Builder, _, _, _>(to_destination(), "deliver", move |initial, info| {
            drop(initial);
            ready(scope.activator_for(info.address));
            type Pending<T> = BTreeMap<u64, Vec<Delivered<T>>>;
            let pending = Reported::new("deliver", Pending::<T>::new(), |pending, wait| {
                pending.iter().for_each(|(&time, messages)| {
                    messages.iter().for_each(|_| wait(time, Cause::EarlierTimes));
                });
            });
            move |(input, frontier), output| {
                let mut pending = pending.borrow_mut();
                input.for_each(|time, block| {
                    let message = if block.header().from as usize == rank {
                        local
                            .borrow_mut()
                            .pop_front()
                            .ok_or_else(|| gnnflow_data::Error::Bug("a local message is missing".into()))
                    } else {
                        let mut bytes = Vec::with_capacity(block.row_bytes());
                        block.for_each_row_bytes(|part| bytes.extend_from_slice(part));
                        T::decode(&bytes)
                    };
                    let (unit, _) = unpack_time(*time.time());
                    let hold = time.retain(output.output_index());
                    pending.entry(*time.time()).or_default().push(Delivered { unit, message, hold });
                });
                let mut delivery = delivery.borrow_mut();
                while let Some(first) = pending.first_entry().filter(|first| !frontier.less_than(first.key())) {
                    delivery.extend(first.remove());
                }
            }
        })
    }
}
