//! Memory in large pages, for matrices whose rows are read at random.
//!
//! Pages of a matrix of gigabytes are rarely in the processor's TLB. A TLB miss takes as long as reading a line of a
//! row. Pages of 2 MiB need five hundred times fewer entries; sums over neighbors' rows run about 1.4 times as fast
//! (`benches/propagate.rs`).

/// Returns the stride, in numbers, of rows of `width` numbers that all begin at a cache line of 64 bytes if the matrix
/// does. Padding is not read.
///
/// A row of 100 `f32` covers seven lines at any alignment, but unaligned 64-byte loads cross lines. Sums over
/// neighbors' rows are about 1.2 times as fast with aligned rows, and 1.6 times for 100 `bf16`
/// (`benches/propagate.rs`).
///
/// ```
/// use gnnflow_kernels::pages::line_stride;
///
/// assert_eq!((line_stride::<f32>(100), line_stride::<half::bf16>(100), line_stride::<f32>(64)), (112, 128, 64));
/// ```
pub fn line_stride<T>(width: usize) -> usize {
    (width * size_of::<T>()).next_multiple_of(LINE) / size_of::<T>()
}

/// Bytes per cache line.
const LINE: usize = 64;

/// Requests large pages for `memory`, if the system supports them; has no other effect.
///
/// Call before the first write: pages that already exist are converted only later, by the system.
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
            // SAFETY: the pages are within exclusively borrowed memory, and the advice does not change its contents. If
            // it is refused, pages stay small.
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
    fn prefer_large_does_not_change_contents() {
        for len in [0, 1, 1000, (5 << 20) + 3] {
            let mut memory: Vec<u32> = (0..len).collect();
            prefer_large(&mut memory);
            prefer_large(&mut memory[(len / 3) as usize..]);
            assert!(memory.iter().copied().eq(0..len));
        }
    }
}
