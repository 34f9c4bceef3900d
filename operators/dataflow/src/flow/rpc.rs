//! Asks other workers and waits for all answers, by counting.
//!
//! *In*: items at the worker that asks. *Out*: the same items at the same worker, completed. *Kept per time*: items
//! whose answers are under way. *Capabilities*: held from an item's arrival until its last answer.
//!
//! Three stages: **ask** sends an item's questions to the workers that own what it wants, **answer** runs where they
//! arrive, **collect** hands answers to the item and completes it after the last. Every question is answered, if only
//! with an empty block, so that nothing waits for a frontier: an item's latency is one round trip. What the item's
//! own worker holds is done in `here`, after the questions have left, so that local and remote work overlap.

use std::collections::HashMap;

use timely::container::{CapacityContainerBuilder, NoopBuilder};
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::generic::operator::Operator;

use crate::wire::{WireBlock, to_destination};

/// What a round trip does at each place.
pub trait Errand<B> {
    /// The partition that names `item` among those of its time: answers carry it in their header.
    fn partition(&self, item: &B) -> u32;
    /// The questions of `item`, for other workers.
    fn ask(&mut self, tick: u64, item: &mut B) -> Vec<WireBlock>;
    /// Answers `question` by one or more blocks to `question.header().from`; the last one must satisfy
    /// [`Errand::is_last`].
    fn answer(&mut self, tick: u64, question: &WireBlock, reply: &mut dyn FnMut(WireBlock));
    /// What the worker of `item` does itself, between asking and receiving.
    fn here(&mut self, tick: u64, item: &mut B);
    /// Takes one answer in; it may be a view into the network's buffer.
    fn receive(&mut self, tick: u64, item: &mut B, answer: &WireBlock);
    /// Whether `answer` is the last one to its question.
    fn is_last(&self, answer: &WireBlock) -> bool;
    /// Completes `item` after its last answer.
    fn complete(&mut self, tick: u64, item: &mut B);
}

/// Asking and waiting for answers.
pub trait RoundTrip<'scope, B> {
    /// Runs each item through an [`Errand`]; `errand` makes one for each of the three stages.
    ///
    /// See `sample_hop` and `fetch_rows` for the two errands of mini-batch training.
    fn round_trip<E: Errand<B> + 'static>(self, name: &str, errand: impl Fn() -> E) -> Self;
}

/// An item whose answers are under way.
struct Open<B> {
    time: Capability<u64>,
    item: B,
    missing: usize,
    been_here: bool,
}

impl<'scope, B: 'static> RoundTrip<'scope, B> for StreamVec<'scope, u64, B> {
    fn round_trip<E: Errand<B> + 'static>(self, name: &str, errand: impl Fn() -> E) -> Self {
        let scope = self.scope();

        let mut asking = OperatorBuilder::new(format!("{name}: ask"), scope);
        let mut input = asking.new_input(self, Pipeline);
        let (questions_out, questions) = asking.new_output::<WireBlock>();
        let (items_out, items) = asking.new_output::<Vec<(B, usize)>>();
        let mut questions_out = OutputBuilder::<_, NoopBuilder<WireBlock>>::from(questions_out);
        let mut items_out = OutputBuilder::<_, CapacityContainerBuilder<Vec<(B, usize)>>>::from(items_out);
        let mut ask = errand();
        asking.build(move |initial| {
            drop(initial);
            move |_frontiers| {
                let (mut questions_out, mut items_out) = (questions_out.activate(), items_out.activate());
                input.for_each(|time, arrived: &mut Vec<B>| {
                    for mut item in arrived.drain(..) {
                        let mut asked = ask.ask(*time.time(), &mut item);
                        items_out.session(&time).give((item, asked.len()));
                        questions_out.session_with_builder(&time).give_containers(asked.iter_mut());
                    }
                });
            }
        });

        let mut answer = errand();
        let answers = questions.unary::<NoopBuilder<WireBlock>, _, _, _>(
            to_destination(),
            &format!("{name}: answer"),
            move |_, _| {
                move |input, output| {
                    input.for_each(|time, question| {
                        let mut session = output.session_with_builder(&time);
                        answer.answer(*time.time(), question, &mut |mut block| session.give_container(&mut block));
                    });
                }
            },
        );

        let mut collect = errand();
        items.binary::<WireBlock, CapacityContainerBuilder<Vec<B>>, _, _, _, _>(
            answers,
            Pipeline,
            to_destination(),
            &format!("{name}: collect"),
            move |initial, info| {
                drop(initial);
                let again = scope.activator_for(info.address);
                let mut open: HashMap<(u64, u32), Open<B>> = HashMap::new();
                // Items whose questions left in this activation or the last: their own worker's part comes after
                // the next flush to the network.
                let mut fresh: Vec<(u64, u32)> = Vec::new();
                move |items, answers, output| {
                    for key in std::mem::take(&mut fresh) {
                        let open = open.get_mut(&key).expect("an item stays open until its own worker's part is done");
                        collect.here(key.0, &mut open.item);
                        open.been_here = true;
                    }
                    items.for_each(|time, arrived| {
                        for (mut item, missing) in arrived.drain(..) {
                            let tick = *time.time();
                            if missing == 0 {
                                collect.here(tick, &mut item);
                                collect.complete(tick, &mut item);
                                output.session(&time).give(item);
                                continue;
                            }
                            let key = (tick, collect.partition(&item));
                            fresh.push(key);
                            let time = time.retain(output.output_index());
                            let twice = open.insert(key, Open { time, item, missing, been_here: false });
                            assert!(twice.is_none(), "two items of one time have the same partition");
                        }
                    });
                    answers.for_each(|time, answer| {
                        let (tick, key) = (*time.time(), (*time.time(), answer.header().partition));
                        let open = open.get_mut(&key).expect("answers come after their questions");
                        collect.receive(tick, &mut open.item, answer);
                        open.missing -= usize::from(collect.is_last(answer));
                    });
                    let done = |open: &Open<B>| open.missing == 0 && open.been_here;
                    for (key, mut open) in open.extract_if(|_, open| done(open)).collect::<Vec<_>>() {
                        collect.complete(key.0, &mut open.item);
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
