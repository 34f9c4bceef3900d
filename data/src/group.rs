//! The processes that prepare one dataset together, as the passes see them.
//!
//! Every pass over a dump has the same shape: units of reading (row groups) are dealt out to the processes; whoever owns a
//! unit reads it and makes *parcels*; a parcel goes to one process, or to all; and whoever gets parcels takes them in the order
//! of the units, whoever made them and however fast. So all that follows is that of one process with one thread.
//!
//! [`SingleProcess`] is one process with some threads. The group of several processes is a timely dataflow, in the crate gnnflow-dataflow.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::dump::ordered;
use crate::error::{Error, Result};

/// Bytes of a parcel that is cut from something longer.
const PIECE: usize = 128 << 10;

/// Who gets a parcel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// The process of this rank.
    One(usize),
    /// Every process.
    All,
}

/// What processes send each other.
pub trait Parcel: Send + Sized + 'static {
    /// As bytes.
    fn encode(&self) -> Vec<u8>;

    /// From bytes that [`Parcel::encode`] gave.
    ///
    /// # Errors
    /// Bytes that no parcel has: [`Error::Bug`].
    fn decode(bytes: &[u8]) -> Result<Self>;
}

/// Makes the parcels of a unit. The second argument sends one, and tells whether anybody still wants more.
pub type Produce<'a, T> = dyn Fn(usize, &mut dyn FnMut(To, T) -> bool) -> Result<()> + Sync + 'a;

/// Takes the parcels of a unit, one after the other.
pub type Consume<'a, T> = dyn FnMut(usize, T) -> Result<()> + 'a;

/// Processes that work on the same passes.
pub trait ProcessGroup {
    /// This process among them, from 0.
    fn rank(&self) -> usize;

    /// Their number.
    fn size(&self) -> usize;

    /// One pass over `units` units; unit `u` is that of process `u % size`. Every process calls it, with the same number of units.
    /// `produce` runs for the units of this process, on several threads; `consume` on this one, by ascending units. It
    /// returns when the pass is over in all processes.
    ///
    /// # Errors
    /// What `produce` or `consume` returned in this process. What they return elsewhere ends this process by other means.
    fn pass<T: Parcel>(&self, units: usize, produce: &Produce<'_, T>, consume: &mut Consume<'_, T>) -> Result<()>;

    /// Whether unit `unit` is that of this process.
    fn owns(&self, unit: usize) -> bool {
        unit % self.size() == self.rank()
    }

    /// What every process has to say, by rank.
    ///
    /// # Errors
    /// As [`ProcessGroup::pass`].
    fn gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut all = vec![Vec::new(); self.size()];
        self.pass::<Vec<u8>>(
            self.size(),
            &|_, send| {
                own.chunks(PIECE).all(|piece| send(To::All, piece.to_vec()));
                Ok(())
            },
            &mut |rank, piece| {
                all[rank].extend_from_slice(&piece);
                Ok(())
            },
        )?;
        Ok(all)
    }

    /// What the first process has to say. The others' `own` does not count.
    ///
    /// # Errors
    /// As [`ProcessGroup::pass`].
    fn broadcast(&self, own: Vec<u8>) -> Result<Vec<u8>> {
        if self.size() == 1 {
            return Ok(own);
        }
        let mut all = Vec::new();
        self.pass::<Vec<u8>>(
            1,
            &|_, send| {
                own.chunks(PIECE).all(|piece| send(To::All, piece.to_vec()));
                Ok(())
            },
            &mut |_, piece| {
                all.extend_from_slice(&piece);
                Ok(())
            },
        )?;
        Ok(all)
    }

    /// Lets every process add to `cells`; then `cells` has what all have added.
    ///
    /// # Errors
    /// What `add` returned, or as [`ProcessGroup::pass`].
    fn sum(&self, cells: &[AtomicU32], add: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        if self.size() == 1 {
            return add();
        }
        let before: Vec<u32> = cells.iter().map(|cell| cell.load(Ordering::Relaxed)).collect();
        add()?;
        let step = PIECE / 4;
        let own: Vec<u32> =
            cells.iter().zip(before).map(|(cell, before)| cell.load(Ordering::Relaxed).wrapping_sub(before)).collect();
        let (mut at, mut last) = (0, 0);
        self.pass::<Vec<u8>>(
            self.size(),
            &|_, send| {
                own.chunks(step).all(|piece| send(To::All, bytemuck::cast_slice(piece).to_vec()));
                Ok(())
            },
            &mut |rank, piece| {
                if rank != last {
                    (at, last) = (0, rank);
                }
                let values: Vec<u32> = collect(&piece);
                let length = values.len();
                if rank != self.rank() {
                    let cells = cells.get(at..at + length).ok_or_else(|| Error::Bug("cells do not match".into()))?;
                    for (cell, value) in cells.iter().zip(values) {
                        cell.fetch_add(value, Ordering::Relaxed);
                    }
                }
                at += length;
                Ok(())
            },
        )
    }
}

/// One process.
#[derive(Clone, Copy, Debug, Default)]
pub struct SingleProcess;

impl ProcessGroup for SingleProcess {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn pass<T: Parcel>(&self, units: usize, produce: &Produce<'_, T>, consume: &mut Consume<'_, T>) -> Result<()> {
        let produce = |unit: usize, send: &mut dyn FnMut((usize, T)) -> bool| {
            produce(unit, &mut |_, parcel| send((unit, parcel)))
        };
        ordered(units, rayon::current_num_threads(), produce, |(unit, parcel)| consume(unit, parcel))
    }
}

impl Parcel for Vec<u8> {
    fn encode(&self) -> Vec<u8> {
        self.clone()
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        Ok(bytes.to_vec())
    }
}

impl Parcel for Vec<(u32, u32)> {
    fn encode(&self) -> Vec<u8> {
        self.iter().flat_map(|&(a, b)| (u64::from(b) << 32 | u64::from(a)).to_le_bytes()).collect()
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let pair = |bytes: &[u8]| {
            let word = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i: usize| bytes[i]));
            (word as u32, (word >> 32) as u32)
        };
        Ok(bytes.chunks_exact(8).map(pair).collect())
    }
}

impl Parcel for Vec<(u64, u64)> {
    fn encode(&self) -> Vec<u8> {
        self.iter().flat_map(|&(a, b)| [a, b]).flat_map(u64::to_le_bytes).collect()
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let words: Vec<u64> = collect(bytes);
        Ok(words.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
    }
}

impl Parcel for Vec<u64> {
    fn encode(&self) -> Vec<u8> {
        bytemuck::cast_slice(self).to_vec()
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        Ok(collect(bytes))
    }
}

/// Values from bytes that need not be aligned; an incomplete one at the end is left out.
pub(crate) fn collect<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// Appends a slice to a parcel's bytes, with its length.
pub(crate) fn put<T: bytemuck::NoUninit>(bytes: &mut Vec<u8>, values: &[T]) {
    let raw: &[u8] = bytemuck::cast_slice(values);
    bytes.extend_from_slice(&(raw.len() as u64).to_le_bytes());
    bytes.extend_from_slice(raw);
}

/// Takes a slice from a parcel's bytes.
pub(crate) fn take<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(bytes: &mut &[u8]) -> Result<Vec<T>> {
    let short = || Error::Bug("a parcel is too short".into());
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
    fn parcels_survive_the_wire() {
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
    fn alone_everything_is_ones_own() {
        assert_eq!(SingleProcess.gather(b"x").unwrap(), [b"x".to_vec()]);
        assert_eq!(SingleProcess.broadcast(b"y".to_vec()).unwrap(), b"y");
        let cells = [AtomicU32::new(3)];
        SingleProcess
            .sum(&cells, &mut || {
                cells[0].fetch_add(4, Ordering::Relaxed);
                Ok(())
            })
            .unwrap();
        assert_eq!(cells[0].load(Ordering::Relaxed), 7);
    }
}
