//! The global allocator for programs.
//!
//! A training step allocates and frees tensors of tens of megabytes. glibc maps and unmaps each of them, so filling it
//! costs a page fault per 4 KiB. Allocating, filling and freeing a step's tensors ran at 2.7 GB/s with glibc, at 9 to
//! 11 GB/s with glibc configured to keep all memory, and at 11 GB/s with mimalloc 3 (one core of an EPYC). That is the
//! memory bandwidth, so a pool of tensors would gain nothing. Memory that is unused for a second returns to the system, or for three seconds in
//! training ([`KeepForSteps`]).
//!
//! ```
//! use gnnflow_nn::alloc::Allocator;
//!
//! #[global_allocator]
//! static ALLOCATOR: Allocator = Allocator;
//! # fn main() {}
//! ```

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{c_int, c_long};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use mimalloc::MiMalloc;

unsafe extern "C" {
    fn mi_option_get(option: c_int) -> c_long;
    fn mi_option_set(option: c_int, value: c_long);
    fn mi_collect(force: bool);
}

/// mimalloc's `mi_option_purge_delay`: milliseconds after which free memory returns to the system.
const PURGE_DELAY: c_int = 15;

/// While it lives, memory of the program's allocator returns to the system as soon as it is free. Large blocks of the C
/// library do so from then on. For passes with a bound on memory, whose large arrays live long. Training allocates and frees
/// too often for it.
#[derive(Debug)]
pub struct ReturnAtOnce {
    delay: c_long,
}

impl ReturnAtOnce {
    /// Returns all free memory to the system, and lets later frees do so at once.
    pub fn start() -> Self {
        // SAFETY: mimalloc's options are atomic, and a collection may run beside other threads.
        let delay = unsafe {
            let delay = mi_option_get(PURGE_DELAY);
            mi_collect(true);
            mi_option_set(PURGE_DELAY, 0);
            delay
        };
        // METIS allocates by the C library, which otherwise keeps blocks of up to 32 MiB after they are freed.
        #[cfg(target_env = "gnu")]
        // SAFETY: sets a parameter of the C library's allocator.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
        }
        Self { delay }
    }
}

impl Drop for ReturnAtOnce {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { mi_option_set(PURGE_DELAY, self.delay) };
    }
}

/// While it lives, the program's allocator keeps free memory for three seconds. Tensors of batches differ in size, so blocks of some sizes are not
/// used for a second or more. If they returned to the system, each later use would cost page faults and cleared pages: 6 to 9 % of an epoch of
/// GraphSAGE with batches of 360,000 rows.
#[derive(Debug)]
pub struct KeepForSteps {
    delay: c_long,
}

impl KeepForSteps {
    /// Lets later frees keep their memory.
    pub fn start() -> Self {
        // SAFETY: mimalloc's options are atomic.
        unsafe {
            let delay = mi_option_get(PURGE_DELAY);
            mi_option_set(PURGE_DELAY, 3_000);
            Self { delay }
        }
    }
}

impl Drop for KeepForSteps {
    /// Returns all free memory to the system.
    fn drop(&mut self) {
        // SAFETY: mimalloc's options are atomic, and a collection may run beside other threads.
        unsafe {
            mi_option_set(PURGE_DELAY, self.delay);
            mi_collect(true);
        }
    }
}

/// The allocator, for `#[global_allocator]`.
///
/// When the system is out of memory, it ends the process with exit code 4 and one line on stderr. Rust's default,
/// SIGABRT, looks like a bug. Programs with this allocator cannot handle failed allocations (`try_reserve`).
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocator;

// SAFETY: all memory comes from and returns to `MiMalloc`, which keeps the contract.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        non_null(unsafe { MiMalloc.alloc(layout) }, layout.size())
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        non_null(unsafe { MiMalloc.alloc_zeroed(layout) }, layout.size())
    }

    #[inline]
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { MiMalloc.dealloc(ptr, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        non_null(unsafe { MiMalloc.realloc(ptr, layout, new_size) }, new_size)
    }
}

/// Returns `memory`; ends the process if it is null.
#[inline]
fn non_null(memory: *mut u8, bytes: usize) -> *mut u8 {
    if memory.is_null() {
        exit_out_of_memory(bytes);
    }
    memory
}

/// Ends the process. Nothing here allocates, takes a lock or unwinds.
#[cold]
#[inline(never)]
fn exit_out_of_memory(bytes: usize) -> ! {
    static FIRST: AtomicBool = AtomicBool::new(true);
    if !FIRST.swap(false, Ordering::Relaxed) {
        // Another thread is ending the process; one line is enough.
        loop {
            // SAFETY: a system call without arguments.
            unsafe { libc::pause() };
        }
    }
    let mut line = [0; 256];
    let mut rest = &mut line[..];
    // The text is shorter than the line, and numbers are formatted without allocating.
    let _ = writeln!(
        rest,
        "error: cannot allocate {bytes} bytes of memory; raise the memory limit (ulimit -v, cgroup), or use smaller \
         batches or fewer threads (train.batch, train.threads)"
    );
    let length = 256 - rest.len();
    // SAFETY: `line` has `length` bytes; both calls are async-signal-safe. `_exit` runs no destructors, which could allocate.
    unsafe {
        libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), length);
        libc::_exit(4);
    }
}
