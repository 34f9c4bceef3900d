//! Messages of rows between workers.

use gnnflow_dataflow::wire::{Header, MESSAGE_BYTES, WireBlock};

/// The table that a message of rows belongs to. A message's tag holds the hop and the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    /// Rows that a hop's senders send.
    Activations,
    /// Gradients of aggregated rows.
    Gradients,
    /// Column shards of aggregated rows, for the nodes' owners.
    Aggregated,
    /// Column shards of the gradients of sent rows, for the nodes' owners.
    SentGradients,
    /// Activations of the last hop in an evaluation, in which all nodes are receivers.
    EvaluationActivations,
    /// Gradients of ghost rows, from the workers that read them ([`mirrors`](crate::engine::full_graph::mirrors)).
    MirrorGradients,
}

impl Channel {
    const ALL: [Self; 6] = [
        Self::Activations,
        Self::Gradients,
        Self::Aggregated,
        Self::SentGradients,
        Self::EvaluationActivations,
        Self::MirrorGradients,
    ];

    /// Returns the tag of messages of hop `hop`.
    pub(crate) fn tag(self, hop: usize) -> u32 {
        (Self::ALL.len() * hop) as u32 + self as u32
    }

    /// Returns the hop and the channel of a message.
    pub(crate) fn of(header: Header) -> (usize, Self) {
        let tag = header.tag as usize;
        (tag / Self::ALL.len(), Self::ALL[tag % Self::ALL.len()])
    }
}

/// Minimum window of messages in flight.
const WINDOW: usize = 64;

/// Returns the maximum number of messages of a worker in flight. In tensor-parallel training, with chunks of `chunk_memory` bytes, the window
/// holds a whole chunk: the rows of the next chunk travel while the compute thread aggregates this one.
pub(crate) fn window(chunk_memory: Option<u64>) -> usize {
    chunk_memory.map_or(WINDOW, |memory| WINDOW.max(memory as usize / MESSAGE_BYTES))
}

/// A message that leaves a stage.
pub(crate) enum Outgoing {
    /// A header that names rows of a table. They are copied when the window has a free permit.
    Note(Header),
    /// Copied rows, which are in no table or must be sent before the next computation.
    Block(WireBlock),
}

impl Outgoing {
    /// Returns the timestamp of the message.
    pub(crate) fn time(&self) -> u64 {
        match self {
            Self::Note(header) => header.key,
            Self::Block(block) => block.header().key,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_encodes_hop_and_channel() {
        for (place, channel) in Channel::ALL.into_iter().enumerate() {
            assert_eq!(channel as usize, place);
            let header = Header { tag: channel.tag(3), ..Header::default() };
            assert_eq!(Channel::of(header), (3, channel));
        }
    }
}
