//! The heap of the C library. Rust code has another allocator, so only the C library and libraries in C use it.

/// Makes all threads share one heap, before there are other threads.
///
/// glibc otherwise reserves address space for the heap of each thread that registers a destructor. If none is left under a limit
/// (`ulimit -v`), it ends the program with "failed to register TLS destructor". In the shared heap, there is room for such small blocks.
pub(crate) fn share() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the function only changes a setting of the C library.
    unsafe {
        // If the setting is refused, each thread has its own heap.
        let _ = libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
