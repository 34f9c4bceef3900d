//! Memory in large pages, for matrices whose rows are read at random.
//!
//! A row of a matrix of gigabytes is on a page that the processor's table of pages rarely knows: looking it up takes as long as
//! reading a line of the row. Pages of 2 MiB need five hundred times fewer entries; the sum over neighbors' rows runs
//! about 1.4 times as fast (`benches/propagate.rs`).

/// Numbers from one row of `width` to the next so that every row begins a cache line of 64 bytes, as long as the matrix does; what lies
/// between rows is not read.
///
/// A row of 100 `f32` covers seven lines wherever it begins, but of its loads of 64 bytes most lie across two of them. Sums over
/// neighbors' rows are about 1.2 times as fast where none does, and 1.6 times with 100 `bf16` (`benches/propagate.rs`).
///
/// ```
/// use gnnflow_kernels::pages::line_stride;
///
/// assert_eq!((line_stride::<f32>(100), line_stride::<half::bf16>(100), line_stride::<f32>(64)), (112, 128, 64));
/// ```
pub fn line_stride<T>(width: usize) -> usize {
    (width * size_of::<T>()).next_multiple_of(LINE) / size_of::<T>()
}

/// Bytes that memory and caches exchange at once.
const LINE: usize = 64;

/// Asks the system to back `memory` with large pages, where it has them and gives them to who asks; nothing else changes.
///
/// Ask before the memory is first written: what has its pages already keeps them until the system finds the time to move them.
///
/// ```
/// let mut rows = vec![0f32; 1 << 20];
/// gnnflow_kernels::pages::prefer_large(&mut rows);
/// rows.fill(1.0);
/// ```
pub fn prefer_large<T: Copy>(memory: &mut [T]) {
    #[cfg(target_os = "linux")]
    {
        const LARGE: usize = 2 << 20;
        const PAGE: usize = 4 << 10;
        let address = memory.as_mut_ptr() as usize;
        let begin = address.next_multiple_of(PAGE);
        let end = (address + size_of_val(memory)) / PAGE * PAGE;
        if end.saturating_sub(begin) >= LARGE {
            // SAFETY: the pages lie whole within memory that is borrowed exclusively, and the advice leaves its contents alone.
            // Where it is refused, pages stay small.
            let _ = unsafe {
                rustix::mm::madvise(
                    memory.as_mut_ptr().cast::<u8>().add(begin - address).cast(),
                    end - begin,
                    rustix::mm::Advice::LinuxHugepage,
                )
            };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_changes_no_number() {
        for len in [0, 1, 1000, (5 << 20) + 3] {
            let mut memory: Vec<u32> = (0..len).collect();
            prefer_large(&mut memory);
            prefer_large(&mut memory[(len / 3) as usize..]);
            assert!(memory.iter().copied().eq(0..len));
        }
    }
}
