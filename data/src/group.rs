//! Process groups: the processes that prepare one dataset together, and their collective operations.
//!
//! Every pass over a dump has the same shape. Units of reading (row groups) are divided among the processes. The owner of a unit reads it
//! and produces *messages*, each for one process or for all. Receivers consume messages in the order of the units, independent of senders
//! and timing. Therefore the results equal those of one process with one thread.
//!
//! [`SingleProcess`] is one process with several threads. The group of several processes is a timely dataflow, in the crate
//! gnnflow-dataflow.

use std::sync::atomic::{AtomicU32, Ordering};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::dump::ordered;
use crate::error::{Error, Result};

/// Largest length of a message that is a piece of a longer value, in bytes.
const PIECE: usize = 128 << 10;

/// The receivers of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The process of this rank.
    Rank(usize),
    /// Every process.
    All,
}

/// A value that processes send to each other.
pub trait Message: Send + Sized + 'static {
    /// Returns the bytes that are sent.
    fn encode(&self) -> Vec<u8>;

    /// Reads a value from the bytes of [`Message::encode`].
    ///
    /// # Errors
    /// [`Error::Bug`] if the bytes are not those of a value.
    fn decode(bytes: &[u8]) -> Result<Self>;
}

/// Produces the messages of a unit. The second argument sends one message and returns false when no more are needed.
pub type Produce<'a, T> = dyn Fn(usize, &mut dyn FnMut(Destination, T) -> bool) -> Result<()> + Sync + 'a;

/// Consumes the messages of a unit, one after another.
pub type Consume<'a, T> = dyn FnMut(usize, T) -> Result<()> + 'a;

/// Processes that prepare one dataset together. Every method but [`rank`](ProcessGroup::rank) and [`size`](ProcessGroup::size)
/// is collective: all processes call it, in the same order.
pub trait ProcessGroup {
    /// Returns the rank of this process, from 0.
    fn rank(&self) -> usize;

    /// Returns the number of processes.
    fn size(&self) -> usize;

    /// Runs one pass over `units` units; unit `u` belongs to process `u % size`. All processes give the same number of units.
    /// `produce` runs for the units of this process, on several threads. `consume` runs on this thread, in ascending order of units.
    /// The pass ends when it has ended in all processes. The number of messages in flight is bounded.
    ///
    /// # Errors
    /// Errors of `produce` or `consume` in this process. An error in another process ends this process by other means.
    fn exchange<T: Message>(&self, units: usize, produce: &Produce<'_, T>, consume: &mut Consume<'_, T>) -> Result<()>;

    /// Returns whether unit `unit` belongs to this process.
    fn owns(&self, unit: usize) -> bool {
        unit % self.size() == self.rank()
    }

    /// Returns the values of all processes, by rank.
    ///
    /// # Errors
    /// Those of [`ProcessGroup::exchange`].
    fn all_gather<M: Message>(&self, own: M) -> Result<Vec<M>> {
        if self.size() == 1 {
            return Ok(vec![own]);
        }
        let mut all = vec![Vec::new(); self.size()];
        self.send_all(self.size(), &own.encode(), &mut |rank, piece| {
            all[rank].extend_from_slice(piece);
            Ok(())
        })?;
        all.iter().map(|bytes| M::decode(bytes)).collect()
    }

    /// Returns the value of the process of rank 0. `root` must be `Some` there and is ignored elsewhere.
    ///
    /// # Errors
    /// Those of [`ProcessGroup::exchange`]; [`Error::Bug`] if rank 0 has no value.
    fn broadcast<M: Message>(&self, root: Option<M>) -> Result<M> {
        let root = root.filter(|_| self.rank() == 0);
        if self.size() == 1 {
            return root.ok_or_else(|| Error::Bug("a broadcast has no value at its root".into()));
        }
        let (own, mut all) = (root.map_or_else(Vec::new, |root| root.encode()), Vec::new());
        self.send_all(1, &own, &mut |_, piece| {
            all.extend_from_slice(piece);
            Ok(())
        })?;
        M::decode(&all)
    }

    /// Waits until all processes have called this method.
    ///
    /// # Errors
    /// Those of [`ProcessGroup::exchange`].
    fn barrier(&self) -> Result<()> {
        self.broadcast(Some(Vec::<u8>::new())).map(drop)
    }

    /// Lets every process add to `cells`. On return, `cells` hold the sums over all processes.
    ///
    /// # Errors
    /// Errors of `add`, or those of [`ProcessGroup::exchange`].
    fn all_reduce_counts(&self, cells: &[AtomicU32], add: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        if self.size() == 1 {
            return add();
        }
        let load = |cell: &AtomicU32| cell.load(Ordering::Relaxed);
        let before: Vec<u32> = cells.iter().map(load).collect();
        add()?;
        let own: Vec<u32> = cells.iter().zip(before).map(|(cell, before)| load(cell).wrapping_sub(before)).collect();
        let mut sender = None;
        let mut rest = cells;
        self.send_all(self.size(), bytemuck::cast_slice(&own), &mut |rank, piece| {
            if sender.replace(rank) != Some(rank) {
                rest = cells;
            }
            let values: Vec<u32> = collect(piece);
            let (first, after) =
                rest.split_at_checked(values.len()).ok_or_else(|| Error::Bug("cells do not match".into()))?;
            rest = after;
            if rank != self.rank() {
                for (cell, value) in first.iter().zip(values) {
                    cell.fetch_add(value, Ordering::Relaxed);
                }
            }
            Ok(())
        })
    }

    /// Sends `own` from each of the first `senders` processes to all, in pieces. `receive` gets the rank of the sender and a piece.
    #[doc(hidden)]
    fn send_all(&self, senders: usize, own: &[u8], receive: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        self.exchange::<Vec<u8>>(
            senders,
            &|_, send| {
                own.chunks(PIECE).all(|piece| send(Destination::All, piece.to_vec()));
                Ok(())
            },
            &mut |rank, piece| receive(rank, &piece),
        )
    }
}

/// The group of one process, with several reading threads.
#[derive(Clone, Copy, Debug, Default)]
pub struct SingleProcess;

impl ProcessGroup for SingleProcess {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn exchange<T: Message>(&self, units: usize, produce: &Produce<'_, T>, consume: &mut Consume<'_, T>) -> Result<()> {
        let produce = |unit: usize, send: &mut dyn FnMut((usize, T)) -> bool| {
            produce(unit, &mut |_, message| send((unit, message)))
        };
        ordered(units, rayon::current_num_threads(), produce, |(unit, message)| consume(unit, message))
    }
}

/// A value that is sent as JSON. It is not suitable for floating-point numbers that must keep their bits.
#[derive(Debug)]
pub struct Json<T>(pub T);

impl<T: Serialize + DeserializeOwned + Send + 'static> Message for Json<T> {
    fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(&self.0).expect("all maps in messages have strings as keys")
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        serde_json::from_slice(bytes).map(Self).map_err(|error| Error::Bug(format!("invalid message: {error}")))
    }
}

impl Message for Vec<u8> {
    fn encode(&self) -> Vec<u8> {
        self.clone()
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        Ok(bytes.to_vec())
    }
}

impl Message for Vec<(u32, u32)> {
    fn encode(&self) -> Vec<u8> {
        self.iter().flat_map(|&(a, b)| (u64::from(b) << 32 | u64::from(a)).to_le_bytes()).collect()
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        Ok(collect::<[u32; 2]>(bytes).into_iter().map(|[a, b]| (a, b)).collect())
    }
}

impl Message for Vec<(u64, u64)> {
    fn encode(&self) -> Vec<u8> {
        self.iter().flat_map(|&(a, b)| [a, b]).flat_map(u64::to_le_bytes).collect()
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        Ok(collect::<[u64; 2]>(bytes).into_iter().map(|[a, b]| (a, b)).collect())
    }
}

impl Message for Vec<u64> {
    fn encode(&self) -> Vec<u8> {
        bytemuck::cast_slice(self).to_vec()
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        Ok(collect(bytes))
    }
}

/// Copies values from bytes that need not be aligned. Ignores an incomplete value at the end.
pub(crate) fn collect<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// Appends the length of a slice and the slice to the bytes of a message.
pub(crate) fn put<T: bytemuck::NoUninit>(bytes: &mut Vec<u8>, values: &[T]) {
    let raw: &[u8] = bytemuck::cast_slice(values);
    bytes.extend_from_slice(&(raw.len() as u64).to_le_bytes());
    bytes.extend_from_slice(raw);
}

/// Removes a slice that [`put`] wrote from the front of a message's bytes.
pub(crate) fn take<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(bytes: &mut &[u8]) -> Result<Vec<T>> {
    let short = || Error::Bug("a message is too short".into());
    let (length, rest) = bytes.split_first_chunk::<8>().ok_or_else(short)?;
    let (raw, rest) = rest.split_at_checked(u64::from_le_bytes(*length) as usize).ok_or_else(short)?;
    *bytes = rest;
    if raw.len() % size_of::<T>().max(1) != 0 {
        return Err(short());
    }
    Ok(collect(raw))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_messages_decode_to_equal_values() {
        let pairs = vec![(1u32, 2u32), (u32::MAX, 0)];
        assert_eq!(Vec::<(u32, u32)>::decode(&pairs.encode()).unwrap(), pairs);
        let counts = vec![(7u64, 8u64), (u64::MAX, 0)];
        assert_eq!(Vec::<(u64, u64)>::decode(&counts.encode()).unwrap(), counts);
        let mut bytes = Vec::new();
        put(&mut bytes, &[1u16, 2]);
        put::<u64>(&mut bytes, &[]);
        let mut rest = &bytes[..];
        assert_eq!(take::<u16>(&mut rest).unwrap(), [1, 2]);
        assert!(take::<u64>(&mut rest).unwrap().is_empty() && take::<u64>(&mut rest).is_err());
    }

    #[test]
    fn collectives_of_one_process_return_its_own_values() {
        assert_eq!(SingleProcess.all_gather(b"x".to_vec()).unwrap(), [b"x".to_vec()]);
        assert_eq!(SingleProcess.broadcast(Some(vec![7u64])).unwrap(), [7]);
        assert!(SingleProcess.broadcast::<Vec<u64>>(None).is_err());
        SingleProcess.barrier().unwrap();
        let cells = [AtomicU32::new(3)];
        SingleProcess
            .all_reduce_counts(&cells, &mut || {
                cells[0].fetch_add(4, Ordering::Relaxed);
                Ok(())
            })
            .unwrap();
        assert_eq!(cells[0].load(Ordering::Relaxed), 7);
    }
}
