//! Loops over slices: what the operators run, testable without a dataflow.
//!
//! Every kernel is a pure function of its arguments, and each has a naive program beside it in its tests.

pub mod attention;
pub mod compact;
pub(crate) mod dispatch;
pub mod edge_add;
pub mod edge_scores;
pub mod edge_softmax;
pub mod element;
pub mod elementwise;
pub mod gather;
pub mod heads;
pub mod lanes;
pub mod loss;
pub mod messages;
pub mod mixed;
pub mod node_index;
pub mod norm;
pub mod pages;
pub mod propagate;
pub mod relations;
mod rows;
pub mod sample;
pub mod segment;
pub mod sparse;
pub mod transpose;
pub mod weighted;

pub use rows::Offset;

/// Asks the processor to bring the cache line of `item` near; it never faults and changes nothing.
#[inline(always)]
pub(crate) fn prefetch<T>(item: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint that may be given for any address whatever; nothing is read.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(item.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = item;
}

/// Asks the processor to bring a row near.
#[inline(always)]
pub(crate) fn prefetch_row(row: &[u8]) {
    row.chunks(64).for_each(|line| prefetch(line.as_ptr()));
}
