//! Routing of whole blocks.

use timely::communication::Push;
use timely::dataflow::channels::Message;
use timely::dataflow::channels::pact::DistributorPact;
use timely::dataflow::channels::pushers::exchange::Distributor;
use timely::progress::Stamp;

use super::WireBlock;

/// Moves each block to the worker that its header names.
#[derive(Default)]
pub struct WholeBlock;

impl Distributor<WireBlock> for WholeBlock {
    fn partition<T: Clone, P: Push<Message<T, WireBlock>>>(
        &mut self,
        block: &mut WireBlock,
        stamp: &Stamp<T>,
        pushers: &mut [P],
    ) {
        let to = block.header().to as usize;
        Message::push_at(block, stamp.clone(), &mut pushers[to]);
    }

    fn flush<T: Clone, P: Push<Message<T, WireBlock>>>(&mut self, _stamp: &Stamp<T>, _pushers: &mut [P]) {}
}

/// Returns the parallelization contract that sends each block to the worker that its header names.
pub fn to_destination() -> DistributorPact<fn(usize) -> WholeBlock> {
    DistributorPact(|_peers| WholeBlock)
}
