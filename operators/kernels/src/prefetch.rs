//! Prefetches of cache lines.

/// Prefetches the cache line of `item` into the second level (T1). Any address is valid; nothing changes.
///
/// The second level allows more misses in flight than the first, and is fast enough for data needed a few steps later.
/// On an EPYC 9004 with two cores, random rows of 448 bytes out of 1.1 GB arrived at 31 GB/s. Into the first level they
/// arrived at 15 GB/s, for any prefetch distance.
#[inline(always)]
pub(crate) fn prefetch<T>(item: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint that is valid for any address; nothing is read.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(item.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = item;
}

/// Prefetches every cache line of a row, for any alignment.
#[inline(always)]
pub(crate) fn prefetch_row(row: &[u8]) {
    row.chunks(64).for_each(|line| prefetch(line.as_ptr()));
    prefetch(row.as_ptr().wrapping_add(row.len().saturating_sub(1)));
}
