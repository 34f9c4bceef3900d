//! Long arrays of numbers, in memory or in a file that is gone when they are.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;

use bytemuck::Pod;
use memmap2::{MmapMut, MmapOptions};

use gnnflow_kernels::pages::prefer_large;

/// Where an array lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In memory that the process has to itself.
    Memory,
    /// In a nameless file in this folder: what does not fit into memory is written out by the system, and read again.
    Folder(PathBuf),
}

/// Numbers of one type, zeros at first.
#[derive(Debug)]
pub struct Array<T> {
    map: Option<MmapMut>,
    len: usize,
    numbers: PhantomData<T>,
}

impl<T: Pod> Array<T> {
    /// `len` zeros at `place`.
    ///
    /// # Errors
    /// When there is no room.
    ///
    /// ```
    /// use gnnflow_dataflow::storage::{Array, Place};
    ///
    /// let mut array = Array::<u32>::zeros(3, &Place::Memory)?;
    /// array[1] = 7;
    /// assert_eq!(array[..], [0, 7, 0]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn zeros(len: usize, place: &Place) -> std::io::Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let map = match (bytes, place) {
            (0, _) => None,
            (_, Place::Memory) => {
                let mut map = MmapOptions::new().len(bytes).map_anon()?;
                prefer_large(&mut map[..]);
                Some(map)
            }
            (_, Place::Folder(folder)) => {
                let file = tempfile::tempfile_in(folder)?;
                // Room is taken now: a mapped write to a full disk would be a signal, not an error.
                rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes as u64)?;
                // SAFETY: the file has no name, so that nobody else changes it.
                Some(unsafe { MmapOptions::new().len(bytes).map_mut(&file)? })
            }
        };
        Ok(Self { map, len, numbers: PhantomData })
    }
}

impl<T: Pod> Deref for Array<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.map {
            Some(map) => &bytemuck::cast_slice(map)[..self.len],
            None => &[],
        }
    }
}

impl<T: Pod> DerefMut for Array<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.map {
            Some(map) => &mut bytemuck::cast_slice_mut(map)[..self.len],
            None => &mut [],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_zeros_wherever_they_lie() {
        let folder = tempfile::tempdir().unwrap();
        for place in [Place::Memory, Place::Folder(folder.path().to_owned())] {
            for len in [0, 1, 5000] {
                let mut array = Array::<u64>::zeros(len, &place).unwrap();
                assert!(array.iter().all(|&number| number == 0));
                (0..len).for_each(|i| array[i] = i as u64);
                assert_eq!(array.to_vec(), (0..len as u64).collect::<Vec<_>>());
            }
        }
        let nowhere = Place::Folder(folder.path().join("nowhere"));
        assert!(Array::<u8>::zeros(1, &nowhere).is_err());
    }
}
