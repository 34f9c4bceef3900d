//! Remote procedure calls between workers. An item is complete when all replies to its requests have arrived.
//!
//! *In*: items at the worker that calls. *Out*: the same items at the same worker, completed. *Kept per time*: items
//! that wait for replies. *Capabilities*: held from an item's arrival until its last reply.
//!
//! Three stages: **request** sends an item's requests to the workers that own the data, **serve** runs at those workers,
//! and **finish** gives replies to the item and completes it after the last one. Every request gets a reply, an empty
//! block if there is nothing to send, so that no item waits for a frontier: its latency is one round trip. Data that the
//! item's own worker holds is read in `local`, after the requests have left, so that local and remote work overlap.

use std::collections::HashMap;

use timely::container::{CapacityContainerBuilder, NoopBuilder};
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::generic::operator::Operator;

use super::waits::{Cause, Reported};
use crate::time::MessageTime;
use crate::wire::{WireBlock, to_destination};

/// The parts of a call: requests at the caller, `serve` at the owners, and replies at the caller again.
pub trait Rpc<B> {
    /// The partition that identifies `item` among the items of its time. Replies carry it in their header.
    fn partition(&self, item: &B) -> u32;
    /// Returns the requests of `item` to other workers.
    fn requests(&mut self, timestamp: u64, item: &mut B) -> Vec<WireBlock>;
    /// Serves `request`: replies with one or more blocks to `request.header().from`. The last block must satisfy
    /// [`Rpc::is_last`].
    fn serve(&mut self, timestamp: u64, request: &WireBlock, reply: &mut dyn FnMut(WireBlock));
    /// Reads the data that the worker of `item` holds itself. Runs while the requests are in flight.
    fn local(&mut self, timestamp: u64, item: &mut B);
    /// Puts a reply into `item`. The reply may be a view into the network's buffer.
    fn on_reply(&mut self, timestamp: u64, item: &mut B, reply: &WireBlock);
    /// Returns whether `reply` is the last one to its request.
    fn is_last(&self, reply: &WireBlock) -> bool;
    /// Completes `item` after its last reply.
    fn finish(&mut self, timestamp: u64, item: &mut B);
}

/// Calls other workers for each item of a stream.
pub(crate) trait CallRpc<'scope, B> {
    /// Runs each item through an [`Rpc`]. `make` is called once for each of the three stages.
    ///
    /// `sample_hop`, `fetch_rows` and `fetch_edge_rows` are such calls.
    fn rpc<R: Rpc<B> + 'static>(self, name: &str, make: impl Fn() -> R) -> Self;
}

/// An item that waits for replies.
struct Open<B> {
    time: Capability<u64>,
    item: B,
    /// The workers that owe replies, one entry for each request.
    missing: Vec<u32>,
    local_done: bool,
}

impl<'scope, B: 'static> CallRpc<'scope, B> for StreamVec<'scope, u64, B> {
    fn rpc<R: Rpc<B> + 'static>(self, name: &str, make: impl Fn() -> R) -> Self {
        let (scope, operator) = (self.scope(), name.to_owned());

        let mut requesting = OperatorBuilder::new(format!("{name}: request"), scope);
        let mut input = requesting.new_input(self, Pipeline);
        let (requests_out, requests) = requesting.new_output::<WireBlock>();
        let (items_out, items) = requesting.new_output::<Vec<(B, Vec<u32>)>>();
        let mut requests_out = OutputBuilder::<_, NoopBuilder<WireBlock>>::from(requests_out);
        let mut items_out = OutputBuilder::<_, CapacityContainerBuilder<Vec<(B, Vec<u32>)>>>::from(items_out);
        let mut caller = make();
        requesting.build(move |initial| {
            drop(initial);
            move |_frontiers| {
                let (mut requests_out, mut items_out) = (requests_out.activate(), items_out.activate());
                input.for_each(|time, arrived: &mut Vec<B>| {
                    for mut item in arrived.drain(..) {
                        let mut sent = caller.requests(*time.time(), &mut item);
                        let to = sent.iter().map(|request| request.header().to).collect();
                        items_out.session(&time).give((item, to));
                        requests_out.session_with_builder(&time).give_containers(sent.iter_mut());
                    }
                });
            }
        });

        let mut server = make();
        let replies = requests.unary::<NoopBuilder<WireBlock>, _, _, _>(
            to_destination(),
            &format!("{name}: serve"),
            move |_, _| {
                move |input, output| {
                    input.for_each(|time, request| {
                        let mut session = output.session_with_builder(&time);
                        server.serve(*time.time(), request, &mut |mut block| session.give_container(&mut block));
                    });
                }
            },
        );

        let mut caller = make();
        items.binary::<WireBlock, CapacityContainerBuilder<Vec<B>>, _, _, _, _>(
            replies,
            Pipeline,
            to_destination(),
            &format!("{name}: finish"),
            move |initial, info| {
                drop(initial);
                let again = scope.activator_for(info.address);
                let open = Reported::new(operator, HashMap::<(u64, u32), Open<B>>::new(), |open, wait| {
                    for ((time, _), item) in open {
                        let mut ranks = item.missing.clone();
                        ranks.sort_unstable();
                        ranks.dedup();
                        wait(*time, Cause::Workers(ranks));
                    }
                });
                // Items that are new in this activation. Their local part runs in the next one, after requests have been flushed
                // to the network.
                let mut fresh: Vec<(u64, u32)> = Vec::new();
                move |items, replies, output| {
                    let mut open = open.borrow_mut();
                    for key in std::mem::take(&mut fresh) {
                        let open = open.get_mut(&key).expect("an item stays open until its local part is done");
                        caller.local(key.0, &mut open.item);
                        open.local_done = true;
                    }
                    items.for_each(|time, arrived| {
                        for (mut item, missing) in arrived.drain(..) {
                            let timestamp = *time.time();
                            if missing.is_empty() {
                                caller.local(timestamp, &mut item);
                                caller.finish(timestamp, &mut item);
                                output.session(&time).give(item);
                                continue;
                            }
                            let key = (timestamp, caller.partition(&item));
                            fresh.push(key);
                            let time = time.retain(output.output_index());
                            let twice = open.insert(key, Open { time, item, missing, local_done: false });
                            assert!(twice.is_none(), "two items of one time have the same partition");
                        }
                    });
                    replies.for_each(|time, reply| {
                        let (timestamp, key) = (*time.time(), (*time.time(), reply.header().partition));
                        let open = open.get_mut(&key).expect("a reply comes after its request");
                        caller.on_reply(timestamp, &mut open.item, reply);
                        if caller.is_last(reply) {
                            let from = reply.header().from;
                            let request = open.missing.iter().position(|rank| *rank == from);
                            open.missing.swap_remove(request.expect("a reply comes from the receiver of its request"));
                        }
                    });
                    let done = |open: &Open<B>| open.missing.is_empty() && open.local_done;
                    for (key, mut open) in open.extract_if(|_, open| done(open)).collect::<Vec<_>>() {
                        caller.finish(key.0, &mut open.item);
                        output.session(&open.time).give(open.item);
                    }
                    if !fresh.is_empty() {
                        again.activate();
                    }
                }
            },
        )
    }
}
