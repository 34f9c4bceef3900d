//! The allocator that programs should install.
//!
//! Tensors come and go by tens of megabytes. glibc maps each anew and gives it back at once, so that filling it costs a page
//! fault for every 4 KiB: making, filling and dropping a training step's tensors ran at 2.7 GB/s with it and at 11 GB/s, without
//! a fault, with mimalloc 3 (one core of an EPYC; with glibc told to keep everything: 9 to 11). That is what memory bandwidth
//! allows, so a recycler of our own has nothing to add. What is not used again within a second goes back to the system.
//!
//! ```
//! use gnnflow_operators::compute::alloc::Allocator;
//!
//! #[global_allocator]
//! static ALLOCATOR: Allocator = Allocator;
//! # fn main() {}
//! ```

/// The allocator, for `#[global_allocator]`.
pub use mimalloc::MiMalloc as Allocator;
