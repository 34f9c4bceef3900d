//! Brings messages to their workers, by ascending time.
//!
//! *In*: blocks at times `(unit, chunk)`. *Out*: nothing; messages go to a queue, each with its capability, which the consumer
//! drops. *Kept per time*: messages before which an earlier one may still come. *Capabilities*: held with them.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use gnnflow_data::group::Message;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::{Stream, StreamVec};
use timely::scheduling::Activator;

use super::{Own, untick};
use crate::wire::{WireBlock, to_destination};

/// A message that is next in order.
pub struct Delivered<T> {
    /// Its unit.
    pub unit: usize,
    /// The message, or an error if it cannot be read.
    pub message: gnnflow_data::Result<T>,
    /// Holds the frontier while the message waits, and so bounds reading ahead.
    pub hold: Capability<u64>,
}

/// Delivered messages, in order.
pub type Delivery<T> = Rc<RefCell<VecDeque<Delivered<T>>>>;

/// Parcels in order.
pub trait Deliver<'scope> {
    /// Puts messages into `delivery`, by ascending time; an empty block from this worker announces one of `own`. `ready` gets the
    /// operator's activator, which the consumer uses after it has taken messages: then the frontier advances elsewhere too.
    fn deliver<T: Message>(
        self,
        own: Own<T>,
        delivery: Delivery<T>,
        ready: impl FnOnce(Activator) + 'static,
    ) -> StreamVec<'scope, u64, ()>;
}

impl<'scope> Deliver<'scope> for Stream<'scope, u64, WireBlock> {
    fn deliver<T: Message>(
        self,
        own: Own<T>,
        delivery: Delivery<T>,
        ready: impl FnOnce(Activator) + 'static,
    ) -> StreamVec<'scope, u64, ()> {
        let scope = self.scope();
        let me = scope.worker().index();
        type Builder = CapacityContainerBuilder<Vec<()>>;
        self.unary_frontier::<Builder, _, _, _>(to_destination(), "deliver", move |initial, info| {
            drop(initial);
            ready(scope.activator_for(info.address));
            let mut held: BTreeMap<u64, Vec<Delivered<T>>> = BTreeMap::new();
            move |(input, frontier), output| {
                input.for_each(|time, block| {
                    let message = if block.header().from as usize == me {
                        own.borrow_mut()
                            .pop_front()
                            .ok_or_else(|| gnnflow_data::Error::Bug("a message is missing".into()))
                    } else {
                        let mut bytes = Vec::with_capacity(block.row_bytes());
                        block.for_each_row_bytes(|some| bytes.extend_from_slice(some));
                        T::decode(&bytes)
                    };
                    let (unit, _) = untick(*time.time());
                    let hold = time.retain(output.output_index());
                    held.entry(*time.time()).or_default().push(Delivered { unit, message, hold });
                });
                let mut delivery = delivery.borrow_mut();
                while let Some(first) = held.first_entry().filter(|first| !frontier.less_than(first.key())) {
                    delivery.extend(first.remove());
                }
            }
        })
    }
}
