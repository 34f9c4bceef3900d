//! Large arrays of numbers, in memory or in mapped files.

use std::fs::File;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use bytemuck::Pod;
use memmap2::{MmapMut, MmapOptions};

use gnnflow_kernels::pages::prefer_large;

/// The place of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Private memory of the process.
    Memory,
    /// A file without a name in this folder. The system writes pages that do not fit into memory to it and reads them again. The
    /// file is gone when the array is dropped.
    Folder(PathBuf),
}

/// An array of numbers of one type, all zeros at first.
#[derive(Debug)]
pub struct Array<T> {
    map: Option<MmapMut>,
    len: usize,
    numbers: PhantomData<T>,
}

impl<T: Pod> Array<T> {
    /// Reserves `len` zeros at `place`.
    ///
    /// # Errors
    /// When memory or disk is full, or the folder is not writable.
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
                // Reserve disk space now: a later write to a full disk would be a signal, not an error.
                rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes as u64)?;
                // SAFETY: the file has no name, so no other process changes it.
                Some(unsafe { MmapOptions::new().len(bytes).map_mut(&file)? })
            }
        };
        Ok(Self { map, len, numbers: PhantomData })
    }

    /// Maps the first `len` numbers of the file at `path`. A missing or shorter file is filled with zeros; the rest of a longer one stays as it is.
    /// Changes are written to the file; [`Array::sync`] waits for that. No other process may change the file meanwhile.
    ///
    /// # Errors
    /// When the disk is full, or the file is not writable.
    ///
    /// ```
    /// use gnnflow_dataflow::storage::Array;
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("numbers");
    /// let mut array = Array::<u32>::in_file(2, &path)?;
    /// array[1] = 7;
    /// array.sync()?;
    /// drop(array);
    /// assert_eq!(Array::<u32>::in_file(3, &path)?[..], [0, 7, 0]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn in_file(len: usize, path: &Path) -> std::io::Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        if file.metadata()?.len() < bytes as u64 {
            file.set_len(bytes as u64)?;
        }
        let map = match bytes {
            0 => None,
            _ => {
                rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes as u64)?;
                // SAFETY: the caller keeps other processes from changing the file.
                Some(unsafe { MmapOptions::new().len(bytes).map_mut(&file)? })
            }
        };
        Ok(Self { map, len, numbers: PhantomData })
    }

    /// Maps the first `len` numbers of the file at `path`. Changes stay in memory, and the file keeps its numbers; a shorter file is filled with zeros.
    ///
    /// # Errors
    /// When the file is missing, or cannot be extended.
    ///
    /// ```
    /// use gnnflow_dataflow::storage::Array;
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("numbers");
    /// std::fs::write(&path, [1, 2])?;
    /// let mut array = Array::<u8>::copy_of_file(3, &path)?;
    /// array[1] = 7;
    /// assert_eq!(array[..], [1, 7, 0]);
    /// assert_eq!(std::fs::read(&path)?, [1, 2, 0]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn copy_of_file(len: usize, path: &Path) -> std::io::Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let file = File::options().read(true).write(true).open(path)?;
        if file.metadata()?.len() < bytes as u64 {
            file.set_len(bytes as u64)?;
        }
        // SAFETY: the caller keeps other processes from changing the file.
        let map = if bytes == 0 { None } else { Some(unsafe { MmapOptions::new().len(bytes).map_copy(&file)? }) };
        Ok(Self { map, len, numbers: PhantomData })
    }

    /// Waits until the changes of a mapped file are on disk.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn sync(&self) -> std::io::Result<()> {
        self.map.as_ref().map_or(Ok(()), MmapMut::flush)
    }
}

impl<T> Default for Array<T> {
    /// An array without numbers.
    fn default() -> Self {
        Self { map: None, len: 0, numbers: PhantomData }
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
    fn arrays_are_zeros_in_memory_and_in_files() {
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
